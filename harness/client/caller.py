"""A request until it is settled: a slot, a try, and after a failure more tries (docs/design.md,
section 6).

tenacity is used only once a first try has failed, so that a success pays nothing for it.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import takewhile
from typing import NamedTuple, Protocol

import anyio
from tenacity import AsyncRetrying, retry_if_exception_type

from harness.client.health import FailedTries, Health, Limits
from harness.client.latency import LEAST_BEYOND, Latency
from harness.client.limiter import Limiter
from harness.client.replies import Denied, UsedUp
from harness.client.transport import Received, Transport
from harness.cost import Reserved
from harness.errors import EndpointStopped, HarnessError, Rejected, TransportFault
from harness.model import Load, Reply

FIRST_WAIT, LONGEST_WAIT = 0.5, 60.0
"""Seconds: the upper bounds of the first and of every later pause between tries."""
WAIT_FOR_AN_ADDRESS = 1.5
"""Seconds, at most, between tries of an address that has never answered."""
RETRY = retry_if_exception_type(TransportFault)
"""One for all: it holds a method of its own, a cycle that only the garbage collector frees."""
EARLY_TIMER = 0.01
"""Seconds, at most, by which a timer may fire early."""
SPREAD = 0.25
"""Part of a requested wait by which it is longer at most, so that requests with the same one spread
out."""

ABANDONED = TransportFault("abandoned", "this try was cancelled")
"""For the limiter: neither an answer nor a refusal, and possibly billed."""
SILENT = TransportFault("timeout", "no reply to a request for one token")
PROBE, OUTAGE = "probe", "outage"
"""Kinds of the `RequestEvent` of a request for one token, the latter where it was not answered."""


class RequestEvent(TransportFault):
    """For `Warn`: what is no failed try, counted and logged by its kind. `sent` are the bytes of a
    request of its own, which may be billed."""

    def __init__(self, kind: str, detail: str, sent: int = 0) -> None:
        super().__init__(kind, detail)
        self.sent = sent


Warn = Callable[[TransportFault, int], None]
"""Called with the fault and number of every failed or `ABANDONED` try of a request, and with a
`RequestEvent`."""


class NotNow(Exception):
    """Raised by what an extension adds to a try that is not to go out now."""


class Part(Protocol):
    """What an extension does about one try."""

    def admitted(self) -> None:
        """Act once the try has its slot. If it raises, as `NotNow` does, the slot is given back and
        nothing is sent."""
        ...

    def ended(self, received: Received | None, fault: TransportFault | None) -> None:
        """Act on what an admitted try received, or how it failed, before another one can get its
        slot. Neither is there if the endpoint refused it; both if a probe was sent in its place,
        and answered."""
        ...


class Attempt(NamedTuple):
    """One try of a request of a user: its number, what failed before, and its `parts`, the
    outermost extension's first."""

    body: bytes
    rank: int
    user: str
    number: int
    warn: Warn
    tries: FailedTries
    parts: tuple[Part, ...] = ()


class Loan(Protocol):
    """The part of an allowance that one borrower, another process, may spend."""

    def renewed(self, taken: Decimal, reserved: Decimal, borrowers: int) -> Decimal:
        """Return what the borrower may take from now on beyond what it has `taken` so far and
        `reserved` for requests in flight: its share of what is left."""
        ...

    def settle(self, taken: Decimal) -> None:
        """End the reservation of a borrower that has taken so much in all."""
        ...

    def lose(self) -> None:
        """Count all that a lost borrower might have taken."""
        ...

    def reached(self, error: HarnessError) -> HarnessError:
        """Return the error of a borrower as one about the whole allowance."""
        ...


class Allowance:
    """What requests may take in all. By default there is no limit.

    `waiting` are the requests that wait until more is left, by what `held_by` names; the display
    shows `load` of it. The methods are for requests that go out together, as a group with a
    `label`, and are answered one by one.
    """

    held_by: str | None = None
    waiting = 0

    @property
    def load(self) -> Load:
        return ()

    def reserve(self, sizes: Sequence[int]) -> Sequence[Reserved | None]:
        """Reserve what the first of some requests may take, of so many bytes each: as many as there
        is room for now.

        Raise `HarnessError` if there will never be room for one.
        """
        return [None] * len(sizes)

    def resume(self, reserved: Reserved | None) -> None:
        """Know of what an earlier process has reserved for a group whose answers come to this
        one."""

    def took(
        self, label: str, reserved: Reserved | None, size: int, answer: Received | HarnessError
    ) -> None:
        """Count what a request of a group took, for which so much was reserved, None if that is not
        known."""

    def end(self, label: str, reserved: Reserved | None) -> None:
        """Give back what was reserved for a group beyond what its requests took."""

    def loan(self) -> Loan | None:
        """Return the part of it that another process may spend, None if there is no limit."""
        return None

    def limit(self, amount: Decimal) -> None:
        """Let requests take so much beyond what is taken and reserved now."""

    def spent_and_reserved(self) -> tuple[Decimal, Decimal]:
        """Return what requests have taken, and what is reserved for those in flight."""
        return Decimal(0), Decimal(0)


