"""A request until it is settled, with a scripted sender, a clock that jumps, and sleeps that only turn it."""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Iterable
from contextlib import suppress
from types import FrameType
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from harness.endpoint.caller import (
    LONGEST_WAIT,
    PATIENCE_WITH_AN_ADDRESS,
    WAIT_FOR_AN_ADDRESS,
    Caller,
    Limits,
    Reply,
    full_jitter,
)
from harness.endpoint.control import FixedControl
from harness.endpoint.limiter import Limiter, Slots
from harness.endpoint.replies import Denied
from harness.endpoint.transport import Received
from harness.errors import EndpointStopped, GaveUp, HarnessError, Rejected, TransportFault
from harness.model import Completion

GOOD = Completion("好", prompt_tokens=7, completion_tokens=2)
BUSY = TransportFault("http_503", "busy")
REFUSED = TransportFault("connect", "http://127.0.0.1:9/v1 does not answer: refused", unreachable=True)
UNKNOWN_PATH = TransportFault("http_404", "http://127.0.0.1:9/v1 answers 404: not found", unreachable=True)
WRONG_KEY = Denied("http://127.0.0.1:9/v1: the endpoint refuses the key with status 401")
NO_QUOTA = Denied("quota")
UNKNOWN_MODEL = EndpointStopped("no such model")
BAD_REQUEST = Rejected("http_400", "temperature")

OTHERS = b"others"
HERE = "http://127.0.0.1:9/v1"

Script = Iterable[Completion | HarnessError]


class Stage:
    """A caller whose sender answers from a queue, the last entry for ever; each try takes `seconds` of a fake clock.

    With `others` a request of another user succeeds in every pause.
    """

    def __init__(self, script: Script, *, max_retries: int = 8, seconds: float = 0.25, others: bool = False) -> None:
        self.now = 0.0
        self.sent: list[bytes] = []
        self.pauses: list[float] = []
        self.held_in_pauses: list[int] = []
        self.backing_off: list[int] = []
        self.warned: list[tuple[str, int]] = []
        self.limiter = Limiter(Slots(FixedControl(1), lambda: self.now))
        self._seconds = seconds
        self._others = others
        self._script = list(script)
        self.caller = Caller(
            self,
            self.limiter,
            Limits(max_retries, max_outage=900.0),
            clock=lambda: self.now,
            sleep=self._sleep,
            rng=random.Random(7),
        )

    async def send(self, body: bytes, user: str = "") -> Received:
        assert self.limiter.in_flight == 1
        if body == OTHERS:
            return Received(GOOD, HERE)
        self.sent.append(body)
        self.now += self._seconds
        entry = self._script.pop(0) if len(self._script) > 1 else self._script[0]
        if isinstance(entry, HarnessError):
            raise entry
        return Received(entry, HERE)

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.held_in_pauses.append(self.limiter.in_flight)
        self.backing_off.append(self.caller.traffic.backing_off)
        self.now += seconds
        if self._others:
            await self.caller.complete(OTHERS, 1, "others", lambda fault, number: None)

    async def call(self) -> Reply:
        return await self.caller.complete(
            b"{}", 1, "user", lambda fault, number: self.warned.append((fault.kind, number))
        )


@pytest.mark.anyio
async def test_first_success_is_the_reply_with_its_seconds() -> None:
    """One try, no warning, no pause; the slot is free again and everything is counted."""
    stage = Stage([GOOD])
    assert await stage.call() == Reply(GOOD, 0.25, 1, HERE, sent=2)
    traffic = stage.caller.traffic
    assert (traffic.requests, traffic.successes, traffic.retries) == (1, 1, 0)
    assert (traffic.prompt_tokens, traffic.completion_tokens, traffic.backing_off) == (7, 2, 0)
    assert (stage.warned, stage.pauses, stage.limiter.in_flight) == ([], [], 0)


