"""A request until it is settled: a slot, a try, and after a failure more tries (docs/design.md, section 6).

tenacity is used only once a first try has failed, so that a success pays nothing for it.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Generic, NoReturn

import anyio
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type

from harness.endpoint.budget import Meter, Reservation
from harness.endpoint.latency import LEAST_BEYOND, Latency
from harness.endpoint.limiter import Limiter
from harness.endpoint.outage import Outage
from harness.endpoint.replies import Denied
from harness.endpoint.transport import Body, Received, Transport
from harness.errors import EndpointStopped, GaveUp, TransportFault, WorkerLost
from harness.model import Completion, Reply

FIRST_WAIT, LONGEST_WAIT = 0.5, 60.0
"""Seconds: the upper bounds of the first and of every later pause between tries."""
PATIENCE_WITH_AN_ADDRESS = 5.0
"""Seconds for which an address that has never answered is tried before the run stops."""
WAIT_FOR_AN_ADDRESS = 1.5
"""Seconds, at most, between tries of an address that has never answered."""
LOADING = "if it is still loading, give --wait 600"
HINTS = {
    "unknown_host": f"check the address; {LOADING}",
    "proxy": "check HTTP_PROXY, HTTPS_PROXY and ALL_PROXY, or name the endpoint's host in NO_PROXY",
}
"""What to do about an address that has never answered, by the kind of the last fault."""
RETRY = retry_if_exception_type(TransportFault)
"""One for all: it holds a method of its own, a cycle that only the garbage collector frees."""

HEDGED = "hedged"
"""The kind of the warning for a request that is sent a second time before its first try has ended."""
LEAST_TO_HEDGE, LOOK_SECONDS = 1.0, 1.0
"""Seconds before which no second try is sent; those between two looks while too few replies say what is usual."""
ABANDONED = TransportFault("abandoned", "this try was cancelled")
"""For the limiter: neither an answer nor a refusal, and possibly billed."""

Warn = Callable[[TransportFault, int], None]
"""Called for every failed or `ABANDONED` try of a request, with its number, and for a second try that does not wait for
the first (`HEDGED`)."""


@dataclass(slots=True)
class _Race:
    """Two tries of one request: whether one was `sent`, and whether one has `won`."""

    sent: asyncio.Event = field(default_factory=asyncio.Event)
    won: bool = False

    def start(self) -> bool:
        """Note that a try has its slot; return whether it comes too late."""
        self.sent.set()
        return self.won


@dataclass(slots=True)
class Traffic:
    """Counts since the start; `requests` counts tries sent, and `backing_off` users that are between two tries."""

    requests: int = 0
    successes: int = 0
    retries: int = 0
    backing_off: int = 0
    hedged: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a caller's patience: retries of one request; seconds without any answer at all; those to the first.

    `hedge` times the 99th percentile is when a second try is sent; 0 for never.
    """

    max_retries: int
    max_outage: float
    wait: float = 0.0
    hedge: float = 0.0


