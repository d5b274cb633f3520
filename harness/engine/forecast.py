"""How long the rest of runs will take: the schedule of one account, simulated with what requests took so far.

Each simulation draws the users to learn from anew (the bootstrap), then for each user that is left one of these, and
its replies' seconds from that user's. Tries fail at the rate seen, and pause as the caller does. The order of users is
that of `Schedule`, a user holds a slot until it ends, and rates bound the whole. Pure: numbers in, seconds out.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from harness.endpoint.caller import FIRST_WAIT, LONGEST_WAIT
from harness.engine.schedule import Schedule
from harness.scoring.prediction import Array, Range, quantile

MOST_USERS, DRAWS = 20_000, 400_000
"""Users of one simulation, of more of them a share; users of all simulations together, approximately."""
FEWEST, MOST = 40, 200
"""Simulations."""
WORST = 0.9
"""Highest share of failing tries that is simulated."""


@dataclass(frozen=True)
class Pace:
    """What users took: the seconds of each one's replies, the `steps` of their chains and their tokens.

    Of all their tries so many `failed`, after `failed_seconds` on average.
    """

    seconds: Sequence[Array]
    steps: Array
    tokens: Array
    failed: int
    failed_seconds: float

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        return np.array([len(one) for one in self.seconds], np.int64)

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        found: NDArray[np.int64] = np.cumsum(self.counts) - self.counts
        return found

    @cached_property
    def replies(self) -> Array:
        return np.concatenate(self.seconds)


@dataclass(frozen=True)
class Drawn:
    """Of each user the seconds in flight and the pauses between tries; of all their tries and tokens."""

    busy: Array
    pauses: Array
    tries: float
    tokens: float


def seconds(
    left: Sequence[tuple[NDArray[np.int32], Pace]], slots: int, rpm: float | None, tpm: float | None, seed: int
) -> Range:
    """Return how long users with so many `left` steps take on one account's slots; those of a run share its pace."""
    rng = np.random.default_rng(seed)
    users = sum(len(steps) for steps, _ in left)
    share = min(1.0, MOST_USERS / users)
    number = min(MOST, max(FEWEST, round(DRAWS / (share * users))))
    found = np.array([_simulated(left, slots, rpm, tpm, share, rng) for _ in range(number)])
    logs = np.log(np.maximum(found, 1e-9))
    of = sum(len(pace.steps) for _, pace in left)
    half = quantile(of) * (of / (of - 1)) ** 0.5 * float(logs.std(ddof=1))
    middle = float(logs.mean())
    return Range(*(float(np.exp(one)) for one in (middle, middle - half, middle + half)))


def _simulated(
    left: Sequence[tuple[NDArray[np.int32], Pace]],
    slots: int,
    rpm: float | None,
    tpm: float | None,
    share: float,
    rng: np.random.Generator,
) -> float:
    """Return the seconds of one simulation; of many users only a share is scheduled, and stands for all."""
    chosen = [(steps if share == 1.0 else rng.choice(steps, max(1, round(share * len(steps)))), p) for steps, p in left]
    drawn = [_draw(steps, pace, rng) for steps, pace in chosen]
    steps = np.concatenate([steps for steps, _ in chosen])
    busy, pauses = (np.concatenate([getattr(one, name) for one in drawn]) for name in ("busy", "pauses"))
    made = _makespan(steps, busy, pauses, slots, int(rng.integers(1 << 31)))
    tries, tokens = sum(one.tries for one in drawn), sum(one.tokens for one in drawn)
    return max(made, 60 * tries / rpm if rpm else 0.0, 60 * tokens / tpm if tpm else 0.0) / share


def _draw(steps: NDArray[np.int32], pace: Pace, rng: np.random.Generator) -> Drawn:
    """Draw what users with so many steps take."""
    users = len(pace.steps)
    pool = rng.integers(users, size=users)
    who = pool[rng.integers(users, size=len(steps))]
    requests = np.maximum(1, np.rint(steps * (pace.counts[pool].sum() / pace.steps[pool].sum()))).astype(np.int64)
    of = np.repeat(who, requests)
    taken = pace.replies[pace.starts[of] + (rng.random(len(of)) * pace.counts[of]).astype(np.int64)]
    share = min(WORST, rng.beta(pace.failed + 0.5, len(pace.replies) + 0.5))
    failures = rng.geometric(1.0 - share, len(of)) - 1
    pauses = np.zeros(len(of))
    for number in range(int(failures.max())):
        longest = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** min(number, 16))
        pauses += np.where(failures > number, rng.uniform(0.0, longest, len(of)), 0.0)
    starts = np.cumsum(requests) - requests
    return Drawn(
        busy=np.add.reduceat(taken + failures * pace.failed_seconds, starts),
        pauses=np.add.reduceat(pauses, starts),
        tries=len(of) + float(failures.sum()),
        tokens=float((pace.tokens / pace.counts)[of].sum()),
    )


def _makespan(steps: NDArray[np.int32], busy: Array, pauses: Array, slots: int, seed: int) -> float:
    """Return when the last of these users ends, if each holds one of the slots while it is busy."""
    schedule, end = Schedule(steps, seed), 0.0
    free = [(0.0, 0)] * min(slots, len(steps))
    while schedule:
        start, done = free[0]
        schedule.done(done)
        user = schedule.next(slots)
        finish = start + float(busy[user])
        end = max(end, finish + float(pauses[user]))
        heapq.heapreplace(free, (finish, int(steps[user])))
    return end
