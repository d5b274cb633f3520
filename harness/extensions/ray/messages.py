"""What driver and workers send each other: an order with each turn, and a report at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import NamedTuple

from harness.defaults import Tuning
from harness.errors import HarnessError
from harness.model import Snapshot, SubsetProgress
from harness.options.plan import Way
from harness.store.manifest import Manifest

LOGS = ("responses", "results", "failures", "events")
"""Files of a run that a part's engine appends to, in the order in which the driver does."""
TASKS, RESULTS, REUSED = "tasks", "results", "reused"
"""Folders of a part."""

WorkCounts = Counter[tuple[str, str]]
"""Numbers by name; those by kind of what happened too."""
NUMBERS = ("requests", "retries", "prompt_tokens", "completion_tokens")
"""Members of a snapshot that are added up over all parts, as are those by kind."""


class WorkerPlan(NamedTuple):
    """A plan without its users. `way` has the key; `files` are what each of its parts needs, by their path below the
    part's folder; `reused` is the name of a run among them whose replies are used, None without one."""

    name: str
    way: Way
    tuning: Tuning
    allow_invalid: bool
    files: Mapping[str, bytes]
    reused: str | None = None


class SentPart(NamedTuple):
    """Users of one subset, for one engine: their tasks, and what is saved of them, by log. `plan` is its place among
    the plans. `last` is the last snapshot of the engine that played them before, None if there was none."""

    plan: int
    subset: str
    tasks_path: str
    tasks: bytes
    logs: Mapping[str, bytes]
    manifest: Manifest
    last: Snapshot | None = None


class TurnOrder(NamedTuple):
    """What holds in a turn. `tuning` has the worker's share of the limits, and `slots` is how many requests may be in
    flight, which is less until others have given up theirs. `loan` is what requests may take of a budget beyond what is
    taken and reserved, None without one. `grace`: stop, and wait so many seconds for requests in flight."""

    seconds: float
    tuning: Tuning
    slots: int
    loan: Decimal | None = None
    grace: float | None = None


class PartEnd(NamedTuple):
    """How a part has ended: early by an `error`, or with every user done or failed. `diverged` users asked otherwise
    than before; `counts` are those of extensions."""

    error: HarnessError | None = None
    quirks: Sequence[str] = ()
    diverged: int = 0
    warnings: Sequence[str] = ()
    counts: Mapping[str, int] = {}


class TurnReport(NamedTuple):
    """What a turn came to: new lines by log, new counts, and the latencies of new replies. `limit` is that of the
    control; `taken` and `reserved` are of a budget, from the part's begin on."""

    logs: Mapping[str, bytes] = {}
    counts: Mapping[tuple[str, str], int] = {}
    latencies: Sequence[float] = ()
    snapshot: Snapshot | None = None
    limit: int = 0
    in_flight: int = 0
    taken: Decimal = Decimal(0)
    reserved: Decimal = Decimal(0)
    ended: PartEnd | None = None


def progress_counts(progress: SubsetProgress, failures: Sequence[tuple[str, int]]) -> WorkCounts:
    """Return the counts that may fall when another engine takes up a part: failed users are played again."""
    counts = WorkCounts({("failures", kind): number for kind, number in failures})
    counts.update({("done", ""): progress.done, ("failed", ""): progress.failed, ("steps", ""): progress.steps_done})
    return counts


def snapshot_counts(snapshot: Snapshot) -> WorkCounts:
    counts = progress_counts(snapshot.subsets[0], snapshot.failures)
    for name in NUMBERS:
        counts[name, ""] = getattr(snapshot, name)
    for name in ("faults", "notices", "unusable"):
        for kind, number in getattr(snapshot, name):
            counts[name, kind] = number
    return counts
