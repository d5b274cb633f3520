"""Virtual time: an event loop whose clock jumps to the next thing that is due, so that hours pass
in no time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
THREAD_SECONDS = 60.0
"""Of real time: the longest wait for a thread where nothing else is due."""


class _Jumping(selectors.SelectSelector):
    """Never waits: where the loop would, its time goes on by as much."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0.0)
        if not ready and timeout is None:
            ready = super().select(THREAD_SECONDS)
            assert ready, "everybody waits, and nothing will ever happen"
        elif not ready and timeout is not None:
            self.now += max(0.0, timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def now() -> float:
    """Seconds of the virtual time."""
    return asyncio.get_running_loop().time()


def run(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """What `main` returns, having run in virtual time from 0 on."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


async def all_of(*work: Awaitable[T]) -> list[T]:
    return await asyncio.gather(*work)
