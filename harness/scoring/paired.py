"""Differences between two runs on the same users: intervals, tests, and how many users a difference needs.

What a user adds to a figure is additive (sums and counts of a mean, counts of a histogram), so one product, weights x
contributions, gives every figure of every resample. Users are the units throughout, with both of their sides: that
makes the comparison paired, and clustered by user. Several *strata* (platforms) are resampled each within itself, and
their mean weighs each the same. Formulas, sources and the simulations behind the choices: docs/statistics.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from harness.model import Record
from harness.scoring.bootstrap import LEVEL, Array, chunks, times_drawn
from harness.scoring.libraries import product, special

RESAMPLES = 10_000
POWER = 0.8
POINT = 0.01
"""One percentage point."""

ROUNDING = 1e-12
"""Sums in another order differ by less, for figures of the size of 1; larger ones are scaled down to it."""

Values = Callable[[Array], Array]
"""Totals of contributions, R x K -> figures, R x M: fractions, NaN where undefined."""

Mask = NDArray[np.bool_]


class Figures(Protocol):
    """The figures of a benchmark that are compared: M figures, made of K contributions of each user.

    `main` are the figures that get a verdict in words; the last of them ranks users. `lower` are those that are
    better if smaller.
    """

    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def main(self) -> tuple[str, ...]: ...

    @property
    def lower(self) -> frozenset[str]: ...

    def uses(self, columns: int) -> Mask:
        """Return which of the K contributions each figure is made of: M x K."""

    def contributions(self, records: Sequence[Record]) -> tuple[Array, Array]:
        """Return those of up to 256 users to what is compared, and to the metrics as given: users x K, without NaN."""

    def outcomes(self, records: Sequence[Record]) -> Sequence[Counter[str]]:
        """Return each user's answers by outcome: `valid`, or the kind of an invalid one."""

    def values(self, totals: Array) -> Array: ...


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """The contributions of the same users on both sides, users x K each, in the same order."""

    a: Array
    b: Array

    @property
    def users(self) -> int:
        return len(self.a)

    def difference(self, values: Values) -> Array:
        """Return A minus B, by figure."""
        a, b = self.figures(values)
        return a - b

    def figures(self, values: Values) -> tuple[Array, Array]:
        """Return the figures of A and of B, NaN if there is no user."""
        a, b = (_quietly(values, side.sum(axis=0, keepdims=True))[0] for side in (self.a, self.b))
        return a, b