class Caller(Generic[Body]):
    """One endpoint as the engine sees it. `sleep` and `clock` are arguments so that tests need not wait.

    `meter` counts requests towards a budget, if there is one.
    """

    def __init__(
        self,
        transport: Transport[Body],
        limiter: Limiter,
        limits: Limits,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
        rng: random.Random | None = None,
        meter: Meter | None = None,
    ) -> None:
        self.meter = meter
        self._turn = asyncio.Lock()
        self.traffic = Traffic()
        self.latency, self.failed_tries = Latency(), Latency()
        self.limiter = limiter
        self.outage = Outage(clock(), limits.wait > 0)
        self.limits = limits
        self.rng = rng or random.Random()
        self._transport = transport
        self._clock = clock
        self._sleep = sleep
        self._unreachable_since: float | None = None
        self._denied_at: float | None = None
        self._refused_since = math.inf
        self._naps: set[anyio.CancelScope] = set()
        self._resting: Counter[str] = Counter()
        self._in_flight: dict[int, tuple[float, str]] = {}
        """When each request was sent, oldest first, and whose it is; by its number."""

    async def complete(self, body: Body, rank: int, user: str, warn: Warn) -> Reply:
        """Return the settled reply to one of a user's requests.

        Raise `GaveUp` when the tries are used up, `Rejected` when the endpoint refuses the request,
        `EndpointStopped` when it will not serve the run.
        """
        try:
            if self.limits.hedge:
                return await self._hedged(body, rank, user, 1, warn)
            return await self._try(body, rank, user, 1, warn)
        except TransportFault as fault:
            return await self._retry(body, rank, user, fault, warn)

    async def _try(self, body: Body, rank: int, user: str, number: int, warn: Warn, race: _Race | None = None) -> Reply:
        """Send a request once, when its turn comes; a try that is cancelled then still counts towards the rates."""
        limiter, clock, rates = self.limiter, self._clock, self.limiter.slots.rates
        tokens = rates.estimate(body) if rates else 0.0
        if not limiter.at_once(tokens):
            await limiter.acquire(rank, tokens)
        if race is not None and race.start():
            limiter.release(0.0, ABANDONED)
            raise asyncio.CancelledError
        reservation = None
        if self.meter is not None and (reservation := self.meter.take(len(body))) is None:
            reservation = await self._when_it_fits(self.meter, rank, tokens, len(body))
        fault, received, start = None, None, clock()
        place = self.traffic.requests = self.traffic.requests + 1
        self._in_flight[place] = start, user
        try:
            received = await self._transport.send(body, user)
        except TransportFault as error:
            fault = self._failed(error, user, start)
        except Denied as error:
            fault = self._failed(self._denied(error, start), user, start)
        except EndpointStopped:
            limiter.close()  # before another request gets the slot
            raise
        except (asyncio.CancelledError, WorkerLost):
            fault = ABANDONED
            warn(fault, number)
            raise
        finally:
            now = clock()
            del self._in_flight[place]
            if race is not None:
                race.won |= received is not None
            if rates and fault is not ABANDONED:
                rates.correct(tokens, *_used(received), now)
            if reservation is not None:
                reservation.settle(received, fault)
            limiter.release(now - start, fault)
        if received is None:
            self.failed_tries.add(now - start)
            assert fault is not None
            raise fault
        self.latency.add(now - start)
        self._succeeded(received.completion, now)
        return Reply(received.completion, now - start, number, received.endpoint, received.first_token, sent=len(body))

    async def _when_it_fits(self, meter: Meter, rank: int, tokens: float, size: int) -> Reservation:
        """Give the slot back until the budget has room for a request of so many bytes; return with a slot again.

        One request of a run looks for room at a time. Raise `BudgetReached`, without a slot.
        """
        self._leave(tokens)
        meter.waiting += 1
        try:
            async with self._turn:
                while True:
                    await meter.room(size)
                    await self.limiter.acquire(rank, tokens)
                    if reservation := meter.take(size):
                        return reservation
                    self._leave(tokens)
        finally:
            meter.waiting -= 1

    def _leave(self, tokens: float) -> None:
        """Give a slot back that no try has used."""
        if rates := self.limiter.slots.rates:
            rates.correct(tokens, 0.0, None, self._clock())
        self.limiter.release(0.0, ABANDONED)

    async def _hedged(self, body: Body, rank: int, user: str, number: int, warn: Warn) -> Reply:
        """Try once; send what takes `hedge` times the 99th percentile a second time, to whichever replica has room.

        The first whole reply wins, and the other try is cancelled. Each takes a slot, and counts towards the rates. A
        fault of one waits for the other.
        """
        race = _Race()
        tries = {asyncio.create_task(self._try(body, rank, user, number, warn, race))}
        try:
            await race.sent.wait()
            done, start = set[asyncio.Task[Reply]](), self._clock()
            while not done and (left := self._until_second(start)) > 0.0:
                done, _ = await asyncio.wait(tries, timeout=left)
            if not done:
                self.traffic.hedged += 1
                warn(TransportFault(HEDGED, f"no reply within {self._clock() - start:.0f} s"), number)
                tries.add(asyncio.create_task(self._try(body, rank, "", number + 1, warn, race)))
            while True:
                done, tries = await asyncio.wait(tries, return_when=asyncio.FIRST_COMPLETED)
                ended = [one for one in done if not one.cancelled()]
                ended.sort(key=lambda one: (one.exception() is not None, _faulty(one)))  # a reply before any error
                if ended and not (tries and _faulty(ended[0])):
                    return ended[0].result()
        finally:
            for one in tries:
                one.cancel()
            await asyncio.gather(*tries, return_exceptions=True)

    def _until_second(self, start: float) -> float:
        """Return the seconds until a request that was sent at `start` may be sent again, or until another look."""
        if (tail := self.latency.tail) is None:
            return LOOK_SECONDS
        return start + max(LEAST_TO_HEDGE, self.limits.hedge * tail) - self._clock()

    def stragglers(self) -> list[tuple[int, str, float]]:
        """Return the number, user and seconds of each request in flight far beyond the usual, the oldest first."""
        now, (oldest, _) = self._clock(), next(iter(self._in_flight.values()), (math.inf, ""))
        if now - oldest <= LEAST_BEYOND or (beyond := self.latency.beyond) is None:
            return []
        old = takewhile(lambda item: now - item[1][0] > beyond, self._in_flight.items())
        return [(place, user, now - start) for place, (start, user) in old if user]

    async def _retry(self, body: Body, rank: int, user: str, first: TransportFault, warn: Warn) -> Reply:
        """Make the tries after a failed first one, which is the first attempt so that the pauses count right."""
        record, number = _Failures(self, user), 0
        tries = AsyncRetrying(retry=RETRY, stop=record.exhausted, wait=record.wait, sleep=record.pause, reraise=True)

        async def attempt() -> Reply:
            nonlocal number
            number += 1
            try:
                if number == 1:
                    raise first
                self.traffic.retries += 1
                if self.limits.hedge:
                    return await self._hedged(body, rank, user, number, warn)
                return await self._try(body, rank, user, number, warn)
            except TransportFault as fault:
                record.note(fault, self._clock())
                warn(fault, number)
                raise

        try:
            return await tries(attempt)
        except TransportFault as last:
            raise GaveUp("persistent_error", f"{last.kind}: {last.detail}", number) from last
        finally:
            tries.iter_state.reset()  # it holds methods of its own, a cycle that only the garbage collector frees

    async def pause(self, seconds: float, *, requested: bool, user: str) -> None:
        """Sleep between two tries; the end of an outage ends it, unless the endpoint `requested` the pause."""
        if self._unreachable_since is not None:
            seconds = min(seconds, WAIT_FOR_AN_ADDRESS)
        self._resting[user] += 1
        self.traffic.backing_off = len(self._resting)
        nap = anyio.CancelScope()
        if not requested:
            self._naps.add(nap)
        try:
            with nap:
                await self._sleep(seconds)
        finally:
            self._naps.discard(nap)
            self._resting[user] -= 1
            self._resting += Counter()  # drops users without a pause
            self.traffic.backing_off = len(self._resting)

    def _succeeded(self, completion: Completion, now: float) -> None:
        self._unreachable_since = self._denied_at = None
        self._refused_since = math.inf
        if self.outage.succeeded(now):
            self.limiter.recover()
            for nap in self._naps:
                nap.cancel()  # those pauses were drawn for an endpoint that was down
        traffic = self.traffic
        traffic.successes += 1
        traffic.prompt_tokens += completion.prompt_tokens or 0
        traffic.completion_tokens += completion.completion_tokens or 0

    def _failed(self, fault: TransportFault, user: str, start: float) -> TransportFault:
        """Draw the conclusions from a failed try, before another request gets its slot; return the fault."""
        now, left = self._clock(), self.wait_left
        self._judge_address(fault, start)
        if fault.asks_to_wait:
            self._refused_since = min(self._refused_since, now)
        declared = self.outage.failed(now, user)
        lasted = now - (self.outage.last_success if declared else self._refused_since)
        if lasted >= self.limits.max_outage and not left:
            duration = f"{lasted / 60:.0f} minutes" if lasted >= 120 else f"{lasted:.0f} seconds"
            self._stop(
                f"the endpoint has not answered for {duration} ({fault.kind}: {fault.detail}): resume when it is back"
            )
        if declared:
            probe = self.outage.next_probe(now)
            self.limiter.probe(min(probe, left) if left else probe)  # one more at the end of --wait
        return fault

    def _denied(self, error: Denied, start: float) -> TransportFault:
        """Take 401, 403 or an empty account after successes as passing, until a try begun later is denied too."""
        if not self.traffic.successes or (self._denied_at is not None and start >= self._denied_at):
            self.limiter.close()
            raise error
        if self._denied_at is None:
            self._denied_at = self._clock()
        return TransportFault("denied", str(error))

    def _judge_address(self, fault: TransportFault, start: float) -> None:
        """Stop the run when nothing has ever succeeded and the address itself does not answer, or something else does.

        A fault of any other kind shows that a server is there, and resets the patience.
        """
        if fault.foreign and not self.traffic.successes and not self.wait_left:
            self._stop(f"this is not an endpoint for chat completions: {fault.detail}")
        if self.traffic.successes or not fault.unreachable:
            self._unreachable_since = None
            return
        if self._unreachable_since is None:
            self._unreachable_since = start
        if fault.kind == "http_404":
            self._stop(f"the endpoint has never answered: {fault.detail}; does the address need a /v1 at its end?")
        if self._clock() - self._unreachable_since >= PATIENCE_WITH_AN_ADDRESS and not self.wait_left:
            wait = self.limits.wait
            hint = f"--wait {wait:g} is over" if wait else HINTS.get(fault.kind, LOADING)
            self._stop(f"the endpoint has never answered: {fault.detail}; {hint}")

    @property
    def wait_left(self) -> float:
        """Return the seconds of `--wait` for the first answer that are left; 0 after it, and where none is awaited."""
        return max(0.0, self.outage.last_success + self.limits.wait - self._clock()) if self.outage.awaited else 0.0

    def _stop(self, why: str) -> NoReturn:
        self.limiter.close()
        raise EndpointStopped(why)


