"""Intervals against scipy, against a root of Hall's polynomial, and by how often they hold the
truth."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from scipy import optimize, stats

from harness.scoring.bootstrap import Array
from harness.scoring.intervals import (
    FEWEST,
    FEWEST_AT_ALL,
    FEWEST_UNTIED,
    POWER,
    SHRINKAGE,
    detectable,
    interval,
    is_approximate,
    moments,
    parts,
    standard_error,
    student,
)

NAN = float("nan")


def test_interval_of_two_values_without_skewness_is_students():
    """As scipy's t test has it: half of the users with each value, so the mean alone decides how
    they spread."""
    values = np.repeat([0.0, 1.0], 20)
    theirs = stats.ttest_1samp(values, 0.0).confidence_interval()
    assert interval(values.mean(), [moments(values)]) == pytest.approx(
        (theirs.low, theirs.high), abs=1e-12
    )


@pytest.mark.parametrize(
    "freedom", [1.0, 1.3, 2.0, 4.7, 11.0, 30.5, 299.9, 300.0, 1e3, 12345.6, 1e8]
)
def test_quantile_is_students_at_any_degrees_of_freedom(freedom):
    """As scipy has it, to 12 digits, also between whole numbers and in the normal limit."""
    assert student(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-12)


def test_interval_of_a_report_loads_no_scipy():
    """The 95 % interval and the smallest difference that it shows, which every report has, cost no
    import."""
    code = """
