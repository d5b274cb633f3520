"""Differences between two runs on the users that both have: every figure of `compare`
(docs/statistics.md)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
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
from harness.scoring.missing import Absent, IncompleteStratum, sensitivity
from harness.scoring.reports import Report
from harness.scoring.rows import counted_mask

SEED = 20_250
ALL = "all"
"""In place of a subset: the mean of the subsets' figures."""
MOST_DIFFERENT = 5
"""Users shown that differ most, of each subset."""
MIN_UNTIED = 20
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


@dataclass(
    frozen=True,
    slots=True,
    eq=False,
)
class Side:
    """One run on one subset. `tasks` is the content hash of each user's task, in the order of the
    rows of `contributions` (users x K) and of `published`, the contributions to the metrics as
    given, which others are compared in place of. `outcomes` has, in the same order, how many of a
    user's answers ended how.

    `failed` has the hash of each user with a failure and no score. `expected` is the number of
    users that the run selected, None where nobody knows. `unsound` lines of the results file are
    left out.
    """

    run: str
    subset: str
    tasks: Mapping[str, str]
    contributions: Array
    published: Array
    outcomes: Sequence[Outcomes]
    failed: Mapping[str, str]
    expected: int | None = None
    unsound: int = 0

    def places(self, users: Sequence[str]) -> NDArray[np.intp]:
        """Return the rows of these users."""
        rows = dict(zip(self.tasks, range(len(self.tasks)), strict=True))
        return np.array(list(map(rows.__getitem__, users)), dtype=np.intp)

    def absent(self, counterpart: Side) -> Absent:
        """Return the users of another run that this one was to play and has no score of."""
        users = []
        failed = []
        for user, task in counterpart.tasks.items():
            if user not in self.tasks:
                users.append(user)
                if self.failed.get(user) == task:
                    failed.append(user)

        if self.expected is not None and self.expected - len(self.tasks) <= len(failed):
            users = failed  # the run's share did not select the others

        known = counterpart.contributions[counterpart.places(users)]
        return Absent(known, np.isin(users, failed))


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


@dataclass(
    frozen=True,
    slots=True,
    eq=False,
)
class Stratum:
    """Both runs on one subset: rows of `pair`, `effects` (NaN where undefined) and `same` are those
    of `users`.

    `values` are the figures of both sides (2 x M), `published` their metrics as given, and
    `moments` those of each figure's effects: users' parts in the difference. `variances` are those
    of the differences, for studentised tests. `report` is one with chance levels.
    """

    subset: str
    users: tuple[str, ...]
    pair: paired.Pair
    values: Array
    published: Array
    effects: Array
    moments: tuple[Moments, ...]
    same: paired.Mask
    variances: Array | None
    incomplete: IncompleteStratum
    figures: Figures
    report: Report | None

    @classmethod
    def of(
        cls,
        a: Side,
        b: Side,
        figures: Figures,
        report: Report | None = None,
    ) -> Stratum:
        users = common(a, b)
        rows_a = a.places(users)
        rows_b = b.places(users)
        pair = paired.Pair(*figures.on_both(a.contributions[rows_a], b.contributions[rows_b]))
        published = paired.Pair(a.published[rows_a], b.published[rows_b])
        values = np.stack(pair.figures(figures.values))
        has = counted_mask(figures.benchmark, pair.a) | counted_mask(figures.benchmark, pair.b)
        effects = paired.effects(pair, figures.values, has)
        moments_of_figures = tuple(map(moments, effects.T))
        # Which side a user favours on whom everything depends is unknown.
        effects = np.where(np.isinf(effects), np.nan, effects)
        sizes = np.maximum(1.0, np.nan_to_num(np.abs(values)).max(axis=0))
        is_rounding = np.abs(effects) < paired.ROUNDING * sizes
        same = paired.alike(pair, figures.uses(pair.a.shape[1])) | is_rounding
        # Swapping a user's sides leaves the squares of differences, so a test of means is
        # studentised as it is.
        variances = None
        if not figures.benchmark.scoring.is_mean:
            unswapped = np.zeros((1, len(users)))
            variances = paired.variance(pair, unswapped, figures.values)[0]

        return cls(
            subset=a.subset,
            users=users,
            pair=pair,
            values=values,
            published=np.stack(published.figures(figures.published)),
            effects=effects,
            moments=moments_of_figures,
            same=same,
            variances=variances,
            incomplete=IncompleteStratum(pair, a.absent(b), b.absent(a)),
            figures=figures,
            report=report,
        )

    def columns(self, places: Places) -> paired.Columns:
        return np.array([places[self.subset, user] for user in self.users], dtype=np.intp)


