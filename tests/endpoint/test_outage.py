"""Outages: the state machine alone, and what a run makes of it, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.endpoint.caller import LONGEST_SILENT_WAIT, LONGEST_WAIT, Caller, Limits, Question
from harness.endpoint.control import FixedControl
from harness.endpoint.limiter import Limiter, Slots
from harness.endpoint.outage import FAILURES, PROBE_SECONDS, SILENCE, USERS, Outage
from harness.endpoint.transport import Received
from harness.errors import EndpointStopped, GaveUp, TransportFault
from harness.model import Completion
from tests.support import examples, virtual

# The state machine


def failing(outage: Outage, at: float, failures: int = FAILURES, users: int = USERS) -> bool:
    """So many failures at one time, spread over so many users; what the last one gets."""
    return [outage.failed(at, str(number % users)) for number in range(failures)][-1]


def test_silence_failures_and_users_make_an_outage_together() -> None:
    """All three are needed; it is declared by the failure that completes them."""
    outage = Outage(100.0)
    assert not failing(outage, 100.0 + SILENCE - 0.001, failures=50, users=50)
    assert outage.failed(100.0 + SILENCE, "0")
    assert outage.active


@pytest.mark.parametrize(
    ("failures", "users"), [(FAILURES - 1, USERS), (500, USERS - 1), (500, 1)], ids=["few", "two users", "one user"]
)
def test_few_failures_or_few_users_are_no_outage_however_long_it_is_silent(failures: int, users: int) -> None:
    """They may be bad requests; that it was silent is remembered all the same."""
    outage = Outage(0.0)
    assert not failing(outage, 9 * SILENCE, failures, users)
    assert (outage.active, outage.silent, outage.lasted(9 * SILENCE)) == (False, True, 0.0)


def test_each_success_begins_a_new_count() -> None:
    """Silence, failures and users are those since the last success."""
    outage = Outage(0.0)
    failing(outage, SILENCE - 1)
    outage.succeeded(SILENCE)
    assert not failing(outage, 2 * SILENCE - 1, failures=50, users=50)
    outage.succeeded(2 * SILENCE)
    assert not failing(outage, 9 * SILENCE, failures=FAILURES - 1)
    outage.succeeded(9 * SILENCE)
    assert not outage.silent
    assert not failing(outage, 20 * SILENCE, failures=50, users=USERS - 1)


def decided(outage: Outage, at: float, sent: float | None = None) -> str:
    """What a try is that failed at that time, at once without the time when it was sent."""
    failure = (at if sent is None else sent, at)
    if outage.undecided(failure):
        return "undecided"
    return "forgiven" if outage.forgives(failure) else "counts"


def test_outage_lasts_from_the_last_success_to_the_next() -> None:
    """What failed in between is undecided during it and forgiven after it; what failed before or after it counts."""
    outage = Outage(0.0)
    outage.succeeded(50.0)
    failing(outage, 90.0)
    assert outage.lasted(95.0) == 45.0
    assert [decided(outage, at) for at in (49.9, 50.0, 95.0)] == ["counts", "undecided", "undecided"]
    assert outage.succeeded(100.0)
    assert (outage.active, outage.lasted(101.0)) == (False, 0.0)
    failing(outage, 200.0)
    assert outage.succeeded(300.0)
    times = (49.9, 60.0, 250.0, 300.1)
    assert [decided(outage, at) for at in times] == ["counts", "forgiven", "forgiven", "undecided"]
    assert not outage.succeeded(301.0)
    assert decided(outage, 300.1) == "counts"


def test_short_silence_in_which_several_users_fail_is_forgiven() -> None:
    """Thirteen seconds are no declared outage, and cost no try; the first success says so."""
    outage = Outage(0.0)
    assert not failing(outage, 10.0, failures=2, users=2)
    assert outage.succeeded(13.0, 12.0)
    assert (decided(outage, 10.0), outage.ended) == ("forgiven", [])


def test_failures_of_one_user_between_successes_count() -> None:
    """Others passed before and after it."""
    outage = Outage(0.0)
    failing(outage, 10.0, failures=5, users=1)
    assert not outage.succeeded(13.0, 12.0)
    assert decided(outage, 10.0) == "counts"


def test_two_tries_of_one_request_are_one_users() -> None:
    """The second one, which does not wait for the first, has no name."""
    outage = Outage(0.0)
    outage.failed(10.0, "0")
    outage.failed(10.0, "")
    assert not outage.succeeded(13.0, 12.0)
    assert decided(outage, 10.0) == "counts"


def test_failures_while_a_request_was_on_the_wire_that_succeeded_count() -> None:
    """The endpoint served meanwhile; what had been sent before that request is forgiven."""
    outage = Outage(0.0)
    outage.succeeded(1.0, 0.5)
    failing(outage, 10.0, failures=3)
    failing(outage, 12.5, failures=3)
    assert outage.succeeded(13.0, 12.0)
    assert [decided(outage, *one) for one in ((10.0, 9.0), (12.5, 11.0), (12.5, 12.2))] == [
        *["forgiven"] * 2,
        "counts",
    ]


def test_time_out_while_others_were_served_at_its_start_and_at_its_end_counts() -> None:
    """None of them was on the wire for so long."""
    outage = Outage(0.0)
    for second in range(30):
        outage.succeeded(second + 1.0, float(second))
    failing(outage, 30.5, failures=3)
    outage.succeeded(31.0, 30.2)
    assert decided(outage, 30.5, sent=0.5) == "counts"


def test_answer_that_is_no_users_ends_an_outage_and_decides_nothing() -> None:
    """The endpoint serves; whether requests are bad is seen by their next tries."""
    outage = Outage(0.0)
    failing(outage, 30.0)
    assert outage.answered(31.0)
    assert (outage.active, outage.lasted(40.0), decided(outage, 30.0)) == (False, 0.0, "undecided")


def test_question_without_an_answer_makes_an_outage_of_one_users_failures() -> None:
    """Then it is not that user's request, once it is silent for long enough."""
    outage = Outage(0.0)
    outage.unanswered = True
    assert not outage.failed(SILENCE - 1.0, "0")
    assert outage.failed(SILENCE, "0")


