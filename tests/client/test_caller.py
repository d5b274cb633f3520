"""A request until it is settled, with a scripted sender, in virtual time."""

from __future__ import annotations

import asyncio
import functools
import gc
import random
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from harness.client.caller import (
    LONGEST_WAIT,
    WAIT_FOR_AN_ADDRESS,
    Caller,
    Reply,
    RequestEvent,
    pause_before,
)
from harness.client.control import FixedControl
from harness.client.health import PATIENCE_WITH_AN_ADDRESS, Limits
from harness.client.limiter import Limiter, Slots
from harness.client.replies import Denied, UsedUp
from harness.client.transport import Received
from harness.errors import EndpointStopped, GaveUp, HarnessError, Rejected, TransportFault
from harness.model import Completion
from tests.support import first_quick, virtual

GOOD = Completion("好", prompt_tokens=7, completion_tokens=2)
BUSY = TransportFault("http_503", "busy")
REFUSED = TransportFault(
    "connect", "http://127.0.0.1:9/v1 does not answer: refused", unreachable=True
)
UNKNOWN_PATH = TransportFault(
    "http_404", "http://127.0.0.1:9/v1 answers 404: not found", unreachable=True
)
WRONG_KEY = Denied("http://127.0.0.1:9/v1: the endpoint refuses the key with status 401")
NO_QUOTA = UsedUp("quota")
REDIRECT = EndpointStopped("the endpoint redirects")
BAD_REQUEST = Rejected("http_400", "temperature")

OTHERS, PROBE = b"others", b"?"
HERE = "http://127.0.0.1:9/v1"

Script = Iterable[Completion | HarnessError]


