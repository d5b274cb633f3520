"""A request until it is settled: a slot, a try, and after a failure more tries (docs/design.md, section 6).

tenacity is used only once a first try has failed, so that a success pays nothing for it.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple, NoReturn, Protocol

import anyio
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type

from harness.cost import Reserved
from harness.endpoint.latency import LEAST_BEYOND, Latency
from harness.endpoint.limiter import Limiter
from harness.endpoint.outage import PROBE_SECONDS, SILENCE, Outage, Span
from harness.endpoint.replies import Denied
from harness.endpoint.transport import Received, Transport
from harness.errors import CallError, EndpointStopped, GaveUp, HarnessError, Rejected, TransportFault
from harness.model import Load, Reply

FIRST_WAIT, LONGEST_WAIT = 0.5, 60.0
"""Seconds: the upper bounds of the first and of every later pause between tries."""
PATIENCE_WITH_AN_ADDRESS = 5.0
"""Seconds for which an address that has never answered is tried before the run stops."""
WAIT_FOR_AN_ADDRESS = 1.5
"""Seconds, at most, between tries of an address that has never answered."""
LONGEST_SILENT_WAIT = 15.0
"""Seconds, at most, between tries of a request while nobody is served; by then it is an outage, or the request."""
TRIES_A_SECOND = 4.0
"""How often those who find no server try at least, in all: it costs nobody, and a server that is back is soon seen."""
LOADING = "if it is still loading, give --wait 600"
NOT_SERVED = ("http_404", "http_405")
"""Kinds of a path that the server does not have, or does not take requests at."""
HINTS = {
    "unknown_host": f"check the address; {LOADING}",
    "proxy": "check HTTP_PROXY, HTTPS_PROXY and ALL_PROXY, or name the endpoint's host in NO_PROXY",
}
"""What to do about an address that has never answered, by the kind of the last fault."""
RETRY = retry_if_exception_type(TransportFault)
"""One for all: it holds a method of its own, a cycle that only the garbage collector frees."""

ABANDONED = TransportFault("abandoned", "this try was cancelled")
"""For the limiter: neither an answer nor a refusal, and possibly billed."""
FREE = frozenset({"connect", "denied", "proxy", "replica", "unknown_host"})
"""Kinds of failed tries that reached no model, in addition to the statuses 4xx."""

QUESTION_SECONDS = 15.0
"""The longest that an endpoint is asked for a single token, where only that tells an outage from a bad request."""
SERVED_IN_A_ROW = 2
"""Questions, before and after a request's last try, that the endpoint has to answer before that user is given up."""


def may_be_billed(fault: TransportFault) -> bool:
    """Return whether a try that failed so may have reached a model."""
    return not (fault.kind in FREE or fault.unreachable or fault.kind.startswith("http_4"))


class Notice(TransportFault):
    """For `Warn`: what is no failed try, counted and logged by its kind."""


Warn = Callable[[TransportFault, int], None]
"""Called for every failed or `ABANDONED` try of a request, with its number, and with a `Notice` on one."""


class NotNow(Exception):
    """Raised by what a feature adds to a try, or to the transport of a `Question`, that is not to go out now."""


class Part(Protocol):
    """What a feature does about one try."""

    def admitted(self) -> None:
        """Act once the try has its slot. If it raises, as `NotNow` does, the slot is given back and nothing is sent."""
        ...

    def ended(self, received: Received | None, fault: TransportFault | None) -> None:
        """Act on what an admitted try received, or how it failed, before another one can get its slot. Neither is there
        if the endpoint refused it."""
        ...


class Try(NamedTuple):
    """One try of a request of a user: its number, and its `parts`, the outermost feature's first."""

    body: bytes
    rank: int
    user: str
    number: int
    warn: Warn
    parts: tuple[Part, ...] = ()


