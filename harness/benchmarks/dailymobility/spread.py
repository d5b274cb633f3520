"""Estimate how far the aligned score and its four divergences may be off: variances and third
cumulants of the two samples.

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
    with_score,
)
from harness.scoring.bootstrap import Array
from harness.scoring.intervals import (
    SHRINKAGE,
    Moments,
    interval,
    moments,
    with_mark,
)
from harness.scoring.libraries import product

FINAL = "final_score"
FIGURES = (FINAL, *METRICS)

COUNTS = {SEQUENCES: SLOTS, PROPORTIONS: len(INTENTIONS)}
METRIC_SIZES = [SIZES[metric] for metric in METRICS]
COUNTS_PER_RESIDENT = np.repeat([COUNTS.get(metric, 1) for metric in METRICS], METRIC_SIZES)
"""What a resident's counts in the bins of a metric sum to, for each bin."""
BIN_WEIGHTS = np.vstack(
    [
        np.full(len(COUNTS_PER_RESIDENT), -1 / len(METRICS)),
        np.repeat(np.eye(len(METRICS)), METRIC_SIZES, axis=1),
    ]
)
"""Figures x bins: by how much a figure grows with the term of a bin in its divergence."""

MIN_USERS = 100
MIN_USERS_LOCATIONS = 400
"""Residents from which an interval held in the simulations, below whom it is approximate; that of
locations needs more, since its bins are few and one that is rare in the run may decide."""
CURVATURE = 1.5
"""What a unit of curvature adds to the third cumulant: half of 3, since the interval of a mean
leans twice as much for the same skewness, and Hall's transformation is for means."""
KURTOSIS = 1.0
"""It takes no degrees of freedom off, since the variance is not that of the pseudo-values alone."""
HALF_SKEWNESS_USERS = 25
"""Untied residents with whom half of the skewness is used."""

Counts = NDArray[np.integer]
MarkedInterval = tuple[float, float, bool]
"""Both ends of an interval, and whether it is approximate."""