@pytest.mark.anyio
async def test_success_enters_no_line_of_tenacity() -> None:
    """What fails once in a thousand must not cost the other 999: no frame of the retry library is entered."""

    async def modules_entered(stage: Stage) -> set[str]:
        seen: set[str] = set()

        def note(frame: FrameType, event: str, argument: Any) -> None:
            seen.add(str(frame.f_globals.get("__name__")).partition(".")[0])

        before = sys.getprofile()
        sys.setprofile(note)
        try:
            await stage.call()
        finally:
            sys.setprofile(before)
        return seen

    assert "tenacity" not in await modules_entered(Stage([GOOD]))
    assert "tenacity" in await modules_entered(Stage([BUSY, GOOD]))


@pytest.mark.anyio
async def test_fault_is_tried_again_until_it_passes() -> None:
    """The reply tells the number of tries, each failed one was warned of, and seconds are those of the last."""
    stage = Stage([BUSY, TransportFault("timeout", "no reply"), GOOD])
    assert await stage.call() == Reply(GOOD, 0.25, 3, HERE, sent=2)
    assert stage.warned == [("http_503", 1), ("timeout", 2)]
    assert (stage.caller.traffic.requests, stage.caller.traffic.retries) == (3, 2)
    assert stage.sent == [b"{}"] * 3


@pytest.mark.anyio
@pytest.mark.parametrize("max_retries", [1, 3, 8])
async def test_request_is_given_up_after_its_retries_while_others_pass(max_retries: int) -> None:
    """`--max-retries` are tries after the first; the error names the last fault and how many tries there were."""
    script = [BUSY] * max_retries + [TransportFault("http_500", "the end")]
    stage = Stage(script, max_retries=max_retries, others=True)
    with pytest.raises(GaveUp) as caught:
        await stage.call()
    assert (caught.value.kind, caught.value.detail) == ("persistent_error", "http_500: the end")
    assert caught.value.tries == len(stage.sent) == max_retries + 1
    assert [number for _, number in stage.warned] == list(range(1, max_retries + 2))
    assert len(stage.pauses) == max_retries
    assert stage.limiter.in_flight == 0


@pytest.mark.anyio
async def test_pauses_are_full_jitter_under_a_doubling_bound() -> None:
    """Each pause is drawn from nothing up to 0.5 s, 1 s, 2 s ... 60 s."""
    stage = Stage([BUSY], max_retries=12, others=True)
    with pytest.raises(GaveUp):
        await stage.call()
    bounds = [min(60.0, 0.5 * 2**n) for n in range(12)]
    assert all(0.0 <= pause <= bound for pause, bound in zip(stage.pauses, bounds, strict=True))


@pytest.mark.parametrize(
    ("failures", "bound"), [(0, 0.5), (1, 0.5), (2, 1.0), (7, 32.0), (8, 60.0), (9, 60.0), (5000, LONGEST_WAIT)]
)
def test_jitter_is_even_over_its_whole_range(failures: int, bound: float) -> None:
    """Full jitter, not a fixed pause with some noise: draws have half the bound as mean and reach its ends."""
    rng = random.Random(7)
    draws = [full_jitter(failures, None, rng) for _ in range(1000)]
    assert 0.0 <= min(draws) < bound * 0.02
    assert bound * 0.98 < max(draws) <= bound
    assert sum(draws) / 1000 == pytest.approx(bound / 2, rel=0.1)


@pytest.mark.parametrize("asked", [0.0, 0.2, 5.0, 60.0, 3600.0])
def test_retry_after_is_never_undercut_nor_does_it_hurry(asked: float) -> None:
    """What the endpoint asked for is the least; `0` and dates in the past do not shorten the pause of the backoff."""
    for seed in range(50):
        plain, wait = full_jitter(6, None, random.Random(seed)), full_jitter(6, asked, random.Random(seed))
        assert wait >= asked
        assert wait >= plain
        assert wait <= max(asked + 0.1 * plain, plain)


def test_those_told_the_same_time_do_not_come_back_together() -> None:
    """A hundred requests that must wait 30 s are spread out behind it."""
    rng = random.Random(7)
    waits = [full_jitter(6, 30.0, rng) for _ in range(100)]
    assert len(set(waits)) == 100
    assert max(waits) - min(waits) > 1.0


@pytest.mark.anyio
async def test_retry_after_is_obeyed_in_a_call() -> None:
    """The pause that follows a 429 with Retry-After is at least that long."""
    stage = Stage([TransportFault("http_429", "slow down", retry_after=20.0), GOOD])
    await stage.call()
    assert stage.pauses[0] >= 20.0


