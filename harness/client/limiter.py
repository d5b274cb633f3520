"""Who may send, and when: slots, rates and pauses in one place.

`Slots` are the capacity of one account of a provider: its control sets how many requests may be in
flight, its `Rates` how soon one may follow another. Each run that uses the account has a `Limiter`
on them with a queue of its own: pauses that the endpoint requests, outages (with one request at a
time as a probe) and the end concern that run alone. Of all waiting requests that may go, the
highest rank goes first. A request that waits between tries holds no slot (docs/design.md, sections
4 and 6).
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from itertools import count
from operator import attrgetter, itemgetter

from harness.client.control import AdaptiveControl
from harness.client.rates import Rates
from harness.errors import TransportFault

NEVER = float("inf")
FIRST_REST, LONGEST_REST = 0.5, 8.0
"""Seconds: the pause of an endpoint that counts by time and does not say for how long, doubled up
to the longest."""
QUEUE = attrgetter("queue")

_Waiting = tuple[int, int, float, asyncio.Future[bool]]
"""Negative rank, order of arrival, tokens, and the future through which the slot is handed over:
whether it was taken while one request at a time goes out."""


class Slots:
    """Slots of one account, shared by the limiters on it. `clock` is in seconds, monotonic."""

    def __init__(
        self, control: AdaptiveControl, clock: Callable[[], float], rates: Rates | None = None
    ) -> None:
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
        """Requests of all limiters that may be in flight now."""
        return self.control.limit

    def wake(self) -> None:
        """Wake who waits in `changed`: there may be room for another user."""
        self._changed.set()

    async def changed(self) -> None:
        """Wait until `wake` is called."""
        self._changed = asyncio.Event()
        await self._changed.wait()

    def delay(self, tokens: float) -> float:
        """Return the seconds until one more request of so many tokens may go; infinite if that
        depends on a reply."""
        if self.in_flight >= self.control.limit:
            return NEVER
        return self.rates.wait(tokens, self.clock()) if self.rates else 0.0

    def pump(self) -> None:
        """Grant what may be granted now, and set a timer for the next."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while True:
            ready, best, pause = None, None, NEVER
            for limiter in self.limiters:
                delay = limiter.delay() if limiter.queue else NEVER
                first = limiter.first() if delay < NEVER else None
                if first is None:
                    continue
                if delay > 0.0:
                    pause = min(pause, delay)
                    continue
                # A probe goes before everybody: there is one at a time.
                place = (not limiter.probing, *first[:2])
                if best is None or place < best:
                    ready, best = (limiter, first), place
            if ready is not None:
                limiter, first = ready
                # The next request blocks those behind it, so that small ones cannot overtake a
                # large one for ever.
                wait = self.delay(first[2])
                if wait == 0.0:
                    limiter.hand_over(first)
                    continue
                pause = min(wait, pause)
            if pause < NEVER:
                self._timer = asyncio.get_running_loop().call_later(pause, self.pump)
            return


