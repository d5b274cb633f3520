"""Whether `compare` keeps its word: how often its 95 % intervals hold the true difference, and its p-values mislead.

Each population is drawn from as often as `--sets` says. The true difference is that of very many users, and of a
divergence the mean over other data sets of the same size (what the interval is about: docs/statistics.md). Prints the
table of that page: `python -m bench.coverage`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, islice

import numpy as np

from harness.benchmark import Benchmark, Metric
from harness.benchmarks.dailymobility.protocols import BINS, METRICS, MOST_LOCATIONS, SIZES
from harness.benchmarks.dailymobility.scores import figures, side_by_side
from harness.benchmarks.derived import Figures
from harness.scoring.bootstrap import LEVEL, Array
from harness.scoring.paired import Pair, Values, interval, p_value, resampled, swapped

SETS, RESAMPLES, PERMUTATIONS = 1000, 1000, 499
SEED = 7
MANY = 200_000
"""Users that stand for a whole population, drawn thrice."""

Draw = Callable[[np.random.Generator, int], Pair]


@dataclass(frozen=True, slots=True)
class Population:
    """`draws` has a population for each stratum, of `users` each; the first figure of `values` is looked at.

    `null` says that both sides are drawn alike, and `whole` that a figure is a mean, so that its true value does not
    depend on the number of users.
    """

    name: str
    draws: tuple[Draw, ...]
    users: tuple[int, ...]
    values: Values
    null: bool = False
    whole: bool = True

    def data(self, rng: np.random.Generator) -> list[Pair]:
        return [draw(rng, users) for draw, users in zip(self.draws, self.users, strict=True)]

    def truth(self, rng: np.random.Generator, sets: int) -> float:
        if self.null:
            return 0.0
        if self.whole:
            many = [[draw(rng, MANY) for draw in self.draws] for _ in range(3)]
        else:
            many = [self.data(rng) for _ in range(2 * sets)]
        return float(np.mean([_difference(pairs, self.values) for pairs in many]))


def _difference(pairs: Sequence[Pair], values: Values) -> float:
    return float(np.mean([pair.difference(values)[0] for pair in pairs]))


# Users of StreamProfileBench


class OneMean(Benchmark):
    """The mean of users' values, as benchmarks have it by default."""

    name = "one_mean"
    metrics = (Metric("value"),)


def _means(a: Array, b: Array) -> Pair:
    """From users' values, NaN undefined."""
    return Pair(*(np.column_stack([np.nan_to_num(side), ~np.isnan(side)]) for side in (a, b)))


def f1(rng: np.random.Generator, users: int, gain: float) -> Pair:
    """F1^NS: users are more or less predictable for both sides alike, have from 1 to 40 steps, a third of them nothing
    new that could be found, a twelfth no value."""
    steps = np.minimum(rng.geometric(1 / 6, users), 40)
    ease = rng.beta(1.5, 4, users)
    hopeless, undefined = rng.random(users) < 1 / 3, rng.random(users) < 1 / 12

    def side(gain: float) -> Array:
        chance = np.clip(ease * np.exp(rng.normal(gain, 0.3, users)), 0, 1)
        new = rng.binomial(2 * steps, np.where(hopeless, 0, chance)) / (2 * steps)
        kept = rng.binomial(4 * steps, np.sqrt(chance)) / (4 * steps)
        values = 2 * new * kept / np.where(new + kept == 0, 1, new + kept)
        return np.where(undefined, np.nan, values)

    return _means(side(gain), side(0.0))


def ties(rng: np.random.Generator, users: int, gain: float) -> Pair:
    """An error rate over one to three distractors, which most users never fall for on either side."""
    there, prone = rng.integers(1, 4, users), rng.random(users) < 0.35
    chance = np.where(prone, rng.beta(2, 3, users), 0.0)
    a, b = (rng.binomial(there, np.minimum(1, chance * (1 + gain * side))) / there for side in (1, 0))
    return _means(a, b)


def few(rng: np.random.Generator, users: int) -> Pair:
    """The same value on both sides but for one user in ten, who gains much: a very skewed difference."""
    base = rng.beta(2, 5, users)
    gained = np.where(rng.random(users) < 0.1, rng.beta(4, 4, users) * (1 - base), 0.0)
    return _means(base + gained, base)


# Residents of DailyMobility


@dataclass(frozen=True, slots=True)
class Days:
    """How days come about: typical radius in bins, its spread, chance of each of four further places, and weights of
    the seven intentions."""

    radius: float
    spread: float
    places: float
    weights: tuple[float, ...]

    def rows(self, rng: np.random.Generator, reach: Array, habits: Array) -> Array:
        """Bins and counts of residents, whose `reach` and `habits` (residents x 7) are their own whoever tells the
        day."""
        radius = self.radius * np.exp(self.spread * (0.8 * reach + 0.6 * rng.normal(size=len(reach))))
        locations = 1 + rng.binomial(4, self.places, len(reach))
        weights = habits * np.array(self.weights)
        spent = rng.multinomial(24, weights / weights.sum(axis=1, keepdims=True)) * 2
        bins = np.minimum(radius, BINS), np.minimum(locations, MOST_LOCATIONS + 1)
        return side_by_side(np.column_stack([*bins, spent]).astype(np.uint8))


