"""Several servers for one model: who gets a request, and who none, in virtual time; and two real
ones, one dying."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import anyio
import anyio.lowlevel
import orjson
import pytest

from harness.client import replicas as module
from harness.client.address import Address
from harness.client.caller import Caller
from harness.client.control import FixedControl
from harness.client.health import Limits
from harness.client.http import Client
from harness.client.limiter import Limiter, Slots
from harness.client.replicas import FIRST_PROBE, FULL_SECONDS, IN_A_ROW, LONGEST_PROBE, Replicas
from harness.client.replies import Denied
from harness.client.transport import Received
from harness.errors import EndpointStopped, HarnessError, MachineError, Rejected, TransportFault
from harness.model import Completion
from tests.support import virtual

GOOD = Completion("好")
CALL = {
    "model": "baseline/recency",
    "messages": [{"role": "user", "content": '从 ["狗", "猫"] 里选'}],
}


def refused() -> HarnessError:
    return TransportFault("connect", "refused", unreachable=True)


def busy() -> HarnessError:
    return TransportFault("http_503", "busy")


def full() -> HarnessError:
    return TransportFault("http_429", "too many")


def stopped() -> HarnessError:
    return EndpointStopped("no such model")


@dataclass
class Server:
    """Answers after `latency` virtual seconds, so many at once as `lanes` allow; refuses or fails
    as it is set to."""

    name: str
    latency: float = 1.0
    lanes: int | None = None
    holds: int | None = None
    fault: Callable[[], HarnessError] | None = None
    good: Completion = GOOD
    in_flight: int = 0
    most: int = 0
    refusals: int = 0
    sent: list[tuple[float, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._lane = asyncio.Semaphore(self.lanes or 10**6)

    async def send(self, body: bytes, user: str = "") -> Received:
        self.sent.append((virtual.now(), user))
        if self.holds is not None and self.in_flight >= self.holds:
            self.refusals += 1
            raise full()
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            if self.fault:
                raise self.fault()
            async with self._lane:
                await asyncio.sleep(self.latency)
        finally:
            self.in_flight -= 1
        if self.fault:  # it died meanwhile
            raise self.fault()
        return Received(self.good, self.name)

    @property
    def times(self) -> list[float]:
        return [at for at, _ in self.sent]


class Pair:
    """Two servers behind `Replicas`, and what was reported of them."""

    def __init__(self, a: Server | None = None, b: Server | None = None) -> None:
        self.a, self.b = a or Server("http://a/v1"), b or Server("http://b/v1")
        self.told: list[str] = []
        self.replicas = Replicas(
            [(one.name, one) for one in (self.a, self.b)], virtual.now, self.told.append
        )

    async def send(self, user: str = "") -> str:
        """Who answered."""
        return (await self.replicas.send(b"{}", user)).endpoint

    async def fault(self, user: str = "") -> HarnessError:
        with pytest.raises(HarnessError) as caught:
            await self.send(user)
        return caught.value

    async def outcome(self, user: str = "") -> str:
        """Who answered, or what went wrong."""
        try:
            return await self.send(user)
        except HarnessError as error:
            return str(error)

    def begin(self, number: int = 1) -> list[asyncio.Task[str]]:
        return [asyncio.create_task(self.outcome()) for _ in range(number)]


async def chains(pair: Pair, slots: int, lengths: Iterator[int]) -> tuple[Counter[str], int, int]:
    """Users one after the other in each slot, until none is left to begin.

    How many requests each server has answered by then; and, of all steps after a user's first, how
    many stayed on one replica, and how many there were.
    """
    users = enumerate(lengths)
    answered: Counter[str] = Counter()
    while_full: list[Counter[str]] = []
    stayed = steps = 0

    async def slot() -> None:
        nonlocal stayed, steps
        for user, length in users:
            last = None
            for _ in range(length):
                endpoint = await pair.send(str(user))
                answered[endpoint] += 1
                if last is not None:
                    steps, stayed = steps + 1, stayed + (endpoint == last)
                last = endpoint
        while_full.append(answered.copy())

    await virtual.all_of(*[slot() for _ in range(slots)])
    return while_full[0], stayed, steps


def lengths(users: int) -> Iterator[int]:
    rng = random.Random(5)
    return iter([rng.randint(3, 9) for _ in range(users)])


# Sharing


@pytest.mark.parametrize("slots", [8, 33])
@pytest.mark.parametrize(
    ("latencies", "lanes"),
    [((1.0, 3.0), (None, None)), ((1.0, 1.5), (None, None)), ((0.5, 0.5), (3, 1))],
    ids=["three times slower", "half slower again", "a third of the lanes"],
)
def test_replicas_share_the_requests_by_their_speeds_and_keep_their_users(latencies, lanes, slots):
    """Within 10 % of their speeds, whether latency or capacity makes one slow; most steps of a user
    stay on one."""

    async def main() -> tuple[Counter[str], int, int]:
        a, b = (
            Server(name, seconds, lane)
            for name, seconds, lane in zip("ab", latencies, lanes, strict=True)
        )
        return await chains(Pair(a, b), slots, lengths(12 * slots))

    answered, stayed, steps = virtual.run(main)
    speeds = [(lane or 1) / seconds for seconds, lane in zip(latencies, lanes, strict=True)]
    for name, speed in zip("ab", speeds, strict=True):
        assert answered[name] / answered.total() == pytest.approx(speed / sum(speeds), rel=0.1)
    assert stayed > 0.97 * steps


def test_rest_of_a_run_moves_over_to_the_replica_that_has_come_to_stand_idle():
    """Chains that began on a slow replica do not end there while a fast one has nothing to do."""

    async def main() -> tuple[float, int]:
        pair = Pair(Server("a", 1.0), Server("b", 10.0))
        await chains(pair, 8, iter([12] * 8))
        return virtual.now(), len(pair.b.sent)

    ended, slow = virtual.run(main)
    assert (
        ended < 60.0
    )  # 120 if they had stayed, 32 if all had moved when the first chain had ended
    assert slow < 20  # of 48


def test_user_stays_with_the_replica_that_served_it_last_until_another_is_clearly_better_off():
    """Of two equal ones it is not left for an idle one by a user alone there, but by one that finds
    it busy."""

    async def main() -> None:
        pair = Pair()
        assert await virtual.all_of(pair.send("u"), pair.send("v")) == [pair.a.name, pair.b.name]
        assert await pair.send("u") == pair.a.name
        assert await pair.send("v") == pair.b.name
        assert await virtual.all_of(pair.send("v"), pair.send("v")) == [pair.b.name, pair.a.name]

    virtual.run(main)


def test_replica_keeps_a_user_up_to_two_more_in_flight_than_the_least_loaded():
    """Beyond that the next step goes to the other one, which then is less far behind."""

    async def main() -> list[str]:
        pair = Pair()
        await virtual.all_of(pair.send("u"), pair.send("v"))
        return (await virtual.all_of(pair.send("u"), *[pair.send("v") for _ in range(6)]))[1:]

    b, a = "http://b/v1", "http://a/v1"
    assert virtual.run(main) == [b, b, b, b, a, b]


def test_the_one_request_there_is_goes_where_it_was_answered_faster():
    """With both idle the slower one is not asked, not even for a user that it served."""

    async def main() -> None:
        pair = Pair(Server("a", 3.0), Server("b", 1.0))
        assert await virtual.all_of(pair.send("u"), pair.send("v")) == ["a", "b"]
        assert await pair.send("w") == "b"
        assert await pair.send("u") == "b"
        assert await virtual.all_of(pair.send("u"), pair.send("u")) == [
            "b",
            "b",
        ]  # nor for one that finds b busy

    virtual.run(main)


def test_only_users_seen_lately_are_remembered(monkeypatch):
    """As many as the bound find their replica again; after twice as many a user is new: memory does
    not grow."""
    monkeypatch.setattr(module, "REMEMBERED", 4)

    async def main() -> None:
        pair = Pair()
        await virtual.all_of(pair.send("u"), pair.send("v"))
        for number in range(3):
            await pair.send(str(number))
        assert await pair.send("v") == pair.b.name
        for number in range(8):
            await pair.send(str(number))
        assert await pair.send("v") == pair.a.name  # the first of equals

    virtual.run(main)


# Full


def test_refusal_goes_to_a_replica_with_room_and_is_not_heard_of():
    """One that holds three gets no more than three for a while, then is tried again; no request
    fails, none waits."""

    async def main() -> None:
        pair = Pair(Server("a", 1.0, holds=3), Server("b", 1.0))
        assert Counter(await virtual.all_of(*[pair.send() for _ in range(20)])) == {"a": 3, "b": 17}
        first = pair.a.refusals
        assert Counter(await virtual.all_of(*[pair.send() for _ in range(20)])) == {"a": 3, "b": 17}
        assert (pair.a.refusals, pair.a.most) == (first, 3)
        await asyncio.sleep(FULL_SECONDS)
        pair.a.holds = 10
        assert Counter(await virtual.all_of(*[pair.send() for _ in range(20)])) == {
            "a": 10,
            "b": 10,
        }
        assert pair.a.refusals == first and not pair.told

    virtual.run(main)


def test_refusal_goes_up_where_all_are_full():
    """As it is, with the address in front, each replica having been asked once."""

    async def main() -> None:
        pair = Pair(Server("http://a/v1", holds=1), Server("http://b/v1", holds=1))
        taken = pair.begin(2)
        await anyio.lowlevel.checkpoint()
        fault = await pair.fault()
        assert (str(fault), virtual.now()) == ("http_429: http://b/v1: too many", 0.0)
        assert (len(pair.a.sent), len(pair.b.sent)) == (2, 2)
        await pair.fault()
        assert (
            len(pair.a.sent) + len(pair.b.sent) == 5
        )  # what is known to be full is not asked in turn
        await virtual.all_of(*taken)

    virtual.run(main)


def test_full_replica_is_passed_over_even_by_its_own_users():
    """And a request is refused at most once by each: the last refusal goes up, though there may be
    room again."""

    async def main() -> None:
        pair = Pair(Server("a", 1.0), Server("b", 3.0))
        await virtual.all_of(pair.send("u"), pair.send("v"), pair.send("w"))
        pair.a.holds = 1
        held = [asyncio.create_task(pair.send(user)) for user in ("u", "u")]
        await asyncio.sleep(0.5)
        held.append(asyncio.create_task(pair.send("w")))
        await anyio.lowlevel.checkpoint()
        assert (len(pair.a.sent), pair.a.refusals, len(pair.b.sent)) == (4, 1, 3)
        pair.b.fault = full
        assert await held[0] == "a"
        with pytest.raises(TransportFault, match="http_429: b: too many"):
            await held[1]
        assert await held[2] == "a"  # which had not refused this one

    virtual.run(main)


def test_answer_to_what_was_sent_before_a_refusal_lifts_no_bound():
    """It was sent among more, but of these some have ended since."""

    async def main() -> int:
        pair = Pair(Server("a"), Server("b"))
        begun = pair.begin(4)
        await anyio.lowlevel.checkpoint()
        pair.a.latency = pair.b.latency = 4.0
        begun += pair.begin(2)
        await asyncio.sleep(1.5)
        pair.a.holds = 1
        begun += pair.begin(2)  # one of them is refused by a, which has the last of three
        await asyncio.sleep(2.6)
        assert pair.a.refusals == 1 and begun[4].done() and begun[5].done()
        await asyncio.wait(pair.begin(6))
        return pair.a.refusals

    assert virtual.run(main) == 1


def test_answer_to_more_than_it_seemed_to_hold_shows_that_a_replica_holds_more():
    """Where all are full one of them is asked all the same: an answer lifts its bound at once."""

    async def main() -> list[str]:
        pair = Pair(Server("a", holds=1), Server("b", latency=100.0, holds=1))
        taken = pair.begin(2)
        await anyio.lowlevel.checkpoint()
        assert "too many" in await pair.outcome()
        pair.a.holds = None
        taken += pair.begin()
        await asyncio.sleep(1.5)
        taken += pair.begin(5)
        await asyncio.sleep(1.5)
        taken[1].cancel()
        return [task.result() for task in taken if task.done()]

    assert virtual.run(main) == ["a"] * 7


# Set aside


async def probes(pair: Pair, until: float) -> list[float]:
    """Seconds between the requests that the first server saw, with three sent at each quarter of a
    second."""
    while virtual.now() < until:
        await asyncio.sleep(0.25)
        pair.begin(3)
    return [later - earlier for earlier, later in pairwise(pair.a.times)]


def test_replica_that_takes_no_connection_is_set_aside_at_once_and_probed_until_it_answers():
    """One request at a time goes to it, after 1 s, doubling to 30 s; then it is back, each change
    is reported once."""

    async def main() -> None:
        pair = Pair(Server("http://a/v1", fault=refused))
        fault = await pair.fault()
        assert str(fault) == "connect: http://a/v1: refused"
        assert await probes(pair, 100.0) == [1, 2, 4, 8, 16, 30, 30] and (
            FIRST_PROBE,
            LONGEST_PROBE,
        ) == (1, 30)
        pair.a.fault = None
        assert (await probes(pair, 123.0))[7:9] == [
            30,
            1,
        ]  # nobody else goes there before the probe's answer
        assert {await pair.outcome(), await pair.outcome()} <= {"http://a/v1", "http://b/v1"}
        assert pair.told == [
            "http://a/v1 is set aside until it answers again (connect: refused)",
            "http://a/v1 is back",
        ]
        pair.a.fault = refused
        before = len(pair.a.times)
        while len(pair.told) < 3:
            await pair.outcome()
        assert len(pair.a.times) == before + 1
        assert (await probes(pair, virtual.now() + 4))[-2:] == [1, 2]  # it begins anew

    virtual.run(main)


@pytest.mark.parametrize(
    "kind", ["connection", "timeout", "stalled", "truncated", "http_502", "bad_json"]
)
def test_faults_in_a_row_set_a_replica_aside_and_an_answer_in_between_does_not(kind):
    """Three without an answer; what fails fast would otherwise draw all requests, having the fewest
    in flight."""

    async def main() -> list[int]:
        pair = Pair(Server("a"), Server("b", 1000.0))
        held = pair.begin(
            12
        )  # the slow one has six of them for long, so what comes later goes to the other
        await asyncio.sleep(1.5)
        told = []
        for good in (False, False, True, False, False, False, False):
            pair.a.fault = None if good else (lambda: TransportFault(kind, "no"))
            await asyncio.wait(pair.begin(), timeout=1.5)
            told.append(len(pair.told))
        assert pair.told == [f"a is set aside until it answers again ({kind}: no)"]
        for task in (*held, *asyncio.all_tasks() - {asyncio.current_task()}):
            task.cancel()
        return told

    assert IN_A_ROW == 3
    assert virtual.run(main) == [0, 0, 0, 0, 0, 1, 1]


def test_while_all_are_set_aside_each_request_goes_to_the_one_whose_probe_is_due_first():
    """None waits, and the faults go up as those of a single endpoint: then, and only then, as
    unreachable."""

    async def main() -> list[tuple[str, bool]]:
        pair = Pair(Server("a", fault=refused), Server("b", fault=refused))
        seen = []
        for at in (0.0, 0.5, 0.6, 1.0, 1.5, 2.9, 3.0):
            await asyncio.sleep(at - virtual.now())
            fault = await pair.fault()
            assert isinstance(fault, TransportFault) and virtual.now() == at
            seen.append((fault.detail.partition(":")[0], fault.unreachable))
        pair.b.fault = None
        await asyncio.sleep(0.5)
        assert await pair.send() == "b"
        assert await pair.send() == "b"
        return seen

    a, b = ("a", True), ("b", True)
    assert virtual.run(main) == [("a", False), b, a, a, b, a, a]


def test_users_of_a_replica_that_is_set_aside_go_elsewhere():
    """They do not wait for it to be back; one probe's refusal as a bad request shows that it is."""

    async def main() -> None:
        pair = Pair()
        await virtual.all_of(pair.send("u"), pair.send("v"))
        pair.a.fault = refused
        assert "refused" in await pair.outcome("w")
        assert await pair.outcome("u") == "http://b/v1"
        pair.a.fault = pair.b.fault = lambda: Rejected("http_400", "temperature")
        assert await pair.outcome("u") == "http_400: temperature"
        pair.b.fault = None
        assert pair.told[1:] == ["http://a/v1 is back"]

    virtual.run(main)


