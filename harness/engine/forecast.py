"""How long the rest of runs will take: the schedule of one account, simulated with what requests took so far.

Each simulation draws the users to learn from with replacement (the bootstrap), and for each user that is left one of
these with about as many steps, whose replies give its requests' seconds. Tries fail at the rate seen and for as long,
and pause as the caller does. Users start in the order of `Schedule`, a user in play holds a slot, and rates let the
requests go one by one, the longest chain first. Pure: numbers in, seconds out.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.endpoint.caller import FIRST_WAIT, LONGEST_WAIT
from harness.engine.schedule import Schedule
from harness.scoring.prediction import Array, Range, quantile

REQUESTS = 200_000
"""Requests of all simulations together, approximately."""
FEWEST, MOST = 40, 200
"""Simulations."""
NEAR = 3
"""Users with fewer steps, and as many with more, of whom one is drawn."""
WORST = 0.9
"""Highest share of failing tries that is simulated."""

Steps = NDArray[np.int32]


@dataclass(frozen=True)
class Pace:
    """What users took: the seconds of each one's replies, the `steps` of their chains and their tokens.

    Of all their tries so many `failed`, some of them after `failed_seconds`.
    """

    seconds: Sequence[Array]
    steps: Array
    tokens: Array
    failed: int
    failed_seconds: Array

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        return np.array([len(one) for one in self.seconds], np.int64)

    @cached_property
    def busy(self) -> Array:
        return np.array([one.sum() for one in self.seconds])

    @cached_property
    def replies(self) -> Array:
        return np.concatenate(self.seconds)


class Drawn(NamedTuple):
    """Requests of each user, and of each request the seconds until its user goes on, its tries and its tokens."""

    requests: NDArray[np.int64]
    seconds: Array
    tries: Array
    tokens: Array


def seconds(left: Sequence[tuple[Steps, Pace]], slots: int, rpm: float | None, tpm: float | None, seed: int) -> Range:
    """Return how long users with so many `left` steps take on one account's slots; those of a run share its pace.

    Of very many a share is simulated, on as large a share of slots and rates.
    """
    rng = np.random.default_rng(seed)
    whole = sum(int(steps.sum()) for steps, _ in left)
    share = min(1.0, REQUESTS / FEWEST / whole)
    number = min(MOST, max(FEWEST, REQUESTS // whole))
    some = max(1, round(slots * share))
    rates = [rate and rate * some / slots for rate in (rpm, tpm)]
    found = [_simulated(left, some, rates[0], rates[1], share, rng) * some / slots / share for _ in range(number)]
    return _range(np.array(found), np.concatenate([pace.steps for _, pace in left]))


def _range(found: Array, steps: Array) -> Range:
    """Return the middle of simulations and an interval, wider by what users with these steps leave unknown."""
    logs = np.log(np.maximum(found, 1e-9))
    middle, users = float(logs.mean()), len(steps)
    half = quantile(steps) * (users / (users - 1)) ** 0.5 * float(logs.std(ddof=1))
    return Range(*(float(np.exp(one)) for one in (middle, middle - half, middle + half)))


def _simulated(
    left: Sequence[tuple[Steps, Pace]],
    slots: int,
    rpm: float | None,
    tpm: float | None,
    share: float,
    rng: np.random.Generator,
) -> float:
    """Return the seconds of one simulation."""
    chosen = [(steps if share == 1.0 else rng.choice(steps, max(1, round(share * len(steps)))), p) for steps, p in left]
    drawn = [_draw(steps, pace, rng) for steps, pace in chosen]
    requests, taken, tries, tokens = map(np.concatenate, zip(*drawn, strict=True))
    gaps = np.maximum(60 * tries / rpm if rpm else 0.0, 60 * tokens / tpm if tpm else 0.0)
    schedule = Schedule(np.concatenate([steps for steps, _ in chosen]), int(rng.integers(1 << 31)))
    return _makespan(schedule, requests, taken, gaps if rpm or tpm else None, slots)


def _draw(steps: Steps, pace: Pace, rng: np.random.Generator) -> Drawn:
    """Draw what users with so many steps take: its sum grows with the steps, users of like steps give its shape."""
    users = len(pace.steps)
    pool = rng.integers(users, size=users)
    sizes = pace.steps[pool] + rng.random(users)  # ties in random order
    order = np.argsort(sizes)
    near = np.searchsorted(sizes[order], steps + rng.random(len(steps))) + rng.integers(-NEAR, NEAR, len(steps))
    who = pool[order[np.clip(near, 0, users - 1)]]
    requests = np.maximum(1, np.rint(steps * (pace.counts[pool].sum() / pace.steps[pool].sum()))).astype(np.int64)
    of = np.repeat(who, requests)
    places = (np.cumsum(pace.counts) - pace.counts)[of] + (rng.random(len(of)) * pace.counts[of]).astype(np.int64)
    lost, failures = _failures(pace, len(of), rng)
    growth = float(steps.sum()) / float(pace.steps[pool].sum())
    taken = _scaled(pace.replies[places], growth * float(pace.busy[pool].sum()))
    tokens = _scaled((pace.tokens / pace.counts)[of].astype(np.float64), growth * float(pace.tokens[pool].sum()))
    return Drawn(requests, taken + lost, 1.0 + failures.astype(np.float64), tokens)


def _scaled(values: Array, whole: float) -> Array:
    """Return values with this sum."""
    made: Array = values * (whole / max(1e-9, float(values.sum())))
    return made


def _failures(pace: Pace, requests: int, rng: np.random.Generator) -> tuple[Array, NDArray[np.int64]]:
    """Draw the seconds that each request loses by failed tries and the pauses after them, and the number of these."""
    share = min(WORST, rng.beta(pace.failed + 0.5, len(pace.replies) + 0.5))
    failures = rng.geometric(1.0 - share, requests) - 1
    known = pace.failed_seconds if len(pace.failed_seconds) else pace.replies
    pool, lost = rng.choice(known, len(known)), np.zeros(requests)
    for number in range(int(failures.max())):
        hit = failures > number
        longest = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** min(number, 16))
        lost[hit] += rng.choice(pool, hit.sum()) + rng.uniform(0.0, longest, hit.sum())
    return lost, failures


def _makespan(schedule: Schedule, requests: NDArray[np.int64], taken: Array, gaps: Array | None, slots: int) -> float:
    """Return when the last user ends. `taken` are the seconds of each request, and `gaps` those until the next of all
    may go, None without rates."""
    ends = np.cumsum(requests)
    place, last, seconds = (ends - requests).tolist(), ends.tolist(), taken.tolist()
    waits = gaps.tolist() if gaps is not None else None
    ready = [(0.0, schedule.next(slots)) for _ in range(min(slots, schedule.left))]
    waiting: list[tuple[int, float, int]] = []
    free = end = 0.0
    while ready or waiting:
        while ready and (not waiting or ready[0][0] <= free):
            at, user = heapq.heappop(ready)
            if place[user] == last[user]:
                end = max(end, at)
                if not schedule:
                    continue
                user = schedule.next(slots)
            heapq.heappush(waiting, (place[user] - last[user], at, user))
            if waits is None:
                break
        if not waiting:
            break
        _, at, user = heapq.heappop(waiting)
        start, number = max(at, free), place[user]
        if waits is not None:
            free = start + waits[number]
        heapq.heappush(ready, (start + seconds[number], user))
        place[user] += 1
        schedule.done(1)
    return end
