"""What users that only one of two runs has could change: bounds, and failures at the worst value.

Only figures that are means over users have them: a missing user then has one value between the
metric's bounds. Users that neither run has are in none of it. Sources: Manski 1989; Horowitz &
Manski 2000; docs/statistics.md, "`compare`".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.benchmark import Metric
from harness.model import JSON
from harness.scoring.bootstrap import Array
from harness.scoring.compared import Figures
from harness.scoring.intervals import Interval, interval, moments
from harness.scoring.paired import Mask, Pair, effects
from harness.scoring.rows import counted_mask


@dataclass(
    frozen=True,
    slots=True,
    eq=False,
)
class Absent:
    """Users that one side was to play and has no score of: what the other adds for each (users x
    K), and which of them are failures."""

    known: Array
    failed: Mask

    @property
    def only_failed(self) -> Absent:
        return Absent(self.known[self.failed], self.failed[self.failed])

    def filled(self, values: Array) -> Array:
        """Return contributions with these values (by metric) where the other side has a value."""
        defined = self.known[:, len(values) :]
        return np.hstack([np.where(defined > 0, values, 0.0), defined])


@dataclass(
    frozen=True,
    slots=True,
    eq=False,
)
class IncompleteStratum:
    """One stratum: the users of both sides, and those that side A or B lacks."""

    pair: Pair
    a: Absent
    b: Absent

    def filled(self, a: Array, b: Array) -> Pair:
        """Return all users, with these values of those that A and B lack."""
        return Pair(
            np.vstack([self.pair.a, self.a.filled(a), self.b.known]),
            np.vstack([self.pair.b, self.a.known, self.b.filled(b)]),
        )

    @property
    def only_failed(self) -> IncompleteStratum:
        return IncompleteStratum(self.pair, self.a.only_failed, self.b.only_failed)


def sensitivity(
    strata: Sequence[IncompleteStratum],
    figures: Figures,
    metric: Metric,
) -> JSON | None:
    """Return what missing users could change in the mean difference over strata; None if no user is
    missing.

    Values are None where they are not known: the figure is no mean, or the metric has no bound on
    that side.
    """
    column = figures.names.index(metric.name)
    is_mean = figures.benchmark.scoring.is_mean
    users = _users(strata, column if is_mean else None)
    if not any(users.values()):
        return None
    if not is_mean:
        return {**users, "bounds": None, "bounds_ci95": None, "failed": None}

    # Where a metric has no bound, that is NaN, and so is what comes of it.
    low, high = np.array(metric.bounds or (None, None), dtype=np.float64)
    lowest, at_lowest = _filled(strata, figures, column, low, high)
    highest, at_highest = _filled(strata, figures, column, high, low)
    failed = None
    failures = [stratum.only_failed for stratum in strata]
    failed_users = _users(failures, column)
    if any(failed_users.values()):
        worst = high if metric.lower_is_better else low
        difference, ends = _filled(failures, figures, column, worst, worst)
        failed = {**failed_users, "difference": difference, "ci95": ends}

    return {
        **users,
        "bounds": [lowest, highest],
        "bounds_ci95": [at_lowest and at_lowest[0], at_highest and at_highest[1]],
        "failed": failed,
    }


def _users(strata: Sequence[IncompleteStratum], column: int | None) -> dict[str, int]:
    """Return how many users each side lacks, of those that have the metric of a column."""
    return {
        "a": sum(_count(stratum.a.known, column) for stratum in strata),
        "b": sum(_count(stratum.b.known, column) for stratum in strata),
    }


def _count(rows: Array, column: int | None) -> int:
    if column is None:
        return len(rows)

    # Values come first, then 1 or 0 for defined or undefined.
    return int(rows[:, rows.shape[1] // 2 + column].sum())


def _filled(
    strata: Sequence[IncompleteStratum],
    figures: Figures,
    column: int,
    *fill: float,
) -> tuple[float | None, Interval | None]:
    """Return the mean difference over strata and its 95 % interval, with values (`fill`) of the
    users that A and B lack."""
    fills = [np.full(len(figures.names), value) for value in fill]
    pairs = [stratum.filled(*fills) for stratum in strata]
    difference = float(np.mean([pair.difference(figures.values)[column] for pair in pairs]))
    if np.isnan(difference):
        return None, None

    strata_moments = []
    for pair in pairs:
        user_effects = effects(pair, figures.values, counted_mask(figures.benchmark, pair.a))
        strata_moments.append(moments(user_effects[:, column]))

    return difference, interval(difference, strata_moments)
