"""`--config`: the endpoint in another program's YAML file.

Its `llm` is a list of `{provider, base_url, api_key, model, concurrency or semaphore, timeout}`; other fields
are that program's own. The key in it is a secret like any other, so no message shows a value of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.benchmarks.files import content
from harness.config import providers
from harness.defaults import CONCURRENCY_MOST, SECONDS_MOST
from harness.errors import BadInput
from harness.model import JSON

FROM_CONFIG = "--config "
"""Before the file's path, as the manifest names where a key is from."""

LARGEST = 1 << 20
"""Bytes of a file."""

OURS = {"qwen": "dashscope"} | {name: name for name in ("openai", "deepseek", "siliconflow", "zhipuai", "volcengine")}
"""The providers that a file may name without an address -> what our own file calls them."""


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
    model = _typed(first, "model", str, "the name of a model", path)
    if not model:
        raise BadInput(f"{path}: field llm[0].model: expected the name of a model")
    pace = "concurrency" if first.get("concurrency") is not None else "semaphore"
    concurrency = _typed(first, pace, int, "a whole number from 1", path)
    timeout = _typed(first, "timeout", (int, float), "seconds above 0", path)
    for name, value, most in ((pace, concurrency, CONCURRENCY_MOST), ("timeout", timeout, SECONDS_MOST)):
        if value is not None and not 0 < value <= most:
            raise BadInput(f"{path}: field llm[0].{name}: expected a number above 0 and at most {most:g}")
    key = _typed(first, "api_key", str, "a key in quotes", path) or None
    return Config(path, _url(first, path), key, model, concurrency, timeout, len(entries) - 1)


def _document(path: Path) -> JSON:
    try:
        import yaml
    except ImportError:
        raise BadInput("--config needs the package PyYAML: pip install PyYAML") from None
    try:
        data: Any = yaml.safe_load(content(path, LARGEST))
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from None
    except (
        yaml.YAMLError,
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        mark = getattr(error, "problem_mark", None)
        raise BadInput(f"{path}{f', line {mark.line + 1}' if mark else ''}: expected YAML") from None
    if type(data) is not dict:
        raise BadInput(f"{path}: expected a mapping with the field llm")
    return data


def _url(entry: JSON, path: Path) -> str:
    url = _typed(entry, "base_url", str, "an address", path)
    if url:
        return str(url)
    provider = _typed(entry, "provider", str, "the name of a provider", path)
    if provider not in OURS:
        raise BadInput(f"{path}: field llm[0].base_url: expected an address, since only {', '.join(OURS)} have one")
    return providers.shipped().providers[OURS[provider]].base_url[0]


def _typed(entry: JSON, name: str, kind: type | tuple[type, ...], expected: str, path: Path) -> Any:
    """Return a field of this kind, None if it is absent or null."""
    value = entry.get(name)
    if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
        raise BadInput(f"{path}: field llm[0].{name}: expected {expected}")
    return value
