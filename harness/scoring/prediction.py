"""Predict a total over many users from a few of them, with an interval for that very total, not for a mean.

The ratio estimator: what a user takes is about proportional to a known size, such as the length of its chain, with a
variance proportional to that size, too. The interval has the spread of the users that are left and the uncertainty of
the ratio, by Student's t (Cochran, Sampling Techniques, 3rd edition, section 6; Royall 1970).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.scoring.libraries import special

LEVEL = 0.90

Array = NDArray[np.float64]


class Range(NamedTuple):
    """A prediction, with the bounds of its interval."""

    value: float
    low: float
    high: float


def quantile(users: int) -> float:
    """Return Student's quantile for an interval of `LEVEL` from so many users, two at least."""
    return float(special().stdtrit(users - 1, (1 + LEVEL) / 2))


def total(sizes: Array, values: Array, left: float, least: float = 0.0) -> Range:
    """Return what users of the sizes' sum `left` take, as those did who took `values`; at least two of these.

    `least` is the smallest difference that one user can make: where all are alike, the next may still be another.
    """
    seen = float(sizes.sum())
    ratio = float(values.sum()) / seen
    spread = float(((values - ratio * sizes) ** 2 / sizes).sum()) / (len(sizes) - 1)
    spread = max(spread, least**2 / seen)
    half = quantile(len(sizes)) * (spread * left * (1 + left / seen)) ** 0.5
    return Range(ratio * left, max(0.0, ratio * left - half), ratio * left + half)


def together(ranges: Iterable[Range], known: float = 0.0) -> Range:
    """Return the sum of independent predictions, and of what is `known` already."""
    found = list(ranges)
    value = sum(one.value for one in found)
    below = sum((one.value - one.low) ** 2 for one in found) ** 0.5
    above = sum((one.high - one.value) ** 2 for one in found) ** 0.5
    return Range(known + value, known + max(0.0, value - below), known + value + above)
