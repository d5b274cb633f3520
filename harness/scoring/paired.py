"""Differences between two runs on the same users: intervals, tests, and how many users a difference needs.

What a user adds to a figure is additive (sums and counts of a mean, counts of a histogram), so every figure of every
resample comes of one product: weights x contributions. Users are the units throughout, with both of their sides: that
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
from harness.scoring.bootstrap import CELLS, LEVEL, Array, times_drawn
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
    """What of a benchmark is compared: M figures, made of K contributions of each user.

    `main` are the figures that get a verdict in words, the last of them the one by which users are ranked. The smaller
    the better are those in `lower`.
    """

    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def main(self) -> tuple[str, ...]: ...

    @property
    def lower(self) -> frozenset[str]: ...

    def uses(self, columns: int) -> Mask:
        """Which of the K contributions each figure is made of: M x K."""
        ...

    def contributions(self, records: Sequence[Record]) -> Array:
        """Of up to 256 users: users x K, without NaN."""
        ...

    def outcomes(self, records: Sequence[Record]) -> Sequence[Counter[str]]:
        """Each user's answers by outcome: `valid`, or the kind of an invalid one."""
        ...

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
        """A minus B, by figure."""
        a, b = self.figures(values)
        return a - b

    def figures(self, values: Values) -> tuple[Array, Array]:
        """Of A and of B, by figure; NaN where there is no user."""
        a, b = (side.sum(axis=0, keepdims=True) for side in (self.a, self.b))
        return _quietly(values, a)[0], _quietly(values, b)[0]


def _quietly(values: Values, totals: Array) -> Array:
    """Totals of nobody have no figure: NaN, without numpy's word on it."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return values(totals)


# The bootstrap


def resampled(pair: Pair, values: Values, rng: np.random.Generator, resamples: int = RESAMPLES) -> Array:
    """The differences of resamples of the users, each with both sides: resamples x M, NaN where undefined.

    Users are drawn with replacement, as many as there are, by index: that is the plain bootstrap exactly, and takes a
    fraction of the time of multinomial or Poisson counts.
    """
    both = np.hstack([pair.a, pair.b])
    drawn = (times_drawn(pair.users, size, rng) for size in _chunks(pair.users, resamples))
    return np.concatenate([_halves(product(weights, both), values) for weights in drawn])


def _halves(totals: Array, values: Values) -> Array:
    a, b = np.hsplit(totals, 2)
    return _quietly(values, a) - _quietly(values, b)


def _chunks(users: int, rows: int) -> Iterator[int]:
    at_once = max(1, CELLS // max(1, users))
    for start in range(0, rows, at_once):
        yield min(at_once, rows - start)


def interval(differences: Array, observed: float, users: Sequence[int]) -> tuple[float, float] | None:
    """The 95 % interval of one figure's difference, a mean over strata: bootstrap quantiles, centred and widened.

    `differences` are the resampled ones, strata x R, and `users` how many of each stratum have the figure. Each
    stratum's are centred, which takes the bias off that resampling adds to a divergence and leaves means as they are,
    and spread as those of so few users must be; the quantiles of their mean are then taken as far as Student's t
    reaches beyond the normal, with the degrees of freedom of the strata that the spread comes from. None where a
    stratum has fewer than two users, which leave nothing to go by, or nothing is defined.
    """
    defined = differences[:, ~np.isnan(differences).any(axis=0)]
    if min(users) < 2 or not defined.size or math.isnan(observed):
        return None
    sizes = np.array(users, dtype=np.float64)
    centred = defined - defined.mean(axis=1, keepdims=True)
    spread = (centred * np.sqrt(sizes / (sizes - 1))[:, None]).mean(axis=0)
    if np.ptp(spread) < ROUNDING:
        return observed, observed
    tail = (1 - LEVEL) / 2
    reach = special().stdtrit(_freedom(centred.var(axis=1), sizes), tail) / special().ndtri(tail)
    low, high = observed + reach * np.quantile(spread, [tail, 1 - tail])
    return float(low), float(high)


def _freedom(variances: Array, sizes: Array) -> float:
    """Welch and Satterthwaite's degrees of freedom of the sum of strata's variances, which resampling has given."""
    errors = variances * sizes / (sizes - 1)
    return float(errors.sum() ** 2 / (errors**2 / (sizes - 1)).sum())


# The permutation test


class Swapped(NamedTuple):
    """Differences with the sides of users swapped: strata x permutations x M; `whole` where these are all there are."""

    differences: Array
    whole: bool


def swapped(pairs: Sequence[Pair], values: Values, rng: np.random.Generator, permutations: int = RESAMPLES) -> Swapped:
    """Differences under random swaps of the two sides within users, of all strata at once.

    Where the users are so few that there are no more than `permutations` ways to swap them, all of these are taken.
    """
    users = [pair.users for pair in pairs]
    whole = sum(users) < 63 and 2 ** sum(users) <= permutations
    flips = _all_flips(sum(users)) if whole else _random_flips(sum(users), permutations, rng)
    ends = np.cumsum(users)[:-1]
    moves = [(pair.a.sum(axis=0), pair.b.sum(axis=0), pair.b - pair.a) for pair in pairs]
    found = []
    for flip in flips:
        parts = zip(np.split(flip, ends, axis=1), moves, strict=True)
        found.append(np.stack([_after(product(part, move), a, b, values) for part, (a, b, move) in parts]))
    return Swapped(np.concatenate(found, axis=1), whole)


def _after(moved: Array, a: Array, b: Array, values: Values) -> Array:
    """The differences once the totals have moved from one side to the other."""
    return _quietly(values, a + moved) - _quietly(values, b - moved)


def _random_flips(users: int, permutations: int, rng: np.random.Generator) -> Iterator[Array]:
    for size in _chunks(users, permutations):
        bits = np.frombuffer(rng.bytes(-(-size * users // 8)), dtype=np.uint8)
        yield np.unpackbits(bits, count=size * users).reshape(size, users).astype(np.float64)


def _all_flips(users: int) -> Iterator[Array]:
    numbers = np.arange(2**users)
    yield (numbers[:, None] >> np.arange(users) & 1).astype(np.float64)


def p_value(differences: Array, observed: float, whole: bool) -> float | None:
    """Two-sided: how often swapped sides are at least as far apart as the real ones; None where that is undefined.

    `differences` is one figure's. Of all swaps it is their share; of some (1 + those) / (1 + swaps), which counts the
    real one and is never 0.
    """
    if math.isnan(observed) or not differences.size:
        return None
    far = int((~(np.abs(differences) < abs(observed) - ROUNDING)).sum())
    return far / len(differences) if whole else (1 + far) / (1 + len(differences))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's corrected p-values of a family, in the same order; undefined ones are not in it."""
    ranked = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    least = 0.0
    for rank, (p, place) in enumerate(ranked):
        least = min(1.0, max(least, p * (len(ranked) - rank)))
        corrected[place] = least
    return corrected


