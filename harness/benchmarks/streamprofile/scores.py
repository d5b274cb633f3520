"""Compute what users of StreamProfileBench add to its scores: values, and a tally. Source:
docs/design.md, section 8.

Each user becomes one row of columns (a part of its steps, a metric); means are taken over rows. A
tally holds the learning curves and counts. Neither depends on how users were grouped.
"""

from __future__ import annotations

import operator
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from harness.benchmark import VALID
from harness.benchmarks.records import count, user_starts
from harness.benchmarks.streamprofile.chance import DRAWS, Urn, drawn, expected
from harness.benchmarks.streamprofile.metrics import (
    ERRORS,
    F1,
    GAINS,
    METRICS,
    NAMES,
)
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

COLUMNS = tuple((section, name) for section, names in PARTS.items() for name in names)
INDEX = {column: index for index, column in enumerate(COLUMNS)}
PRECISION = GAINS.index("Precision")
NOVELTY = GAINS.index("Recall_Novelty")
STABILITY = GAINS.index("Recall_Stability")
NAME_COLUMNS = slice(len(NAMES))
ERROR_COLUMNS = slice(len(GAINS), len(METRICS))
UNITS = 64
"""Sums of curves are whole numbers of 2**-64."""
HALF = 2.0 ** (UNITS // 2)

Mask = NDArray[np.bool_]
Numbers = NDArray[np.int_]
Key = TypeVar("Key")


class MetricSums(NamedTuple):
    """Exact sums of a metric's values over users: of the values, their squares, cubes and fourth
    powers (in 2**-64), and how many values are there, are 0 and are 1."""

    total: int
    squares: int
    cubes: int
    fourths: int
    defined: int
    zeros: int
    ones: int


class CurvePoint(NamedTuple):
    """One step_id: `users` with a scored step, and `sums` over them of `_point_columns`.

    They are whole numbers, which add up to the same in any grouping.
    """

    users: int
    sums: tuple[int, ...]

    def plus(self, point: CurvePoint) -> CurvePoint:
        sums = map(operator.add, self.sums, point.sums)
        return CurvePoint(self.users + point.users, tuple(sums))

    def metric_sums(self) -> Iterator[MetricSums]:
        """Yield the sums of each name of `NAMES`."""
        for column in range(len(NAMES)):
            sums = self.sums[column :: len(NAMES)]
            powers = []
            for upper, lower in zip(sums[:4], sums[4:8], strict=True):
                powers.append((upper << UNITS // 2) + lower)
            yield MetricSums(*powers, *sums[8:])

    def means(self) -> tuple[float | None, ...]:
        return tuple(map(_mean, self.metric_sums()))

    def intervals(self) -> tuple[tuple[float, float, bool] | None, ...]:
        """Return the 95 % intervals of the means over users, and whether each is approximate; None
        if there are too few users, or all are alike. That other values than 0 and 1 are tied is not
        looked at."""
        return tuple(map(_interval, self.metric_sums()))


def _point_columns(values: Array) -> Array:
    """Return what steps add to points: the upper and lower halves of their values, squares, cubes
    and fourth powers, cut to whole numbers of 2**-64; and whether a value is there, is 0, is 1.

    As whole numbers below 2**33, 2**20 of them add up exactly.
    """
    powers = np.hstack([values**power for power in (1, 2, 3, 4)]) * HALF
    upper = np.floor(powers)
    lower = np.floor((powers - upper) * HALF)
    return np.hstack([upper, lower, ~np.isnan(values), values == 0, values == 1])


def _mean(sums: MetricSums) -> float | None:
    if not sums.defined:
        return None
    return sums.total / (sums.defined << UNITS)


def _interval(sums: MetricSums) -> tuple[float, float, bool] | None:
    total, count = sums.total, sums.defined
    if not count:
        return None

    # Whole numbers, in 2**-64 to the power of 2, 3 and 4: no digit is lost where values are next to
    # equal.
    squares = sums.squares << UNITS
    cubes = sums.cubes << (2 * UNITS)
    fourths = sums.fourths << (3 * UNITS)
    # Squares are rounded down, so that the difference may be below 0 where all values are equal.
    second = max(0, count * squares - total**2)
    third = count**2 * cubes - 3 * count * total * squares + 2 * total**3
    fourth = (
        count**3 * fourths
        - 4 * count**2 * total * cubes
        + 6 * count * total**2 * squares
        - 3 * total**4
    )
    moments = moments_of_sums(
        count,
        count - max(1, sums.zeros, sums.ones),
        second / (count << (2 * UNITS)),
        third / (count**2 << (3 * UNITS)),
        fourth / (count**3 << (4 * UNITS)),
    )
    ends = interval(total / (count << UNITS), [moments], (0.0, 1.0))
    return with_mark(ends, [moments])


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

    def __add__(self, tally: StepTally) -> StepTally:
        """Return the tally of both; associative to the last bit."""
        curves = self.curves.copy()
        for key, point in tally.curves.items():
            if key in curves:
                point = curves[key].plus(point)
            curves[key] = point
        return StepTally(curves, self.reached + tally.reached, self.counts + tally.counts)


def tallied(records: Sequence[JSON]) -> tuple[Array, StepTally]:
    """Return the values of each record of up to 256 users (records x COLUMNS, NaN if undefined) and
    their tally.

    The curves are of users: a step's values are the means over its user's repeats. Which values are
    defined depends on the task alone, so a user has the same metrics in every run; but those of the
    parts `valid`, `cut` (errors) and `fwt_cut` on the answers, too.
    """
    table = _StepTable.from_records(records)
    values = table.rows()
    starts = user_starts(records)
    repeats = np.diff([*starts, len(records)])
    user_of_record = np.repeat(np.arange(len(starts)), repeats)
    last_steps = []
    for start in starts:
        step_ids = [step["step_id"] for step in records[start]["steps"]]
        last_steps.append(max(step_ids, default=0))

    # A user without a scored step reaches nothing, and counts apart.
    scored_users = np.unique(user_of_record[table.record]).tolist()
    counts = _counts(records, values)
    counts["scored_steps"] += len(table.record)
    counts["users_without_scored_step"] += len(starts) - len(scored_users)
    curves = table.curves(last_steps, user_of_record)
    reached = Counter(map(last_steps.__getitem__, scored_users))
    return values, StepTally(curves, reached, counts)


def rows(records: Sequence[JSON]) -> Array:
    """Return the values that `tallied` returns."""
    return _StepTable.from_records(records).rows()


def _counts(records: Sequence[JSON], values: Array) -> Counter[str]:
    """Count over every step, scored or not."""
    counts = Counter[str]()
    for record in records:
        for step in record["steps"]:
            counts["repaired_steps"] += bool(step["repairs"])
            counts["out_of_pool_steps"] += bool(step["out_of_pool"])
            counts["out_of_pool_tags"] += count(step["out_of_pool"])
            if step["outcome"] == VALID:
                extra = len(step["prediction"]) - step["asked"]
                counts["more_tags"] += extra > 0
                counts["fewer_tags"] += extra < 0

    # The released code leaves out users with both means 0: undefined there, 0 here.
    undefined = np.isnan(values).sum(axis=0)
    left_out = undefined[INDEX["release", F1]] - undefined[INDEX["all", F1]]
    counts["release_code_left_out"] = int(left_out)
    return counts


@dataclass(frozen=True, slots=True, eq=False)
class _StepTable:
    """The scored steps of a shard of `records` records, a row each: the number of its record
    (ascending), and its values (NaN undefined).

    `follows_rules` marks the answers that follow the task's rules. `filled` is how many tags a cut
    answer has, as a share of those asked for. `urns` are those of the records that have them, else
    None.
    """

    records: int
    record: Numbers
    step_id: Numbers
    valid: Mask
    follows_rules: Mask
    filled: Array
    values: Array
    at_asked: Array
    ceiling: Array
    urns: Sequence[Urn | None]

    @classmethod
    def from_records(cls, records: Sequence[JSON]) -> _StepTable:
        steps: list[JSON] = []
        record_numbers = []
        follows_rules = []
        filled = []
        at_asked = []
        for number, record in enumerate(records):
            for step in record["steps"]:
                if not step["metrics"]:
                    continue

                predicted = len(step["prediction"])
                steps.append(step)
                record_numbers.append(number)
                follows_rules.append(predicted >= step["asked"] and not step["out_of_pool"])
                filled.append(min(1.0, predicted / step["asked"]))
                at_asked.append(step.get("metrics_at_asked") or step["metrics"])

        return cls(
            records=len(records),
            record=np.array(record_numbers, dtype=np.int_),
            step_id=np.array([step["step_id"] for step in steps], dtype=np.int_),
            valid=np.array([step["outcome"] == VALID for step in steps], dtype=np.bool_),
            follows_rules=np.array(follows_rules, dtype=np.bool_),
            filled=np.array(filled),
            values=_matrix([step["metrics"] for step in steps], METRICS),
            at_asked=_matrix(at_asked, METRICS),
            ceiling=_matrix([step["ceiling"] for step in steps], GAINS),
            urns=[step.get("urn") for step in steps],
        )

    def rows(self) -> Array:
        """Return the values of each record: records x COLUMNS."""
        all_steps = np.ones(len(self.record), dtype=np.bool_)
        overall = self._means(self.values, all_steps)[:, NAME_COLUMNS]
        cold, augmented = self._sides(self.values, all_steps)
        cut = self.at_asked.copy()
        # Otherwise one sure tag would have a higher Precision than a full answer.
        cut[:, PRECISION] *= self.filled
        comparable = self._means(cut, all_steps)[:, NAME_COLUMNS]
        of_rules = self._means(cut, self.follows_rules)
        # An empty answer makes no errors, so errors are compared over answers that follow the
        # rules.
        comparable[:, ERROR_COLUMNS] = of_rules[:, ERROR_COLUMNS]
        cut_cold, cut_augmented = self._sides(cut, self.follows_rules)
        # In the order of PARTS.
        columns = [
            overall,
            _release_code(overall),
            augmented - cold,
            comparable,
            _release_code(comparable),
            np.delete(cut_augmented - cut_cold, NAMES.index(F1), axis=1),
            cold,
            augmented,
            self._means(self.at_asked, all_steps)[:, NAME_COLUMNS],
            _with_f1(self._record_means(self.ceiling, all_steps)),
            self._record_means(self.values, self.valid)[:, ERROR_COLUMNS],
            self._chance(),
        ]
        return np.hstack(columns)

    def _chance(self) -> Array:
        """Return the columns of the `chance` parts: what random answers have, and the variances of
        means of draws. NaN for records without urns."""
        columns = len(COLUMNS) - INDEX["chance", GAINS[0]]
        result = np.full((self.records, columns), np.nan)
        steps = np.flatnonzero([urn is not None for urn in self.urns])
        if not steps.size:
            return result

        urns = [*filter(None, self.urns)]
        step_ids = self.step_id[steps]
        chosen_records, starts = np.unique(self.record[steps], return_index=True)
        all_steps = np.ones(len(steps), dtype=np.bool_)
        values = drawn(urns)
        novelty = values[..., NOVELTY]
        stability = values[..., STABILITY]
        step_values = np.stack([novelty, stability, _f1(novelty, stability)], axis=-1)
        cold = _transfer_side(step_values, step_ids == 1, starts)
        augmented = _transfer_side(step_values, step_ids >= 2, starts)
        user_f1 = _transfer_side(step_values, all_steps, starts)[..., :1]
        draws = np.concatenate([user_f1, augmented - cold, cold, augmented], axis=-1)
        # Of F1 and both columns of `fwt`: the variance of a mean of draws.
        noise = draws[..., : 1 + len(TRANSFER)].var(axis=0, ddof=1) / DRAWS
        exact = _run_means(expected(urns)[None], all_steps, starts)[0]
        result[chosen_records] = np.hstack([exact, draws.mean(axis=0), noise])
        return result

    def _sides(self, values: Array, chosen: Mask) -> tuple[Array, Array]:
        """Return means over the chosen steps of cold start, and over those after it, as `_means`
        each."""
        cold = self._means(values, chosen & (self.step_id == 1))
        return cold, self._means(values, chosen & (self.step_id >= 2))

    def _means(self, values: Array, chosen: Mask) -> Array:
        """Return means within each record over the chosen steps: the columns, F1^NS of their means,
        and the mean F1^NS of each step."""
        means = self._record_means(_with_f1(values), chosen)
        return np.column_stack([_with_f1(means[:, :-1]), means[:, -1]])

    def curves(self, last_steps: Sequence[int], user_of_record: Numbers) -> Curves:
        """Return the points of users' curves. `last_steps` has each user's last step_id."""
        users = user_of_record[self.record].tolist()
        steps, step_of_row = _number(zip(users, self.step_id.tolist(), strict=True))
        values = _with_f1(self.values)
        if len(steps) < len(values):  # there are repeats
            values = _means_by(step_of_row, values, len(steps))

        keys = [(last_steps[user], step_id) for user, step_id in steps]
        points, point_of_step = _number(keys)
        sums, _ = _sums_by(point_of_step, _point_columns(values), len(points))
        users_of_point = np.bincount(point_of_step, minlength=len(points)).tolist()
        # As Python's whole numbers, which have no limit.
        sums_of_point = map(tuple, sums.astype(np.int64).tolist())
        return dict(zip(points, map(CurvePoint, users_of_point, sums_of_point), strict=True))

    def _record_means(self, values: Array, chosen: Mask) -> Array:
        """Return the mean within each record over the chosen steps: records x columns, NaN where
        nothing is defined."""
        return _means_by(self.record[chosen], values[chosen], self.records)


def _number(keys: Iterable[Key]) -> tuple[dict[Key, int], Numbers]:
    """Return the number of each different key, in the order of keys, and the numbers of `keys`."""
    numbers: dict[Key, int] = {}
    number_of_each = [numbers.setdefault(key, len(numbers)) for key in keys]
    return numbers, np.array(number_of_each, dtype=np.int_)


def _matrix(values: Sequence[Mapping[str, float | None]], names: Sequence[str]) -> Array:
    """Return steps x names, NaN where undefined. Raise `ValueError` for what is no fraction."""
    cells = chain.from_iterable(map(operator.itemgetter(*names), values))
    fractions = [np.nan if value is None else value for value in cells]
    # numpy reads lists slowly, and buffers fast.
    matrix = np.frombuffer(array("d", fractions)).reshape(-1, len(names))
    # A record that somebody edited would spoil sums that are exact below 1 only.
    if (np.abs(matrix) > 1).any():
        raise ValueError("a metric beyond 1")
    return matrix


def _transfer_side(values: Array, chosen: Mask, starts: Numbers) -> Array:
    """Return the columns of TRANSFER over chosen steps: draws x records x 2. `values` are novelty,
    stability and F1^NS of each step."""
    means = _run_means(values, chosen, starts)
    return np.stack([_f1(means[..., 0], means[..., 1]), means[..., 2]], axis=-1)


def _run_means(values: Array, chosen: Mask, starts: Numbers) -> Array:
    """Return means over the chosen steps of each record: draws x steps x columns -> draws x records
    x columns. `starts` has each record's first step."""
    # What is not defined is so in all draws.
    defined = ~np.isnan(values[:1]) & chosen[:, None]
    sums = np.add.reduceat(np.where(defined, values, 0.0), starts, axis=1)
    counts = np.add.reduceat(defined.astype(np.float64), starts, axis=1)
    return _divide(sums, counts)


def _sums_by(place: Numbers, values: Array, places: int) -> tuple[Array, Array]:
    """Return the sum and number of the defined values by place: each places x columns."""
    defined = ~np.isnan(values)
    columns = values.shape[1]
    # A number for each place and column: one call adds up all of them, each in the order of rows.
    cells = (place[:, None] * columns + np.arange(columns)).ravel()

    def total(weights: Array) -> Array:
        totals = np.bincount(cells, weights.ravel(), minlength=places * columns)
        return np.asarray(totals, dtype=np.float64).reshape(places, columns)

    return total(np.where(defined, values, 0.0)), total(defined.astype(np.float64))


def _means_by(place: Numbers, values: Array, places: int) -> Array:
    """Return the mean of the defined values by place: places x columns, NaN where nothing is
    defined."""
    return _divide(*_sums_by(place, values, places))


def _divide(sums: Array, counts: Array) -> Array:
    means: Array = sums / np.where(counts, counts, np.nan)
    return means


def _with_f1(values: Array) -> Array:
    """Return the columns, and after them F1^NS."""
    return np.column_stack([values, _f1(values[:, NOVELTY], values[:, STABILITY])])


def _f1(novelty: Array, stability: Array) -> Array:
    """Return F1^NS: 0 where novelty and stability are 0, NaN where either is."""
    total = novelty + stability
    f1: Array = 2 * novelty * stability / np.where(total == 0, 1.0, total)
    return f1


def _release_code(overall: Array) -> Array:
    """Return F1^NS as the authors' released code has it: left out where both means are 0. One
    column."""
    f1 = overall[:, NAMES.index(F1)]
    both_zero = (overall[:, NOVELTY] == 0) & (overall[:, STABILITY] == 0)
    column: Array = np.where(both_zero, np.nan, f1)[:, None]
    return column
