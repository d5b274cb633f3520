"""Differences between two runs on the users that both have: every figure of `compare`, as JSON (docs/statistics.md)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.benchmark import Metric
from harness.commands.compare import paired
from harness.commands.compare.missing import Absent, Incomplete, sensitivity
from harness.commands.compare.sides import Side, common
from harness.commands.compare.verdicts import outcome
from harness.model import JSON
from harness.scoring.bootstrap import Array
from harness.scoring.compared import Figures
from harness.scoring.intervals import Moments, interval, is_approximate, moments, standard_error
from harness.scoring.reports import Report
from harness.scoring.rows import having

SEED = 20_250
ALL = "all"
"""In place of a subset: the mean of the subsets' figures."""
MOST = 5
"""Users shown that differ most, of each subset."""

UNTIED = 20
"""Users that differ, below whom a verdict names the subset."""

Places = Mapping[tuple[str, str], int]
"""(subset, user) -> the user's place among the users of all pairs of runs, who are swapped and drawn together."""


@dataclass(frozen=True, slots=True, eq=False)
class Stratum:
    """Both runs on one subset: rows of `pair`, `parts` (NaN where undefined) and `same` are those of `users`.

    `values` are the figures of both sides, `given` their metrics as given, and `moments` those of each figure's parts.
    """

    subset: str
    users: tuple[str, ...]
    pair: paired.Pair
    values: tuple[Array, Array]
    given: tuple[Array, Array]
    parts: Array
    moments: tuple[Moments, ...]
    same: paired.Mask
    incomplete: Incomplete
    figures: Figures

    @property
    def variances(self) -> Array:
        """Return the variances of the differences, as those under swaps are estimated."""
        found: Array = paired.variance(self.pair, np.zeros((1, len(self.users))), self.figures.values)[0]
        return found

    @classmethod
    def of(cls, a: Side, b: Side, figures: Figures) -> Stratum:
        users = common(a, b)
        places = a.places(users), b.places(users)
        pair = paired.Pair(*figures.on_both(a.contributions[places[0]], b.contributions[places[1]]))
        given = paired.Pair(a.given[places[0]], b.given[places[1]]).figures(figures.given)
        values = pair.figures(figures.values)
        parts = paired.effects(
            pair, figures.values, having(figures.benchmark, pair.a) | having(figures.benchmark, pair.b)
        )
        described = tuple(map(moments, parts.T))
        parts = np.where(np.isinf(parts), np.nan, parts)  # which side a user favours on whom all rests is unknown
        sizes = np.array([_size(*sides) for sides in zip(*values, strict=True)])
        same = paired.alike(pair, figures.uses(pair.a.shape[1])) | (np.abs(parts) < paired.ROUNDING * sizes)
        incomplete = Incomplete(pair, Absent.of(a, b), Absent.of(b, a))
        return cls(a.of.name, users, pair, values, given, parts, described, same, incomplete, figures)

    def columns(self, places: Places) -> paired.Columns:
        return np.array([places[self.subset, user] for user in self.users], dtype=np.intp)


