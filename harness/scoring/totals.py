"""Scores of some users: sums and counts, which merge by `+`, and the rows of single users while
they are few."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from harness.scoring.bootstrap import Array

Counts = NDArray[np.int64]


class Summed(Protocol):
    def __add__(self, other: Self, /) -> Self: ...


@dataclass(
    frozen=True,
    slots=True,
    eq=False,
)
class Blocks:
    """Rows of blocks of users, in order: `count` of them, dropped as soon as these are more than
    `limit`."""

    limit: int
    count: int
    arrays: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        # Only so can a field of a frozen class be set.
        if self.is_dropped:
            object.__setattr__(self, "arrays", ())

    @property
    def is_dropped(self) -> bool:
        return self.count > self.limit

    def __add__(self, following: Blocks) -> Blocks:
        limit = min(self.limit, following.limit)
        return Blocks(limit, self.count + following.count, self.arrays + following.arrays)


@dataclass(
    frozen=True,
    slots=True,
    eq=False,
)
class Totals:
    """Scores of `users` with so many `plays`: records, one for each repeat of a user.

    `sums` has an array of K totals for each block of users. `tally` is the benchmark's own; None if
    it has none, or once it is dropped. `rows` has the users' rows; `answers` has, of blocks with
    repeats, the rows of all records and how many each user has.

    Only means have `spread`, users by metric and bin of their value, and `played`, the sums and
    counts of the metrics' values over records (2 x M).
    """

    users: int
    plays: int
    outcomes: Counter[str]
    repairs: Counter[str]
    breaches: Counter[str]
    usage: Counter[str]
    sums: tuple[Array, ...]
    tally: Summed | None
    rows: Blocks
    answers: Blocks
    spread: Counts
    played: Array

    @property
    def total(self) -> Array:
        """1 x K."""
        total: Array = np.sum(self.sums, axis=0, keepdims=True)
        return total
