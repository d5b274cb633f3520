"""95 % intervals of figures over users: one rule for reports, learning curves, `stats` and
`compare`.

A figure is made of sums over users. A user's *part* in it is the jackknife's pseudo-value: of a
mean the user's own value. The interval is Student's, of the parts, with their skewness taken out by
Hall's transformation, up to a bound. Degrees of freedom are those of Welch and Satterthwaite over
several strata, and fewer where long tails make the variance uncertain. It needs no random numbers,
and the order of users changes nothing. With few users, few that have a part of their own (nearly
all are tied), or few that decide (their parts are huge), an interval is *approximate*: it shows the
order of magnitude, but the simulations do not show that it holds. Sources: Tukey 1958
(pseudo-values); Johnson 1978 and Hall 1992 (skewness); Welch 1947; Satterthwaite 1946. How often
the intervals hold the true figure: docs/statistics.md, Simulations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.scoring.bootstrap import LEVEL, Array
from harness.scoring.libraries import special

# With fewer of these an interval is approximate.
FEWEST = 40
"""Users."""
FEWEST_UNTIED = 7
"""Users that differ from the most common part."""
LEAST_FREEDOM = 6
"""Degrees of freedom."""
FEWEST_AT_ALL = 10
"""Users below whom there is no interval."""
SHRINKAGE = 3
"""Such users with whom half of the sample's skewness is believed."""
STEEPEST = 0.1
"""The least value under the cube root of Hall's transformation, which bounds the skewness that is
taken out: nearer to 0 the root is so steep that one more outlier would double the longer arm."""
POWER = 0.8
REACH = 2.801585218112969
"""Quantiles of the normal distribution for `POWER` and for the end of a 95 % interval, together."""
ROUNDING = 1e-9
"""Parts that differ by less, for figures of the size of 1, are tied: they come of rounded sums."""

Figures = Callable[[Array], Array]
"""Totals of what users add, R x K -> figures, R x M, NaN where undefined."""
Interval = tuple[float, float]


class Moments(NamedTuple):
    """Describe the parts of the users of one stratum: the number of users, how many differ from the
    most common part, unbiased estimates of the variance and the third central moment, and the
    sample's kurtosis (3 if normal)."""

    users: int
    untied: int
    variance: float
    third: float
    kurtosis: float


