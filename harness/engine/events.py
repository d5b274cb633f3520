"""What a session reports of its runs, from their opening to their reports, without a word for
readers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from harness.benchmark import Benchmark
from harness.cost import Price
from harness.errors import HarnessError
from harness.options.plan import Plan
from harness.reporting.reported import Reported


class SessionEvent(Struct, frozen=True):
    """What a session reports."""


class Replaced(SessionEvent, frozen=True):
    """A run of another configuration had no results, so this one has taken its place."""

    label: str


class Changed(SessionEvent, frozen=True):
    """A part of the provenance differs from that of the session before."""

    label: str
    name: str
    before: object
    now: object


class Opened(SessionEvent, frozen=True):
    """What the files of a run hold: torn lines that were set aside, records of users that the tasks
    lack, users that the share lacks; the prices before and now, where they differ, None if not
    known; how many users of a resumed run are done."""

    label: str
    torn: int
    outside: int
    beyond_share: int
    prices: tuple[Price, Price | None] | None
    resumed: tuple[int, int] | None


class Unchanged(SessionEvent, frozen=True):
    """A run was complete before, and its report is the present one."""

    label: str
    report: Path


class ReportMade(SessionEvent, frozen=True):
    """A run has a new report. Once this is handled, the run's manifest is saved."""

    label: str
    run: Reported


class Failed(SessionEvent, frozen=True):
    """A plan of this name cannot start, or the records in this file cannot be scored; others go
    on."""

    what: str
    error: HarnessError


class LeftOpen(SessionEvent, frozen=True):
    """A signal has stopped a run, which has no report; `figures` are those of the display, over so
    many users."""

    label: str
    benchmark: Benchmark
    done: int
    users: int
    figures: Mapping[str, float | None]
    scored: int


class Dropped(SessionEvent, frozen=True):
    """Nothing was received, so no run is kept."""

    plan: Plan
    reason: HarnessError


class Ended(SessionEvent, frozen=True):
    """A plan's runs are finished. `ending` is why they stopped early, else None. `remaining` and
    `failed` count users, with repeats their plays; `refused` are the keys of failed users whose
    very requests the endpoint refuses; `batches` are still at a provider, `warnings` the
    benchmark's, `diverged` users who sent other requests after an interruption."""

    plan: Plan
    ending: HarnessError | None
    remaining: int
    failed: int
    refused: Sequence[str]
    batches: int
    warnings: Sequence[str]
    diverged: int


Emit = Callable[[SessionEvent], None]