class Limiter:
    """One run's access to the slots. Without contention, taking one costs some comparisons."""

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self.in_flight = 0
        self.probing = False
        self._probe_is_out = False
        self.queue: list[_Waiting] = []
        self._closed = False
        self._not_before = float("-inf")
        self._rested_until = float("-inf")
        self._rest = FIRST_REST
        self._refused_in_row = 0
        self._slots_then = 0
        slots.limiters.append(self)

    @property
    def limit(self) -> int:
        """Requests that may be in flight now, including those of other limiters on the same
        slots."""
        return 1 if self.probing else self.slots.limit

    @property
    def waiting(self) -> int:
        return sum(not future.done() for *_, future in self.queue)

    @property
    def held_by(self) -> str | None:
        """Why requests wait, in a word; None if none does."""
        if not self.waiting:
            return None
        if self._closed:
            return "stopping"
        if self.probing:
            return "outage"
        if self.slots.in_flight >= self.slots.limit:
            return "limit"
        return "pause" if self.delay() else "rate"

    def at_once(self, tokens: float) -> bool:
        """Take a slot if that needs no waiting; return whether it did. `tokens` is what the request
        may use."""
        slots = self.slots
        free = (
            not any(map(QUEUE, slots.limiters))
            and self.delay() == 0.0
            and slots.delay(tokens) == 0.0
        )
        if free:
            self._take(tokens)
        return free

    async def acquire(self, rank: int, tokens: float = 0.0) -> bool:
        """Wait for a slot; return whether it is one of those that are granted one at a time. Of
        those waiting the highest rank goes first, then who came first."""
        while True:
            future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            heapq.heappush(self.queue, (-rank, next(self.slots.order), tokens, future))
            self.slots.pump()
            try:
                is_probe = await future
            except asyncio.CancelledError:
                if not future.cancelled():  # the slot came together with the cancellation
                    self._return(future.result())
                    self.slots.pump()
                raise
            if not self._closed:
                return is_probe
            self._return(is_probe)  # closed between the grant and now

    def release(
        self,
        seconds: float,
        fault: TransportFault | None,
        is_probe: bool = False,
        reserved: float = 0.0,
        used: float | None = None,
        completion: float | None = None,
    ) -> None:
        """Return a slot after a try of so many `seconds` and, if it failed, with this `fault`. Of
        the tokens that it reserved it has `used` some, None if that is not known, those of the
        completion among them."""
        slots = self.slots
        in_flight = slots.in_flight
        now = slots.clock()
        control = slots.control
        if slots.rates:
            slots.rates.correct(reserved, used, completion, now)
        pressed = in_flight >= control.limit or bool(self.queue)
        self._return(is_probe)
        if fault is None:
            self._refused_in_row = 0
            self._rested_until = float("-inf")
            self._rest = FIRST_REST
            control.answered(now, seconds, pressed)
        elif fault.asks_to_wait and not self.probing:
            if not self._refused_in_row:
                self._slots_then = control.limit
            self._refused_in_row += 1
            # More than fit in: the endpoint counts this run's requests by time.
            if self._refused_in_row > self._slots_then:
                self._wait_for_quota(now, fault.retry_after)
            else:
                control.refused(now, seconds, in_flight)
        slots.pump()

    def pause(self, seconds: float) -> None:
        """Send nothing for so long."""
        self._not_before = max(self._not_before, self.slots.clock() + seconds)

    def _wait_for_quota(self, now: float, seconds: float | None) -> None:
        """Send nothing for so long; where that is not known, for a while that an answer ends."""
        if seconds:
            self.pause(seconds)
        elif now >= self._rested_until:
            self._rested_until = now + self._rest
            self._rest = min(2 * self._rest, LONGEST_REST)

    def probe(self, seconds: float) -> None:
        """Send one request at a time, the next one after so many seconds, until `recover`."""
        self.probing = True
        self.pause(seconds)

    def recover(self) -> None:
        self.probing = self._probe_is_out = False
        self._not_before = self._rested_until = float("-inf")
        self.slots.pump()

    def close(self) -> None:
        """Grant no more slots: whoever waits, now or later, waits until cancelled."""
        self._closed = True
        if self in self.slots.limiters:
            self.slots.limiters.remove(self)

    def delay(self) -> float:
        """Return the seconds until this run itself may send; infinite if that depends on an
        event."""
        if self._closed or (self.probing and self._probe_is_out):
            return NEVER
        until = max(self._not_before, self._rested_until)
        return 0.0 if until == float("-inf") else max(0.0, until - self.slots.clock())

    def first(self) -> _Waiting | None:
        """Return the next in the queue: the highest rank; for a probe who came first, so that one
        bad request cannot be every probe."""
        queue = self.queue
        while queue:
            waiting = min(queue, key=itemgetter(1)) if self.probing else queue[0]
            if not waiting[3].done():
                return waiting
            self._dequeue(waiting)
        return None

    def hand_over(self, waiting: _Waiting) -> None:
        """Grant a slot to one in the queue."""
        self._dequeue(waiting)
        self._take(waiting[2])
        waiting[3].set_result(self.probing)

    def _take(self, tokens: float) -> None:
        slots = self.slots
        self.in_flight += 1
        self._probe_is_out = self.probing
        slots.in_flight += 1
        if slots.rates:
            slots.rates.take(tokens, slots.clock())

    def _return(self, is_probe: bool) -> None:
        if is_probe:
            self._probe_is_out = False
        self.in_flight -= 1
        self.slots.in_flight -= 1

    def _dequeue(self, waiting: _Waiting) -> None:
        if waiting is self.queue[0]:
            heapq.heappop(self.queue)
        else:
            self.queue.remove(waiting)
            heapq.heapify(self.queue)
