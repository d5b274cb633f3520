"""The JSON report of a run on one subset, as types (docs/design.md, section 5).

The field names are written here and nowhere else. Values are in their metric's unit, undefined ones
null.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import msgspec
import orjson
from msgspec import UNSET, Meta, Struct, UnsetType, structs

from harness.benchmark import Benchmark, Ends, Metric, headline_of, metrics_of, title_of
from harness.benchmarks import settings as own_settings
from harness.cost import Cost
from harness.document import Block
from harness.model import JSON, Completion, Reply
from harness.reply_facts import ReplyFacts
from harness.scoring.bootstrap import Array
from harness.scoring.components import Components

FORMAT = 4
USERS, BLOCKS = "users", "blocks of users"
"""What intervals are made of."""

Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Number = Annotated[float, Meta(gt=-1e150, lt=1e150)]
"""Beyond these bounds sums and percents overflow."""
Interval = tuple[Number, Number]


class Coverage(Struct, frozen=True):
    """How many users a report expects, has scored, and lost as failures; `complete` if all are
    scored."""

    expected_users: Count
    scored_users: Count
    failed_users: Count
    complete: bool


class Value(Struct, frozen=True):
    """A figure: its `value` (None if undefined), its 95 % interval `ci95`, and the number of
    `users` that have it.

    A share is a fraction from 0 to 1; any other figure is in its metric's unit. `approximate` is
    there, and true, where an interval is not shown to hold: of few users, or few that differ.
    """

    value: Number | None
    ci95: Interval | None = None
    users: Count | None = None
    approximate: bool | UnsetType = UNSET

    @classmethod
    def of(
        cls,
        value: float | None,
        ends: Ends | None,
        users: int,
    ) -> Value:
        """Return a value with its interval, marked where that is approximate."""
        is_approximate = ends is not None and any(ends[2:])
        return cls(value, ends and ends[:2], users, True if is_approximate else UNSET)


class Component(Struct, frozen=True):
    """Variances of a metric `between` users and `within` a user's answers, and the standard `error`
    of its mean.

    `share` is that of the answers in the variance of a user's mean, `removable` the part of the
    error that repeats without end would remove, and `doubled` the error with twice the repeats, as
    a share of the present one.
    """

    between: Number
    within: Number
    error: Number
    share: Number | None
    removable: Number | None
    doubled: Number | None

    @classmethod
    def of(cls, variances: Components) -> Component:
        removable = doubled = None
        error = variances.error()
        if error:
            removable = 1 - variances.error(math.inf) / error
            doubled = variances.error(2) / error

        return cls(variances.between, variances.within, error, variances.share, removable, doubled)


class Repeats(Struct, frozen=True):
    """How many times each user is played, how many plays are expected and scored, and the
    components by metric."""

    repeats: Count
    expected: Count
    scored: Count
    components: dict[str, Component] = {}


class Diagnostics(Struct, frozen=True):
    """`invalid` counts answers by kind; `repaired` counts repairs by kind; `breaches` counts valid
    answers that break a rule of the task by kind, None in reports of earlier versions."""

    answers: Count = 0
    valid_answers: Count = 0
    invalid: dict[str, Count] = {}
    repaired: dict[str, Count] = {}
    breaches: dict[str, Count] | None = None

    def following(self, metric: Metric) -> float | None:
        """Return the share of the answers that a metric is over, by what it `leaves_out`; None if
        it is not known."""
        if not metric.leaves_out:
            return 1.0
        if self.breaches is None or not self.answers:
            return None

        left_out = sum(self.breaches.get(kind, 0) for kind in metric.leaves_out)

        return (self.valid_answers - left_out) / self.answers


class Unit(Struct, frozen=True):
    """A metric as a report declares it."""

    better: str
    unit: str | None
    bounds: tuple[Number | None, Number | None]
    definition: str = ""
    ranked_by: str = ""
    unranked: str = ""
    leaves_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a run, with what a reader of it must know.

    `shown` is the value that runs are ranked by, and `published` that of the metric itself: the
    same one for most metrics. `chance` is the chance level, with its standard error if it is drawn.
    """

    metric: Metric
    shown: Value
    published: Value
    chance: float | None
    chance_error: float | None
    bias: float | None

    @property
    def name(self) -> str:
        """Return the name of the metric whose value is shown: what ranks it, where that is another
        value."""
        is_own = self.metric.text(self.shown.value) == self.metric.text(self.published.value)
        return self.metric.name if is_own else self.metric.ranked_by


