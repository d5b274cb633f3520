"""Differences between two runs on the users that both have: every figure of `compare`
(docs/statistics.md)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from msgspec import UNSET, Struct, UnsetType, structs
from numpy.typing import NDArray

from harness.benchmark import Metric
from harness.model import JSON
from harness.scoring import paired
from harness.scoring.bootstrap import Array
from harness.scoring.compared import Figures
from harness.scoring.intervals import (
    FEWEST,
    Interval,
    Moments,
    interval,
    is_approximate,
    moments,
    standard_error,
)
from harness.scoring.missing import Absent, Incomplete, sensitivity
from harness.scoring.reports import Report
from harness.scoring.rows import having

SEED = 20_250
ALL = "all"
"""In place of a subset: the mean of the subsets' figures."""
MOST_DIFFERENT = 5
"""Users shown that differ most, of each subset."""
UNTIED = 20
"""Users that differ, below whom a verdict names the subset."""
SIGNIFICANT = 0.05

Outcome = Literal[
    "a_better", "b_better", "differs", "no_difference", "same", "too_few", "undefined"
]
Change = Literal["could_reverse", "could_undo", "cannot_change", "unknown"]
"""What missing users could make of a difference: one of the other sign, one that their worst values
leave unproven, neither, or nobody knows since the metric has no bounds."""

Outcomes = tuple[tuple[str, int], ...]
"""Outcome of an answer and how many had it; users with the same share one, so that many users take
little memory."""


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """One run on one subset. `tasks` is the content hash of each user's task, in the order of the
    rows of `contributions` (users x K) and of `given`, the contributions to the metrics as given,
    which others are compared in place of. `outcomes` has, in the same order, how many of a user's
    answers ended how.

    `failed` has the hash of each user with a failure and no score. `expected` is the number of
    users that the run selected, None where nobody knows. `unsound` lines of the results file are
    left out.
    """

    run: str
    subset: str
    tasks: Mapping[str, str]
    contributions: Array
    given: Array
    outcomes: Sequence[Outcomes]
    failed: Mapping[str, str]
    expected: int | None = None
    unsound: int = 0

    def places(self, users: Sequence[str]) -> NDArray[np.intp]:
        """Return the rows of these users."""
        row = {user: row for row, user in enumerate(self.tasks)}
        return np.array([row[user] for user in users], dtype=np.intp)

    def absent(self, other: Side) -> Absent:
        """Return the users of another run that this one was to play and has no score of."""
        alone = [user for user in other.tasks if user not in self.tasks]
        failed = [user for user in alone if self.failed.get(user) == other.tasks[user]]
        remaining = len(alone) if self.expected is None else self.expected - len(self.tasks)
        users = (
            alone if remaining > len(failed) else failed
        )  # the rest were not selected by the run's share
        return Absent(other.contributions[other.places(users)], np.isin(users, failed))


def common(a: Side, b: Side) -> tuple[str, ...]:
    """Return the users that both have, with the same task, in the order of the first."""
    return tuple(user for user, task in a.tasks.items() if b.tasks.get(user) == task)


class Difference(Struct, frozen=True, kw_only=True):
    """A metric of runs `a` and `b` on a subset (or `ALL`), and `difference`, a minus b; None is
    undefined.

    What is `compared` is the metric itself, or what ranks it where answers break the rules: `given`
    are then the metric's values. Intervals and p are of this figure alone, except
    `ci95_simultaneous` and `p_adjusted`, which hold for the whole `family` of primary figures. Only
    primary ones have an `outcome`, and `missing_users`: what those in `missing` could change.
    """

    subset: str
    undefined_on: Sequence[str]
    a: float | None
    b: float | None
    difference: float | None
    a_better: int
    equal: int
    b_better: int
    subsets: int
    metric: str
    lower_is_better: bool
    compared: str
    given: Mapping[str, float | None] | None
    exploratory: bool
    users: int
    few_untied: Mapping[str, int]
    ci95: Interval | None
    ci95_simultaneous: Interval | None = None
    approximate: bool
    p: float | None
    p_adjusted: float | None = None
    family: int | None = None
    standard_error: float | None
    missing: JSON | None
    chance: float | None
    chance_error: float | None
    outcome: Outcome | UnsetType = UNSET
    missing_users: Change | UnsetType | None = UNSET

    @property
    def differing(self) -> int:
        """Return how many users differ."""
        return self.a_better + self.b_better


