"""Reports as the tables of `stats` take them (docs/design.md, sections 5, 8 and 9)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from os import fsencode
from pathlib import Path

import msgspec
import orjson
from msgspec import UNSET

from harness import defaults
from harness.benchmark import Benchmark, Metric, headline_of, metrics_of, title_of
from harness.benchmarks import registry
from harness.cost import Cost
from harness.errors import BadInput
from harness.model import JSON
from harness.printable import short_hash
from harness.reporting.report_files import NOT_A_REPORT, loaded
from harness.scoring.reports import Count, Number, Repeats, Report
from harness.store.manifest import whole_of

KNOWN = ("own", "authors")
"""Prompts whose name says which they are; any other is the name of a file of the user's."""
DEFAULTS: JSON = {"temperature": defaults.TEMPERATURE, "top_p": None, "seed": None, "max_tokens": None}
DEFAULTS |= {"structured": "json_object"}
"""Parameters of requests that need no word."""
LONGEST = 60
"""Characters of `extra_body` that are shown."""


@dataclass(frozen=True, slots=True)
class MetricValue:
    """A metric over the `users` that have it, as a fraction, with its 95 % interval where the report gives one, and
    whether that is `approximate`."""

    value: float
    interval: tuple[float, float] | None = None
    users: int | None = None
    approximate: bool = False


@dataclass(frozen=True, slots=True)
class Declared:
    """What a report's benchmark declares: its title, its metrics by name, those shown first, its subsets in the order
    of tables, and what becomes of invalid answers."""

    title: str
    metrics: Mapping[str, Metric]
    headline: tuple[str, ...]
    subsets: tuple[str, ...]
    invalid_as: str


class Run(msgspec.Struct, frozen=True):
    """What tables need of `run` in a report. All of it is unknown for results of the authors' runner."""

    ratio: Number = 1.0
    limit: Count | None = None
    part: str | None = None
    users_in_tasks: Count | None = None
    tasks_sha256: str | None = None
    files: dict[str, str] = {}
    created: str | None = None
    harness: str | None = None
    temperature: int | Number | None = None
    top_p: int | Number | None = None
    seed: int | Number | None = None
    max_tokens: int | Number | None = None
    structured: str | None = None
    extra_body: JSON | None = None


@dataclass(frozen=True, slots=True)
class Scored:
    """A report of one run on one subset.

    `complete` says that all users of the tasks file, `in_tasks` in number, are scored, so a share of them, of which
    `expected` are to be scored, never is. Of the `answers` `invalid` ones could not be used. A metric without a value
    is None. `usage` is empty where no request was counted; `cost` is None for a baseline, and where it is unknown.
    `following` is the share of the answers that a metric is over, by metric: None if it is unknown. `chance` is the
    chance level by metric, `chance_error` the standard error of those that are drawn. `ablations` and `sampling` have a
    phrase for each setting of the benchmark and each parameter that is not the default. `tasks` (their SHA-256),
    `files` (those of the prompt's or agent's files, in the order of their names), `sampling`, `begun` and `harness` are
    empty where the report does not know them, as for results of the authors' runner.
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
    values: Mapping[str, MetricValue | None]
    following: Mapping[str, float | None]
    chance: Mapping[str, float]
    chance_error: Mapping[str, float]
    bias: Mapping[str, float]
    limit: int | None = None
    part: str | None = None
    repeats: Repeats | None = None
    cost: Cost | None = None

    @property
    def is_incomplete(self) -> bool:
        """Return whether a user that the run selected, or a repeat of one, is not scored."""
        of = self.repeats
        return self.scored < self.expected or (of is not None and of.scored < of.expected)

    @property
    def covered(self) -> str:
        """Return how many users of the tasks file are scored, and with repeats how many of their plays."""
        of, users = self.repeats, f"{self.scored} of {self.in_tasks}"
        return f"{users} ({of.scored} of {of.expected} repeats)" if of else users

    @property
    def about(self) -> str:
        """Return what a reader must know before comparing: the model, and the conditions of the run."""
        return f"{self.model}, {self.conditions}"

    @property
    def conditions(self) -> str:
        """Prompt, ablation, sampling, share, synthetic tasks."""
        words = [self.prompt_label, *self.settings]
        if self.ratio != 1.0:
            words.append(f"share {self.ratio:g}" if self.limit is None else f"limit {self.limit}")
        words += [f"part {self.part}"] if self.part else []
        words += [f"{self.repeats.repeats} repeats"] if self.repeats else []
        words += ["synthetic tasks"] if self.synthetic else []
        return ", ".join(words)

    @property
    def settings(self) -> tuple[str, ...]:
        """Those that are not the default and may differ among runs with the same prompt."""
        return (*self.ablations, *self.sampling)

    @property
    def prompt_label(self) -> str:
        """A user's own with the beginning of its SHA-256, since two files may bear one name."""
        digest = "" if self.prompt in KNOWN or not self.files else f" ({'+'.join(map(short_hash, self.files))})"
        return f"{self.prompt}{digest}{'' if self.prompt.startswith('agent ') else ' prompt'}"

    @property
    def is_prompt_known(self) -> bool:
        """Whether a name or a hash says what was asked."""
        return bool(self.files) or self.prompt in KNOWN


