"""How long the rest of runs will take on one account: bounds in closed form, from what the first users' requests took.

Nobody knows how fast an endpoint is with more requests in flight than it had so far. So the shortest time is that of an
endpoint which answers as fast with all of them in flight, and the longest that of one which answers no more in a
second than it was seen to. Both are one where the first users have filled all slots. Pure: numbers in, seconds out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.scoring.prediction import BEYOND, Array, Range, draws

MOST_IN_PLAY = 0.1, 0.6
"""Between these shares of the replies nearly all of the first users are in play: later only those with long chains."""
OVERLAP = 0.25
"""Share of the shorter of work and longest chain that may come on top of the longer: a late start of a long chain."""


@dataclass(frozen=True)
class Pace:
    """What users took: the seconds of each one's replies, one after another, and the `steps` of their chains; `left`
    are the steps of those who are left."""

    seconds: Sequence[Array]
    steps: Array
    left: Array


def parallel(times: Sequence[float], mean: float) -> float:
    """Return how many requests at once the endpoint answers: its replies a second times the `mean` seconds of one.

    `times` are those of the first users' replies. What counts is when most of them were in play.
    """
    if len(times) < 2:
        return 0.0
    first, last = np.quantile(np.sort(times), MOST_IN_PLAY)
    share = MOST_IN_PLAY[1] - MOST_IN_PLAY[0]
    return mean * share * len(times) / max(1e-9, float(last - first))


def seconds(paces: Sequence[Pace], seen: float, most: float, rated: Range, rng: np.random.Generator) -> Range:
    """Return how long the users left take, with `seen` requests in flight at least and `most` at most; their rates
    need the seconds `rated`. The value is the middle of the bounds, as factors."""
    work, chain = np.zeros(1), np.zeros(1)
    for pace in paces:
        busy = np.array([one.sum() for one in pace.seconds])
        drawn = [(taken.sum(), taken.max()) for taken in draws(pace.steps, busy, pace.left, rng)]
        work = work + np.array([whole for whole, _ in drawn])
        chain = np.maximum(chain, np.array([longest for _, longest in drawn]))
    fast = np.maximum(np.maximum(work / most, chain), rated.low)
    shared = np.maximum(work / seen, rated.high)
    slow = np.maximum(shared, chain) + OVERLAP * np.minimum(shared, chain)
    low, high = float(np.quantile(fast, BEYOND)), float(np.quantile(slow, 1 - BEYOND))
    return Range((low * high) ** 0.5, low, high)
