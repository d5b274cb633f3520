"""Budgets: what requests reserve, when they wait, where a run stops, and by how much a cap can be
exceeded."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.client.caller import Caller
from harness.client.control import FixedControl
from harness.client.health import Limits
from harness.client.limiter import Limiter, Slots
from harness.client.transport import Received
from harness.cost import SAFE_COMPLETION, Price, Reserved
from harness.errors import GaveUp, Rejected, TransportFault
from harness.extensions.budget import BudgetReached, Cap
from harness.extensions.budget.budgets import metered
from harness.extensions.budget.ledger import Ledger
from harness.extensions.budget.meter import MIN_REPLIES, Meter, SharedBudget
from harness.model import Completion
from tests.support import examples, virtual

PRICE = Price(currency="USD", prompt=Decimal(2), completion=Decimal(8), cached=Decimal(1))
FAULTS = {
    "http_503": TransportFault("http_503", "busy"),
    "timeout": TransportFault("timeout", "no whole reply"),
    "http_429": TransportFault("http_429", "slow down"),
    "connect": TransportFault("connect", "refused", unreachable=True),
    "rejected": Rejected("http_400", "bad"),
}
NOTHING_RESERVED = Reserved(Decimal(0), "USD", "")
BILLED = {"http_503", "timeout", "abandoned"}
"""What an endpoint may bill although no reply came."""


def received(prompt: int | None, completion: int | None, cached: int | None = None) -> Received:
    made = Completion(
        "好", prompt_tokens=prompt, completion_tokens=completion, cached_tokens=cached
    )
    return Received(made, "http://here/v1")


class InMemory(Ledger):
    """A ledger of this process alone, without a file."""

    today = ""

    def __init__(self) -> None:
        self._sums = {}

    def locked(self) -> Any:
        return nullcontext()

    def is_played(self, run: str) -> bool:
        return False

    def append(
        self, budget: str, run: str, day: str, amount: Decimal, reserved: Decimal = Decimal(0)
    ) -> None:
        before = self._sums.get((budget, run, day), (Decimal(0), Decimal(0)))
        self._sums[budget, run, day] = before[0] + amount, before[1] + reserved


def meter(cap: str = "5usd", most: int | None = None) -> Meter:
    made = Cap.parse(cap)
    return Meter(SharedBudget(made, InMemory()), None if made.unit == "tokens" else PRICE, most)


@pytest.mark.parametrize(
    ("text", "cap"),
    [
        ("5usd", Cap(Decimal(5), "USD")),
        ("0.50 CNY", Cap(Decimal("0.50"), "CNY")),
        ("2Mtok", Cap(Decimal(2_000_000), "tokens")),
        ("1.5ktok", Cap(Decimal(1500), "tokens")),
        ("3Gtok", Cap(Decimal(3_000_000_000), "tokens")),
        ("700 tokens", Cap(Decimal(700), "tokens")),
        ("5 USD each", Cap(Decimal(5), "USD", True)),
        ("20usd/day", Cap(Decimal(20), "USD", daily=True)),
        ("2Mtok / day each", Cap(Decimal(2_000_000), "tokens", True, True)),
    ],
)
def test_budget_is_read_in_its_units_and_again_from_its_own_words(text, cap):
    assert Cap.parse(text) == cap == Cap.parse(str(cap))


@pytest.mark.parametrize(
    "text",
    ["", "5", "usd", "0usd", "-1usd", "1e3usd", "nan usd", "5us", "5mtok", "5 usd a", "٥usd"],
)
def test_other_words_are_refused(text):
    with pytest.raises(ValueError, match="expected an amount"):
        Cap.parse(text)


def test_first_requests_reserve_a_token_a_byte_and_a_long_completion():
    """Before any reply nothing is known, so no tokenizer may exceed the estimate."""
    assert meter().estimate(1000) == PRICE.amount(1000, SAFE_COMPLETION)
    assert meter(most=50).estimate(1000) == PRICE.amount(1000, 50)
    assert meter("1Mtok").estimate(1000) == 1000 + SAFE_COMPLETION


def test_estimates_follow_the_replies_once_there_are_enough():
    """The largest ratio of tokens to bytes so far, and the 99th percentile of the last
    completions."""
    made = meter()
    for length in range(MIN_REPLIES):
        made.settle(NOTHING_RESERVED, 1000, received(300, 100 + length), None)
    made.settle(NOTHING_RESERVED, 1000, received(400, 50), None)
    assert made.estimate(2000) == PRICE.amount(800, 100 + MIN_REPLIES - 1)


def test_single_long_reply_of_many_is_no_measure_of_the_rest():
    made = meter()
    for length in [9000, *[100] * 200]:
        made.settle(NOTHING_RESERVED, 1000, received(300, length), None)
    assert made.estimate(1000) == PRICE.amount(300, 100)


def test_usage_settles_with_its_discount():
    """Cached tokens cost what the price says, as in the cost of the run."""
    made = meter()
    made.settle(NOTHING_RESERVED, 3000, received(1000, 10, cached=800), None)
    assert made.spent == made.budget.spent == PRICE.amount(1000, 10, 800)


def test_reply_without_usage_costs_the_most_that_it_may():
    """A token a byte for what is not reported, and for hidden thoughts what requests allow, or a
    long completion."""
    for most, out in ((None, SAFE_COMPLETION + len("好".encode())), (300, 300)):
        made = meter(most=most)
        made.settle(NOTHING_RESERVED, 1000, received(None, None), None)
        assert made.spent == PRICE.amount(1000, out)


@pytest.mark.parametrize("kind", sorted(FAULTS))
def test_failed_try_costs_its_reservation_unless_it_was_refused(kind):
    """4xx and what never reached the endpoint cost nothing; any other failure may have been
    billed."""
    made, fault = meter(), FAULTS[kind]
    assert made.budget.take(Decimal("0.5")) == ""
    made.settle(
        Reserved(Decimal("0.5"), "USD", ""),
        10,
        None,
        fault if isinstance(fault, TransportFault) else None,
    )
    assert made.spent == (Decimal("0.5") if kind in BILLED else 0)
    assert made.budget.reserved == 0


@pytest.mark.parametrize(
    ("cap", "spent", "words"),
    [
        ("5usd", "1.25", "budget 1.250 of 5.000 USD"),
        ("2Mtok", "12345", "budget 12.3k of 2.0M tokens"),
    ],
)
def test_display_has_what_is_spent(cap, spent, words):
    made = meter(cap)
    made.budget.carry("", Decimal(spent))
    assert made.load == (words,) and made.held_by == "budget"


def test_request_that_does_not_fit_waits_for_what_others_give_back():
    """It holds no slot meanwhile, is counted as waiting, and leaves nothing reserved if it is
    cancelled."""

    async def scene() -> None:
        made = meter("250tok", most=100)
        stage = Provider({50: (20, 10), 90: (50, 20), 10: (5, 5)}, random.Random(1), 0.0)
        limiter = Limiter(Slots(FixedControl(4), virtual.now))
        caller = Caller(stage, limiter, Limits(0, 900.0), probe=b"?", clock=virtual.now)
        caller.make_attempt = metered(caller, made, caller.make_attempt, print)
        tries = [
            asyncio.create_task(caller.complete(bytes(size), 1, "u", nobody))
            for size in (50, 90, 10)
        ]
        await asyncio.sleep(0.01)
        assert (made.waiting, made.budget.reserved, limiter.in_flight) == (2, Decimal(150), 1)
        tries[2].cancel()
        await asyncio.gather(*tries, return_exceptions=True)
        assert (made.spent, made.budget.reserved, made.waiting, limiter.in_flight) == (
            Decimal(100),
            Decimal(0),
            0,
            0,
        )

    virtual.run(scene)


def test_probe_counts_by_its_own_usage_and_teaches_nothing():
    """What goes out in a silence in the place of a request may be billed as any; later ones are
    larger than it."""

    async def scene() -> None:
        made = meter("250tok", most=100)
        stage = Provider({50: (20, 10), 1: (1, 1)}, random.Random(1), 0.0)
        failures = [TransportFault("http_424", "failed", billed=False)] * 3

        class Failing:
            async def send(self, body: bytes, user: str = "") -> Received:
                if len(body) > 1 and failures:
                    raise failures.pop()
                return await stage.send(body, user)

        limiter = Limiter(Slots(FixedControl(4), virtual.now))
        caller = Caller(Failing(), limiter, Limits(8, 900.0), probe=bytes(1), clock=virtual.now)
        caller.make_attempt = metered(caller, made, caller.make_attempt, print)
        await caller.complete(bytes(50), 1, "u", nobody)
        assert (made.spent, made.budget.reserved, limiter.in_flight) == (
            Decimal(2 + 30),
            Decimal(0),
            0,
        )
        assert caller.traffic.requests == 5
        assert made.estimate(50) == 150

    virtual.run(scene)


def test_group_reserves_for_as_many_as_fit_and_gives_back_what_was_not_taken():
    made = meter("250tok", most=100)
    held = made.reserve([20, 20, 5])
    assert [one.amount for one in held] == [Decimal(120), Decimal(120)] and made.reserve([20]) == []
    made.took("batch", held[0], 20, received(20, 10))
    made.took("batch", held[1], 20, FAULTS["rejected"])
    made.end("batch", held[0]._replace(amount=Decimal(240)))
    assert (made.spent, made.budget.spent, made.budget.reserved) == (
        Decimal(30),
        Decimal(30),
        Decimal(0),
    )
    made.budget.take(Decimal(220))
    made.budget.settle(Decimal(220), Decimal(220), "")
    with pytest.raises(BudgetReached):
        made.reserve([20])


def test_group_of_an_earlier_process_counts_in_its_own_unit():
    made = meter("250tok", most=100)
    for reserved in (None, Reserved(Decimal(9), "USD", ""), Reserved(Decimal(50), "tokens", "")):
        made.resume(reserved)
    assert made.budget.reserved == 50


def test_request_that_never_fits_ends_its_run_alone():
    """Of two runs on one budget the cheaper one goes on, and a budget of tokens needs no price."""

    async def scene() -> None:
        large = meter("1000tok", most=900)
        small = Meter(large.budget, None, 10)
        with pytest.raises(BudgetReached) as stopped:
            await large.room(200)
        assert stopped.value.exit_code == 5
        assert large.take(200) is None
        assert small.take(200) == Reserved(Decimal(210), "tokens", "")

    virtual.run(scene)


def nobody(fault: TransportFault, number: int) -> None:
    pass


@dataclass
class Counting(Meter):
    """A meter that keeps what tries took beyond their reservations; `takes` is what each size of
    body really takes."""

    takes: dict[int, Decimal]
    answered: list[Decimal] = field(default_factory=list)
    lost_excess: list[Decimal] = field(default_factory=list)
    billed: Decimal = Decimal(0)

    def __init__(
        self, budget: SharedBudget, price: Price | None, most: int | None, takes: dict[int, Decimal]
    ) -> None:
        super().__init__(budget, price, most)
        self.takes, self.answered, self.lost_excess, self.billed = takes, [], [], Decimal(0)

    def settle(
        self, reserved: Reserved, size: int, got: Received | None, fault: TransportFault | None
    ) -> None:
        super().settle(reserved, size, got, fault)
        taken = self.takes[size]
        if got is not None or (fault is not None and fault.kind in BILLED):
            self.billed += taken
            into = self.answered if got is not None else self.lost_excess
            into.append(max(Decimal(0), taken - reserved.amount))


@dataclass
class Provider:
    """Answers each body with tokens by its size, after some seconds; some tries fail, billed or
    not. The first does not: an endpoint that has never answered ends a run. A probe is free."""

    usage: dict[int, tuple[int, int]]
    rng: random.Random
    share: float
    has_answered: bool = False

    async def send(self, body: bytes, user: str = "") -> Received:
        await asyncio.sleep(self.rng.uniform(0.1, 30.0))
        if self.has_answered and self.rng.random() < self.share:
            raise FAULTS[self.rng.choice(sorted(FAULTS))]
        self.has_answered = True
        return received(*self.usage.get(len(body), (0, 0)))


CASES = {
    "seed": st.integers(0, 2**32),
    "currency": st.booleans(),
    "prices": st.tuples(*[st.decimals("0", "100", places=3)] * 2),
    "cap": st.decimals("0.001", "3", places=4),
    "slots": st.integers(1, 12),
    "share": st.sampled_from([0.0, 0.05, 0.4]),
    "most": st.sampled_from([None, None, 3000]),
    "growth": st.sampled_from([1.0, 1.05, 1.3]),
}


@settings(max_examples=examples(25))
@given(**CASES)
def test_cap_is_exceeded_by_no_more_than_the_stated_bound(**case):
    """By what the replies in flight at once take beyond their reservations, and lost tries beyond
    theirs; by nothing where all stay within. Each reply may be longer than any before."""
    ledger, took = played(**case)
    assert ledger.spent - ledger.lost == took


def played(
    seed: int,
    currency: bool,
    prices: tuple[Decimal, Decimal],
    cap: Decimal,
    slots: int,
    share: float,
    most: int | None,
    growth: float,
    prepare: Callable[[Caller], None] = lambda caller: None,
) -> tuple[Counting, Decimal]:
    """Play sixty requests against a cap, by a caller that is prepared; return what was counted, and
    what the replies took."""
    rng = random.Random(seed)
    price = Price(currency="USD", prompt=prices[0], completion=prices[1]) if currency else None
    sizes = range(200, 200 + 37 * 60, 37)
    longest = [
        min(most or 10**6, int(rng.uniform(0, 200) * growth**number)) for number in range(60)
    ]
    usage = {
        size: (round(size * rng.uniform(0.2, 1.0)), length)
        for size, length in zip(sizes, longest, strict=True)
    }
    takes = {size: price.amount(*of) if price else Decimal(sum(of)) for size, of in usage.items()}
    budget = SharedBudget(
        Cap(cap if currency else cap * 100_000, "USD" if currency else "tokens"), InMemory()
    )
    ledger = Counting(budget, price, most, takes)
    ends: list[object] = []

    async def ask(caller: Caller, size: int) -> None:
        try:
            await caller.complete(bytes(size), 1, str(size), nobody)
            ends.append(size)
        except (GaveUp, Rejected, BudgetReached) as error:
            ends.append(error)

    async def scene() -> None:
        limiter = Limiter(Slots(FixedControl(slots), virtual.now))
        limits = Limits(2, 10**9)
        provider = Provider(usage, rng, share)
        caller = Caller(
            provider, limiter, limits, probe=b"?", clock=virtual.now, sleep=asyncio.sleep, rng=rng
        )
        caller.make_attempt = metered(caller, ledger, caller.make_attempt, print)
        prepare(caller)
        await asyncio.gather(*[ask(caller, size) for size in sizes])

    virtual.run(scene)
    at_once = sum(sorted(ledger.answered)[-slots:], Decimal(0))
    assert ledger.billed <= budget.cap.amount + at_once + sum(ledger.lost_excess, Decimal(0))
    assert budget.reserved == 0 and len(ends) == 60
    replies = [size for size in ends if isinstance(size, int)]
    return ledger, sum((takes[size] for size in replies), Decimal(0))