def test_probes_are_two_seconds_apart() -> None:
    """Each from the failure of the one before."""
    outage, now, waits = Outage(0.0), 30.0, []
    for _ in range(3):
        waits.append(outage.next_probe(now))
        now += waits[-1] + 0.1
    assert waits == [pytest.approx(PROBE_SECONDS)] * 3


def test_requests_that_fail_before_a_probe_is_due_were_none() -> None:
    """A hundred that were on the wire when it was declared do not make the first probe a late one."""
    outage = Outage(0.0)
    waits = [outage.next_probe(30.0 + number / 1000) for number in range(100)]
    assert all(30.0 + number / 1000 + wait == pytest.approx(30.0 + PROBE_SECONDS) for number, wait in enumerate(waits))


# A run


DOWN = TransportFault("http_503", "down")
SLOW = TransportFault("timeout", "no whole reply within 30 s")
QUESTION = b"?"
FOR_EVER = 10_000.0
"""Seconds of virtual time, which no test here comes near."""


@dataclass
class World:
    """Users with chains of requests of a second each, at an endpoint that `fault` says something about.

    `fault(user, now)` is how a request that comes now ends, after `fails_in` seconds; None where it is served, after
    `seconds(user)`, unless the endpoint `dies` before. `asks` is whether it may be asked for a token.
    """

    fault: Callable[[str, float], TransportFault | None]
    fails_in: float = 0.05
    asks: bool = False
    seconds: Callable[[str], float] = lambda user: 1.0
    dies: Callable[[float], float] = lambda now: FOR_EVER
    sent: list[tuple[float, str]] = field(default_factory=list)
    questions: list[float] = field(default_factory=list)
    tries: dict[str, list[int]] = field(default_factory=dict)
    gave_up: dict[str, GaveUp] = field(default_factory=dict)
    given_up_at: dict[str, float] = field(default_factory=dict)
    at_once: int = 0
    stopped_at: float = 0.0

    def run(
        self, users: int, steps: int, slots: int, max_retries: int = 8, max_outage: float = 900.0, wait: float = 0.0
    ) -> World:
        """Plays all users to their end; user n has rank n before the steps it has left."""

        async def main() -> None:
            limiter = Limiter(Slots(FixedControl(slots), virtual.now))
            limits = Limits(max_retries, max_outage, wait)
            question = Question(self, QUESTION) if self.asks else None
            self.caller = Caller(self, limiter, limits, clock=virtual.now, rng=random.Random(1), question=question)
            try:
                await virtual.all_of(*(self._user(str(number), steps) for number in range(users)))
            finally:
                self.stopped_at = virtual.now()
                self.at_once = limiter.in_flight

        virtual.run(main)
        return self

    async def send(self, body: bytes, _: str = "") -> Received:
        assert virtual.now() < FOR_EVER
        user, now = body.decode(), virtual.now()
        if body == QUESTION:
            self.questions.append(now)
        else:
            self.sent.append((now, user))
        if fault := self.fault(user, now):
            await asyncio.sleep(self.fails_in)
            raise fault
        took, left = 0.1 if body == QUESTION else self.seconds(user), self.dies(now) - now
        await asyncio.sleep(min(took, left))
        if left < took:
            raise TransportFault("connection", "the connection broke")
        return Received(Completion("好"), "here")

    async def _user(self, user: str, steps: int) -> None:
        self.tries[user] = []
        try:
            for left in range(steps, 0, -1):
                rank = 1000 * int(user) + left
                reply = await self.caller.complete(user.encode(), rank, user, lambda fault, number: None)
                self.tries[user].append(reply.tries)
        except GaveUp as error:
            self.gave_up[user], self.given_up_at[user] = error, virtual.now()

    def between(self, start: float, end: float) -> list[float]:
        return [at for at, _ in self.sent if start <= at < end]


