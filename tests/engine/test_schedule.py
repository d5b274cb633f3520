"""Who starts next: everyone once, long chains in time, and a fair sample at every moment."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from harness.engine.schedule import SLACK, Schedule
from tests.support import examples

SEEDS = range(3)
chains = st.lists(st.integers(1, 40), min_size=1, max_size=60).map(
    lambda lengths: np.array(lengths, np.int32)
)


class Order(Protocol):
    def __bool__(self) -> bool: ...
    def next(self, slots: int) -> int: ...
    def done(self, steps: int) -> None: ...


class FileOrder:
    """What the schedule is compared with."""

    def __init__(self, users: int) -> None:
        self._left = list(range(users))

    def __bool__(self) -> bool:
        return bool(self._left)

    def next(self, slots: int) -> int:
        return self._left.pop(0)

    def done(self, steps: int) -> None:
        pass


def heavy_tailed(users: int, seed: int) -> NDArray[np.int32]:
    """Chains of 1 to 40 steps, most of them short: a Pareto tail, cut."""
    drawn = np.floor(3 * (np.random.default_rng(seed).pareto(1.3, users) + 1))
    return np.clip(drawn, 1, 40).astype(np.int32)


def played(order: Order, steps: NDArray[np.int32], slots: int) -> tuple[int, list[int]]:
    """Plays a schedule with steps of one unit of time, as the engine does: at most 2 x slots users
    in play, and whoever has most steps left goes first. Returns the makespan, and who is done when
    half the steps are."""
    left, in_play, time, half = steps.copy(), list[int](), 0, list[int]()
    while order or in_play:
        while order and len(in_play) < 2 * slots:
            in_play.append(order.next(slots))
        in_play.sort(key=lambda user: -left[user])
        left[in_play[:slots]] -= 1
        order.done(len(in_play[:slots]))
        in_play = [user for user in in_play if left[user]]
        time += 1
        if not half and 2 * left.sum() <= steps.sum():
            half = [int(user) for user in np.flatnonzero(left == 0)]
    return time, half


@given(chains, st.integers(1, 20), st.integers(0, 5))
@settings(max_examples=examples(50))
def test_every_user_starts_exactly_once(steps, slots, seed):
    """Whatever the chains and slots, a schedule hands out each user once, and then says that it is
    empty."""
    schedule = Schedule(steps, seed)
    started = []
    while schedule:
        started.append(schedule.next(slots))
        schedule.done(int(steps[started[-1]]))
    assert sorted(started) == list(range(len(steps)))
    assert schedule.remaining_steps == 0


@given(chains, st.integers(1, 20), st.integers(0, 5))
@settings(max_examples=examples(50))
def test_chain_that_could_outlast_the_rest_starts_at_once(steps, slots, seed):
    """No user waits whose steps, with slack, reach what is left for each slot, unless a longer one
    goes first."""
    schedule, waiting = Schedule(steps, seed), set(range(len(steps)))
    while schedule:
        due = schedule.remaining_steps / slots
        user = schedule.next(slots)
        longest = max(int(steps[other]) for other in waiting)
        assert steps[user] == longest or longest * SLACK < due
        waiting.remove(user)
        schedule.done(int(steps[user]))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("users", "slots"), [(300, 32), (1000, 64)])
def test_makespan_is_within_6_percent_of_its_lower_bound(users, slots, seed):
    """With heavy-tailed chains no schedule can end before max(work / slots, longest chain); file
    order is a fifth above that, ours next to it."""
    steps = heavy_tailed(users, seed)
    bound = max(steps.sum() / slots, steps.max())
    assert played(Schedule(steps, seed), steps, slots)[0] <= 1.06 * bound
    assert played(FileOrder(users), steps, slots)[0] > 1.15 * bound


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_done_at_half_time_is_a_fair_sample(seed):
    """The users done when half of the work is have chains as long as all; longest-first would more
    than double it."""
    steps = heavy_tailed(2000, seed)
    half = played(Schedule(steps, seed), steps, 50)[1]
    assert len(half) > 800
    assert abs(steps[half].mean() / steps.mean() - 1) < 0.15
    longest_first = -np.sort(-steps)
    assert longest_first[played(FileOrder(2000), longest_first, 50)[1]].mean() > 2 * steps.mean()


def test_order_hangs_on_the_seed_alone():
    """The same seed gives the same order, another one another, and none is the order of the
    file."""
    steps = np.full(200, 3, np.int32)

    def order(seed: int) -> list[int]:
        schedule = Schedule(steps, seed)
        return [schedule.next(4) for _ in range(100)]

    assert order(1) == order(1)
    assert order(1) != order(2)
    assert order(1) != sorted(order(1))


def test_schedule_of_nobody_is_empty():
    """Where nothing is owed, nothing starts."""
    assert not Schedule(np.array([], np.int32), 0)


def test_all_first_repeats_start_before_any_second_one():
    """So that a run that is interrupted has every user once first; within a repeat the order is a
    fair draw."""
    repeats = np.tile([0, 1, 2], 40)
    schedule = Schedule(np.ones(120, np.int32), 5, repeats)
    order = [schedule.next(4) for _ in range(100)]  # the last ones go by length
    assert np.diff(repeats[order]).min() == 0
    assert sorted(order[:40]) != order[:40]
