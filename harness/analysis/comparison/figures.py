"""Differences between two runs on the users that both have: every figure of `compare`, as JSON (docs/statistics.md)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.analysis.comparison.runs import Side, common
from harness.benchmark import Metric
from harness.benchmarks.derived import Figures
from harness.model import JSON
from harness.scoring import paired
from harness.scoring.bootstrap import Array

SEED = 20_250
ALL = "all"
"""In place of a platform: the mean of the platforms' figures."""
MOST = 5
"""Users shown that differ most, of each platform."""
FOR_EACH_TEST = 40
"""Permutations, so that Holm's correction of the smallest p-value of a family is at most 0.025."""
FEW = 20
"""Users of a platform, below which intervals hold less often than they say (docs/statistics.md, Simulations)."""


@dataclass(frozen=True, slots=True, eq=False)
class Stratum:
    """Both runs on one subset; rows of `pair`, `parts` (NaN where undefined) and `same` are those of `users`. `given`
    has the metrics of both as given (2 x M)."""

    subset: str
    users: tuple[str, ...]
    pair: paired.Pair
    parts: Array
    same: paired.Mask
    given: Array

    @classmethod
    def of(cls, a: Side, b: Side, figures: Figures) -> Stratum:
        users = common(a, b)
        places = a.places(users), b.places(users)
        pair = paired.Pair(*figures.on_both(a.contributions[places[0]], b.contributions[places[1]]))
        given = paired.Pair(a.given[places[0]], b.given[places[1]]).figures(figures.given)
        parts = paired.effects(pair, figures.values)
        sizes = np.array([_size(*sides) for sides in zip(*pair.figures(figures.values), strict=True)])
        same = paired.alike(pair, figures.uses(pair.a.shape[1])) | (np.abs(parts) < paired.ROUNDING * sizes)
        return cls(a.of.name, users, pair, parts, same, np.stack(given))


@dataclass(frozen=True, slots=True, eq=False)
class _Draws:
    """Differences by stratum: of resamples (strata x R x M), under swaps, and the values of both sides (strata x M)."""

    strata: Sequence[Stratum]
    resampled: NDArray[np.float64]
    swapped: paired.Swapped
    values: tuple[Array, Array]


def compared(strata: Sequence[Stratum], figures: Figures, resamples: int, permutations: int) -> list[JSON]:
    """Return an entry for each platform and figure, and for all platforms if there are several; p-values are not
    corrected."""
    pairs = [stratum.pair for stratum in strata]
    rng = np.random.default_rng(SEED)
    boot = np.stack([paired.resampled(pair, figures.values, rng, resamples) for pair in pairs])
    swaps = paired.swapped(pairs, figures.values, np.random.default_rng(SEED), permutations)
    a, b = (np.stack(side) for side in zip(*(pair.figures(figures.values) for pair in pairs), strict=True))
    draws = _Draws(strata, boot, swaps, (a, b))
    groups = {stratum.subset: [place] for place, stratum in enumerate(strata)}
    groups |= {ALL: list(range(len(strata)))} if len(strata) > 1 else {}
    return [
        _entry(draws, metric, column, platform, places)
        for platform, places in groups.items()
        for column, metric in enumerate(figures.benchmark.metrics)
    ]