@dataclass(frozen=True, slots=True, eq=False)
class Stratum:
    """Both runs on one subset: rows of `pair`, `parts` (NaN where undefined) and `same` are those
    of `users`.

    `values` are the figures of both sides (2 x M), `given` their metrics as given, and `moments`
    those of each figure's parts. `variances` are those of the differences, for studentised tests.
    `report` is one with chance levels.
    """

    subset: str
    users: tuple[str, ...]
    pair: paired.Pair
    values: Array
    given: Array
    parts: Array
    moments: tuple[Moments, ...]
    same: paired.Mask
    variances: Array | None
    incomplete: Incomplete
    figures: Figures
    report: Report | None

    @classmethod
    def of(cls, a: Side, b: Side, figures: Figures, report: Report | None = None) -> Stratum:
        users = common(a, b)
        rows_a, rows_b = a.places(users), b.places(users)
        pair = paired.Pair(*figures.on_both(a.contributions[rows_a], b.contributions[rows_b]))
        values = np.stack(pair.figures(figures.values))
        given = np.stack(paired.Pair(a.given[rows_a], b.given[rows_b]).figures(figures.given))
        has = having(figures.benchmark, pair.a) | having(figures.benchmark, pair.b)
        parts = paired.effects(pair, figures.values, has)
        described = tuple(map(moments, parts.T))
        parts = np.where(
            np.isinf(parts), np.nan, parts
        )  # which side a user favours on whom all rests is unknown
        sizes = np.maximum(1.0, np.nan_to_num(np.abs(values)).max(axis=0))
        same = paired.alike(pair, figures.uses(pair.a.shape[1])) | (
            np.abs(parts) < paired.ROUNDING * sizes
        )
        # Swapping a user's sides leaves the squares of differences, so a test of means is
        # studentised as it is.
        studentised = not figures.benchmark.scoring.is_mean
        variances = (
            paired.variance(pair, np.zeros((1, len(users))), figures.values)[0]
            if studentised
            else None
        )
        incomplete = Incomplete(pair, a.absent(b), b.absent(a))
        return cls(
            a.subset,
            users,
            pair,
            values,
            given,
            parts,
            described,
            same,
            variances,
            incomplete,
            figures,
            report,
        )

    def columns(self, places: Places) -> paired.Columns:
        return np.array([places[self.subset, user] for user in self.users], dtype=np.intp)


@dataclass(frozen=True, slots=True, eq=False)
class Test:
    """One figure of two runs, over the strata that have it.

    `observed` and `swaps`, its differences under swaps, are divided by the figure's size; where the
    test is studentised, by their standard errors.
    """

    figure: Difference
    metric: Metric
    column: int
    strata: Sequence[Stratum]
    observed: float
    swaps: Array
    whole: bool

    @property
    def moments(self) -> list[Moments]:
        return [stratum.moments[self.column] for stratum in self.strata]

    def errors(self, places: Places) -> Array:
        """Return what each user of all pairs adds to the error of the difference."""
        errors = np.zeros(len(places))
        for stratum in self.strata:
            part = stratum.parts[:, self.column]
            has = ~np.isnan(part)
            errors[stratum.columns(places)[has]] = (part[has] - part[has].mean()) / has.sum()
        return errors