def down_from_10_to_70(user: str, now: float) -> TransportFault | None:
    return DOWN if 10.0 <= now < 70.0 else None


@pytest.mark.parametrize("max_retries", [0, 2, 8])
def test_outage_in_the_middle_costs_its_time_and_no_user(max_retries: int) -> None:
    """Sixty seconds without any answer: tries are given back, everybody comes through, and then it goes on at once."""
    world = World(down_from_10_to_70).run(users=8, steps=10, slots=4, max_retries=max_retries)
    assert world.gave_up == {}
    assert all(len(tries) == 10 for tries in world.tries.values())
    assert max(max(tries) for tries in world.tries.values()) > 1
    assert world.stopped_at <= 8 * 10 / 4 + 60.0 + PROBE_SECONDS + 3.0
    assert not world.caller.outage.active


def test_end_of_an_outage_wakes_who_backs_off() -> None:
    """Pauses of up to a minute were drawn while nobody was there: all go on at once."""
    world = World(down_from_10_to_70).run(users=60, steps=20, slots=60)
    end = world.caller.outage.ended[0][1]
    assert len({user for at, user in world.sent if end - 1.1 <= at < end + 0.1}) == 60
    assert world.gave_up == {}


def test_end_of_an_outage_leaves_the_pauses_that_the_endpoint_asked_for() -> None:
    """Seven were asked to come back after ten minutes, and do."""

    def down(user: str, now: float) -> TransportFault | None:
        if not 10.0 <= now < 70.0:
            return None
        return DOWN if user == "0" else TransportFault("http_503", "down", retry_after=600.0)

    world = World(down).run(users=8, steps=20, slots=8)
    assert {user for at, user in world.sent if 70.0 <= at < 600.0} == {"0"}
    assert {user for at, user in world.sent if at >= 600.0} == {str(number) for number in range(1, 8)}