class Allowance:
    """What requests may take in all. By default there is no limit.

    `waiting` are the requests that wait until more is left, by what `held_by` names; the display shows `load` of it.
    The methods are for requests that go out together, as a group with a `label`, and are answered one by one.
    """

    held_by: str | None = None
    waiting = 0

    @property
    def load(self) -> Load:
        return ()

    def reserve(self, sizes: Sequence[int]) -> Sequence[Reserved | None]:
        """Reserve what the first of some requests may take, of so many bytes each: as many as there is room for now.

        Raise `HarnessError` if there will never be room for one.
        """
        return [None] * len(sizes)

    def resume(self, reserved: Reserved | None) -> None:
        """Know of what an earlier process has reserved for a group whose answers come to this one."""

    def took(self, label: str, reserved: Reserved | None, size: int, answer: Received | HarnessError) -> None:
        """Count what a request of a group took, for which so much was reserved, None if that is not known."""

    def end(self, label: str, reserved: Reserved | None) -> None:
        """Give back what was reserved for a group beyond what its requests took."""


UNLIMITED = Allowance()

Trying = Callable[[Try], Awaitable[Reply]]
"""Tries a request, when its turn comes. Raises `TransportFault`, and as `Caller.complete` does."""


@dataclass(slots=True)
class Traffic:
    """Counts since the start; `requests` counts tries sent, and `backing_off` users that are between two tries."""

    requests: int = 0
    successes: int = 0
    retries: int = 0
    backing_off: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    notices: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a caller's patience: retries of one request; seconds without any answer at all; those to the first."""

    max_retries: int
    max_outage: float
    wait: float = 0.0


@dataclass(frozen=True, slots=True)
class Question:
    """The smallest request, for one token, and what sends it: a reply shows that the endpoint serves."""

    transport: Transport
    body: bytes


