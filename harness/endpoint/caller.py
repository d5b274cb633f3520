"""A request until it is settled: a slot, a try, and after a failure the others (docs/design.md, section 6).

tenacity comes in only once a first try has failed, so that a success pays nothing for it.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NoReturn

import anyio
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt
from tenacity.wait import wait_base

from harness.endpoint.client import Sender
from harness.endpoint.limiter import Limiter
from harness.endpoint.replies import Unauthorised
from harness.errors import EndpointStopped, GaveUp, TransportFault
from harness.model import Completion

FIRST_WAIT, LONGEST_WAIT = 0.5, 60.0
"""Seconds: the upper bounds of the first and of every later pause between tries."""

PATIENCE_WITH_AN_ADDRESS = 5.0
"""Seconds for which an address that has never answered is tried before the run stops."""

WAIT_FOR_AN_ADDRESS = 1.5
"""Seconds, at most, between tries of an address that has never answered."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A settled request: `seconds` of the try that succeeded, `tries` in all."""

    completion: Completion
    seconds: float
    tries: int


@dataclass(slots=True)
class Traffic:
    """Counts since the start; `requests` counts tries sent."""

    requests: int = 0
    successes: int = 0
    retries: int = 0
    backing_off: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


class FullJitter(wait_base):
    """A uniform draw up to 0.5 s · 2^n, at most 60 s; never less than the endpoint asked for."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def __call__(self, retry_state: RetryCallState) -> float:
        bound = min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(retry_state.attempt_number - 1, 16))
        wait = self._rng.uniform(0.0, bound)
        fault = retry_state.outcome.exception() if retry_state.outcome else None
        asked = fault.retry_after if isinstance(fault, TransportFault) else None
        return wait if asked is None else max(wait, asked + wait * 0.1)  # all that were told the same time spread out


class Caller:
    """One endpoint as the engine sees it. `sleep` and `clock` are arguments so that tests need not wait."""

    def __init__(
        self,
        sender: Sender,
        limiter: Limiter,
        *,
        max_retries: int,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
        rng: random.Random | None = None,
    ) -> None:
        self.traffic = Traffic()
        self.limiter = limiter
        self._sender = sender
        self._max_retries = max_retries
        self._clock = clock
        self._sleep = sleep
        self._wait = FullJitter(rng or random.Random())
        self._unreachable_since: float | None = None

    async def complete(self, body: bytes, rank: int, warn: Callable[[TransportFault, int], None]) -> Reply:
        """The settled reply. `warn` hears of every failed try and its number.

        Raises `GaveUp` when the tries are used up, `Rejected` when the endpoint refuses the request,
        `EndpointStopped` when it will not serve the run.
        """
        try:
            return await self._try(body, rank, 1)
        except TransportFault as fault:
            return await self._again(body, rank, fault, warn)

    async def _try(self, body: bytes, rank: int, number: int) -> Reply:
        await self.limiter.acquire(rank)
        fault, start = None, self._clock()
        self.traffic.requests += 1
        try:
            completion = await self._sender.send(body)
        except TransportFault as error:
            fault = error
            self._judge_address(error, start)
            raise
        except Unauthorised as error:
            if not self.traffic.successes:
                raise
            fault = TransportFault("unauthorised", str(error))
            raise fault from error
        finally:
            seconds = self._clock() - start
            self.limiter.release(seconds, fault)
        self._count(completion)
        return Reply(completion, seconds, number)

    async def _again(
        self, body: bytes, rank: int, first: TransportFault, warn: Callable[[TransportFault, int], None]
    ) -> Reply:
        """The tries after a failed first one, which stands as the first attempt so that the pauses count right."""
        tries = AsyncRetrying(
            retry=retry_if_exception_type(TransportFault),
            stop=stop_after_attempt(self._max_retries + 1),
            wait=self._wait,
            sleep=self._pause,
            reraise=True,
        )
        number = 0
        try:
            async for attempt in tries:
                with attempt:
                    number = attempt.retry_state.attempt_number
                    if number == 1:
                        warn(first, number)
                        raise first
                    self.traffic.retries += 1
                    try:
                        return await self._try(body, rank, number)
                    except TransportFault as fault:
                        warn(fault, number)
                        raise
        except TransportFault as last:
            if self._unreachable_since is not None and last.unreachable:
                _wrong_address(last)
            raise GaveUp("persistent_error", f"{last.kind}: {last.detail}", number) from last
        raise AssertionError("tenacity ends in a reply or an error")

    async def _pause(self, seconds: float) -> None:
        if self._unreachable_since is not None:
            seconds = min(seconds, WAIT_FOR_AN_ADDRESS)
        self.traffic.backing_off += 1
        try:
            await self._sleep(seconds)
        finally:
            self.traffic.backing_off -= 1

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
            _wrong_address(fault)

    def _count(self, completion: Completion) -> None:
        self.traffic.successes += 1
        self._unreachable_since = None
        self.traffic.prompt_tokens += completion.prompt_tokens or 0
        self.traffic.completion_tokens += completion.completion_tokens or 0


def _wrong_address(fault: TransportFault) -> NoReturn:
    hint = "; does the address need a /v1 at its end?" if fault.kind == "http_404" else ""
    raise EndpointStopped(f"the endpoint has never answered: {fault.detail}{hint}") from fault