@dataclass(frozen=True, eq=False)
class SampleSide:
    """Residents of one side. `parts` are jackknife pseudo-values (residents x figures),
    `covariance` that of residents' shares (bins x bins), `pull` that of shares and parts (bins x
    figures), `bend` the second derivative of the divergence by each bin's share."""

    parts: Array
    covariance: Array
    pull: Array
    bend: Array

    @classmethod
    def from_counts(
        cls,
        chunks: Iterable[Counts],
        totals: Counts,
        other_totals: Counts,
        values: Array,
        users: int | None = None,
    ) -> SampleSide:
        """Make it of residents' counts by bin, some at once, of both sides' totals, and of the
        figures. There must be 2 residents or more.

        `users` is how many residents have these days, by default one a day.
        """
        days = int(totals[: ENDS[0]].sum())
        bins = len(totals)
        users = users or days
        counts_per_user = COUNTS_PER_RESIDENT * (days / users)
        squares = np.zeros((bins, bins))
        products = np.zeros((bins, len(FIGURES)))
        users_in_bin = np.zeros(bins, dtype=np.int64)
        chunk_parts: list[Array] = []
        for rows in chunks:
            # Pseudo-values of the jackknife: their mean is the figure without its bias of first
            # order.
            chunk = users * values - (users - 1) * _without(rows, totals, other_totals)
            chunk_parts.append(chunk)
            shares = rows / counts_per_user
            squares += product(shares.T, shares)
            products += product(shares.T, chunk)
            users_in_bin += np.count_nonzero(rows, axis=0)

        parts = np.concatenate(chunk_parts)
        mean = totals / (users * counts_per_user)
        return cls(
            parts=parts,
            covariance=squares / users - np.outer(mean, mean),
            pull=products / users - np.outer(mean, parts.mean(axis=0)),
            bend=_bend(totals, users_in_bin, other_totals),
        )

    @property
    def spread(self) -> Spread:
        users = len(self.parts)
        untied, variance, third = [], [], []
        for column in self.parts.T:
            of_figure = moments(column)
            untied.append(of_figure.untied)
            variance.append(of_figure.variance)
            third.append(of_figure.third)

        # A divergence that rarely moves may decide the score.
        untied[0] = min(untied[1:])
        return Spread(
            users=users,
            untied=np.array(untied),
            variance=np.array(variance) / users,
            third=np.array(third) * (1 - 1 / users) * (1 - 2 / users) / users**2,
            noise=_noise(self.bend, self.covariance**2) / (2 * users**2),
            curve=_curve(self.bend, self.pull**2) / users**2,
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

    def intervals(self, values: Array, users: int) -> dict[str, MarkedInterval | None]:
        """Return the 95 % interval of each figure of so many residents in the run, and whether it
        is approximate."""
        # The jackknife counts the noise of second order twice; no variance is below that noise.
        variance = np.maximum(self.variance - self.noise, self.noise) * self.users
        third = (self.third + CURVATURE * self.curve) * self.users**2
        third = third * (self.untied + SHRINKAGE) / (self.untied + HALF_SKEWNESS_USERS)
        intervals: dict[str, MarkedInterval | None] = {}
        for column, name in enumerate(FIGURES):
            figure_moments = Moments(
                self.users,
                int(self.untied[column]),
                float(variance[column]),
                float(third[column]),
                KURTOSIS,
            )
            ends = interval(float(values[column]), [figure_moments], (0.0, 1.0))
            marked = with_mark(ends, [figure_moments])
            min_users = MIN_USERS
            if name == LOCATIONS:
                min_users = MIN_USERS_LOCATIONS

            if marked and users < min_users:
                marked = (*marked[:2], True)

            intervals[name] = marked

        return intervals


def spread_of_both(run: SampleSide, truth: SampleSide, mixed: Array) -> Spread:
    """Return the spread over the residents of both sides. `mixed` is the derivative by both shares
    of each bin."""
    first = run.spread
    second = truth.spread
    sizes = len(run.parts) * len(truth.parts)
    mixed_noise = _noise(mixed, run.covariance * truth.covariance) / sizes
    mixed_curve = 2 * _curve(mixed, run.pull * truth.pull) / sizes
    return Spread(
        users=min(first.users, second.users),
        untied=np.minimum(first.untied, second.untied),
        variance=first.variance + second.variance,
        third=first.third + second.third,
        noise=first.noise + second.noise + mixed_noise,
        curve=first.curve + second.curve + mixed_curve,
    )


def mixed(truth: Counts, run: Counts) -> Array:
    """Return the derivative of the divergence by both shares of each bin, in bits: -1 / (2 ln 2 (p
    + q))."""
    total = _metric_shares(truth) + _metric_shares(run)
    numerator = np.full(len(total), -1 / (2 * math.log(2)))
    derivative: Array = np.divide(numerator, total, out=np.zeros(len(total)), where=total > 0)
    return derivative


def _metric_shares(counts: Counts) -> Array:
    return np.concatenate([bins / bins.sum() for bins in np.split(counts, ENDS)])


def _bend(totals: Counts, users_in_bin: Counts, other_totals: Counts) -> Array:
    steps = np.maximum(1, np.rint(totals / np.maximum(1, users_in_bin))).astype(np.int64)
    by_metric = map(
        curvature,
        *(np.split(bins, ENDS) for bins in (other_totals, totals, steps)),
    )
    return np.concatenate([*by_metric])


def _without(rows: Counts, totals: Counts, other_totals: Counts) -> Array:
    """Return the figures without each of the residents: residents x figures."""
    row_bins = np.split(rows, ENDS, axis=1)
    divergences = map(left_out, np.split(other_totals, ENDS), row_bins, np.split(totals, ENDS))
    return with_score(np.stack([*divergences], axis=1))


def _noise(second: Array, covariances: Array) -> Array:
    weights = BIN_WEIGHTS * second
    noise: Array = (product(weights, covariances) * weights).sum(axis=1)
    return noise


def _curve(second: Array, pulls: Array) -> Array:
    curve: Array = (BIN_WEIGHTS * second * pulls.T).sum(axis=1)
    return curve
