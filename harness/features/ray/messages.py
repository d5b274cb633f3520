"""What driver and workers send each other: an order with each turn, and a report at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import NamedTuple

from harness.config.plan import Way
from harness.defaults import Tuning
from harness.errors import HarnessError
from harness.model import Snapshot
from harness.store.manifest import Manifest

LOGS = ("responses", "results", "failures", "events")
"""Files of a run that a part's engine appends to, in the order in which the driver does."""


class WorkerPlan(NamedTuple):
    """A plan without its users. `way` has the key. `kept` are files of a run's folder, `data` those of the tasks folder
    that every subset needs: the SHA-256 of each, by its path there."""

    name: str
    way: Way
    tuning: Tuning
    allow_invalid: bool
    kept: Mapping[str, str]
    data: Mapping[str, str]


class SubsetPart(NamedTuple):
    """The users of a part who are of one subset: their tasks, and what is saved of them, by log."""

    tasks_path: str
    tasks: bytes
    logs: Mapping[str, bytes]
    manifest: Manifest


class SentPart(NamedTuple):
    """Users of a plan, for one engine. `plan` is its place among the plans."""

    plan: int
    subsets: Mapping[str, SubsetPart]


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
    """How a part has ended: early by an `error`, or with every user done or failed. By subset: how many users asked
    otherwise than before, warnings, and counts of features."""

    error: HarnessError | None = None
    quirks: Sequence[str] = ()
    diverged: Mapping[str, int] = {}
    warnings: Mapping[str, Sequence[str]] = {}
    counts: Mapping[str, Mapping[str, int]] = {}


class TurnReport(NamedTuple):
    """What a turn came to. `logs` are new lines by subset and log, `latencies` are of new replies. All else counts from
    the part's begin on. `limit` is that of the control; `taken` and `reserved` are of a budget."""

    logs: Mapping[tuple[str, str], bytes] = {}
    latencies: Sequence[float] = ()
    snapshot: Snapshot | None = None
    limit: int = 0
    in_flight: int = 0
    replies: int = 0
    taken: Decimal = Decimal(0)
    reserved: Decimal = Decimal(0)
    ended: PartEnd | None = None