def _quietly(values: Values, totals: Array) -> Array:
    """Return figures without numpy's warnings: those of no user are NaN."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return values(totals)


def _differences(values: Values, a: Array, b: Array) -> Array:
    """Return the figures of totals A minus those of totals B."""
    return _quietly(values, a) - _quietly(values, b)


# The bootstrap


def resampled(pair: Pair, values: Values, rng: np.random.Generator, resamples: int = RESAMPLES) -> Array:
    """Return the differences of resamples of the users, each with both sides: resamples x M, NaN if undefined.

    Users are drawn with replacement, as many as there are, by index: that is the plain bootstrap exactly, and takes a
    fraction of the time of multinomial or Poisson counts.
    """
    both = np.hstack([pair.a, pair.b])
    drawn = (times_drawn(pair.users, size, rng) for size in chunks(pair.users, resamples))
    return np.concatenate([_differences(values, *np.hsplit(product(weights, both), 2)) for weights in drawn])


def interval(differences: Array, observed: float, users: Sequence[int]) -> tuple[float, float] | None:
    """Return the 95 % interval of a figure's mean difference over strata: bootstrap quantiles, centred and widened.

    `differences` are the resampled ones, strata x R, and `users` how many of each stratum have the figure. Each
    stratum's differences are centred: that removes the bias that resampling adds to a divergence, and changes no mean.
    Their spread is enlarged for so few users. The quantiles of the mean are then taken as far out as Student's t is
    beyond the normal, with Welch and Satterthwaite's degrees of freedom of the strata's resampled variances. None if a
    stratum has fewer than two users, or nothing is defined.
    """
    defined = differences[:, ~np.isnan(differences).any(axis=0)]
    if min(users) < 2 or not defined.size or math.isnan(observed):
        return None
    sizes = np.array(users, dtype=np.float64)
    centred = defined - defined.mean(axis=1, keepdims=True)
    spread = (centred * np.sqrt(sizes / (sizes - 1))[:, None]).mean(axis=0)
    if np.ptp(spread) < ROUNDING:
        return observed, observed
    errors = centred.var(axis=1) * sizes / (sizes - 1)
    freedom, tail = float(errors.sum() ** 2 / (errors**2 / (sizes - 1)).sum()), (1 - LEVEL) / 2
    reach = special().stdtrit(freedom, tail) / special().ndtri(tail)
    low, high = observed + reach * np.quantile(spread, [tail, 1 - tail])
    return float(low), float(high)


# The permutation test


class Swapped(NamedTuple):
    """Differences with the sides of users swapped: strata x permutations x M; `whole` if these are all there are."""

    differences: Array
    whole: bool


def swapped(pairs: Sequence[Pair], values: Values, rng: np.random.Generator, permutations: int = RESAMPLES) -> Swapped:
    """Return differences under random swaps of the two sides within users, of all strata at once.

    If the users are so few that there are no more than `permutations` ways to swap them, all of these are taken.
    """
    users = [pair.users for pair in pairs]
    whole = sum(users) < 63 and 2 ** sum(users) <= permutations
    ends = np.cumsum(users)[:-1]
    sides = [(pair.a.sum(axis=0), pair.b.sum(axis=0), pair.b - pair.a) for pair in pairs]
    found = []
    for flips in _flips(sum(users), None if whole else permutations, rng):
        moved = [product(part, move) for part, (_, _, move) in zip(np.split(flips, ends, axis=1), sides, strict=True)]
        strata = zip(sides, moved, strict=True)
        found.append(np.stack([_differences(values, a + move, b - move) for (a, b, _), move in strata]))
    return Swapped(np.concatenate(found, axis=1), whole)


def _flips(users: int, permutations: int | None, rng: np.random.Generator) -> Iterator[Array]:
    """Yield rows of 0 or 1 for each user, who is swapped if it is 1: so many random ones, or all there are if None."""
    if permutations is None:
        yield (np.arange(2**users)[:, None] >> np.arange(users) & 1).astype(np.float64)
        return
    for size in chunks(users, permutations):
        bits = np.frombuffer(rng.bytes(-(-size * users // 8)), dtype=np.uint8)
        yield np.unpackbits(bits, count=size * users).reshape(size, users).astype(np.float64)


def p_value(differences: Array, observed: float, whole: bool) -> float | None:
    """Return how often swapped sides are at least as far apart as the real ones (two-sided), None if undefined.

    `differences` is one figure's. Of all swaps it is their share; of some (1 + those) / (1 + swaps), which counts the
    real one and is never 0.
    """
    if math.isnan(observed) or not differences.size:
        return None
    far = int((~(np.abs(differences) < abs(observed) - ROUNDING)).sum())
    return far / len(differences) if whole else (1 + far) / (1 + len(differences))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Return Holm's corrected p-values of a family, in the same order; undefined ones are not in it."""
    ranked = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    least = 0.0
    for rank, (p, place) in enumerate(ranked):
        least = min(1.0, max(least, p * (len(ranked) - rank)))
        corrected[place] = least
    return corrected


# Users


def effects(pair: Pair, values: Values) -> Array:
    """Return each user's part in the difference: users x M, NaN if the user has no such figure.

    It is the jackknife's pseudo-value, n x all - (n - 1) x all but this one: of a mean the user's own difference, of a
    divergence the pull of the user's days. Its mean is the difference (but for a divergence's bias), its spread gives
    the standard error.
    """
    has = ~np.isnan(_differences(values, pair.a, pair.b))
    users = has.sum(axis=0)
    without = _differences(values, pair.a.sum(axis=0) - pair.a, pair.b.sum(axis=0) - pair.b)
    observed = pair.difference(values)
    parts = np.where(users > 1, users * observed - (users - 1) * without, observed)
    return np.where(has, parts, np.nan)


def alike(pair: Pair, uses: Mask) -> Mask:
    """Return whether a user adds the same to a figure on both sides, but for rounding: users x M."""
    least = ROUNDING * np.maximum(1.0, np.abs(pair.a))
    different = (np.abs(pair.a - pair.b) > least).astype(np.float64)
    same: Mask = product(different, uses.T.astype(np.float64)) == 0
    return same


def standard_error(parts: Sequence[Array]) -> float | None:
    """Return that of a mean difference over strata, from their effects; None if one has fewer than two users."""
    variances = []
    for part in parts:
        defined = part[~np.isnan(part)]
        if len(defined) < 2:
            return None
        variances.append(float(defined.var(ddof=1)) / len(defined))
    return math.sqrt(math.fsum(variances)) / len(parts) if parts else None


def users_needed(users: int, error: float | None, difference: float = POINT) -> int | None:
    """Return how many users, in strata like these, show a difference at 5 % (two-sided) with 80 % power.

    None if it is unknown how users differ, or they do not.
    """
    if error is None or error < ROUNDING:
        return None
    reach = float(special().ndtri((1 + LEVEL) / 2) + special().ndtri(POWER))
    return max(2, math.ceil(users * (reach * error / difference) ** 2))
