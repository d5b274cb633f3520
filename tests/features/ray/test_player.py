"""A worker by itself, driven by messages; and how long it lives without a driver."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest

from harness.chat import Chat
from harness.cost import Rate
from harness.endpoint.quirks import Adapted
from harness.engine.transports import Listener, Route
from harness.errors import TransportFault
from harness.features.ray import messages as m
from harness.features.ray.player import LEASE_SECONDS, START_SECONDS, Lease, Player
from harness.model import JSON, Completion, Reply, RunUsage
from harness.store.log import seal, sound, unseal
from harness.store.run import response_line
from tests.features.ray.workers import TURN, Shared, importable, parts_of
from tests.support.chain_runs import Run
from tests.support.chains import Endpoint
from tests.support.virtual import VirtualLoop

LINE = orjson.dumps({"user_id": "一", "steps": 2})


class Alone:
    """A player and the endpoint that it sends to."""

    def __init__(self, folder: Path, endpoint: Endpoint, benchmark: type[Shared] = Shared) -> None:
        self.loop, contents = VirtualLoop(), dict[str, bytes]()
        parts = parts_of(Run(folder, {"一": 2}, benchmark=importable(benchmark)), contents)
        self.endpoint = endpoint
        self.player = Player(parts, contents, (1, 1), self.loop, self._connect, cpu=lambda: 0.0)

    async def _connect(
        self, route: Route, addresses: Any, clients: Any, listener: Listener, held: AsyncExitStack
    ) -> tuple[Adapted, Callable[[str], str]]:
        self.listener = listener
        return Adapted(self.endpoint), lambda user: ""

    def turn(self, *sent: m.ToWorker) -> list[m.ToDriver]:
        out = m.to_driver(self.player.turn(m.encode(sent), TURN))
        return [message for message in out if not isinstance(message, m.Worked | m.Running)]

    def asked(self) -> m.Ask:
        """Begin a play; return its first request."""
        [ask] = self.turn(play())
        assert isinstance(ask, m.Ask)
        return ask

    def close(self) -> None:
        self.player.close()
        self.loop.close()


def play(*saved: tuple[str, int, Completion], user: int = 1, line: bytes = LINE, ahead: int = 0) -> m.Play:
    return m.Play(user, 0, "weibo", "tasks.jsonl", 1, line, 1, 1, list(saved), Rate(), ahead)


def granted(ask: m.Ask) -> m.Granted:
    return m.Granted(ask.user, ask.request)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[list[Alone]]:
    made: list[Alone] = []
    yield made
    for one in made:
        one.close()


@pytest.fixture
def alone(tmp_path: Path, opened: list[Alone]) -> Alone:
    opened.append(Alone(tmp_path, Endpoint()))
    return opened[-1]


@pytest.fixture
def hanging(tmp_path: Path, opened: list[Alone]) -> Alone:
    async def hangs(user: str, before: int) -> None:
        await anyio.sleep_forever()

    opened.append(Alone(tmp_path, Endpoint(hangs)))
    return opened[-1]


def test_play_asks_sends_and_goes_on_once_each_reply_is_saved(alone: Alone) -> None:
    """Nothing is sent without a slot, and nothing goes on without a `Settled`."""
    first = alone.asked()
    assert (first.user, first.key, first.rank, first.nth) == (1, "一", 2, 0)
    assert alone.turn() == [] and not alone.endpoint.sent
    [replied] = alone.turn(granted(first))
    assert isinstance(replied, m.Replied) and replied.request == first.request
    assert alone.turn() == []
    [second] = alone.turn(m.Settled(first.request, None))
    assert isinstance(second, m.Ask) and second.rank == 1 and second.digest != first.digest
    [_] = alone.turn(granted(second))
    [ended] = alone.turn(m.Settled(second.request, Completion("另一个")))
    assert isinstance(ended, m.PlayEnded) and ended.line and ended.error is None
    assert unseal(ended.line)["replies"] == [unseal(replied.line)["completion"]["text"], "另一个"]


def test_reply_that_the_driver_has_needs_no_slot(alone: Alone) -> None:
    """It sent the request itself, or another run had saved the reply."""
    first = alone.asked()
    [second] = alone.turn(m.Settled(first.request, Completion("有的")))
    assert isinstance(second, m.Ask) and not alone.endpoint.sent


def test_saved_replies_are_used_and_not_asked_for(alone: Alone) -> None:
    """A play begins where it was when its worker was lost."""
    first = alone.asked()
    [second] = alone.turn(m.Cancel(1), play((first.digest, 0, Completion("存的")), ("没有", 0, Completion("")), user=2))
    assert isinstance(second, m.Ask) and (second.user, second.rank) == (2, 1)
    alone.turn(granted(second))
    [ended] = alone.turn(m.Settled(second.request, None))
    assert isinstance(ended, m.PlayEnded) and (ended.replayed, ended.unused) == (1, 1)


def test_slot_of_a_cancelled_play_comes_back_once(hanging: Alone) -> None:
    """Of a request in flight, of one that did not use it yet, and of one that is gone."""
    ask = hanging.asked()
    assert hanging.turn(granted(ask)) == []
    assert hanging.endpoint.on_the_wire == 1
    assert hanging.turn(m.Cancel(1)) == [m.GivenBack(1, ask.request)]
    assert hanging.endpoint.on_the_wire == 0
    assert hanging.turn(granted(ask)) == [m.GivenBack(1, ask.request)]
    again = hanging.asked()
    assert hanging.turn(granted(again), m.Cancel(1)) == [m.GivenBack(1, again.request)]
    assert hanging.turn(m.Cancel(1)) == [] and len(hanging.endpoint.sent) == 1


def test_play_that_is_cancelled_before_it_began_leaves_nothing(alone: Alone) -> None:
    """Its number is free again, and neither a request nor an end is reported."""
    assert alone.turn(play(), m.Cancel(1)) == []
    assert alone.turn(m.Cancel(1)) == []
    assert alone.asked().user == 1


def test_reply_to_a_cancelled_play_is_ignored(alone: Alone) -> None:
    """What is settled or refused late reaches nobody."""
    ask = alone.asked()
    assert alone.turn(m.Cancel(1), m.Settled(ask.request, None)) == []
    assert alone.turn(m.Refused(ask.request, m.packed(TransportFault("timeout", "")))) == []


@pytest.mark.parametrize("ahead", [0, 10_000])
def test_defect_while_sending_has_its_traceback_and_frees_the_slot(
    tmp_path: Path, opened: list[Alone], ahead: int
) -> None:
    """An error that nobody foresaw is the driver's to report, and the benchmark cannot catch it."""

    async def breaks(user: str, before: int) -> None:
        raise ZeroDivisionError("意外")

    opened.append(one := Alone(tmp_path, Endpoint(breaks)))
    [given_back, stopped] = one.turn(play(ahead=ahead)) if ahead else one.turn(granted(one.asked()))
    assert isinstance(stopped, m.Stopped) and stopped.error is None
    assert "ZeroDivisionError: 意外" in stopped.defect and "in breaks" in stopped.defect
    assert given_back == m.GivenBack(1, 0 if ahead else 1)


