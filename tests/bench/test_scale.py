"""The model of scale, and how measured costs are separated."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.scale import (
    BUSY,
    Costs,
    driver_most,
    local_most,
    needed,
    ray_most,
    solved,
    workers_to_saturate,
)

COSTS = Costs(
    local=0.9e-3,
    reply=0.2e-3,
    user=0.2e-3,
    turn=1.5e-3,
    worker=1.2e-3,
    wire=4000.0,
    disk=3000.0,
    driver_user=20e3,
    worker_user=50e3,
)
AGENT = replace(COSTS, own=0.002, replies=0.1)
SECONDS = st.floats(0.001, 0.2)


@given(
    st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 3000)), min_size=2), SECONDS, SECONDS
)
def test_costs_of_exact_sums_are_found_again(
    amounts: list[tuple[int, int]], once: float, turn: float
) -> None:
    """Where replies and turns vary independently, least squares returns the costs that made the
    sums."""
    every = [*amounts, (0, 0), (1000, 0), (0, 1000)]
    found = solved(
        [((1.0, replies, turns), once + 3e-4 * replies + turn * turns) for replies, turns in every]
    )
    assert found == pytest.approx([once, 3e-4, turn], abs=1e-6)


def test_rates_are_as_by_hand() -> None:
    """0.9 of a core over 0.9 ms a reply is 1,000 a second; ten workers at 50 ms take 0.3 of the
    driver's core, which takes 0.3 ms for a reply and its share of a user with two."""
    assert local_most(COSTS) == pytest.approx(1000.0)
    assert driver_most(COSTS, 10, 0.05) == pytest.approx((BUSY - 0.3) / 0.3e-3)
    assert ray_most(COSTS, 2, 0.05) == pytest.approx(2 * BUSY / 1.2e-3)
    assert local_most(AGENT) == pytest.approx(BUSY / 2.09e-3)


@given(st.integers(1, 500), SECONDS)
def test_more_workers_leave_a_driver_fewer_replies(workers: int, turn: float) -> None:
    """Each worker costs its turns, and a driver that has only turns has no reply left, never
    fewer."""
    assert 0.0 <= driver_most(COSTS, workers + 1, turn) <= driver_most(COSTS, workers, turn)
    assert ray_most(COSTS, workers, turn) <= driver_most(COSTS, workers, turn)


@pytest.mark.parametrize("costs", [COSTS, AGENT])
def test_one_worker_before_saturation_the_workers_limit(costs: Costs) -> None:
    """Up to the worker before, the rate grows by a worker's; from there on it does not grow."""
    last = workers_to_saturate(costs, 0.05)
    rates = [ray_most(costs, workers, 0.05) for workers in range(1, last + 2)]
    each = BUSY / (costs.worker * costs.replies + costs.own)
    assert rates[: last - 1] == pytest.approx([each * workers for workers in range(1, last)])
    assert rates[last] < rates[last - 1] + 1e-9


def test_needs_grow_with_steps_and_parts_share_the_time() -> None:
    """A hundred times the steps take a hundred times the time and disk; n parts an n-th of one
    process's time."""
    small, large = (needed(COSTS, steps, 1, 4, 1.0, 0.05) for steps in (1e6, 1e8))
    for a, b in zip(small, large, strict=True):
        assert (b["hours"], b["disk_gb"]) == (
            pytest.approx(100 * a["hours"]),
            pytest.approx(100 * a["disk_gb"]),
        )
        assert a["memory_mb_in_play"] == b["memory_mb_in_play"]
    local, ray, parts = small
    assert ray["steps_a_second"] == pytest.approx(ray_most(COSTS, 3, 0.05))
    assert parts["hours"] == pytest.approx(local["hours"] / 4)
    assert local["driver_mb_a_second"] == parts["driver_mb_a_second"] == 0.0
