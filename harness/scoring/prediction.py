"""Predict a total over many users from a few of them, with an interval for that very total, not for a mean.

The ratio estimator: what a user takes is about proportional to a known size, such as the length of its chain. The
interval has the spread of the users that are left and the uncertainty of the ratio. It is Student's, of residuals
corrected for leverage, with the degrees of freedom of Satterthwaite for errors in proportion to sizes: of the spread a
few large users are most of what is known. Its bounds are factors, since what users take is skewed. Sources: Cochran,
Sampling Techniques, 3rd edition, chapter 6; Royall and Cumberland 1978.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.scoring.libraries import special

LEVEL = 0.90
LEAST_FREEDOM = 3.0
"""Degrees of freedom: below, the errors of one user would be all that counts."""

Array = NDArray[np.float64]


class Range(NamedTuple):
    """A prediction, with the bounds of its interval."""

    value: float
    low: float
    high: float


def quantile(sizes: Array) -> float:
    """Return Student's quantile for an interval of `LEVEL` from users of these sizes, two at least."""
    freedom = float((sizes**2).sum()) ** 2 / float((sizes**4).sum()) - 1
    return float(special().stdtrit(max(LEAST_FREEDOM, freedom), (1 + LEVEL) / 2))


def total(sizes: Array, values: Array, left: float, *, counted: bool = False) -> Range:
    """Return what users of the sizes' sum `left` take, as those did who took `values`; at least two of these.

    Values that are `counted` are about their sizes, and rare events add to them: their variance is at least that of
    the events seen and two more, if they are Poisson's. So where all are alike, the next may still be another.
    """
    seen = float(sizes.sum())
    ratio = float(values.sum()) / seen
    errors = (values - ratio * sizes) / (1.0 - sizes / seen)  # what is left of a user who pulls the ratio to itself
    spread = float((errors**2).sum()) / (len(sizes) - 1) / float(sizes.mean())
    if counted:
        spread = max(spread, (abs(float(values.sum()) - seen) + 2) / seen)
    half, value = quantile(sizes) * (spread * left * (1 + left / seen)) ** 0.5, ratio * left
    factor = math.exp(half / value) if value else 1.0
    return Range(value, value / factor, value * factor)


def together(ranges: Iterable[Range], known: float = 0.0) -> Range:
    """Return the sum of independent predictions, and of what is `known` already."""
    found = list(ranges)
    value = sum(one.value for one in found)
    below = sum((one.value - one.low) ** 2 for one in found) ** 0.5
    above = sum((one.high - one.value) ** 2 for one in found) ** 0.5
    return Range(known + value, known + max(0.0, value - below), known + value + above)
