"""95 % intervals of figures over users: one rule for reports, learning curves, `stats` and `compare`.

A figure is made of sums over users. A user's *part* in it is the jackknife's pseudo-value: of a mean the user's own
value. The interval is Student's, of the parts, with their skewness taken out by Hall's transformation and with the
degrees of freedom of Welch and Satterthwaite over several strata. It needs no random numbers, and the order of users
changes nothing. Where few users have a part of their own (nearly all are tied) nothing holds, and there is no interval.
Sources: Tukey 1958 (pseudo-values); Johnson 1978 and Hall 1992 (skewness); Welch 1947. How often the intervals hold the
true figure: docs/statistics.md, Simulations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.scoring.bootstrap import LEVEL, Array
from harness.scoring.libraries import special

FEWEST, FEWEST_UNTIED = 12, 7
"""Users, and users that differ from the most common part, below whom there is no interval."""
SHRINKAGE = 25
"""Such users of whom half of the sample's skewness is believed."""
ROUNDING = 1e-9
"""Parts that differ by less, for figures of the size of 1, are tied: they come of rounded sums."""

Figures = Callable[[Array], Array]
"""Totals of what users add, R x K -> figures, R x M, NaN where undefined."""
Interval = tuple[float, float]


class Moments(NamedTuple):
    """Describe the parts of the users of one stratum: the number of users, how many differ from the most common part,
    the sample's variance, and its third central moment."""

    users: int
    untied: int
    variance: float
    third: float


def parts(rows: Array, figures: Figures, has: NDArray[np.bool_] | None = None) -> Array:
    """Return each user's part in each figure: users x M, NaN where the user has no such figure.

    `rows` is what each user adds: users x K. A part is n x the figure of all - (n - 1) x that of all but the user.
    `has` says which users have which figure, if not those for whom it is defined alone.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        has, total = ~np.isnan(figures(rows)) if has is None else has, rows.sum(axis=0, keepdims=True)
        whole, without = figures(total), figures(total - rows)
    users = has.sum(axis=0)
    found: Array = np.where(users > 1, users * whole - (users - 1) * without, whole)
    return np.where(has, found, np.nan)


def moments(part: Array) -> Moments:
    """Return the moments of one figure's parts; undefined ones are left out."""
    values = np.sort(part[~np.isnan(part)])  # sums are the same in every order of users
    if not len(values):
        return Moments(0, 0, 0.0, 0.0)
    tolerance = ROUNDING * max(1.0, float(np.abs(values).max()))
    ends = np.append(np.flatnonzero(np.diff(values) > tolerance), len(values) - 1)
    most = int(np.diff(ends, prepend=-1).max())
    off = values - values.mean()
    variance = float(off @ off) / max(1, len(values) - 1)
    return Moments(len(values), len(values) - most, variance, float((off**3).mean()))


def interval(
    figure: float | None,
    strata: Sequence[Moments],
    bounds: tuple[float | None, float | None] | None = None,
    level: float = LEVEL,
) -> Interval | None:
    """Return the interval of a figure, or of the mean of one figure over strata that weigh the same; 95 % by default.

    It is cut to the bounds of the figure. None if the figure is undefined, or if too few users differ.
    """
    if figure is None or math.isnan(figure) or not strata or min(of.users for of in strata) < 2:
        return None
    untied, shares = _untied(strata), [of.variance / of.users for of in strata]
    error, users = standard_error(strata), sum(of.users for of in strata)
    if users < FEWEST or untied < FEWEST_UNTIED or error < ROUNDING * max(1.0, abs(figure)):
        return None
    freedom = sum(shares) ** 2 / sum(share**2 / (of.users - 1) for share, of in zip(shares, strata, strict=True))
    skewness = sum(of.third / of.users**2 for of in strata) / (len(strata) * error) ** 3
    reach = student(freedom) if level == LEVEL else float(special().stdtrit(freedom, (1 + level) / 2))
    believed = skewness * untied / (untied + SHRINKAGE)
    ends = (figure - error * _unskewed(reach, believed), figure - error * _unskewed(-reach, believed))
    low, high = bounds or (None, None)
    return ends[0] if low is None else max(low, ends[0]), ends[1] if high is None else min(high, ends[1])


def student(freedom: float) -> float:
    """Return the quantile of Student's distribution for a 95 % interval, to 12 digits; `freedom` is from 1.

    Every report needs it, and scipy.special takes a tenth of a second to load. Newton's method starts at 0, and each
    step falls short, since the distribution function is concave there. `whole` is that function less 1/2, divided by
    the density. Source: Abramowitz and Stegun 1964, 15.3.4 and 26.7.1.
    """
    quantile, step, peak = 0.0, 1.0, _peak(freedom)
    while step > 1e-14 * quantile:
        square = quantile**2 / freedom
        term = whole = quantile
        for k in count(1):
            term *= square / (1 + square) * (freedom + 2 * k - 1) / (2 * k + 1)
            whole += term
            if term <= 1e-17 * whole:
                break
        density = peak * math.exp(-(freedom + 1) / 2 * math.log1p(square))
        step = LEVEL / 2 / density - whole
        quantile += step
    return quantile


def _peak(freedom: float) -> float:
    """Return the density of Student's distribution at 0."""
    half = freedom / 2
    if half < 150:  # a gamma function of 171 or more is no float
        return math.gamma(half + 0.5) / math.gamma(half) / math.sqrt(math.pi * freedom)
    series = 1 - 1 / (8 * half) + 1 / (128 * half**2) + 5 / (1024 * half**3) - 21 / (32768 * half**4)
    return series / math.sqrt(2 * math.pi)


def _untied(strata: Sequence[Moments]) -> float:
    """Return how many untied users the mean over strata is as good as: few if one of the strata has few users, since
    that one decides, and all of them if the strata are of one size."""
    rate = sum(of.untied for of in strata) / sum(of.users for of in strata)
    return rate * sum(1 / of.users for of in strata) ** 2 / sum(1 / of.users**3 for of in strata)


def standard_error(strata: Sequence[Moments]) -> float:
    """Return that of the mean over strata."""
    return math.sqrt(sum(of.variance / of.users for of in strata)) / len(strata)


def _unskewed(quantile: float, skewness: float) -> float:
    """Return the quantile of a statistic of this skewness (of the mean: that of users / root n) from Student's.

    Source: Hall 1992, the inverse of T + a T^2 / 3 + a^2 T^3 / 27 + a / 6.
    """
    if abs(skewness) < 1e-6:
        return quantile
    return 3 / skewness * (math.cbrt(1 + skewness * (quantile - skewness / 6)) - 1)