class _Failures:
    """The failed tries of one request: their `times`, and how many of them count. Being asked to wait is none."""

    def __init__(self, caller: Caller[Any], user: str) -> None:
        self.times: list[float] = []
        self._user = user
        self._caller = caller
        self._requested: float | None = None
        self._refusals = 0

    def note(self, fault: TransportFault, now: float) -> None:
        if fault.asks_to_wait:
            self._refusals += 1
        else:
            self.times.append(now)

    def exhausted(self, state: RetryCallState) -> bool:
        """Return whether the tries outside outages are used up, and no outage may be about to be declared."""
        outage = self._caller.outage
        used_up = self._counted() > self._caller.limits.max_retries
        return used_up and (outage.silent or outage.last_success > self.times[0])

    def wait(self, state: RetryCallState) -> float:
        fault = state.outcome.exception() if state.outcome else None
        if fault is not None:
            fault.__traceback__ = None  # its frames hold it and the whole user, until garbage is collected
        self._requested = fault.retry_after if isinstance(fault, TransportFault) else None
        return full_jitter(self._counted() + self._refusals, self._requested, self._caller.rng)

    async def pause(self, seconds: float) -> None:
        await self._caller.pause(seconds, requested=bool(self._requested), user=self._user)

    def _counted(self) -> int:
        return sum(not self._caller.outage.covers(time) for time in self.times)


def full_jitter(failures: int, requested: float | None, rng: random.Random) -> float:
    """Draw the seconds to the next try: even up to 0.5 s, doubled with each failure after the first, at most 60 s.

    Never less than the endpoint requested (docs/design.md, section 6).
    """
    wait = rng.uniform(0.0, min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(max(0, failures - 1), 16)))
    return wait if requested is None else max(wait, requested + wait * 0.1)  # requests with the same time spread out


def _faulty(one: asyncio.Task[Reply]) -> bool:
    return isinstance(one.exception(), TransportFault)


def _used(received: Received | None) -> tuple[float | None, float | None]:
    """Return the tokens of a try and of its completion: 0 of a failed try; None if no usage is reported."""
    if received is None:
        return 0.0, None
    prompt, completion = received.completion.prompt_tokens, received.completion.completion_tokens
    return (None, None) if prompt is None or completion is None else (float(prompt + completion), float(completion))
