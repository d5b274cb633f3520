"""Jensen-Shannon divergence: golden values, scipy as the independent computation, and what one user
is worth."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon

from harness.benchmarks.dailymobility.divergence import curvature, distance, divergence, left_out

HISTOGRAM = st.lists(st.integers(0, 1000), min_size=5, max_size=5).filter(any)


def test_golden_values_of_one_coin_that_never_and_one_that_always_falls_on_either_side():
    """Against [.75, .25]: (log2(4/3) + 0.5 log2(2/3) + 0.5 log2(2)) / 2 = 0.31128 bits; in nats,
    the root 0.46450."""
    p, q = np.array([1.0, 0.0]), np.array([0.5, 0.5])
    assert float(divergence(p, q)) == pytest.approx(0.31127812445913283, abs=1e-15)
    assert float(distance(p, q)) == pytest.approx(0.464501404022459, abs=1e-14)


def test_equal_histograms_have_none_and_disjoint_ones_the_most():
    """0 and 1 bit; as a distance 0 and the root of ln 2; sizes of samples play no part."""
    p = np.array([3, 0, 1])
    assert float(divergence(p, 7 * p)) == 0.0
    assert float(divergence(p, np.array([0, 5, 0]))) == 1.0
    assert float(distance(p, np.array([0, 5, 0]))) == pytest.approx(math.sqrt(math.log(2)))


@given(HISTOGRAM, HISTOGRAM)
def test_agrees_with_scipy_in_both_bases(p, q):
    """The divergence is scipy's distance squared in base 2; the distance is scipy's in base e; both
    are symmetric."""
    a, b = np.array(p), np.array(q)
    assert float(divergence(a, b)) == pytest.approx(
        float(np.nan_to_num(jensenshannon(a, b, base=2))) ** 2, abs=1e-12
    )
    assert float(distance(a, b)) == pytest.approx(
        float(np.nan_to_num(jensenshannon(a, b))), abs=1e-7
    )
    assert float(divergence(a, b)) == float(divergence(b, a))


def test_many_histograms_are_compared_with_one_at_once():
    """A stack of histograms gives a stack of divergences, each as if alone."""
    p, many = np.array([1, 2, 3]), np.array([[1, 2, 3], [3, 2, 1], [0, 0, 9]])
    assert divergence(p, many).tolist() == [float(divergence(p, one)) for one in many]


def test_leaving_one_out_is_the_divergence_of_the_others():
    """Computed from tables of terms; here each user is really taken away."""
    rng = np.random.default_rng(1)
    p, rows = np.array([1, 0, 4, 5, 2]), rng.multinomial(7, [0.5, 0.2, 0.2, 0.1, 0.0], size=9)
    totals = rows.sum(axis=0)
    expected = [float(divergence(p, totals - row)) for row in rows]
    assert left_out(p, rows, totals) == pytest.approx(expected, abs=1e-13)
    assert left_out(p, rows[:2], totals) == pytest.approx(expected[:2], abs=1e-13)


def test_curvature_is_the_change_of_the_slope_over_a_users_counts():
    """Two steps of what a user adds to a bin, against the divergence of counts that are really
    added or taken away."""
    p, totals, step = np.array([3, 5, 2]), np.array([40, 50, 0]), np.array([4, 5, 1])
    found = curvature(p, totals, step)

    def term(at: int, count: float) -> float:
        a, b = p[at] / 10, count / 90
        return sum(x * math.log2(2 * x / (a + b)) for x in (a, b) if x) / 2

    for at in (0, 1):
        change = (
            term(at, totals[at] + step[at])
            - 2 * term(at, totals[at])
            + term(at, totals[at] - step[at])
        )
        assert found[at] == pytest.approx(change * (90 / step[at]) ** 2)
    assert found[2] == 0.0


def test_curvature_over_small_steps_is_the_second_derivative():
    """p / (q (p + q)) / (2 ln 2) by the share q."""
    p, totals = np.array([0.25, 0.75]), np.array([600_000, 400_000])
    q = totals / totals.sum()
    expected = p / (q * (p + q)) / (2 * math.log(2))
    assert curvature(p, totals, np.array([100, 100])) == pytest.approx(expected, rel=1e-4)
