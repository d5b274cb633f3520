"""How often the 95 % intervals hold the true figure, for every kind of figure that is printed.

The populations, figures and intervals are computed here from scratch (docs/statistics.md has the formulas): nothing of
`harness` is called, and a test compares the two. Prints the table of that page: `python -m bench.coverage`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy import stats

SETS, SEED = 2000, 7
USERS = (10, 20, 40, 100, 400)
MANY = 500_000
"""Users that stand for a whole population."""
LEAST = 0.1
"""A cell whose data sets have an interval less often is `too few`."""
STEPS = 12
FEWEST, FEWEST_UNTIED, SHRINKAGE, TIED = 12, 7, 25, 1e-9

Array = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, int]], Array]
"""Sets x users -> each user's value, NaN where undefined."""


# Populations


def chains(rng: np.random.Generator, shape: tuple[int, int], gain: float = 0.0) -> dict[str, Array]:
    """Return users of StreamProfileBench by figure.

    Each has up to 12 steps with new tags, kept tags and distractors. For a third nothing new can be found; two users in
    three never fall for a distractor that is passed on, five in six never for a rarer one.
    """
    users = shape[0] * shape[1]
    steps = np.minimum(rng.geometric(1 / 6, (users, 1)), STEPS) > np.arange(STEPS)
    skill = np.clip(rng.beta(1.5, 4, (users, 1)) * np.exp(rng.normal(gain, 0.3, (users, 1))), 0, 1)
    hopeless = rng.random((users, 1)) < 1 / 3
    new, kept = rng.poisson(1.2, steps.shape), rng.poisson(1.5, steps.shape)
    found, held = rng.binomial(new, np.where(hopeless, 0, skill)), rng.binomial(kept, np.sqrt(skill))
    values = {
        "Recall_Novelty": _share(found, new, steps),
        "Recall_Stability": _share(held, kept, steps),
        "Recall": _share(found + held, new + kept, steps),
    }
    for name, prone, rate in (("Error_Decay", 0.8, 0.5), ("Error_Viral", 1 / 3, 0.35), ("Error_Random", 1 / 6, 0.25)):
        chance = np.where(rng.random((users, 1)) < prone, rng.beta(2, 3, (users, 1)) * 2 * rate, 0.0)
        there = rng.integers(1, 4, steps.shape)
        values[name] = _share(rng.binomial(there, np.clip(chance, 0, 1)), there, steps)
    of = {name: _mean(each) for name, each in values.items()}
    first = {name: each[:, 0] for name, each in values.items()}
    later = {name: _mean(each[:, 1:]) for name, each in values.items()}
    for part in (of, first, later):
        part["F1^NS"] = _harmonic(part["Recall_Novelty"], part["Recall_Stability"])
    of |= {f"FWT {name}": later[name] - first[name] for name in ("Recall", "F1^NS", "Error_Viral")}
    of |= {f"{name}, step {step}": values[name][:, step - 1] for step in (1, 8) for name in ("Recall", "Error_Viral")}
    return {name: each.reshape(shape) for name, each in of.items()}


def _share(part: NDArray[np.int64], whole: NDArray[np.int64], there: NDArray[np.bool_]) -> Array:
    found: Array = np.divide(part, whole, out=np.full(part.shape, np.nan), where=there & (whole > 0))
    return found


def _mean(values: Array) -> Array:
    count = (~np.isnan(values)).sum(axis=1)
    found: Array = np.divide(np.nansum(values, axis=1), count, out=np.full(len(values), np.nan), where=count > 0)
    return found


def _harmonic(a: Array, b: Array) -> Array:
    return np.where(a + b == 0, 0.0, 2 * a * b / np.where(a + b == 0, 1.0, a + b))


