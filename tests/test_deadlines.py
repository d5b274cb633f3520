"""Deadlines of requests by sweeps over the oldest; the clock is the test's."""

from __future__ import annotations

import asyncio

import anyio
import anyio.lowlevel
import pytest

from harness.endpoint.deadlines import Deadlines

pytestmark = pytest.mark.anyio


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def waiting(deadlines: Deadlines, begun: list[asyncio.Task[object]]) -> str:
    """A request that nobody answers; tells how it ended."""
    task = deadlines.begin()
    begun.append(task)
    try:
        await asyncio.get_running_loop().create_future()
    except asyncio.CancelledError:
        if deadlines.passed(task):
            return "deadline"
        raise
    finally:
        deadlines.end(task)
    return "answered"


async def test_request_ends_at_its_deadline_and_its_task_goes_on() -> None:
    """A sweep before the time does nothing, one after it ends the request alone, and leaves no cancellation behind."""
    clock = Clock()
    deadlines, begun = Deadlines(2.0, clock), []
    first = asyncio.create_task(waiting(deadlines, begun))
    await asyncio.sleep(0)
    clock.now = 1.0
    second = asyncio.create_task(waiting(deadlines, begun))
    await asyncio.sleep(0)
    deadlines.sweep()
    assert not first.done()
    clock.now = 2.0
    deadlines.sweep()
    assert await first == "deadline"
    assert first.cancelling() == 0
    assert not second.done()
    clock.now = 3.5
    deadlines.sweep()
    assert await second == "deadline"


async def test_cancellation_by_somebody_else_is_not_a_deadline() -> None:
    """A user that is cancelled, even in the very moment of its deadline, is cancelled."""
    clock = Clock()
    deadlines = Deadlines(2.0, clock)
    for also_late in (False, True):
        begun: list[asyncio.Task[object]] = []
        task = asyncio.create_task(waiting(deadlines, begun))
        await asyncio.sleep(0)
        clock.now += 2.0 if also_late else 0.0
        deadlines.sweep()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_request_that_ended_is_not_swept() -> None:
    """What comes after a request in the same task is left alone, however late it is."""
    clock = Clock()
    deadlines = Deadlines(2.0, clock)
    deadlines.end(deadlines.begin())
    clock.now = 10.0
    deadlines.sweep()
    await asyncio.sleep(0)


async def test_deadline_within_a_cancel_scope_leaves_the_scope_whole() -> None:
    """The engine's scopes see nothing of a deadline."""
    clock = Clock()
    deadlines, begun = Deadlines(1.0, clock), []
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:
            found: list[str] = []

            async def user() -> None:
                found.append(await waiting(deadlines, begun))
                await anyio.lowlevel.checkpoint()
                found.append("went on")

            group.start_soon(user)
            await anyio.wait_all_tasks_blocked()
            clock.now = 1.0
            deadlines.sweep()
    assert found == ["deadline", "went on"]
    assert not scope.cancelled_caught