def compared(pairs: Sequence[Sequence[Stratum]], resamples: int) -> list[list[Difference]]:
    """Return the differences of pairs of runs of one benchmark: on each subset, and over all if
    there are several.

    The main figures over all subsets are primary, and one family of tests over all pairs. All
    others are exploratory.
    """
    places = _places(pairs)
    tests = [_tests(strata, places, resamples) for strata in pairs]
    primary = [test for of_pair in tests for test in of_pair if not test.figure.exploratory]
    concluded = iter(_concluded(primary, places, resamples))
    return [
        [test.figure if test.figure.exploratory else next(concluded) for test in of_pair]
        for of_pair in tests
    ]


def worse_than_best(
    pairs: Sequence[Sequence[Stratum]],
    figures: Figures,
    metric: str,
    permutations: int = paired.RESAMPLES,
) -> list[bool]:
    """Return which of several runs are worse than the best by the verdict of `compare`, in the mean
    of one metric over strata. `pairs` has the strata of each run, with the best run as their side
    A."""
    places, column = _places(pairs), figures.names.index(metric)
    tests = [
        _test(ALL, strata, strata, _swaps(strata, places, permutations), column) for strata in pairs
    ]
    return [outcome(figure, figures.metrics[metric]) == "a_better" for figure in _adjusted(tests)]


Places = Mapping[tuple[str, str], int]
"""(subset, user) -> the user's place among the users of all pairs of runs, who are swapped and
drawn together."""


def _places(pairs: Iterable[Sequence[Stratum]]) -> Places:
    users = (
        (stratum.subset, user) for strata in pairs for stratum in strata for user in stratum.users
    )
    return {user: place for place, user in enumerate(dict.fromkeys(users))}


def _swaps(strata: Sequence[Stratum], places: Places, permutations: int) -> paired.Swapped:
    """Return the differences of some strata with sides of users swapped, the same users for all
    pairs of runs."""
    pairs, columns = (
        [stratum.pair for stratum in strata],
        [stratum.columns(places) for stratum in strata],
    )
    values, studentised = strata[0].figures.values, strata[0].variances is not None
    rng = np.random.default_rng(SEED)
    return paired.swapped(
        pairs, values, rng, permutations, columns, len(places), studentised=studentised
    )


def _tests(strata: Sequence[Stratum], places: Places, permutations: int) -> list[Test]:
    if not strata:
        return []
    figures, swaps = strata[0].figures, _swaps(strata, places, permutations)
    groups = {stratum.subset: [stratum] for stratum in strata}
    if len(strata) > 1:
        groups[ALL] = [*strata]
    last = [*groups][-1]
    return [
        _test(subset, group, strata, swaps, column, primary=subset == last and name in figures.main)
        for subset, group in groups.items()
        for column, name in enumerate(figures.names)
    ]


def _test(
    subset: str,
    group: Sequence[Stratum],
    strata: Sequence[Stratum],
    swaps: paired.Swapped,
    column: int,
    *,
    primary: bool = False,
) -> Test:
    """Return the test of a figure over a group of the strata that were swapped, for this figure
    alone."""
    figures = group[0].figures
    metric = figures.benchmark.metrics[column]
    there = [stratum for stratum in group if not np.isnan(stratum.values[:, column]).any()]
    values, given = (
        np.array([side[:, column] for side in sides]).reshape(-1, 2)
        for sides in ([stratum.values for stratum in there], [stratum.given for stratum in there])
    )
    described = [stratum.moments[column] for stratum in there]
    is_given = np.allclose(given, values, rtol=0, atol=paired.ROUNDING)
    observed, swapped = math.nan, np.empty(0)
    difference = _mean(values[:, 0] - values[:, 1])
    if difference is not None:
        observed, swapped = _scaled(
            difference, values, there, [*map(strata.index, there)], swaps, column
        )
    better, equal, worse = _agreement(there, metric, column)
    chance, chance_error = _chance(there, metric.name)
    figure = Difference(
        subset=subset,
        undefined_on=[stratum.subset for stratum in group if stratum not in there],
        a=_mean(values[:, 0]),
        b=_mean(values[:, 1]),
        difference=difference,
        a_better=better,
        equal=equal,
        b_better=worse,
        subsets=len(there),
        metric=metric.name,
        lower_is_better=metric.lower_is_better,
        compared=metric.name if is_given else metric.ranked_by,
        given=None if is_given else dict(zip("ab", map(number, given.mean(axis=0)), strict=True)),
        exploratory=not primary,
        users=sum(of.users for of in described),
        few_untied={
            stratum.subset: of.untied
            for stratum, of in zip(there, described, strict=True)
            if of.untied < UNTIED
        },
        ci95=interval(difference, described),
        approximate=bool(there) and is_approximate(described),
        p=paired.p_value(swapped, observed, swaps.whole),
        standard_error=standard_error(described)
        if there and min(of.users for of in described) > 1
        else None,
        missing=sensitivity([stratum.incomplete for stratum in there], figures, metric)
        if primary
        else None,
        chance=chance,
        chance_error=chance_error,
    )
    return Test(figure, metric, column, there, observed, swapped, swaps.whole)