@dataclass(
    frozen=True,
    slots=True,
    eq=False,
)
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
    is_complete: bool

    @property
    def moments(self) -> list[Moments]:
        return [stratum.moments[self.column] for stratum in self.strata]

    def errors(self, places: Places) -> Array:
        """Return what each user of all pairs adds to the error of the difference: the terms of T in
        docs/statistics.md, "Simultaneous intervals"."""
        errors = np.zeros(len(places))
        for stratum in self.strata:
            effects = stratum.effects[:, self.column]
            is_defined = ~np.isnan(effects)
            effects = effects[is_defined]
            users = stratum.columns(places)[is_defined]
            errors[users] = (effects - effects.mean()) / len(effects)

        return errors


def compared(pairs: Sequence[Sequence[Stratum]], resamples: int) -> list[list[Difference]]:
    """Return the differences of pairs of runs of one benchmark: on each subset, and over all if
    there are several.

    The main figures over all subsets are primary, and one family of tests over all pairs. All
    others are exploratory.
    """
    places = _places(pairs)
    tests = [_tests(strata, places, resamples) for strata in pairs]
    primary = [test for test in chain.from_iterable(tests) if not test.figure.exploratory]
    concluded = iter(_concluded(primary, places, resamples))
    all_figures = []
    for pair_tests in tests:
        figures = []
        for test in pair_tests:
            figures.append(test.figure if test.figure.exploratory else next(concluded))

        all_figures.append(figures)

    return all_figures


def worse_than_best(
    pairs: Sequence[Sequence[Stratum]],
    figures: Figures,
    metric: str,
    permutations: int = paired.RESAMPLES,
) -> list[bool]:
    """Return which of several runs are worse than the best by the verdict of `compare`, in the mean
    of one metric over strata. `pairs` has the strata of each run, with the best run as their side
    A."""
    places = _places(pairs)
    column = figures.names.index(metric)
    tests = []
    for strata in pairs:
        swaps = _swaps(strata, places, permutations)
        tests.append(_test(ALL, strata, strata, swaps, column))

    return [outcome(figure, figures.metrics[metric]) == "a_better" for figure in _adjusted(tests)]


Places = Mapping[tuple[str, str], int]
"""(subset, user) -> the user's place among the users of all pairs of runs, who are swapped and
drawn together."""


def _places(pairs: Iterable[Sequence[Stratum]]) -> Places:
    # A user of several pairs has one place, so that its sides are swapped in all of them.
    places: dict[tuple[str, str], int] = {}
    for stratum in chain.from_iterable(pairs):
        for user in stratum.users:
            places.setdefault((stratum.subset, user), len(places))

    return places


def _swaps(
    strata: Sequence[Stratum],
    places: Places,
    permutations: int,
) -> paired.Swapped:
    """Return the differences of some strata with sides of users swapped, the same users for all
    pairs of runs."""
    return paired.swapped(
        [stratum.pair for stratum in strata],
        strata[0].figures.values,
        np.random.default_rng(SEED),
        permutations,
        [stratum.columns(places) for stratum in strata],
        len(places),
        studentised=strata[0].variances is not None,
    )


