"""Who may send, and when: slots, rates and pauses in one place.

A `Limiter` hands out slots in the order of rank. How many there are is its `Control`'s to say; `Rates` say how soon
one may follow another; pauses come from the endpoint (Retry-After, exhausted quotas) and from outages, in which one
request at a time goes out as a probe. A request that waits between tries holds no slot (docs/design.md, section 6).
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from itertools import count
from operator import itemgetter

from harness.endpoint.control import Control
from harness.endpoint.rates import Rates
from harness.errors import TransportFault

REFUSED = "http_429"

_Waiting = tuple[int, int, float, asyncio.Future[None]]
"""By rank, then in the order they came; tokens; what the slot is handed over through."""


class Limiter:
    """Without contention, taking a slot costs some comparisons. `clock` is in seconds, monotonic."""

    def __init__(self, control: Control, clock: Callable[[], float], rates: Rates | None = None) -> None:
        self.in_flight = 0
        self.rates = rates
        self._control = control
        self._clock = clock
        self._queue: list[_Waiting] = []
        self._order = count()
        self._closed = False
        self._probing = False
        self._not_before = float("-inf")
        self._refused_in_row = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def limit(self) -> int:
        """Requests that may be on the wire now."""
        return 1 if self._probing else self._control.limit

    @property
    def waiting(self) -> int:
        return sum(not future.done() for *_, future in self._queue)

    @property
    def held_by(self) -> str | None:
        """Why no more requests are on the wire although some wait, in a word; None where none waits."""
        if not self.waiting:
            return None
        if self._closed:
            return "stopping"
        if self._probing:
            return "outage"
        if self.in_flight >= self._control.limit:
            return "limit"
        return "pause" if self._clock() < self._not_before else "rate"

    async def acquire(self, rank: int, tokens: float = 0.0) -> None:
        """Returns once a slot is held. Among those waiting the highest rank goes first, then who came first.

        `tokens` is what the request may use.
        """
        if not self._queue and self._delay(tokens) == 0.0:
            return self._grant(tokens)
        await self._turn(rank, tokens)
        while self._closed:  # closed between the grant and now: the slot goes back
            self.in_flight -= 1
            await self._turn(rank, tokens)

    def release(self, seconds: float, fault: TransportFault | None) -> None:
        """Gives a slot back: how long the try took, and how it failed if it did."""
        in_flight, now = self.in_flight, self._clock()
        pressed = bool(self._queue) or in_flight >= self._control.limit
        self.in_flight -= 1
        if fault is None:
            self._refused_in_row = 0
            self._control.answered(now, seconds, pressed)
        elif fault.kind == REFUSED:
            self._control.refused(now, in_flight)
            self._refused_in_row += 1
            if fault.retry_after and self._refused_in_row > self._control.limit:
                self.pause(fault.retry_after)  # more refusals than requests it could hold: it counts them by time
        self._pump()

    def pause(self, seconds: float) -> None:
        """Nothing goes out for so long."""
        self._not_before = max(self._not_before, self._clock() + seconds)

    def probe(self, seconds: float) -> None:
        """One request at a time, the next one after so many seconds, until `recover`."""
        self._probing = True
        self.pause(seconds)

    def recover(self) -> None:
        self._probing = False
        self._not_before = float("-inf")
        self._pump()

    def close(self) -> None:
        """Hands out no more slots: whoever waits, now or later, waits until cancelled."""
        self._closed = True

    def _delay(self, tokens: float) -> float:
        """Seconds until a slot may be granted; infinite where only an event can tell."""
        if self._closed or self.in_flight >= self.limit:
            return float("inf")
        if self.rates is None and self._not_before == float("-inf"):
            return 0.0
        now = self._clock()
        pause = max(0.0, self._not_before - now)
        return max(pause, self.rates.wait(tokens, now)) if self.rates else pause

    def _grant(self, tokens: float) -> None:
        self.in_flight += 1
        if self.rates:
            self.rates.take(tokens, self._clock())

    async def _turn(self, rank: int, tokens: float) -> None:
        """Waits until a slot is handed over."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._queue, (-rank, next(self._order), tokens, future))
        self._pump()
        try:
            await future
        except asyncio.CancelledError:
            if not future.cancelled():  # the slot came together with the cancellation
                self.in_flight -= 1
                self._pump()
            raise

    def _pump(self) -> None:
        """Grants what may be granted now, and comes back when the first in the queue may go."""
        while self._queue:
            first = self._first()
            _, _, tokens, future = first
            if future.done():
                self._dequeue(first)
                continue
            delay = self._delay(tokens)
            if delay > 0.0:
                return self._come_back(delay)
            self._dequeue(first)
            self._grant(tokens)
            future.set_result(None)

    def _first(self) -> _Waiting:
        """Who goes next: the highest rank; as a probe who came first, so that no bad request can be every probe."""
        return min(self._queue, key=itemgetter(1)) if self._probing else self._queue[0]

    def _dequeue(self, waiting: _Waiting) -> None:
        if waiting is self._queue[0]:
            heapq.heappop(self._queue)
        else:
            self._queue.remove(waiting)
            heapq.heapify(self._queue)

    def _come_back(self, delay: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if delay < float("inf"):
            self._timer = asyncio.get_running_loop().call_later(delay, self._pump)
