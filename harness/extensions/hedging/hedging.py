"""A second try of a request, while the first one is in flight."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import cast

from harness.client.caller import Attempt, Caller, MakeAttempt, RequestEvent, Warn
from harness.client.health import FailedTries
from harness.client.transport import Received
from harness.engine.hooks import Hooks
from harness.engine.replay import PendingRequest
from harness.engine.runner import ModelRunner, Send, User
from harness.errors import TransportFault
from harness.extensions.hedging import HEDGED, TUNING, Hedge, multiple_of
from harness.model import JSON, Reply
from harness.options.plan import Plan
from harness.store.manifest import Manifest

LEAST_SECONDS = 1.0
"""Seconds before which no second try is sent."""
LOOK_SECONDS = 1.0
"""Seconds between two looks while too few replies show what is usual."""


class Hedging(Hooks):
    def __init__(self, options: Hedge) -> None:
        self._multiple = options.hedge

    def update_manifest(self, plan: Plan, manifest: Manifest, old: Manifest | None) -> None:
        multiple = self._multiple
        if multiple is None:
            multiple = multiple_of(old) if old else 0.0
        if multiple:
            cast(JSON, manifest.tuning)[TUNING] = multiple

    def wrap_attempt(self, runner: ModelRunner, role: str, attempt: MakeAttempt) -> MakeAttempt:
        return hedged(runner.callers[role], multiple_of(runner.runs[0].manifest), attempt)

    def wrap_send(self, send: Send) -> Send:
        async def noted(user: User, pending: PendingRequest, warn: Warn) -> Reply:
            def warned(fault: TransportFault, number: int) -> None:
                if fault.kind == HEDGED:
                    user.run.count({HEDGED: 1})
                warn(fault, number)

            return await send(user, pending, warned)

        return noted


@dataclass(slots=True)
class _Race:
    """Two tries of one request (a `Part` of each): whether one was `sent`, and whether one has
    `won`."""

    sent: asyncio.Event = field(default_factory=asyncio.Event)
    won: bool = False

    def admitted(self) -> None:
        self.sent.set()
        if self.won:
            raise asyncio.CancelledError

    def ended(self, received: Received | None, fault: TransportFault | None) -> None:
        self.won = self.won or (received is not None and fault is None)


def hedged(caller: Caller, multiple: float, make_attempt: MakeAttempt) -> MakeAttempt:
    """Return what sends a try that takes a `multiple` of the 99th percentile a second time, to
    whichever replica has room.

    The first whole reply wins, and the other try is cancelled. Each takes a slot, and counts
    towards the rates. A fault of one waits for the other.
    """
    if not multiple:
        return make_attempt
    caller.at_once = 2
    clock = caller.limiter.slots.clock

    def until_second(start: float) -> float:
        """Return the seconds until a request that was sent at `start` may be sent again, or until
        another look."""
        tail = caller.latency.tail
        if tail is None:
            return LOOK_SECONDS
        return start + max(LEAST_SECONDS, multiple * tail) - clock()

    async def twice(attempt: Attempt) -> Reply:
        race = _Race()
        attempt = attempt._replace(parts=(*attempt.parts, race))
        first = _started(make_attempt, attempt)
        first.add_done_callback(lambda _: race.sent.set())  # it may end without having been sent
        second = FailedTries()
        tries = {first}
        try:
            await race.sent.wait()
            start = clock()
            left = until_second(start)
            # The usual may change during the wait.
            while left > 0.0 and not first.done():
                await asyncio.wait(tries, timeout=left)
                left = until_second(start)
            if not first.done():
                caller.traffic.notices[HEDGED] += 1
                detail = f"no reply within {clock() - start:.0f} s"
                attempt.warn(RequestEvent(HEDGED, detail), attempt.number)
                # Without the user, whose requests stay on one replica: that one may be what is
                # slow.
                hedge = attempt._replace(user="", number=attempt.number + 1, tries=second)
                tries.add(_started(make_attempt, hedge))
            return await _first(tries)
        finally:
            for task in tries:
                task.cancel()
            # Until a cancelled try has ended, it still has its slot and its part of a budget.
            await asyncio.gather(*tries, return_exceptions=True)
            # Two faults count as one failed try, and may be billed twice.
            attempt.tries.billable += second.billable

    return twice


def _started(make_attempt: MakeAttempt, attempt: Attempt) -> asyncio.Task[Reply]:
    async def tried() -> Reply:
        return await make_attempt(attempt)

    return asyncio.create_task(tried())


async def _first(tries: set[asyncio.Task[Reply]]) -> Reply:
    """Return the first reply; raise an error once no other try is left, or one that no other try
    would help."""
    left = set(tries)
    while True:
        done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        ended = [task for task in done if not task.cancelled()]
        # A reply goes before any error.
        ended.sort(key=lambda task: (task.exception() is not None, _faulty(task)))
        if ended and not (left and _faulty(ended[0])):
            return ended[0].result()


def _faulty(task: asyncio.Task[Reply]) -> bool:
    return isinstance(task.exception(), TransportFault)