def test_replica_set_aside_for_good_is_not_probed_while_another_may_come_back():
    """Not even where the other has its probe under way."""

    async def main() -> None:
        pair = Pair(Server("a", fault=stopped), Server("b"))
        await pair.outcome()
        pair.b.fault = refused
        await pair.outcome()
        pair.b.fault = None
        assert await virtual.all_of(*pair.begin(3)) == ["b", "b", "b"]
        assert len(pair.a.sent) == 1

    virtual.run(main)


def test_user_whose_request_failed_is_sent_elsewhere_next():
    """Even where the one that failed it has fewest in flight, and answers others faster."""

    async def main() -> None:
        pair = Pair(Server("a", 1.0), Server("b", 3.0))
        await virtual.all_of(pair.send("u"), pair.send("v"))
        pair.a.fault = busy
        assert await pair.outcome("u") == "http_503: a: busy"
        other = pair.begin()  # where it can, it goes to a, too
        assert await pair.outcome("u") == "b"
        assert await other[0] == "http_503: a: busy"

    virtual.run(main)


# Stopped


@pytest.mark.parametrize(
    "make", [stopped, lambda: Denied("the endpoint refuses the key")], ids=["stopped", "denied"]
)
def test_replica_that_will_not_serve_is_set_aside_for_good_and_the_last_one_stops_the_run(
    make,
):
    """The first becomes a fault that is tried again elsewhere, reported once; when none is left the
    error goes up."""

    async def main() -> None:
        pair = Pair()
        early = pair.begin(4)
        await anyio.lowlevel.checkpoint()
        pair.a.fault = make
        outcomes = Counter(await virtual.all_of(*early))
        assert outcomes == {f"replica: http://a/v1: {make()}": 2, "http://b/v1": 2}
        while virtual.now() < 200.0:
            assert await pair.send() == "http://b/v1"
        assert pair.told == [f"http://a/v1 is set aside for good ({make()})"]
        pair.b.fault = make
        fault = await pair.fault()
        assert type(fault) is type(make()) and str(fault) == str(make())
        assert len(pair.told) == 2
        pair.a.fault = pair.b.fault = (
            None  # the caller above took it for a passing denial, and tries on
        )
        assert await pair.send() in ("http://a/v1", "http://b/v1")
        assert pair.told[2].endswith("is back")

    virtual.run(main)