def parts(
    rows: Array,
    figures: Figures,
    has: NDArray[np.bool_] | bool = True,
) -> Array:
    """Return each user's part in each figure: users x M, NaN where the user has no such figure.

    `rows` is what each user adds: users x K. A part is n x the figure of all - (n - 1) x that of
    all but the user; it is infinite if there is no figure without the user. `has` says which users
    have which figure: whether the figure of a user alone is defined does not matter.
    """
    total = rows.sum(axis=0, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        of_all = figures(total)
        without = figures(total - rows)

    is_counted = np.broadcast_to(has, without.shape)
    users = is_counted.sum(axis=0)
    without = np.where(np.isfinite(without) | ~np.isfinite(of_all), without, -np.inf)
    with np.errstate(invalid="ignore"):
        pulls = np.where(users > 1, users * of_all - (users - 1) * without, of_all)

    counted_pulls: Array = np.where(is_counted, pulls, np.nan)

    return counted_pulls


def moments(column: Array) -> Moments:
    """Return the moments of one figure's parts; undefined ones are left out, and with an infinite
    one all are tied."""
    values = np.sort(column[~np.isnan(column)])  # sums are the same in every order of users
    users = len(values)
    if not users:
        return Moments(0, 0, 0.0, 0.0, 1.0)
    if np.isinf(values[-1]):
        return Moments(users, 0, math.inf, 0.0, 1.0)

    # Tied users are a run of values without a gap.
    tolerance = ROUNDING * max(1.0, float(np.abs(values).max()))
    ends = np.append(np.flatnonzero(np.diff(values) > tolerance), users - 1)
    most_common = int(np.diff(ends, prepend=-1).max())
    deviations = values - values.mean()
    second, third, fourth = (float((deviations**power).sum()) for power in (2, 3, 4))

    return moments_of_sums(users, users - most_common, second, third, fourth)


def moments_of_sums(
    users: int,
    untied: int,
    second: float,
    third: float,
    fourth: float,
) -> Moments:
    """Return the moments of parts from the sums of the second to fourth powers of their deviations
    from the mean: s^2, k_3 and kappa of docs/statistics.md, "Means"."""
    variance = second / max(1, users - 1)
    # With one or two users the sum of the cubes is 0, so the divisor does not matter.
    third_moment = third * users / max(1, (users - 1) * (users - 2))
    # The square of a tiny number is 0.
    kurtosis = users * fourth / second**2 if second**2 else 1.0

    return Moments(users, untied, variance, third_moment, kurtosis)


def interval(
    figure: float | None,
    strata: Sequence[Moments],
    bounds: tuple[float | None, float | None] | None = None,
    level: float = LEVEL,
) -> Interval | None:
    """Return the interval of a figure, or of the mean of one figure over strata that weigh the
    same; 95 % by default.

    It is cut to the bounds of the figure. None if the figure is undefined, there are too few users,
    or all are alike. Source: Hall 1992; docs/statistics.md, "Means" and "Means over platforms".
    """
    if figure is None or math.isnan(figure) or not strata:
        return None

    users = [stratum.users for stratum in strata]
    if min(users) < 2 or sum(users) < FEWEST_AT_ALL:
        return None

    error = standard_error(strata)
    if not ROUNDING * max(1.0, abs(figure)) <= error < math.inf:
        return None

    freedom, skewness = _shape(strata)
    freedom = max(LEAST_FREEDOM, freedom)
    if level == LEVEL:
        reach = student(freedom)
    else:
        reach = float(special().stdtrit(freedom, (1 + level) / 2))

    # With so much skewness the root's argument is STEEPEST.
    max_skewness = 3 * (math.sqrt(reach**2 + 2 * (1 - STEEPEST) / 3) - reach)
    untied = _untied(strata)
    skewness *= float(untied / (untied + SHRINKAGE))
    skewness = min(max_skewness, max(-max_skewness, skewness))
    start = figure - error * _unskewed(reach, skewness)
    end = figure - error * _unskewed(-reach, skewness)
    low, high = bounds or (None, None)
    if low is not None:
        start = max(low, start)
    if high is not None:
        end = min(high, end)

    return start, end


def is_approximate(strata: Sequence[Moments]) -> bool:
    """Return whether an interval of a mean over strata may not hold, by the simulations: of few
    users, few that differ, or few that decide. There must be a user, and a variance."""
    users = sum(stratum.users for stratum in strata)
    if users < FEWEST or _untied(strata) < FEWEST_UNTIED:
        return True

    return _shape(strata)[0] < LEAST_FREEDOM


def with_mark(ends: Interval | None, strata: Sequence[Moments]) -> tuple[float, float, bool] | None:
    """Return an interval of the mean over strata, and whether it is approximate."""
    return ends and (*ends, is_approximate(strata))


# The metrics of a report have mostly the same number of users, and live scores ask repeatedly.
@lru_cache(maxsize=1024)
def student(freedom: float) -> float:
    """Return the quantile of Student's distribution for a 95 % interval, to 12 digits; `freedom` is
    from 1.

    Every report needs it, and scipy.special takes a tenth of a second to load. Newton's method
    starts at 0, and each step falls short, since the distribution function is concave there.
    `series` is that function less 1/2, divided by the density. Source: Abramowitz and Stegun 1964,
    15.3.4 and 26.7.1.
    """
    quantile = 0.0
    step = 1.0
    peak = _peak(freedom)
    while step > 1e-14 * quantile:
        square = quantile**2 / freedom
        share = square / (1 + square)
        term = series = quantile
        for k in count(1):
            term *= share * (freedom + 2 * k - 1) / (2 * k + 1)
            series += term
            if term <= 1e-17 * series:
                break

        density = peak * math.exp(-(freedom + 1) / 2 * math.log1p(square))
        step = LEVEL / 2 / density - series
        quantile += step

    return quantile


def _peak(freedom: float) -> float:
    """Return the density of Student's distribution at 0."""
    half = freedom / 2
    if half < 150:  # a gamma function of 171 or more is no float
        return math.gamma(half + 0.5) / math.gamma(half) / math.sqrt(math.pi * freedom)

    # Of the gamma functions' ratio the asymptotic series.
    series = (
        1 - 1 / (8 * half) + 1 / (128 * half**2) + 5 / (1024 * half**3) - 21 / (32768 * half**4)
    )

    return series / math.sqrt(2 * math.pi)


def _untied(strata: Sequence[Moments]) -> int | Fraction:
    """Return how many untied users the mean over strata is as good as: few if one of the strata has
    few users, since that one decides, and all of them if the strata are of one size: m of
    docs/statistics.md, "Means over platforms"."""
    if len(strata) == 1:
        return strata[0].untied

    users = [stratum.users for stratum in strata]
    rate = Fraction(sum(stratum.untied for stratum in strata), sum(users))
    first = sum(Fraction(1, number) for number in users)
    third = sum(Fraction(1, number**3) for number in users)

    return rate * first**2 / third


def _shape(strata: Sequence[Moments]) -> tuple[float, float]:
    """Return the degrees of freedom of the mean over strata, and its skewness as far as the sample
    supports it.

    The variance of the mean is itself estimated. `noise` is the variance of that estimate; `linked`
    the share of it that goes with the error of the mean: 1 for two values, 0 for symmetric ones.
    Hall's transformation takes that share out, and the rest costs degrees of freedom: three times
    as many as by Satterthwaite's formula, since samples with long tails rarely show all of them.
    Where little is linked, the skewness is mostly chance. Source: Welch 1947; Satterthwaite 1946;
    docs/statistics.md, "Means over platforms".
    """
    shares = [(stratum.variance / stratum.users, stratum) for stratum in strata]
    variance = sum(share for share, _ in shares)
    third = sum(stratum.third / stratum.users**2 for stratum in strata)
    welch_divisor = sum(share**2 / (stratum.users - 1) for share, stratum in shares)
    noise = sum(share**2 * (stratum.kurtosis - 1) / stratum.users for share, stratum in shares)
    linked = min(1.0, third**2 / (variance * noise)) if noise > 0 else 1.0
    free = 1.5 * noise * (1 - linked)
    freedom = variance**2 / max(welch_divisor, free)
    skewness = third / variance**1.5

    return freedom, skewness * min(1.0, 2 * linked) ** 2


def standard_error(strata: Sequence[Moments]) -> float:
    """Return that of the mean over strata (Davison & Hinkley 1997, section 3.2)."""
    variance = sum(stratum.variance / stratum.users for stratum in strata)
    return math.sqrt(variance) / len(strata)


def _unskewed(quantile: float, skewness: float) -> float:
    """Return the quantile of a statistic of this skewness (of the mean: that of users / root n)
    from Student's.

    Source: Hall 1992, the inverse of T + a T^2 / 3 + a^2 T^3 / 27 + a / 6.
    """
    # The formula divides by the skewness; as that goes to 0, its result goes to the quantile
    # itself.
    if abs(skewness) < 1e-6:
        return quantile

    return 3 / skewness * (math.cbrt(1 + skewness * (quantile - skewness / 6)) - 1)


def detectable(interval: tuple[float, float], users: int) -> float:
    """Return the smallest difference that a comparison at 5 % shows with `POWER`, of two runs whose
    figures have this 95 % interval over so many users and are not correlated.

    Every report has it, so that it does without scipy.special, as `student` does.
    """
    low, high = interval
    return math.sqrt(2) * (high - low) / 2 / student(users - 1) * REACH
