"""Users needed for a difference: the power they have, how sure the number is, and where there is none."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from harness.features.compare.sample_size import needed
from harness.scoring.bootstrap import Array
from harness.scoring.intervals import POWER, detectable


def exactly(spread: float, users: int) -> Array:
    """Parts with this standard deviation, about 0, no two the same."""
    values = np.linspace(-1.0, 1.0, users)
    found: Array = spread * values / values.std(ddof=1)
    return found


@pytest.mark.parametrize(("power", "family"), [(0.8, 1), (0.8, 182), (0.95, 9)])
def test_the_number_of_users_has_the_power_after_the_correction(power: float, family: int) -> None:
    """With that many users a normal difference of one point is found as often as asked, at 5 % by the tests."""
    found = needed([exactly(0.2, 50)], 0.01, power, family)
    assert found is not None
    shift, critical = 0.01 / (0.2 / math.sqrt(found.users)), stats.norm.ppf(1 - 0.025 / family)
    assert stats.norm.sf(critical - shift) == pytest.approx(power, abs=1e-3)


def test_users_are_spread_over_platforms_as_they_are() -> None:
    """The standard error of the mean of two platforms, each of which weighs the same, falls with the root of both."""
    one, other = exactly(0.2, 100), exactly(0.4, 25)
    found = needed([one, other], 0.01)
    error = math.hypot(0.2 / 10, 0.4 / 5) / 2
    assert found is not None
    assert found.users == math.ceil(125 * ((stats.norm.ppf(0.975) + stats.norm.ppf(0.8)) * error / 0.01) ** 2)


def test_a_twin_that_is_not_correlated_takes_twice_the_users() -> None:
    """The variance of the difference of two runs is that of both."""
    once, twice = (needed([exactly(0.2, 60)], 0.01, factor=factor) for factor in (1.0, 2.0))
    assert once is not None and twice is not None
    assert list(twice) == pytest.approx([2 * number for number in once], abs=1)


def test_rare_differences_cannot_be_planned_with() -> None:
    """Of 400 users 19 that differ are too few to know their spread; 21 are enough for a tenth of a point, but not for
    a point, of which too few users would differ, nor where p could not fall to the level of so many tests."""
    few, some = (np.where(np.arange(400) < users, np.linspace(0.1, 0.2, 400), 0.0) for users in (19, 21))
    assert needed([few], 0.001) is None
    assert needed([some], 0.001) is not None
    assert needed([some], 0.01) is None
    assert needed([some], 0.0045) is not None
    assert needed([some], 0.0057) is None
    assert needed([some], 0.00725, family=182) is None


def test_a_run_without_users_or_spread_has_no_plan() -> None:
    """Nobody, one user, users that are all the same."""
    assert [needed(strata, 0.01) for strata in ([], [np.array([0.5])], [np.full(50, 0.5)])] == [None] * 3


@pytest.mark.parametrize("shape", ["normal", "bounded", "rare"])
def test_the_interval_of_the_number_holds_the_true_one(shape: str) -> None:
    """Over 300 data sets of 100 users, of normal, of two-peaked and of zero-inflated skewed parts: 95 of 100."""
    rng = np.random.default_rng(3)
    draw = {
        "normal": lambda users: 0.3 * rng.standard_normal(users),
        "bounded": lambda users: rng.beta(0.5, 0.5, users) - rng.beta(0.5, 0.5, users),
        "rare": lambda users: np.where(rng.random(users) < 0.6, rng.exponential(0.2, users), 0.0),
    }[shape]
    spread = float(draw(1_000_000).std())
    truth = ((stats.norm.ppf(0.975) + stats.norm.ppf(0.8)) * spread / 0.01) ** 2
    found = [needed([draw(100)], 0.01) for _ in range(300)]
    inside = sum(one is not None and one.low <= truth <= one.high for one in found)
    assert 0.91 <= inside / 300 <= 0.99


def test_the_smallest_difference_is_that_of_the_normal_approximation() -> None:
    """The error of two runs, by Student's quantile of one interval, times both quantiles of the normal distribution."""
    error = 0.2 / 2 / stats.t.ppf(0.975, 41)
    reach = stats.norm.ppf(POWER) - stats.norm.ppf(0.025)
    assert detectable((0.3, 0.5), 42) == pytest.approx(math.sqrt(2) * error * reach, rel=1e-12)
