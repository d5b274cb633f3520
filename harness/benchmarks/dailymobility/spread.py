"""How far the aligned score and its four divergences may be off: variances and third cumulants of
the two samples.

Source: docs/statistics.md, "Divergences". A divergence is no mean. Near the ground truth its first
derivative goes to 0, so the jackknife's variance counts what is of second order twice (Efron &
Stein 1981), and the interval leans to one side by the curvature in the direction of the first
derivative (DiCiccio & Efron 1992, c_q). Both are corrected here; `scoring/intervals.py` makes the
interval. Bins of all metrics are next to each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.benchmarks.dailymobility.day import INTENTIONS, SLOTS
from harness.benchmarks.dailymobility.divergence import curvature, left_out
from harness.benchmarks.dailymobility.protocols import (
    ENDS,
    LOCATIONS,
    METRICS,
    PROPORTIONS,
    SEQUENCES,
    SIZES,
)
from harness.scoring.bootstrap import Array
from harness.scoring.intervals import SHRINKAGE, Moments, interval, moments, with_mark
from harness.scoring.libraries import product

FINAL = "final_score"
FIGURES = (FINAL, *METRICS)

COUNTS = {SEQUENCES: SLOTS, PROPORTIONS: len(INTENTIONS)}
EACH = np.repeat(
    [COUNTS.get(metric, 1) for metric in METRICS], [SIZES[metric] for metric in METRICS]
)
"""What a resident's counts in the bins of a metric sum to, for each bin."""
OWN = np.stack(
    [
        EACH * 0 - 1 / len(METRICS),
        *np.repeat(np.eye(len(METRICS)), [SIZES[of] for of in METRICS], axis=1),
    ]
)
"""Figures x bins: by how much a figure grows with the term of a bin in its divergence."""

FEWEST, FEWEST_LOCATIONS = 100, 400
"""Residents from which an interval held in the simulations, below whom it is approximate; that of
locations needs more, since its bins are few and one that is rare in the run may decide."""
CURVATURE = 1.5
"""What a unit of curvature adds to the third cumulant: half of 3, since the interval of a mean
leans twice as much for the same skewness, and Hall's transformation is for means."""
KURTOSIS, BELIEVED = 1.0, 25
"""A kurtosis that takes no degrees of freedom off, since the variance is not that of the parts
alone; and untied residents with whom half of the skewness is believed."""

Counts = NDArray[np.integer]
Marked = tuple[float, float, bool]
"""Both ends of an interval, and whether it is approximate."""


@dataclass(frozen=True, eq=False)
class Side:
    """Residents of one side. `parts` are jackknife pseudo-values (residents x figures),
    `covariance` that of residents' shares (bins x bins), `pull` that of shares and parts (bins x
    figures), `bend` the second derivative of the divergence by each bin's share."""

    parts: Array
    covariance: Array
    pull: Array
    bend: Array

    @classmethod
    def of(
        cls,
        chunks: Iterable[Counts],
        totals: Counts,
        other: Counts,
        values: Array,
        users: int | None = None,
    ) -> Side:
        """Make it of residents' counts by bin, some at once, of both sides' totals, and of the
        figures. At least 2.

        `users` is how many residents have these days, by default one a day.
        """
        days, bins = int(totals[: ENDS[0]].sum()), len(totals)
        users = users or days
        own = EACH * (days / users)
        squares, pulled, there = (
            np.zeros((bins, bins)),
            np.zeros((bins, len(FIGURES))),
            np.zeros(bins, dtype=np.int64),
        )
        parts: list[Array] = []
        for rows in chunks:
            parts.append(users * values - (users - 1) * _without(rows, totals, other))
            shares = rows / own
            squares += product(shares.T, shares)
            pulled += product(shares.T, parts[-1])
            there += np.count_nonzero(rows, axis=0)
        each, mean = np.concatenate(parts), totals / (users * own)
        return cls(
            each,
            squares / users - np.outer(mean, mean),
            pulled / users - np.outer(mean, each.mean(axis=0)),
            _bend(totals, there, other),
        )

    @property
    def spread(self) -> Spread:
        users, found = len(self.parts), [moments(part) for part in self.parts.T]
        untied = np.array([of.untied for of in found])
        untied[0] = untied[1:].min()  # a divergence that rarely moves may decide the score
        return Spread(
            users,
            untied,
            np.array([of.variance for of in found]) / users,
            np.array([of.third for of in found]) * (1 - 1 / users) * (1 - 2 / users) / users**2,
            _noise(self.bend, self.covariance**2) / (2 * users**2),
            _curve(self.bend, self.pull**2) / users**2,
        )


