"""`--hedge`: requests far beyond the usual latency are sent a second time. In virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import anyio
import pytest

from harness.client.caller import PROBE, Caller
from harness.client.control import FixedControl
from harness.client.health import Limits
from harness.client.latency import MIN_REPLIES
from harness.client.limiter import Limiter, Slots
from harness.client.rates import Rates
from harness.client.transport import Received
from harness.errors import EndpointStopped, GaveUp, Rejected, TransportFault
from harness.extensions.hedging import EXTENSION, HEDGED, Hedge, hedging, multiple_of
from harness.extensions.hedging.hedging import Hedging, hedged
from harness.model import Completion, Reply
from harness.options.plan import Plan
from harness.store import log
from tests.support import virtual
from tests.support.chain_runs import USERS, Run
from tests.support.chains import Endpoint

USUAL, HEDGE = 2.0, 3.0
FIRST, SECOND = "first", "second"


class World:
    """An endpoint that takes `USUAL` seconds for a reply; `hangs` is awaited for the user `hangs`,
    with the number of its requests before."""

    def __init__(
        self, hangs: Callable[[int], Awaitable[None]], slots: int = 4, hedge: float = HEDGE
    ) -> None:
        self.hangs = hangs
        self.sent: list[tuple[str, float]] = []
        self.cancelled: list[float] = []
        self.warned: list[tuple[str, int]] = []
        self.in_flight = self.most = 0
        self.rates = Rates(600.0, None, 0.0)
        self.limiter = Limiter(Slots(FixedControl(slots), virtual.now, self.rates))
        self.caller = Caller(self, self.limiter, Limits(2, 900.0), probe=b"?", clock=virtual.now)
        self.caller.make_attempt = hedged(self.caller, hedge, self.caller.make_attempt)

    async def send(self, body: bytes, user: str = "") -> Received:
        name = body.decode()
        before = sum(one == name for one, _ in self.sent)
        self.sent.append((name, virtual.now()))
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            if name == "hangs":
                await self.hangs(before)
            else:
                await asyncio.sleep(USUAL)
        except asyncio.CancelledError:
            self.cancelled.append(virtual.now())
            raise
        finally:
            self.in_flight -= 1
        return Received(
            Completion(SECOND if before else FIRST, prompt_tokens=5, completion_tokens=1), "here"
        )

    async def ask(self, name: str) -> Reply:
        return await self.caller.complete(
            name.encode(), 1, name, lambda fault, n: self.warned.append((fault.kind, n))
        )

    async def usual(self, number: int = MIN_REPLIES) -> None:
        for _ in range(number):
            await self.ask("usual")

    def sent_by(self, name: str) -> list[float]:
        return [at for one, at in self.sent if one == name]


def seconds(first: float, second: float) -> Callable[[int], Awaitable[None]]:
    return lambda before: asyncio.sleep(second if before else first)


def played(
    hangs: Callable[[int], Awaitable[None]], then: Callable[[World], Awaitable[Any]], **world: Any
) -> World:
    async def main() -> World:
        made = World(hangs, **world)
        await made.usual()
        await then(made)
        assert (made.limiter.in_flight, made.in_flight, made.caller.stragglers()) == (0, 0, [])
        return made

    return virtual.run(main)


def test_second_try_wins_where_the_first_hangs():
    """It goes out after the multiple of the 99th percentile; the first is cancelled, and the
    seconds are its own."""

    async def then(world: World) -> None:
        start = virtual.now()
        reply = await world.ask("hangs")
        assert (reply.completion.text, reply.seconds, reply.tries) == (SECOND, USUAL, 2)
        assert virtual.now() - start == pytest.approx(HEDGE * USUAL + USUAL)
        assert world.sent_by("hangs")[1] - start == pytest.approx(HEDGE * USUAL)
        assert world.cancelled == [virtual.now()]

    world = played(seconds(500.0, USUAL), then)
    assert world.warned == [(HEDGED, 1), ("abandoned", 1)]
    assert (world.caller.traffic.notices[HEDGED], world.caller.traffic.requests) == (
        1,
        MIN_REPLIES + 2,
    )


def test_first_try_wins_where_it_is_whole_first():
    """The second is cancelled then."""

    async def then(world: World) -> None:
        assert (await world.ask("hangs")).completion.text == FIRST
        assert world.cancelled == [virtual.now()]

    played(seconds(HEDGE * USUAL + 1.0, 500.0), then)


@pytest.mark.parametrize(
    ("first", "hedge"), [(500.0, 0.0), (HEDGE * USUAL - 0.5, HEDGE)], ids=["off", "in time"]
)
def test_nothing_is_sent_twice_without_need(first, hedge):
    """Without --hedge never, and with it not what comes within the multiple."""
    world = played(seconds(first, USUAL), lambda world: world.ask("hangs"), hedge=hedge)
    assert (len(world.sent_by("hangs")), world.caller.traffic.notices[HEDGED], world.warned) == (
        1,
        0,
        [],
    )


def test_second_try_waits_for_a_slot_and_its_rate():
    """At a limit of one it never goes out, since the first try holds the slot; both count as
    requests of the rate."""
    world = played(seconds(50.0, USUAL), lambda world: world.ask("hangs"), slots=1)
    assert (len(world.sent_by("hangs")), world.most) == (1, 1)
    taken: list[float] = []

    async def then(world: World) -> None:
        take = world.rates.take
        world.rates.take = lambda tokens, now: (taken.append(now), take(tokens, now))[1]  # type: ignore[method-assign]
        await world.ask("hangs")

    played(seconds(50.0, USUAL), then)
    assert len(taken) == 2


@pytest.mark.parametrize("number", [0, 1], ids=["first", "second"])
def test_fault_of_one_try_waits_for_the_other(number):
    """Only where both have failed is the request tried again as after any fault."""

    async def hangs(before: int) -> None:
        if before == number:
            await asyncio.sleep(1.0 if before else HEDGE * USUAL + 1.0)
            raise TransportFault("http_503", "busy")
        await asyncio.sleep(HEDGE * USUAL + 3.0)

    world = played(hangs, lambda world: world.ask("hangs"))
    assert len(world.sent_by("hangs")) == 2
    assert world.cancelled == []


def test_faults_of_both_tries_are_a_failed_try():
    """Which is retried, and hedged again."""

    async def hangs(before: int) -> None:
        await asyncio.sleep(HEDGE * USUAL + 1.0)
        raise TransportFault("http_503", "busy")

    async def then(world: World) -> None:
        await virtual.all_of(world.usual(200), refused(world, GaveUp))

    world = played(hangs, then)
    assert len(world.sent_by("hangs")) == 6
    assert [kind for kind, _ in world.warned if kind != PROBE] == [HEDGED, "http_503"] * 3


async def refused(world: World, error: type[Exception]) -> list[None]:
    with pytest.raises(error):
        await world.ask("hangs")
    return []


@pytest.mark.parametrize(
    "error", [Rejected("http_400", "no"), EndpointStopped("no")], ids=["rejected", "stopped"]
)
def test_refusal_of_one_try_is_the_answer(error):
    """No other try would help: it does not wait for the other."""

    async def hangs(before: int) -> None:
        await asyncio.sleep(1.0 if before else 500.0)
        raise error

    world = played(hangs, lambda world: refused(world, type(error)))
    assert len(world.cancelled) == 1


def test_request_that_is_cancelled_takes_both_tries_with_it():
    """As at the end of a run; no slot is left taken."""

    async def then(world: World) -> None:
        task = asyncio.create_task(world.ask("hangs"))
        await asyncio.sleep(HEDGE * USUAL + 1.0)
        assert world.in_flight == 2
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert len(played(seconds(500.0, 500.0), then).cancelled) == 2


def test_what_hangs_among_the_first_requests_is_sent_again_too():
    """The usual latency is looked up again until enough replies say what it is."""

    async def main() -> None:
        world = World(seconds(500.0, USUAL))
        _, reply = await virtual.all_of(world.usual(), world.ask("hangs"))
        assert reply is not None and reply.completion.text == SECOND
        assert virtual.now() <= MIN_REPLIES * USUAL + HEDGE * USUAL + USUAL

    virtual.run(main)


# A run


def at(run: Run, multiple: float) -> Hedging:
    """Return the extension, and let the run have this multiple."""
    run.manifest.tuning["hedge"] = multiple  # type: ignore[typeddict-unknown-key]
    return Hedging(Hedge(hedge=multiple))


@pytest.mark.anyio
async def test_log_and_report_count_what_was_sent_a_second_time(tmp_path, monkeypatch):
    """With --hedge a request that hangs costs another one and no time; the log and the report count
    it."""
    monkeypatch.setattr(hedging, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(hedging, "LOOK_SECONDS", 0.01)

    async def hangs(user: str, before: int) -> None:
        if user == "用户5" and before == 0:
            await anyio.sleep_forever()

    run = Run(tmp_path)
    assert await run.play(Endpoint(hangs), hooks=[at(run, 20.0)]) is None
    events = [log.decode_line(line.text) for line in log.valid_lines(run.files.events)]
    hedged = [event["user_id"] for event in events if event["what"] == "hedged"]
    assert run.caller.at_once == 2  # may be billed while it is in flight
    assert "用户5" in hedged and run.manifest.tuning["hedged"] == len(hedged)
    assert any("--hedge" in note and f" {len(hedged)} " in note for note in run.report.notes)
    assert sorted(run.recorded) == sorted(USERS)


@pytest.mark.parametrize(
    ("asked", "before", "then"),
    [(None, 3.0, 3.0), (0.0, 3.0, None), (5.0, 3.0, 5.0), (5.0, None, 5.0)],
)
def test_resume_goes_on_as_the_run_began_unless_told_otherwise(tmp_path, asked, before, then):
    """0 is never."""
    old, new = (Run(tmp_path).manifest for _ in range(2))
    if before:
        old.tuning["hedge"] = before  # type: ignore[typeddict-unknown-key]
    assert EXTENSION.continues(old) == (before is not None)
    Hedging(Hedge(hedge=asked)).update_manifest(cast(Plan, None), new, old)
    assert new.tuning.get("hedge") == then


@pytest.mark.parametrize("value", ["3", None, -1, 10**9, [3]])
def test_what_another_program_wrote_sends_nothing_twice(tmp_path, value):
    manifest = Run(tmp_path).manifest
    manifest.tuning |= {"hedge": value, "hedged": value}  # type: ignore[typeddict-unknown-key]
    assert not EXTENSION.continues(manifest) and multiple_of(manifest) == 0.0
