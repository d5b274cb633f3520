"""The model of scale, and how measured costs are separated."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.scale import (
    Costs,
    needed,
    ray_most,
    solved,
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
SECONDS = st.floats(0.001, 0.2)


@given(
    st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 3000)), min_size=2), SECONDS, SECONDS
)
def test_costs_of_exact_sums_are_found_again(amounts, once, turn):
    """Where replies and turns vary independently, least squares returns the costs that made the
    sums."""
    every = [*amounts, (0, 0), (1000, 0), (0, 1000)]
    found = solved(
        [((1.0, replies, turns), once + 3e-4 * replies + turn * turns) for replies, turns in every]
    )
    assert found == pytest.approx([once, 3e-4, turn], abs=1e-6)


def test_needs_grow_with_steps_and_parts_share_the_time():
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
