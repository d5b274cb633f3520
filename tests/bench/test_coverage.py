"""The study of coverage computes its intervals by itself: they are those of the harness."""

from __future__ import annotations

import numpy as np
import pytest

from bench import coverage
from harness.scoring.intervals import interval, is_approximate, moments


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(12,), (40,), (20, 20, 20), (10, 200)])
@pytest.mark.parametrize(
    "name",
    ["F1^NS", "Error_Viral", "FWT Recall", "Recall, step 8", "compare, one user in ten gains"],
)
def test_reference_intervals_are_those_of_the_harness(name, sizes):
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