def test_line_that_is_no_task_stops_the_run_with_its_place(alone: Alone) -> None:
    """The error is that of the local engine, with file and line."""
    [stopped] = alone.turn(play(line=b'{"user_id": "1"}'))
    assert isinstance(stopped, m.Stopped) and stopped.error and stopped.error.name == "BadInput"
    assert "tasks.jsonl, line 1" in str(m.unpacked(stopped.error))


def test_findings_about_the_endpoint_are_reported(alone: Alone) -> None:
    """Quirks, replicas and used-up quotas are for the driver to act on."""
    alone.listener.learned("no_temperature", "不支持")
    alone.listener.replica("back")
    alone.listener.exhausted(5.0)
    assert alone.turn() == [m.Learned(0, "no_temperature", "不支持"), m.Noted(0, "back"), m.Exhausted(0, 5.0)]


class Talking(Shared):
    """Logs and warns."""

    async def play(self, given: JSON, chat: Chat) -> list[str]:
        self.logged.append("一行")
        self.warn("小心")
        return []


def test_lines_and_warnings_come_once(tmp_path: Path, opened: list[Alone]) -> None:
    """With the turn in which the benchmark wrote them."""
    opened.append(one := Alone(tmp_path, Endpoint(), Talking))
    [ended, logged] = one.turn(play())
    assert isinstance(ended, m.PlayEnded) and logged == m.Logged(0, ["一行"], ["小心"])
    assert one.turn() == []


