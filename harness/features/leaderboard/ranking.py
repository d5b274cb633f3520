"""Ranks of several runs on the same users, with what the choice of users leaves open.

Two runs are separated if the interval of their difference leaves 0 out, at a level at which all pairs of runs hold
together: that of the largest studentised difference over all pairs, in draws of users that the runs share (max-T). The
ranks that remain for a run therefore hold for all runs at once, and the runs that may be first include the best one.
Sources: Romano & Wolf 2005 (max-T); Klein, Wright & Wieczorek 2020 and Mogstad, Romano, Shaikh & Wilhelm 2024 (ranks);
Hsu 1996 (the best). Formulas: docs/statistics.md, Leaderboard.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.scoring.bootstrap import LEVEL, RESAMPLES, Array, chunks
from harness.scoring.intervals import Figures, Moments, interval, moments, parts
from harness.scoring.libraries import product, special

ROUNDING = 1e-12
Rank = tuple[int, int]
"""The best and the worst place that a run may have."""


class Stratum(NamedTuple):
    """Hold the figures of some runs on the same users of one subset: of all users (runs x M), each user's parts in
    them (users x runs x M), and those of draws of users, the same for every run (draws x runs x M)."""

    figures: Array
    parts: Array
    draws: Array


def stratum(
    rows: Sequence[Array],
    figures: Figures,
    rng: np.random.Generator,
    resamples: int = RESAMPLES,
    has: NDArray[np.bool_] | bool = True,
) -> Stratum:
    """Return the stratum of runs whose rows are of the same users in the same order (users x K each).

    `rng` draws the users: another on each subset, which has other users. `has` says which users have which figure, in
    every run.
    """
    together, width = np.hstack(rows), rows[0].shape[1]

    def by_run(totals: Array) -> Array:
        found = figures(totals.reshape(-1, width))
        return found.reshape(len(totals), len(rows), -1)

    sizes = chunks(max(together.shape), resamples)
    drawn = [by_run(product(times_drawn(len(together), size, rng), together)) for size in sizes]
    whole = by_run(together.sum(axis=0, keepdims=True))[0]
    return Stratum(whole, np.stack([parts(each, figures, has) for each in rows], axis=1), np.concatenate(drawn))


def ranks(strata: Sequence[Stratum], metric: int, *, lower_is_better: bool) -> list[Rank]:
    """Return the ranks that each run may have in the mean over strata of one metric: for all runs at once, 95 %.

    Its best is 1 + the runs that are better for certain, its worst the number of runs - those that are worse.
    """
    figures = np.mean([of.figures[:, metric] for of in strata], axis=0)
    draws = np.mean([of.draws[:, :, metric] for of in strata], axis=0)
    every = combinations(range(len(figures)), 2)
    pairs = {(a, b): (float(figures[a] - figures[b]), _moments(strata, metric, a, b)) for a, b in every}
    pairs = {pair: of for pair, of in pairs.items() if interval(*of) is not None}
    level = _joint_level(draws, list(pairs))
    best, worst = [1] * len(figures), [len(figures)] * len(figures)
    for (a, b), of in pairs.items():
        low, high = interval(*of, level=level) or (0.0, 0.0)
        if low > 0 or high < 0:
            first, second = (a, b) if (low > 0) != lower_is_better else (b, a)
            best[second] += 1
            worst[first] -= 1
    return list(zip(best, worst, strict=True))


def _moments(strata: Sequence[Stratum], metric: int, a: int, b: int) -> list[Moments]:
    """Return those of a difference, as if it had neither skewness nor tails: estimates of these cost coverage so far
    out."""
    differences = (of.parts[:, a, metric] - of.parts[:, b, metric] for of in strata)
    return [moments(of)._replace(third=0.0, kurtosis=1.0) for of in differences]


def _joint_level(draws: Array, pairs: Sequence[tuple[int, int]]) -> float:
    """Return the level of each interval at which those of all pairs hold together with 95 %: that of the normal
    distribution within the 95 % quantile of the largest studentised difference of a draw."""
    largest = np.zeros(len(draws))
    for a, b in pairs:
        off = draws[:, a] - draws[:, b]
        off -= np.nanmean(off)  # a draw may have no user with a value
        if (error := np.nanstd(off)) > ROUNDING:
            np.fmax(largest, np.abs(off) / error, out=largest)
    reach = float(np.quantile(largest, LEVEL))
    return max(LEVEL, 2 * float(special().ndtr(reach)) - 1)


def times_drawn(users: int, resamples: int, rng: np.random.Generator) -> Array:
    """Draw as many users as there are with replacement, and count how often each is drawn: resamples x users."""
    drawn = rng.integers(users, size=(resamples, users))
    drawn += np.arange(resamples)[:, None] * users
    return np.bincount(drawn.ravel(), minlength=resamples * users).reshape(resamples, users).astype(np.float64)
