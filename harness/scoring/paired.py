"""Differences between two runs on the same users: parts, permutation tests, and what holds of
several at once.

What a user adds to a figure is additive (sums and counts of a mean, counts of a histogram), so one
product, weights x contributions, gives every figure of every swap. Users are the units throughout,
with both of their sides: that makes the comparison paired, and clustered by user. Intervals are
those of `scoring/intervals.py`, of users' parts. Formulas and sources: docs/statistics.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.scoring.bootstrap import CELLS, LEVEL, Array, chunks
from harness.scoring.intervals import Figures
from harness.scoring.intervals import parts as parts_of
from harness.scoring.libraries import product, special

RESAMPLES = 10_000
"""Swaps, and draws for the critical value of several figures."""

ROUNDING = 1e-12
"""Sums in another order differ by less, for figures of the size of 1; larger ones are scaled down
to it."""

JACKKNIFE_GROUPS = 40
"""Groups of users of the jackknife that studentises a test."""

Mask = NDArray[np.bool_]
Columns = NDArray[np.intp]


@dataclass(
    frozen=True,
    slots=True,
    eq=False,
)
class Pair:
    """The contributions of the same users on both sides, users x K each, in the same order."""

    a: Array
    b: Array

    def figures(self, values: Figures) -> tuple[Array, Array]:
        """Return the figures of A and of B, NaN if there is no user."""
        total_a = self.a.sum(axis=0, keepdims=True)
        total_b = self.b.sum(axis=0, keepdims=True)
        return values(total_a)[0], values(total_b)[0]

    def difference(self, values: Figures) -> Array:
        """Return A minus B, by figure."""
        return np.subtract(*self.figures(values))


# The permutation test


class Swapped(NamedTuple):
    """Differences with the sides of users swapped: strata x permutations x M; `is_complete` if
    these are all there are. `variances` are estimates of those differences' variances, for a test
    that is studentised."""

    differences: Array
    variances: Array | None
    is_complete: bool


def swapped(
    pairs: Sequence[Pair],
    values: Figures,
    rng: np.random.Generator,
    permutations: int,
    columns: Sequence[Columns],
    among: int,
    *,
    studentised: bool = False,
) -> Swapped:
    """Return differences under random swaps of the two sides within users, of all strata at once,
    and if the test is to be `studentised` their variances.

    If the users are so few that there are no more than `permutations` ways to swap them, all of
    these are taken. `columns` are the places of each stratum's users among the `among` users of
    several comparisons: with the same generator and number, a user's sides are swapped in all of
    these together. Source: Fisher 1935, chapter 3; Pitman 1937.
    """
    is_complete = 2**among <= permutations
    sides = [(pair.a.sum(axis=0), pair.b.sum(axis=0), pair.b - pair.a) for pair in pairs]
    differences = []
    variances = []
    for flips in _flips(among, None if is_complete else permutations, rng):
        strata_differences = []
        strata_variances = []
        for pair, (a, b, b_minus_a), users in zip(pairs, sides, columns, strict=True):
            user_flips = np.take(flips, users, axis=1)
            # What a swap takes from one side, it gives to the other.
            moved = product(user_flips, b_minus_a)
            strata_differences.append(values(a + moved) - values(b - moved))
            if studentised:
                strata_variances.append(variance(pair, user_flips, values))

        differences.append(np.stack(strata_differences))
        if studentised:
            variances.append(np.stack(strata_variances))

    return Swapped(
        np.concatenate(differences, axis=1),
        np.concatenate(variances, axis=1) if studentised else None,
        is_complete,
    )


def variance(
    pair: Pair,
    flips: Array,
    values: Figures,
) -> Array:
    """Return the variance of the difference with users swapped as in each row of `flips`: rows x M.

    It is that of the grouped jackknife, of at most `JACKKNIFE_GROUPS` groups of users. Where a
    figure is undefined without a group, that group adds nothing: a test is as valid with any
    estimate that is made of the swapped data alone. Source: Quenouille 1956; Janssen 1997; Chung &
    Romano 2013.
    """
    group_count = min(JACKKNIFE_GROUPS, len(pair.a))
    groups = np.array_split(np.arange(len(pair.a)), group_count)
    sums_a = np.stack([pair.a[users].sum(axis=0) for users in groups])
    sums_b = np.stack([pair.b[users].sum(axis=0) for users in groups])
    b_minus_a = pair.b - pair.a
    at_once = max(1, CELLS // max(1, sums_a.size))
    variances = []
    for rows in np.split(flips, range(at_once, len(flips), at_once)):
        moved = np.stack([product(rows[:, users], b_minus_a[users]) for users in groups], axis=1)
        losses_a = _group_losses(sums_a + moved, values)
        losses_b = _group_losses(sums_b - moved, values)
        losses = np.nan_to_num(losses_a - losses_b)
        deviations = losses - losses.mean(axis=1, keepdims=True)
        squares = (deviations**2).sum(axis=1)
        variances.append(squares * group_count / max(1, group_count - 1))

    return np.concatenate(variances)


def _group_losses(groups: Array, values: Figures) -> Array:
    """Return what figures lose without each group, of what groups add: rows x groups x K -> rows x
    groups x M."""
    totals = groups.sum(axis=1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        without = values((totals - groups).reshape(-1, groups.shape[2]))
        losses: Array = values(totals[:, 0])[:, None] - without.reshape(*groups.shape[:2], -1)

    return losses


def _flips(
    users: int,
    permutations: int | None,
    rng: np.random.Generator,
) -> Iterator[Array]:
    """Yield rows of 0 or 1 for each user, who is swapped if it is 1: so many random ones, or all
    there are if None."""
    if permutations is None:
        yield (np.arange(2**users)[:, None] >> np.arange(users) & 1).astype(np.float64)
        return

    for size in chunks(users, permutations):
        # A random bit for each swap: a float would take 64 of them.
        bits = np.frombuffer(rng.bytes(-(-size * users // 8)), dtype=np.uint8)
        yield np.unpackbits(bits, count=size * users).reshape(size, users).astype(np.float64)


def p_value(
    differences: Array,
    observed: float,
    is_complete: bool,
) -> float | None:
    """Return how often swapped sides are at least as far apart as the real ones (two-sided), None
    if undefined.

    `differences` is one figure's. Of all swaps it is their share; of some (1 + those) / (1 +
    swaps), which counts the real one and is never 0. Source: Phipson & Smyth 2010.
    """
    if math.isnan(observed) or not differences.size:
        return None

    # An undefined swap (NaN) counts as far.
    is_near = np.abs(differences) < abs(observed) - ROUNDING
    far = int((~is_near).sum())
    if is_complete:
        # The real difference is among all swaps, so nothing is added for it.
        return far / len(differences)

    return (1 + far) / (1 + len(differences))


# Several figures at once


def max_t(
    differences: Array,
    observed: Array,
    is_complete: bool,
) -> list[float]:
    """Return the p-values of a family of F figures, adjusted for all of them: Westfall and Young's
    step-down max-T (1993, algorithm 2.8).

    `differences` are those under the same swaps, swaps x F. Each is divided by its own spread under
    swaps, so that figures of any unit compare; the largest first, a figure is compared with the
    largest of itself and all smaller ones. An undefined swap counts as far.
    """
    scale = np.sqrt(np.nanmean(differences**2, axis=0))
    # Where every swap gives the same, there is no spread to divide by.
    scale = np.where(scale > ROUNDING, scale, 1.0)
    real = np.abs(observed) / scale
    distances = np.where(np.isnan(differences), np.inf, np.abs(differences))
    swaps = (distances + ROUNDING) / scale
    order = np.argsort(real, kind="stable")  # the smallest first
    largest = np.maximum.accumulate(swaps[:, order], axis=1)
    counts = (largest >= real[order]).sum(axis=0)
    total = len(swaps)
    if not is_complete:  # the real differences count as another swap
        counts += 1
        total += 1

    # Step-down: no p-value is below that of a larger figure.
    adjusted = np.empty(len(order))
    adjusted[order] = np.maximum.accumulate((counts / total)[::-1])[::-1]

    return adjusted.tolist()


def simultaneous_level(
    effects: Array,
    rng: np.random.Generator,
    draws: int = RESAMPLES,
) -> float:
    """Return the level of each interval at which those of F figures hold all at once in 95 of 100
    cases.

    `effects` is what each user adds to the errors of the F estimates, users x F: 0 on average, of
    the same scale. In each draw every user's row is multiplied by one normal number, so that
    figures keep their correlation; the critical value is the 95 % quantile of the largest of the F
    sums (Gaussian multiplier bootstrap). Source: Dudoit & van der Laan 2008, chapter 2.
    """
    errors = np.sqrt((effects**2).sum(axis=0))
    scaled = effects[:, errors > 0] / errors[errors > 0]
    users, figures = scaled.shape
    if figures < 2:
        return LEVEL

    largest = []
    for size in chunks(users, draws):
        sums = product(rng.standard_normal((size, users)), scaled)
        largest.append(np.abs(sums).max(axis=1))

    critical = np.quantile(np.concatenate(largest), LEVEL)

    return max(LEVEL, float(1 - 2 * special().ndtr(-critical)))


# Users


def effects(
    pair: Pair,
    values: Figures,
    has: Mask | bool = True,
) -> Array:
    """Return each user's part in the difference: users x M, NaN if the user has no such figure
    (`has`: users x M).

    Of a mean it is the user's own difference, of a divergence the pull of the user's days
    (`intervals.parts`).
    """

    def differences(totals: Array) -> Array:
        a, b = np.hsplit(totals, 2)
        return values(a) - values(b)

    return parts_of(np.hstack([pair.a, pair.b]), differences, has)


def alike(pair: Pair, uses: Mask) -> Mask:
    """Return whether a user adds the same to a figure on both sides, but for rounding: users x
    M."""
    tolerance = ROUNDING * np.maximum(1.0, np.abs(pair.a))
    differs = np.abs(pair.a - pair.b) > tolerance
    # How many of a figure's sums differ: a product of floats is by far the fastest.
    same: Mask = product(differs.astype(np.float64), uses.T.astype(np.float64)) == 0

    return same
