"""What users that only one of two runs has could change: bounds, and failures at the worst value.

Only figures that are means over users have them: a missing user then has one value between the metric's bounds. Users
that neither run has are in none of it. Formulas and sources: docs/statistics.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.benchmark import Metric
from harness.commands.compare.paired import Mask, Pair, effects
from harness.commands.compare.sides import Side
from harness.model import JSON
from harness.scoring.bootstrap import Array
from harness.scoring.compared import Figures
from harness.scoring.intervals import Interval, interval, moments
from harness.scoring.rows import having


@dataclass(frozen=True, slots=True, eq=False)
class Absent:
    """Users that one side was to play and has no score of: what the other adds for each (users x K), and which of them
    are failures."""

    known: Array
    failed: Mask

    @classmethod
    def of(cls, side: Side, other: Side) -> Absent:
        alone = [user for user in other.tasks if user not in side.tasks]
        failed = [user for user in alone if side.failed.get(user) == other.tasks[user]]
        saved = side.of.saved
        remaining = len(alone) if saved is None else saved.expected_users - len(side.tasks)
        users = alone if remaining > len(failed) else failed  # the rest were not selected by the run's share
        return cls(other.contributions[other.places(users)], np.isin(users, failed))

    @property
    def only_failed(self) -> Absent:
        return Absent(self.known[self.failed], self.failed[self.failed])

    def filled(self, values: Array) -> Array:
        """Return contributions with these values (by metric) where the other side has a value."""
        defined = self.known[:, len(values) :]
        return np.hstack([np.where(defined > 0, values, 0.0), defined])

    def users(self, column: int) -> int:
        """Return how many have the metric of this column."""
        return int(self.known[:, self.known.shape[1] // 2 + column].sum())


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
    """Return what missing users could change in the mean difference over strata; None if no user is missing.

    Values are None where they are not known: the figure is no mean, or the metric has no bound on that side.
    """
    column = figures.names.index(metric.name)
    if not figures.benchmark.scoring.is_mean:
        users = {side: sum(len(getattr(one, side).known) for one in strata) for side in "ab"}
        unknown = {"bounds": None, "bounds_ci95": None, "failed": None}
        return {**users, **unknown} if any(users.values()) else None
    users = {side: sum(getattr(one, side).users(column) for one in strata) for side in "ab"}
    if not any(users.values()):
        return None
    low, high = (np.nan if bound is None else bound for bound in metric.bounds or (None, None))
    ends = [_filled(strata, figures, column, *sides) for sides in ((low, high), (high, low))]
    return {
        **users,
        "bounds": [difference for difference, _ in ends],
        "bounds_ci95": [span and span[place] for place, (_, span) in enumerate(ends)],
        "failed": _failed(strata, figures, column, high if metric.lower_is_better else low),
    }


def _failed(strata: Sequence[Incomplete], figures: Figures, column: int, worst: float) -> JSON | None:
    """Return the difference with failures at the metric's worst value; None if there are none."""
    failures = [one.only_failed for one in strata]
    users = {side: sum(getattr(one, side).users(column) for one in failures) for side in "ab"}
    if not any(users.values()):
        return None
    difference, span = _filled(failures, figures, column, worst, worst)
    return {**users, "difference": difference, "ci95": span}


def _filled(
    strata: Sequence[Incomplete], figures: Figures, column: int, *fill: float
) -> tuple[float | None, Interval | None]:
    """Return the mean difference over strata and its 95 % interval, with values (`fill`) of the users that A and B
    lack."""
    fills = [np.full(len(figures.names), value) for value in fill]
    pairs = [one.filled(*fills) for one in strata]
    found = float(np.mean([pair.difference(figures.values)[column] for pair in pairs]))
    if np.isnan(found):
        return None, None
    parts = [effects(pair, figures.values, having(figures.benchmark, pair.a))[:, column] for pair in pairs]
    return found, interval(found, [moments(part) for part in parts])
