"""Outages: the state machine alone, and what a run makes of it, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from harness.endpoint.caller import LONGEST_WAIT, Caller, Limits
from harness.endpoint.control import FixedControl
from harness.endpoint.limiter import Limiter, Slots
from harness.endpoint.outage import FAILURES, FIRST_PROBE, LONGEST_PROBE, SILENCE, USERS, Outage
from harness.endpoint.transport import Received
from harness.errors import EndpointStopped, GaveUp, TransportFault
from harness.model import Completion
from tests.support import virtual

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


def test_each_success_begins_the_count_anew() -> None:
    """Silence, failures and users are those since the last success."""
    outage = Outage(0.0)
    failing(outage, SILENCE - 1)
    assert not outage.succeeded(SILENCE)
    assert not failing(outage, 2 * SILENCE - 1, failures=50, users=50)
    assert not outage.succeeded(2 * SILENCE)
    assert not failing(outage, 9 * SILENCE, failures=FAILURES - 1)
    outage.succeeded(9 * SILENCE)
    assert not outage.silent
    assert not failing(outage, 20 * SILENCE, failures=50, users=USERS - 1)


def test_outage_lasts_from_the_last_success_to_the_next() -> None:
    """What failed in between is covered, during it and ever after; what failed before or behind it is not."""
    outage = Outage(0.0)
    outage.succeeded(50.0)
    failing(outage, 90.0)
    assert outage.lasted(95.0) == 45.0
    assert [outage.covers(at) for at in (49.9, 50.0, 60.0, 95.0)] == [False, True, True, True]
    assert outage.succeeded(100.0)
    assert (outage.active, outage.lasted(101.0)) == (False, 0.0)
    failing(outage, 200.0)
    assert outage.succeeded(300.0)
    assert [outage.covers(at) for at in (49.9, 60.0, 100.1, 250.0, 300.1)] == [False, True, True, True, False]
    assert not outage.succeeded(301.0)


def test_time_without_an_outage_is_covered_by_nothing() -> None:
    """Failures that passed without one count as tries."""
    outage = Outage(0.0)
    failing(outage, 10.0)
    outage.succeeded(11.0)
    assert not outage.covers(10.0)


def test_probes_are_further_and_further_apart_and_begin_anew_with_the_next_outage() -> None:
    """From one second, doubled up to the longest distance."""
    outage, now, waits = Outage(0.0), 30.0, []
    for _ in range(7):
        waits.append(outage.next_probe(now))
        now += waits[-1] + 0.1
    assert waits == [pytest.approx(wait) for wait in (1.0, 2.0, 4.0, 8.0, LONGEST_PROBE, LONGEST_PROBE, LONGEST_PROBE)]
    outage.succeeded(now)
    assert outage.next_probe(now + 60.0) == FIRST_PROBE


def test_requests_that_fail_before_a_probe_is_due_were_none() -> None:
    """A hundred that were on the wire when it was declared do not make the first probe a late one."""
    outage = Outage(0.0)
    waits = [outage.next_probe(30.0 + number / 1000) for number in range(100)]
    assert waits[0] == FIRST_PROBE
    assert all(30.0 + number / 1000 + wait == pytest.approx(31.0) for number, wait in enumerate(waits))


# A run


DOWN = TransportFault("http_503", "down")
FOR_EVER = 10_000.0
"""Seconds of virtual time, which no test here comes near."""


@dataclass
class World:
    """Users with chains of requests of a second each, at an endpoint that `fault` says something about.

    `fault(user, now)` is how a request that comes now ends, after `fails_in` seconds; None where it is served.
    """

    fault: Callable[[str, float], TransportFault | None]
    fails_in: float = 0.05
    sent: list[tuple[float, str]] = field(default_factory=list)
    tries: dict[str, list[int]] = field(default_factory=dict)
    gave_up: dict[str, GaveUp] = field(default_factory=dict)
    at_once: int = 0
    stopped_at: float = 0.0

    def run(
        self, users: int, steps: int, slots: int, max_retries: int = 8, max_outage: float = 900.0, wait: float = 0.0
    ) -> World:
        """Plays all users to their end; user n has rank n before the steps it has left."""

        async def main() -> None:
            limiter = Limiter(Slots(FixedControl(slots), virtual.now))
            limits = Limits(max_retries, max_outage, wait)
            self.caller = Caller(self, limiter, limits, clock=virtual.now, rng=random.Random(1))
            try:
                await virtual.all_of(*(self._user(str(number), steps) for number in range(users)))
            finally:
                self.stopped_at = virtual.now()
                self.at_once = limiter.in_flight

        virtual.run(main)
        return self

    async def send(self, body: bytes, _: str = "") -> Received:
        assert virtual.now() < FOR_EVER
        user = body.decode()
        self.sent.append((virtual.now(), user))
        fault = self.fault(user, virtual.now())
        await asyncio.sleep(self.fails_in if fault else 1.0)
        if fault:
            raise fault
        return Received(Completion("好"), "here")

    async def _user(self, user: str, steps: int) -> None:
        self.tries[user] = []
        try:
            for left in range(steps, 0, -1):
                rank = 1000 * int(user) + left
                reply = await self.caller.complete(user.encode(), rank, user, lambda fault, number: None)
                self.tries[user].append(reply.tries)
        except GaveUp as error:
            self.gave_up[user] = error

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
    assert world.stopped_at <= 8 * 10 / 4 + 60.0 + LONGEST_PROBE + 2.0
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


def test_during_an_outage_single_probes_go_out_further_and_further_apart() -> None:
    """From its declaration 20 s after the last success on; and the display shows for how long and why."""
    seen: list[tuple[int, str | None, float]] = []

    def looking(user: str, now: float) -> TransportFault | None:
        if 32.0 <= now < 70.0:
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
    assert gaps == [pytest.approx(gap + 0.05) for gap in (2.0, 4.0, 8.0, 15.0, 15.0)][-len(gaps) :]
    assert len(gaps) >= 4
    assert [in_flight for in_flight, *_ in seen] == [1] * len(seen)
    assert {held_by for _, held_by, _ in seen} == {"outage"}
    assert all(20.0 < lasted < 60.0 for *_, lasted in seen)


def test_requests_that_fail_together_are_followed_by_an_early_probe() -> None:
    """Sixteen time-outs at once declare an outage; the first probe goes out a second later, not a quarter minute."""
    world = World(lambda user, now: DOWN if now < 30.0 else None, fails_in=30.0)
    world.run(users=16, steps=1, slots=16)
    assert world.between(0.1, 32.0)[0] == pytest.approx(30.0 + FIRST_PROBE)
    assert world.gave_up == {}


def test_outage_longer_than_allowed_stops_the_run() -> None:
    """It says for how long nothing came, and with what; after that nothing more is sent."""
    world = World(lambda user, now: DOWN if now >= 10.0 else None)
    with pytest.raises(EndpointStopped, match=r"not answered for 5 minutes \(http_503: down\)"):
        world.run(users=8, steps=30, slots=4, max_outage=300.0)
    assert 310.0 <= world.stopped_at <= 311.0 + LONGEST_PROBE + 1.0
    assert world.at_once == 0
    assert world.sent[-1][0] <= world.stopped_at


def test_outage_before_any_success_is_one_too() -> None:
    """A server that loads its model for five minutes, answering 503, is waited for."""
    world = World(lambda user, now: DOWN if now < 300.0 else None).run(users=8, steps=2, slots=4)
    assert world.gave_up == {}
    assert world.stopped_at <= 300.0 + LONGEST_PROBE + 8 * 2 / 4 + 2.0


NOBODY = TransportFault("connect", "http://127.0.0.1:9/v1 does not answer: refused", unreachable=True)


@pytest.mark.parametrize("fault", [NOBODY, DOWN], ids=["nothing listens", "503"])
def test_endpoint_that_is_still_loading_is_waited_for(fault: TransportFault) -> None:
    """One probe at a time goes out; the answer that ends the wait finds every user with all its tries."""
    world = World(lambda user, now: fault if now < 300.0 else None)
    world.run(users=8, steps=2, slots=4, max_retries=0, max_outage=30.0, wait=600.0)
    assert world.gave_up == {}
    assert world.stopped_at <= 300.0 + LONGEST_PROBE + 8 * 2 / 4 + 2.0
    assert len(world.between(1.0, 300.0)) <= 300.0 / LONGEST_PROBE + 6
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
    assert world.stopped_at <= 111.0 + LONGEST_PROBE + 1.0


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
    given_up_at = [at for at, user in world.sent if user == "1"][-1]
    assert 1.0 <= given_up_at <= 6.0  # the first answer to the other came after a second


def test_faults_of_a_whole_run_are_no_outage_while_some_pass() -> None:
    """Three in ten requests fail: that is retried, nothing pauses, and nobody is given up."""
    rng = random.Random(3)
    world = World(lambda user, now: DOWN if rng.random() < 0.3 else None).run(users=80, steps=4, slots=8)
    assert (world.gave_up, world.caller.outage.ended) == ({}, [])
    assert world.stopped_at <= 1.25 * (80 * 4 / 8)
