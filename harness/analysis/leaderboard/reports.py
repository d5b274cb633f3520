"""JSON reports as the tables of `stats` take them (docs/design.md, sections 8 and 9)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson

from harness import defaults
from harness.benchmark import Metric
from harness.benchmarks.derived import upgraded
from harness.benchmarks.files import DOCUMENT_MOST, content
from harness.benchmarks.overview import NONE_OF_OURS
from harness.errors import BadInput, shown
from harness.model import JSON

FORMATS = (1,)
"""Of the reports that can be read, whatever their benchmark."""
KNOWN = ("own", "authors")
"""Prompts whose name says which they are; any other is the name of a file of the user's."""
DEFAULTS = {"temperature": defaults.TEMPERATURE, "top_p": None, "seed": None, "max_tokens": None}
"""Sampling that needs no word."""
LONGEST = 60
"""Characters of `extra_body` that are shown."""
LARGEST = 1e150
"""Beyond it sums and percents have no end."""


@dataclass(frozen=True, slots=True)
class Value:
    """A metric over the `users` that have it, as a fraction, with its 95 % interval where the report gives one."""

    value: float
    interval: tuple[float, float] | None = None
    users: int | None = None


@dataclass(frozen=True, slots=True)
class Declared:
    """What a report's benchmark declares: its metrics by name, those shown first, its subsets in the order of tables,
    and what becomes of invalid answers."""

    metrics: Mapping[str, Metric]
    headline: tuple[str, ...]
    subsets: tuple[str, ...]
    invalid_as: str


@dataclass(frozen=True, slots=True)
class Scored:
    """A report of one run on one subset.

    `complete` says that all users of the tasks file, `in_tasks` in number, are scored, so a share of them, of which
    `expected` are to be scored, never is. Of the `answers` `invalid` ones could not be used. A metric without a value
    is None. `usage` is empty where no request was counted. `ablations` and `sampling` have a phrase for each setting of
    the benchmark and each parameter that is not the default. `tasks` (their SHA-256), `files` (those of the prompt's or
    agent's files, in the order of their names), `sampling`, `begun` and `harness` are empty where the report does not
    know them, as for results of the authors' runner.
    """

    benchmark: str
    run: str
    subset: str
    model: str
    prompt: str
    prompt_version: str
    declared: Declared
    ablations: tuple[str, ...]
    sampling: tuple[str, ...]
    ratio: float
    synthetic: bool
    tasks: str
    files: tuple[str, ...]
    begun: str
    harness: str
    expected: int
    scored: int
    failed: int
    in_tasks: int
    answers: int
    invalid: int
    complete: bool
    usage: Mapping[str, int]
    values: Mapping[str, Value | None]

    @property
    def about(self) -> str:
        """Return what a reader must know before comparing: the model, and the conditions of the run."""
        return f"{self.model}, {self.conditions}"

    @property
    def conditions(self) -> str:
        """Prompt, ablation, sampling, share, synthetic tasks."""
        words = [self.prompt_label, *self.settings]
        words += [] if self.ratio == 1.0 else [f"share {self.ratio:g}"]
        words += ["synthetic tasks"] if self.synthetic else []
        return ", ".join(words)

    @property
    def settings(self) -> tuple[str, ...]:
        """Those that are not the default and may differ among runs with the same prompt."""
        return (*self.ablations, *self.sampling)

    @property
    def prompt_label(self) -> str:
        """A user's own with the beginning of its SHA-256, since two files may bear one name."""
        digest = "" if self.prompt in KNOWN or not self.files else f" ({'+'.join(each[:8] for each in self.files)})"
        return f"{self.prompt}{digest}{'' if self.prompt.startswith('agent ') else ' prompt'}"

    @property
    def is_prompt_known(self) -> bool:
        """Whether a name or a hash says what was asked."""
        return bool(self.files) or self.prompt in KNOWN


def read(path: Path) -> Scored:
    """The report in a file `<run>/eval_report_<subset>.json`.

    Raises `BadInput` for a file that is no such report.
    """
    try:
        data: Any = orjson.loads(content(path, DOCUMENT_MOST))
    except (OSError, ValueError):
        raise BadInput(NONE_OF_OURS) from None
    return checked(data, path)


