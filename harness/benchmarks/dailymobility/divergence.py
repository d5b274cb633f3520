"""Jensen-Shannon divergence of histograms, and how far that of a sample can be trusted.

The divergence of a sample from a fixed distribution is too large on average, the more so the fewer
users there are, and resampling the users adds as much again: the percentile bootstrap is biased.
Leaving out one user at a time gives both the bias and the spread, needs no random numbers and is
exact for any number of users. Sources: Lin, Divergence Measures Based on the Shannon Entropy, 1991;
docs/statistics.md.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from harness.scoring.bootstrap import Array
from harness.scoring.libraries import special

Counts = NDArray[np.integer]


def divergence(p: Array | Counts, q: Array | Counts) -> Array:
    """Return 0.5 KL(p || m) + 0.5 KL(q || m) with m = (p + q) / 2, in bits: from 0 to 1.

    Along the last axis, the others broadcast. Each histogram is normalised, so its sum must be
    above 0.
    """
    totals: Array = _terms(_normalised(p), _normalised(q)).sum(axis=-1)
    # Rounding may leave equal histograms a little below 0.
    return totals.clip(0.0, 1.0)


def distance(p: Array | Counts, q: Array | Counts) -> Array:
    """Return the root of the divergence in nats: from 0 to 0.8326, the root of ln 2."""
    roots: Array = np.sqrt(divergence(p, q) * math.log(2))
    return roots


def left_out(p: Array | Counts, rows: Counts, totals: Counts) -> Array:
    """Return the divergence from `p` of `totals` without one user, for each user.

    `rows` is users x bins, each user's counts, with few different sums; `totals` is the sum over
    all users, who may be more than those of `rows` and must be at least two.
    """
    expected = _normalised(p)[:, None]
    sizes = rows.sum(axis=1)
    values = np.empty(len(rows))
    # Few counts are possible, so each bin's term is computed once for each.
    # Only counts that no user of `rows` has in that bin would be below 0.
    counts = np.maximum(totals[:, None] - np.arange(int(rows.max()) + 1), 0)
    for size in np.unique(sizes):
        terms = _terms(expected, counts / (int(totals.sum()) - int(size)))
        has_size = sizes == size
        values[has_size] = terms[np.arange(len(totals)), rows[has_size]].sum(axis=1)

    return values.clip(0.0, 1.0)


def curvature(p: Array | Counts, totals: Counts, steps: Counts) -> Array:
    """Return the second derivative of the divergence from `p` by each bin's share of `totals`, in
    bits; 0 where no user is.

    It is that of differences, over as many counts as a user of the bin has there (`steps`): near 0
    the divergence bends too much for a derivative to describe what one user changes.
    """
    expected = _normalised(p)
    size = totals.sum()

    def terms(counts: Counts) -> Array:
        return _terms(expected, np.maximum(counts, 0) / size)

    difference = terms(totals + steps) - 2 * terms(totals) + terms(totals - steps)
    return np.where(totals > 0, difference * (size / steps) ** 2, 0.0)


def _normalised(histogram: Array | Counts) -> Array:
    shares: Array = histogram / histogram.sum(axis=-1, keepdims=True)
    return shares


def _terms(p: Array, q: Array) -> Array:
    """Return what each bin adds to the divergence, in bits."""
    # It has 0 log 0 = 0 without a warning, as the divergence is defined.
    rel_entr = special().rel_entr
    middle = (p + q) / 2
    terms: Array = (rel_entr(p, middle) + rel_entr(q, middle)) / (2 * math.log(2))
    return terms