@pytest.mark.anyio
async def test_no_slot_is_held_while_backing_off() -> None:
    """During each pause the slot is free, and the display shows that one request backs off."""
    stage = Stage([BUSY, BUSY, GOOD])
    await stage.call()
    assert stage.held_in_pauses == [0, 0]
    assert stage.backing_off == [1, 1]
    assert stage.caller.traffic.backing_off == 0


@pytest.mark.anyio
async def test_user_with_several_requests_backs_off_once() -> None:
    """The display and the dispatch of users count users, of which more are never between two tries than in play."""
    stage, seen, paused = Stage([BUSY]), list[int](), 0

    async def sleep(seconds: float) -> None:
        nonlocal paused
        paused += 1
        await anyio.sleep_forever()

    caller = Caller(stage, stage.limiter, Limits(8, 900.0), clock=lambda: 0.0, sleep=sleep)
    async with anyio.create_task_group() as group:
        for user in ("甲", "甲", "甲", "乙"):
            group.start_soon(caller.complete, b"{}", 1, user, lambda fault, number: None)
        while paused < 4:
            await anyio.lowlevel.checkpoint()
        seen.append(caller.traffic.backing_off)
        group.cancel_scope.cancel()
    assert (seen, caller.traffic.backing_off) == ([2], 0)


@pytest.mark.anyio
async def test_cancelled_pause_and_cancelled_try_leave_no_trace() -> None:
    """A request that is cancelled in a pause or on the wire is not given up, and the counts stay right."""
    reached = anyio.Event()

    async def for_ever(*ignored: object) -> Completion:
        reached.set()
        await anyio.sleep_forever()
        raise AssertionError

    for part in ("_sleep", "_sender"):
        stage = Stage([BUSY])
        sender = type("Hangs", (), {"send": staticmethod(for_ever)})() if part == "_sender" else stage
        sleep = for_ever if part == "_sleep" else stage._sleep
        caller = Caller(sender, stage.limiter, Limits(8, 900.0), clock=lambda: 0.0, sleep=sleep)  # type: ignore[arg-type]
        reached = anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(caller.complete, b"{}", 1, "user", lambda fault, number: None)
            await reached.wait()
            group.cancel_scope.cancel()
        assert (stage.limiter.in_flight, caller.traffic.backing_off) == (0, 0)


@pytest.mark.anyio
@pytest.mark.parametrize(
    "error", [BAD_REQUEST, UNKNOWN_MODEL, NO_QUOTA, WRONG_KEY], ids=["rejected", "model", "quota", "key"]
)
@pytest.mark.parametrize("before", [[], [BUSY]], ids=["at_once", "after_a_fault"])
async def test_what_no_other_try_would_help_is_passed_on(error: HarnessError, before: list[HarnessError]) -> None:
    """A refused request, an endpoint that will not serve, a wrong key at the start: one try more is none too few."""
    stage = Stage([*before, error])
    with pytest.raises(type(error)) as caught:
        await stage.call()
    assert caught.value is error
    assert len(stage.sent) == len(before) + 1
    assert stage.limiter.in_flight == 0


@pytest.mark.anyio
@pytest.mark.parametrize(
    "error", [UNKNOWN_MODEL, NO_QUOTA, WRONG_KEY, UNKNOWN_PATH], ids=["model", "quota", "key", "path"]
)
async def test_endpoint_that_stops_the_run_is_sent_nothing_more(error: HarnessError) -> None:
    """Whoever waits for the slot of the request with that reason does not get it."""
    stage = Stage([error])

    async def stopped() -> None:
        with pytest.raises(EndpointStopped):
            await stage.call()

    async with anyio.create_task_group() as group:
        group.start_soon(stopped)
        group.start_soon(stage.call)
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        assert (len(stage.sent), stage.limiter.waiting, stage.limiter.in_flight) == (1, 1, 0)
        group.cancel_scope.cancel()


