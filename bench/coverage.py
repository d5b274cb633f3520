"""How often the 95 % intervals hold the true figure, for every kind of figure that is printed.

The populations, figures and intervals are computed here from scratch (docs/statistics.md has the
formulas): nothing of `harness` is called, and a test compares the two. Prints the table of that
page: `python -m bench.coverage --table`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray
from scipy import stats

SETS, SEED = 2000, 7
USERS = (20, 30, 40, 100, 400)
MANY = 500_000
"""Users that stand for a whole population."""
LEAST = 0.02
"""Share of the data sets from which a cell has their approximate intervals, or those that are
not."""
CELLS = 400_000
"""Values that are held at once."""
STEPS = 12
FEWEST, FEWEST_AT_ALL, FEWEST_UNTIED, LEAST_FREEDOM, SHRINKAGE, STEEPEST, TIED = (
    40,
    10,
    7,
    6,
    3,
    0.1,
    1e-9,
)

Array = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, int]], Array]
"""Sets x users -> each user's value, NaN where undefined."""


# Populations


def chains(rng: np.random.Generator, shape: tuple[int, int], gain: float = 0.0) -> dict[str, Array]:
    """Return users of StreamProfileBench by figure.

    Each has up to 12 steps with new tags, kept tags and distractors. For a third nothing new can be
    found; two users in three never fall for a distractor that is passed on, five in six never for a
    rarer one.
    """
    users = shape[0] * shape[1]
    steps = np.minimum(rng.geometric(1 / 6, (users, 1)), STEPS) > np.arange(STEPS)
    skill = np.clip(rng.beta(1.5, 4, (users, 1)) * np.exp(rng.normal(gain, 0.3, (users, 1))), 0, 1)
    hopeless = rng.random((users, 1)) < 1 / 3
    new, kept = rng.poisson(1.2, steps.shape), rng.poisson(1.5, steps.shape)
    found, held = (
        rng.binomial(new, np.where(hopeless, 0, skill)),
        rng.binomial(kept, np.sqrt(skill)),
    )
    values = {
        "Recall_Novelty": _share(found, new, steps),
        "Recall_Stability": _share(held, kept, steps),
        "Recall": _share(found + held, new + kept, steps),
    }
    for name, prone, rate in (
        ("Error_Decay", 0.8, 0.5),
        ("Error_Viral", 1 / 3, 0.35),
        ("Error_Random", 1 / 6, 0.25),
    ):
        chance = np.where(
            rng.random((users, 1)) < prone, rng.beta(2, 3, (users, 1)) * 2 * rate, 0.0
        )
        there = rng.integers(1, 4, steps.shape)
        values[name] = _share(rng.binomial(there, np.clip(chance, 0, 1)), there, steps)
    of = {name: _mean(each) for name, each in values.items()}
    first = {name: each[:, 0] for name, each in values.items()}
    later = {name: _mean(each[:, 1:]) for name, each in values.items()}
    for part in (of, first, later):
        part["F1^NS"] = _harmonic(part["Recall_Novelty"], part["Recall_Stability"])
    of |= {f"FWT {name}": later[name] - first[name] for name in ("Recall", "F1^NS", "Error_Viral")}
    of |= {
        f"{name}, step {step}": values[name][:, step - 1]
        for step in (1, 8)
        for name in ("Recall", "Error_Viral")
    }
    return {name: each.reshape(shape) for name, each in of.items()}


def _share(part: NDArray[np.int64], whole: NDArray[np.int64], there: NDArray[np.bool_]) -> Array:
    found: Array = np.divide(
        part, whole, out=np.full(part.shape, np.nan), where=there & (whole > 0)
    )
    return found


def _mean(values: Array) -> Array:
    count = (~np.isnan(values)).sum(axis=1)
    found: Array = np.divide(
        np.nansum(values, axis=1), count, out=np.full(len(values), np.nan), where=count > 0
    )
    return found