@dataclass(frozen=True, slots=True, eq=False)
class Test:
    """One figure of two runs over the strata that have it, and its entry in the JSON.

    `observed` and `swaps`, its differences under swaps, are divided by the figure's size; where the test is
    studentised, by their standard errors.
    """

    entry: JSON
    metric: Metric
    column: int
    strata: Sequence[Stratum]
    observed: float
    swaps: Array
    whole: bool

    @property
    def parts(self) -> list[Array]:
        return [stratum.parts[:, self.column] for stratum in self.strata]

    @property
    def moments(self) -> list[Moments]:
        return [stratum.moments[self.column] for stratum in self.strata]

    @property
    def given(self) -> JSON | None:
        """Return the metric of both runs as given, None where that is what is compared."""
        given, compared = (
            np.array([[side[self.column] for side in sides] for sides in both])
            for both in ([of.given for of in self.strata], [of.values for of in self.strata])
        )
        if np.allclose(given, compared, rtol=0, atol=paired.ROUNDING):
            return None
        return dict(zip("ab", map(number, given.mean(axis=0)), strict=True))

    @property
    def agreement(self) -> JSON:
        """Return on how many users A is better, equal, worse."""
        part = np.concatenate([np.empty(0), *self.parts])
        alike = np.concatenate([np.empty(0, np.bool_), *(of.same[:, self.column] for of in self.strata)])
        higher, less, equal = (
            int(which.sum()) for which in (~alike & (part > 0), ~alike & (part < 0), alike & ~np.isnan(part))
        )
        better, worse = (less, higher) if self.metric.lower_is_better else (higher, less)
        return {"a_better": better, "equal": equal, "b_better": worse}

    def chance(self, reports: Mapping[str, Report | None]) -> JSON:
        """Return the mean over strata of their chance levels and its standard error; None where one has no level."""
        name, of = self.metric.name, [reports[stratum.subset] for stratum in self.strata]
        levels = [report.chance.get(name, math.nan) if report else math.nan for report in of]
        errors = [report.chance_error.get(name, 0.0) if report else 0.0 for report in of]
        level = number(np.mean(levels)) if levels else None
        error = None if level is None else math.hypot(*errors) / len(errors)
        return {"chance": level, "chance_error": error}

    def errors(self, places: Places) -> Array:
        """Return what each user of all pairs adds to the error of the difference."""
        found = np.zeros(len(places))
        for stratum, part in zip(self.strata, self.parts, strict=True):
            has = ~np.isnan(part)
            found[stratum.columns(places)[has]] = (part[has] - part[has].mean()) / has.sum()
        return found


def users_of(pairs: Iterable[Sequence[Stratum]]) -> Places:
    """Return the users of all pairs, numbered."""
    users = ((stratum.subset, user) for strata in pairs for stratum in strata for user in stratum.users)
    return {user: place for place, user in enumerate(dict.fromkeys(users))}


def compared(strata: Sequence[Stratum], figures: Figures, places: Places, permutations: int) -> list[Test]:
    """Return a test for each subset and figure, and for all subsets if there are several.

    The main figures over all subsets are primary: `adjust` completes their entries. All others are exploratory.
    """
    swaps = _swaps(strata, figures, places, permutations)
    groups = {stratum.subset: [place] for place, stratum in enumerate(strata)}
    groups |= {ALL: list(range(len(strata)))} if len(strata) > 1 else {}
    tests = [
        _test(strata, of, swaps, subset, metric, column)
        for subset, of in groups.items()
        for column, metric in enumerate(figures.benchmark.metrics)
    ]
    for test in tests[-len(figures.names) :]:
        if test.metric.name in figures.main:
            there = [stratum.incomplete for stratum in test.strata]
            test.entry.update(exploratory=False, missing=sensitivity(there, figures, test.metric))
    return tests


def worse_than_best(
    pairs: Sequence[Sequence[Stratum]], figures: Figures, metric: str, permutations: int = paired.RESAMPLES
) -> list[bool]:
    """Return which of several runs are worse than the best by the verdict of `compare`, in the mean of one metric over
    strata. `pairs` has the strata of each run, with the best run as their side A."""
    places, column = users_of(pairs), figures.names.index(metric)
    tests = [
        _test(strata, range(len(strata)), swaps, ALL, figures.metrics[metric], column)
        for strata in pairs
        for swaps in [_swaps(strata, figures, places, permutations)]
    ]
    _adjust_p(tests)
    return [outcome(test.entry, test.metric) == "a_better" for test in tests]


def _swaps(strata: Sequence[Stratum], figures: Figures, places: Places, permutations: int) -> paired.Swapped:
    """Return the differences of some strata with sides of users swapped, the same users for all pairs of runs."""
    pairs, columns = [stratum.pair for stratum in strata], [stratum.columns(places) for stratum in strata]
    rng = np.random.default_rng(SEED)
    # Swapping a user's sides leaves the squares of differences, so a test of means is studentised as it is.
    studentised = not figures.benchmark.scoring.is_mean
    return paired.swapped(pairs, figures.values, rng, permutations, columns, len(places), studentised=studentised)


