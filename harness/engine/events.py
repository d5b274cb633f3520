"""What a session reports of its runs, from their opening to their reports: frozen, without a word for readers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.benchmark import Benchmark
from harness.benchmarks.reports import Report
from harness.config.plan import Plan
from harness.cost import Price
from harness.errors import HarnessError


@dataclass(frozen=True, slots=True)
class Replaced:
    """A run of another configuration had no results, so this one has taken its place."""

    label: str


@dataclass(frozen=True, slots=True)
class Changed:
    """A part of the provenance differs from that of the session before."""

    label: str
    name: str
    before: Any
    now: Any


@dataclass(frozen=True, slots=True)
class Opened:
    """What the files of a run hold: torn lines that were set aside, records of users that the tasks lack, users that
    the share lacks; the prices before and now, where they differ; how many users of a resumed run are done."""

    label: str
    torn: int
    outside: int
    beyond_share: int
    prices: tuple[Price, Price] | None
    resumed: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class NotOpened:
    """A plan cannot start; others go on."""

    name: str
    error: HarnessError


@dataclass(frozen=True, slots=True)
class Unchanged:
    """A run was complete before, and its report is the present one."""

    label: str
    report: Path


@dataclass(frozen=True, slots=True)
class Scored:
    """A run has a new report."""

    label: str
    report: Report
    path: Path


@dataclass(frozen=True, slots=True)
class Unscored:
    """The records of a run cannot be scored; they stay as they are."""

    results: Path
    error: HarnessError


@dataclass(frozen=True, slots=True)
class LeftOpen:
    """A signal has stopped a run, which has no report; `figures` are those of the display, over so many users."""

    label: str
    benchmark: Benchmark
    done: int
    users: int
    figures: Mapping[str, float | None]
    scored: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """Nothing was received, so no run is kept."""

    plan: Plan
    reason: HarnessError


@dataclass(frozen=True, slots=True)
class Ended:
    """A plan's runs are finished. `ending` is why they stopped early, else None. `remaining` and `failed` count users,
    with repeats their plays; `notes` are those of features, `warnings` the benchmark's, `diverged` users who sent other
    requests after an interruption. `sealed`: each run is known to be this user's own."""

    plan: Plan
    ending: HarnessError | None
    remaining: int
    failed: int
    notes: Sequence[str]
    warnings: Sequence[str]
    diverged: int
    sealed: bool


Event = Replaced | Changed | Opened | NotOpened | Unchanged | Scored | Unscored | LeftOpen | Dropped | Ended
Emit = Callable[[Event], None]
