"""The fixed limiter: how many, who first, and that no slot is ever lost. Order is forced by turns of the loop."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.endpoint.limiter import FixedLimiter


async def settle(turns: int = 4) -> None:
    """Lets every task that can go on go on; one that only passes a slot on needs two turns of the loop."""
    for _ in range(turns):
        await asyncio.sleep(0)


class Crowd:
    """Tasks that take a slot and note it, until they are told to give it back."""

    def __init__(self, limiter: FixedLimiter) -> None:
        self.limiter = limiter
        self.holding: list[str] = []
        self.order: list[str] = []
        self.most = 0
        self._leave: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def join(self, name: str, rank: int = 0) -> None:
        self._leave[name] = asyncio.Event()
        self._tasks[name] = asyncio.create_task(self._stay(name, rank))
        await settle()

    async def _stay(self, name: str, rank: int) -> None:
        await self.limiter.acquire(rank)
        self.holding.append(name)
        self.order.append(name)
        self.most = max(self.most, len(self.holding))
        try:
            await self._leave[name].wait()
        finally:
            self.holding.remove(name)
            self.limiter.release(0.0, None)

    async def leave(self, name: str) -> None:
        self._leave[name].set()
        await settle()

    def leave_soon(self, name: str) -> None:
        self._leave[name].set()

    def cancel(self, name: str) -> None:
        self._tasks[name].cancel()

    def names(self) -> list[str]:
        """Those that hold a slot or wait for one."""
        return [name for name, task in self._tasks.items() if not task.done()]

    async def end(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


@pytest.mark.anyio
async def test_no_more_than_the_limit_hold_a_slot() -> None:
    """Three of five get in; the counts say so."""
    limiter = FixedLimiter(3)
    crowd = Crowd(limiter)
    for name in "abcde":
        await crowd.join(name)
    assert crowd.holding == ["a", "b", "c"]
    assert (limiter.limit, limiter.in_flight, limiter.waiting) == (3, 3, 2)
    await crowd.end()
    assert (limiter.in_flight, limiter.waiting) == (0, 0)


@pytest.mark.anyio
async def test_highest_rank_goes_first_and_equals_in_the_order_they_came() -> None:
    """The user with most steps left must not wait behind short ones; equals are served fairly."""
    crowd = Crowd(FixedLimiter(1))
    await crowd.join("first")
    for name, rank in (("low1", 1), ("high1", 9), ("low2", 1), ("mid", 5), ("high2", 9)):
        await crowd.join(name, rank)
    for _ in range(6):
        await crowd.leave(crowd.holding[0])
    assert crowd.order == ["first", "high1", "high2", "mid", "low1", "low2"]


@pytest.mark.anyio
async def test_slot_given_back_goes_to_who_waits_and_not_to_who_comes() -> None:
    """A newcomer of the same turn cannot slip in before one that was handed the slot."""
    crowd = Crowd(FixedLimiter(1))
    await crowd.join("holder")
    await crowd.join("waiter", 1)
    crowd.leave_soon("holder")
    await crowd.join("newcomer", 99)
    assert crowd.order == ["holder", "waiter"]
    await crowd.end()


@pytest.mark.anyio
async def test_cancelled_waiter_leaves_the_queue_and_no_slot_is_lost() -> None:
    """Who is cancelled while waiting is neither counted nor served, and the next one is."""
    limiter = FixedLimiter(1)
    crowd = Crowd(limiter)
    await crowd.join("holder")
    await crowd.join("gone", 9)
    await crowd.join("stays", 1)
    crowd.cancel("gone")
    await settle()
    assert limiter.waiting == 1
    await crowd.leave("holder")
    assert crowd.order == ["holder", "stays"]
    await crowd.leave("stays")
    assert (limiter.in_flight, limiter.waiting) == (0, 0)


@pytest.mark.anyio
@pytest.mark.parametrize("granted_first", [True, False])
async def test_waiter_cancelled_at_the_very_moment_of_its_grant_passes_the_slot_on(granted_first: bool) -> None:
    """Grant and cancellation in one turn of the loop, in either order: the slot goes to the next in line."""
    limiter = FixedLimiter(1)
    await limiter.acquire(0)
    crowd = Crowd(limiter)
    await crowd.join("gone", 9)
    await crowd.join("next", 1)
    if granted_first:
        limiter.release(0.0, None)
        crowd.cancel("gone")
    else:
        crowd.cancel("gone")
        limiter.release(0.0, None)
    await settle()
    assert crowd.order == ["next"]
    assert limiter.in_flight == 1
    await crowd.leave("next")
    assert limiter.in_flight == 0


@pytest.mark.anyio
async def test_last_waiter_cancelled_at_its_grant_frees_the_slot() -> None:
    """With nobody to pass it on to, the slot is free for whoever comes."""
    limiter = FixedLimiter(1)
    await limiter.acquire(0)
    crowd = Crowd(limiter)
    await crowd.join("gone")
    limiter.release(0.0, None)
    crowd.cancel("gone")
    await settle()
    assert (limiter.in_flight, limiter.waiting) == (0, 0)
    await limiter.acquire(0)
    assert limiter.in_flight == 1


@pytest.mark.anyio
async def test_after_close_nobody_gets_a_slot() -> None:
    """Neither who waits nor who comes later, though slots are free; they can only be cancelled."""
    limiter = FixedLimiter(2)
    crowd = Crowd(limiter)
    for name in "abc":
        await crowd.join(name)
    limiter.close()
    await crowd.leave("a")
    await crowd.leave("b")
    await crowd.join("late", 99)
    assert (limiter.in_flight, limiter.waiting) == (0, 2)
    assert crowd.order == ["a", "b"]
    await crowd.end()
    assert (limiter.in_flight, limiter.waiting) == (0, 0)


@pytest.mark.anyio
async def test_slot_granted_in_the_turn_of_the_close_is_given_back() -> None:
    """The request that stops a run gives its slot back first: whoever was handed it must not send any more."""
    limiter = FixedLimiter(1)
    crowd = Crowd(limiter)
    await crowd.join("stops the run")
    await crowd.join("waiter")
    crowd.leave_soon("stops the run")
    await asyncio.sleep(0)
    assert limiter.in_flight == 1  # handed over, not yet taken
    limiter.close()
    await settle()
    assert crowd.order == ["stops the run"]
    assert (limiter.in_flight, limiter.waiting) == (0, 1)
    await crowd.end()
    assert (limiter.in_flight, limiter.waiting) == (0, 0)


@given(st.integers(1, 4), st.integers(0, 2**32), st.booleans())
def test_any_schedule_keeps_the_limit_serves_everybody_and_loses_no_slot(limit: int, seed: int, closes: bool) -> None:
    """Random comings, goings and cancellations, several in one turn of the loop: afterwards all slots are there."""
    asyncio.run(_random_schedule(limit, random.Random(seed), closes))


async def _random_schedule(limit: int, rng: random.Random, closes: bool) -> None:
    limiter = FixedLimiter(limit)
    crowd = Crowd(limiter)
    for number in range(40):
        if crowd.names() and rng.random() < 0.6:
            name = rng.choice(crowd.names())
            crowd.cancel(name) if rng.random() < 0.5 else crowd.leave_soon(name)
        else:
            await crowd.join(str(number), rng.randrange(3))
        if rng.random() < 0.5:
            await settle(100)
            assert limiter.in_flight == len(crowd.holding)
            assert limiter.in_flight == limit or not limiter.waiting  # no slot is idle while somebody waits
    await settle(100)
    if closes:
        limiter.close()
        before = list(crowd.order)
        for name in list(crowd.holding):
            crowd.leave_soon(name)
        await settle(100)
        assert (limiter.in_flight, crowd.order) == (0, before)
    while crowd.holding:
        crowd.leave_soon(crowd.holding[0])
        await settle(100)
    assert crowd.most <= limit
    assert closes or not crowd.names()
    await crowd.end()
    assert (limiter.in_flight, limiter.waiting) == (0, 0)