def test_during_an_outage_single_probes_go_out() -> None:
    """From its declaration 20 s after the last success on; and the display shows for how long and why."""
    seen: list[tuple[int, str | None, float]] = []

    def looking(user: str, now: float) -> TransportFault | None:
        if 33.0 <= now < 70.0:
            limiter = world.caller.limiter
            seen.append((limiter.in_flight, limiter.held_by, world.caller.outage.lasted(now)))
        return down_from_10_to_70(user, now)

    world = World(looking)
    world.run(users=8, steps=10, slots=4)
    last_success = world.caller.outage.ended[0][0]
    declared = last_success + SILENCE
    assert 10.0 <= last_success <= 11.1
    probes = world.between(declared + 2.0, world.caller.outage.ended[0][1])
    gaps = [later - earlier for earlier, later in pairwise(probes)]
    assert gaps == [pytest.approx(PROBE_SECONDS + 0.05)] * len(gaps) != []
    assert [in_flight for in_flight, *_ in seen] == [1] * len(seen)
    assert {held_by for _, held_by, _ in seen} == {"outage"}
    assert all(20.0 < lasted < 60.0 for *_, lasted in seen)


def test_requests_that_fail_together_are_followed_by_an_early_probe() -> None:
    """Sixteen time-outs at once declare an outage; the first probe goes out after one distance of probes."""
    world = World(lambda user, now: DOWN if now < 30.0 else None, fails_in=30.0)
    world.run(users=16, steps=1, slots=16)
    assert world.between(0.1, 40.0)[0] == pytest.approx(30.0 + PROBE_SECONDS)
    assert world.gave_up == {}


def test_outage_longer_than_allowed_stops_the_run() -> None:
    """It says for how long nothing came, and with what; after that nothing more is sent."""
    world = World(lambda user, now: DOWN if now >= 10.0 else None)
    with pytest.raises(EndpointStopped, match=r"not answered with a completion for 5 minutes \(http_503: down\)"):
        world.run(users=8, steps=30, slots=4, max_outage=300.0)
    assert 310.0 <= world.stopped_at <= 311.0 + PROBE_SECONDS + 1.0
    assert world.at_once == 0
    assert world.sent[-1][0] <= world.stopped_at


def test_outage_before_any_success_is_one_too() -> None:
    """A server that loads its model for five minutes, answering 503, is waited for."""
    world = World(lambda user, now: DOWN if now < 300.0 else None).run(users=8, steps=2, slots=4)
    assert world.gave_up == {}
    assert world.stopped_at <= 300.0 + PROBE_SECONDS + 8 * 2 / 4 + 2.0


NOBODY = TransportFault("connect", "http://127.0.0.1:9/v1 does not answer: refused", unreachable=True)


@pytest.mark.parametrize("fault", [NOBODY, DOWN], ids=["nothing listens", "503"])
def test_endpoint_that_is_still_loading_is_waited_for(fault: TransportFault) -> None:
    """One probe at a time goes out; the answer that ends the wait finds every user with all its tries."""
    world = World(lambda user, now: fault if now < 300.0 else None)
    world.run(users=8, steps=2, slots=4, max_retries=0, max_outage=30.0, wait=600.0)
    assert world.gave_up == {}
    assert world.stopped_at <= 300.0 + PROBE_SECONDS + 8 * 2 / 4 + 2.0
    assert len(world.between(1.0, 300.0)) <= 300.0 / PROBE_SECONDS + 6
    assert world.caller.wait_left == 0.0


def test_one_user_is_enough_to_wait_for() -> None:
    """Too few users for an outage: those that the first answer needs are waited for all the same."""
    world = World(lambda user, now: DOWN if now < 300.0 else None)
    assert world.run(users=1, steps=1, slots=4, max_retries=0, wait=600.0).gave_up == {}


