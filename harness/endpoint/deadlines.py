"""A deadline for every request without a timer for every request.

All requests of a client have the same time, so those that began first end first: now and then a look at the oldest is
enough. A timer each, as an HTTP client sets by itself, costs a tenth of a request's CPU. A request ends at its
deadline or up to a sweep later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

SWEEPS, LONGEST_SWEEP = 8, 0.5
"""Looks within one request's time, and seconds between two at most."""


class Deadlines:
    """`seconds` for each; `clock` is monotonic. A task has one request at a time."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self.interval = min(LONGEST_SWEEP, seconds / SWEEPS)
        self._seconds = seconds
        self._clock = clock
        self._begun: dict[asyncio.Task[object], float] = {}
        self._ended: set[asyncio.Task[object]] = set()

    def begin(self) -> asyncio.Task[object]:
        task = asyncio.current_task()
        assert task is not None
        self._begun[task] = self._clock()
        return task

    def end(self, task: asyncio.Task[object]) -> None:
        """The request is over, however it went."""
        self._begun.pop(task, None)
        if task in self._ended:
            self._ended.discard(task)
            task.uncancel()

    def passed(self, task: asyncio.Task[object]) -> bool:
        """Whether a cancellation that the task has caught is that of its deadline alone, and not somebody else's."""
        return task in self._ended and task.cancelling() <= 1

    def sweep(self) -> None:
        """Cancels the requests whose time is over."""
        over = self._clock() - self._seconds
        for task, begun in list(self._begun.items()) if self._oldest() <= over else ():
            if begun > over:
                break
            del self._begun[task]
            self._ended.add(task)
            task.cancel()

    def _oldest(self) -> float:
        return next(iter(self._begun.values()), float("inf"))