def test_close_ends_plays_and_requests(tmp_path: Path) -> None:
    """Nothing is left on the wire, nor in the temporary folder."""

    async def hangs(user: str, before: int) -> None:
        await anyio.sleep_forever()

    one = Alone(tmp_path, Endpoint(hangs))
    one.turn(granted(one.asked()))
    one.close()
    assert one.endpoint.on_the_wire == 0
    assert asyncio.all_tasks(one.loop) == set()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_lease_is_over_after_its_seconds_without_a_turn() -> None:
    """From the end of the last turn on, however long that took."""
    clock = Clock()
    lease = Lease(clock)
    with lease.turn():
        clock.now += 5 * LEASE_SECONDS
        assert not lease.is_over
    clock.now += LEASE_SECONDS
    assert not lease.is_over
    clock.now += 0.001
    assert lease.is_over


def test_lease_before_the_first_turn_is_as_long_as_the_start_of_all_workers() -> None:
    """A worker that is ready at once waits for the one that is the last to start, as long as the driver does."""
    clock = Clock()
    lease = Lease(clock)
    clock.now = START_SECONDS + LEASE_SECONDS
    assert not lease.is_over
    clock.now += 0.001
    assert lease.is_over


def test_turn_that_fails_ends_too() -> None:
    """Its lease runs from then on."""
    clock = Clock()
    lease = Lease(clock)
    with pytest.raises(ZeroDivisionError), lease.turn():
        raise ZeroDivisionError
    clock.now = LEASE_SECONDS + 0.001
    assert lease.is_over


# Leased slots

MANY = 10_000
"""Bytes: more than any request here."""


def test_leased_slot_is_used_without_asking_and_its_reply_comes_sealed(alone: Alone) -> None:
    """Once: the next request needs another lease, which comes with the word that the reply is saved."""
    [first] = alone.turn(play(ahead=MANY))
    assert isinstance(first, m.Replied) and (first.user, first.key) == (1, "一")
    assert sound(first.line.rstrip(b"\n")) and first.line.endswith(b"\n")
    line = unseal(first.line)
    assert (line["user_id"], line["nth"], line["tries"], line["sent"]) == ("一", 0, 1, first.size)
    used = RunUsage(*first.used)
    assert (used.requests, used.prompt_tokens, used.completion_tokens, used.sent) == (1, 3, 2, first.size)
    assert alone.turn() == [] and len(alone.endpoint.sent) == 1
    [second] = alone.turn(m.Settled(first.request, None, MANY))
    assert isinstance(second, m.Replied)
    [ended] = alone.turn(m.Settled(second.request, None))
    assert isinstance(ended, m.PlayEnded) and ended.line
    replies = [unseal(one.line)["completion"]["text"] for one in (first, second)]
    assert unseal(ended.line)["replies"] == replies


def test_line_is_that_of_the_store(alone: Alone, tmp_path: Path) -> None:
    """To the byte, but for the seconds."""
    [replied] = alone.turn(play(ahead=MANY))
    assert isinstance(replied, m.Replied)
    line = unseal(replied.line)
    completion = Completion(**line["completion"])
    reply = Reply(completion, line["seconds"], 1, line["endpoint"], sent=replied.size)
    assert replied.line == seal(response_line("一", line["request"], 0, reply, 1, Rate()))


