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
    """A request that nobody answers; tells which deadline ended it."""
    task = deadlines.begin()
    begun.append(task)
    try:
        await asyncio.get_running_loop().create_future()
    except asyncio.CancelledError:
        if passed := deadlines.passed(task):
            return passed
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
    assert await first == "timeout"
    assert first.cancelling() == 0
    assert not second.done()
    clock.now = 3.5
    deadlines.sweep()
    assert await second == "timeout"


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
    """What comes after a request in the same task is left alone, however late it is and whether it streamed or not."""
    clock = Clock()
    deadlines = Deadlines(2.0, clock, stall=2.0)
    deadlines.end(deadlines.begin())
    stream = deadlines.begin()
    deadlines.touch(stream)
    deadlines.end(stream)
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
    assert found == ["timeout", "went on"]
    assert not scope.cancelled_caught


async def begin(deadlines: Deadlines, number: int) -> tuple[list[asyncio.Task[str]], list[asyncio.Task[object]]]:
    """So many requests that wait, and themselves as the deadlines know them."""
    begun: list[asyncio.Task[object]] = []
    tasks = [asyncio.create_task(waiting(deadlines, begun)) for _ in range(number)]
    await asyncio.sleep(0)
    return tasks, begun


async def test_touched_request_ends_by_its_silence_and_not_by_its_length() -> None:
    """From the first touch on only the time since the last one counts, however long that goes on."""
    clock = Clock()
    deadlines = Deadlines(2.0, clock, stall=5.0)
    (task,), (stream,) = await begin(deadlines, 1)
    assert deadlines.began(stream) == 0.0
    for clock.now in (1.0, 5.9, 10.8, 15.7):
        assert deadlines.touch(stream) == clock.now
        deadlines.sweep()
        await asyncio.sleep(0)
    clock.now = 20.6
    deadlines.sweep()
    await asyncio.sleep(0)
    assert not task.done()
    clock.now = 20.7
    deadlines.sweep()
    assert await task == "stalled"
    assert task.cancelling() == 0


async def test_untouched_request_does_not_wait_for_a_stall() -> None:
    """Until something comes, the time of the whole counts, beside streams that live."""
    clock = Clock()
    deadlines = Deadlines(2.0, clock, stall=50.0)
    (silent, alive), (_, stream) = await begin(deadlines, 2)
    clock.now = 2.0
    deadlines.touch(stream)
    deadlines.sweep()
    assert await silent == "timeout"
    assert not alive.done()
    alive.cancel()


async def test_streams_end_in_the_order_of_their_last_touch() -> None:
    """A stream that was touched later lives longer, whichever began first."""
    clock = Clock()
    deadlines = Deadlines(2.0, clock, stall=5.0)
    tasks, streams = await begin(deadlines, 3)
    for clock.now, stream in enumerate((0, 1, 2, 1, 0)):
        deadlines.touch(streams[stream])
    for clock.now, left in ((6.9, [0, 1, 2]), (7.0, [0, 1]), (8.0, [0]), (9.0, [])):
        deadlines.sweep()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [place for place, task in enumerate(tasks) if not task.done()] == left


async def test_request_is_cancelled_once_and_touching_it_again_does_nothing() -> None:
    """A last touch of one that is over does not bring it back into a queue, nor does one after its end."""
    clock = Clock()
    deadlines = Deadlines(2.0, clock, stall=1.0)
    (task,), (stream,) = await begin(deadlines, 1)
    deadlines.touch(stream)
    clock.now = 1.0
    deadlines.sweep()
    deadlines.touch(stream)
    clock.now = 9.0
    deadlines.sweep()
    assert task.cancelling() == 1
    assert await task == "stalled"
    deadlines.touch(stream)
    clock.now = 99.0
    deadlines.sweep()
    assert task.cancelling() == 0


async def test_cancellation_of_a_stream_by_somebody_else_is_not_a_stall() -> None:
    """Even in the very moment of the stall."""
    clock = Clock()
    deadlines = Deadlines(2.0, clock, stall=1.0)
    for also_late in (False, True):
        (task,), (stream,) = await begin(deadlines, 1)
        deadlines.touch(stream)
        clock.now += 1.0 if also_late else 0.0
        deadlines.sweep()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.mark.parametrize(
    ("looks", "since", "unwatched"),
    [
        ((), 0.4, False),
        ((0.5, 1.0, 1.5), 0.0, False),
        ((0.5, 1.9, 3.3, 4.7), 0.0, False),
        ((0.5, 2.1), 0.4, True),
        ((0.5, 2.1, 2.6, 3.1), 0.4, True),
        ((0.5, 9.0, 9.5), 8.0, False),
        ((0.5, 9.0, 9.5, 20.0), 8.0, True),
        ((0.5, 9.0, 9.5), 9.0, False),
    ],
    ids=["no look due", "on time", "each a little late", "late", "late once", "began since", "again", "began after"],
)
async def test_machine_stood_still_only_where_looks_were_missing_since_a_request_began(
    looks: tuple[float, ...], since: float, unwatched: bool
) -> None:
    """More than a second beyond an interval, within the request's own time; how long it took does not matter."""
    clock = Clock()
    deadlines = Deadlines(600.0, clock)
    for clock.now in looks:
        deadlines.sweep()
    clock.now += 0.5
    assert deadlines.stood_still(since) is unwatched


async def test_machine_that_still_has_not_looked_stood_still() -> None:
    """The stretch that goes on counts, before any sweep has seen it."""
    clock = Clock()
    deadlines = Deadlines(600.0, clock)
    clock.now = 1.6
    assert deadlines.stood_still(0.0)
    assert not deadlines.stood_still(0.2)


def test_sweeps_are_as_frequent_as_the_shorter_time_wants() -> None:
    """A request ends at its deadline or an eighth of it later, and never more than half a second."""
    intervals = [
        Deadlines(seconds, Clock(), stall).interval for seconds, stall in ((2.0, 0.8), (0.8, 9.0), (99.0, 99.0))
    ]
    assert intervals == [0.1, 0.1, 0.5]