def test_denial_after_answers_is_for_good_only_once_a_probe_confirms_it():
    """One passing 401 in a night costs a replica a second, not the rest of the run."""

    def denied() -> Denied:
        return Denied("the endpoint refuses the key")

    async def main() -> None:
        pair = Pair()
        await virtual.all_of(*pair.begin(4))
        pair.a.fault = denied
        outcomes = Counter(await virtual.all_of(*pair.begin(2)))
        assert outcomes[f"replica: http://a/v1: {denied()}"] == 1
        pair.a.fault = None
        while not pair.told[-1].endswith("is back"):
            assert await pair.send() in ("http://a/v1", "http://b/v1")
        pair.a.fault = denied
        while "for good" not in pair.told[-1]:
            await pair.outcome()
        assert [told.partition(" is ")[2].split(" (")[0] for told in pair.told] == [
            "set aside until it answers again",
            "back",
            "set aside until it answers again",
            "set aside for good",
        ]

    virtual.run(main)


def test_answer_to_what_was_sent_before_does_not_bring_a_stopped_replica_back():
    """It may have served another model by then."""

    async def main() -> None:
        pair = Pair(Server("a", 5.0), Server("b", 5.0))
        early = pair.begin(2)
        await asyncio.sleep(1)
        pair.a.fault = stopped
        while not pair.told:
            pair.begin()
            await anyio.lowlevel.checkpoint()
        pair.a.fault = None
        await virtual.all_of(*early)
        assert len(pair.told) == 1
        assert await virtual.all_of(pair.send(), pair.send()) == ["b", "b"]

    virtual.run(main)


