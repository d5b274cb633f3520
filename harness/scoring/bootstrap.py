"""Percentile bootstrap intervals of means over users, many columns at once.

All columns share the same resamples, so that a difference of two columns' means has its interval from the
same draws, whoever has a value in each. Source: Efron & Tibshirani, An Introduction to the Bootstrap, 1993,
chapter 13; Poisson weights instead of counts: Chamandy et al., Estimating Uncertainty for Massive Data
Streams, 2012; docs/design.md, section 8.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from harness.scoring.libraries import product

RESAMPLES = 2000
LEVEL = 0.95
CELLS = 500_000
"""Weights held at once, so that memory does not grow with users times resamples."""

Array = NDArray[np.float64]


def resample_users(rows: Array, rng: np.random.Generator, resamples: int = RESAMPLES) -> Array:
    """Means of `resamples` plain resamples of users.

    `rows` is users x columns, NaN where a user has no value. Returns resamples x columns, NaN where no user
    that was drawn has a value.
    """
    users, columns = rows.shape
    defined = ~np.isnan(rows)
    totals = np.hstack([np.where(defined, rows, 0.0), defined])
    means = np.full((resamples, columns), np.nan)
    chunk = max(1, CELLS // max(1, users))
    for start in range(0, resamples if users else 0, chunk):
        size = min(chunk, resamples - start)
        means[start : start + size] = _means(product(times_drawn(users, size, rng), totals))
    return means


def resample_blocks(sums: Array, counts: Array, rng: np.random.Generator, resamples: int = RESAMPLES) -> Array:
    """Means of `resamples` resamples in which each block of users weighs Poisson(1).

    `sums` and `counts` are blocks x columns: the sum of a column over a block's users, and the number of
    users with a value. Returns resamples x columns, NaN where no block that was drawn has a value.
    """
    totals = np.hstack([sums, counts])
    means = np.full((resamples, sums.shape[1]), np.nan)
    chunk = max(1, CELLS // max(1, len(sums)))
    for start in range(0, resamples, chunk):
        size = min(chunk, resamples - start)
        weights = rng.poisson(1.0, size=(size, len(sums))).astype(np.float64)
        means[start : start + size] = _means(product(weights, totals))
    return means


def interval(means: Array, units: int) -> tuple[float, float] | None:
    """The 95 % percentile interval of one column's resampled means; undefined resamples are left out.

    `units` is the number of what is resampled (users or blocks) that has a value: from fewer than 2 nothing
    can be said, so None.
    """
    defined = means[~np.isnan(means)]
    if units < 2 or not defined.size:
        return None
    low, high = np.quantile(defined, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def times_drawn(users: int, resamples: int, rng: np.random.Generator) -> Array:
    """How often each user is drawn when as many as there are get drawn with replacement: resamples x users."""
    drawn = rng.integers(users, size=(resamples, users))
    drawn += np.arange(resamples)[:, None] * users
    return np.bincount(drawn.ravel(), minlength=resamples * users).reshape(resamples, users).astype(np.float64)


def _means(totals: Array) -> Array:
    """Weighted sums beside weighted counts -> means."""
    sums, counts = np.hsplit(totals, 2)
    means: Array = np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)
    return means
