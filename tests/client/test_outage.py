"""Outages, and requests that are bad, in virtual time: what a run makes of them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.client.caller import Caller
from harness.client.control import FixedControl
from harness.client.health import (
    BETWEEN_PROBES,
    BETWEEN_TRIES,
    MAX_BILLABLE,
    UNCOUNTED_IN_A_ROW,
    Limits,
)
from harness.client.limiter import Limiter, Slots
from harness.client.transport import Received
from harness.errors import EndpointStopped, GaveUp, TransportFault
from harness.model import Completion
from tests.support import examples, virtual

DOWN = TransportFault("http_503", "down")
SLOW = TransportFault("timeout", "no whole reply within 30 s")
PROBE = b"?"
FOR_EVER = 10_000.0
"""Seconds of virtual time, which no test here comes near."""


@dataclass
class World:
    """Users with chains of requests of a second each, at an endpoint that `fault` says something
    about.

    `fault(user, now)` is how a request that comes now ends, after `fails_in` seconds; None where it
    is served, after `seconds(user)`, unless the endpoint `dies` before. Probes are the requests of
    the user `?`.
    """

    fault: Callable[[str, float], TransportFault | None]
    fails_in: float = 0.05
    seconds: Callable[[str], float] = lambda user: 1.0
    dies: Callable[[float], float] = lambda now: FOR_EVER
    sent: list[tuple[float, str]] = field(default_factory=list)
    probes: list[float] = field(default_factory=list)
    tries: dict[str, list[int]] = field(default_factory=dict)
    gave_up: dict[str, GaveUp] = field(default_factory=dict)
    given_up_at: dict[str, float] = field(default_factory=dict)
    at_once: int = 0
    stopped_at: float = 0.0

    def run(
        self,
        users: int,
        steps: int,
        slots: int,
        max_retries: int = 8,
        max_outage: float = 900.0,
        wait: float = 0.0,
    ) -> World:
        """Plays all users to their end; user n has rank n before the steps it has left."""

        async def main() -> None:
            limiter = Limiter(Slots(FixedControl(slots), virtual.now))
            limits = Limits(max_retries, max_outage, wait)
            self.caller = Caller(
                self, limiter, limits, probe=PROBE, clock=virtual.now, rng=random.Random(1)
            )
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
        if body == PROBE:
            self.probes.append(now)
        else:
            self.sent.append((now, user))
        if fault := self.fault(user, now):
            await asyncio.sleep(self.fails_in)
            raise fault
        took, left = 0.1 if body == PROBE else self.seconds(user), self.dies(now) - now
        await asyncio.sleep(min(took, left))
        if left < took:
            raise TransportFault("connection", "the connection broke")
        return Received(Completion("好"), "here")

    async def _user(self, user: str, steps: int) -> None:
        self.tries[user] = []
        try:
            for left in range(steps, 0, -1):
                rank = 1000 * int(user) + left
                reply = await self.caller.complete(
                    user.encode(), rank, user, lambda fault, number: None
                )
                self.tries[user].append(reply.tries)
        except GaveUp as error:
            self.gave_up[user], self.given_up_at[user] = error, virtual.now()

    def between(self, start: float, end: float) -> list[float]:
        return [at for at, _ in self.sent if start <= at < end]


def down_from_10_to_70(user: str, now: float) -> TransportFault | None:
    return DOWN if 10.0 <= now < 70.0 else None


@pytest.mark.parametrize("max_retries", [0, 2, 8])
def test_outage_in_the_middle_costs_its_time_and_no_user(max_retries):
    """Sixty seconds without any answer: tries are given back, everybody comes through, and then it
    goes on at once."""
    world = World(down_from_10_to_70).run(users=8, steps=10, slots=4, max_retries=max_retries)
    assert world.gave_up == {}
    assert all(len(tries) == 10 for tries in world.tries.values())
    assert max(max(tries) for tries in world.tries.values()) > 1
    assert world.stopped_at <= 8 * 10 / 4 + 60.0 + BETWEEN_TRIES + 3.0
    assert not world.caller.health.down


def test_end_of_an_outage_wakes_who_backs_off():
    """Pauses of up to a minute were drawn while nobody was there: all go on at once."""
    world = World(down_from_10_to_70).run(users=60, steps=20, slots=60)
    assert (
        len(
            {
                user
                for at, user in world.sent
                if 70.0 - BETWEEN_TRIES <= at < 70.0 + BETWEEN_TRIES + 1.1
            }
        )
        == 60
    )
    assert world.gave_up == {}


def test_end_of_an_outage_leaves_the_pauses_that_the_endpoint_asked_for():
    """Seven were asked to come back after ten minutes, and do."""

    def down(user: str, now: float) -> TransportFault | None:
        if not 10.0 <= now < 70.0:
            return None
        return DOWN if user == "0" else TransportFault("http_503", "down", retry_after=600.0)

    world = World(down).run(users=8, steps=20, slots=8)
    assert {user for at, user in world.sent if 70.0 <= at < 600.0} == {"0"}
    assert {user for at, user in world.sent if at >= 600.0} == {
        str(number) for number in range(1, 8)
    }


def test_during_an_outage_one_request_at_a_time_goes_out():
    """Once a probe was not answered; and the display shows for how long and why."""
    seen: list[tuple[int, str | None, float]] = []

    def looking(user: str, now: float) -> TransportFault | None:
        if 20.0 <= now < 70.0:
            limiter = world.caller.limiter
            seen.append((limiter.in_flight, limiter.held_by, now - world.caller.health.outage(now)))
        return down_from_10_to_70(user, now)

    world = World(looking)
    world.run(users=8, steps=10, slots=4)
    sent = sorted([*world.between(20.0, 70.0), *[at for at in world.probes if 20.0 <= at < 70.0]])
    gaps = [later - earlier for earlier, later in pairwise(sent)]
    assert gaps == [pytest.approx(BETWEEN_TRIES + 0.05)] * len(gaps) != []
    assert [in_flight for in_flight, *_ in seen] == [1] * len(seen)
    assert {held_by for _, held_by, _ in seen} == {"outage"}
    assert all(10.0 <= since <= 11.1 for *_, since in seen)
    assert min(later - earlier for earlier, later in pairwise(world.probes)) >= BETWEEN_PROBES


def test_outage_longer_than_allowed_stops_the_run():
    """It says for how long nothing came, and with what; after that nothing more is sent."""
    world = World(lambda user, now: DOWN if now >= 10.0 else None)
    with pytest.raises(
        EndpointStopped, match=r"not answered with a completion for 5 minutes \(http_503: down\)"
    ):
        world.run(users=8, steps=30, slots=4, max_outage=300.0)
    assert 310.0 <= world.stopped_at <= 311.0 + 1.0
    assert world.at_once == 0
    assert world.sent[-1][0] <= world.stopped_at


NOBODY = TransportFault(
    "connect", "http://127.0.0.1:9/v1 does not answer: refused", unreachable=True
)


def test_one_user_is_enough_to_wait_for():
    """Too few users for an outage: those that the first answer needs are waited for all the
    same."""
    world = World(lambda user, now: DOWN if now < 300.0 else None)
    assert world.run(users=1, steps=1, slots=4, max_retries=0, wait=600.0).gave_up == {}


def test_wait_ends_with_a_last_probe():
    """An endpoint that does not come up stops the run when the seconds are over, not a probe's
    distance later."""
    world = World(lambda user, now: NOBODY)
    with pytest.raises(EndpointStopped, match=r"--wait 100"):
        world.run(users=8, steps=1, slots=4, wait=100.0)
    assert 100.0 <= world.stopped_at <= 101.0
    with pytest.raises(EndpointStopped, match=r"--wait"):
        World(lambda user, now: NOBODY).run(users=8, steps=1, slots=4)


def test_poisoned_request_does_not_keep_an_outage_going():
    """It has the highest rank and fails whenever it is the probe; the others' probes find the
    endpoint back."""

    def fault(user: str, now: float) -> TransportFault | None:
        return DOWN if user == "7" else down_from_10_to_70(user, now)

    world = World(fault).run(users=8, steps=20, slots=4, max_retries=4, max_outage=300.0)
    assert list(world.gave_up) == ["7"]
    assert all(len(tries) == 20 for user, tries in world.tries.items() if user != "7")


@pytest.mark.parametrize("fails_in", [0.05, 30.0])
@pytest.mark.parametrize("users", [1, 2, 12])
@pytest.mark.parametrize("max_retries", [0, 2, 8])
def test_last_requests_that_always_fail_are_given_up_with_their_tries(users, max_retries, fails_in):
    """The endpoint answers a probe, at one slot, too: they are failures, and the run comes to its
    end."""
    world = World(lambda user, now: None if user == "?" else DOWN, fails_in=fails_in)
    world.run(users=users, steps=1, slots=1, max_retries=max_retries)
    assert len(world.gave_up) == users
    assert {error.tries for error in world.gave_up.values()} == {max_retries + 1}
    assert len(world.sent) == users * (max_retries + 1)
    assert all(
        later - earlier > BETWEEN_PROBES - 0.001 for earlier, later in pairwise(world.probes)
    )


def test_no_request_has_more_than_thirty_tries_that_may_be_billed():
    """Also where none of them counts, because an endpoint that answers everything else answers no
    probe."""
    world = World(lambda user, now: DOWN if user in "7?" else None)
    world.run(users=8, steps=400, slots=4, max_retries=100)
    assert list(world.gave_up) == ["7"]
    assert [user for _, user in world.sent].count("7") == MAX_BILLABLE


def test_outage_takes_few_tries_of_a_request_that_may_be_billed():
    """However long it is: then probes alone look for its end."""
    world = World(lambda user, now: DOWN if now < 850.0 else None).run(
        users=1, steps=1, slots=1, max_retries=0
    )
    assert world.gave_up == {}
    assert len(world.sent) <= 2 * UNCOUNTED_IN_A_ROW + 10
    assert world.stopped_at <= 850.0 + BETWEEN_PROBES + 2.0


def test_nobody_is_given_up_before_it_is_known_whose_fault_it_is():
    """Even without retries: another request, or a probe, is answered first."""
    world = World(lambda user, now: DOWN if user == "1" else None).run(
        users=2, steps=30, slots=2, max_retries=0
    )
    assert (list(world.gave_up), world.tries["0"]) == (["1"], [1] * 30)
    assert world.given_up_at["1"] >= 0.15  # the probe was answered then


def test_faults_of_a_whole_run_are_no_outage_while_some_pass():
    """Three in ten requests fail: that is retried, nothing pauses, and nobody is given up."""
    rng = random.Random(3)
    world = World(lambda user, now: DOWN if rng.random() < 0.3 else None).run(
        users=80, steps=4, slots=8
    )
    assert world.gave_up == {}
    assert world.stopped_at <= 1.25 * (80 * 4 / 8)


def crashing(down: Sequence[tuple[float, float]], gateway: bool = False) -> World:
    """An endpoint that is down in these times, which cut off what is on the wire; not so behind a
    `gateway`."""

    def fault(user: str, now: float) -> TransportFault | None:
        refused = DOWN if gateway else TransportFault("connect", "refused", unreachable=True)
        return refused if any(start <= now < end for start, end in down) else None

    def dies(now: float) -> float:
        return min([start for start, _ in down if start >= now], default=FOR_EVER)

    return World(fault, dies=(lambda now: FOR_EVER) if gateway else dies)


@pytest.mark.parametrize("max_retries", [1, 8])
def test_endpoint_that_restarts_again_and_again_costs_no_user(max_retries):
    """Down for thirteen seconds three times, up for four between: no silence is long enough for a
    declared outage."""
    down = [(2.0, 15.0), (19.0, 32.0), (36.0, 49.0)]
    world = crashing(down).run(users=40, steps=5, slots=16, max_retries=max_retries)
    assert world.gave_up == {}
    assert world.stopped_at - 49.0 <= 1.5 * (40 * 5 / 16)


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.2, 30.0), st.floats(0.1, 120.0)), min_size=1, max_size=6),
    st.integers(1, 40),
    st.integers(1, 16),
    st.booleans(),
)
def test_outages_of_any_pattern_cost_no_user(pattern, users, slots, gateway):
    """Times up and down alternate; after the last return it takes at most 1.5 times as long as the
    whole run without any outage, however short that is. Only where a gateway answers 503, which may
    be billed, the time between two probes may come on top."""
    down, now = [], 2.0  # for a first success: an address that has never answered is another matter
    for up, silent in pattern:
        down.append((now + up, now + up + silent))
        now += up + silent
    undisturbed = crashing([]).run(users, 4, slots).stopped_at
    world = crashing(down, gateway).run(users, 4, slots)
    assert world.gave_up == {}
    pause = BETWEEN_PROBES if gateway else BETWEEN_TRIES
    assert world.stopped_at <= now + 1.5 * undisturbed + pause


@pytest.mark.parametrize("max_retries", [0, 1, 3, 8])
@pytest.mark.parametrize("poisoned", [1, 3, 12])
def test_requests_that_always_time_out_are_given_up_when_only_they_are_left(max_retries, poisoned):
    """The endpoint answers a probe, so that their silence is no outage, and each has its tries and
    no more."""
    bad = {str(number) for number in range(poisoned)}
    world = World(lambda user, now: SLOW if user in bad else None, fails_in=30.0)
    world.run(users=40, steps=2, slots=16, max_retries=max_retries, max_outage=76.0)
    assert set(world.gave_up) == bad
    assert {error.tries for error in world.gave_up.values()} == {max_retries + 1}
    assert world.caller.traffic.requests == len(world.sent) + len(world.probes)


def test_outage_that_a_single_request_is_left_for_stops_the_run():
    """A probe that is not answered shows that it is not the request: its user is not given up."""
    world = World(lambda user, now: DOWN if now >= 5.0 else None)
    with pytest.raises(EndpointStopped):
        world.run(users=1, steps=9, slots=4, max_retries=2, max_outage=300.0)
    assert (world.gave_up, world.caller.traffic.successes) == ({}, 5)


@pytest.mark.parametrize("users", [1, 2, 16])
@pytest.mark.parametrize("max_outage", [3.0, 10.0, 47.0])
def test_longest_outage_is_kept_to(max_outage, users):
    """The run stops when the time is over, not at the next probe or after the silence that declares
    an outage."""
    world = World(lambda user, now: DOWN if now >= 10.0 else None)
    with pytest.raises(EndpointStopped):
        world.run(users=users, steps=30, slots=16, max_outage=max_outage)
    last_success = world.caller.health.last_answer
    assert max_outage <= world.stopped_at - last_success <= max_outage + 1.0