@pytest.mark.parametrize(
    "error", [Rejected("http_400", "temperature"), MachineError("no file left")]
)
def test_what_is_not_the_replicas_doing_goes_up_as_it_is(error):
    """A bad request and this machine's faults set nobody aside, however often they come."""

    async def main() -> None:
        pair = Pair(Server("a", fault=lambda: error), Server("b", fault=lambda: error))
        for _ in range(9):
            assert await pair.fault() is error
        assert not pair.told

    words = str(error)
    virtual.run(main)
    assert str(error) == words


def test_address_is_not_told_twice():
    """A detail that names the replica already stays as it is."""

    async def main() -> str:
        here = TransportFault("http_500", "http://a/v1/chat/completions broke")
        return str(await Pair(Server("http://a/v1", fault=lambda: here)).fault())

    assert virtual.run(main) == "http_500: http://a/v1/chat/completions broke"


def test_cancelled_request_no_longer_counts():
    """Neither as in flight nor as the one probe that a replica may have."""

    async def main() -> None:
        pair = Pair(Server("a", 10.0), Server("b", 10.0))
        first, *_ = pair.begin(2)
        await anyio.lowlevel.checkpoint()
        first.cancel()
        await asyncio.wait([first])
        third, fourth = pair.begin(2)
        assert (await third, await fourth) == ("a", "a") or (pair.a.most, pair.b.most) == (1, 2)
        pair.a.fault = refused
        while not pair.told:
            await pair.outcome()
        pair.a.fault = None
        await asyncio.sleep(FIRST_PROBE)
        (probe,) = pair.begin()
        await anyio.lowlevel.checkpoint()
        assert pair.a.in_flight == 1
        probe.cancel()
        await asyncio.wait([probe])
        assert await pair.send() == "a"

    virtual.run(main)


