"""The order in which users start, in virtual time: makespan, and whether what is done at half time
is a fair sample.

A discrete-event simulation of the engine's rule with the engine's own `Schedule`: at most as many
users in play as there are slots, and a user's next step goes out as soon as the one before has been
answered.
"""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from harness.engine.schedule import Schedule

MOST_STEPS = 40
SIZES = ((1_000, 64), (1_000, 16), (4_000, 64))
"""Users and slots."""

SIGMA = 0.5
"""Of the logarithm of a step's time, where times vary; the mean is 1."""

Steps = NDArray[np.int32]
Times = NDArray[np.float64]


class Order(Protocol):
    def __bool__(self) -> bool: ...
    def next(self, slots: int) -> int: ...
    def done(self, steps: int) -> None: ...


class Listed:
    """A fixed order."""

    def __init__(self, users: NDArray[np.int64]) -> None:
        self._left = users[::-1].tolist()

    def __bool__(self) -> bool:
        return bool(self._left)

    def next(self, slots: int) -> int:
        user: int = self._left.pop()
        return user

    def done(self, steps: int) -> None:
        pass


ORDERS: dict[str, Callable[[Steps, int], Order]] = {
    "ours": lambda steps, seed: Schedule(steps, seed),
    "file": lambda steps, seed: Listed(np.arange(len(steps))),
    "longest": lambda steps, seed: Listed(np.argsort(-steps, kind="stable")),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Times in mean steps; `half_sample` is the mean chain of the users done at half time over that
    of all."""

    makespan: float
    bound: float
    half_sample: float

    @property
    def ratio(self) -> float:
        return self.makespan / self.bound


def _pareto(users: int, rng: np.random.Generator) -> Times:
    return 2 * rng.pareto(1.2, users) + 1


def _lognormal(users: int, rng: np.random.Generator) -> Times:
    return rng.lognormal(1.5, 0.9, users)


SHAPES: dict[str, Callable[[int, np.random.Generator], Times]] = {
    "lognormal": _lognormal,
    "pareto": _pareto,
}
"""Tails of two weights: of the second, one user in 37 has the most steps, and half have one or
two."""


def heavy_tailed(shape: str, users: int, rng: np.random.Generator) -> Steps:
    """Chains of 1 to `MOST_STEPS` steps, most of them short."""
    return np.clip(SHAPES[shape](users, rng), 1, MOST_STEPS).astype(np.int32)


def step_times(steps: Steps, vary: bool, rng: np.random.Generator) -> Times:
    """Return a time for each step of each user, user by user."""
    total = int(steps.sum())
    return rng.lognormal(-(SIGMA**2) / 2, SIGMA, total) if vary else np.ones(total)


def simulate(order: Order, steps: Steps, times: Times, slots: int) -> Outcome:
    """Plays all users; the lower bound is max(work / slots, longest chain), in time."""
    firsts = np.concatenate([[0], np.cumsum(steps)])
    totals = np.add.reduceat(times, firsts[:-1])
    left, at = steps.tolist(), firsts.tolist()
    ends = np.zeros(len(steps))
    playing: list[tuple[float, int]] = []

    def start(now: float) -> None:
        user = order.next(slots)
        heapq.heappush(playing, (now + times[at[user]], user))

    while order and len(playing) < slots:
        start(0.0)
    while playing:
        now, user = heapq.heappop(playing)
        order.done(1)
        left[user] -= 1
        at[user] += 1
        if left[user]:
            heapq.heappush(playing, (now + times[at[user]], user))
            continue
        ends[user] = now
        if order:
            start(now)
    bound = max(float(totals.sum()) / slots, float(totals.max()))
    done = steps[ends <= ends.max() / 2]
    return Outcome(
        float(ends.max()), bound, float(done.mean() / steps.mean()) if len(done) else 0.0
    )


def schedule(folder: Path, quick: bool) -> list[dict[str, Any]]:
    """Nothing is written and nothing is measured: the same figures on every machine."""
    seeds = range(3 if quick else 11)
    return [
        compared(shape, users, slots, vary, seeds)
        for shape in SHAPES
        for users, slots in SIZES
        for vary in (False, True)
    ]


def compared(shape: str, users: int, slots: int, vary: bool, seeds: range) -> dict[str, Any]:
    """Return the orders over the same draws: medians of makespan / bound and of the sample at half
    time."""
    found: dict[str, list[Outcome]] = {name: [] for name in ORDERS}
    for seed in seeds:
        rng = np.random.default_rng(seed)
        steps = heavy_tailed(shape, users, rng)
        times = step_times(steps, vary, rng)
        for name, order in ORDERS.items():
            found[name].append(simulate(order(steps, seed), steps, times, slots))
    row: dict[str, Any] = {
        "chains": shape,
        "users": users,
        "slots": slots,
        "times": "lognormal" if vary else "equal",
    }
    row |= {
        f"{name}_of_bound": statistics.median(one.ratio for one in ones)
        for name, ones in found.items()
    }
    row |= {
        f"{name}_half_sample": statistics.median(one.half_sample for one in ones)
        for name, ones in found.items()
    }
    return row | {
        "worst_of_bound": {name: max(one.ratio for one in ones) for name, ones in found.items()}
    }
