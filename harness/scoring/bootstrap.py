"""Percentile bootstrap intervals of means over users, many columns at once.

All columns share the same resamples, so that a difference of two columns' means has its interval from the same draws.
Source: Efron & Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13; Poisson weights instead of counts:
Chamandy et al., Estimating Uncertainty for Massive Data Streams, 2012; docs/design.md, section 8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from harness.scoring.libraries import product

RESAMPLES = 2000
LEVEL = 0.95
CELLS = 500_000
"""Weights held at once, so that memory does not grow with users times resamples."""

Array = NDArray[np.float64]


def resample_users(rows: Array, rng: np.random.Generator, resamples: int = RESAMPLES) -> Array:
    """Return the means of `resamples` plain resamples of users: resamples x columns, NaN if no user has a value.

    `rows` is users x columns, NaN where a user has no value.
    """
    defined = ~np.isnan(rows)
    totals = np.hstack([np.where(defined, rows, 0.0), defined])
    return _means(totals, resamples, lambda size: times_drawn(len(rows), size, rng))


def resample_blocks(sums: Array, counts: Array, rng: np.random.Generator, resamples: int = RESAMPLES) -> Array:
    """Return the means of resamples in which each block of users weighs Poisson(1), in the form of `resample_users`.

    `sums` and `counts` are blocks x columns: the sum of a column over a block's users, and how many have a value.
    """
    totals = np.hstack([sums, counts])
    return _means(totals, resamples, lambda size: rng.poisson(1.0, size=(size, len(sums))).astype(np.float64))


def _means(totals: Array, resamples: int, weights: Callable[[int], Array]) -> Array:
    """Return weighted sums divided by weighted counts. `weights(size)` is size x units, `totals` units x 2 columns."""
    if not len(totals):
        return np.full((resamples, totals.shape[1] // 2), np.nan)
    weighted = [product(weights(size), totals) for size in chunks(len(totals), resamples)]
    sums, counts = np.hsplit(np.concatenate(weighted), 2)
    means: Array = np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)
    return means


def chunks(units: int, rows: int) -> Iterator[int]:
    """Yield how many of `rows` to compute at once, so that `CELLS` bounds the weights of so many units."""
    at_once = max(1, CELLS // max(1, units))
    for start in range(0, rows, at_once):
        yield min(at_once, rows - start)


def interval(means: Array, units: int) -> tuple[float, float] | None:
    """Return the 95 % percentile interval of one column's resampled means; undefined resamples are left out.

    `units` is the number of users or blocks with a value: fewer than 2 have no interval, but None.
    """
    defined = means[~np.isnan(means)]
    if units < 2 or not defined.size:
        return None
    low, high = np.quantile(defined, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def times_drawn(users: int, resamples: int, rng: np.random.Generator) -> Array:
    """Draw as many users as there are with replacement, and count how often each is drawn: resamples x users."""
    drawn = rng.integers(users, size=(resamples, users))
    drawn += np.arange(resamples)[:, None] * users
    return np.bincount(drawn.ravel(), minlength=resamples * users).reshape(resamples, users).astype(np.float64)
