"""Who may send, and when: slots, rates and pauses in one place.

`Slots` are what one account of a provider allows: how many requests at once is its `Control`'s to say, and `Rates` say
how soon one may follow another. Each run that uses the account has a `Limiter` on them, and waits in a queue of its
own: pauses that the endpoint asks for, outages (in which one request at a time goes out as a probe) and its end are
that run's alone. Of all that wait and may go, the highest rank goes first. A request that waits between tries holds no
slot (docs/design.md, sections 4 and 6).
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

NEVER = float("inf")


class Slots:
    """Slots of one account, shared by the limiters on it. `clock` is in seconds, monotonic."""

    def __init__(self, control: Control, clock: Callable[[], float], rates: Rates | None = None) -> None:
        self.in_flight = 0
        self.control = control
        self.clock = clock
        self.rates = rates
        self.limiters: list[Limiter] = []
        self.order = count()
        self._changed = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def limit(self) -> int:
        """Requests of all that may be on the wire now."""
        return self.control.limit

    @property
    def queued(self) -> bool:
        """Whether anybody waits."""
        return any(limiter.queued for limiter in self.limiters)

    def wake(self) -> None:
        """Wake who waits in `changed`: there may be room for another user."""
        self._changed.set()

    async def changed(self) -> None:
        """Wait until `wake` is called."""
        self._changed = asyncio.Event()
        await self._changed.wait()

    def delay(self, tokens: float) -> float:
        """Seconds until one more request of so many tokens fits in; infinite where only an answer can tell."""
        if self.in_flight >= self.control.limit:
            return NEVER
        return self.rates.wait(tokens, self.clock()) if self.rates else 0.0

    def take(self, tokens: float) -> None:
        self.in_flight += 1
        if self.rates:
            self.rates.take(tokens, self.clock())

    def pump(self) -> None:
        """Grants what may be granted now, and comes back when the next may go."""
        while True:
            ready, best, pause = None, None, NEVER
            for limiter in self.limiters:
                own = limiter.delay()  # asked first: a run that only an event can set free costs no look at its queue
                if own == NEVER or (first := limiter.first()) is None:
                    continue
                if own > 0.0:
                    pause = min(pause, own)
                    continue
                place = (not limiter.probing, *first[:2])  # a probe goes before everybody: there is one at a time
                if best is None or place < best:
                    ready, best = (limiter, first), place
            if ready is None:
                return self._come_back(pause)
            limiter, first = ready
            # Who goes next blocks those behind it, so that a large request is not overtaken for ever by small ones.
            if (wait := self.delay(first[2])) > 0.0:
                return self._come_back(min(wait, pause))
            limiter.hand_over(first)

    def _come_back(self, delay: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if delay < NEVER:
            self._timer = asyncio.get_running_loop().call_later(delay, self.pump)


class Limiter:
    """One run's way to the slots. Without contention, taking one costs some comparisons."""

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self.in_flight = 0
        self.probing = False
        self._queue: list[_Waiting] = []
        self._closed = False
        self._not_before = float("-inf")
        self._refused_in_row = 0
        slots.limiters.append(self)

    @property
    def rates(self) -> Rates | None:
        return self.slots.rates

    @property
    def limit(self) -> int:
        """Requests that may be on the wire now, those of others on the same slots included."""
        return 1 if self.probing else self.slots.limit

    @property
    def queued(self) -> bool:
        return bool(self._queue)

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
        if self.probing:
            return "outage"
        if self.slots.in_flight >= self.slots.limit:
            return "limit"
        return "pause" if self.slots.clock() < self._not_before else "rate"

    async def acquire(self, rank: int, tokens: float = 0.0) -> None:
        """Returns once a slot is held. Among those waiting the highest rank goes first, then who came first.

        `tokens` is what the request may use.
        """
        if not self.slots.queued and self.delay() == 0.0 and self.slots.delay(tokens) == 0.0:
            return self._grant(tokens)
        await self._turn(rank, tokens)
        while self._closed:  # closed between the grant and now: the slot goes back
            self._return()
            await self._turn(rank, tokens)

    def release(self, seconds: float, fault: TransportFault | None) -> None:
        """Gives a slot back: how long the try took, and how it failed if it did."""
        slots = self.slots
        in_flight, now, control = slots.in_flight, slots.clock(), slots.control
        pressed = in_flight >= control.limit or self.queued
        self._return()
        if fault is None:
            self._refused_in_row = 0
            control.answered(now, seconds, pressed)
        elif fault.kind == REFUSED:
            control.refused(now, in_flight)
            self._refused_in_row += 1
            if fault.retry_after and self._refused_in_row > control.limit:
                self.pause(fault.retry_after)  # more refusals than requests it could hold: it counts them by time
        slots.pump()

    def pause(self, seconds: float) -> None:
        """Nothing goes out for so long."""
        self._not_before = max(self._not_before, self.slots.clock() + seconds)

    def probe(self, seconds: float) -> None:
        """One request at a time, the next one after so many seconds, until `recover`."""
        self.probing = True
        self.pause(seconds)

    def recover(self) -> None:
        self.probing = False
        self._not_before = float("-inf")
        self.slots.pump()

    def close(self) -> None:
        """Hands out no more slots: whoever waits, now or later, waits until cancelled."""
        self._closed = True
        if self in self.slots.limiters:
            self.slots.limiters.remove(self)

    def delay(self) -> float:
        """Seconds for which this run itself holds back; infinite where only an event can tell."""
        if self._closed or (self.probing and self.in_flight):
            return NEVER
        return 0.0 if self._not_before == float("-inf") else max(0.0, self._not_before - self.slots.clock())

    def first(self) -> _Waiting | None:
        """Who goes next: the highest rank; as a probe who came first, so that no bad request can be every probe."""
        queue = self._queue
        while queue:
            waiting = min(queue, key=itemgetter(1)) if self.probing else queue[0]
            if not waiting[3].done():
                return waiting
            self._dequeue(waiting)
        return None

    def hand_over(self, waiting: _Waiting) -> None:
        """Grants a slot to one of the queue."""
        self._dequeue(waiting)
        self._grant(waiting[2])
        waiting[3].set_result(None)

    def _grant(self, tokens: float) -> None:
        self.in_flight += 1
        self.slots.take(tokens)

    def _return(self) -> None:
        self.in_flight -= 1
        self.slots.in_flight -= 1

    async def _turn(self, rank: int, tokens: float) -> None:
        """Waits until a slot is handed over."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._queue, (-rank, next(self.slots.order), tokens, future))
        self.slots.pump()
        try:
            await future
        except asyncio.CancelledError:
            if not future.cancelled():  # the slot came together with the cancellation
                self._return()
                self.slots.pump()
            raise

    def _dequeue(self, waiting: _Waiting) -> None:
        if waiting is self._queue[0]:
            heapq.heappop(self._queue)
        else:
            self._queue.remove(waiting)
            heapq.heapify(self._queue)