@pytest.mark.anyio
@pytest.mark.parametrize("max_retries", [0, 1, 8, 100])
@pytest.mark.parametrize("seconds", [0.0, 0.25, 30.0], ids=["refused at once", "slowly", "after a time-out"])
async def test_address_that_never_answers_stops_the_run_soon_and_by_name(max_retries: int, seconds: float) -> None:
    """Refused or unknown from the first try on: the run stops within its patience, whatever the number of retries."""
    stage = Stage([REFUSED], max_retries=max_retries, seconds=seconds)
    with pytest.raises(EndpointStopped, match=r"http://127\.0\.0\.1:9/v1"):
        await stage.call()
    assert stage.now <= PATIENCE_WITH_AN_ADDRESS + WAIT_FOR_AN_ADDRESS + seconds
    assert stage.limiter.in_flight == 0


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("kind", "variable"), [("proxy", "NO_PROXY"), ("unknown_host", "--wait"), ("connect", "--wait")]
)
async def test_address_that_never_answers_names_what_to_check(kind: str, variable: str) -> None:
    """Waiting helps against a server that loads, and not against a wrong proxy."""
    stage = Stage([TransportFault(kind, "no answer", unreachable=True)])
    with pytest.raises(EndpointStopped) as caught:
        await stage.call()
    assert [name in str(caught.value) for name in ("NO_PROXY", "--wait")] == [
        name == variable for name in ("NO_PROXY", "--wait")
    ]


@pytest.mark.anyio
async def test_address_that_comes_up_within_the_patience_is_used() -> None:
    """A server that is just starting is not a wrong address."""
    stage = Stage([REFUSED, REFUSED, GOOD])
    assert (await stage.call()).tries == 3
    assert all(pause <= WAIT_FOR_AN_ADDRESS for pause in stage.pauses)


@pytest.mark.anyio
async def test_unknown_path_stops_the_run_at_once() -> None:
    """404 before any success is no matter of waiting: one request, and a hint at what is usually missing."""
    stage = Stage([UNKNOWN_PATH])
    with pytest.raises(EndpointStopped, match=r"http://127\.0\.0\.1:9/v1"):
        await stage.call()
    assert (len(stage.sent), stage.pauses) == (1, [])


@pytest.mark.anyio
async def test_other_answer_renews_the_patience_with_an_address() -> None:
    """A server that says 503 while it loads is there: a refused connection much later does not condemn its address."""
    stage = Stage([REFUSED, *[BUSY] * 6, REFUSED, GOOD], seconds=4.0)
    assert (await stage.call()).tries == 9


@pytest.mark.anyio
async def test_address_that_said_503_is_not_wrong_because_the_last_try_was_refused() -> None:
    """A server that was loading and then crashed costs a user, not the run, until its patience is used up as well."""
    stage = Stage([*[BUSY] * 4, REFUSED], max_retries=4, seconds=4.0)
    with pytest.raises(GaveUp, match="connect"):
        await stage.call()


@pytest.mark.anyio
@pytest.mark.parametrize("fault", [REFUSED, UNKNOWN_PATH], ids=["refused", "404"])
async def test_address_that_has_answered_once_is_believed_in(fault: TransportFault) -> None:
    """After a success the same faults are tried again like any other, and end as a failure of their user only."""
    stage = Stage([GOOD, fault, fault, GOOD, fault], max_retries=3, seconds=30.0)
    await stage.call()
    assert (await stage.call()).tries == 3
    with pytest.raises(GaveUp):
        await stage.call()


@pytest.mark.anyio
@pytest.mark.parametrize("denied", [WRONG_KEY, NO_QUOTA], ids=["key", "quota"])
async def test_denial_after_a_success_is_a_passing_fault(denied: Denied) -> None:
    """A gateway that loses its mind for a moment must not end a run that it has served."""
    stage = Stage([GOOD, denied, GOOD, denied, GOOD])
    await stage.call()
    assert (await stage.call()).tries == 2
    assert (await stage.call()).tries == 2  # each time anew
    assert stage.warned == [("denied", 1)] * 2
    assert stage.limiter.in_flight == 0


