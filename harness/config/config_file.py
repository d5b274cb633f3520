"""`--config`: the endpoint in another program's YAML file.

Its `llm` is a list of `{provider, base_url, api_key, model, concurrency or semaphore, timeout}`; other fields
are that program's own. It holds a key, so no message shows a value.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.benchmarks.files import content
from harness.config import fields, providers
from harness.defaults import CONCURRENCY_MOST
from harness.errors import BadInput, to_install
from harness.model import JSON
from harness.option import whole

FROM_CONFIG = "--config "
"""Before the file's path, as the manifest names where a key is from."""

OF_TAGS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Errors of YAML's tags on values that they cannot convert."""
LARGEST = 1 << 20
"""Bytes of a file."""

OURS = {"qwen": "dashscope"} | {name: name for name in ("openai", "deepseek", "siliconflow", "zhipuai", "volcengine")}
"""Provider that needs no address in a file -> its name in `providers.toml`."""


@dataclass(frozen=True, slots=True)
class Config:
    """`others` counts the endpoints after the first, which are not used; `timeout` is in seconds."""

    path: Path
    url: str
    key: str | None = field(repr=False)
    model: str
    concurrency: int | None
    timeout: float | None
    others: int

    @property
    def key_from(self) -> str | None:
        return f"{FROM_CONFIG}{self.path.resolve()}" if self.key else None

    @property
    def tuning(self) -> JSON:
        """Return the pace in the file, by the names of `Tuning`."""
        pace = {"concurrency": self.concurrency, "timeout": self.timeout}
        return {name: value for name, value in pace.items() if value is not None}


def read(path: Path) -> Config:
    """Return the first endpoint of a file. Raise `BadInput` with file and field."""
    entries = _document(path).get("llm")
    if type(entries) is not list or not entries:
        raise BadInput(f"{path}: field llm: expected a list of at least one endpoint")
    first = entries[0]
    if type(first) is not dict:
        raise BadInput(f"{path}: field llm[0]: expected a mapping")
    pace = "concurrency" if first.get("concurrency") is not None else "semaphore"
    checks = {
        "model": fields.MODEL,
        pace: whole(1, CONCURRENCY_MOST),
        "timeout": fields.SECONDS,
        "api_key": (lambda value: type(value) is str, "a key in quotes"),
        "base_url": (lambda value: type(value) is str, "an address"),
    }
    found = {name: value for name in checks if (value := first.get(name)) is not None}
    for name, (fits, expected) in checks.items():
        if (name in found or name == "model") and not fits(found.get(name)):
            raise BadInput(f"{path}: field llm[0].{name}: expected {expected}")
    url = found.get("base_url") or _known_address(first.get("provider"), path)
    key = found.get("api_key") or None
    return Config(path, url, key, found["model"], found.get(pace), found.get("timeout"), len(entries) - 1)


def _known_address(provider: Any, path: Path) -> str:
    """Return the address of a provider in the shipped providers file."""
    if type(provider) is not str or provider not in OURS:
        raise BadInput(f"{path}: field llm[0].base_url: expected an address, or as provider one of {', '.join(OURS)}")
    return providers.shipped().providers[OURS[provider]].base_url[0]


def _document(path: Path) -> JSON:
    try:
        import yaml
    except ImportError:
        raise BadInput(f"--config needs the package PyYAML: {to_install('PyYAML')}") from None
    try:
        data: Any = yaml.safe_load(content(path, LARGEST))
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from None
    except (yaml.YAMLError, *OF_TAGS) as error:
        mark = getattr(error, "problem_mark", None)
        raise BadInput(f"{path}{f', line {mark.line + 1}' if mark else ''}: expected YAML") from None
    if type(data) is not dict:
        raise BadInput(f"{path}: expected a mapping with the field llm")
    return data