def _harmonic(a: Array, b: Array) -> Array:
    return np.where(a + b == 0, 0.0, 2 * a * b / np.where(a + b == 0, 1.0, a + b))


def figure(name: str, rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    return chains(rng, shape)[name]


@cache
def chain_sets(users: int, sets: int) -> dict[str, Array]:
    """Return data sets of so many users by figure: the figures of one platform are all looked at in
    the same ones."""
    rng, at_once = np.random.default_rng([SEED, 1, users]), max(1, CELLS // 4 // users)
    drawn = [chains(rng, (min(at_once, sets - start), users)) for start in range(0, sets, at_once)]
    return {name: np.concatenate([of[name] for of in drawn]) for name in CHAINS}


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


def rare(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Return rates of errors of which one user in twenty has any: 0.5 % on average."""
    return np.where(rng.random(shape) < 0.05, rng.beta(1, 9, shape), 0.0)


def seldom(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Return errors of users of whom four in five have none."""
    return np.where(rng.random(shape) < 0.22, np.minimum(1.0, rng.lognormal(-2.6, 0.8, shape)), 0.0)


def mostly_none(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Return errors of users of whom half have none, and few have many."""
    return np.where(rng.random(shape) < 0.45, np.minimum(1.0, rng.lognormal(-3.2, 0.9, shape)), 0.0)


def mostly_all(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Return recalls of users of whom half miss nothing, and few miss much."""
    return 1 - np.where(
        rng.random(shape) < 0.55, np.minimum(1.0, rng.lognormal(-2.4, 0.9, shape)), 0.0
    )


def two_kinds(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Return values of users of two kinds, one in ten of the second."""
    return np.where(
        rng.random(shape) < 0.1, rng.normal(0.8, 0.1, shape), rng.normal(0.2, 0.1, shape)
    )


# Figures of a benchmark's own statistics: what each user adds (sets x users x K), and the figure of
# the sums


def demand(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Return absolute errors and true values, which are 0 for half of the users."""
    true = np.where(rng.random(shape) < 0.5, 0.0, rng.lognormal(1.0, 0.5, shape))
    return np.stack([np.abs(rng.normal(0.0, 1.0, shape)), true], axis=-1)


def unequal(spread: float, rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Return hits and trials of users whose numbers of trials are log-normal."""
    trials = rng.lognormal(0.0, spread, shape)
    return np.stack([trials * rng.beta(2, 4, shape), trials], axis=-1)


def squares(freedom: float, rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Return squared errors of Student's distribution, and 1."""
    return np.stack([rng.standard_t(freedom, shape) ** 2, np.ones(shape)], axis=-1)


def products(correlation: float, rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Return 1, x, y, x^2, y^2 and x y of normal pairs."""
    x = rng.normal(size=shape)
    y = correlation * x + np.sqrt(1 - correlation**2) * rng.normal(size=shape)
    return np.stack([np.ones(shape), x, y, x * x, y * y, x * y], axis=-1)


def answers(each: int, rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Return hits, false positives and false negatives by class, of so many answers in three
    classes a user."""
    true = np.searchsorted([0.5, 0.8], rng.random((*shape, each)))
    given = np.where(rng.random(true.shape) < 0.6, true, rng.integers(0, 3, true.shape))
    classes = np.arange(3)[:, None]
    is_true, is_given = true[..., None, :] == classes, given[..., None, :] == classes
    counts = [(is_true & is_given), (~is_true & is_given), (is_true & ~is_given)]
    return (
        np.stack([of.sum(axis=-1) for of in counts], axis=-1).reshape(*shape, 9).astype(np.float64)
    )


def ratio(sums: Array) -> Array:
    found: Array = sums[..., 0] / sums[..., 1]
    return found


def root(sums: Array) -> Array:
    return np.sqrt(ratio(sums))


def pearson(sums: Array) -> Array:
    n, x, y, xx, yy, xy = np.moveaxis(sums, -1, 0)
    found: Array = (n * xy - x * y) / np.sqrt((n * xx - x**2) * (n * yy - y**2))
    return found


def macro_f1(sums: Array) -> Array:
    hits, false, missed = np.moveaxis(sums.reshape(*sums.shape[:-1], 3, 3), -1, 0)
    whole = 2 * hits + false + missed
    found: Array = np.where(whole > 0, 2 * hits / np.where(whole > 0, whole, 1.0), 0.0).mean(
        axis=-1
    )
    return found


def pseudo_values(rows: Array, of: Callable[[Array], Array]) -> tuple[Array, Array]:
    """Return the figure of each data set, and its users' pseudo-values."""
    sums, users = rows.sum(axis=1), rows.shape[1]
    whole: Array = of(sums)
    return whole, users * whole[:, None] - (users - 1) * of(sums[:, None] - rows)


Rows = Callable[[np.random.Generator, tuple[int, int]], Array]
OWN: Mapping[str, tuple[Rows, Callable[[Array], Array]]] = {
    "own: WAPE, half of the true values 0": (demand, ratio),
    "own: ratio, sizes log-normal (0.5)": (partial(unequal, 0.5), ratio),
    "own: ratio, sizes log-normal (1)": (partial(unequal, 1.0), ratio),
    "own: ratio, sizes log-normal (1.5)": (partial(unequal, 1.5), ratio),
    "own: RMSE, normal errors": (partial(squares, 1e9), root),
    "own: RMSE, errors of t(5)": (partial(squares, 5.0), root),
    "own: Pearson's r, 0.5": (partial(products, 0.5), pearson),
    "own: Pearson's r, 0.9": (partial(products, 0.9), pearson),
    "own: macro-F1, 1 answer each": (partial(answers, 1), macro_f1),
    "own: macro-F1, 5 answers each": (partial(answers, 5), macro_f1),
}


CHAINS = (
    *(
        "Recall",
        "Recall_Novelty",
        "Recall_Stability",
        "F1^NS",
        "Error_Decay",
        "Error_Viral",
        "Error_Random",
    ),
    *("FWT Recall", "FWT F1^NS", "FWT Error_Viral"),
    *("Recall, step 1", "Recall, step 8", "Error_Viral, step 1", "Error_Viral, step 8"),
)
POPULATIONS: Mapping[str, Draw] = {
    **{name: partial(figure, name) for name in CHAINS},
    "Beta(4, 4)": lambda rng, shape: rng.beta(4, 4, shape),
    "85 % ones": lambda rng, shape: (rng.random(shape) < 0.85).astype(np.float64),
    "8 % ones": lambda rng, shape: (rng.random(shape) < 0.08).astype(np.float64),
    "errors of ratings, 0 to 4": stars,
    "log-normal (0.6)": lambda rng, shape: rng.lognormal(0.0, 0.6, shape),
    "log-normal (1)": lambda rng, shape: rng.lognormal(0.0, 1.0, shape),
    "uniform to the power of 8": lambda rng, shape: rng.random(shape) ** 8,
    "two kinds of users, 90 and 10 %": two_kinds,
    "one in five errs": seldom,
    "half err, few much": mostly_none,
    "half miss, few much": mostly_all,
    "one in twenty errs": rare,
    "compare F1^NS": partial(difference, "F1^NS", 0.2),
    "compare Error_Viral": partial(difference, "Error_Viral", 0.0),
    "compare Error_Random": partial(difference, "Error_Random", 0.0),
    "compare, one user in ten gains": one_in_ten,
}
PLATFORMS = (
    "one in twenty errs",
    "F1^NS",
    "Error_Viral",
    "Error_Random",
    "compare F1^NS",
    "compare Error_Viral",
)
"""Populations whose mean over several platforms is looked at, too."""


# Intervals


Intervals = tuple[Array, Array, NDArray[np.bool_]]
"""Both ends of the interval of each data set, and whether it is approximate."""


def intervals(
    strata: Sequence[Array], figures: Sequence[Array] | None = None
) -> tuple[Array, *Intervals]:
    """Return the mean over strata of each data set, both ends of its interval, NaN where there is
    none, and whether it is approximate.

    `strata` are users' values or pseudo-values, sets x users each; `figures` are the strata's
    figures, of sets each, if they are not the means.
    """
    count = np.array([(~np.isnan(values)).sum(axis=1) for values in strata], dtype=np.float64)
    with np.errstate(all="ignore"):
        mean = np.array([np.nansum(values, axis=1) for values in strata]) / count
        off = [np.nan_to_num(values - of[:, None]) for values, of in zip(strata, mean, strict=True)]
        second, third, fourth = (
            np.array([(each**power).sum(axis=1) for each in off]) for power in (2, 3, 4)
        )
        share = second / (count - 1) / count
        cumulant = (third / np.fmax(1, (count - 1) * (count - 2)) / count).sum(axis=0)
        kurtosis = count * fourth / second**2
        squared = share.sum(axis=0)
        error = np.sqrt(squared)
        noise = np.nansum(share**2 * (kurtosis - 1) / count, axis=0)
        linked = np.where(noise > 0, np.minimum(1, cumulant**2 / (squared * noise)), 1.0)
        welch = squared**2 / (share**2 / (count - 1)).sum(axis=0)
        freedom = np.fmin(welch, squared**2 / (1.5 * noise * (1 - linked)))
        different = np.array([_untied(values) for values in strata])
        untied = (
            different.sum(axis=0)
            / count.sum(axis=0)
            * (1 / count).sum(axis=0) ** 2
            / (1 / count**3).sum(axis=0)
        )
        a = cumulant / error**3 * np.minimum(1, 2 * linked) ** 2 * untied / (untied + SHRINKAGE)
        enough = (count.sum(axis=0) >= FEWEST_AT_ALL) & (count.min(axis=0) > 1) & np.isfinite(error)
        approximate = (
            (count.sum(axis=0) < FEWEST)
            | (untied < FEWEST_UNTIED - TIED)
            | (freedom < LEAST_FREEDOM)
        )
        freedom = np.fmax(LEAST_FREEDOM, freedom)
        reach = stats.t.ppf(0.975, freedom)
        most = 3 * (np.sqrt(reach**2 + 2 * (1 - STEEPEST) / 3) - reach)
        a = np.clip(a, -most, most)
        middle = np.mean(mean if figures is None else figures, axis=0)
        ends = []
        for tail in (0.975, 0.025):
            t = stats.t.ppf(tail, freedom)
            exact = np.where(np.abs(a) < 1e-6, t, 3 / a * (np.cbrt(1 + a * (t - a / 6)) - 1))
            ends.append(
                np.where(enough & (error > TIED), middle - exact * error / len(strata), np.nan)
            )
    return middle, ends[0], ends[1], approximate


def _untied(values: Array) -> NDArray[np.int64]:
    """Return how many values of each row differ from its most common one."""
    ordered, places = np.sort(values, axis=1), np.arange(values.shape[1])
    tolerance = TIED * np.fmax(1.0, np.nanmax(np.abs(values), axis=1, initial=0.0))
    begins = np.ones(values.shape, dtype=np.bool_)
    begins[:, 1:] = ~(np.diff(ordered, axis=1) <= tolerance[:, None])
    there = ~np.isnan(ordered)
    run = places - np.maximum.accumulate(np.where(begins, places, 0), axis=1) + 1
    found: NDArray[np.int64] = there.sum(axis=1) - np.where(there, run, 0).max(axis=1)
    return found


# The study


def cell(
    draws: Sequence[Draw], sizes: Sequence[int], truth: float, rng: np.random.Generator, sets: int
) -> str:
    """Return how often the interval of a mean holds the truth: those that are approximate after a
    `~`."""

    def found(number: int) -> Intervals:
        return intervals(
            [draw(rng, (number, users)) for draw, users in zip(draws, sizes, strict=True)]
        )[1:]

    return _held(found, sum(sizes), truth, sets)


def own_cell(
    rows: Rows, of: Callable[[Array], Array], users: int, rng: np.random.Generator, sets: int
) -> str:
    """Return the same of a figure of a benchmark's own."""

    def found(number: int) -> Intervals:
        whole, parts = pseudo_values(rows(rng, (number, users)), of)
        return intervals([parts], [whole])[1:]

    return _held(found, 10 * users, own_truth(rows, of), sets)


@cache
def own_truth(rows: Rows, of: Callable[[Array], Array]) -> float:
    rng = np.random.default_rng([SEED, 0])
    return float(of(sum(rows(rng, (1, MANY)).sum(axis=1) for _ in range(4)))[0])


def _held(found: Callable[[int], Intervals], users: int, truth: float, sets: int) -> str:
    at_once = max(1, CELLS // users)
    sizes = [min(at_once, sets - start) for start in range(0, sets, at_once)]
    low, high, approximate = map(np.concatenate, zip(*map(found, sizes), strict=True))
    return _printed(low, high, approximate, truth)


def _printed(low: Array, high: Array, approximate: NDArray[np.bool_], truth: float) -> str:
    there, inside, cells = ~np.isnan(low), (low <= truth) & (truth <= high), []
    for mark, which in (("", there & ~approximate), ("~", there & approximate)):
        if which.mean() >= LEAST:
            share = "" if which.mean() > 1 - LEAST else f" (of {100 * which.mean():.0f} %)"
            cells.append(f"{mark}{100 * inside[which].mean():.1f}{share}")
    return "; ".join(cells) or "too few"


def table(sets: int, users: Sequence[int]) -> Iterator[str]:
    """Yield the lines of the table."""
    yield f"| figure | truth | {' | '.join(f'n = {n}' for n in users)} |"
    yield "|---|---|" + "---|" * len(users)
    for number, (name, truth, found) in enumerate(studies(), 1):
        cells = (found(n, np.random.default_rng([SEED, number, n]), sets) for n in users)
        yield f"| {name} | {truth:.3f} | {' | '.join(cells)} |"


Study = Callable[[int, np.random.Generator, int], str]


def studies() -> Iterator[tuple[str, float, Study]]:
    """Yield name, true figure and cells of each row."""
    truths = {
        name: float(np.nanmean(draw(np.random.default_rng([SEED, 0]), (1, MANY))))
        for name, draw in POPULATIONS.items()
    }

    def mean(name: str, sizes: Callable[[int], Sequence[int]]) -> Study:
        def found(n: int, rng: np.random.Generator, sets: int) -> str:
            return cell([POPULATIONS[name]] * len(sizes(n)), sizes(n), truths[name], rng, sets)

        return found

    def alone(name: str) -> Study:
        def found(n: int, rng: np.random.Generator, sets: int) -> str:
            return _printed(*intervals([chain_sets(n, sets)[name]])[1:], truths[name])

        return found if name in CHAINS else mean(name, lambda n: (n,))

    def own(rows: Rows, of: Callable[[Array], Array]) -> Study:
        return lambda n, rng, sets: own_cell(rows, of, n, rng, sets)

    for name in POPULATIONS:
        yield name, truths[name], alone(name)
    for name in PLATFORMS:
        yield f"{name}, mean of five platforms", truths[name], mean(name, lambda n: (n,) * 5)
    for name in PLATFORMS:
        yield (
            f"{name}, mean of platforms of n and 200",
            truths[name],
            mean(name, lambda n: (n, 200)),
        )
    for name, (drawn, of) in OWN.items():
        yield name, own_truth(drawn, of), own(drawn, of)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--table",
        action="store_true",
        help="print the table of docs/statistics.md, and nothing else",
    )
    parser.add_argument(
        "--sets", type=int, default=SETS, help=f"data sets of each population (default: {SETS})"
    )
    parser.add_argument("--users", type=int, nargs="+", default=USERS, help="numbers of users")
    args = parser.parse_args()
    start = time.perf_counter()
    for line in table(args.sets, args.users):
        print(line, flush=True)
        if not args.table:
            print(f"{time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
