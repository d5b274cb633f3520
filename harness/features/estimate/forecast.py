"""How long the rest of runs will take on one account: bounds in closed form, from what the first users' requests took.

It is unknown how fast an endpoint answers with more requests in flight than so far. The shortest time assumes the same
seconds per reply with all requests in flight. The longest time assumes no more replies per second than were measured.
Both are the same if the first users filled all slots. Pure: numbers in, seconds out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.features.estimate.prediction import BEYOND, Array, Range, draws

MOST_IN_PLAY = 0.1, 0.6
"""Between these shares of the replies nearly all of the first users are in play. Later only long chains are."""
OVERLAP = 0.25
"""Share of the shorter of work and longest chain that is added to the longer: a long chain may start late."""


@dataclass(frozen=True)
class Pace:
    """What users needed: the `seconds` of each user's replies, in their order, and the `steps` of each chain.

    `left` has the steps of each user who has not played yet.
    """

    seconds: Sequence[Array]
    steps: Array
    left: Array


def parallel(times: Sequence[float], mean: float) -> float:
    """Return how many requests the endpoint answers at once: its replies a second times the `mean` seconds of one.

    `times` are the moments of the first users' replies. Only the span in which most of these users were in play counts.
    """
    if len(times) < 2:
        return 0.0
    first, last = np.quantile(np.sort(times), MOST_IN_PLAY)
    share = MOST_IN_PLAY[1] - MOST_IN_PLAY[0]
    return mean * share * len(times) / max(1e-9, float(last - first))


def seconds(paces: Sequence[Pace], seen: float, most: float, rated: Range, rng: np.random.Generator) -> Range:
    """Return the seconds that the remaining users need.

    At least `seen` and at most `most` requests are in flight. The rate limits alone need the seconds `rated`. The value
    is the geometric mean of the bounds.
    """
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
