"""The time of the rest of a run, where it can be computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from harness.engine import forecast
from harness.engine.forecast import Pace


def pace(seconds: float, *, failed: int = 0, tokens: float = 100.0) -> Pace:
    """Ten users of three steps, each of whose replies takes so long."""
    return Pace([np.full(3, seconds)] * 10, np.full(10, 3.0), np.full(10, 3 * tokens), failed, np.zeros(0))


def of(left: list[int], *, slots: int, rpm: float | None = None, tpm: float | None = None, each: float = 2.0) -> float:
    return forecast.seconds([(np.array(left, np.int32), pace(each))], slots, rpm, tpm, 1).value


@pytest.mark.parametrize(
    ("left", "slots", "rpm", "tpm", "expected"),
    [
        ([3] * 100, 10, None, None, 60.0),  # all slots are busy to the end
        ([3] * 99 + [50], 1000, None, None, 100.0),  # the longest chain
        ([3] * 100, 100, 60.0, None, 300.0),  # 300 requests, one a second
        ([3] * 100, 100, None, 3000.0, 600.0),  # 30,000 tokens, 50 a second
    ],
    ids=["slots", "chain", "requests", "tokens"],
)
def test_time_is_what_bounds_the_schedule(
    left: list[int], slots: int, rpm: float | None, tpm: float | None, expected: float
) -> None:
    """But for the few tries that may fail although none was seen to."""
    assert of(left, slots=slots, rpm=rpm, tpm=tpm) == pytest.approx(expected, rel=0.12)


def test_failed_tries_take_their_time_and_their_pauses() -> None:
    """Half of all tries fail at once: each request waits for a quarter of a second, then for half of one, ..."""
    failing = Pace([np.full(3, 2.0)] * 100, np.full(100, 3.0), np.full(100, 1.0), 300, np.full(9, 4.0))
    found = forecast.seconds([(np.full(300, 3, np.int32), failing)], 10, None, None, 1)
    assert found.value > 300 * 3 * (2.0 + 4.0) / 10
    assert found.low < found.value < found.high


def test_share_of_many_users_stands_for_all() -> None:
    """A tenth of the users on a tenth of the slots takes as long."""
    assert of([3] * 60_000, slots=400) == pytest.approx(60_000 * 3 * 2.0 / 400, rel=0.1)