def _scaled(
    difference: float,
    values: Array,
    strata: Sequence[Stratum],
    places: Sequence[int],
    swaps: paired.Swapped,
    column: int,
) -> tuple[float, Array]:
    """Return a mean difference over strata and those under swaps, in units that compare with other
    figures."""
    size = float(np.abs(values).max(initial=1.0))
    swapped = swaps.differences[places, :, column].mean(axis=0) / size
    if swaps.variances is None:
        return difference / size, swapped
    scale = size * len(strata)
    variance = np.sum(
        [stratum.variances[column] for stratum in strata if stratum.variances is not None]
    )
    error = float(_root(variance)) / scale
    return difference / size / error, swapped / (
        _root(swaps.variances[places, :, column].sum(axis=0)) / scale
    )


def _root(variances: Array | np.floating) -> Array:
    """Return the roots of variances; of one that is rounding alone that of a tiny one, so that it
    divides nothing."""
    roots: Array = np.sqrt(np.maximum(variances, paired.ROUNDING**2))
    return roots


def _agreement(strata: Sequence[Stratum], metric: Metric, column: int) -> tuple[int, int, int]:
    """Return on how many users A is better, equal, worse."""
    part = np.concatenate([np.empty(0), *(stratum.parts[:, column] for stratum in strata)])
    same = np.concatenate([np.empty(0, np.bool_), *(stratum.same[:, column] for stratum in strata)])
    higher, lower = int((~same & (part > 0)).sum()), int((~same & (part < 0)).sum())
    equal = int((same & ~np.isnan(part)).sum())
    return (lower, equal, higher) if metric.lower_is_better else (higher, equal, lower)


def _chance(strata: Sequence[Stratum], name: str) -> tuple[float | None, float | None]:
    """Return the mean over strata of their chance levels and its standard error; None where one has
    no level."""
    reports = [stratum.report for stratum in strata]
    level = _mean([report.chance.get(name, math.nan) if report else math.nan for report in reports])
    errors = [report.chance_error.get(name, 0.0) if report else 0.0 for report in reports]
    return level, None if level is None else math.hypot(*errors) / len(errors)


def _adjusted(tests: Sequence[Test]) -> list[Difference]:
    """Return the figures of a family of tests, with the p-values that hold for all of them
    together."""
    family = [test for test in tests if test.figure.p is not None]
    if not family:
        return [test.figure for test in tests]
    swaps, observed = (
        np.stack([test.swaps for test in family], axis=1),
        np.array([test.observed for test in family]),
    )
    p_values = iter(paired.max_t(swaps, observed, family[0].whole))
    return [
        test.figure
        if test.figure.p is None
        else structs.replace(test.figure, p_adjusted=next(p_values), family=len(family))
        for test in tests
    ]


