"""How many requests may be on the wire.

`Limiter` is what a caller needs of any limit, fixed or adaptive: a slot to send in, given back with
what came of it. A request that waits between tries holds no slot (docs/design.md, section 6).
"""

from __future__ import annotations

import asyncio
import heapq
from itertools import count
from typing import Protocol

from harness.errors import TransportFault


class Limiter(Protocol):
    @property
    def limit(self) -> int: ...
    @property
    def in_flight(self) -> int: ...
    @property
    def waiting(self) -> int: ...

    async def acquire(self, rank: int) -> None:
        """Returns once a slot is held; among those waiting the highest rank goes first, then who came first."""
        ...

    def release(self, seconds: float, fault: TransportFault | None) -> None:
        """Gives a slot back: how long the try took, and how it failed if it did."""
        ...

    def close(self) -> None:
        """Hands out no more slots: whoever waits, now or later, waits until cancelled."""
        ...


class FixedLimiter:
    """A fixed number of slots. Without contention, taking one costs a comparison."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._in_flight = 0
        self._queue: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = count()
        self._closed = False

    @property
    def limit(self) -> int:
        return self._limit

    @property
    def in_flight(self) -> int:
        return self._in_flight

    @property
    def waiting(self) -> int:
        return sum(not future.done() for _, _, future in self._queue)

    async def acquire(self, rank: int) -> None:
        if self._in_flight < self._limit and not self._closed:
            self._in_flight += 1
            return
        await self._turn(rank)
        while self._closed:  # closed between the grant and now: the slot goes back
            self._pass_on()
            await self._turn(rank)

    def release(self, seconds: float, fault: TransportFault | None) -> None:
        self._pass_on()

    def close(self) -> None:
        self._closed = True

    async def _turn(self, rank: int) -> None:
        """Waits until a slot is handed over."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._queue, (-rank, next(self._order), future))
        try:
            await future
        except asyncio.CancelledError:
            if not future.cancelled():  # the slot came together with the cancellation
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        while self._queue and not self._closed:
            future = heapq.heappop(self._queue)[2]
            if not future.done():
                future.set_result(None)
                return
        self._in_flight -= 1
