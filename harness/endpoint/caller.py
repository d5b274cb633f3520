"""A request until it is settled: a slot, a try, and after a failure the others (docs/design.md, section 6).

tenacity comes in only once a first try has failed, so that a success pays nothing for it.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NoReturn

import anyio
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type

from harness.endpoint.limiter import Limiter
from harness.endpoint.outage import Outage
from harness.endpoint.replies import Denied
from harness.endpoint.transport import Received, Transport
from harness.errors import EndpointStopped, GaveUp, TransportFault
from harness.model import Completion, Reply

FIRST_WAIT, LONGEST_WAIT = 0.5, 60.0
"""Seconds: the upper bounds of the first and of every later pause between tries."""

PATIENCE_WITH_AN_ADDRESS = 5.0
"""Seconds for which an address that has never answered is tried before the run stops."""

WAIT_FOR_AN_ADDRESS = 1.5
"""Seconds, at most, between tries of an address that has never answered."""

RETRY = retry_if_exception_type(TransportFault)
"""One for all: it holds a method of its own."""

Warn = Callable[[TransportFault, int], None]
"""Hears of every failed try of a request and its number."""


@dataclass(slots=True)
class Traffic:
    """Counts since the start; `requests` counts tries sent."""

    requests: int = 0
    successes: int = 0
    retries: int = 0
    backing_off: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """What a caller does not do for ever: other tries of one request; seconds without any answer at all."""

    max_retries: int
    max_outage: float


class Caller:
    """One endpoint as the engine sees it. `sleep` and `clock` are arguments so that tests need not wait."""

    def __init__(
        self,
        sender: Transport,
        limiter: Limiter,
        limits: Limits,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
        rng: random.Random | None = None,
    ) -> None:
        self.traffic = Traffic()
        self.limiter = limiter
        self.outage = Outage(clock())
        self._sender = sender
        self._limits = limits
        self._clock = clock
        self._sleep = sleep
        self._rng = rng or random.Random()
        self._unreachable_since: float | None = None
        self._denied_at: float | None = None
        self._naps: set[anyio.CancelScope] = set()

    async def complete(self, body: bytes, rank: int, user: str, warn: Warn) -> Reply:
        """The settled reply to one of a user's requests.

        Raises `GaveUp` when the tries are used up, `Rejected` when the endpoint refuses the request,
        `EndpointStopped` when it will not serve the run.
        """
        try:
            return await self._try(body, rank, user, 1)
        except TransportFault as fault:
            return await self._again(body, rank, user, fault, warn)

    async def _try(self, body: bytes, rank: int, user: str, number: int) -> Reply:
        limiter, clock, rates = self.limiter, self._clock, self.limiter.rates
        tokens = rates.estimate(body) if rates else 0.0
        await limiter.acquire(rank, tokens)
        fault, received, start = None, None, clock()
        self.traffic.requests += 1
        try:
            received = await self._sender.send(body, user)
        except TransportFault as error:
            fault = self._failed(error, user, start)
        except Denied as error:
            fault = self._failed(self._denied(error, start), user, start)
        except EndpointStopped:
            limiter.close()  # before the slot goes to somebody else
            raise
        finally:
            now = clock()
            if rates:
                rates.correct(tokens, *_used(received), now)
            limiter.release(now - start, fault)
        if received is None:
            assert fault is not None
            raise fault
        self._succeeded(received.completion, now)
        return Reply(received.completion, now - start, number, received.endpoint, received.first_token)

    async def _again(self, body: bytes, rank: int, user: str, first: TransportFault, warn: Warn) -> Reply:
        """The tries after a failed first one, which stands as the first attempt so that the pauses count right."""
        record = _Failures(self, self._limits.max_retries)
        tries = AsyncRetrying(
            retry=RETRY,
            stop=record.exhausted,
            wait=record.wait,
            sleep=record.pause,
            reraise=True,
        )
        number = 0

        async def attempt() -> Reply:
            nonlocal number
            number += 1
            try:
                if number == 1:
                    raise first
                self.traffic.retries += 1
                return await self._try(body, rank, user, number)
            except TransportFault as fault:
                record.add(self._clock())
                warn(fault, number)
                raise

        try:
            return await tries(attempt)
        except TransportFault as last:
            raise GaveUp("persistent_error", f"{last.kind}: {last.detail}", number) from last
        finally:
            tries.iter_state.reset()  # methods of its own, which would keep it until garbage is looked for

    async def pause(self, seconds: float, *, asked: bool) -> None:
        """Between two tries; the end of an outage ends it, unless the endpoint `asked` for it."""
        if self._unreachable_since is not None:
            seconds = min(seconds, WAIT_FOR_AN_ADDRESS)
        self.traffic.backing_off += 1
        nap = anyio.CancelScope()
        if not asked:
            self._naps.add(nap)
        try:
            with nap:
                await self._sleep(seconds)
        finally:
            self._naps.discard(nap)
            self.traffic.backing_off -= 1

    def _succeeded(self, completion: Completion, now: float) -> None:
        self._unreachable_since = self._denied_at = None
        if self.outage.succeeded(now):
            self.limiter.recover()
            for nap in self._naps:
                nap.cancel()  # those pauses were drawn for an endpoint that was down
        self.traffic.successes += 1
        self.traffic.prompt_tokens += completion.prompt_tokens or 0
        self.traffic.completion_tokens += completion.completion_tokens or 0

    def _failed(self, fault: TransportFault, user: str, start: float) -> TransportFault:
        """Draws the conclusions from a failed try, before its slot goes to somebody else; returns the fault."""
        now = self._clock()
        self._judge_address(fault, start)
        if not self.outage.failed(now, user):
            return fault
        lasted = self.outage.lasted(now)
        if lasted >= self._limits.max_outage:
            self._stop(
                f"the endpoint has not answered for {_in_words(lasted)} ({fault.kind}: {fault.detail}): "
                "resume when it is back"
            )
        self.limiter.probe(self.outage.next_probe(now))
        return fault

    def _denied(self, error: Denied, start: float) -> TransportFault:
        """401, 403 or an empty account after successes: passing, unless a try begun after the first says so too."""
        if not self.traffic.successes or (self._denied_at is not None and start >= self._denied_at):
            self.limiter.close()
            raise error
        if self._denied_at is None:
            self._denied_at = self._clock()
        return TransportFault("denied", str(error))

    def _judge_address(self, fault: TransportFault, start: float) -> None:
        """Stops the run when nothing has ever succeeded and the address itself does not answer.

        A fault of any other kind shows that somebody is there: the patience begins anew.
        """
        if self.traffic.successes or not fault.unreachable:
            self._unreachable_since = None
            return
        if self._unreachable_since is None:
            self._unreachable_since = start
        if fault.kind == "http_404" or self._clock() - self._unreachable_since >= PATIENCE_WITH_AN_ADDRESS:
            self._wrong_address(fault)

    def _wrong_address(self, fault: TransportFault) -> NoReturn:
        hint = "; does the address need a /v1 at its end?" if fault.kind == "http_404" else ""
        self._stop(f"the endpoint has never answered: {fault.detail}{hint}")

    def _stop(self, why: str) -> NoReturn:
        self.limiter.close()
        raise EndpointStopped(why)


class _Failures:
    """The failed tries of one request: when they were, and which of them count."""

    def __init__(self, caller: Caller, max_retries: int) -> None:
        self._caller = caller
        self._max_retries = max_retries
        self._times: list[float] = []
        self._asked: float | None = None

    def add(self, time: float) -> None:
        self._times.append(time)

    def exhausted(self, state: RetryCallState) -> bool:
        """Whether the tries outside outages are used up; while nobody succeeds, one may be about to be declared."""
        outage = self._caller.outage
        if self._counted() <= self._max_retries:
            return False
        return outage.silent or outage.last_success > self._times[0]

    def wait(self, state: RetryCallState) -> float:
        fault = state.outcome.exception() if state.outcome else None
        if fault is not None:
            fault.__traceback__ = None  # its frames hold it, and with it the whole user, until garbage is looked for
        self._asked = fault.retry_after if isinstance(fault, TransportFault) else None
        return full_jitter(self._counted(), self._asked, self._caller._rng)

    async def pause(self, seconds: float) -> None:
        await self._caller.pause(seconds, asked=bool(self._asked))

    def _counted(self) -> int:
        return sum(not self._caller.outage.covers(time) for time in self._times)


def full_jitter(failures: int, asked: float | None, rng: random.Random) -> float:
    """Seconds to the next try: drawn evenly up to 0.5 s, doubled with each failure after the first, at most 60 s.

    Never less than the endpoint asked for, if it did (docs/design.md, section 6).
    """
    wait = rng.uniform(0.0, min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(max(0, failures - 1), 16)))
    return wait if asked is None else max(wait, asked + wait * 0.1)  # all that were told the same time spread out


def _in_words(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds:.0f} seconds"


def _used(received: Received | None) -> tuple[float | None, float | None]:
    """Tokens of a try and of its completion; none of a failed one; unknown where no usage is told."""
    if received is None:
        return 0.0, None
    completion = received.completion
    if completion.prompt_tokens is None or completion.completion_tokens is None:
        return None, None
    return float(completion.prompt_tokens + completion.completion_tokens), float(completion.completion_tokens)