def _entry(draws: _Draws, metric: Metric, column: int, platform: str, places: Sequence[int]) -> JSON:
    a, b = (side[:, column] for side in draws.values)
    there = [place for place in places if not math.isnan(a[place] - b[place])]
    strata = [draws.strata[place] for place in there]
    parts = [stratum.parts[:, column] for stratum in strata]
    users = {stratum.subset: int((~np.isnan(part)).sum()) for stratum, part in zip(strata, parts, strict=True)}
    observed = float(np.mean(a[there] - b[there])) if there else math.nan
    size, span, swaps = _size(a[there], b[there]), None, np.empty(0)
    if there:
        span = paired.interval(draws.resampled[there, :, column] / size, observed / size, list(users.values()))
        swaps = draws.swapped.differences[there, :, column].mean(axis=0) / size
    given = _given(strata, column, (a[there], b[there]))
    error, notable = paired.standard_error(parts), metric.notable
    return {
        "platform": platform,
        "platforms": len(there),
        "metric": metric.name,
        "lower_is_better": metric.lower_is_better,
        "compared": metric.ranked_by if given else metric.name,
        "given": given,
        "users": sum(users.values()),
        "undefined_on": [draws.strata[place].subset for place in places if place not in there],
        "few_users": {platform: number for platform, number in users.items() if number < FEW},
        "a": number(np.mean(a[there])) if there else None,
        "b": number(np.mean(b[there])) if there else None,
        "difference": number(observed),
        "ci95": [size * bound for bound in span] if span else None,
        "p": paired.p_value(swaps, observed / size, draws.swapped.whole),
        "p_holm": None,
        "standard_error": error,
        "users_needed": None if notable is None else paired.users_needed(sum(users.values()), error, notable),
        **_agreement(parts, [stratum.same[:, column] for stratum in strata], metric.lower_is_better),
    }


def _given(strata: Sequence[Stratum], column: int, compared: tuple[Array, Array]) -> JSON | None:
    """Return the metric of both runs as given, None where that is what is compared."""
    given = np.array([stratum.given[:, column] for stratum in strata]).reshape(-1, 2)
    if np.allclose(given.T, compared, rtol=0, atol=paired.ROUNDING):
        return None
    a, b = map(number, given.mean(axis=0))
    return {"a": a, "b": b}


def _size(*figures: Array | float) -> float:
    """Return the size of the largest of some figures, at least 1: rounding is in proportion to it."""
    return float(max(1.0, *(np.nan_to_num(np.abs(one)).max(initial=0.0) for one in map(np.asarray, figures))))


def _agreement(parts: Sequence[Array], same: Sequence[paired.Mask], lower: bool) -> JSON:
    """Return on how many users A is better, equal, worse."""
    part = np.concatenate(parts) if parts else np.empty(0)
    alike = np.concatenate(same) if same else np.empty(0, np.bool_)
    higher, less, equal = (
        int(which.sum()) for which in (~alike & (part > 0), ~alike & (part < 0), alike & ~np.isnan(part))
    )
    better, worse = (less, higher) if lower else (higher, less)
    return {"a_better": better, "equal": equal, "b_better": worse}


def correct(pairs: Sequence[Sequence[JSON]]) -> None:
    """Put Holm's p-values into the entries of pairs of runs, in two families, each over metrics and pairs.

    One has the entries that verdicts are about, the other the single platforms behind them, over which it is too.
    """
    main = [entry for entries in pairs for entry in entries if entry["platform"] == entries[-1]["platform"]]
    others = [entry for entries in pairs for entry in entries if entry["platform"] != entries[-1]["platform"]]
    for family in (main, others):
        for entry, p in zip(family, paired.holm([entry["p"] for entry in family]), strict=True):
            entry["p_holm"] = p


def most_different(strata: Sequence[Stratum], figures: Figures) -> list[JSON]:
    """Return the users with the largest parts in the difference of the ranking figure, largest first."""
    column = figures.names.index(figures.main[-1])
    found = []
    for stratum in strata:
        part = np.where(stratum.same[:, column], np.nan, stratum.parts[:, column])
        order = np.argsort(-np.abs(part), kind="stable")[:MOST]
        found += [
            {"platform": stratum.subset, "user_id": stratum.users[row], "difference": float(part[row])}
            for row in order.tolist()
            if not math.isnan(part[row])
        ]
    return sorted(found, key=lambda one: -abs(one["difference"]))


def number(value: float | np.floating) -> float | None:
    return None if math.isnan(value) else float(value)
