"""Draws of users with replacement, for what needs them jointly: ranks, and several tests at once.

Source: Efron & Tibshirani, An Introduction to the Bootstrap, 1993; docs/statistics.md.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000
LEVEL = 0.95
CELLS = 500_000
"""Weights held at once, so that memory does not grow with users times resamples."""

Array = NDArray[np.float64]


def chunks(units: int, rows: int) -> Iterator[int]:
    """Yield how many of `rows` to compute at once, so that `CELLS` bounds the weights of so many
    units."""
    # One row at least, even of more units than `CELLS`.
    at_once = max(1, CELLS // max(1, units))
    for start in range(0, rows, at_once):
        yield min(at_once, rows - start)