@dataclass(frozen=True, eq=False)
class Spread:
    """Of each figure: `variance` and `third` cumulant, by the jackknife; `noise`, the variance of
    second order, which `variance` has twice; `curve`, the curvature in the direction of the first
    derivative."""

    users: int
    untied: NDArray[np.int64]
    variance: Array
    third: Array
    noise: Array
    curve: Array

    def intervals(self, values: Array, users: int) -> dict[str, Marked | None]:
        """Return the 95 % interval of each figure of so many residents in the run, and whether it
        is approximate."""
        variance = np.maximum(self.variance - self.noise, self.noise) * self.users
        third = (self.third + CURVATURE * self.curve) * self.users**2
        believed = third * (self.untied + SHRINKAGE) / (self.untied + BELIEVED)
        columns = zip(
            FIGURES,
            values.tolist(),
            self.untied.tolist(),
            variance.tolist(),
            believed.tolist(),
            strict=True,
        )
        found: dict[str, Marked | None] = {}
        for name, value, untied, spread, skew in columns:
            strata = [Moments(self.users, untied, spread, skew, KURTOSIS)]
            found[name] = with_mark(interval(value, strata, (0.0, 1.0)), strata)
            if (ends := found[name]) and users < (
                FEWEST_LOCATIONS if name == LOCATIONS else FEWEST
            ):
                found[name] = (*ends[:2], True)
        return found


def both(run: Side, truth: Side, mixed: Array) -> Spread:
    """Return the spread over the residents of both sides. `mixed` is the derivative by both shares
    of each bin."""
    a, b = run.spread, truth.spread
    sizes = len(run.parts) * len(truth.parts)
    return Spread(
        min(a.users, b.users),
        np.minimum(a.untied, b.untied),
        a.variance + b.variance,
        a.third + b.third,
        a.noise + b.noise + _noise(mixed, run.covariance * truth.covariance) / sizes,
        a.curve + b.curve + 2 * _curve(mixed, run.pull * truth.pull) / sizes,
    )


def mixed(truth: Counts, run: Counts) -> Array:
    """Return the derivative of the divergence by both shares of each bin, in bits: -1 / (2 ln 2 (p
    + q))."""
    shares = [
        np.concatenate([of / of.sum() for of in np.split(side, ENDS)]) for side in (truth, run)
    ]
    total = shares[0] + shares[1]
    found: Array = np.divide(
        -1 / (2 * math.log(2)), total, out=np.zeros(len(total)), where=total > 0
    )
    return found


def _bend(totals: Counts, there: Counts, other: Counts) -> Array:
    steps = np.maximum(1, np.rint(totals / np.maximum(1, there))).astype(np.int64)
    sides = zip(*(np.split(of, ENDS) for of in (other, totals, steps)), strict=True)
    return np.concatenate([curvature(*side) for side in sides])


def _without(rows: Counts, totals: Counts, other: Counts) -> Array:
    """Return the figures without each of the residents: residents x figures."""
    sides = zip(*(np.split(of, ENDS, axis=-1) for of in (other, rows, totals)), strict=True)
    found = np.stack([left_out(*side) for side in sides], axis=1)
    figures: Array = np.column_stack([1 - found.mean(axis=1), found])
    return figures


def _noise(second: Array, covariances: Array) -> Array:
    weights = OWN * second
    found: Array = (product(weights, covariances) * weights).sum(axis=1)
    return found


def _curve(second: Array, pulls: Array) -> Array:
    found: Array = (OWN * second * pulls.T).sum(axis=1)
    return found