def checked(data: Any, path: Path) -> Scored:
    """What a report says. Raises `BadInput` where it is none, or not the one that its file's name says."""
    try:
        if data["format"] not in FORMATS:
            odd = shown(data["format"])
            raise BadInput(f"a report of format {odd}, not {FORMATS[-1]}: regenerate it with `reeval`")
        found = _scored(data, path)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BadInput(NONE_OF_OURS) from None
    if found.subset not in found.declared.subsets:
        raise BadInput(f"a report of {shown(found.benchmark)} on {shown(found.subset)}, which it does not have")
    if path.name != f"eval_report_{found.subset}.json":
        raise BadInput(f"not the report that its name says but one of the subset {shown(found.subset)}")
    return found


def _scored(found: JSON, path: Path) -> Scored:
    data = upgraded(found)
    coverage, run = data["coverage"], data.get("run", {})
    ratio = _number(run.get("ratio", 1.0))
    usage = data.get("usage", {})
    valid, invalid = _answers(data.get("diagnostics", {}))
    return Scored(
        benchmark=_text(data["benchmark"]),
        run=path.parent.name.encode("utf-8", "backslashreplace").decode(),  # a folder's name may be no text
        subset=_text(data["subset"]),
        model=_text(data["model"]),
        prompt=_text(data["prompt"]),
        prompt_version=_text(data["prompt_version"]),
        declared=declared_of(data),
        ablations=_ablations(run, data["defaults"]),
        sampling=_sampling(run),
        ratio=ratio,
        synthetic=any("synthetic" in str(note) for note in data["notes"]),
        tasks=_text(run.get("tasks_sha256") or ""),
        files=tuple(_text(digest) for _, digest in sorted(run.get("files", {}).items())),
        begun=_text(run.get("created") or ""),
        harness=_text(run.get("harness") or ""),
        expected=_count(coverage["expected_users"]),
        scored=_count(coverage["scored_users"]),
        failed=_count(coverage["failed_users"]),
        in_tasks=_count(run.get("users_in_tasks", coverage["expected_users"])),
        answers=valid + invalid,
        invalid=invalid,
        complete=coverage["complete"] is True and ratio == 1.0,
        usage={name: _count(number) for name, number in usage.items()} if usage.get("requests") else {},
        values=_values(data),
    )


def declared_of(data: JSON) -> Declared:
    """What a report declares. Raise an error of its shape (`KeyError`, `TypeError`, ...) where it does not."""
    metrics = {_text(name): Metric.of(name, of) for name, of in data["metric_units"].items()}
    headline = tuple(map(_text, data["headline"]))
    if not metrics.keys() >= set(headline):
        raise ValueError(headline)
    return Declared(
        metrics,
        headline,
        tuple(map(_text, data["subsets"])),
        _text(data["invalid_as"]),
    )


def _ablations(run: JSON, defaults: JSON) -> tuple[str, ...]:
    """The settings of the benchmark that are not the default."""
    others = {name: run[name] for name, default in defaults.items() if name in run and run[name] != default}
    return tuple(f"no {name}" if value is False else f"{name} {_bounded(str(value))}" for name, value in others.items())


def _sampling(run: JSON) -> tuple[str, ...]:
    found = [
        f"{name} {_parameter(run[name])}"
        for name, default in DEFAULTS.items()
        if run.get(name) is not None and run[name] != default
    ]
    extra = run.get("extra_body") or {}
    if not isinstance(extra, dict):
        raise ValueError(extra)
    return (*found, *([f"extra_body {_bounded(orjson.dumps(extra).decode())}"] if extra else []))


def _parameter(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _bounded(text: str) -> str:
    """Long ones with the beginning of their SHA-256: two that begin alike do not read alike."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({sha256(text.encode()).hexdigest()[:8]})"


def _answers(diagnostics: JSON) -> tuple[int, int]:
    """How many were valid, and how many were not."""
    return _count(diagnostics.get("valid_answers", 0)), sum(map(_count, diagnostics.get("invalid", {}).values()))


def _values(data: JSON) -> dict[str, Value | None]:
    return {name: _value(entry) for name, entry in {**data["metrics"], **data.get("secondary", {})}.items()}


def _value(entry: JSON) -> Value | None:
    interval = entry.get("ci95")
    if interval is not None:
        low, high = interval
        interval = _number(low), _number(high)
    return None if entry["value"] is None else Value(_number(entry["value"]), interval, _users(entry))


def _users(entry: JSON) -> int | None:
    return None if entry["users"] is None else _count(entry["users"])


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < LARGEST:
        raise ValueError(value)
    return float(value)


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(value)
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(value)
    return value