UNLIMITED = Allowance()

MakeAttempt = Callable[[Attempt], Awaitable[Reply]]
"""Tries a request, when its turn comes. Raises `TransportFault`, and as `Caller.complete` does."""


@dataclass(slots=True)
class Traffic:
    """Counts since the start; `requests` counts tries sent, and `backing_off` users that are
    between two tries."""

    requests: int = 0
    successes: int = 0
    retries: int = 0
    backing_off: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    notices: Counter[str] = field(default_factory=Counter)


class Caller:
    """One endpoint as the engine sees it. `sleep` and `clock` are arguments so that tests need not
    wait.

    `make_attempt` tries a request, by default as `attempt` does, with at most `at_once` tries in
    flight, by default one. `allowance` is what requests may take. `probe` is the body of the
    smallest request, for one token.
    """

    def __init__(
        self,
        transport: Transport,
        limiter: Limiter,
        limits: Limits,
        *,
        probe: bytes,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
        rng: random.Random | None = None,
    ) -> None:
        self.make_attempt: MakeAttempt = self.attempt
        self.at_once = 1
        self.allowance = UNLIMITED
        self.traffic = Traffic()
        self.latency, self.failed_tries = Latency(), Latency()
        self.limiter = limiter
        self.health = Health(clock(), limits)
        self.limits = limits
        self.rng = rng or random.Random()
        self.transport = transport
        self._probe = probe
        self._clock = clock
        self._sleep = sleep
        self._naps: dict[anyio.CancelScope, FailedTries] = {}
        """Pauses that the endpoint did not request."""
        self._asked_to_wait: dict[anyio.CancelScope, float] = {}
        """Until when those last that it did."""
        self._resting: Counter[str] = Counter()
        self._in_flight: dict[int, tuple[float, str]] = {}
        """When each request was sent, oldest first, and whose it is; by its number."""

    async def complete(
        self, body: bytes, rank: int, user: str, warn: Warn, failed_before: tuple[int, int] = (0, 0)
    ) -> Reply:
        """Return the settled reply to one of a user's requests. `failed_before` are its tries that
        failed in earlier processes: those that may count, and those that may be billed.

        Raise `GaveUp` when the tries are used up, `Rejected` when the endpoint refuses the request,
        `EndpointStopped` when it will not serve the run.
        """
        tries = FailedTries(undecided=failed_before[0], billable=failed_before[1])
        if tries.undecided:
            self.health.failed_before(tries)
        first = Attempt(body, rank, user, 1 + max(failed_before), warn, tries)
        try:
            return await self.make_attempt(first)
        except TransportFault as fault:
            self._warn(first, fault)
        return await self._retry(first)

    async def _retry(self, attempt: Attempt) -> Reply:
        """Make the tries after a failed first one."""
        tries = attempt.tries

        async def again() -> Reply:
            nonlocal attempt
            # It may have been decided during the pause.
            tries.check(attempt.number, self.limits.max_retries)
            attempt = attempt._replace(number=attempt.number + 1)
            self.traffic.retries += 1
            try:
                return await self.make_attempt(attempt)
            except TransportFault as fault:
                self._warn(attempt, fault)
                raise

        async def pause(seconds: float) -> None:
            await self._pause(tries, attempt.user, seconds)

        retrying = AsyncRetrying(
            retry=RETRY, wait=lambda state: self._seconds(tries), sleep=pause, reraise=True
        )
        await pause(self._seconds(tries))
        try:
            return await retrying(again)
        finally:
            # it holds methods of its own, a cycle that only the garbage collector frees
            retrying.iter_state.reset()

    def _warn(self, attempt: Attempt, fault: TransportFault) -> None:
        """Report a failed try. Raise why its user fails, if it was the last one."""
        attempt.warn(fault, attempt.number)
        attempt.tries.check(attempt.number, self.limits.max_retries)

    async def attempt(self, attempt: Attempt) -> Reply:
        """Send a request once, when its turn comes; before it a probe, where one is due.

        A try that is cancelled then still counts towards the rates.
        """
        limiter = self.limiter
        try:
            while True:
                rates = limiter.slots.rates
                tokens = rates.estimate(len(attempt.body)) if rates else 0.0
                is_alone = limiter.probing
                if not limiter.at_once(tokens):
                    is_alone = await limiter.acquire(attempt.rank, tokens)
                if not self._admits(attempt, tokens, is_alone):
                    continue
                if is_alone and self.health.probes_now(self._clock()):
                    await self._send_probe(attempt, tokens)
                    continue
                return await self._sent(attempt, tokens, is_alone)
        except EndpointStopped:
            limiter.close()
            raise

    async def _sent(self, attempt: Attempt, tokens: float, is_alone: bool) -> Reply:
        """Send a request that has its slot, with so many `tokens` reserved."""
        body = attempt.body
        clock = self._clock
        fault: TransportFault | None = None
        received: Received | None = None
        used: float | None = 0.0
        completion: float | None = None
        start = clock()
        place = self.traffic.requests = self.traffic.requests + 1
        self._in_flight[place] = start, attempt.user
        try:
            received = await self.transport.send(body, attempt.user)
            used, completion = _used(received)
            self.answered()
        except (TransportFault, EndpointStopped) as error:
            fault = _fault_of(error)
            self._failed(is_alone, attempt.tries, fault, start)
        except asyncio.CancelledError:
            fault, used = ABANDONED, None
            attempt.warn(fault, attempt.number)
            raise
        finally:
            seconds = clock() - start
            del self._in_flight[place]
            for part in attempt.parts:
                part.ended(received, fault)
            self.limiter.release(seconds, fault, is_alone, tokens, used, completion)
        if received is None:
            self.failed_tries.add(seconds)
            assert fault is not None
            raise fault
        self.latency.add(seconds)
        traffic = self.traffic
        settled = received.completion
        traffic.successes += 1
        traffic.prompt_tokens += settled.prompt_tokens or 0
        traffic.completion_tokens += settled.completion_tokens or 0
        number, endpoint, first_token = attempt.number, received.endpoint, received.first_token
        return Reply(settled, seconds, number, endpoint, first_token, sent=len(body))

    def _admits(self, attempt: Attempt, tokens: float, is_alone: bool) -> bool:
        """Return whether a request may use its slot now; else give that back. Raise why its user
        fails by now."""
        tries = attempt.tries
        try:
            tries.check(attempt.number - 1, self.limits.max_retries)
            if is_alone:
                seconds = self.health.seconds_to_spare(tries, self._clock())
                if seconds:
                    self.limiter.probe(seconds)
                    self.limiter.release(0.0, ABANDONED, is_alone, tokens, 0.0)
                    return False
            for part in attempt.parts:
                part.admitted()
        except BaseException:
            self.limiter.release(0.0, ABANDONED, is_alone, tokens, 0.0)
            raise
        return True

    async def _send_probe(self, attempt: Attempt, tokens: float) -> None:
        """Use a request's slot for a probe. Raise `EndpointStopped` if the run ends with it."""
        received, used = None, None
        fault: TransportFault | None = SILENT
        self.traffic.requests += 1
        try:
            try:
                with anyio.move_on_after(self.health.probe(self._clock())):
                    received = await self.transport.send(self._probe, "")
                    used, fault = _used(received)[0], None
            except Rejected:
                used, fault = 0.0, None  # a server has read it
            except (TransportFault, EndpointStopped) as error:
                # Its frames hold it and the whole user, until garbage is collected.
                error.__traceback__ = None
                used, fault = 0.0, _fault_of(error)
            except asyncio.CancelledError:
                fault = ABANDONED
                raise
            if fault is None:
                self.answered()
            else:
                self.health.unanswered(fault, self._clock())
                self._go_alone()
        finally:
            for part in attempt.parts:
                part.ended(received, fault or (received and SILENT))
            size = len(self._probe)
            notice = RequestEvent(PROBE, "answered", size)
            if fault:
                kind = PROBE if fault.refusal or fault is ABANDONED else OUTAGE
                notice = RequestEvent(kind, f"{fault.kind}: {fault.detail}", size * fault.billed)
            attempt.warn(notice, attempt.number)
            self.limiter.release(0.0, ABANDONED, True, tokens, used)

    def answered(self) -> None:
        """Note that the endpoint has answered something."""
        if self.health.is_silent:
            self._wake()
        self.health.answered(self._clock())
        if self.limiter.probing:
            self.limiter.recover()

    def _failed(
        self, is_alone: bool, tries: FailedTries, fault: TransportFault, start: float
    ) -> None:
        """Draw the conclusions from a failed try, before another request gets its slot."""
        health = self.health
        old_state = health.in_doubt, health.down
        health.failed(tries, fault, start, self._clock())
        if is_alone or old_state != (health.in_doubt, health.down):
            self._go_alone()

    def _go_alone(self) -> None:
        """Send one request at a time from now on, if that is so."""
        if self.health.one_at_a_time:
            self.limiter.probe(self.health.until_next(self._clock()))
            self._wake()

    @property
    def oldest(self) -> float | None:
        """Return the age of the request that is in flight for longest, in seconds; None without
        any."""
        for start, _ in self._in_flight.values():
            return self._clock() - start
        return None

    def stragglers(self) -> list[tuple[int, str, float]]:
        """Return the number, user and seconds of each request in flight far beyond the usual, the
        oldest first."""
        now = self._clock()
        oldest, _ = next(iter(self._in_flight.values()), (math.inf, ""))
        if now - oldest <= LEAST_BEYOND:
            return []
        beyond = self.latency.beyond
        if beyond is None:
            return []
        old = takewhile(lambda item: now - item[1][0] > beyond, self._in_flight.items())
        return [(place, user, now - start) for place, (start, user) in old if user]

    async def _pause(self, tries: FailedTries, user: str, seconds: float) -> None:
        """Sleep between two tries, and have a probe sent if only an answer shows what follows."""
        if seconds:
            await self._nap(tries, user, seconds)
        if self.health.needs_probe(tries):
            self.health.doubt(self._clock())
            self._go_alone()

    async def _nap(self, tries: FailedTries, user: str, seconds: float) -> None:
        """Sleep. An answer, or an outage, ends a pause that the endpoint did not request."""
        nap = anyio.CancelScope()
        assert tries.last is not None
        if tries.last.retry_after:
            self._asked_to_wait[nap] = self._clock() + seconds
        elif not tries.last.asks_to_wait:
            self._naps[nap] = tries
        self._resting[user] += 1
        self.traffic.backing_off = len(self._resting)
        try:
            with nap:
                await self._sleep(seconds)
        finally:
            self._naps.pop(nap, None)
            self._asked_to_wait.pop(nap, None)
            self._resting[user] -= 1
            self._resting += Counter()  # drops users without a pause
            self.traffic.backing_off = len(self._resting)

    def _seconds(self, tries: FailedTries) -> float:
        """Return the seconds until a request may be tried again."""
        health = self.health
        now = self._clock()
        assert tries.last is not None
        # Its frames hold it and the whole user, until garbage is collected.
        tries.last.__traceback__ = None
        requested = tries.last.retry_after
        failures = tries.waits + tries.counted + tries.undecided + tries.refused
        seconds = pause_before(failures, requested, self.rng)
        if requested or tries.last.asks_to_wait:
            return seconds
        if health.one_at_a_time:
            return 0.0
        until_probe = health.until_probe(now)
        if health.needs_probe(tries) and (health.is_over(tries) or not until_probe):
            return until_probe and until_probe + EARLY_TIMER
        if health.is_unreached:
            seconds = min(seconds, WAIT_FOR_AN_ADDRESS)
        return min(seconds, health.patience(now))

    def _wake(self) -> None:
        """End the pauses of those that wait for a probe; while the endpoint is down all wait for a
        slot."""
        for nap, tries in self._naps.items():
            if self.health.down or self.health.needs_probe(tries):
                nap.cancel()

    @property
    def pause_left(self) -> float:
        """Return the seconds until the first request goes that the endpoint has asked to wait, 0
        where any is in flight or may go."""
        limiter, now = self.limiter, self._clock()
        if limiter.in_flight or limiter.held_by not in (None, "pause"):
            return 0.0
        if limiter.waiting:
            return limiter.delay()
        return max(0.0, min(self._asked_to_wait.values(), default=now) - now)

    @property
    def wait_left(self) -> float:
        """Return the seconds of `--wait` for the first answer that are left; 0 after it, and where
        none is awaited."""
        return self.health.wait_left(self._clock())


