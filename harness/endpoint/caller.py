"""A request until it is settled: a slot, a try, and after a failure more tries (docs/design.md, section 6).

tenacity is used only once a first try has failed, so that a success pays nothing for it.
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
"""One for all: it holds a method of its own, a cycle that only the garbage collector frees."""

Warn = Callable[[TransportFault, int], None]
"""Called for every failed try of a request, with its number."""


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
    """Bounds of a caller's patience: retries of one request; seconds without any answer at all; those to the first."""

    max_retries: int
    max_outage: float
    wait: float = 0.0


class Caller:
    """One endpoint as the engine sees it. `sleep` and `clock` are arguments so that tests need not wait."""

    def __init__(
        self,
        transport: Transport,
        limiter: Limiter,
        limits: Limits,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
        rng: random.Random | None = None,
    ) -> None:
        self.traffic = Traffic()
        self.limiter = limiter
        self.outage = Outage(clock(), limits.wait > 0)
        self.limits = limits
        self.rng = rng or random.Random()
        self._transport = transport
        self._clock = clock
        self._sleep = sleep
        self._unreachable_since: float | None = None
        self._denied_at: float | None = None
        self._naps: set[anyio.CancelScope] = set()

    async def complete(self, body: bytes, rank: int, user: str, warn: Warn) -> Reply:
        """Return the settled reply to one of a user's requests.

        Raise `GaveUp` when the tries are used up, `Rejected` when the endpoint refuses the request,
        `EndpointStopped` when it will not serve the run.
        """
        try:
            return await self._try(body, rank, user, 1)
        except TransportFault as fault:
            return await self._retry(body, rank, user, fault, warn)

    async def _try(self, body: bytes, rank: int, user: str, number: int) -> Reply:
        limiter, clock, rates = self.limiter, self._clock, self.limiter.slots.rates
        tokens = rates.estimate(body) if rates else 0.0
        if not limiter.at_once(tokens):
            await limiter.acquire(rank, tokens)
        fault, received, start = None, None, clock()
        self.traffic.requests += 1
        try:
            received = await self._transport.send(body, user)
        except TransportFault as error:
            fault = self._failed(error, user, start)
        except Denied as error:
            fault = self._failed(self._denied(error, start), user, start)
        except EndpointStopped:
            limiter.close()  # before another request gets the slot
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

    async def _retry(self, body: bytes, rank: int, user: str, first: TransportFault, warn: Warn) -> Reply:
        """Make the tries after a failed first one, which is the first attempt so that the pauses count right."""
        record, number = _Failures(self), 0
        tries = AsyncRetrying(retry=RETRY, stop=record.exhausted, wait=record.wait, sleep=record.pause, reraise=True)

        async def attempt() -> Reply:
            nonlocal number
            number += 1
            try:
                if number == 1:
                    raise first
                self.traffic.retries += 1
                return await self._try(body, rank, user, number)
            except TransportFault as fault:
                record.times.append(self._clock())
                warn(fault, number)
                raise

        try:
            return await tries(attempt)
        except TransportFault as last:
            raise GaveUp("persistent_error", f"{last.kind}: {last.detail}", number) from last
        finally:
            tries.iter_state.reset()  # it holds methods of its own, a cycle that only the garbage collector frees

    async def pause(self, seconds: float, *, requested: bool) -> None:
        """Sleep between two tries; the end of an outage ends it, unless the endpoint `requested` the pause."""
        if self._unreachable_since is not None:
            seconds = min(seconds, WAIT_FOR_AN_ADDRESS)
        self.traffic.backing_off += 1
        nap = anyio.CancelScope()
        if not requested:
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
        traffic = self.traffic
        traffic.successes += 1
        traffic.prompt_tokens += completion.prompt_tokens or 0
        traffic.completion_tokens += completion.completion_tokens or 0

    def _failed(self, fault: TransportFault, user: str, start: float) -> TransportFault:
        """Draw the conclusions from a failed try, before another request gets its slot; return the fault."""
        now, left = self._clock(), self.wait_left
        self._judge_address(fault, start)
        if not self.outage.failed(now, user):
            return fault
        lasted = now - self.outage.last_success
        if lasted >= self.limits.max_outage and not left:
            duration = f"{lasted / 60:.0f} minutes" if lasted >= 120 else f"{lasted:.0f} seconds"
            self._stop(
                f"the endpoint has not answered for {duration} ({fault.kind}: {fault.detail}): resume when it is back"
            )
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
        """Stop the run when nothing has ever succeeded and the address itself does not answer.

        A fault of any other kind shows that a server is there, and resets the patience.
        """
        if self.traffic.successes or not fault.unreachable:
            self._unreachable_since = None
            return
        if self._unreachable_since is None:
            self._unreachable_since = start
        if fault.kind == "http_404":
            self._stop(f"the endpoint has never answered: {fault.detail}; does the address need a /v1 at its end?")
        if self._clock() - self._unreachable_since >= PATIENCE_WITH_AN_ADDRESS and not self.wait_left:
            wait = self.limits.wait
            hint = f"--wait {wait:g} is over" if wait else "if it is still loading, give --wait 600"
            self._stop(f"the endpoint has never answered: {fault.detail}; {hint}")

    @property
    def wait_left(self) -> float:
        """Return the seconds of `--wait` for the first answer that are left; 0 after it, and where none is awaited."""
        return max(0.0, self.outage.last_success + self.limits.wait - self._clock()) if self.outage.awaited else 0.0

    def _stop(self, why: str) -> NoReturn:
        self.limiter.close()
        raise EndpointStopped(why)


class _Failures:
    """The failed tries of one request: their `times`, and how many of them count."""

    def __init__(self, caller: Caller) -> None:
        self.times: list[float] = []
        self._caller = caller
        self._requested: float | None = None

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
        return full_jitter(self._counted(), self._requested, self._caller.rng)

    async def pause(self, seconds: float) -> None:
        await self._caller.pause(seconds, requested=bool(self._requested))

    def _counted(self) -> int:
        return sum(not self._caller.outage.covers(time) for time in self.times)


def full_jitter(failures: int, requested: float | None, rng: random.Random) -> float:
    """Draw the seconds to the next try: even up to 0.5 s, doubled with each failure after the first, at most 60 s.

    Never less than the endpoint requested (docs/design.md, section 6).
    """
    wait = rng.uniform(0.0, min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(max(0, failures - 1), 16)))
    return wait if requested is None else max(wait, requested + wait * 0.1)  # requests with the same time spread out


def _used(received: Received | None) -> tuple[float | None, float | None]:
    """Return the tokens of a try and of its completion: 0 of a failed try; None if no usage is reported."""
    if received is None:
        return 0.0, None
    prompt, completion = received.completion.prompt_tokens, received.completion.completion_tokens
    return (None, None) if prompt is None or completion is None else (float(prompt + completion), float(completion))
