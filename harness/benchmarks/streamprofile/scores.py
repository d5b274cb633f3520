"""What users of StreamProfileBench add to its scores: values, and a tally. Source: docs/design.md,
section 8.

Each user becomes one row of columns (a part of its steps, a metric); means are taken over rows. A
tally holds the learning curves and counts. Neither depends on how users were grouped.
"""

from __future__ import annotations

import operator
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.benchmark import VALID
from harness.benchmarks.records import count, user_starts
from harness.benchmarks.streamprofile.chance import DRAWS, Urn, drawn, expected
from harness.benchmarks.streamprofile.metrics import ERRORS, F1, GAINS, METRICS, NAMES
from harness.model import JSON
from harness.scoring.bootstrap import Array
from harness.scoring.intervals import interval, moments_of_sums, with_mark

PER_STEP = f"{F1} (per step)"
TRANSFER = (F1, PER_STEP)
PARTS: dict[str, tuple[str, ...]] = {
    "all": NAMES,
    "release": (F1,),
    "fwt": (*NAMES, PER_STEP),
    "cut": NAMES,
    "release_cut": (F1,),
    "fwt_cut": (*METRICS, PER_STEP),
    "cold": (*NAMES, PER_STEP),
    "augmented": (*NAMES, PER_STEP),
    "at_asked": NAMES,
    "ceiling": (*GAINS, F1),
    "valid": ERRORS,
    "chance": (*GAINS, F1),
    "chance_fwt": TRANSFER,
    "chance_cold": TRANSFER,
    "chance_augmented": TRANSFER,
    "chance_noise": (F1,),
    "chance_fwt_noise": TRANSFER,
}
"""Part of the scores -> its metrics: those of the benchmark, its secondary ones (up to `fwt_cut`),
and the rest. `fwt` is augmented minus cold within a user; `valid` is over valid answers. The
`chance` parts are those of answers drawn at random, of records with their tasks' urns
(`Scoring.with_task`): exact, and of F1^NS the mean over draws. `noise` is the variance of that
mean.

The parts that end in `cut` are what runs are ranked by: predictions cut to the asked number of
tags, Precision with that number as its denominator. Their errors, and both sides of `fwt_cut`, are
over the answers that follow the task's rules alone: as many tags as asked for, or more, all of them
from the pool."""

