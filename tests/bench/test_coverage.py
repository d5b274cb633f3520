"""The study of coverage computes its intervals by itself: they are those of the harness."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from bench import coverage
from harness.scoring.intervals import interval, is_approximate, moments


@pytest.mark.parametrize("sizes", [(12,), (40,), (20, 20, 20), (10, 200)])
@pytest.mark.parametrize(
    "name",
    ["F1^NS", "Error_Viral", "FWT Recall", "Recall, step 8", "compare, one user in ten gains"],
)
def test_reference_intervals_are_those_of_the_harness(name: str, sizes: tuple[int, ...]) -> None:
    """Of 50 data sets with one platform and several: the same ends, and the same are
    approximate."""
    rng = np.random.default_rng(3)
    strata = [coverage.POPULATIONS[name](rng, (50, users)) for users in sizes]
    for at, (figure, low, high, approximate) in enumerate(
        zip(*coverage.intervals(strata), strict=True)
    ):
        of = [moments(values[at]) for values in strata]
        ours = interval(float(figure), of)
        assert (ours or (np.nan, np.nan)) == pytest.approx((low, high), abs=1e-9, nan_ok=True)
        assert ours is None or is_approximate(of) == approximate


def test_a_cell_says_how_often_intervals_hold_and_which_are_approximate() -> None:
    """Of users that never differ there is none; of even ones there is always one, which holds in
    some 95 %; of few users it has a mark."""
    rng = np.random.default_rng(4)
    assert coverage.cell([lambda rng, shape: np.zeros(shape)], [50], 0.0, rng, 100) == "too few"
    even = coverage.cell([lambda rng, shape: rng.random(shape)], [50], 0.5, rng, 1000)
    assert 93 < float(even) < 97
    missed = coverage.cell([lambda rng, shape: rng.random(shape)], [50], 0.9, rng, 100)
    assert float(missed) == 0
    few = coverage.cell([lambda rng, shape: rng.random(shape)], [20], 0.5, rng, 1000)
    assert few.startswith("~") and 93 < float(few[1:]) < 97


@pytest.mark.slow
def test_a_difference_of_equal_models_is_none() -> None:
    """What both sides of a comparison share does not move its truth."""
    values = partial(coverage.difference, "F1^NS", 0.0)(np.random.default_rng(5), (1, 100_000))
    assert abs(np.nanmean(values)) < 0.003