class Report(Struct, frozen=True, kw_only=True, dict=True):
    """The figures of one run, with everything that is needed to read them.

    `coverage` counts the users; `metrics` and `secondary` are the figures by name. `title` to
    `defaults` declare the benchmark, so that readers of a report do not need its code:
    `metric_units` has unit and bounds of each metric. `bounds` are the lowest and highest mean that
    missing users could still make. `distribution` counts users by metric in equal bins. `chance` is
    the chance level by metric, of benchmarks that declare one, and `chance_error` the standard
    error of those that are drawn. `bias` is that of figures by the number of users. `detectable` is
    the smallest difference to another run that a comparison shows, by headline metric. `details`
    are the benchmark's own values, `sections` its own blocks. `repeats` is unset if users are
    played once. `run` is what was run, empty for results of another program. `cost` is that of all
    saved replies, unset for a baseline, another program's results, and earlier reports; `replies`
    is what these replies say, unset where they say nothing. `intervals_over` names the units that
    intervals are computed from, None for intervals of another kind.
    """

    format: int = FORMAT
    benchmark: str
    title: str = ""
    metric_units: dict[str, Unit]
    headline: tuple[str, ...]
    subsets: tuple[str, ...]
    user: str
    invalid_as: str
    defaults: JSON
    prompt_version: str
    prompt: str
    subset: str
    model: str
    name: str
    coverage: Coverage
    metrics: dict[str, Value]
    secondary: dict[str, Value] = {}
    bounds: dict[str, tuple[Number | None, Number | None]] | None = None
    distribution: dict[str, tuple[Count, ...]] = {}
    chance: dict[str, Number] = {}
    chance_error: dict[str, Number] = {}
    bias: dict[str, Number] = {}
    detectable: dict[str, Number] = {}
    details: JSON = {}
    sections: tuple[Block, ...] = ()
    repeats: Repeats | UnsetType = UNSET
    diagnostics: Diagnostics = Diagnostics()
    schedule: JSON | None = None
    run: JSON = {}
    usage: dict[str, Count] = {}
    cost: Cost | UnsetType = UNSET
    replies: ReplyFacts | UnsetType = UNSET
    intervals_over: str | None = None
    notes: tuple[str, ...]

    @property
    def heading(self) -> str:
        """Return the name of the benchmark for people; reports of earlier versions have its short
        name alone."""
        return self.title or self.benchmark

    @cached_property
    def units(self) -> dict[str, Metric]:
        """Return the declared metrics by name. Raise `ValueError` for one that cannot be."""
        metrics = {}
        for name, unit in self.metric_units.items():
            metrics[name] = Metric(name, **structs.asdict(unit))

        return metrics

    @cached_property
    def values(self) -> dict[str, Value]:
        return {**self.metrics, **self.secondary}

    @property
    def ranked_metrics(self) -> dict[str, Value]:
        """Return the metrics, each followed by the one that it is ranked by, if that is another."""
        ranked = {}
        for metric in self.metrics:
            for name in (metric, self.units[metric].ranked_by):
                if name in self.values:
                    ranked[name] = self.values[name]

        return ranked

    def figure(self, name: str) -> Figure:
        """Return a figure by the name of its metric."""
        metric = self.units[name]

        return Figure(
            metric,
            shown=self.ranking(metric),
            published=self.values[name],
            chance=self.chance.get(name),
            chance_error=self.chance_error.get(name),
            bias=self.bias.get(name),
        )

    def ranking(self, metric: Metric) -> Value:
        """Return the value that runs are ranked by in place of a metric, its own where that one is
        undefined."""
        value = self.values[metric.name]
        ranking_value = self.values.get(metric.ranked_by, value)
        return value if ranking_value.value is None else ranking_value

    @property
    def figures(self) -> tuple[Figure, ...]:
        """Return the headline figures."""
        return tuple(map(self.figure, self.headline))

    @property
    def share(self) -> float:
        """Return the share of the users in the tasks file that the run was limited to, other than
        by parts."""
        limit = self.run.get("limit")
        share: float = self.run.get("ratio", 1.0)
        if limit is not None:
            users = self.run.get("users_in_tasks") or self.coverage.expected_users
            share = min(1.0, limit / max(1, users))

        return share

    @property
    def is_limited(self) -> bool:
        """Return whether users of the tasks file were left out on purpose."""
        return self.share != 1.0 or self.run.get("part") is not None

    @property
    def is_partial(self) -> bool:
        """Return whether users of the tasks file are not scored, for whatever reason."""
        return self.is_limited or not self.coverage.complete

    @property
    def is_synthetic(self) -> bool:
        return any("synthetic" in note for note in self.notes)


@dataclass(
    frozen=True,
    slots=True,
    eq=False,
)
class Scored:
    """What `details` and `sections` are given, of one user or more.

    `figures` are by metric, `totals` the sums of `statistics` (K), `rows` those of every user
    (users x K) in the order of the tasks file, None above 50,000 users. `tally` is the sum of the
    benchmark's tallies. `units` are what intervals are made of: `rows`, or the sums of blocks of
    users; empty for a benchmark with intervals of its own. `report` is the report without
    `sections`.
    """

    subset: str
    users: int
    figures: Mapping[str, float | None]
    totals: Array
    rows: Array | None
    tally: Any
    units: Array
    report: Report | None = None


def declared(benchmark: type[Benchmark]) -> JSON:
    """Return what a report declares of its benchmark."""
    return {
        "title": title_of(benchmark),
        "metric_units": {name: metric.data for name, metric in metrics_of(benchmark).items()},
        "headline": list(headline_of(benchmark)),
        "subsets": list(benchmark.subsets),
        "user": benchmark.about.user,
        "invalid_as": benchmark.about.invalid_as,
        "defaults": own_settings.defaults(benchmark.Settings),
    }


def encoded(report: Report) -> bytes:
    """Return the content of a report's file."""
    return orjson.dumps(msgspec.to_builtins(report), option=orjson.OPT_INDENT_2) + b"\n"


def checked(blocks: Iterable[object]) -> tuple[Block, ...]:
    """Return a benchmark's blocks as a report keeps them. Raise `TypeError` for anything else."""
    return tuple(map(_checked, blocks))


def _checked(block: object) -> Block:
    if not isinstance(block, Block):
        raise TypeError(f"expected a block of a report, got {type(block).__name__}")

    try:
        checked: Block = msgspec.convert(msgspec.to_builtins(block), Block)
    except msgspec.ValidationError as error:
        raise TypeError(f"{type(block).__name__}: {error}") from None

    return checked


# Runs are finished in several threads, and two that look at a type for the first time may end the
# interpreter.
for _kind in (Report, Value, Block, Completion, Reply):
    msgspec.json.Decoder(_kind)