def in_virtual_time(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(**arguments: Any) -> None:
        virtual.run(lambda: test(**arguments))

    return run


class Stage:
    """A caller whose sender answers from a queue, the last entry for ever; each try takes
    `seconds`.

    With `others` a request of another user succeeds in every pause. `probe` is how a request for
    one token ends.
    """

    def __init__(
        self,
        script: Script,
        *,
        max_retries: int = 8,
        seconds: float = 0.25,
        others: bool = False,
        probe: Completion | HarnessError = GOOD,
    ) -> None:
        self.sent: list[bytes] = []
        self.pauses: list[float] = []
        self.held_in_pauses: list[int] = []
        self.backing_off: list[int] = []
        self.warned: list[tuple[str, int]] = []
        self.limiter = Limiter(Slots(FixedControl(1), virtual.now))
        self._seconds = seconds
        self._others = others
        self._probe = probe
        self.probes = 0
        self._script = list(script)
        self.caller = Caller(
            self,
            self.limiter,
            Limits(max_retries, max_outage=900.0),
            probe=b"?",
            clock=virtual.now,
            sleep=self._sleep,
            rng=random.Random(7),
        )

    async def send(self, body: bytes, user: str = "") -> Received:
        assert self.limiter.in_flight == 1
        if body == OTHERS:
            return Received(GOOD, HERE)
        if body == PROBE:
            self.probes += 1
            if isinstance(self._probe, HarnessError):
                raise self._probe
            return Received(self._probe, HERE)
        self.sent.append(body)
        await asyncio.sleep(self._seconds)
        entry = self._script.pop(0) if len(self._script) > 1 else self._script[0]
        if isinstance(entry, HarnessError):
            raise entry
        return Received(entry, HERE)

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.held_in_pauses.append(self.limiter.in_flight)
        self.backing_off.append(self.caller.traffic.backing_off)
        await asyncio.sleep(seconds)
        if self._others:
            await self.caller.complete(OTHERS, 1, "others", lambda fault, number: None)

    async def call(self) -> Reply:
        def warn(fault: TransportFault, number: int) -> None:
            if not isinstance(fault, RequestEvent):
                self.warned.append((fault.kind, number))

        return await self.caller.complete(b"{}", 1, "user", warn)


@in_virtual_time
async def test_fault_is_tried_again_until_it_passes():
    """The reply tells the number of tries, each failed one was warned of, and seconds are those of
    the last."""
    stage = Stage([BUSY, TransportFault("timeout", "no reply"), GOOD])
    assert await stage.call() == Reply(GOOD, 0.25, 3, HERE, sent=2)
    assert stage.warned == [("http_503", 1), ("timeout", 2)]
    assert (stage.caller.traffic.requests, stage.caller.traffic.retries) == (3, 2)
    assert stage.sent == [b"{}"] * 3


@in_virtual_time
@pytest.mark.parametrize("max_retries", [1, 3, 8])
async def test_request_is_given_up_after_its_retries_while_others_pass(max_retries):
    """`--max-retries` are tries after the first; the error names the last fault and how many tries
    there were."""
    script = [BUSY] * max_retries + [TransportFault("http_500", "the end")]
    stage = Stage(script, max_retries=max_retries, others=True)
    with pytest.raises(GaveUp) as caught:
        await stage.call()
    assert (caught.value.kind, caught.value.detail) == ("persistent_error", "http_500: the end")
    assert caught.value.tries == len(stage.sent) == max_retries + 1
    assert [number for _, number in stage.warned] == list(range(1, max_retries + 2))
    assert len(stage.pauses) == max_retries
    assert stage.limiter.in_flight == 0


@in_virtual_time
async def test_pauses_are_pause_before_under_a_doubling_bound():
    """Each pause is drawn from nothing up to 0.5 s, 1 s, 2 s ... 60 s."""
    stage = Stage([BUSY], max_retries=12, others=True)
    with pytest.raises(GaveUp):
        await stage.call()
    bounds = [min(60.0, 0.5 * 2**n) for n in range(12)]
    assert all(0.0 <= pause <= bound for pause, bound in zip(stage.pauses, bounds, strict=True))


@pytest.mark.parametrize(
    ("failures", "bound"),
    [(0, 0.5), (1, 0.5), (2, 1.0), (7, 32.0), (8, 60.0), (9, 60.0), (5000, LONGEST_WAIT)],
)
def test_jitter_is_even_over_its_whole_range(failures, bound):
    """Full jitter, not a fixed pause with some noise: draws have half the bound as mean and reach
    its ends."""
    rng = random.Random(7)
    draws = [pause_before(failures, None, rng) for _ in range(1000)]
    assert 0.0 <= min(draws) < bound * 0.02
    assert bound * 0.98 < max(draws) <= bound
    assert sum(draws) / 1000 == pytest.approx(bound / 2, rel=0.1)


@pytest.mark.parametrize("asked", [0.2, 1.0, 60.0, 3600.0])
def test_requested_wait_is_the_wait_however_often(asked):
    """Or a quarter more, so that a hundred requests with the same one do not come back together."""
    waits = [pause_before(failures, asked, random.Random(failures)) for failures in range(100)]
    assert asked <= min(waits) < max(waits) <= 1.25 * asked
    assert len(set(waits)) == 100


def test_requested_wait_of_nothing_is_backed_off_from():
    """An endpoint that refuses with `Retry-After: 0` is not asked again at once for ever."""
    assert pause_before(6, 0.0, random.Random(7)) == pause_before(6, None, random.Random(7)) > 0.0


@in_virtual_time
async def test_no_slot_is_held_while_backing_off():
    """During each pause the slot is free, and the display shows that one request backs off."""
    stage = Stage([BUSY, BUSY, GOOD])
    await stage.call()
    assert stage.held_in_pauses == [0, 0]
    assert stage.backing_off == [1, 1]
    assert stage.caller.traffic.backing_off == 0


@in_virtual_time
async def test_user_with_several_requests_backs_off_once():
    """The display and the dispatch of users count users, of which more are never between two tries
    than in play."""
    stage, seen, paused = Stage([BUSY]), list[int](), 0

    async def sleep(seconds: float) -> None:
        nonlocal paused
        paused += 1
        await anyio.sleep_forever()

    caller = Caller(
        stage, stage.limiter, Limits(8, 900.0), probe=b"?", clock=lambda: 0.0, sleep=sleep
    )
    async with anyio.create_task_group() as group:
        for user in ("甲", "甲", "甲", "乙"):
            group.start_soon(caller.complete, b"{}", 1, user, lambda fault, number: None)
        while paused < 4:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        seen.append(caller.traffic.backing_off)
        group.cancel_scope.cancel()
    assert (seen, caller.traffic.backing_off) == ([2], 0)


@in_virtual_time
async def test_cancelled_pause_and_cancelled_try_leave_no_trace():
    """A request that is cancelled in a pause or on the wire is not given up, and the counts stay
    right."""
    reached = anyio.Event()

    async def for_ever(*ignored: object) -> Completion:
        reached.set()
        await anyio.sleep_forever()
        raise AssertionError

    for part in ("_sleep", "_sender"):
        stage = Stage([BUSY])
        sender = (
            type("Hangs", (), {"send": staticmethod(for_ever)})() if part == "_sender" else stage
        )
        sleep = for_ever if part == "_sleep" else stage._sleep
        caller = Caller(
            sender, stage.limiter, Limits(8, 900.0), probe=b"?", clock=lambda: 0.0, sleep=sleep
        )  # type: ignore[arg-type]
        reached = anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(caller.complete, b"{}", 1, "user", lambda fault, number: None)
            await reached.wait()
            group.cancel_scope.cancel()
        assert (stage.limiter.in_flight, caller.traffic.backing_off) == (0, 0)


@in_virtual_time
async def test_probe_that_is_cancelled_shows_no_outage():
    """A run that is stopped meanwhile keeps what counts; the probe may be billed all the same."""
    reached, notices = anyio.Event(), list[RequestEvent]()

    async def send(body: bytes, user: str = "") -> Received:
        if body != PROBE:
            raise BUSY
        reached.set()
        await anyio.sleep_forever()
        raise AssertionError

    def warn(fault: TransportFault, number: int) -> None:
        if isinstance(fault, RequestEvent):
            notices.append(fault)

    stage = Stage([BUSY])
    sender = type("Hangs", (), {"send": staticmethod(send)})()
    caller = Caller(sender, stage.limiter, Limits(8, 900.0), probe=PROBE, clock=virtual.now)  # type: ignore[arg-type]
    async with anyio.create_task_group() as group:
        group.start_soon(caller.complete, b"{}", 1, "user", warn)
        await reached.wait()
        group.cancel_scope.cancel()
    assert [(notice.kind, notice.sent) for notice in notices] == [("probe", len(PROBE))]
    assert stage.limiter.in_flight == 0


@in_virtual_time
@pytest.mark.parametrize(
    "error", [BAD_REQUEST, REDIRECT, NO_QUOTA], ids=["rejected", "redirect", "quota"]
)
@pytest.mark.parametrize("before", [[], [BUSY]], ids=["at_once", "after_a_fault"])
async def test_what_no_other_try_would_help_is_passed_on(error, before):
    """A refused request, an endpoint that will not serve, an empty account: one try more is none
    too few."""
    stage = Stage([*before, error])
    with pytest.raises(type(error)) as caught:
        await stage.call()
    assert caught.value is error
    assert len(stage.sent) == len(before) + 1
    assert stage.limiter.in_flight == 0


@in_virtual_time
@pytest.mark.parametrize(
    "error", [REDIRECT, NO_QUOTA, UNKNOWN_PATH], ids=["redirect", "quota", "path"]
)
async def test_endpoint_that_stops_the_run_is_sent_nothing_more(error):
    """Whoever waits for the slot of the request with that reason does not get it."""
    stage = Stage([error])

    async def stopped() -> None:
        with pytest.raises(EndpointStopped):
            await stage.call()

    async with anyio.create_task_group() as group:
        group.start_soon(stopped)
        group.start_soon(stage.call)
        for _ in range(20):
            await asyncio.sleep(0.05)
        assert (len(stage.sent), stage.limiter.waiting, stage.limiter.in_flight) == (1, 1, 0)
        group.cancel_scope.cancel()


@in_virtual_time
@pytest.mark.parametrize("max_retries", [0, 1, 8, 100])
@pytest.mark.parametrize(
    "seconds", [0.0, 0.25, 30.0], ids=["refused at once", "slowly", "after a time-out"]
)
async def test_address_that_never_answers_stops_the_run_soon_and_by_name(max_retries, seconds):
    """Refused or unknown from the first try on: the run stops within its patience, whatever the
    number of retries."""
    stage = Stage([REFUSED], max_retries=max_retries, seconds=seconds, probe=REFUSED)
    with pytest.raises(EndpointStopped, match=r"http://127\.0\.0\.1:9/v1"):
        await stage.call()
    assert virtual.now() <= PATIENCE_WITH_AN_ADDRESS + WAIT_FOR_AN_ADDRESS + seconds
    assert stage.limiter.in_flight == 0


@in_virtual_time
@pytest.mark.parametrize(
    ("kind", "variable"), [("proxy", "NO_PROXY"), ("unknown_host", "--wait"), ("connect", "--wait")]
)
async def test_address_that_never_answers_names_what_to_check(kind, variable):
    """Waiting helps against a server that loads, and not against a wrong proxy."""
    fault = TransportFault(kind, "no answer", unreachable=True)
    stage = Stage([fault], probe=fault)
    with pytest.raises(EndpointStopped) as caught:
        await stage.call()
    assert [name in str(caught.value) for name in ("NO_PROXY", "--wait")] == [
        name == variable for name in ("NO_PROXY", "--wait")
    ]


@in_virtual_time
async def test_address_that_comes_up_within_the_patience_is_used():
    """A server that is just starting is not a wrong address."""
    stage = Stage([REFUSED, REFUSED, GOOD])
    assert (await stage.call()).tries == 3
    assert all(pause <= WAIT_FOR_AN_ADDRESS for pause in stage.pauses)


@in_virtual_time
async def test_other_answer_renews_the_patience_with_an_address():
    """A server that says 503 while it loads is there: a refused connection much later does not
    condemn its address."""
    stage = Stage([REFUSED, *[BUSY] * 6, REFUSED, GOOD], seconds=4.0)
    assert (await stage.call()).tries == 9


@in_virtual_time
@pytest.mark.parametrize("fault", [REFUSED, UNKNOWN_PATH], ids=["refused", "404"])
async def test_address_that_has_answered_once_is_believed_in(fault):
    """After an answer the same faults are tried again like any other."""
    stage = Stage([GOOD, fault, fault, GOOD], max_retries=3, seconds=30.0)
    await stage.call()
    assert (await stage.call()).tries == 3


@in_virtual_time
@pytest.mark.parametrize("answered", [[GOOD], []], ids=["after an answer", "before any"])
async def test_denial_of_one_request_alone_fails_its_user(answered):
    """A firewall blocks its prompt: the endpoint answers a probe, and the last try is denied,
    too."""
    stage = Stage([*answered, WRONG_KEY])
    for _ in answered:
        await stage.call()
    with pytest.raises(Rejected, match="denied"):
        await stage.call()
    assert (stage.probes, len(stage.sent), stage.limiter.in_flight) == (1, len(answered) + 4, 0)


@in_virtual_time
async def test_limiter_is_told_how_each_try_ended():
    """An adaptive limit learns from seconds and faults: None for a reply, the fault itself for
    anything passing."""
    told: list[tuple[float, str | None]] = []

    class Noting(Limiter):
        def release(self, seconds: float, fault: TransportFault | None, *more: Any) -> None:
            told.append((seconds, fault.kind if fault else None))
            super().release(seconds, fault, *more)

    stage = Stage([GOOD, BUSY, WRONG_KEY, GOOD, BAD_REQUEST])
    stage.limiter = Noting(Slots(FixedControl(1), virtual.now))
    caller = Caller(
        stage, stage.limiter, Limits(8, 900.0), probe=b"?", clock=virtual.now, sleep=stage._sleep
    )
    await caller.complete(b"{}", 1, "user", lambda fault, number: None)
    await caller.complete(b"{}", 1, "user", lambda fault, number: None)
    with pytest.raises(Rejected):
        await caller.complete(b"{}", 1, "user", lambda fault, number: None)
    assert [kind for _, kind in told] == [None, "http_503", "denied", None, None]
    assert [seconds for seconds, _ in told] == pytest.approx([0.25] * 5)


@in_virtual_time
@pytest.mark.parametrize(("failures", "max_retries"), first_quick([(3, 8), (1, 8), (3, 1)]))
async def test_failed_request_leaves_nothing_that_only_a_search_for_garbage_finds(
    failures, max_retries
):
    """An error's traceback holds the frames that hold the error; during a run garbage is hardly
    ever looked for."""

    class Failing:
        """Fails so often, each time with an error of its own."""

        left = failures

        async def send(self, body: bytes, user: str = "") -> Received:
            if self.left:
                self.left -= 1
                raise TransportFault("http_503", "busy")
            return Received(GOOD, HERE)

    async def no_wait(seconds: float) -> None:
        pass

    garbage = []
    gc.collect()
    gc.freeze()  # what earlier tests left is not searched eight times
    for _ in range(4):  # the first ones fill caches
        limiter = Limiter(Slots(FixedControl(1), virtual.now))
        caller = Caller(
            Failing(),
            limiter,
            Limits(max_retries, 900.0),
            probe=b"?",
            clock=virtual.now,
            sleep=no_wait,
        )
        gc.collect()
        with suppress(GaveUp):
            await caller.complete(b"{}", 1, "u", lambda fault, number: None)
        garbage.append(gc.collect())
    assert garbage[-1] == 0
