"""The adaptive limit against simulated endpoints: pure discrete events in virtual time, nothing
waits."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.client.control import AdaptiveControl, FixedControl
from tests.support import examples, first_quick

SECONDS, SIGMA = 1.0, 0.5
"""Of the lognormal latency: its mean and the deviation of its logarithm."""

RETRY = 0.5
"""Seconds, at most, until a refused request comes back: the first bound of the full jitter."""

UNBOUNDED = 10**9

SEEDS = range(9)


class Simulation:
    """Chains of requests against an endpoint of `slots(now)` slots, which answers 429 beyond, until
    all are done.

    As many are out as the control allows, the one with most of its chain left first. `slower(n)`
    stretches the latency of a request that finds itself the nth in service; `way` draws the seconds
    to the endpoint, and those back. A refusal is `late` by so many seconds; a share of the tries is
    refused `by_chance`, whatever the load.
    """

    def __init__(
        self,
        control: AdaptiveControl,
        *,
        slots: Callable[[float], int] = lambda now: UNBOUNDED,
        chains: int = 750,
        length: int = 4,
        seed: int = 0,
        slower: Callable[[int], float] = lambda n: 1.0,
        way: Callable[[random.Random], float] = lambda rng: 0.001,
        seconds: float = SECONDS,
        late: float = 0.0,
        by_chance: float = 0.0,
    ) -> None:
        self.control = control
        self.now = 0.0
        self.refused = self.served = self.sent = 0
        self.limits: list[tuple[float, int]] = [(0.0, control.limit)]
        self._slots, self._slower, self._way = slots, slower, way
        self._latency, self._late, self._by_chance = seconds, late, by_chance
        self._rng = random.Random(seed)
        self._events: list[tuple[float, int, Callable[..., None], tuple[float, ...]]] = []
        self._waiting = [-length] * chains  # all of one length: already a heap
        self._in_flight = self._in_service = self._order = 0

    def run(self) -> Simulation:
        self._send()
        while self._events:
            self.now, _, what, details = heapq.heappop(self._events)
            what(*details)
            self._send()
            if self.control.limit != self.limits[-1][1]:
                self.limits.append((self.now, self.control.limit))
        return self

    def between(self, start: float, end: float) -> list[int]:
        """The limits that held at some time between two times."""
        before = [limit for at, limit in self.limits if at <= start]
        return [before[-1], *(limit for at, limit in self.limits if start < at <= end)]

    def first(self, after: float, wanted: Callable[[int], bool]) -> float:
        """Seconds from a time on until the limit was as wanted; infinite if it never was."""
        if wanted(self.between(after, after)[0]):
            return 0.0
        return next(
            (at - after for at, limit in self.limits if at > after and wanted(limit)), math.inf
        )

    def _in(self, seconds: float, what: Callable[..., None], *details: float) -> None:
        self._order += 1
        heapq.heappush(self._events, (self.now + seconds, self._order, what, details))

    def _send(self) -> None:
        while self._waiting and self._in_flight < self.control.limit:
            left = -heapq.heappop(self._waiting)
            self._in_flight += 1
            self.sent += 1
            self._in(self._way(self._rng), self._arrives, left, self.now)

    def _arrives(self, left: int, sent: float) -> None:
        if self._in_service >= self._slots(self.now) or (
            self._by_chance and self._rng.random() < self._by_chance
        ):
            return self._in(self._late + self._way(self._rng), self._is_refused, left, sent)
        self._in_service += 1
        latency = self._latency * math.exp(self._rng.gauss(-(SIGMA**2) / 2, SIGMA))
        self._in(latency * self._slower(self._in_service), self._is_served, left, sent)

    def _is_served(self, left: int, sent: float) -> None:
        self._in_service -= 1
        self._in(self._way(self._rng), self._is_answered, left, sent)

    def _is_answered(self, left: int, sent: float) -> None:
        pressed = bool(self._waiting) or self._in_flight >= self.control.limit
        self._in_flight -= 1
        self.served += 1
        self.control.answered(self.now, self.now - sent, pressed)
        if left > 1:
            heapq.heappush(self._waiting, -(left - 1))

    def _is_refused(self, left: int, sent: float) -> None:
        self.control.refused(self.now, self.now - sent, self._in_flight)
        self._in_flight -= 1
        self.refused += 1
        self._in(self._rng.uniform(0.0, RETRY), self._comes_back, left)

    def _comes_back(self, left: int) -> None:
        heapq.heappush(self._waiting, -left)


def thirty(now: float) -> int:
    return 30


# What an endpoint refuses


@pytest.mark.parametrize("start", first_quick([4, 16, 64]))
def test_limit_finds_thirty_slots_with_hardly_a_refusal(start):
    """3,000 requests of a second, 30 at once: 100 s at best, and 429 for whatever is too many."""
    runs = [
        Simulation(AdaptiveControl(start, 1, 1024), slots=thirty, seed=seed).run() for seed in SEEDS
    ]
    assert all(run.served == 3000 for run in runs)
    assert median(run.now for run in runs) / 100.0 <= 1.08
    assert max(run.refused for run in runs) / 3000 <= 0.02


@pytest.mark.parametrize("start", first_quick([64, 4, 16]))
def test_requests_that_overtake_each_other_mislead_nobody(start):
    """Of a burst on new connections any may be the one refused: the limit falls to the slots and
    not below."""
    runs = [
        Simulation(
            AdaptiveControl(start, 1, 1024),
            slots=thirty,
            seed=seed,
            way=lambda rng: rng.expovariate(50.0),
        ).run()
        for seed in SEEDS
    ]
    assert median(run.now for run in runs) / 100.0 <= 1.12  # 40 ms of each second are on the way
    assert max(run.refused for run in runs) / 3000 <= 0.02
    assert min(min(run.between(0.0, 90.0)) for run in runs) >= min(start, 29)


@pytest.mark.parametrize("start", [1, 4, 16])
def test_single_slot_keeps_the_limit_at_one_but_for_probes(start):
    """An endpoint that refuses every second request is asked for one at a time, and now and then
    for two."""
    run = Simulation(AdaptiveControl(start, 1, 1024), slots=lambda now: 1, chains=100, seed=1).run()
    assert set(run.between(1.0, run.now)) <= {1, 2}
    assert run.now / 400.0 <= 1.1
    assert run.refused <= start + 400 / 10


def test_refusal_sets_the_limit_one_below_what_was_in_flight():
    """And each of several that come together one lower, down to what stays; a late one from before
    changes nothing."""
    control = AdaptiveControl(64, 1, 1024)
    for in_flight in range(64, 30, -1):
        control.refused(1.0, 0.0, in_flight)
    assert control.limit == 30
    control.refused(2.0, 0.0, 45)
    assert control.limit == 30


def test_probes_stop_at_the_ceiling():
    """Slots that come back beyond it are none of its business."""
    control = AdaptiveControl(16, 1, 33)
    run = Simulation(control, slots=lambda now: 30 if now < 20.0 else UNBOUNDED, seed=1).run()
    assert max(limit for _, limit in run.limits) == 33
    assert run.between(60.0, run.now) == [33]


# What an endpoint merely delays


@pytest.mark.parametrize("start", [4, 16, 64])
@pytest.mark.parametrize("seed", first_quick([0, 1]))
def test_latency_without_throughput_stops_the_climb_and_takes_it_back(start, seed):
    """Beyond 64 in service this endpoint answers no more a second: the limit stays near, and work
    goes on as fast."""
    control = AdaptiveControl(start, 1, 4096)
    run = Simulation(control, chains=3000, seed=seed, slower=lambda n: max(1.0, n / 64)).run()
    whole = [limit for _, limit in run.limits]
    assert max(whole) <= 4 * 64
    assert median(held(run)) <= 2 * 64 + 16
    assert min(whole[whole.index(max(whole)) :]) <= 0.85 * max(whole)
    assert run.now <= 1.1 * 12000 / 64


def held(run: Simulation) -> list[int]:
    """The limit at each second."""
    return [run.between(second, second)[0] for second in range(int(run.now))]


@pytest.mark.parametrize("start", [1, 4, 16, 64])
def test_endpoint_that_serves_one_at_a_time_is_not_flooded(start):
    """It refuses nothing, but the nth in its queue takes n times as long: more at once is never
    worth it."""
    run = Simulation(AdaptiveControl(start, 1, 1024), chains=250, seed=1, slower=float).run()
    assert max(limit for _, limit in run.limits) <= 2 * max(start, 32)
    assert run.served == 1000


@pytest.mark.slow
@pytest.mark.parametrize("start", [1, 4, 64])
def test_endpoint_that_takes_everything_gets_the_ceiling_soon(start):
    """Noise in the latency is no reason to stop: from any start the ceiling is reached in some 20
    latencies."""
    for seed in SEEDS[:3]:
        run = Simulation(AdaptiveControl(start, 1, 256), chains=1500, seed=seed).run()
        assert run.first(0.0, lambda limit: limit == 256) <= 20.0


# What it never does


@pytest.mark.parametrize("start", [4, 16])
def test_limit_that_is_not_used_does_not_grow(start):
    """With fewer chains than slots nothing is learned about more, so nothing is claimed."""
    run = Simulation(AdaptiveControl(start, 1, 1024), chains=start - 1, length=50, seed=1).run()
    assert run.limits == [(0.0, start)]


STEPS = st.tuples(
    st.booleans(),
    st.floats(0.0, 5.0),
    st.floats(0.0, 30.0),
    st.integers(1, 100),
    st.booleans(),
    st.integers(1, 40),
)


@settings(max_examples=examples(60))
@given(st.integers(1, 40), st.integers(1, 10), st.integers(10, 60), st.lists(STEPS, max_size=60))
def test_floor_and_ceiling_are_kept_whatever_comes(start, floor, ceiling, steps):
    """Any mixture of answers and refusals, however odd their times and numbers; a start outside is
    brought inside."""
    control, now = AdaptiveControl(start, floor, ceiling), 0.0
    for answered, passed, seconds, in_flight, pressed, times in steps:
        assert floor <= control.limit <= ceiling
        now += passed
        for _ in range(times):
            if answered:
                control.answered(now, seconds, pressed)
            else:
                control.refused(now, seconds, in_flight)
    assert floor <= control.limit <= ceiling


@settings(max_examples=examples(60))
@given(st.integers(1, 60), st.lists(STEPS, max_size=60))
def test_fixed_limit_is_the_most_and_only_refusals_lower_it(limit, steps):
    """`--concurrency 7` is 7 whatever the latency says, never more, and less only after a 429."""
    control, now = FixedControl(limit), 0.0
    for answered, passed, seconds, in_flight, pressed, times in steps:
        now += passed
        for _ in range(times):
            if answered:
                control.answered(now, seconds, pressed)
            else:
                control.refused(now, seconds, in_flight)
        assert 1 <= control.limit <= limit
    if all(answered for answered, *_ in steps):
        assert control.limit == limit


@pytest.mark.parametrize(
    "make", [lambda: AdaptiveControl(16, 1, 1024), lambda: FixedControl(64)], ids=["auto", "64"]
)
@pytest.mark.parametrize("late", first_quick([1.0, 0.0, 0.2]))
def test_capacity_that_drops_and_returns_is_soon_used_again(make, late):
    """64 slots, 8 for ten seconds, and 64 again: 2,400 requests of half a second take 27.5 s at
    best.

    A 429 may come later than replies do. The limit is never below half of the least capacity of the
    last ten latencies.
    """

    def slots(now: float) -> int:
        return 8 if 5.0 <= now < 15.0 else 64

    runs = [
        Simulation(make(), slots=slots, chains=600, seed=seed, seconds=0.5, late=late).run()
        for seed in SEEDS[:5]
    ]
    assert median(run.now for run in runs) <= 1.2 * 27.5
    for run in runs:
        for at, limit in run.limits:
            least = min(slots(at), slots(max(0.0, at - 10 * 0.5)))
            assert limit >= least / 2 or at < 10 * 0.5
        assert min(run.between(20.0, run.now)) >= 32


def test_late_refusals_of_one_burst_halve_the_limit_at_most():
    """64 requests are sent at once, 8 are served, and the 429s of the others come after these
    replies."""
    control = AdaptiveControl(64, 1, 1024)
    for _ in range(8):
        control.answered(0.5, 0.5, True)
    for in_flight in range(56, 0, -1):
        control.refused(1.0, 1.0, in_flight)
    assert control.limit == 32


@pytest.mark.parametrize(("share", "most"), [(0.05, 1 / 0.9), (0.2, 1.25)])
@pytest.mark.parametrize("slots", first_quick([16, 8, 64]))
@pytest.mark.parametrize("bounded", [False, True])
def test_refusals_that_do_not_depend_on_load_cost_no_throughput(share, most, slots, bounded):
    """One try in twenty, or in five, is refused at any load: the work takes hardly longer than
    where none is, be the slots the ceiling or not."""

    def run(by_chance: float, seed: int) -> Simulation:
        control = AdaptiveControl(min(16, slots), 1, slots if bounded else 1024)
        return Simulation(
            control, slots=lambda now: slots, chains=25 * slots, seed=seed, by_chance=by_chance
        ).run()

    assert median(run(share, seed).now / run(0.0, seed).now for seed in SEEDS[:3]) <= most