def test_request_that_is_too_large_for_its_lease_is_asked_for(alone: Alone) -> None:
    """Its bytes would not be in the log of what may be billed; the slot is free before."""
    [given_back, ask] = alone.turn(play(ahead=10))
    assert given_back == m.GivenBack(1) and isinstance(ask, m.Ask) and ask.failed is None
    assert not alone.endpoint.sent


class Waiting(Shared):
    """Waits before its first request."""

    async def play(self, given: JSON, chat: Chat) -> list[str]:
        await asyncio.sleep(3 * TURN)
        return await super().play(given, chat)


def test_leased_slots_that_are_not_in_use_are_given_back_on_demand(tmp_path: Path, opened: list[Alone]) -> None:
    """And by a play that is cancelled; each once."""
    opened.append(one := Alone(tmp_path, Endpoint(), Waiting))
    assert one.turn(play(ahead=MANY)) == []
    assert one.turn(m.Reclaim(0), m.Reclaim(0)) == [m.GivenBack(1)]
    assert one.turn(m.Cancel(1)) == []
    assert one.turn(play(user=2, ahead=MANY), m.Cancel(2)) == [m.GivenBack(2)]
    assert not one.endpoint.sent


def test_leased_slot_in_use_is_kept_until_its_request_has_ended(hanging: Alone) -> None:
    """It is no use to ask for it; a cancelled play gives it back."""
    assert hanging.turn(play(ahead=MANY)) == []
    assert hanging.turn(m.Reclaim(0)) == [] and hanging.endpoint.on_the_wire == 1
    assert hanging.turn(m.Cancel(1)) == [m.GivenBack(1)] and hanging.endpoint.on_the_wire == 0


def test_request_that_takes_long_is_told_of_once(hanging: Alone) -> None:
    """The driver has not heard of it."""
    [late] = [message for began in range(40) for message in hanging.turn(*[play(ahead=MANY)][began:])]
    assert isinstance(late, m.Late) and (late.user, late.key) == (1, "一") and late.seconds > 5.0


@pytest.mark.parametrize("ahead", [0, MANY])
def test_failed_try_is_told_with_its_request(tmp_path: Path, opened: list[Alone], ahead: int) -> None:
    """Which the driver then sends itself, or refuses; the play does not notice."""

    async def fails(user: str, before: int) -> None:
        raise TransportFault("http_503", "忙", retry_after=3.0)

    opened.append(one := Alone(tmp_path, Endpoint(fails)))
    [ask] = one.turn(play(ahead=ahead)) if ahead else one.turn(granted(one.asked()))
    assert isinstance(ask, m.Ask) and ask.failed and vars(m.unpacked(ask.failed))["retry_after"] == 3.0
    assert orjson.loads(ask.body)["messages"]
    [second] = one.turn(m.Settled(ask.request, Completion("好了")))
    assert isinstance(second, m.Ask) and second.failed is None


class Leaving(Shared):
    """Ends while a request of its is in flight."""

    async def play(self, given: JSON, chat: Chat) -> list[str]:
        Leaving.task = asyncio.create_task(self.asked(chat, given["user_id"], ""))
        await asyncio.sleep(TURN / 2)
        return []


def test_play_ends_after_its_request_in_flight(tmp_path: Path, opened: list[Alone]) -> None:
    """Whose slot comes back before."""

    async def lasts(user: str, before: int) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            await asyncio.sleep(TURN)

    opened.append(one := Alone(tmp_path, Endpoint(lasts), Leaving))
    assert one.turn(play(ahead=MANY)) == [] and one.endpoint.on_the_wire == 1
    [given_back, ended] = [*one.turn(), *one.turn()]
    assert given_back == m.GivenBack(1) and isinstance(ended, m.PlayEnded)
    assert one.endpoint.sent == ["一"] and one.endpoint.on_the_wire == 0
