"""Scores of users that merge. Source: docs/design.md, section 8.

Each user becomes one row of columns (a part of its steps, a metric); means are taken over rows. Rows are kept
while they are few, for the plain bootstrap; beyond that only sums and counts of each shard are, so that a
million users need little memory. Merged scores do not depend on how shards were grouped.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.benchmarks.records import count, text
from harness.benchmarks.spent import counted
from harness.benchmarks.streamprofile.metrics import ERRORS, F1, GAINS, METRICS, NAMES
from harness.model import JSON, Record
from harness.scoring.bootstrap import LEVEL, Array, interval, resample_blocks, resample_users
from harness.scoring.libraries import special

PARTS: dict[str, tuple[str, ...]] = {
    "all": NAMES,
    "cold": NAMES,
    "augmented": NAMES,
    "fwt": NAMES,
    "at_asked": NAMES,
    "ceiling": (*GAINS, F1),
    "valid": ERRORS,
    "release": (F1,),
}
"""Part of the scores -> its metrics. `fwt` is augmented minus cold within a user; `valid` is over valid answers."""

COLUMNS = tuple((part, name) for part, names in PARTS.items() for name in names)
INDEX = {column: index for index, column in enumerate(COLUMNS)}
NOVELTY, STABILITY = GAINS.index("Recall_Novelty"), GAINS.index("Recall_Stability")
UNITS = 64
"""Curve sums are whole numbers of 2**-64, since those add up to the same total in any grouping."""

SPREAD = ("Recall", F1)
"""Metrics of which the distribution over users is kept, in `BINS` equal bins of [0, 1], the last with its end."""
BINS = 20

Mask = NDArray[np.bool_]


class Mean(NamedTuple):
    """A mean over `users`; None where there is none."""

    value: float | None
    users: int


class CurvePoint(NamedTuple):
    """One step_id: users with a scored step, and per name of `NAMES` the sum of values, that of their squares (both
    in 2**-64) and their count."""

    users: int
    sums: tuple[int, ...]
    squares: tuple[int, ...]
    counts: tuple[int, ...]

    def plus(self, other: CurvePoint) -> CurvePoint:
        return CurvePoint(
            self.users + other.users,
            tuple(map(int.__add__, self.sums, other.sums)),
            tuple(map(int.__add__, self.squares, other.squares)),
            tuple(map(int.__add__, self.counts, other.counts)),
        )

    def means(self) -> tuple[float | None, ...]:
        return tuple(
            total / (count << UNITS) if count else None for total, count in zip(self.sums, self.counts, strict=True)
        )

    def intervals(self) -> tuple[tuple[float, float] | None, ...]:
        """95 % intervals of the means over users, by Student's t, within [0, 1]; None for fewer than two users."""
        return tuple(map(_t_interval, self.sums, self.squares, self.counts))


def _t_interval(total: int, squares: int, count: int) -> tuple[float, float] | None:
    if count < 2:
        return None
    mean = total / (count << UNITS)
    spread = max(0, ((count * squares) << UNITS) - total**2)  # of equal values the squares may be rounded down
    error = math.sqrt(spread / ((count**2 * (count - 1)) << (2 * UNITS)))
    reach = _quantile_of_t(count - 1) * error
    return max(0.0, mean - reach), min(1.0, mean + reach)


@cache
def _quantile_of_t(freedom: int) -> float:
    return float(special().stdtrit(freedom, (1 + LEVEL) / 2))


Curves = dict[tuple[int, int], CurvePoint]
"""(last step_id of the users, step_id) -> their point, so that the curve of any cohort can be made."""


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """The users of one shard: `rows` is users x COLUMNS (NaN undefined), None once dropped; sums, counts by column."""

    users: int
    rows: Array | None
    sums: Array
    counts: Array

    def without_rows(self) -> Block:
        return self if self.rows is None else Block(self.users, None, self.sums, self.counts)