import sys
from harness.scoring.intervals import Moments, interval
from harness.scoring.intervals import detectable
assert detectable(interval(0.5, [Moments(60, 60, 0.1, 0.0, 3.0)]), 60)
sys.exit("scipy" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_interval_over_two_strata_is_welchs():
    """The mean of x and -y is half of x - y, of which scipy has Welch's interval."""
    x, y = np.repeat([0.0, 1.0], 20), np.repeat([0.0, 3.0], 20)
    theirs = stats.ttest_ind(x, y, equal_var=False).confidence_interval()
    ours = interval((x.mean() - y.mean()) / 2, [moments(x), moments(-y)])
    assert ours == pytest.approx((theirs.low / 2, theirs.high / 2), abs=1e-12)


def test_skewed_interval_solves_halls_polynomial():
    """Each end is where T + a T^2 / 3 + a^2 T^3 / 27 + a / 6 is Student's quantile; a is the
    skewness, shrunk."""
    values = np.random.default_rng(4).exponential(size=45)
    kurtosis = stats.kurtosis(values, fisher=False)
    linked = stats.kstat(values, 3) ** 2 / stats.kstat(values, 2) ** 3 / (kurtosis - 1)
    assert 0 < linked < 1
    a = stats.kstat(values, 3) / stats.kstat(values, 2) ** 1.5 / math.sqrt(45)
    a *= min(1, 2 * linked) ** 2 * 44 / (44 + SHRINKAGE)
    ends = []
    for quantile in stats.t.ppf([0.975, 0.025], min(44, 45 / (kurtosis - 1) / (1 - linked) / 1.5)):
        t = optimize.brentq(
            lambda t, q=quantile: t + a * t**2 / 3 + a**2 * t**3 / 27 + a / 6 - q, -50, 50
        )
        ends.append(values.mean() - t * stats.sem(values))
    assert interval(values.mean(), [moments(values)]) == pytest.approx(ends, abs=1e-9)


@pytest.mark.parametrize("untied", [0, 1, FEWEST_UNTIED - 1, FEWEST_UNTIED])
def test_nearly_equal_values_have_an_approximate_interval(untied):
    """And equal ones none of width zero: what the next users have is unknown."""
    values = np.concatenate([np.zeros(93), np.linspace(0.2, 0.7, untied)])
    of = [moments(values)]
    assert of[0].untied == untied
    assert (interval(values.mean(), of) is None) == (untied == 0)
    assert is_approximate(of) == (untied < FEWEST_UNTIED)


def test_intervals_of_few_users_are_approximate():
    """However much they differ; of fewer than ten there is none."""
    values = np.random.default_rng(11).random(FEWEST)
    enough, few, fewest, too_few = (
        (interval(values[:users].mean(), of), is_approximate(of))
        for users in (FEWEST, FEWEST - 1, FEWEST_AT_ALL, FEWEST_AT_ALL - 1)
        for of in [[moments(values[:users])]]
    )
    assert enough[0] and not enough[1]
    assert few[0] and few[1]
    assert fewest[0] and fewest[1]
    assert too_few[0] is None


def heavy(seed: int, users: int = 60) -> Array:
    """Return log-normal values, whose tail is long."""
    return np.random.default_rng(seed).lognormal(0.0, 1.0, users)


def arms(values: Array) -> tuple[float, float]:
    """Return how far an interval reaches below and above the mean, in standard errors."""
    low, high = interval(values.mean(), [moments(values)]) or (NAN, NAN)
    error = standard_error([moments(values)])
    return (values.mean() - low) / error, (high - values.mean()) / error


@pytest.mark.slow
def test_no_arm_of_an_interval_is_over_twice_students():
    """Of 500 data sets with a long tail; with all of the skewness taken out it was thrice as long
    in a quarter."""
    ratios = [
        arms(values)[1] / student(max(6, freedom(values))) for values in map(heavy, range(500))
    ]
    assert np.median(ratios) > 1.2 and max(ratios) < 2


def freedom(values: Array) -> float:
    """Return the degrees of freedom of docs/statistics.md, by scipy's moments."""
    users, kurtosis = len(values), stats.kurtosis(values, fisher=False)
    linked = stats.kstat(values, 3) ** 2 / stats.kstat(values, 2) ** 3 / (kurtosis - 1)
    return float(min(users - 1, users / (kurtosis - 1) / (1 - linked) / 1.5))


@pytest.mark.parametrize("seed", range(0, 40, 5))
def test_one_value_moves_an_interval_smoothly(seed):
    """As the largest of 60 values grows to its double in steps of a hundredth, no step moves an end
    by more than 0.1 standard errors; with all of the skewness taken out one moved it by up to
    2.4."""
    values = np.sort(heavy(seed))
    reached = []
    for factor in np.linspace(1.0, 2.0, 101):
        values[-1] = heavy(seed).max() * factor
        reached.append(arms(values)[1])
    assert np.abs(np.diff(reached)).max() < 0.1


def test_values_that_differ_by_rounding_are_tied():
    """A tenth added up thrice is no other value than three tenths."""
    assert moments(np.array([0.1 + 0.2, 0.3, 0.3])).untied == 0


def test_undefined_figures_and_too_few_users_have_no_interval():
    """No users, one user, users without a value."""
    of = moments(np.random.default_rng(6).random(20))
    assert interval(None, [of]) is interval(NAN, [of]) is interval(0.5, []) is None
    assert interval(0.5, [of, moments(np.array([0.5, NAN]))]) is None
    assert interval(0.5, [moments(np.array([NAN, NAN]))]) is None


def test_a_stratum_of_few_users_decides():
    """Five users on one platform say too little of it, however many the others have."""
    rng = np.random.default_rng(7)
    many, few = moments(rng.random(200)), moments(rng.random(5))
    assert is_approximate([many, few]) and not is_approximate([many, many])


def test_interval_is_cut_to_the_bounds():
    """A share is never below 0 nor above 1."""
    values = np.concatenate([np.zeros(30), np.linspace(0.0, 0.2, 10)])
    assert (interval(values.mean(), [moments(values)], (0.02, 0.03)) or ()) == (0.02, 0.03)
    assert interval(values.mean(), [moments(values)], (None, 1.0)) == interval(
        values.mean(), [moments(values)]
    )


def test_order_of_users_changes_nothing():
    """To the last bit."""
    values = np.random.default_rng(8).random(100)
    assert moments(values) == moments(values[::-1])


def test_parts_of_a_mean_are_the_values():
    """A user without a value has no part."""
    values = np.array([0.2, NAN, 0.9, 0.4])
    rows = np.column_stack([np.nan_to_num(values), ~np.isnan(values)])
    found = parts(rows, lambda totals: totals[:, :1] / totals[:, 1:], rows[:, 1:] > 0)
    np.testing.assert_allclose(found[:, 0], values)


@pytest.mark.parametrize("users", [FEWEST, 100])
def test_intervals_of_skewed_values_hold_the_truth(users):
    """A third of the users has 0, the others beta(2, 4) values: 95 % of 2,000 data sets, to within
    2 points."""
    rng = np.random.default_rng(10)
    sets = np.where(rng.random((2000, users)) < 1 / 3, 0.0, rng.beta(2, 4, (2000, users)))
    found = [interval(values.mean(), [moments(values)]) for values in sets]
    held = [low <= 2 / 9 <= high for low, high in filter(None, found)]
    assert len(held) > 1900
    assert 0.93 <= np.mean(held) <= 0.97


def test_a_user_without_a_figure_of_its_own_counts():
    """The true values of half of the users are 0, so that theirs alone is no ratio: the interval is
    of all."""
    rng = np.random.default_rng(12)
    true = np.where(np.arange(60) % 2, 0.0, rng.lognormal(1.0, 0.5, 60))
    rows = np.column_stack([np.abs(rng.normal(size=60)), true])
    found = parts(rows, lambda totals: totals[:, :1] / totals[:, 1:])[:, 0]
    without = [np.delete(rows, user, axis=0).sum(axis=0) for user in range(60)]
    whole = rows[:, 0].sum() / rows[:, 1].sum()
    np.testing.assert_allclose(found, [60 * whole - 59 * a / b for a, b in without])
    assert moments(found).users == 60 and interval(whole, [moments(found)]) is not None


def test_no_interval_where_all_rests_on_one_user():
    """Without that user there is no figure; all users are counted."""
    rows = np.column_stack([np.random.default_rng(13).random(40), np.arange(40) == 7]).astype(
        np.float64
    )
    of = moments(parts(rows, lambda totals: totals[:, :1] / totals[:, 1:])[:, 0])
    assert (of.users, of.untied) == (40, 0)
    assert interval(rows[:, 0].sum(), [of]) is None


def test_exactly_the_fewest_untied_users_are_enough():
    """At every number of users."""
    untied = np.linspace(0.2, 0.7, FEWEST_UNTIED)
    for users in range(FEWEST, 401):
        values = np.concatenate([np.zeros(users - FEWEST_UNTIED), untied])
        assert interval(values.mean(), [moments(values)]) is not None, users


def ones(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    return np.where(rng.random(shape) < 0.22, np.minimum(1.0, rng.lognormal(-2.6, 0.8, shape)), 0.0)


@pytest.mark.parametrize("users", [40, 100])
def test_intervals_of_rare_errors_hold_the_truth(users):
    """Four users in five make no error; the skewness is believed: 93 to 97 % of 1,500 data sets, to
    within a point."""
    sets = ones(np.random.default_rng(14), (1500, users))
    truth = ones(np.random.default_rng(15), (1, 2_000_000)).mean()
    found = [interval(values.mean(), [moments(values)]) for values in sets]
    held = [low <= truth <= high for low, high in filter(None, found)]
    assert 0.93 <= np.mean(held) <= 0.98


def test_the_smallest_difference_is_that_of_the_normal_approximation():
    """The error of two runs, by Student's quantile of one interval, times both quantiles of the
    normal distribution."""
    error = 0.2 / 2 / stats.t.ppf(0.975, 41)
    reach = stats.norm.ppf(POWER) - stats.norm.ppf(0.025)
    assert detectable((0.3, 0.5), 42) == pytest.approx(math.sqrt(2) * error * reach, rel=1e-12)


def test_parts_of_a_ratio_are_those_of_a_loop_that_leaves_users_out():
    """n x all - (n - 1) x all but one; their spread is the jackknife's standard error."""
    rows = np.random.default_rng(9).random((12, 2))
    theta = rows[:, 0].sum() / rows[:, 1].sum()
    without = [np.delete(rows, user, axis=0).sum(axis=0) for user in range(12)]
    expected = [12 * theta - 11 * a / b for a, b in without]
    found = parts(rows, lambda totals: totals[:, :1] / totals[:, 1:])[:, 0]
    np.testing.assert_allclose(found, expected)
    assert standard_error([moments(found)]) == pytest.approx(stats.sem(expected))