def _concluded(tests: Sequence[Test], places: Places, draws: int) -> list[Difference]:
    """Return the primary figures, with what holds for all of them together, and what they come
    to."""
    errors = [test.errors(places) for test in tests if test.figure.ci95] or [np.zeros(len(places))]
    level = paired.simultaneous_level(np.stack(errors, axis=1), np.random.default_rng(SEED), draws)
    concluded = []
    for test, figure in zip(tests, _adjusted(tests), strict=True):
        bounds = interval(figure.difference, test.moments, level=level)
        concluded.append(
            structs.replace(
                figure,
                ci95_simultaneous=bounds,
                outcome=outcome(figure, test.metric),
                missing_users=change(figure),
            )
        )
    return concluded


@dataclass(frozen=True, slots=True)
class NonInferiority:
    """Whether run A is not worse than B by more than a `margin`, in the unit of the metric.

    Both answers are by the one-sided 95 % bound of the difference on that side. The answer is
    unknown between them, and where no interval is shown to hold.
    """

    metric: str
    margin: float
    bounds: Interval | None
    answer: Literal["not_worse", "worse", "unknown"]


def non_inferiority(
    figure: Difference, strata: Sequence[Stratum], column: int, margin: float
) -> NonInferiority:
    """Return the answer for a primary figure over some strata, in whose parts it has a column."""
    defined = [
        stratum.moments[column] for stratum in strata if stratum.subset not in figure.undefined_on
    ]
    bounds = interval(figure.difference, defined, level=0.9)
    answer: Literal["not_worse", "worse", "unknown"] = "unknown"
    if figure.outcome == "same" and figure.users >= FEWEST:
        answer = "not_worse"
    elif bounds is not None and not figure.approximate:
        low, high = (-bounds[1], -bounds[0]) if figure.lower_is_better else bounds
        if low >= -margin:
            answer = "not_worse"
        elif high < -margin:
            answer = "worse"
    return NonInferiority(figure.metric, margin, bounds, answer)


def outcome(figure: Difference, metric: Metric) -> Outcome:
    """Return what the test of a figure comes to.

    The adjusted p-value of the paired permutation test decides, whatever the interval is. With `n`
    users that differ it is at least 2^(1-n), and for a family of tests that are not correlated as
    many times that.
    """
    if figure.difference is None or figure.p_adjusted is None:
        return "undefined"
    if figure.equal == figure.users and figure.users > 1:
        return "same"
    if figure.p_adjusted < SIGNIFICANT:
        if metric.unranked:
            return "differs"
        return "a_better" if (figure.difference > 0) != figure.lower_is_better else "b_better"
    if (figure.family or 1) * 2.0 ** (1 - figure.differing) >= SIGNIFICANT:
        return "too_few"
    return "no_difference"


def change(figure: Difference) -> Change | None:
    """Return what missing users could change; None if there are none, or nothing is shown that
    could change."""
    if figure.missing is None or figure.difference is None:
        return None
    sign = 1 if figure.difference > 0 else -1
    place = 0 if sign > 0 else 1
    bounds = figure.missing["bounds"]
    if bounds is None or bounds[place] is None:
        return "unknown"
    if sign * bounds[place] <= 0:
        return "could_reverse"
    end = figure.missing["bounds_ci95"][place]
    return "could_undo" if end is None or sign * end <= 0 else "cannot_change"


def most_different(strata: Sequence[Stratum]) -> list[JSON]:
    """Return the users with the largest parts in the difference of the ranking figure, largest
    first."""
    users: list[JSON] = []
    for stratum in strata:
        column = stratum.figures.names.index(stratum.figures.main[-1])
        part = np.where(stratum.same[:, column], np.nan, stratum.parts[:, column])
        users += [
            {
                "subset": stratum.subset,
                "user_id": stratum.users[row],
                "difference": float(part[row]),
            }
            for row in np.argsort(-np.abs(part), kind="stable")[:MOST_DIFFERENT].tolist()
            if not math.isnan(part[row])
        ]
    return sorted(users, key=lambda user: -abs(user["difference"]))


def number(value: float | np.floating) -> float | None:
    return None if math.isnan(value) else float(value)


def _mean(values: Array | Sequence[float]) -> float | None:
    return number(np.mean(values)) if len(values) else None