@dataclass(frozen=True, slots=True, eq=False)
class ShardScores:
    """Scores of some users. `reached` counts users with a scored step by their last step_id, `spread` users by the
    metrics of `SPREAD` and the bin of their value.

    `counts` holds the tallies that have one number each, `invalid` and `repaired` those by kind.
    """

    blocks: tuple[Block, ...]
    curves: Curves
    reached: Counter[int]
    spread: Counter[tuple[str, int]]
    counts: Counter[str]
    invalid: Counter[str]
    repaired: Counter[str]

    @property
    def rows(self) -> Array | None:
        """All users' rows in order; None once any are dropped."""
        kept = [block.rows for block in self.blocks if block.rows is not None]
        return np.concatenate([np.empty((0, len(COLUMNS))), *kept]) if len(kept) == len(self.blocks) else None

    def means(self) -> dict[tuple[str, str], Mean]:
        """(part, metric) -> mean over users."""
        sums = np.sum([block.sums for block in self.blocks], axis=0) if self.blocks else np.zeros(len(COLUMNS))
        counts = sum((block.counts for block in self.blocks), start=np.zeros(len(COLUMNS)))
        return {
            column: Mean(float(sums[index] / counts[index]) if counts[index] else None, int(counts[index]))
            for column, index in INDEX.items()
        }

    def within(self, rows_limit: int) -> ShardScores:
        """The same, without rows where there are more users than the limit."""
        if self.counts["users"] <= rows_limit:
            return self
        return replace(self, blocks=tuple(block.without_rows() for block in self.blocks))

    def condensed(self) -> ShardScores:
        """The same means, as one block without rows: no interval can be made of it."""
        if not self.blocks:
            return self
        sums, counts = (sum(getattr(block, name) for block in self.blocks) for name in ("sums", "counts"))
        return replace(self, blocks=(Block(sum(block.users for block in self.blocks), None, sums, counts),))

    def intervals(self, rng: np.random.Generator) -> Intervals:
        """Resampled means of every column, jointly: of users while their rows are kept, else of blocks."""
        rows = self.rows
        if rows is not None:
            return Intervals("plain", resample_users(rows, rng), (~np.isnan(rows)).sum(axis=0))
        sums, counts = (np.array([getattr(block, name) for block in self.blocks]) for name in ("sums", "counts"))
        return Intervals("poisson_by_block", resample_blocks(sums, counts, rng), (counts > 0).sum(axis=0))


@dataclass(frozen=True, slots=True, eq=False)
class Intervals:
    """`means` is resamples x COLUMNS; `units` the number of users or blocks with a value, by column."""

    method: str
    means: Array
    units: NDArray[np.int_]

    def of(self, part: str, name: str) -> tuple[float, float] | None:
        index = INDEX[part, name]
        return interval(self.means[:, index], int(self.units[index]))

    def of_difference(self, part: str, minus: str, name: str) -> tuple[float, float] | None:
        a, b = INDEX[part, name], INDEX[minus, name]
        return interval(self.means[:, a] - self.means[:, b], int(min(self.units[a], self.units[b])))


def score(shard: Sequence[Record]) -> ShardScores:
    """The scores of up to 256 users."""
    steps = [(user, step) for user, record in enumerate(shard) for step in record.data["steps"] if step["metrics"]]
    scored = {user for user, _ in steps}
    last = [max((step["step_id"] for step in record.data["steps"]), default=0) for record in shard]
    table = _StepTable.of(steps)
    rows = table.rows(len(shard))
    tallies = _Tallies.of(shard, rows, scored_users=len(scored))
    block = Block(len(shard), rows, np.nansum(rows, axis=0), (~np.isnan(rows)).sum(axis=0).astype(np.float64))
    return ShardScores(
        blocks=(block,) if shard else (),
        curves=table.curves(last),
        reached=Counter(last[user] for user in scored),
        spread=_spread(rows),
        counts=tallies.counts,
        invalid=tallies.invalid,
        repaired=tallies.repaired,
    )


MACRO = [INDEX["all", name] for name in NAMES]


def statistics(records: Sequence[JSON]) -> Array:
    """What each user adds to the macro averages: its values (0 for undefined ones), then whether each is defined.

    That depends on the task alone, so a user has the same metrics in every run.
    """
    blocks = score([Record(str(data["user_id"]), data) for data in records]).blocks
    found = [block.rows for block in blocks if block.rows is not None]
    rows = np.concatenate([np.empty((0, len(COLUMNS))), *found])[:, MACRO]
    defined = ~np.isnan(rows)
    return np.hstack([np.where(defined, rows, 0.0), defined])


