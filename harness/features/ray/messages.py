"""What driver and workers send each other: an order with each turn, and a report at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

from harness.config.plan import Way
from harness.defaults import Tuning
from harness.endpoint.request_body import Sampling
from harness.errors import HarnessError
from harness.features.ray.shipping import Shipped
from harness.model import Snapshot
from harness.store.manifest import Manifest

LOGS = ("responses", "results", "failures", "events")
"""Files of a run that a part's engine appends to, in the order in which the driver does."""
PackedError = tuple[type[HarnessError], tuple[Any, ...], dict[str, Any]]


def packed(error: HarnessError) -> PackedError:
    """Return an error that can be pickled, whatever its constructor takes."""
    return type(error), error.args, vars(error)


def unpacked(error: PackedError) -> HarnessError:
    cls, arguments, state = error
    made = cls.__new__(cls, *arguments)
    vars(made).update(state)
    return made


class WorkerPlan(NamedTuple):
    """A plan without its users. `way` has the key."""

    name: str
    shipped: Shipped
    sampling: Sampling
    way: Way
    tuning: Tuning
    allow_invalid: bool


class SubsetPart(NamedTuple):
    """The users of a part who are of one subset: the lines of their tasks, and what is saved of them, by log."""

    tasks_name: str
    tasks: bytes
    logs: Mapping[str, bytes]
    manifest: Manifest


class Part(NamedTuple):
    """Users of a plan, for one engine. `plan` is its place among the plans."""

    plan: int
    subsets: Mapping[str, SubsetPart]


class Order(NamedTuple):
    """What holds from this turn on. `tuning` has the worker's share of the limits; `slots` is how many requests may be
    in flight, which is less until others have given up theirs. `loan` is what requests may take of a budget beyond
    what is taken and reserved, None without one. `grace`: stop, and wait so many seconds for requests in flight."""

    seconds: float
    tuning: Tuning
    slots: int
    loan: Decimal | None = None
    grace: float | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """How a part has ended: early by an `error`, or with every user done or failed."""

    error: PackedError | None
    diverged: Mapping[str, int] = field(default_factory=dict)
    warnings: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Report:
    """What a turn came to. All but `logs` and `latencies` count from the part's begin on; `logs` are whole lines by
    subset and log. `usage` are `RunUsage.counts`, `work` is as of `Progress`, and `counts` are those of features, by
    subset. `limit` is that of the control, and `taken` and `reserved` are of a budget."""

    logs: Sequence[tuple[str, str, bytes]] = ()
    snapshot: Snapshot | None = None
    limit: int = 0
    in_flight: int = 0
    latencies: Sequence[float] = ()
    usage: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    work: tuple[float, float, int, int] = (0.0, 0.0, 0, 0)
    quirks: Sequence[str] = ()
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    taken: Decimal = Decimal(0)
    reserved: Decimal = Decimal(0)
    ended: Ended | None = None