def test_wait_ends_with_a_last_probe() -> None:
    """An endpoint that does not come up stops the run when the seconds are over, not a probe's distance later."""
    world = World(lambda user, now: NOBODY)
    with pytest.raises(EndpointStopped, match=r"--wait 100"):
        world.run(users=8, steps=1, slots=4, wait=100.0)
    assert 100.0 <= world.stopped_at <= 101.0
    with pytest.raises(EndpointStopped, match=r"--wait"):
        World(lambda user, now: NOBODY).run(users=8, steps=1, slots=4)


def test_wait_is_for_the_first_answer_only() -> None:
    """After it an outage is declared and ends as without --wait."""
    world = World(lambda user, now: DOWN if now >= 10.0 else None)
    with pytest.raises(EndpointStopped):
        world.run(users=8, steps=30, slots=4, max_outage=100.0, wait=600.0)
    assert world.stopped_at <= 111.0 + PROBE_SECONDS + 1.0


def test_poisoned_request_is_given_up_alone_while_others_pass() -> None:
    """One user's request fails every time: its retries are used up, nobody else notices, and there is no outage."""
    world = World(lambda user, now: DOWN if user == "7" else None)
    world.run(users=8, steps=60, slots=4, max_retries=3)
    assert list(world.gave_up) == ["7"]
    assert (world.gave_up["7"].kind, world.gave_up["7"].tries) == ("persistent_error", 4)
    assert all(tries == [1] * 60 for user, tries in world.tries.items() if user != "7")
    assert world.caller.outage.ended == []


def test_poisoned_request_does_not_keep_an_outage_going() -> None:
    """It has the highest rank and fails whenever it is the probe; the others' probes find the endpoint back."""

    def fault(user: str, now: float) -> TransportFault | None:
        return DOWN if user == "7" else down_from_10_to_70(user, now)

    world = World(fault).run(users=8, steps=20, slots=4, max_retries=4, max_outage=300.0)
    assert list(world.gave_up) == ["7"]
    assert all(len(tries) == 20 for user, tries in world.tries.items() if user != "7")


@pytest.mark.parametrize("users", [1, USERS - 1])
def test_last_requests_that_always_fail_are_given_up_in_the_end(users: int) -> None:
    """With fewer users than make an outage, silence is enough: they are failures, and the run comes to its end."""
    world = World(lambda user, now: DOWN).run(users=users, steps=1, slots=4, max_retries=2)
    assert len(world.gave_up) == users
    assert all(error.tries >= 3 for error in world.gave_up.values())
    assert SILENCE <= world.stopped_at <= SILENCE + LONGEST_WAIT + 1.0


def test_nobody_is_given_up_before_it_is_known_whose_fault_it_is() -> None:
    """Even without retries a request is tried until another has passed since, or it has been silent for long."""
    world = World(lambda user, now: DOWN if user == "1" else None).run(users=2, steps=30, slots=2, max_retries=0)
    assert (list(world.gave_up), world.tries["0"]) == (["1"], [1] * 30)
    assert world.stopped_at == pytest.approx(30.0)
    assert world.given_up_at["1"] >= 1.0  # the first answer to the other came then


def test_faults_of_a_whole_run_are_no_outage_while_some_pass() -> None:
    """Three in ten requests fail: that is retried, nothing pauses, and nobody is given up."""
    rng = random.Random(3)
    world = World(lambda user, now: DOWN if rng.random() < 0.3 else None).run(users=80, steps=4, slots=8)
    assert (world.gave_up, world.caller.outage.ended) == ({}, [])
    assert world.stopped_at <= 1.25 * (80 * 4 / 8)


def crashing(down: Sequence[tuple[float, float]], gateway: bool = False) -> World:
    """An endpoint that is down in these times, which cut off what is on the wire; not so behind a `gateway`."""

    def fault(user: str, now: float) -> TransportFault | None:
        refused = DOWN if gateway else TransportFault("connect", "refused", unreachable=True)
        return refused if any(start <= now < end for start, end in down) else None

    def dies(now: float) -> float:
        return min([start for start, _ in down if start >= now], default=FOR_EVER)

    return World(fault, asks=True, dies=(lambda now: FOR_EVER) if gateway else dies)