def merge(a: ShardScores, b: ShardScores) -> ShardScores:
    """Both together, users in the order of the arguments; associative to the last bit."""
    shared = {key: a.curves[key].plus(point) for key, point in b.curves.items() if key in a.curves}
    return ShardScores(
        blocks=a.blocks + b.blocks,
        curves={**a.curves, **b.curves, **shared},
        reached=a.reached + b.reached,
        spread=a.spread + b.spread,
        counts=a.counts + b.counts,
        invalid=a.invalid + b.invalid,
        repaired=a.repaired + b.repaired,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _StepTable:
    """The scored steps of a shard, a row each: whose it is, and its values (NaN undefined)."""

    user: NDArray[np.int_]
    step_id: NDArray[np.int_]
    valid: Mask
    values: Array
    at_asked: Array
    ceiling: Array

    @classmethod
    def of(cls, steps: Sequence[tuple[int, JSON]]) -> _StepTable:
        return cls(
            user=np.array([user for user, _ in steps], dtype=np.int_),
            step_id=np.array([step["step_id"] for _, step in steps], dtype=np.int_),
            valid=np.array([step["outcome"] == "valid" for _, step in steps], dtype=np.bool_),
            values=_matrix([step["metrics"] for _, step in steps], METRICS),
            at_asked=_matrix([step.get("metrics_at_asked") or step["metrics"] for _, step in steps], METRICS),
            ceiling=_matrix([step["ceiling"] for _, step in steps], GAINS),
        )

    def rows(self, users: int) -> Array:
        """Each user's row: users x COLUMNS."""
        everything = np.ones(len(self.user), dtype=np.bool_)
        first = self.step_id == 1
        overall = _with_f1(self._user_means(self.values, everything, users))
        cold = _with_f1(self._user_means(self.values, first, users))
        augmented = _with_f1(self._user_means(self.values, self.step_id >= 2, users))
        return np.hstack(
            [
                overall,
                cold,
                augmented,
                augmented - cold,
                _with_f1(self._user_means(self.at_asked, everything, users)),
                _with_f1(self._user_means(self.ceiling, everything, users)),
                self._user_means(self.values, self.valid, users)[:, len(GAINS) :],
                _release_code(overall),
            ]
        )

    def curves(self, last: Sequence[int]) -> Curves:
        """`last` is each user's last step_id."""
        keys = [(last[user], step_id) for user, step_id in zip(self.user.tolist(), self.step_id.tolist(), strict=True)]
        places = {key: place for place, key in enumerate(dict.fromkeys(keys))}
        place = np.array([places[key] for key in keys], dtype=np.int_)
        values = _with_f1(self.values)
        sums, counts = _sums_by(place, values, len(places))
        squares, _ = _sums_by(place, values**2, len(places))
        users = np.bincount(place, minlength=len(places))
        return {
            key: CurvePoint(
                int(users[row]),
                tuple(int(math.ldexp(total, UNITS)) for total in sums[row].tolist()),
                tuple(int(math.ldexp(total, UNITS)) for total in squares[row].tolist()),
                tuple(int(count) for count in counts[row].tolist()),
            )
            for key, row in places.items()
        }

    def _user_means(self, values: Array, chosen: Mask, users: int) -> Array:
        """Mean within each user over the chosen steps: users x columns, NaN where nothing is defined."""
        sums, counts = _sums_by(self.user[chosen], values[chosen], users)
        means: Array = np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)
        return means


@dataclass(frozen=True, slots=True, eq=False)
class _Tallies:
    counts: Counter[str]
    invalid: Counter[str]
    repaired: Counter[str]

    @classmethod
    def of(cls, shard: Sequence[Record], rows: Array, scored_users: int) -> _Tallies:
        """`scored_users` is the number of users with a scored step. Every step counts here, scored or not."""
        steps = [step for record in shard for step in record.data["steps"]]
        valid = [step for step in steps if step["outcome"] == "valid"]
        longer = [len(step["prediction"]) - step["asked"] for step in valid]
        counts = Counter(
            users=len(shard),
            users_without_scored_step=len(shard) - scored_users,
            steps=len(steps),
            scored_steps=sum(1 for step in steps if step["metrics"]),
            valid_answers=len(valid),
            repaired_steps=sum(1 for step in steps if step["repairs"]),
            out_of_pool_steps=sum(1 for step in steps if step["out_of_pool"]),
            out_of_pool_tags=sum(count(step["out_of_pool"]) for step in steps),
            more_tags=sum(1 for extra in longer if extra > 0),
            fewer_tags=sum(1 for extra in longer if extra < 0),
            release_code_left_out=int(
                np.isnan(rows[:, INDEX["release", F1]]).sum() - np.isnan(rows[:, INDEX["all", F1]]).sum()
            ),
        )
        for record in shard:
            counts.update(counted(record.data))
        return cls(
            counts=+counts,
            invalid=Counter(text(step["outcome"]) for step in steps if step["outcome"] != "valid"),
            repaired=Counter(text(name) for step in steps for name in step["repairs"]),
        )


def _spread(rows: Array) -> Counter[tuple[str, int]]:
    found: Counter[tuple[str, int]] = Counter()
    for name in SPREAD:
        values = rows[:, INDEX["all", name]]
        bins = np.minimum(values[~np.isnan(values)] * BINS, BINS - 1).astype(np.int_)
        found.update((name, place) for place in bins.tolist())
    return found


def _matrix(values: Sequence[Mapping[str, float | None]], names: Sequence[str]) -> Array:
    """Steps x names, NaN where undefined. Raises `ValueError` for what is no fraction."""
    found = np.array(list(map(itemgetter(*names), values)), dtype=np.float64).reshape(-1, len(names))
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


def _with_f1(values: Array) -> Array:
    """The columns, and after them F1^NS of their novelty and stability: 0 where both are 0, NaN where either is."""
    novelty, stability = values[:, NOVELTY], values[:, STABILITY]
    total = novelty + stability
    f1 = 2 * novelty * stability / np.where(total == 0, 1.0, total)
    return np.column_stack([values, f1])


def _release_code(overall: Array) -> Array:
    """F1^NS as the authors' released code has it: left out where both means are 0. One column."""
    novelty, stability, f1 = overall[:, NOVELTY], overall[:, STABILITY], overall[:, NAMES.index(F1)]
    kept: Array = np.where((novelty == 0) & (stability == 0), np.nan, f1)[:, None]
    return kept
