"""What users that only one of two runs has could change: bounds, and failures at the worst value.

Only figures that are means over users have them: a missing user then has one value between the
metric's bounds. Users that neither run has are in none of it. Formulas and sources:
docs/statistics.md.
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
from harness.scoring.rows import having


@dataclass(frozen=True, slots=True, eq=False)
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


@dataclass(frozen=True, slots=True, eq=False)
class Incomplete:
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
    def only_failed(self) -> Incomplete:
        return Incomplete(self.pair, self.a.only_failed, self.b.only_failed)


def sensitivity(strata: Sequence[Incomplete], figures: Figures, metric: Metric) -> JSON | None:
    """Return what missing users could change in the mean difference over strata; None if no user is
    missing.

    Values are None where they are not known: the figure is no mean, or the metric has no bound on
    that side.
    """
    column, is_mean = figures.names.index(metric.name), figures.benchmark.scoring.is_mean
    users = _users(strata, column if is_mean else None)
    if not any(users.values()):
        return None
    if not is_mean:
        return {**users, "bounds": None, "bounds_ci95": None, "failed": None}
    low, high = (np.nan if bound is None else bound for bound in metric.bounds or (None, None))
    ends = [_filled(strata, figures, column, *sides) for sides in ((low, high), (high, low))]
    failures, failed = [stratum.only_failed for stratum in strata], None
    if any((of_failed := _users(failures, column)).values()):
        worst = high if metric.lower_is_better else low
        difference, span = _filled(failures, figures, column, worst, worst)
        failed = {**of_failed, "difference": difference, "ci95": span}
    return {
        **users,
        "bounds": [difference for difference, _ in ends],
        "bounds_ci95": [span and span[place] for place, (_, span) in enumerate(ends)],
        "failed": failed,
    }


def _users(strata: Sequence[Incomplete], column: int | None) -> dict[str, int]:
    """Return how many users each side lacks, of those that have the metric of a column."""
    known = {
        "a": [stratum.a.known for stratum in strata],
        "b": [stratum.b.known for stratum in strata],
    }
    if column is None:
        return {side: sum(map(len, rows)) for side, rows in known.items()}
    return {
        side: sum(int(of[:, of.shape[1] // 2 + column].sum()) for of in rows)
        for side, rows in known.items()
    }


def _filled(
    strata: Sequence[Incomplete], figures: Figures, column: int, *fill: float
) -> tuple[float | None, Interval | None]:
    """Return the mean difference over strata and its 95 % interval, with values (`fill`) of the
    users that A and B lack."""
    fills = [np.full(len(figures.names), value) for value in fill]
    pairs = [stratum.filled(*fills) for stratum in strata]
    found = float(np.mean([pair.difference(figures.values)[column] for pair in pairs]))
    if np.isnan(found):
        return None, None
    parts = [
        effects(pair, figures.values, having(figures.benchmark, pair.a))[:, column]
        for pair in pairs
    ]
    return found, interval(found, [moments(part) for part in parts])