def pause_before(failures: int, requested: float | None, rng: random.Random) -> float:
    """Draw the seconds to the next try: those that the endpoint requests, or a quarter more at
    most; else even up to 0.5 s, doubled with each failure after the first, at most 60 s
    (docs/design.md, section 6)."""
    if requested:
        return requested * rng.uniform(1.0, 1.0 + SPREAD)
    doublings = min(max(0, failures - 1), 16)
    return rng.uniform(0.0, min(LONGEST_WAIT, FIRST_WAIT * 2**doublings))


def _fault_of(error: TransportFault | EndpointStopped) -> TransportFault:
    """Return a fault, or a refusal of the configuration as one; raise any other error.

    Another try may pass: a firewall may block this prompt alone, or one of several servers may lack
    the model.
    """
    if isinstance(error, TransportFault):
        return error
    if not isinstance(error, Denied) or isinstance(error, UsedUp):
        raise error
    return TransportFault("denied", str(error), billed=False, refusal=error)


def _used(received: Received) -> tuple[float | None, float | None]:
    """Return the tokens of a try and of its completion; None if no usage is reported."""
    prompt, completion = received.completion.prompt_tokens, received.completion.completion_tokens
    if prompt is None or completion is None:
        return None, None
    return float(prompt + completion), float(completion)
