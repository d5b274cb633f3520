"""The modules that an agent file finds here, and what is in them."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from harness.benchmarks.dailymobility.agents import classes
from harness.benchmarks.dailymobility.agents.categories import POI_CATG_DICT
from harness.benchmarks.dailymobility.agents.environment import Environment
from harness.benchmarks.dailymobility.agents.llm import LLM
from harness.benchmarks.dailymobility.agents.memory import KVMemory, Memory, StreamMemory
from harness.benchmarks.dailymobility.agents.places import MapData

AGENT_NAMES = (
    "Agent AgentContext AgentParams AgentToolbox AgentType Block BlockContext BlockOutput BlockParams CitizenAgentBase"
    " MemoryAttribute param_docs register_get"
)


SUBMODULES = {
    "agentsociety.agent": "agent agent_base block memory_config_generator toolbox",
    "agentsociety.environment": "environment",
    "agentsociety.llm": "llm",
    "agentsociety.memory": "memory",
}
"""Modules in which upstream keeps what its packages hand on; here each has all that its package has."""


def clean_json_response(response: str) -> str:
    """A reply without the marks of a fenced block."""
    return response.replace("```json", "").replace("```", "").strip()


def shims() -> dict[str, ModuleType]:
    """Modules by name, new ones at each call: what one agent file does to them is not seen by another."""
    benchmark = {"DailyMobilityAgent": classes.DailyMobilityAgent}
    contents: dict[str, dict[str, Any]] = {
        "agentsociety.agent": {name: getattr(classes, name) for name in AGENT_NAMES.split()},
        "agentsociety.cityagent.blocks.utils": {"clean_json_response": clean_json_response},
        "agentsociety.environment": {"Environment": Environment, "MapData": MapData},
        "agentsociety.environment.utils.const": {
            "POI_CATG_DICT": {kind: list(words) for kind, words in POI_CATG_DICT.items()}
        },
        "agentsociety.llm": {"LLM": LLM},
        "agentsociety.logger": {"get_logger": classes.get_logger},
        "agentsociety.memory": {"KVMemory": KVMemory, "Memory": Memory, "StreamMemory": StreamMemory},
    }
    for package, modules in SUBMODULES.items():
        contents |= {f"{package}.{module}": contents[package] for module in modules.split()}
    for package in ("agentsociety_benchmark", "mobisimbench"):
        for name in ("benchmarks", "benchmarks.DailyMobility", "benchmarks.DailyMobility.template_agent"):
            contents[f"{package}.{name}"] = benchmark
    return _tree(contents)


def _tree(contents: dict[str, dict[str, Any]]) -> dict[str, ModuleType]:
    """Modules with these contents, and the packages above them, each of which has those below it as attributes."""
    modules: dict[str, ModuleType] = {}
    for name, held in contents.items():
        parts = name.split(".")
        for depth in range(1, len(parts) + 1):
            path = ".".join(parts[:depth])
            module = modules.setdefault(path, ModuleType(path))
            module.__path__ = []
            if depth > 1:
                setattr(modules[".".join(parts[: depth - 1])], parts[depth - 1], module)
        modules[name].__dict__.update(held, __all__=list(held))
    return modules