def figure(name: str, rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    return chains(rng, shape)[name]


def difference(name: str, gain: float, rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Return A minus B for users whose luck is alike in part: half of B's values are A's own."""
    a, b = chains(rng, shape, gain)[name], chains(rng, shape)[name]
    return np.where(rng.random(shape) < 0.5, 0.3 * (a - b), a - b)


def one_in_ten(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Return differences of users of whom one in ten gains much."""
    return np.where(rng.random(shape) < 0.1, rng.beta(4, 4, shape), 0.0)


def stars(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Return absolute errors of ratings, 0 to 4."""
    return np.minimum(rng.poisson(0.8, shape), 4).astype(np.float64)


CHAINS = (
    *("Recall", "Recall_Novelty", "Recall_Stability", "F1^NS", "Error_Decay", "Error_Viral", "Error_Random"),
    *("FWT Recall", "FWT F1^NS", "FWT Error_Viral"),
    *("Recall, step 1", "Recall, step 8", "Error_Viral, step 1", "Error_Viral, step 8"),
)
POPULATIONS: Mapping[str, Draw] = {
    **{name: partial(figure, name) for name in CHAINS},
    "Beta(4, 4)": lambda rng, shape: rng.beta(4, 4, shape),
    "85 % ones": lambda rng, shape: (rng.random(shape) < 0.85).astype(np.float64),
    "8 % ones": lambda rng, shape: (rng.random(shape) < 0.08).astype(np.float64),
    "errors of ratings, 0 to 4": stars,
    "log-normal": lambda rng, shape: rng.lognormal(0.0, 0.6, shape),
    "compare F1^NS": partial(difference, "F1^NS", 0.2),
    "compare Error_Viral": partial(difference, "Error_Viral", 0.0),
    "compare Error_Random": partial(difference, "Error_Random", 0.0),
    "compare, one user in ten gains": one_in_ten,
}
PLATFORMS = ("F1^NS", "Error_Viral", "Error_Random", "compare F1^NS", "compare Error_Viral")
"""Populations whose mean over several platforms is looked at, too."""


# Intervals


def intervals(strata: Sequence[Array]) -> tuple[Array, Array, Array]:
    """Return the mean over strata of each data set, and both ends of its interval, NaN where too few users differ.

    `strata` are sets x users each.
    """
    count = np.array([(~np.isnan(values)).sum(axis=1) for values in strata], dtype=np.float64)
    with np.errstate(all="ignore"):
        mean = np.array([np.nansum(values, axis=1) for values in strata]) / count
        off = [np.nan_to_num(values - of[:, None]) for values, of in zip(strata, mean, strict=True)]
        share = np.array([(each**2).sum(axis=1) for each in off]) / (count - 1) / count
        third = np.array([(each**3).sum(axis=1) for each in off]) / count**3
        error = np.sqrt(share.sum(axis=0))
        a = third.sum(axis=0) / error**3
        freedom = share.sum(axis=0) ** 2 / (share**2 / (count - 1)).sum(axis=0)
        different = np.array([[_untied(row) for row in values] for values in strata])
        untied = different.sum(axis=0) / count.sum(axis=0) * (1 / count).sum(axis=0) ** 2 / (1 / count**3).sum(axis=0)
        a = a * untied / (untied + SHRINKAGE)
        there = (count.sum(axis=0) >= FEWEST) & (untied >= FEWEST_UNTIED) & (error > TIED) & (count.min(axis=0) > 1)
        middle = mean.mean(axis=0)
        ends = []
        for tail in (0.975, 0.025):
            t = stats.t.ppf(tail, freedom)
            exact = np.where(np.abs(a) < 1e-6, t, 3 / a * (np.cbrt(1 + a * (t - a / 6)) - 1))
            ends.append(np.where(there, middle - exact * error / len(strata), np.nan))
    return middle, ends[0], ends[1]


def _untied(values: Array) -> int:
    there = values[~np.isnan(values)]
    if not len(there):
        return 0
    tolerance = TIED * max(1.0, float(np.abs(there).max()))
    _, times = np.unique(np.round(there / tolerance), return_counts=True)
    return len(there) - int(times.max())


# The study


def cell(draws: Sequence[Draw], sizes: Sequence[int], truth: float, rng: np.random.Generator, sets: int) -> str:
    """Return how often the interval holds the truth, and, unless it is nearly always, how often there is one."""
    at_once = max(1, 400_000 // max(sizes))
    found = []
    for start in range(0, sets, at_once):
        shape = min(at_once, sets - start)
        found.append(intervals([draw(rng, (shape, users)) for draw, users in zip(draws, sizes, strict=True)])[1:])
    low, high = np.concatenate(found, axis=1)
    there = ~np.isnan(low)
    if there.mean() < LEAST:
        return "too few"
    inside = (low <= truth) & (truth <= high)
    held = f"{100 * inside[there].mean():.1f}"
    return held if there.mean() > 0.98 else f"{held} (of {100 * there.mean():.0f} %)"


def rows(sets: int) -> Sequence[tuple[str, Sequence[Draw], Callable[[int], Sequence[int]], str]]:
    """Return the rows of the table: name, a draw for each platform, the sizes for n, the population."""
    single = [(name, (draw,), lambda n: (n,), name) for name, draw in POPULATIONS.items()]
    five = [
        (f"{name}, mean of five platforms", (POPULATIONS[name],) * 5, lambda n: (n,) * 5, name) for name in PLATFORMS
    ]
    unequal = [
        (f"{name}, mean of platforms of n and 200", (POPULATIONS[name],) * 2, lambda n: (n, 200), name)
        for name in PLATFORMS
    ]
    return [*single, *five, *unequal]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=int, default=SETS, help=f"data sets of each population (default: {SETS})")
    args = parser.parse_args()
    truths = {
        name: float(np.nanmean(draw(np.random.default_rng([SEED, 0]), (1, MANY)))) for name, draw in POPULATIONS.items()
    }
    print(f"| figure | truth | {' | '.join(f'n = {n}' for n in USERS)} |")
    print("|---|---|" + "---|" * len(USERS))
    for number, (name, draws, sizes, population) in enumerate(rows(args.sets), 1):
        start, truth = time.perf_counter(), truths[population]
        cells = [cell(draws, sizes(n), truth, np.random.default_rng([SEED, number, n]), args.sets) for n in USERS]
        print(f"| {name} | {truth:.3f} | {' | '.join(cells)} |", flush=True)
        print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