class Caller:
    """One endpoint as the engine sees it. `sleep` and `clock` are arguments so that tests need not wait.

    `trying` is what tries a request, with at most `at_once` tries in flight: by default `attempt`, and one.
    `allowance` is what requests may take. Without a `question`, a long silence decides that requests are bad where too
    few users fail for an outage.
    """

    def __init__(
        self,
        transport: Transport,
        limiter: Limiter,
        limits: Limits,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
        rng: random.Random | None = None,
        question: Question | None = None,
    ) -> None:
        self.trying: Trying = self.attempt
        self.at_once = 1
        self.allowance = UNLIMITED
        self.question = question
        self.traffic = Traffic()
        self.latency, self.failed_tries = Latency(), Latency()
        self.limiter = limiter
        self.outage = Outage(clock(), limits.wait > 0, min(SILENCE, limits.max_outage))
        self.limits = limits
        self.rng = rng or random.Random()
        self.transport = transport
        self._clock = clock
        self.started = clock()
        self._sleep = sleep
        self._unreachable_since: float | None = None
        self._denied_at: float | None = None
        self._refused_since = math.inf
        self._naps: dict[anyio.CancelScope, Span] = {}
        """Pauses that the endpoint did not request, with the failed try before."""
        self._asking = asyncio.Lock()
        self._asked, self._served = -math.inf, False
        """When the endpoint was last asked for a token, and whether it served that."""
        self._resting: Counter[str] = Counter()
        self._in_flight: dict[int, tuple[float, str]] = {}
        """When each request was sent, oldest first, and whose it is; by its number."""

    async def complete(self, body: bytes, rank: int, user: str, warn: Warn, failed_before: int = 0) -> Reply:
        """Return the settled reply to one of a user's requests, which `failed_before` so often in earlier processes.

        Raise `GaveUp` when the tries are used up, `Rejected` when the endpoint refuses the request,
        `EndpointStopped` when it will not serve the run.
        """
        begun, first = self._clock(), Try(body, rank, user, failed_before + 1, warn)
        try:
            return await self.trying(first)
        except TransportFault as fault:
            return await self._retry(first, fault, _Failures(self, user, failed_before, begun))

    async def attempt(self, one: Try) -> Reply:
        """Send a request once, when its turn comes; a try that is cancelled then still counts towards the rates."""
        body, rank, user, number, warn, parts = one
        limiter, clock, rates = self.limiter, self._clock, self.limiter.slots.rates
        tokens = rates.estimate(len(body)) if rates else 0.0
        if not limiter.at_once(tokens):
            await limiter.acquire(rank, tokens)
        try:
            for part in parts:
                part.admitted()
        except BaseException:
            self._leave(tokens)
            raise
        fault, received, start = None, None, clock()
        place = self.traffic.requests = self.traffic.requests + 1
        self._in_flight[place] = start, user
        try:
            received = await self.transport.send(body, user)
        except (TransportFault, Denied) as error:
            fault = self._failed(error, user, start)
        except EndpointStopped:
            limiter.close()  # before another request gets the slot
            raise
        except asyncio.CancelledError:
            fault = ABANDONED
            warn(fault, number)
            raise
        finally:
            now = clock()
            del self._in_flight[place]
            for part in parts:
                part.ended(received, fault)
            if rates and fault is not ABANDONED:
                rates.correct(tokens, *_used(received), now)
            limiter.release(now - start, fault)
        if received is None:
            self.failed_tries.add(now - start)
            assert fault is not None
            raise fault
        self.latency.add(now - start)
        completion = received.completion
        self._succeeded(completion.prompt_tokens or 0, completion.completion_tokens or 0, start, now)
        return Reply(completion, now - start, number, received.endpoint, received.first_token, sent=len(body))

    def _leave(self, tokens: float) -> None:
        """Give a slot back that no try has used."""
        if rates := self.limiter.slots.rates:
            rates.correct(tokens, 0.0, None, self._clock())
        self.limiter.release(0.0, ABANDONED)

    @property
    def oldest(self) -> float | None:
        """Return the age of the request that is in flight for longest, in seconds; None without any."""
        return next((self._clock() - start for start, _ in self._in_flight.values()), None)

    def stragglers(self) -> list[tuple[int, str, float]]:
        """Return the number, user and seconds of each request in flight far beyond the usual, the oldest first."""
        now, (oldest, _) = self._clock(), next(iter(self._in_flight.values()), (math.inf, ""))
        if now - oldest <= LEAST_BEYOND or (beyond := self.latency.beyond) is None:
            return []
        old = takewhile(lambda item: now - item[1][0] > beyond, self._in_flight.items())
        return [(place, user, now - start) for place, (start, user) in old if user]

    async def _retry(self, one: Try, first: TransportFault, record: _Failures) -> Reply:
        """Make the tries after a failed first one, which is the first attempt so that the pauses count right."""
        before = number = len(record.failures)
        tries = AsyncRetrying(retry=RETRY, stop=record.exhausted, wait=record.wait, sleep=record.pause, reraise=True)

        async def attempt() -> Reply:
            nonlocal number
            number += 1
            try:
                if number == before + 1:
                    raise first
                self.traffic.retries += 1
                return await self.trying(one._replace(number=number))
            except TransportFault as fault:
                record.failed(fault)
                one.warn(fault, number)
                await self._find_cause(record, fault)
                raise

        try:
            return await tries(attempt)
        except TransportFault as last:
            raise GaveUp("persistent_error", f"{last.kind}: {last.detail}", number) from last
        finally:
            tries.iter_state.reset()  # it holds methods of its own, a cycle that only the garbage collector frees

    async def _find_cause(self, record: _Failures, fault: TransportFault) -> None:
        """Ask the endpoint for a token where only tries that fail could tell an outage from a bad request.

        That is in an outage, and in a silence that takes a request to its last tries or is longer than an outage may
        be (one or two users alone declare none). Raise `EndpointStopped` after an outage that is longer than allowed.
        """
        outage, now = self.outage, self._clock()
        in_doubt = record.needs_question() or now - outage.last_success >= self.limits.max_outage
        if (outage.active and not outage.awaited) or (in_doubt and not fault.asks_to_wait):
            served = await self._serves(now, fault)
            record.served = record.served + 1 if served else 0
            now = self._clock()
            if served:
                if outage.answered(now):
                    self._go_on()
            elif served is not None:
                outage.unanswered = True
                if outage.declared(now):
                    self._probe_later(now)
        lasted = outage.lasted(now) if outage.active else now - self._refused_since
        if lasted >= self.limits.max_outage and not self.wait_left:
            duration = f"{lasted / 60:.0f} minutes" if lasted >= 120 else f"{lasted:.0f} seconds"
            self._stop(
                f"the endpoint has not answered with a completion for {duration} ({fault.kind}: {fault.detail}): "
                "resume when it is back"
            )

    async def _serves(self, failed: float, fault: TransportFault) -> bool | None:
        """Return whether the endpoint serves a request for one token after a failure at that time; None if unknown.

        Failures at the same time share a question.
        """
        if self.question is None or fault.asks_to_wait:
            return None
        async with self._asking:
            if self._asked < failed:
                if (served := False if fault.unreachable else await self._ask(self.question)) is None:
                    return None
                self._asked, self._served = failed, served
            return self._served

    async def _ask(self, question: Question) -> bool | None:
        """Send the question, before requests that wait; return whether it was served, None if it cannot be sent now."""
        limiter, rates = self.limiter, self.limiter.slots.rates
        tokens = rates.estimate(len(question.body)) if rates else 0.0
        if not limiter.ahead(tokens):
            return None
        received, served = None, False
        try:
            self.traffic.requests += 1
            with anyio.move_on_after(self._patience()):
                received = await question.transport.send(question.body, "")
            served = received is not None
        except NotNow:
            self.traffic.requests -= 1
            return None
        except Rejected:
            served = True  # a server has read it
        except (CallError, EndpointStopped):
            served = False
        finally:
            if rates:
                rates.correct(tokens, *_used(received), self._clock())
            limiter.release(0.0, ABANDONED)
        return served

    def _patience(self) -> float:
        """Return the longest that a question may take, in seconds: less where an outage is about to be too long."""
        left = self.outage.last_success + self.limits.max_outage - self._clock()
        return min(QUESTION_SECONDS, max(1.0, left))

    async def pause(self, seconds: float, *, requested: bool, user: str, after: Span) -> None:
        """Sleep between two tries, `after` one that failed; what shows that the endpoint was down ends it.

        A pause that the endpoint `requested` is slept to its end.
        """
        if self._unreachable_since is not None:
            seconds = min(seconds, WAIT_FOR_AN_ADDRESS)
        self._resting[user] += 1
        self.traffic.backing_off = len(self._resting)
        nap = anyio.CancelScope()
        if not requested:
            self._naps[nap] = after
        try:
            with nap:
                await self._sleep(seconds)
        finally:
            self._naps.pop(nap, None)
            self._resting[user] -= 1
            self._resting += Counter()  # drops users without a pause
            self.traffic.backing_off = len(self._resting)

    def _succeeded(self, prompt_tokens: int, completion_tokens: int, sent: float, now: float) -> None:
        self._unreachable_since = self._denied_at = None
        self._refused_since = math.inf
        if self.outage.succeeded(now, sent):
            self._go_on()
        traffic = self.traffic
        traffic.successes += 1
        traffic.prompt_tokens += prompt_tokens
        traffic.completion_tokens += completion_tokens

    def _go_on(self) -> None:
        """End the probing, and the pauses that were drawn for an endpoint that was down."""
        if self.limiter.probing:
            self.limiter.recover()
        self._wake()

    def _wake(self) -> None:
        """End the pauses after failures in this silence and in those that were forgiven; in an outage all wait for
        their turn as a probe."""
        outage = self.outage
        for nap, failed in self._naps.items():
            if outage.undecided(failed) or outage.forgives(failed):
                nap.cancel()

    def _failed(self, error: TransportFault | Denied, user: str, start: float) -> TransportFault:
        """Draw the conclusions from a failed try, before another request gets its slot; return the fault."""
        fault, now = self._denied(error, start) if isinstance(error, Denied) else error, self._clock()
        self._judge_address(fault, start)
        if fault.asks_to_wait:
            self._refused_since = min(self._refused_since, now)
        if self.outage.failed(now, user):
            self._probe_later(now)
        return fault

    def _probe_later(self, now: float) -> None:
        """Send one request at a time from now on; the last one at the end of `--wait` or of `--max-outage`."""
        left = self.wait_left or self.outage.last_success + self.limits.max_outage - now
        probe = self.outage.next_probe(now)
        self.limiter.probe(min(probe, left) if left > 0 else probe)
        self._wake()

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
        if fault.kind in NOT_SERVED:
            self._stop(f"no chat completions are served at this address: {fault.detail}")
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
    """The failed tries of one request, and how many of them count; the first of this process has `begun` then. Being
    asked to wait is none.


    `served` is how many questions after the last failures the endpoint has answered in a row. Failures of earlier
    processes are undecided at the start of this one.
    """

    def __init__(self, caller: Caller, user: str, before: int, begun: float) -> None:
        self.failures: list[Span] = [(caller.started, caller.started)] * before
        self.served = 0
        self._begun = begun
        self._user = user
        self._caller = caller
        self._last, self._after = ABANDONED, (begun, begun)
        self._refusals = 0

    def failed(self, fault: TransportFault) -> None:
        self._last, self._after = fault, (self._begun, self._caller._clock())
        if fault.asks_to_wait:
            self._refusals += 1
        else:
            self.failures.append(self._after)

    def needs_question(self) -> bool:
        """Return whether the tries may be used up, or the last one is next and nobody succeeded since the last two."""
        counted, undecided = self._tries()
        left = self._caller.limits.max_retries - counted - undecided
        return left < 0 or (left == 0 and undecided > 1)

    def exhausted(self, state: RetryCallState) -> bool:
        return self._used_up()

    def wait(self, state: RetryCallState) -> float:
        self._last.__traceback__ = None  # its frames hold it and the whole user, until garbage is collected
        caller, outage = self._caller, self._caller.outage
        counted, undecided = self._tries()
        failures = counted + self._refusals + (0 if outage.active else undecided)
        seconds = full_jitter(failures, self._last.retry_after, caller.rng)
        if self._last.retry_after is None and undecided > 1:  # nobody is served whom it could be in the way of
            left = outage.last_success + caller.limits.max_outage - caller._clock()
            often = max(PROBE_SECONDS, caller.traffic.backing_off / TRIES_A_SECOND)
            most = often if self._last.unreachable else LONGEST_SILENT_WAIT
            seconds = min(seconds, most, left if left > 0 else most)
        return seconds

    async def pause(self, seconds: float) -> None:
        """Sleep; raise the last fault if it has been decided meanwhile that the tries are used up."""
        requested = bool(self._last.retry_after) or self._last.asks_to_wait
        await self._caller.pause(seconds, requested=requested, user=self._user, after=self._after)
        self._begun = self._caller._clock()
        if self._used_up():
            raise self._last

    def _used_up(self) -> bool:
        """Return whether the tries are used up: all that count, or with the undecided ones if those are the request's
        fault."""
        caller, most = self._caller, self._caller.limits.max_retries
        counted, undecided = self._tries()
        if caller.question is None:
            bad = caller.outage.silent or undecided < len(self.failures)
        else:
            bad = self.served >= min(undecided, SERVED_IN_A_ROW, max(1, most))
        return counted + (undecided if bad and not caller.outage.active else 0) > most

    def _tries(self) -> tuple[int, int]:
        """Return how many failures count, and of how many that is undecided."""
        outage = self._caller.outage
        undecided = sum(map(outage.undecided, self.failures))
        forgiven = sum(not outage.undecided(one) and outage.forgives(one) for one in self.failures)
        return len(self.failures) - undecided - forgiven, undecided


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