# Users


def effects(pair: Pair, values: Values) -> Array:
    """Each user's part in the difference: users x M, NaN where the user has no such figure.

    It is the jackknife's pseudo-value, n x all - (n - 1) x all but this one: of a mean the user's own difference, of a
    divergence what the user's days pull it by. Its mean is the difference (but for a divergence's bias), its spread
    gives the standard error.
    """
    has = ~np.isnan(_quietly(values, pair.a) - _quietly(values, pair.b))
    users = has.sum(axis=0)
    without = _quietly(values, pair.a.sum(axis=0) - pair.a) - _quietly(values, pair.b.sum(axis=0) - pair.b)
    observed = pair.difference(values)
    parts = np.where(users > 1, users * observed - (users - 1) * without, observed)
    return np.where(has, parts, np.nan)


def alike(pair: Pair, uses: Mask) -> Mask:
    """Whether a user adds the same to a figure on both sides, but for rounding: users x M."""
    least = ROUNDING * np.maximum(1.0, np.abs(pair.a))
    different = (np.abs(pair.a - pair.b) > least).astype(np.float64)
    same: Mask = product(different, uses.T.astype(np.float64)) == 0
    return same


def standard_error(parts: Sequence[Array]) -> float | None:
    """Of a difference that is the mean over strata, from each stratum's effects; None with fewer than two users."""
    variances = []
    for part in parts:
        defined = part[~np.isnan(part)]
        if len(defined) < 2:
            return None
        variances.append(float(defined.var(ddof=1)) / len(defined))
    return math.sqrt(math.fsum(variances)) / len(parts) if parts else None


def users_needed(users: int, error: float | None, difference: float = POINT) -> int | None:
    """How many users, spread over strata as these are, show a difference at 5 % (two-sided) with 80 % power.

    None where nothing is known of how users differ, or they do not.
    """
    if error is None or error < ROUNDING:
        return None
    reach = float(special().ndtri((1 + LEVEL) / 2) + special().ndtri(POWER))
    return max(2, math.ceil(users * (reach * error / difference) ** 2))