# Real ones


@pytest.mark.anyio
async def test_replica_that_is_killed_in_the_middle_costs_no_request():
    """Two endpoints over loopback, one closed with requests in flight: each of these is settled by
    the other."""
    from tests.support.endpoint_double.app import Options, start

    told: list[str] = []
    first, second = await start(Options(latency=0.005)), await start(Options(latency=0.01))
    answered: Counter[str] = Counter()
    closing: list[asyncio.Task[None]] = []

    async def at_once(seconds: float) -> None:
        await anyio.lowlevel.checkpoint()

    async def user(caller: Caller, name: str) -> None:
        for step in range(6):
            body = orjson.dumps({**CALL, "user": f"{name}/{step}"})
            answered[
                (await caller.complete(body, 1, name, lambda fault, number: None)).endpoint
            ] += 1
            if answered.total() == 30:
                closing.append(asyncio.create_task(first.close()))

    async with (
        Client(Address(first.url), timeout=30, connections=16) as a,
        Client(Address(second.url), timeout=30, connections=16) as b,
    ):
        replicas = Replicas([(first.url, a), (second.url, b)], time.monotonic, told.append)
        limiter = Limiter(Slots(FixedControl(8), time.monotonic))
        caller = Caller(
            replicas, limiter, Limits(8, 60), probe=b"?", clock=time.monotonic, sleep=at_once
        )
        await virtual.all_of(*[user(caller, str(number)) for number in range(16)])
    await virtual.all_of(*closing, second.close())
    assert answered.total() == 16 * 6
    assert answered[first.url] >= 10 and answered[second.url] >= 60
    assert [line.partition(" (")[0] for line in told] == [
        f"{first.url} is set aside until it answers again"
    ]


