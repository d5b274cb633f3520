"""Predict a total over many users from a few of them, with an interval for that very total, not for a mean.

The ratio estimator: what a user takes is about proportional to a known size, such as the length of its chain. The
interval has the spread of the users that are left and the uncertainty of the ratio. It is Student's, of residuals
corrected for leverage, with the degrees of freedom of Satterthwaite for errors in proportion to sizes: of the spread a
few large users are most of what is known. Its bounds are factors, since what users take is skewed. Sources: Cochran,
Sampling Techniques, 3rd edition, chapter 6; Royall and Cumberland 1978.

Where a few users take most, a sample rarely has one of them. So the upper bound is at least that of totals drawn with a
Pareto tail, whose exponent is that of the largest quarter of the ratios seen (Hill 1975), as uncertain as it is.

The time has bounds in closed form, since it is unknown how fast an endpoint answers with more requests in flight than
so far. The shortest time assumes the same seconds per reply with all requests in flight. The longest time assumes no
more replies per second than were measured. Both are the same if the first users filled all slots.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.scoring.libraries import special

LEVEL = 0.95
"""Of Student's interval: heavy tails take about half of what is beyond 90 %."""
LEAST_FREEDOM = 3.0
"""Degrees of freedom: below, the errors of one user would be all that counts."""
DRAWS = 200
"""Totals that are drawn."""
BEYOND = 0.025
"""Share of drawn totals beyond a bound."""
TAIL, FEWEST_IN_TAIL = 0.25, 3
"""Share of the largest ratios that give the exponent of the tail, and the least number of them."""
HEAVIEST = 0.95
"""Largest inverse exponent: with 1 there would be no mean."""
DRAWN = 5_000
"""Users left of whom totals are drawn; of more, these stand for all."""
MOST_IN_PLAY = 0.1, 0.6
"""Between these shares of the replies nearly all of the first users are in play. Later only long chains are."""
OVERLAP = 0.25
"""Share of the shorter of work and longest chain that is added to the longer: a long chain may start late."""

Array = NDArray[np.float64]


class Range(NamedTuple):
    """A prediction, with the bounds of its interval."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> Range:
        return Range(*(factor * number for number in self))


NOTHING = Range(0.0, 0.0, 0.0)


def total(sizes: Array, values: Array, left: Array, rng: np.random.Generator, *, counted: bool = False) -> Range:
    """Return what users of the sizes `left` take, as those of `sizes` did who took `values`; at least two of these.

    Values that are `counted` are about their sizes, and rare events add to them: their variance is at least that of
    the events seen and two more, if they are Poisson's. So where all are alike, the next may still be another.
    """
    seen, whole = float(sizes.sum()), float(left.sum())
    ratio = float(values.sum()) / seen
    if not whole or not ratio:
        return NOTHING
    errors = (values - ratio * sizes) / (1.0 - sizes / seen)  # what is left of a user who pulls the ratio to itself
    spread = float((errors**2).sum()) / (len(sizes) - 1) / float(sizes.mean())
    if counted:
        spread = max(spread, (abs(float(values.sum()) - seen) + 2) / seen)
    half, value = _quantile(sizes) * (spread * whole * (1 + whole / seen)) ** 0.5, ratio * whole
    factor = math.exp(half / value)
    drawn = np.array([taken.sum() for taken in draws(sizes, values, left, rng)])
    return Range(value, value / factor, max(value * factor, float(np.quantile(drawn, 1 - BEYOND))))


def draws(sizes: Array, values: Array, left: Array, rng: np.random.Generator) -> Iterator[Array]:
    """Yield `DRAWS` times what each user `left` might take, in proportion to its size; of very many of some alone, as
    much as all. The ratio is one of those seen (the Bayesian bootstrap), or one of a Pareto tail above them."""
    scale = 1.0
    if len(left) > DRAWN:
        some = rng.choice(left, DRAWN, replace=False)
        left, scale = some, float(left.sum() / some.sum())
    logs = np.sort(np.log(np.maximum(values, values[values > 0].min() / 2) / sizes))
    tail = min(len(logs) - 1, max(FEWEST_IN_TAIL, round(TAIL * len(logs))))
    body, start = logs[:-tail], logs[-tail - 1]
    excess = float((logs[-tail:] - start).mean())
    for _ in range(DRAWS):
        share = rng.beta(tail + 0.5, len(body) + 0.5)
        inverse = min(HEAVIEST, excess * tail / rng.gamma(tail + 0.5))
        drawn = rng.choice(body, len(left), p=rng.dirichlet(np.ones(len(body))))
        beyond = rng.random(len(left)) < share
        drawn[beyond] = start + inverse * rng.exponential(size=int(beyond.sum()))
        yield scale * left * np.exp(drawn)


def together(ranges: Iterable[Range], known: float = 0.0) -> Range:
    """Return the sum of independent predictions, and of what is `known` already."""
    found = list(ranges)
    value = sum(one.value for one in found)
    below = sum((one.value - one.low) ** 2 for one in found) ** 0.5
    above = sum((one.high - one.value) ** 2 for one in found) ** 0.5
    return Range(known + value, known + max(0.0, value - below), known + value + above)


def parallel(times: Sequence[float], mean: float) -> float:
    """Return how many requests the endpoint answers at once: its replies a second times the `mean` seconds of one.

    `times` are the moments of the first users' replies. Only the span in which most of these users were in play counts.
    """
    if len(times) < 2:
        return 0.0
    first, last = np.quantile(np.sort(times), MOST_IN_PLAY)
    share = MOST_IN_PLAY[1] - MOST_IN_PLAY[0]
    return mean * share * len(times) / max(1e-9, float(last - first))


def time_left(drawn: Iterable[Iterable[Array]], seen: float, most: float, rated: Range) -> Range:
    """Return the seconds that the remaining users need, from `draws` of the seconds of each, by run.

    At least `seen` and at most `most` requests are in flight. The rate limits alone need the seconds `rated`. The value
    is the geometric mean of the bounds.
    """
    work, chain = np.zeros(1), np.zeros(1)
    for of_run in drawn:
        sums = [(taken.sum(), taken.max()) for taken in of_run]
        work = work + np.array([whole for whole, _ in sums])
        chain = np.maximum(chain, np.array([longest for _, longest in sums]))
    fast = np.maximum(np.maximum(work / most, chain), rated.low)
    shared = np.maximum(work / seen, rated.high)
    slow = np.maximum(shared, chain) + OVERLAP * np.minimum(shared, chain)
    low, high = float(np.quantile(fast, BEYOND)), float(np.quantile(slow, 1 - BEYOND))
    return Range((low * high) ** 0.5, low, high)


def _quantile(sizes: Array) -> float:
    """Return Student's quantile for an interval of `LEVEL` from users of these sizes, two at least."""
    freedom = float((sizes**2).sum()) ** 2 / float((sizes**4).sum()) - 1
    return float(special().stdtrit(max(LEAST_FREEDOM, freedom), (1 + LEVEL) / 2))
