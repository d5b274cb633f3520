"""The time of the rest of a run, where it can be computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from harness.features.estimate.prediction import NOTHING, OVERLAP, Range, draws, parallel, time_left


def bounds(left: list[int], *, seen: float, most: float, rated: Range = NOTHING) -> Range:
    """Return those after ten users of three steps, each of whose replies took 2 s."""
    drawn = draws(np.full(10, 3.0), np.full(10, 6.0), np.array(left, np.float64), np.random.default_rng(1))
    return time_left([drawn], seen, most, rated)


@pytest.mark.parametrize(
    ("left", "seen", "most", "rated", "low", "high"),
    [
        ([3] * 100, 10, 10, NOTHING, 60.0, 60.0 + 6 * OVERLAP),  # all slots are busy to the end
        ([3] * 100, 10, 100, NOTHING, 6.0, 60.0 + 6 * OVERLAP),  # or the endpoint serves no more than ten
        ([3] * 99 + [50], 400, 1000, NOTHING, 100.0, 100.0 + 1.735 * OVERLAP),  # the longest chain
        ([3] * 100, 100, 100, Range(300, 290, 310), 290.0, 310.0 + 6 * OVERLAP),  # a rate
    ],
    ids=["slots", "unknown", "chain", "rate"],
)
def test_time_is_what_bounds_the_schedule(
    left: list[int], seen: float, most: float, rated: Range, low: float, high: float
) -> None:
    found = bounds(left, seen=seen, most=most, rated=rated)
    assert (found.low, found.high) == pytest.approx((low, high)) and found.low <= found.value <= found.high


def test_requests_that_an_endpoint_answers_at_once_are_replies_a_second_times_their_seconds() -> None:
    """Little's law: twenty at a time of 4 s each are five a second, whatever comes first and last."""
    times = [0.0, *np.arange(10, 30, 0.2), *range(40, 60, 10)]
    assert parallel(times, 4.0) == pytest.approx(20.0, rel=0.05)
    assert parallel([1.0], 4.0) == 0.0
