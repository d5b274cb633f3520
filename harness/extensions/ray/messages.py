"""What driver and workers send each other: an order with each turn, and a report at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import NamedTuple

from harness.defaults import RunTuning
from harness.errors import HarnessError
from harness.model import Snapshot
from harness.options.plan import EndpointChoice
from harness.store.manifest import Manifest

LOGS = ("responses", "results", "failures", "events")
"""Files of a run that a part's engine appends to, in the order in which the driver does."""
TASKS, RESULTS, REUSED = "tasks", "results", "reused"
"""Folders of a part."""


class WorkerPlan(NamedTuple):
    """A plan without its users. `endpoint` has the key; `files` are what each of its parts needs,
    by their path below the part's folder; `reused` is the name of a run among them whose replies
    are used, None without one."""

    name: str
    endpoint: EndpointChoice
    tuning: RunTuning
    allow_invalid: bool
    files: Mapping[str, bytes]
    reused: str | None = None


class SentPart(NamedTuple):
    """Users of one subset, for one engine: their tasks, and what is saved of them, by log. `plan`
    is its place among the plans."""

    plan: int
    subset: str
    tasks_path: str
    tasks: bytes
    logs: Mapping[str, bytes]
    manifest: Manifest


class TurnOrder(NamedTuple):
    """What holds in a turn. `tuning` has the worker's share of the limits, and `slots` is how many
    requests may be in flight, which is less until others have given up theirs. `loan` is what
    requests may take of a budget beyond what is taken and reserved, None without one. `grace`:
    stop, and wait so many seconds for requests in flight."""

    seconds: float
    tuning: RunTuning
    slots: int
    loan: Decimal | None = None
    grace: float | None = None


class PartEnd(NamedTuple):
    """How a part has ended: early by an `error`, or with every user done or failed. `diverged`
    users asked otherwise than before; `counts` are those of extensions."""

    error: HarnessError | None = None
    quirks: Sequence[str] = ()
    diverged: int = 0
    warnings: Sequence[str] = ()
    counts: Mapping[str, int] = {}


class TurnReport(NamedTuple):
    """What a turn came to: new lines by log, and the engine's state. `limit` is that of the
    control; `taken` and `reserved` are of a budget, from the part's begin on."""

    logs: Mapping[str, bytes] = {}
    snapshot: Snapshot | None = None
    limit: int = 0
    in_flight: int = 0
    taken: Decimal = Decimal(0)
    reserved: Decimal = Decimal(0)
    ended: PartEnd | None = None
