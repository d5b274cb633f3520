"""The modules that an agent file can import here, and their contents."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from harness.agents import classes, prompt
from harness.agents.environment import POI_CATG_DICT, Environment, MapData
from harness.agents.llm import LLM
from harness.agents.memory import KVMemory, Memory, StreamMemory

AGENT_NAMES = (
    "Agent AgentContext AgentParams AgentToolbox AgentType Block BlockContext BlockDispatcher BlockOutput BlockParams"
    " CitizenAgentBase MemoryAttribute param_docs register_get"
)
PROMPT_NAMES = "DotDict FormatPrompt auto_deepcopy_dotdict context_to_dot_dict"
SUBMODULES = {
    "agentsociety.agent": "agent agent_base block context decorator dispatcher memory_config_generator prompt toolbox",
    "agentsociety.environment": "environment",
    "agentsociety.llm": "llm",
    "agentsociety.memory": "memory",
    "agentsociety.message": "messager",
}
"""Modules of upstream that define what its packages re-export; here each has the contents of its package."""


def clean_json_response(response: str) -> str:
    """Return a reply without the marks of a fenced block."""
    return response.replace("```json", "").replace("```", "").strip()


def fake_modules() -> dict[str, ModuleType]:
    """Return modules by name, new ones at each call: no agent file can change those of another."""
    kinds = {kind: list(words) for kind, words in POI_CATG_DICT.items()}
    contents: dict[str, dict[str, Any]] = {
        "agentsociety.agent": {
            **{name: getattr(classes, name) for name in AGENT_NAMES.split()},
            **{name: getattr(prompt, name) for name in PROMPT_NAMES.split()},
        },
        "agentsociety.cityagent.blocks.utils": {"clean_json_response": clean_json_response},
        "agentsociety.environment": {"Environment": Environment, "MapData": MapData},
        "agentsociety.environment.utils.const": {"POI_CATG_DICT": kinds},
        "agentsociety.llm": {"LLM": LLM},
        "agentsociety.logger": {"get_logger": classes.get_logger},
        "agentsociety.memory": {"KVMemory": KVMemory, "Memory": Memory, "StreamMemory": StreamMemory},
        "agentsociety.memory.const": {
            "RelationType": classes.RelationType,
            "SocialRelation": classes.SocialRelation,
        },
        "agentsociety.message": {"Message": classes.Message, "MessageKind": classes.MessageKind},
    }
    for package, names in SUBMODULES.items():
        contents |= {f"{package}.{name}": contents[package] for name in names.split()}
    for package in ("agentsociety_benchmark", "mobisimbench"):
        for name in ("benchmarks", "benchmarks.DailyMobility", "benchmarks.DailyMobility.template_agent"):
            contents[f"{package}.{name}"] = {"DailyMobilityAgent": classes.DailyMobilityAgent}
    modules: dict[str, ModuleType] = {}
    for name, held in contents.items():
        _module(modules, name).__dict__.update(held, __all__=list(held))
    return modules


def _module(modules: dict[str, ModuleType], name: str) -> ModuleType:
    """Return a module, made where it is missing together with the packages above it; each is an attribute of its
    package."""
    if name not in modules:
        module = modules[name] = ModuleType(name)
        module.__path__ = []
        package, _, last = name.rpartition(".")
        if package:
            setattr(_module(modules, package), last, module)
    return modules[name]