REAL = Days(9.0, 0.7, 0.45, (9, 5, 2, 3, 1, 1, 1))
NEAR = Days(8.0, 0.8, 0.35, (9, 6, 2, 2, 1, 1, 2))
FAR = Days(15.0, 0.5, 0.8, (4, 4, 4, 4, 3, 3, 3))
ALIKE = Days(12.0, 0.1, 0.25, (9, 7, 1, 1, 1, 1, 1))
EVEN = Days(13.2, 0.5, 0.8, (4, 4, 4, 4, 3, 3, 3))
"""As far from the truth as `ALIKE`, in its own way."""


def days(rng: np.random.Generator, users: int, a: Days, b: Days) -> Pair:
    reach, habits = rng.normal(size=users), rng.gamma(2.0, size=(users, len(REAL.weights)))
    return Pair(a.rows(rng, reach, habits), b.rows(rng, reach, habits))


def truth_histograms(rng: np.random.Generator) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.int64]]]:
    """Of a hundred residents, as many as the published ground truth has."""
    totals = days(rng, 100, REAL, REAL).a.sum(axis=0).astype(np.int64)
    ends = np.cumsum([SIZES[metric] for metric in METRICS])[:-1]
    return dict(zip(METRICS, np.split(totals, ends), strict=True))


# The study


def populations() -> list[Population]:
    means = Figures(OneMean()).values
    score = partial(figures, truth_histograms(np.random.default_rng(SEED)))

    def mobility(name: str, users: int, a: Days, b: Days) -> Population:
        return Population(name, (partial(days, a=a, b=b),), (users,), score, null=a is b, whole=False)

    five = tuple(partial(f1, gain=gain) for gain in (0.3, 0.2, 0.1, 0.0, -0.1))

    def unequal(name: str, draw: Draw, *users: int) -> Population:
        return Population(f"{name}, platforms of {' + '.join(map(str, users))}", (draw,) * len(users), users, means)

    gains, falls = partial(f1, gain=0.2), partial(ties, gain=0.2)
    return [
        Population("F1^NS, A better", (gains,), (200,), means),
        Population("F1^NS, twice the same", (partial(f1, gain=0.0),), (200,), means, null=True),
        Population("F1^NS, five platforms of 40 to 120", five, (40, 60, 80, 100, 120), means),
        Population("Error_*, heavy ties, A worse", (falls,), (200,), means),
        Population("Error_*, heavy ties, twice the same", (partial(ties, gain=0.0),), (200,), means, null=True),
        Population("one user in ten gains", (few,), (200,), means),
        mobility("Score, near and far from the truth", 200, NEAR, FAR),
        mobility("Score, people all alike, and far", 200, ALIKE, FAR),
        mobility("Score, near and nearly as near, 100 residents", 100, NEAR, REAL),
        mobility("Score, twice the same", 200, NEAR, NEAR),
        mobility("Score, unlike days that score the same", 200, ALIKE, EVEN),
        unequal("F1^NS", gains, 2, 200),
        unequal("F1^NS", gains, 5, 200),
        unequal("F1^NS", gains, 20, 200),
        unequal("F1^NS", gains, 5, 200, 200, 200, 200),
        unequal("Error_*", falls, 20, 200),
        unequal("one user in ten gains", few, 20, 200),
    ]


@dataclass(frozen=True, slots=True)
class Found:
    """Shares of data sets: the true difference inside, below and above the interval; inside the plain percentile
    interval; a p-value below 0.05."""

    inside: float
    below: float
    above: float
    percentile: float
    rejected: float


def study(population: Population, sets: int, rng: np.random.Generator) -> Found:
    truth = population.truth(rng, sets)
    drawn = (_one(population, truth, rng) for _ in count())
    rows = np.array(list(islice(filter(None, drawn), sets)))
    below, above, percentile, rejected = rows.mean(axis=0)
    return Found(1 - below - above, below, above, percentile, rejected)


def _one(population: Population, truth: float, rng: np.random.Generator) -> tuple[bool, bool, bool, bool] | None:
    """None for data with too few users on a platform to have an interval: of these `compare` says so."""
    pairs, values = population.data(rng), population.values
    observed = _difference(pairs, values)
    drawn = np.stack([resampled(pair, values, rng, RESAMPLES)[:, 0] for pair in pairs])
    users = [int((~np.isnan(values(pair.a)[:, 0])).sum()) for pair in pairs]
    found = interval(drawn, observed, users)
    if found is None:
        return None
    plain = np.nanquantile(drawn.mean(axis=0), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    swaps = swapped(pairs, values, rng, PERMUTATIONS)
    p = p_value(swaps.differences[:, :, 0].mean(axis=0), observed, swaps.whole)
    assert p is not None  # there are users enough
    return truth < found[0], truth > found[1], bool(plain[0] <= truth <= plain[1]), p < 1 - LEVEL


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=int, default=SETS, help=f"data sets of each population (default: {SETS})")
    args = parser.parse_args()
    print("| population | users | inside | below | above | plain percentile | p < 0.05 |")
    print("|---|---|---|---|---|---|---|")
    for number, population in enumerate(populations()):
        start = time.perf_counter()
        found = study(population, args.sets, np.random.default_rng([SEED, number]))
        shares = (found.inside, found.below, found.above, found.percentile, found.rejected)
        told = " | ".join(f"{100 * share:.1f} %" for share in shares)
        print(f"| {population.name} | {sum(population.users)} | {told} |", flush=True)
        print(f"{population.name}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
