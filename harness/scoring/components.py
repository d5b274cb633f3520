"""Variance components of users that were played several times: what differs between users, and
within a user.

One-way random effects, method of moments (analysis of variance) for unequal numbers of answers:
Searle, Casella & McCulloch, Variance Components, 1992, chapter 3; docs/statistics.md, "Repeats".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.scoring.bootstrap import Array


@dataclass(frozen=True, slots=True)
class Components:
    """Variances in the square of the metric's unit, of `number` users with `repeats` answers each
    (harmonic mean)."""

    between: float
    within: float
    number: int
    repeats: float

    def error(self, factor: float = 1.0) -> float:
        """Return the standard error of the mean over users with `factor` times as many answers;
        infinity is allowed."""
        of_user = self.between + self.within / (self.repeats * factor)
        return math.sqrt(of_user / self.number)

    @property
    def share(self) -> float | None:
        """Return the share of the variance of a user's mean that its answers make; None if all are
        alike."""
        answers = self.within / self.repeats
        total = self.between + answers
        return answers / total if total > 0 else None


def components(values: Array, users: NDArray[np.int_]) -> Components | None:
    """Return the components of answers' values (NaN if undefined); `users` numbers the user of
    each, from 0.

    A variance between users that is estimated below 0 is 0. None for fewer than two users, or none
    with two answers.
    """
    # Only users with a defined answer have one: they are numbered again.
    defined = ~np.isnan(values)
    values = values[defined]
    _, user, answers = np.unique(users[defined], return_inverse=True, return_counts=True)
    total = len(values)
    number = len(answers)
    if number < 2 or total == number:
        return None

    # The names of docs/statistics.md, "Repeats".
    means = np.bincount(user, values) / answers
    squares_within = (values - means[user]) ** 2
    squares_among = answers * (means - values.mean()) ** 2
    within = float(squares_within.sum()) / (total - number)
    among = float(squares_among.sum()) / (number - 1)
    n_0 = (total - float((answers**2).sum()) / total) / (number - 1)
    between = max(0.0, (among - within) / n_0)
    repeats = number / float((1 / answers).sum())

    return Components(between, within, number, repeats)