def _test(
    strata: Sequence[Stratum], of: Sequence[int], swaps: paired.Swapped, subset: str, metric: Metric, column: int
) -> Test:
    """Return the test of a figure over some strata; p-values and intervals of its entry are for it alone."""
    a, b = (np.array([stratum.values[side][column] for stratum in strata]) for side in (0, 1))
    there = [place for place in of if not math.isnan(a[place] - b[place])]
    chosen, size = [strata[place] for place in there], _size(a[there], b[there])
    observed = float(np.mean(a[there] - b[there])) if there else math.nan
    swapped = swaps.differences[there, :, column].mean(axis=0) / size if there else np.empty(0)
    error = 1.0
    if swaps.variances is not None and there:
        scale = size * len(there)
        error = float(_root(np.sum([of.variances[column] for of in chosen]))) / scale
        swapped = swapped / (_root(swaps.variances[there, :, column].sum(axis=0)) / scale)
    test = Test({}, metric, column, chosen, observed / size / error, swapped, swaps.whole)
    given, by_subset = test.given, {stratum.subset: stratum.moments[column] for stratum in chosen}
    test.entry.update(
        {
            "subset": subset,
            "undefined_on": [strata[place].subset for place in of if place not in there],
            "a": number(np.mean(a[there])) if there else None,
            "b": number(np.mean(b[there])) if there else None,
            "difference": number(observed),
            **test.agreement,
            "subsets": len(chosen),
            "metric": metric.name,
            "lower_is_better": metric.lower_is_better,
            "compared": metric.ranked_by if given else metric.name,
            "given": given,
            "exploratory": True,
            "users": sum(one.users for one in test.moments),
            "few_untied": {name: one.untied for name, one in by_subset.items() if one.untied < UNTIED},
            "ci95": interval(number(observed), test.moments),
            "ci95_simultaneous": None,
            "approximate": bool(chosen) and is_approximate(test.moments),
            "p": paired.p_value(test.swaps, test.observed, test.whole),
            "p_adjusted": None,
            "family": None,
            "standard_error": _error(test.moments),
            "missing": None,
        }
    )
    return test


def _root(variances: Array | np.floating) -> Array:
    """Return the roots of variances; of one that is rounding alone that of a tiny one, so that it divides nothing."""
    found: Array = np.sqrt(np.maximum(variances, paired.ROUNDING**2))
    return found


def _error(strata: Sequence[Moments]) -> float | None:
    """Return the standard error, None if a stratum has fewer than two users."""
    return standard_error(strata) if strata and min(of.users for of in strata) > 1 else None


def _size(*figures: Array | float) -> float:
    """Return the size of the largest of some figures, at least 1: rounding is in proportion to it."""
    return float(max(1.0, *(np.nan_to_num(np.abs(one)).max(initial=0.0) for one in map(np.asarray, figures))))


def _adjust_p(tests: Sequence[Test]) -> list[Test]:
    """Put the p-values that hold for all tests together into their entries. Return those that have one."""
    family = [test for test in tests if test.entry["p"] is not None]
    if family:
        swaps = np.stack([test.swaps for test in family], axis=1)
        observed = np.array([test.observed for test in family])
        for test, p in zip(family, paired.max_t(swaps, observed, family[0].whole), strict=True):
            test.entry.update(p_adjusted=p, family=len(family))
    return family


def adjust(tests: Sequence[Test], places: Places, draws: int) -> None:
    """Complete the entries of the primary tests of all pairs, with p-values and intervals that hold for all of them."""
    if not (family := _adjust_p([test for test in tests if not test.entry["exploratory"]])):
        return
    errors = np.stack([test.errors(places) for test in family if test.entry["ci95"]] or [np.zeros(len(places))], axis=1)
    level = paired.simultaneous_level(errors, np.random.default_rng(SEED), draws)
    for test in family:
        test.entry["ci95_simultaneous"] = interval(test.entry["difference"], test.moments, level=level)


def most_different(strata: Sequence[Stratum], figures: Figures) -> list[JSON]:
    """Return the users with the largest parts in the difference of the ranking figure, largest first."""
    column = figures.names.index(figures.main[-1])
    found = []
    for stratum in strata:
        part = np.where(stratum.same[:, column], np.nan, stratum.parts[:, column])
        order = np.argsort(-np.abs(part), kind="stable")[:MOST]
        found += [
            {"subset": stratum.subset, "user_id": stratum.users[row], "difference": float(part[row])}
            for row in order.tolist()
            if not math.isnan(part[row])
        ]
    return sorted(found, key=lambda one: -abs(one["difference"]))


def number(value: float | np.floating) -> float | None:
    return None if math.isnan(value) else float(value)