@pytest.mark.parametrize("max_retries", [1, 8])
def test_endpoint_that_restarts_again_and_again_costs_no_user(max_retries: int) -> None:
    """Down for thirteen seconds three times, up for four between: no silence is long enough for a declared outage."""
    down = [(2.0, 15.0), (19.0, 32.0), (36.0, 49.0)]
    world = crashing(down).run(users=40, steps=5, slots=16, max_retries=max_retries)
    assert (world.gave_up, world.caller.outage.ended) == ({}, [])
    assert world.stopped_at - 49.0 <= 1.5 * (40 * 5 / 16)


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.2, 30.0), st.floats(0.1, 120.0)), min_size=1, max_size=6),
    st.integers(1, 40),
    st.integers(1, 16),
    st.booleans(),
)
def test_outages_of_any_pattern_cost_no_user(
    pattern: list[tuple[float, float]], users: int, slots: int, gateway: bool
) -> None:
    """Times up and down alternate; after the last return it takes at most 1.5 times as long as the whole run without
    any outage, however short that is. Only where a gateway answers 503, for less time than makes an outage, a pause
    between two tries may come on top."""
    down, now = [], 2.0  # for a first success: an address that has never answered is another matter
    for up, silent in pattern:
        down.append((now + up, now + up + silent))
        now += up + silent
    undisturbed = crashing([]).run(users, 4, slots).stopped_at
    world = crashing(down, gateway).run(users, 4, slots)
    assert world.gave_up == {}
    declared = any(start <= now <= end for start, end in world.caller.outage.ended)
    pause = LONGEST_SILENT_WAIT if gateway and not declared else 0.0
    assert world.stopped_at <= now + 1.5 * undisturbed + pause


@pytest.mark.parametrize("max_retries", [0, 1, 3, 8])
@pytest.mark.parametrize("poisoned", [1, 3, 12])
def test_requests_that_always_time_out_are_given_up_when_only_they_are_left(max_retries: int, poisoned: int) -> None:
    """The endpoint serves a question, so that their silence is no outage, and each has its tries and no more."""
    bad = {str(number) for number in range(poisoned)}
    world = World(lambda user, now: SLOW if user in bad else None, fails_in=30.0, asks=True)
    world.run(users=40, steps=2, slots=16, max_retries=max_retries, max_outage=76.0)
    assert set(world.gave_up) == bad
    assert {error.tries for error in world.gave_up.values()} == {max_retries + 1}
    assert world.caller.traffic.requests == len(world.sent) + len(world.questions)


def test_outage_that_a_single_request_is_left_for_stops_the_run() -> None:
    """A question that nobody serves shows that it is not the request: its user is not given up."""
    world = World(lambda user, now: DOWN if now >= 5.0 else None, asks=True)
    with pytest.raises(EndpointStopped):
        world.run(users=1, steps=9, slots=4, max_retries=2, max_outage=300.0)
    assert (world.gave_up, world.caller.traffic.successes) == ({}, 5)


@pytest.mark.parametrize(("users", "asks"), [(16, False), (16, True), (1, True), (2, True)])
@pytest.mark.parametrize("max_outage", [3.0, 10.0, 47.0])
def test_longest_outage_is_kept_to(max_outage: float, users: int, asks: bool) -> None:
    """The run stops when the time is over, not at the next probe or after the silence that declares an outage."""
    world = World(lambda user, now: DOWN if now >= 10.0 else None, asks=asks)
    with pytest.raises(EndpointStopped):
        world.run(users=users, steps=30, slots=16, max_outage=max_outage)
    last_success = world.caller.outage.last_success
    assert max_outage <= world.stopped_at - last_success <= max_outage + 1.0
