"""Totals of users who are left, predicted from those who were played."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from harness.features.estimate.prediction import DRAWN, Array, Range, draws, together, total


def rng() -> np.random.Generator:
    return np.random.default_rng(1)


def test_equal_sizes_give_students_interval_of_a_sum() -> None:
    """By hand: the mean times the users left, and t with n - 1 degrees of freedom; above it may be the tail's bound."""
    values = np.array([3.0, 5.0, 4.0, 8.0])
    found = total(np.ones(4), values, np.ones(10), rng())
    errors = (values - 5.0) / (1 - 1 / 4)
    half = stats.t.ppf(0.975, 3) * np.sqrt((errors**2).sum() / 3 * 10 * (1 + 10 / 4))
    assert found.value == pytest.approx(50.0)
    assert found.high >= 50 * np.exp(half / 50) * (1 - 1e-9) and found.low == pytest.approx(50 / np.exp(half / 50))


def half_width(sizes: Array) -> float:
    """Return the lower half, as a factor, of users whose errors are like those of one step."""
    values = sizes + np.sqrt(sizes) * np.where(np.arange(len(sizes)) % 2, 0.1, -0.1)
    found = total(sizes, values, np.full(50, 2.0), rng())
    return found.value / found.low


def test_few_large_users_leave_more_unknown() -> None:
    """The spread is then known from them alone."""
    assert half_width(np.array([100.0, *[1.0] * 19])) > half_width(np.array([2.0] * 20))


def test_counts_that_are_all_alike_are_not_taken_as_certain() -> None:
    sizes = np.array([3.0, 5.0, 8.0])
    assert total(sizes, sizes, np.full(20, 5.0), rng()) == pytest.approx(Range(100.0, 100.0, 100.0))
    found = total(sizes, sizes, np.full(20, 5.0), rng(), counted=True)
    assert found.low < 100.0 < found.high


def test_nobody_left_takes_nothing() -> None:
    assert total(np.array([1.0, 2.0]), np.array([2.0, 5.0]), np.zeros(0), rng()) == Range(0.0, 0.0, 0.0)


def test_sums_add_squares_of_their_errors_and_what_is_known() -> None:
    assert together([Range(10, 7, 14), Range(20, 16, 23)], 100.0) == Range(130.0, 125.0, 135.0)


def test_many_users_are_drawn_as_some() -> None:
    """Their totals are those of all."""
    sizes, left = np.ones(30), np.full(4 * DRAWN, 2.0)
    drawn = next(draws(sizes, np.full(30, 3.0), left, rng()))
    assert len(drawn) == DRAWN and drawn.sum() == pytest.approx(left.sum() * 3.0)


@pytest.mark.parametrize("exponent", [1.3, 1.8, 3.0])
def test_totals_with_pareto_tails_are_inside(exponent: float) -> None:
    """Of 50 populations of 300 users whose use of a step has such a tail; Student's interval alone has 70 to 85 %."""
    held = 0
    for seed in range(50):
        of = np.random.default_rng(seed)
        sizes, ratios = 1.0 + of.poisson(5, 300), 1.0 + of.pareto(exponent, 300)
        values, played = sizes * ratios, slice(0, 30)
        found = total(sizes[played], values[played], sizes[30:], of)
        held += found.low <= values[30:].sum() <= found.high
    assert held >= 45
