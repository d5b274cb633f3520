"""Deadlines for every request without a timer for every request.

All requests of a client have the same time-out, so the oldest end first: a look at the oldest, now and then, is enough.
A timer each, as an HTTP client sets by itself, costs a tenth of a request's CPU. A request ends at its deadline or up
to a sweep later.

From its first byte on, a reply that streams is judged by its silences: the stream that was touched first ends first, so
a queue in the order of the last touch serves for them as the order of the beginnings does for the others.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from itertools import takewhile
from typing import Literal

SWEEPS, LONGEST_SWEEP = 8, 0.5
"""Sweeps within one request's time, and seconds between two at most."""
STOOD_STILL = 1.0
"""Seconds by which a sweep comes late only if this machine, or its loop, stood still meanwhile."""

Passed = Literal["timeout", "stalled"]
"""What was too long: the time until the reply (of a stream: until its first byte), or a silence in a stream."""


class Deadlines:
    """`seconds` a request, `stall` seconds between touches, by a monotonic `clock`. A task has one request at once."""

    def __init__(self, seconds: float, clock: Callable[[], float], stall: float = math.inf) -> None:
        self.interval = min(LONGEST_SWEEP, seconds / SWEEPS, stall / SWEEPS)
        self._seconds = seconds
        self._stall = stall
        self._clock = clock
        self._swept = -math.inf
        self._unwatched = (-math.inf, -math.inf)
        self._begun: dict[asyncio.Task[object], float] = {}
        self._touched: dict[asyncio.Task[object], float] = {}
        self._ended: dict[asyncio.Task[object], Passed] = {}

    def begin(self) -> asyncio.Task[object]:
        task = asyncio.current_task()
        assert task is not None
        self._begun[task] = self._clock()
        return task

    def began(self, task: asyncio.Task[object]) -> float:
        """Return when a request that has not been touched began."""
        return self._begun[task]

    def touch(self, task: asyncio.Task[object]) -> float:
        """Note a sign of life of a stream, so that only its next silence counts. Return the time."""
        now = self._clock()
        if self._touched.pop(task, None) is not None or self._begun.pop(task, None) is not None:
            self._touched[task] = now
        return now

    def end(self, task: asyncio.Task[object]) -> None:
        """End the request, however it went; a second time does nothing."""
        if self._begun.pop(task, None) is None:
            self._touched.pop(task, None)
        if task in self._ended:
            del self._ended[task]
            task.uncancel()

    def passed(self, task: asyncio.Task[object]) -> Passed | None:
        """Return the deadline that caused a cancellation; None if it is, or is also, somebody else's."""
        return self._ended.get(task) if task.cancelling() <= 1 else None

    def stood_still(self, since: float) -> bool:
        """Return whether there was no sweep for so long since then that a request may have timed out unfairly.

        However long it took: what was watched all the time did time out. The last such stretch serves for all requests,
        as `since` is a time at which the loop ran.
        """
        stretches = (self._unwatched, (self._swept, self._clock()))
        return any(self._long(max(start, since), end) for start, end in stretches)

    def _long(self, start: float, end: float) -> bool:
        return end - start > self.interval + STOOD_STILL

    def sweep(self) -> None:
        """Cancel the requests that are past their deadline, each once."""
        now = self._clock()
        if self._long(self._swept, now):
            self._unwatched = (self._swept, now)
        self._swept = now
        self._end_before(now - self._seconds, self._begun, "timeout")
        self._end_before(now - self._stall, self._touched, "stalled")

    def _end_before(self, time: float, queue: dict[asyncio.Task[object], float], passed: Passed) -> None:
        for task, _ in list(takewhile(lambda item: item[1] <= time, queue.items())):
            del queue[task]
            self._ended[task] = passed
            task.cancel()
