"""The limiter: how many, who first, when not, and that no slot is ever lost.

Order is forced by turns of the loop, and pauses pass in virtual time.
"""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.client.control import FixedControl
from harness.client.limiter import Limiter, Slots
from harness.client.rates import Rates
from harness.errors import TransportFault
from tests.support import virtual


def fixed(slots: int) -> Limiter:
    return Limiter(Slots(FixedControl(slots), asyncio.get_running_loop().time))


async def settle(turns: int = 4) -> None:
    """Lets every task that can go on go on; one that only passes a slot on needs two turns of the
    loop."""
    for _ in range(turns):
        await asyncio.sleep(0)


class Crowd:
    """Tasks that take a slot and note it, until they are asked to give it back."""

    def __init__(self, limiter: Limiter) -> None:
        self.limiter = limiter
        self.holding: list[str] = []
        self.order: list[str] = []
        self.most = 0
        self._leave: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def join(self, name: str, rank: int = 0) -> None:
        self._leave[name] = asyncio.Event()
        self._tasks[name] = asyncio.create_task(self._stay(name, rank))
        await settle()

    async def _stay(self, name: str, rank: int) -> None:
        await self.limiter.acquire(rank)
        self.holding.append(name)
        self.order.append(name)
        self.most = max(self.most, len(self.holding))
        try:
            await self._leave[name].wait()
        finally:
            self.holding.remove(name)
            self.limiter.release(0.0, None)

    async def leave(self, name: str) -> None:
        self._leave[name].set()
        await settle()

    def leave_soon(self, name: str) -> None:
        self._leave[name].set()

    def cancel(self, name: str) -> None:
        self._tasks[name].cancel()

    def names(self) -> list[str]:
        """Those that hold a slot or wait for one."""
        return [name for name, task in self._tasks.items() if not task.done()]

    async def end(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


@pytest.mark.anyio
async def test_no_more_than_the_limit_hold_a_slot():
    """Three of five get in; the counts say so."""
    limiter = fixed(3)
    crowd = Crowd(limiter)
    for name in "abcde":
        await crowd.join(name)
    assert crowd.holding == ["a", "b", "c"]
    assert (limiter.limit, limiter.in_flight, limiter.waiting) == (3, 3, 2)
    await crowd.end()
    assert (limiter.in_flight, limiter.waiting) == (0, 0)


@pytest.mark.anyio
async def test_highest_rank_goes_first_and_equals_in_the_order_they_came():
    """The user with most steps left must not wait behind short ones; equals are served fairly."""
    crowd = Crowd(fixed(1))
    await crowd.join("first")
    for name, rank in (("low1", 1), ("high1", 9), ("low2", 1), ("mid", 5), ("high2", 9)):
        await crowd.join(name, rank)
    for _ in range(6):
        await crowd.leave(crowd.holding[0])
    assert crowd.order == ["first", "high1", "high2", "mid", "low1", "low2"]


@pytest.mark.anyio
async def test_slot_given_back_goes_to_who_waits_and_not_to_who_comes():
    """A newcomer of the same turn cannot slip in before one that was handed the slot."""
    crowd = Crowd(fixed(1))
    await crowd.join("holder")
    await crowd.join("waiter", 1)
    crowd.leave_soon("holder")
    await crowd.join("newcomer", 99)
    assert crowd.order == ["holder", "waiter"]
    await crowd.end()


@pytest.mark.anyio
async def test_cancelled_waiter_leaves_the_queue_and_no_slot_is_lost():
    """Who is cancelled while waiting is neither counted nor served, and the next one is."""
    limiter = fixed(1)
    crowd = Crowd(limiter)
    await crowd.join("holder")
    await crowd.join("gone", 9)
    await crowd.join("stays", 1)
    crowd.cancel("gone")
    await settle()
    assert limiter.waiting == 1
    await crowd.leave("holder")
    assert crowd.order == ["holder", "stays"]
    await crowd.leave("stays")
    assert (limiter.in_flight, limiter.waiting) == (0, 0)


@pytest.mark.anyio
@pytest.mark.parametrize("granted_first", [True, False])
async def test_waiter_cancelled_at_the_very_moment_of_its_grant_passes_the_slot_on(
    granted_first,
):
    """Grant and cancellation in one turn of the loop, in either order: the slot goes to the next in
    line."""
    limiter = fixed(1)
    await limiter.acquire(0)
    crowd = Crowd(limiter)
    await crowd.join("gone", 9)
    await crowd.join("next", 1)
    if granted_first:
        limiter.release(0.0, None)
        crowd.cancel("gone")
    else:
        crowd.cancel("gone")
        limiter.release(0.0, None)
    await settle()
    assert crowd.order == ["next"]
    assert limiter.in_flight == 1
    await crowd.leave("next")
    assert limiter.in_flight == 0


@pytest.mark.anyio
async def test_last_waiter_cancelled_at_its_grant_frees_the_slot():
    """With nobody to pass it on to, the slot is free for whoever comes."""
    limiter = fixed(1)
    await limiter.acquire(0)
    crowd = Crowd(limiter)
    await crowd.join("gone")
    limiter.release(0.0, None)
    crowd.cancel("gone")
    await settle()
    assert (limiter.in_flight, limiter.waiting) == (0, 0)
    await limiter.acquire(0)
    assert limiter.in_flight == 1


@pytest.mark.anyio
async def test_after_close_nobody_gets_a_slot():
    """Neither who waits nor who comes later, though slots are free; they can only be cancelled."""
    limiter = fixed(2)
    crowd = Crowd(limiter)
    for name in "abc":
        await crowd.join(name)
    limiter.close()
    await crowd.leave("a")
    await crowd.leave("b")
    await crowd.join("late", 99)
    assert (limiter.in_flight, limiter.waiting) == (0, 2)
    assert crowd.order == ["a", "b"]
    await crowd.end()
    assert (limiter.in_flight, limiter.waiting) == (0, 0)


@pytest.mark.anyio
async def test_slot_granted_in_the_turn_of_the_close_is_given_back():
    """The request that stops a run gives its slot back first: whoever was handed it must not send
    any more."""
    limiter = fixed(1)
    crowd = Crowd(limiter)
    await crowd.join("stops the run")
    await crowd.join("waiter")
    crowd.leave_soon("stops the run")
    await asyncio.sleep(0)
    assert limiter.in_flight == 1  # handed over, not yet taken
    limiter.close()
    await settle()
    assert crowd.order == ["stops the run"]
    assert (limiter.in_flight, limiter.waiting) == (0, 1)
    await crowd.end()
    assert (limiter.in_flight, limiter.waiting) == (0, 0)


@given(st.integers(1, 4), st.integers(0, 2**32), st.booleans())
def test_any_schedule_keeps_the_limit_serves_everybody_and_loses_no_slot(limit, seed, closes):
    """Random comings, goings and cancellations, several in one turn of the loop: afterwards all
    slots are there."""
    asyncio.run(_random_schedule(limit, random.Random(seed), closes))


async def _random_schedule(limit: int, rng: random.Random, closes: bool) -> None:
    limiter = fixed(limit)
    crowd = Crowd(limiter)
    for number in range(40):
        if crowd.names() and rng.random() < 0.6:
            name = rng.choice(crowd.names())
            crowd.cancel(name) if rng.random() < 0.5 else crowd.leave_soon(name)
        else:
            await crowd.join(str(number), rng.randrange(3))
        if rng.random() < 0.5:
            await settle(100)
            assert limiter.in_flight == len(crowd.holding)
            assert (
                limiter.in_flight == limit or not limiter.waiting
            )  # no slot is idle while somebody waits
    await settle(100)
    if closes:
        limiter.close()
        before = list(crowd.order)
        for name in list(crowd.holding):
            crowd.leave_soon(name)
        await settle(100)
        assert (limiter.in_flight, crowd.order) == (0, before)
    while crowd.holding:
        crowd.leave_soon(crowd.holding[0])
        await settle(100)
    assert crowd.most <= limit
    assert closes or not crowd.names()
    await crowd.end()
    assert (limiter.in_flight, limiter.waiting) == (0, 0)


# Pauses, in virtual time


class Refusing(TransportFault):
    def __init__(self, retry_after: float | None) -> None:
        super().__init__("http_429", "slow down", retry_after=retry_after)


async def refuse(limiter: Limiter, times: int, retry_after: float | None) -> None:
    """So many requests go out one after the other, and each is refused at once."""
    for _ in range(times):
        await limiter.acquire(1)
        limiter.release(0.0, Refusing(retry_after))


def test_nothing_goes_out_in_a_pause_and_everything_after_it():
    """Slots are free, but nobody gets one before the time is over; then all that fit do, in the
    order of rank."""

    async def main() -> None:
        limiter = fixed(2)
        crowd = Crowd(limiter)
        limiter.pause(360.0)
        for rank in (1, 2, 3):
            await crowd.join(str(rank), rank)
        assert (crowd.holding, limiter.held_by) == ([], "pause")
        await asyncio.sleep(359.0)
        assert crowd.holding == []
        await asyncio.sleep(1.1)
        assert (crowd.holding, limiter.held_by) == (["3", "2"], "limit")
        await crowd.end()

    virtual.run(main)


def test_longest_of_several_pauses_counts():
    """A shorter one that is announced later does not end a longer one; a longer one prolongs it."""

    async def main() -> list[float]:
        limiter, ends = fixed(1), []
        for pauses in ((10.0, 1.0), (1.0, 10.0)):
            began = virtual.now()
            limiter.pause(pauses[0])
            waiting = asyncio.create_task(limiter.acquire(1))
            await settle()
            limiter.pause(pauses[1])
            await waiting
            limiter.release(0.0, None)
            ends.append(virtual.now() - began)
        return ends

    assert virtual.run(main) == pytest.approx([10.0, 10.0])


def test_pause_is_not_shortened_for_those_who_come_after_a_shorter_one():
    """Two replies tell of a reset; the nearer one comes last."""

    async def main() -> float:
        limiter = fixed(1)
        limiter.pause(10.0)
        limiter.pause(1.0)
        await limiter.acquire(1)
        return virtual.now()

    assert virtual.run(main) == pytest.approx(10.0)


@pytest.mark.parametrize("slots", [1, 5])
def test_more_refusals_in_a_row_than_slots_pause_everybody_for_retry_after(slots):
    """An endpoint that refuses more than it could ever hold counts by time: whoever comes next
    waits, too."""

    async def main() -> tuple[float, float]:
        limiter = fixed(slots)
        await refuse(limiter, slots, 30.0)
        before = virtual.now()
        await refuse(limiter, 1, 30.0)
        await limiter.acquire(1)
        return before, virtual.now()

    assert virtual.run(main) == pytest.approx((0.0, 30.0))


@pytest.mark.parametrize("retry_after", [30.0, None, 0.0])
def test_refusals_with_an_answer_between_pause_nobody(retry_after):
    """While some are answered, a refusal is about the number in flight."""

    async def main() -> float:
        limiter = Limiter(Slots(Noting(3), virtual.now))
        for _ in range(5):
            await refuse(limiter, 3, retry_after)
            await limiter.acquire(1)
            limiter.release(0.0, None)
        await limiter.acquire(1)
        return virtual.now()

    assert virtual.run(main) == 0.0


@pytest.mark.parametrize("retry_after", [None, 0.0])
def test_refusals_without_a_time_pause_everybody_longer_and_longer_until_an_answer(
    retry_after,
):
    """An endpoint that counts by time need not say so: the pauses double, and an answer ends
    them."""

    async def main() -> tuple[float, float, float]:
        limiter = Limiter(Slots(Noting(3), virtual.now))
        await limiter.acquire(1)
        await refuse(limiter, 3, retry_after)
        before = virtual.now()
        await refuse(limiter, 4, retry_after)
        during = virtual.now()
        limiter.release(during, None)
        await limiter.acquire(1)
        return before, during, virtual.now()

    assert virtual.run(main) == (0.0, 0.5 + 1.0 + 2.0, 0.5 + 1.0 + 2.0)


# Outages, in virtual time


def test_probes_go_out_one_at_a_time_and_apart():
    """However many slots there are, one request is on the wire, and the next only when it is
    time."""

    async def main() -> list[tuple[str, float]]:
        limiter, sent = fixed(8), []

        async def fails(name: str, wait: float) -> None:
            is_alone = await limiter.acquire(1)
            sent.append((name, virtual.now()))
            assert (limiter.in_flight, limiter.limit) == (1, 1)
            await asyncio.sleep(0.5)
            limiter.probe(wait)
            limiter.release(0.5, TransportFault("http_503", "down"), is_alone)

        limiter.probe(1.0)
        await virtual.all_of(
            *(fails(name, wait) for name, wait in (("a", 2.0), ("b", 4.0), ("c", 8.0)))
        )
        return sent

    sent = virtual.run(main)
    assert [name for name, _ in sent] == ["a", "b", "c"]
    assert [at for _, at in sent] == pytest.approx([1.0, 3.5, 8.0])


def test_no_request_is_every_probe():
    """One that always fails must not keep an outage going by its rank: probes go out in the order
    they came."""

    async def main() -> list[str]:
        limiter, sent = fixed(8), []

        async def fails(name: str, rank: int) -> None:
            for _ in range(3):
                is_alone = await limiter.acquire(rank)
                sent.append(name)
                limiter.probe(1.0)
                limiter.release(0.0, TransportFault("http_503", "down"), is_alone)

        limiter.probe(1.0)
        await virtual.all_of(fails("low", 1), fails("high", 9), fails("mid", 5))
        return sent

    assert virtual.run(main) == ["low", "high", "mid"] * 3


def test_recovery_lets_everybody_go_at_once_and_by_rank_again():
    """The slots are what they were, and no pause is left over from the outage or before it."""

    async def main() -> None:
        limiter = fixed(2)
        crowd = Crowd(limiter)
        limiter.pause(600.0)
        limiter.probe(5.0)
        for rank in (1, 2, 3):
            await crowd.join(str(rank), rank)
        assert (crowd.holding, limiter.held_by, limiter.limit) == ([], "outage", 1)
        limiter.recover()
        await settle()
        assert (crowd.holding, limiter.held_by, limiter.limit) == (["3", "2"], "limit", 2)
        assert virtual.now() == 0.0
        await crowd.end()

    virtual.run(main)


def test_ranks_hold_after_probes_have_left_the_queue_from_its_middle():
    """Whoever was not a probe is served in the order of rank as if there had been no outage."""

    async def main() -> list[int]:
        limiter, order = fixed(1), []

        async def take(rank: int) -> None:
            is_alone = await limiter.acquire(rank)
            order.append(rank)
            if len(order) <= 10:
                limiter.probe(1.0)
                limiter.release(0.0, TransportFault("http_503", "down"), is_alone)
                return
            if len(order) == 11:
                limiter.recover()
            limiter.release(0.0, None)

        limiter.probe(1.0)
        ranks = list(range(1, 60))
        random.Random(5).shuffle(ranks)
        await virtual.all_of(*map(take, ranks))
        assert order[:11] == ranks[:11]
        return order[11:]

    order = virtual.run(main)
    assert order == sorted(order, reverse=True)


# What the display is told


def test_reason_is_told_only_while_somebody_waits():
    """A pause that nobody meets, or slots that are all taken and wanted by nobody, hold nobody
    back."""

    async def main() -> None:
        limiter = fixed(1)
        limiter.pause(5.0)
        assert limiter.held_by is None
        await limiter_after(5.0, limiter)
        assert (limiter.in_flight, limiter.held_by) == (1, None)
        waiting = asyncio.create_task(limiter.acquire(1))
        await settle()
        assert limiter.held_by == "limit"
        limiter.close()
        assert limiter.held_by == "stopping"
        waiting.cancel()
        await settle()
        assert limiter.held_by is None

    async def limiter_after(seconds: float, limiter: Limiter) -> None:
        await asyncio.sleep(seconds)
        await limiter.acquire(1)

    virtual.run(main)


# What an adaptive limit is told


class Noting:
    """A control that writes down what it gets."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.answers: list[tuple[float, float, bool]] = []
        self.refusals: list[tuple[float, int]] = []

    def answered(self, now: float, seconds: float, pressed: bool) -> None:
        self.answers.append((now, seconds, pressed))

    def refused(self, now: float, seconds: float, in_flight: int) -> None:
        self.refusals.append((now, in_flight))


def test_control_is_told_of_refusals_by_what_is_in_flight_when_they_come():
    """The first request of a burst may be the one that is refused, so the number as which it went
    says nothing."""

    async def main() -> None:
        control = Noting(8)
        limiter = Limiter(Slots(control, virtual.now))
        for _ in range(8):
            await limiter.acquire(1)
        limiter.release(0.1, Refusing(None))
        limiter.release(0.2, TransportFault("http_503", "busy"))
        limiter.release(0.3, Refusing(None))
        limiter.release(0.4, None)
        assert control.refusals == [(0.0, 8), (0.0, 6)]
        assert [seconds for _, seconds, _ in control.answers] == [0.4]

    virtual.run(main)


def test_control_is_told_whether_its_limit_holds_the_work_back():
    """Pressed is who fills every slot or has somebody waiting; a limit that is not used must not
    grow."""

    async def main() -> None:
        control = Noting(2)
        limiter = Limiter(Slots(control, virtual.now))
        await limiter.acquire(1)
        limiter.release(1.0, None)  # one of two
        await limiter.acquire(1)
        await limiter.acquire(1)
        limiter.release(1.0, None)  # two of two
        limiter.pause(5.0)
        waiting = asyncio.create_task(limiter.acquire(1))
        await settle()
        limiter.release(1.0, None)  # one of two, and one waits
        assert [pressed for *_, pressed in control.answers] == [False, True, True]
        await waiting

    virtual.run(main)


# Several runs on one account's slots


@pytest.mark.anyio
async def test_limiters_on_the_same_slots_share_them_by_rank():
    """Together they hold no more than there are; a slot that comes free goes to the highest rank of
    any of them."""
    slots = Slots(FixedControl(2), asyncio.get_running_loop().time)
    one, other = Crowd(Limiter(slots)), Crowd(Limiter(slots))
    await one.join("a")
    await other.join("b")
    await one.join("low", 1)
    await other.join("high", 5)
    await other.join("middle", 3)
    assert (one.holding, other.holding, slots.in_flight) == (["a"], ["b"], 2)
    await one.leave("a")
    assert other.holding == ["b", "high"]
    await other.leave("b")
    assert other.holding == ["high", "middle"]
    await other.leave("high")
    assert one.holding == ["low"]
    assert (one.limiter.in_flight, other.limiter.in_flight, slots.in_flight) == (1, 1, 2)
    await one.end()
    await other.end()


@pytest.mark.anyio
@pytest.mark.parametrize("held", ["probing", "closed", "paused"])
async def test_limiter_that_is_held_back_holds_no_other_back(held):
    """A pause, an outage and the end of one run are its own: its waiting requests block no one
    else's."""
    slots = Slots(FixedControl(2), asyncio.get_running_loop().time)
    one, other = Crowd(Limiter(slots)), Crowd(Limiter(slots))
    match held:
        case "probing":
            one.limiter.probe(1e6)
        case "closed":
            one.limiter.close()
        case _:
            one.limiter.pause(1e6)
    await one.join("waits", 9)
    await other.join("a")
    await other.join("b")
    assert (one.holding, other.holding) == ([], ["a", "b"])
    await other.join("c")
    await other.leave("a")
    assert other.holding == ["b", "c"]
    await one.end()
    await other.end()


@pytest.mark.anyio
async def test_probe_of_an_outage_waits_for_a_slot_like_anybody():
    """The one request that an outage lets out takes one of the shared slots, and no second follows
    it."""
    slots = Slots(FixedControl(2), asyncio.get_running_loop().time)
    one, other = Crowd(Limiter(slots)), Crowd(Limiter(slots))
    one.limiter.probe(0.0)
    await one.join("probe")
    await one.join("next")
    await other.join("a")
    await other.join("b")
    assert (one.holding, other.holding) == (["probe"], ["a"])
    await other.leave("a")
    assert other.holding == ["b"]
    assert one.limiter.held_by == "outage"
    one.limiter.recover()
    await other.leave("b")
    assert one.holding == ["probe", "next"]
    await one.end()
    await other.end()


def test_request_that_waits_for_tokens_is_not_overtaken_from_another_run():
    """Small requests of one run could otherwise keep a large one of another waiting for ever."""

    async def main() -> None:
        slots = Slots(
            FixedControl(9), virtual.now, Rates(None, 6000.0, virtual.now())
        )  # 100 a second, 100 at most
        large, small = Limiter(slots), Limiter(slots)
        order: list[str] = []

        async def take(limiter: Limiter, name: str, tokens: float) -> None:
            await limiter.acquire(1, tokens)
            order.append(name)
            limiter.release(0.0, None)

        await take(small, "first", 50.0)
        waiting = asyncio.create_task(take(large, "large", 90.0))
        await settle()
        await asyncio.gather(waiting, *(take(small, f"small {n}", 10.0) for n in range(3)))
        assert order == ["first", "large", "small 0", "small 1", "small 2"]

    virtual.run(main)


@pytest.mark.anyio
async def test_probe_of_one_run_does_not_wait_behind_the_others():
    """Whether an endpoint is back is found out by one request: it goes first, whatever its rank."""
    slots = Slots(FixedControl(1), asyncio.get_running_loop().time)
    one, other = Crowd(Limiter(slots)), Crowd(Limiter(slots))
    one.limiter.probe(0.0)
    await other.join("a", 9)
    await other.join("b", 9)
    await one.join("probe", 1)
    await other.leave("a")
    assert (one.holding, other.holding) == (["probe"], [])
    await one.leave("probe")
    assert other.holding == ["b"]
    await one.end()
    await other.end()
