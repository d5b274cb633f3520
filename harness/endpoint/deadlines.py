"""Deadlines for every request without a timer for every request.

All requests of a client have the same time, so those that began first end first: now and then a look at the oldest is
enough. A timer each, as an HTTP client sets by itself, costs a tenth of a request's CPU. A request ends at its
deadline or up to a sweep later.

A reply that streams is judged by its silences from its first byte on: those that were touched last end last, so a
queue in the order of the last touch does for them what the order of the beginnings does for the others.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Literal

SWEEPS, LONGEST_SWEEP = 8, 0.5
"""Looks within one request's time, and seconds between two at most."""
STOOD_STILL = 1.0
"""Seconds by which a look comes late only where this machine, or its loop, stood still meanwhile."""

Passed = Literal["timeout", "stalled"]
"""What was too long: the time until the reply (of a stream: until its first byte), or a silence in a stream."""


class Deadlines:
    """`seconds` for each, `stall` between two touches; `clock` is monotonic. A task has one request at a time."""

    def __init__(self, seconds: float, clock: Callable[[], float], stall: float = math.inf) -> None:
        self.interval = min(LONGEST_SWEEP, seconds / SWEEPS, stall / SWEEPS)
        self._seconds = seconds
        self._stall = stall
        self._clock = clock
        self._looked = -math.inf
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
        """When a request that has not been touched began."""
        return self._begun[task]

    def touch(self, task: asyncio.Task[object]) -> float:
        """A stream has shown life: from now on only its next silence counts. Returns the time."""
        now = self._clock()
        if self._touched.pop(task, None) is not None or self._begun.pop(task, None) is not None:
            self._touched[task] = now
        return now

    def end(self, task: asyncio.Task[object]) -> None:
        """The request is over, however it went; a second time does nothing."""
        if self._begun.pop(task, None) is None:
            self._touched.pop(task, None)
        if task in self._ended:
            del self._ended[task]
            task.uncancel()

    def passed(self, task: asyncio.Task[object]) -> Passed | None:
        """Which deadline a cancellation that the task has caught is of; None for one that is somebody else's, too."""
        return self._ended.get(task) if task.cancelling() <= 1 else None

    def stood_still(self, since: float) -> bool:
        """Whether nobody looked for so long since then that what ran out of time meanwhile may have been answered.

        However long it took: what was watched all the time did run out of it. The last such stretch tells for all
        requests, as `since` is a time at which the loop ran.
        """
        stretches = (self._unwatched, (self._looked, self._clock()))
        return any(self._long(max(start, since), end) for start, end in stretches)

    def _long(self, start: float, end: float) -> bool:
        return end - start > self.interval + STOOD_STILL

    def sweep(self) -> None:
        """Cancels the requests whose time is over, each once."""
        now = self._clock()
        if self._long(self._looked, now):
            self._unwatched = (self._looked, now)
        self._looked = now
        self._end_before(now - self._seconds, self._begun, "timeout")
        self._end_before(now - self._stall, self._touched, "stalled")

    def _end_before(self, over: float, queue: dict[asyncio.Task[object], float], passed: Passed) -> None:
        for task, since in list(queue.items()) if next(iter(queue.values()), math.inf) <= over else ():
            if since > over:
                break
            del queue[task]
            self._ended[task] = passed
            task.cancel()