def _tests(
    strata: Sequence[Stratum],
    places: Places,
    permutations: int,
) -> list[Test]:
    if not strata:
        return []

    figures = strata[0].figures
    swaps = _swaps(strata, places, permutations)
    groups = {stratum.subset: [stratum] for stratum in strata}
    if len(strata) > 1:
        groups[ALL] = list(strata)

    # The verdict is about all subsets, or about the only one.
    last_subset = list(groups)[-1]
    tests = []
    for subset, group in groups.items():
        for column, name in enumerate(figures.names):
            is_primary = subset == last_subset and name in figures.main
            tests.append(_test(subset, group, strata, swaps, column, primary=is_primary))

    return tests


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
    defined = [stratum for stratum in group if not np.isnan(stratum.values[:, column]).any()]
    values = np.array([stratum.values[:, column] for stratum in defined]).reshape(-1, 2)
    published = np.array([stratum.published[:, column] for stratum in defined]).reshape(-1, 2)
    compared_by = metric.name
    as_given = None
    if not np.allclose(published, values, rtol=0, atol=paired.ROUNDING):
        compared_by = metric.ranked_by
        as_given = dict(zip("ab", map(number, published.mean(axis=0)), strict=True))

    observed = math.nan
    swapped = np.empty(0)
    difference = _mean(values[:, 0] - values[:, 1])
    if difference is not None:
        positions = list(map(strata.index, defined))
        observed, swapped = _scaled(difference, values, defined, positions, swaps, column)

    better, equal, worse = _agreement(defined, metric, column)
    chance, chance_error = _chance(defined, metric.name)
    strata_moments = [stratum.moments[column] for stratum in defined]
    few_untied = {}
    for stratum, stratum_moments in zip(defined, strata_moments, strict=True):
        if stratum_moments.untied < MIN_UNTIED:
            few_untied[stratum.subset] = stratum_moments.untied

    users = [stratum_moments.users for stratum_moments in strata_moments]
    missing = None
    if primary:
        missing = sensitivity([stratum.incomplete for stratum in defined], figures, metric)

    figure = Difference(
        subset=subset,
        undefined_on=[stratum.subset for stratum in group if stratum not in defined],
        a=_mean(values[:, 0]),
        b=_mean(values[:, 1]),
        difference=difference,
        a_better=better,
        equal=equal,
        b_better=worse,
        subsets=len(defined),
        metric=metric.name,
        lower_is_better=metric.lower_is_better,
        compared=compared_by,
        given=as_given,
        exploratory=not primary,
        users=sum(users),
        few_untied=few_untied,
        ci95=interval(difference, strata_moments),
        approximate=bool(defined) and is_approximate(strata_moments),
        p=paired.p_value(swapped, observed, swaps.is_complete),
        standard_error=standard_error(strata_moments) if min(users, default=0) > 1 else None,
        missing=missing,
        chance=chance,
        chance_error=chance_error,
    )

    return Test(figure, metric, column, defined, observed, swapped, swaps.is_complete)


def _scaled(
    difference: float,
    values: Array,
    strata: Sequence[Stratum],
    places: Sequence[int],
    swaps: paired.Swapped,
    column: int,
) -> tuple[float, Array]:
    """Return a mean difference over strata and those under swaps, in units that compare with other
    figures. What is no mean is studentised (Janssen 1997; Chung & Romano 2013)."""
    # `ROUNDING` is for figures of the size of 1.
    size = float(np.abs(values).max(initial=1.0))
    swapped = swaps.differences[places, :, column].mean(axis=0) / size
    if swaps.variances is None:
        return difference / size, swapped

    scale = size * len(strata)
    variances = []
    for stratum in strata:
        if stratum.variances is not None:
            variances.append(stratum.variances[column])

    error = float(_root(np.sum(variances))) / scale
    errors = _root(swaps.variances[places, :, column].sum(axis=0)) / scale

    return difference / size / error, swapped / errors


def _root(variances: Array | np.floating) -> Array:
    """Return the roots of variances; of one that is rounding alone that of a tiny one, so that it
    divides nothing."""
    roots: Array = np.sqrt(np.maximum(variances, paired.ROUNDING**2))
    return roots


def _agreement(
    strata: Sequence[Stratum],
    metric: Metric,
    column: int,
) -> tuple[int, int, int]:
    """Return on how many users A is better, equal, worse."""
    higher = equal = lower = 0
    for stratum in strata:
        effects = stratum.effects[:, column]
        same = stratum.same[:, column]
        higher += int((~same & (effects > 0)).sum())
        equal += int((same & ~np.isnan(effects)).sum())
        lower += int((~same & (effects < 0)).sum())

    if metric.lower_is_better:
        return lower, equal, higher

    return higher, equal, lower