@pytest.mark.anyio
@pytest.mark.parametrize("denied", [WRONG_KEY, NO_QUOTA], ids=["key", "quota"])
async def test_denial_that_another_try_confirms_stops_the_run(denied: Denied) -> None:
    """The key has been revoked, or the account is empty: the second try says so, and the error is the endpoint's."""
    stage = Stage([GOOD, denied], max_retries=2)
    await stage.call()
    with pytest.raises(Denied) as caught:
        await stage.call()
    assert caught.value is denied
    assert len(stage.sent) == 3
    assert stage.limiter.in_flight == 0


@pytest.mark.anyio
async def test_only_a_try_begun_after_the_first_denial_confirms_it() -> None:
    """Requests that were on the wire together are denied together by the same hiccup: that stops nothing."""
    limiter = Limiter(Slots(FixedControl(3), lambda: now))
    on_the_wire, answer, now, denials = 0, anyio.Event(), 0.0, 3

    class Hiccup:
        async def send(self, body: bytes, user: str = "") -> Received:
            nonlocal on_the_wire, denials, now
            if not caller.traffic.successes:
                return Received(GOOD, HERE)
            on_the_wire += 1
            now += 1.0
            if on_the_wire == 3:
                answer.set()
            await answer.wait()
            now += 1.0
            if denials:
                denials -= 1
                raise WRONG_KEY
            return Received(GOOD, HERE)

    async def no_wait(seconds: float) -> None:
        await anyio.lowlevel.checkpoint()

    caller = Caller(Hiccup(), limiter, Limits(8, 900.0), clock=lambda: now, sleep=no_wait)
    await caller.complete(b"{}", 1, "first", lambda fault, number: None)
    async with anyio.create_task_group() as group:
        for user in "abc":
            group.start_soon(caller.complete, b"{}", 1, user, lambda fault, number: None)
    assert (caller.traffic.successes, caller.traffic.requests) == (4, 7)


@pytest.mark.anyio
async def test_try_that_begins_at_the_moment_of_the_first_denial_confirms_it() -> None:
    """A pause may be shorter than a tick of the clock."""
    stage = Stage([GOOD, WRONG_KEY, WRONG_KEY, BAD_REQUEST], seconds=0.0)
    stage.caller.rng.uniform = lambda low, high: low  # type: ignore[method-assign]
    await stage.call()
    with pytest.raises(Denied):
        await stage.call()
    assert len(stage.sent) == 3


@pytest.mark.anyio
async def test_limiter_is_told_how_each_try_ended() -> None:
    """An adaptive limit learns from seconds and faults: None for a reply, the fault itself for anything passing."""
    told: list[tuple[float, str | None]] = []

    class Noting(Limiter):
        def release(self, seconds: float, fault: TransportFault | None) -> None:
            told.append((seconds, fault.kind if fault else None))
            super().release(seconds, fault)

    stage = Stage([GOOD, BUSY, WRONG_KEY, GOOD, BAD_REQUEST])
    stage.limiter = Noting(Slots(FixedControl(1), lambda: stage.now))
    caller = Caller(stage, stage.limiter, Limits(8, 900.0), clock=lambda: stage.now, sleep=stage._sleep)
    await caller.complete(b"{}", 1, "user", lambda fault, number: None)
    await caller.complete(b"{}", 1, "user", lambda fault, number: None)
    with pytest.raises(Rejected):
        await caller.complete(b"{}", 1, "user", lambda fault, number: None)
    assert [kind for _, kind in told] == [None, "http_503", "denied", None, None]
    assert [seconds for seconds, _ in told] == pytest.approx([0.25] * 5)


@pytest.mark.anyio
@pytest.mark.parametrize(("failures", "max_retries"), [(1, 8), (3, 8), (3, 1)])
async def test_failed_request_leaves_nothing_that_only_a_search_for_garbage_finds(
    failures: int, max_retries: int
) -> None:
    """An error's traceback holds the frames that hold the error; during a run garbage is hardly ever looked for."""

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
        limiter = Limiter(Slots(FixedControl(1), lambda: 0.0))
        caller = Caller(Failing(), limiter, Limits(max_retries, 900.0), clock=lambda: 0.0, sleep=no_wait)
        gc.collect()
        with suppress(GaveUp):
            await caller.complete(b"{}", 1, "u", lambda fault, number: None)
        garbage.append(gc.collect())
    assert garbage[-1] == 0
