"""Totals of users who are left, predicted from those who were played."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from harness.scoring.prediction import Range, quantile, together, total


def test_equal_sizes_give_students_interval_of_a_sum() -> None:
    """By hand: the mean times the users left, and t with n - 1 degrees of freedom."""
    values = np.array([3.0, 5.0, 4.0, 8.0])
    found = total(np.ones(4), values, 10.0)
    errors = (values - 5.0) / (1 - 1 / 4)
    half = stats.t.ppf(0.95, 3) * np.sqrt((errors**2).sum() / 3 * 10 * (1 + 10 / 4))
    assert found.value == pytest.approx(50.0)
    assert found.high == pytest.approx(50 * np.exp(half / 50)) and found.low == pytest.approx(50 / np.exp(half / 50))


def test_few_large_users_leave_more_unknown() -> None:
    """The spread is then known from them alone."""
    assert quantile(np.ones(20)) == pytest.approx(stats.t.ppf(0.95, 19))
    assert quantile(np.array([100.0, *[1.0] * 19])) == pytest.approx(stats.t.ppf(0.95, 3))
    sizes = np.array([2.0, 2.0, *[1.0] * 18])
    assert quantile(sizes) == pytest.approx(stats.t.ppf(0.95, 26.0**2 / 50.0 - 1))


def test_counts_that_are_all_alike_are_not_taken_as_certain() -> None:
    sizes = np.array([3.0, 5.0, 8.0])
    assert total(sizes, sizes, 100.0) == Range(100.0, 100.0, 100.0)
    found = total(sizes, sizes, 100.0, counted=True)
    assert found.low < 100.0 < found.high


def test_nobody_left_takes_nothing() -> None:
    assert total(np.array([1.0, 2.0]), np.array([2.0, 5.0]), 0.0) == Range(0.0, 0.0, 0.0)


def test_sums_add_squares_of_their_errors_and_what_is_known() -> None:
    assert together([Range(10, 7, 14), Range(20, 16, 23)], 100.0) == Range(130.0, 125.0, 135.0)