COLUMNS = tuple((part, name) for part, names in PARTS.items() for name in names)
INDEX = {column: index for index, column in enumerate(COLUMNS)}
PRECISION, NOVELTY, STABILITY = map(
    GAINS.index, ("Precision", "Recall_Novelty", "Recall_Stability")
)
ERROR_COLUMNS = slice(len(GAINS), len(METRICS))
UNITS = 64
"""Sums of curves are whole numbers of 2**-64."""
HALF = 2.0 ** (UNITS // 2)

Mask = NDArray[np.bool_]


class CurvePoint(NamedTuple):
    """One step_id: `users` with a scored step, and `sums` over them of `_point_columns`.

    They are whole numbers, which add up to the same in any grouping.
    """

    users: int
    sums: tuple[int, ...]

    def plus(self, other: CurvePoint) -> CurvePoint:
        return CurvePoint(self.users + other.users, tuple(map(operator.add, self.sums, other.sums)))

    def of_names(self) -> Iterator[tuple[int, ...]]:
        """Yield for each name of `NAMES` the sums of its values, of their squares, cubes and fourth
        powers (in 2**-64), and how many values are there, are 0 and are 1."""
        for at in range(len(NAMES)):
            of = self.sums[at :: len(NAMES)]
            yield (
                *((high << UNITS // 2) + low for high, low in zip(of[:4], of[4:8], strict=True)),
                *of[8:],
            )

    def means(self) -> tuple[float | None, ...]:
        return tuple(
            total / (count << UNITS) if count else None
            for total, _, _, _, count, _, _ in self.of_names()
        )

    def intervals(self) -> tuple[tuple[float, float, bool] | None, ...]:
        """Return the 95 % intervals of the means over users, and whether each is approximate; None
        if there are too few users, or all are alike. That other values than 0 and 1 are tied is not
        looked at."""
        return tuple(starmap(_interval, self.of_names()))


def _point_columns(values: Array) -> Array:
    """Return what steps add to points: the upper and lower halves of their values, squares, cubes
    and fourth powers, cut to whole numbers of 2**-64; and whether a value is there, is 0, is 1.

    As whole numbers below 2**33, 2**20 of them add up exactly.
    """
    powers = np.hstack([values**power for power in (1, 2, 3, 4)]) * HALF
    upper = np.floor(powers)
    return np.hstack(
        [upper, np.floor((powers - upper) * HALF), ~np.isnan(values), values == 0, values == 1]
    )


def _interval(
    total: int, squares: int, cubes: int, fourths: int, count: int, zeros: int, ones: int
) -> tuple[float, float, bool] | None:
    if not count:
        return None
    # Whole numbers, in 2**-64 to the power of 2, 3 and 4: no digit is lost where values are next to
    # equal.
    squares, cubes, fourths = squares << UNITS, cubes << (2 * UNITS), fourths << (3 * UNITS)
    second = max(0, count * squares - total**2)  # of equal values the squares may be rounded down
    third = count**2 * cubes - 3 * count * total * squares + 2 * total**3
    fourth = (
        count**3 * fourths
        - 4 * count**2 * total * cubes
        + 6 * count * total**2 * squares
        - 3 * total**4
    )
    sums = (
        second / (count << (2 * UNITS)),
        third / (count**2 << (3 * UNITS)),
        fourth / (count**3 << (4 * UNITS)),
    )
    strata = [moments_of_sums(count, count - max(1, zeros, ones), *sums)]
    return with_mark(interval(total / (count << UNITS), strata, (0.0, 1.0)), strata)


Curves = dict[tuple[int, int], CurvePoint]
"""(last step_id of the users, step_id) -> their point, so that the curve of any cohort can be
made."""


@dataclass(frozen=True, slots=True)
class StepTally:
    """`reached` counts users with a scored step by their last step_id, `counts` steps, tags and
    users by name."""

    curves: Curves
    reached: Counter[int]
    counts: Counter[str]

    def __add__(self, other: StepTally) -> StepTally:
        """Return the tally of both; associative to the last bit."""
        shared = {
            key: self.curves[key].plus(point)
            for key, point in other.curves.items()
            if key in self.curves
        }
        curves = {**self.curves, **other.curves, **shared}
        return StepTally(curves, self.reached + other.reached, self.counts + other.counts)


def tallied(records: Sequence[JSON]) -> tuple[Array, StepTally]:
    """Return the values of each record of up to 256 users (records x COLUMNS, NaN if undefined) and
    their tally.

    The curves are of users: a step's values are the means over its user's repeats. Which values are
    defined depends on the task alone, so a user has the same metrics in every run; but those of the
    parts `valid`, `cut` (errors) and `fwt_cut` on the answers, too.
    """
    steps = _scored_steps(records)
    starts = user_starts(records)
    user_of = np.repeat(np.arange(len(starts)), np.diff([*starts, len(records)])).tolist()
    scored = {user_of[record] for record, _ in steps}
    last = [max((step["step_id"] for step in records[at]["steps"]), default=0) for at in starts]
    table = _StepTable.of(steps)
    rows = table.rows(len(records))
    tally = StepTally(
        table.curves(last, user_of), Counter(last[user] for user in scored), _counts(records, rows)
    )
    tally.counts["scored_steps"] += len(steps)
    tally.counts["users_without_scored_step"] += len(starts) - len(scored)
    return rows, tally


def rows(records: Sequence[JSON]) -> Array:
    """Return the values that `tallied` returns."""
    return _StepTable.of(_scored_steps(records)).rows(len(records))


def _scored_steps(records: Sequence[JSON]) -> list[tuple[int, JSON]]:
    """Return the scored steps of records, each after the number of its record."""
    return [
        (record, step)
        for record, data in enumerate(records)
        for step in data["steps"]
        if step["metrics"]
    ]


def _counts(records: Sequence[JSON], rows: Array) -> Counter[str]:
    """Count over every step, scored or not."""
    steps = [step for data in records for step in data["steps"]]
    longer = [len(step["prediction"]) - step["asked"] for step in steps if step["outcome"] == VALID]
    left_out = (
        np.isnan(rows[:, INDEX["release", F1]]).sum() - np.isnan(rows[:, INDEX["all", F1]]).sum()
    )
    return Counter(
        repaired_steps=sum(1 for step in steps if step["repairs"]),
        out_of_pool_steps=sum(1 for step in steps if step["out_of_pool"]),
        out_of_pool_tags=sum(count(step["out_of_pool"]) for step in steps),
        more_tags=sum(1 for extra in longer if extra > 0),
        fewer_tags=sum(1 for extra in longer if extra < 0),
        release_code_left_out=int(left_out),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _StepTable:
    """The scored steps of a shard, a row each: whose it is (the number of the record), and its
    values (NaN undefined).

    `follows` are the answers that follow the task's rules. `named` is how many tags a cut answer
    has, as a share of those asked for. `urns` are those of the records that have them, else None.
    """

    user: NDArray[np.int_]
    step_id: NDArray[np.int_]
    valid: Mask
    follows: Mask
    named: Array
    values: Array
    at_asked: Array
    ceiling: Array
    urns: tuple[Urn | None, ...]

    @classmethod
    def of(cls, steps: Sequence[tuple[int, JSON]]) -> _StepTable:
        return cls(
            user=np.array([user for user, _ in steps], dtype=np.int_),
            step_id=np.array([step["step_id"] for _, step in steps], dtype=np.int_),
            valid=np.array([step["outcome"] == VALID for _, step in steps], dtype=np.bool_),
            follows=np.array(
                [
                    len(step["prediction"]) >= step["asked"] and not step["out_of_pool"]
                    for _, step in steps
                ],
                np.bool_,
            ),
            named=np.array(
                [min(1.0, len(step["prediction"]) / step["asked"]) for _, step in steps]
            ),
            values=_matrix([step["metrics"] for _, step in steps], METRICS),
            at_asked=_matrix(
                [step.get("metrics_at_asked") or step["metrics"] for _, step in steps], METRICS
            ),
            ceiling=_matrix([step["ceiling"] for _, step in steps], GAINS),
            urns=tuple(step.get("urn") for _, step in steps),
        )

    def rows(self, users: int) -> Array:
        """Each user's row: users x COLUMNS."""
        everything = np.ones(len(self.user), dtype=np.bool_)
        overall = self._means(self.values, everything, users)[:, : len(NAMES)]
        cold, augmented = self._sides(self.values, everything, users)
        cut = self.at_asked.copy()
        cut[:, PRECISION] *= self.named
        comparable = self._means(cut, everything, users)[:, : len(NAMES)]
        comparable[:, ERROR_COLUMNS] = self._means(cut, self.follows, users)[:, ERROR_COLUMNS]
        cut_cold, cut_augmented = self._sides(cut, self.follows, users)
        return np.hstack(
            [
                overall,
                _release_code(overall),
                augmented - cold,
                comparable,
                _release_code(comparable),
                np.delete(cut_augmented - cut_cold, NAMES.index(F1), axis=1),
                cold,
                augmented,
                self._means(self.at_asked, everything, users)[:, : len(NAMES)],
                _with_f1(self._user_means(self.ceiling, everything, users)),
                self._user_means(self.values, self.valid, users)[:, ERROR_COLUMNS],
                self._chance(users),
            ]
        )

    def _chance(self, users: int) -> Array:
        """Return the columns of the `chance` parts: what random answers have, and the variances of
        means of draws."""
        columns = 2 + len(GAINS) + 4 * len(TRANSFER)
        result = np.full((users, columns), np.nan)
        steps = np.array([step for step, urn in enumerate(self.urns) if urn], dtype=np.int_)
        if not steps.size:
            return result
        steps = steps[np.argsort(self.user[steps], kind="stable")]
        of_step = [urn for urn in map(self.urns.__getitem__, steps) if urn]
        whose, first_steps = np.unique(self.user[steps], return_index=True)
        step_id = self.step_id[steps]

        def means(values: Array, chosen: Mask) -> Array:
            """Means within each user over chosen steps. What is not defined is so in all draws."""
            defined = ~np.isnan(values[:1]) & chosen[:, None]
            sums = np.add.reduceat(np.where(defined, values, 0.0), first_steps, axis=1)
            counts = np.add.reduceat(defined.astype(np.float64), first_steps, axis=1)
            return sums / np.where(counts, counts, np.nan)

        everything = np.ones(len(steps), dtype=np.bool_)
        values = drawn(of_step)
        of_steps = np.concatenate(
            [values[..., [NOVELTY, STABILITY]], _f1(values)[..., None]], axis=-1
        )
        sides = (means(of_steps, side) for side in (step_id == 1, step_id >= 2))
        cold, augmented = (np.stack([_f1(side, 0, 1), side[..., 2]], axis=-1) for side in sides)
        f1 = _f1(means(values, everything))[..., None]
        of_draws = np.concatenate([f1, augmented - cold, cold, augmented], axis=-1)
        noise = of_draws[..., : 1 + len(TRANSFER)].var(axis=0, ddof=1) / DRAWS
        exact = means(expected(of_step)[None], everything)[0]
        result[whose] = np.hstack([exact, of_draws.mean(axis=0), noise])
        return result

    def _sides(self, values: Array, chosen: Mask, users: int) -> tuple[Array, Array]:
        """Means over the chosen steps of cold start, and over those after it, as `_means` each."""
        cold = self._means(values, chosen & (self.step_id == 1), users)
        return cold, self._means(values, chosen & (self.step_id >= 2), users)

    def _means(self, values: Array, chosen: Mask, users: int) -> Array:
        """Means within each user over the chosen steps: the columns, F1^NS of their means, and the
        mean F1^NS of each step."""
        means = self._user_means(_with_f1(values), chosen, users)
        return np.column_stack([_with_f1(means[:, :-1]), means[:, -1]])

    def curves(self, last: Sequence[int], user_of: Sequence[int]) -> Curves:
        """`last` is each user's last step_id, `user_of` the user of each record."""
        whose = [
            (user_of[record], step)
            for record, step in zip(self.user.tolist(), self.step_id.tolist(), strict=True)
        ]
        steps = {one: place for place, one in enumerate(dict.fromkeys(whose))}
        values = _with_f1(self.values)
        if len(steps) < len(whose):
            values = _means_by(np.array([steps[one] for one in whose]), values, len(steps))
        keys = [(last[user], step_id) for user, step_id in steps]
        places = {key: place for place, key in enumerate(dict.fromkeys(keys))}
        place = np.array([places[key] for key in keys], dtype=np.int_)
        sums = _sums_by(place, _point_columns(values), len(places))[0].astype(np.int64).tolist()
        users = np.bincount(place, minlength=len(places)).tolist()
        return {key: CurvePoint(users[row], tuple(sums[row])) for key, row in places.items()}

    def _user_means(self, values: Array, chosen: Mask, users: int) -> Array:
        """Mean within each user over the chosen steps: users x columns, NaN where nothing is
        defined."""
        return _means_by(self.user[chosen], values[chosen], users)


def _matrix(values: Sequence[Mapping[str, float | None]], names: Sequence[str]) -> Array:
    """Return steps x names, NaN where undefined. Raise `ValueError` for what is no fraction."""
    rows = map(operator.itemgetter(*names), values)
    fractions = [np.nan if value is None else value for row in rows for value in row]
    found = np.frombuffer(array("d", fractions)).reshape(-1, len(names))  # numpy reads lists slowly
    if (np.abs(found) > 1).any():
        raise ValueError("a metric beyond 1")
    return found


def _sums_by(place: NDArray[np.int_], values: Array, places: int) -> tuple[Array, Array]:
    """Sum and number of the defined values by place: each places x columns."""
    defined = ~np.isnan(values)
    columns = values.shape[1]
    cell = (place[:, None] * columns + np.arange(columns)).ravel()

    def total(weights: Array) -> Array:
        totals = np.bincount(cell, weights.ravel(), minlength=places * columns)
        return np.asarray(totals, dtype=np.float64).reshape(places, columns)

    return total(np.where(defined, values, 0.0)), total(defined.astype(np.float64))


def _means_by(place: NDArray[np.int_], values: Array, places: int) -> Array:
    """Mean of the defined values by place: places x columns, NaN where nothing is defined."""
    sums, counts = _sums_by(place, values, places)
    means: Array = sums / np.where(counts, counts, np.nan)
    return means


def _with_f1(values: Array) -> Array:
    """Return the columns, and after them F1^NS."""
    return np.column_stack([values, _f1(values)])


def _f1(values: Array, novelty: int = NOVELTY, stability: int = STABILITY) -> Array:
    """F1^NS of two columns, novelty and stability: 0 where both are 0, NaN where either is."""
    a, b = values[..., novelty], values[..., stability]
    total = a + b
    f1: Array = 2 * a * b / np.where(total == 0, 1.0, total)
    return f1


def _release_code(overall: Array) -> Array:
    """F1^NS as the authors' released code has it: left out where both means are 0. One column."""
    novelty, stability, f1 = overall[:, NOVELTY], overall[:, STABILITY], overall[:, NAMES.index(F1)]
    kept: Array = np.where((novelty == 0) & (stability == 0), np.nan, f1)[:, None]
    return kept