def read(path: Path) -> Scored:
    """Return the report in a file `<run>/eval_report_<subset>.json`. Raise `BadInput` for any other file."""
    return checked(loaded(path), path)


def without_merged(found: Sequence[Scored]) -> list[Scored]:
    """Return reports without those of parts of a whole run that is among them: it has their users."""
    there = {(of.run, of.subset) for of in found}
    return [of for of in found if (whole_of(of.run, of.part), of.subset) not in there]


def checked(report: Report, path: Path) -> Scored:
    """Return a report for tables. Raise `BadInput` if it has no run that can be used."""
    try:
        run, coverage, of = msgspec.convert(report.run, Run), report.coverage, report.diagnostics
    except msgspec.ValidationError:
        raise BadInput(NOT_A_REPORT) from None
    invalid = sum(of.invalid.values())
    in_tasks = coverage.expected_users if run.users_in_tasks is None else run.users_in_tasks
    ratio = run.ratio if run.limit is None else min(1.0, run.limit / max(1, in_tasks))
    return Scored(
        benchmark=report.benchmark,
        run=fsencode(path.parent.name).decode("utf-8", "backslashreplace"),  # a folder's name may be no text
        subset=report.subset,
        model=report.model,
        prompt=report.prompt,
        prompt_version=report.prompt_version,
        declared=Declared(report.heading, report.units, report.headline, report.subsets, report.invalid_as),
        ablations=_ablations(report.run, report.defaults),
        sampling=_sampling(run),
        ratio=ratio,
        limit=run.limit,
        part=run.part,
        repeats=None if report.repeats is UNSET else report.repeats,
        synthetic=any("synthetic" in note for note in report.notes),
        tasks=run.tasks_sha256 or "",
        files=tuple(digest for _, digest in sorted(run.files.items())),
        begun=run.created or "",
        harness=run.harness or "",
        expected=coverage.expected_users,
        scored=coverage.scored_users,
        failed=coverage.failed_users,
        in_tasks=in_tasks,
        answers=of.valid_answers + invalid,
        invalid=invalid,
        complete=coverage.complete and ratio == 1.0 and run.part is None,
        usage=report.usage if report.usage.get("requests") else {},
        cost=report.cost or None,
        following={name: of.following(metric) for name, metric in _declared(report).items()},
        chance=report.chance,
        chance_error=report.chance_error,
        bias=report.bias,
        values={
            name: None if of.value is None else MetricValue(of.value, of.ci95, of.users, bool(of.approximate))
            for name, of in report.values.items()
        },
    )


def _declared(report: Report) -> dict[str, Metric]:
    """Return the metrics of a report; of a benchmark that ships as they are declared today."""
    own = report.units
    shipped = declared_of(registry.find(report.benchmark)).metrics if registry.is_shipped(report.benchmark) else {}
    return own | {name: metric for name, metric in shipped.items() if name in own}


def declared_of(cls: Benchmark | type[Benchmark]) -> Declared:
    """Return what reports of a benchmark declare."""
    return Declared(title_of(cls), metrics_of(cls), headline_of(cls), tuple(cls.subsets), cls.about.invalid_as)


def _ablations(run: JSON, defaults: JSON) -> tuple[str, ...]:
    """Return the settings of the benchmark that are not the default."""
    others = {name: run[name] for name, default in defaults.items() if name in run and run[name] != default}
    return tuple(f"no {name}" if value is False else f"{name} {_bounded(str(value))}" for name, value in others.items())


def _sampling(run: Run) -> tuple[str, ...]:
    named = {name: getattr(run, name) for name in DEFAULTS}
    found = (
        f"{name} {f'{value:g}' if isinstance(value, float) else _bounded(str(value))}"
        for name, value in named.items()
        if value not in (None, DEFAULTS[name])
    )
    by_request = ["temperature by request"] if run.created and run.temperature is None else []
    return (
        *by_request,
        *found,
        *([f"extra_body {_bounded(orjson.dumps(run.extra_body).decode())}"] if run.extra_body else []),
    )


def _bounded(text: str) -> str:
    """Long ones with the beginning of their SHA-256: two that begin alike do not read alike."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({short_hash(sha256(text.encode()).hexdigest())})"
