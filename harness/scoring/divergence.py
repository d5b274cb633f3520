"""Jensen-Shannon divergence of histograms, and how far that of a sample can be trusted.

The divergence of a sample from a fixed distribution is too large on average, the more so the fewer users there are, and
resampling the users adds as much again: the percentile bootstrap is biased. The jackknife, which leaves out one user at
a time, gives both the bias and the spread, needs no random numbers and is exact for any number of users.
Sources: Lin, Divergence Measures Based on the Shannon Entropy, 1991; Efron & Stein, The Jackknife Estimate of
Variance, 1981; docs/design.md, section 9.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.scoring.libraries import special

NORMAL_95 = 1.959963984540054

Array = NDArray[np.float64]
Counts = NDArray[np.integer]


def divergence(p: Array | Counts, q: Array | Counts) -> Array:
    """Return 0.5 KL(p || m) + 0.5 KL(q || m) with m = (p + q) / 2, in bits: from 0 to 1.

    Along the last axis, the others broadcast. Each histogram is normalised, so its sum must be above 0.
    """
    totals: Array = _terms(_normalised(p), _normalised(q)).sum(axis=-1)
    return totals.clip(0.0, 1.0)


def distance(p: Array | Counts, q: Array | Counts) -> Array:
    """Return the root of the divergence in nats: from 0 to 0.8326, the root of ln 2."""
    roots: Array = np.sqrt(divergence(p, q) * math.log(2))
    return roots


def left_out(p: Array | Counts, rows: Counts, totals: Counts) -> Array:
    """Return the divergence from `p` of `totals` without one user, for each user.

    `rows` is users x bins, each user's counts, with the same sum for all; `totals` is the sum over all users, who
    may be more than those of `rows` and must be at least two.
    """
    expected = _normalised(p)
    remaining = int(totals.sum()) - int(rows[0].sum())
    taken = np.arange(int(rows.max()) + 1)
    terms = _terms(expected[:, None], np.maximum(totals[:, None] - taken, 0) / remaining)
    values: Array = terms[np.arange(len(totals)), rows].sum(axis=1)
    return values.clip(0.0, 1.0)


class Jackknife(NamedTuple):
    """`bias` is by how much a figure of so many users is too large on average, `error` its standard error."""

    bias: float
    error: float


def jackknife(value: float, values_left_out: Array) -> Jackknife | None:
    """Return bias and standard error of a figure, from the figures with one user left out; None for fewer than 2 users.

    Sums are exactly rounded, so the order of users changes nothing.
    """
    users = len(values_left_out)
    if users < 2:
        return None
    mean = math.fsum(values_left_out) / users
    spread = math.fsum((values_left_out - mean) ** 2)
    return Jackknife((users - 1) * (mean - value), math.sqrt((users - 1) / users * spread))


def _normalised(histogram: Array | Counts) -> Array:
    shares: Array = histogram / histogram.sum(axis=-1, keepdims=True)
    return shares


def _terms(p: Array, q: Array) -> Array:
    """Return each bin's part of the divergence, in bits."""
    rel_entr = special().rel_entr
    middle = (p + q) / 2
    terms: Array = (rel_entr(p, middle) + rel_entr(q, middle)) / (2 * math.log(2))
    return terms