# Refusals


@pytest.mark.parametrize("kind", ["rejected", "context_length"])
def test_what_one_replica_refuses_and_another_answers_is_answered(kind):
    """A server that was started with another context must not make empty answers of its share, or
    draw the others'."""

    async def main() -> None:
        pair = Pair(Server("a", 0.01), Server("b", 1.0))
        if kind == "rejected":
            pair.a.fault = lambda: Rejected("http_400", "no")
        else:
            pair.a.good = Completion("", "context_length")
        outcomes = Counter(await virtual.all_of(*(pair.send(f"u{n}") for n in range(40))))
        assert outcomes == {"b": 40}
        assert pair.told == ["a is set aside for a while: it refuses what others answer"]

    virtual.run(main)


def test_what_both_replicas_refuse_is_refused():
    """After each was asked once; nobody is set aside for it."""

    async def main() -> None:
        pair = Pair()
        pair.a.good = pair.b.good = Completion("", "context_length")
        for n in range(8):
            received = await pair.replicas.send(b"{}", f"u{n}")
            assert received.completion.finish_reason == "context_length"
        assert (len(pair.a.sent), len(pair.b.sent)) == (8, 8)
        assert pair.told == []

    virtual.run(main)


def test_refusal_after_a_full_replica_is_told_as_it_is():
    """The first is full, the second refuses: there is no third to ask."""

    async def main() -> None:
        pair = Pair()
        pair.a.fault = lambda: TransportFault("http_429", "busy")
        pair.b.fault = lambda: Rejected("http_400", "no")
        assert await pair.outcome("u") in ("http_400: no", "http_429: http://a/v1: busy")

    virtual.run(main)


def test_request_in_flight_is_found_at_its_replica():
    """By its user, while it is in flight; a straggler is named with the address that holds it."""

    async def main() -> None:
        gate = asyncio.Event()

        class Held:
            async def send(self, body: bytes, user: str = "") -> Received:
                await gate.wait()
                return Received(Completion("好"), "here")

        replicas = Replicas(
            [("http://a", Held()), ("http://b", Held())], virtual.now, lambda words: None
        )
        tasks = [asyncio.create_task(replicas.send(b"{}", user)) for user in ("甲", "乙")]
        await asyncio.sleep(1.0)
        assert sorted(map(replicas.where, ("甲", "乙"))) == ["http://a", "http://b"]
        gate.set()
        await asyncio.gather(*tasks)
        assert replicas.where("甲") == ""

    virtual.run(main)