def _chance(strata: Sequence[Stratum], name: str) -> tuple[float | None, float | None]:
    """Return the mean over strata of their chance levels and its standard error; None where one has
    no level."""
    levels = []
    errors = []
    for stratum in strata:
        if stratum.report is None or name not in stratum.report.chance:
            return None, None

        levels.append(stratum.report.chance[name])
        errors.append(stratum.report.chance_error.get(name, 0.0))

    if not levels:
        return None, None

    return _mean(levels), math.hypot(*errors) / len(errors)


def _adjusted(tests: Sequence[Test]) -> list[Difference]:
    """Return the figures of a family of tests, with the p-values that hold for all of them
    together."""
    family = [test for test in tests if test.figure.p is not None]
    if not family:
        return [test.figure for test in tests]

    swaps = np.stack([test.swaps for test in family], axis=1)
    observed = np.array([test.observed for test in family])
    p_values = iter(paired.max_t(swaps, observed, family[0].is_complete))
    figures = []
    for test in tests:
        figure = test.figure
        # An undefined figure is no test.
        if figure.p is not None:
            figure = structs.replace(figure, p_adjusted=next(p_values), family=len(family))

        figures.append(figure)

    return figures


def _concluded(
    tests: Sequence[Test],
    places: Places,
    draws: int,
) -> list[Difference]:
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
    figure: Difference,
    strata: Sequence[Stratum],
    column: int,
    margin: float,
) -> NonInferiority:
    """Return the answer for a primary figure over some strata, in whose parts it has a column."""
    strata_moments = []
    for stratum in strata:
        if stratum.subset not in figure.undefined_on:
            strata_moments.append(stratum.moments[column])

    # Each end of a 90 % interval is a one-sided 95 % bound.
    bounds = interval(figure.difference, strata_moments, level=0.9)
    answer: Literal["not_worse", "worse", "unknown"] = "unknown"
    # Runs that are equal for each user have no interval.
    if figure.outcome == "same" and figure.users >= FEWEST:
        answer = "not_worse"
    elif bounds is not None and not figure.approximate:
        low, high = bounds
        if figure.lower_is_better:
            low, high = -high, -low
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

        is_higher = figure.difference > 0
        return "a_better" if is_higher != figure.lower_is_better else "b_better"

    smallest_p = (figure.family or 1) * 2.0 ** (1 - figure.differing)
    if smallest_p >= SIGNIFICANT:
        return "too_few"

    return "no_difference"


def change(figure: Difference) -> Change | None:
    """Return what missing users could change; None if there are none, or nothing is shown that
    could change. Source: Manski 1989; Horowitz & Manski 2000."""
    if figure.missing is None or figure.difference is None:
        return None

    # Of the two bounds, the one that is nearer to the other sign.
    sign, place = (1, 0) if figure.difference > 0 else (-1, 1)
    bounds = figure.missing["bounds"]
    if bounds is None or bounds[place] is None:
        return "unknown"
    if sign * bounds[place] <= 0:
        return "could_reverse"

    end = figure.missing["bounds_ci95"][place]
    if end is None or sign * end <= 0:
        return "could_undo"

    return "cannot_change"


def most_different(strata: Sequence[Stratum]) -> list[JSON]:
    """Return the users with the largest parts in the difference of the ranking figure, largest
    first."""
    users: list[JSON] = []
    for stratum in strata:
        column = stratum.figures.names.index(stratum.figures.main[-1])
        effects = np.where(stratum.same[:, column], np.nan, stratum.effects[:, column])
        largest = np.argsort(-np.abs(effects), kind="stable")[:MOST_DIFFERENT]
        for row in largest.tolist():
            difference = float(effects[row])
            if math.isnan(difference):  # NaN is sorted last
                break

            user = stratum.users[row]
            users.append({"subset": stratum.subset, "user_id": user, "difference": difference})

    return sorted(users, key=lambda user: -abs(user["difference"]))


def number(value: float | np.floating) -> float | None:
    return None if math.isnan(value) else float(value)


def _mean(values: Array | Sequence[float]) -> float | None:
    return number(np.mean(values)) if len(values) else None
