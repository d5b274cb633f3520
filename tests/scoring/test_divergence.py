"""Jensen-Shannon divergence: golden values, scipy as the independent computation, and what one user is worth."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon

from harness.scoring.divergence import Array, distance, divergence, jackknife, left_out

HISTOGRAM = st.lists(st.integers(0, 1000), min_size=5, max_size=5).filter(any)


def test_golden_values_of_one_coin_that_never_and_one_that_always_falls_on_either_side() -> None:
    """Against [.75, .25]: (log2(4/3) + 0.5 log2(2/3) + 0.5 log2(2)) / 2 = 0.31128 bits; in nats, the root 0.46450."""
    p, q = np.array([1.0, 0.0]), np.array([0.5, 0.5])
    assert float(divergence(p, q)) == pytest.approx(0.31127812445913283, abs=1e-15)
    assert float(distance(p, q)) == pytest.approx(0.464501404022459, abs=1e-14)


def test_equal_histograms_have_none_and_disjoint_ones_the_most() -> None:
    """0 and 1 bit; as a distance 0 and the root of ln 2; sizes of samples play no part."""
    p = np.array([3, 0, 1])
    assert float(divergence(p, 7 * p)) == 0.0
    assert float(divergence(p, np.array([0, 5, 0]))) == 1.0
    assert float(distance(p, np.array([0, 5, 0]))) == pytest.approx(math.sqrt(math.log(2)))


@given(HISTOGRAM, HISTOGRAM)
def test_agrees_with_scipy_in_both_bases(p: list[int], q: list[int]) -> None:
    """The divergence is scipy's distance squared in base 2; the distance is scipy's in base e; both are symmetric."""
    a, b = np.array(p), np.array(q)
    assert float(divergence(a, b)) == pytest.approx(float(np.nan_to_num(jensenshannon(a, b, base=2))) ** 2, abs=1e-12)
    assert float(distance(a, b)) == pytest.approx(float(np.nan_to_num(jensenshannon(a, b))), abs=1e-7)
    assert float(divergence(a, b)) == float(divergence(b, a))


def test_many_histograms_are_compared_with_one_at_once() -> None:
    """A stack of histograms gives a stack of divergences, each as if alone."""
    p, many = np.array([1, 2, 3]), np.array([[1, 2, 3], [3, 2, 1], [0, 0, 9]])
    assert divergence(p, many).tolist() == [float(divergence(p, one)) for one in many]


def test_leaving_one_out_is_the_divergence_of_the_others() -> None:
    """Computed from tables of terms; here each user is really taken away."""
    rng = np.random.default_rng(1)
    p, rows = np.array([1, 0, 4, 5, 2]), rng.multinomial(7, [0.5, 0.2, 0.2, 0.1, 0.0], size=9)
    totals = rows.sum(axis=0)
    expected = [float(divergence(p, totals - row)) for row in rows]
    assert left_out(p, rows, totals) == pytest.approx(expected, abs=1e-13)
    assert left_out(p, rows[:2], totals) == pytest.approx(expected[:2], abs=1e-13)


def means_left_out(values: Array) -> Array:
    means: Array = (values.sum() - values) / (len(values) - 1)
    return means


def test_the_jackknife_of_a_mean_is_its_standard_error() -> None:
    """For a mean the jackknife is exact: no bias, and s / sqrt(n)."""
    values = np.array([1.0, 4.0, 2.0, 8.0, 5.0])
    found = jackknife(float(values.mean()), means_left_out(values))
    assert found is not None
    assert found.bias == pytest.approx(0.0, abs=1e-14)
    assert found.error == pytest.approx(float(values.std(ddof=1)) / math.sqrt(5))


def test_the_jackknife_takes_the_bias_off_a_variance() -> None:
    """The mean squared deviation is too small by 1 / n of the unbiased variance, and the jackknife finds just that."""
    values = np.array([1.0, 4.0, 2.0, 8.0, 5.0])
    without = np.array([np.delete(values, at).var() for at in range(5)])
    found = jackknife(float(values.var()), without)
    assert found is not None
    assert values.var() - found.bias == pytest.approx(values.var(ddof=1))


def test_nothing_is_said_of_fewer_than_two_users() -> None:
    """One user has no spread, and nobody has none either."""
    assert jackknife(0.5, np.array([0.5])) is None
    assert jackknife(0.5, np.array([])) is None


@given(st.permutations(range(12)))
def test_the_order_of_users_changes_no_digit(order: list[int]) -> None:
    """Sums are exactly rounded."""
    values = np.random.default_rng(2).random(12)
    assert jackknife(0.4, values) == jackknife(0.4, values[order])
