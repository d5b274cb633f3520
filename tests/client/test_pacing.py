"""Endpoints that ask to wait: they pace a run, and fail no user; in virtual time."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.client.caller import Caller
from harness.client.control import FixedControl
from harness.client.health import Limits
from harness.client.limiter import Limiter, Slots
from harness.client.transport import Received
from harness.errors import EndpointStopped, TransportFault
from harness.model import Completion
from tests.support import examples, virtual

SLOTS, RPM, TPM = 4, 60, 20_000
BUSY = TransportFault("http_429", "slow down")


@dataclass
class Account:
    """At most so many requests at once and so many requests and tokens in each minute; 429 without
    a time beyond.

    A request takes `seconds` and `tokens`.
    """

    seconds: float = 1.0
    tokens: int = 300
    in_service: int = 0
    refused: int = 0
    minute: int = -1
    requests: int = 0
    used: int = 0

    async def send(self, body: bytes, user: str = "") -> Received:
        if (minute := int(virtual.now() // 60)) != self.minute:
            self.minute, self.requests, self.used = minute, 0, 0
        if self.in_service >= SLOTS or self.requests >= RPM or self.used + self.tokens > TPM:
            self.refused += 1
            await asyncio.sleep(0.05)
            raise TransportFault("http_429", "slow down")
        self.in_service += 1
        self.requests += 1
        self.used += self.tokens
        await asyncio.sleep(self.seconds)
        self.in_service -= 1
        return Received(Completion("好"), "here")


class Late:
    """Answers, refuses once long afterwards, and answers."""

    requests = 0

    async def send(self, body: bytes, user: str = "") -> Received:
        self.requests += 1
        if self.requests == 2:
            await asyncio.sleep(1000.0)
            raise TransportFault("http_429", "slow down")
        return Received(Completion("好"), "here")


class Refusing:
    """Refuses whatever comes, with one fault."""

    def __init__(self, fault: TransportFault) -> None:
        self.fault = fault

    async def send(self, body: bytes, user: str = "") -> Received:
        await asyncio.sleep(0.05)
        raise TransportFault(self.fault.kind, self.fault.detail, retry_after=self.fault.retry_after)


@dataclass
class Played:
    """Users with chains of requests, all in play, until all are done; the first error ends it and
    is the `ending`."""

    endpoint: Account | Refusing | Late
    slots: int
    users: int
    steps: int
    max_retries: int = 8
    ending: Exception | None = None
    seconds: float = 0.0

    def __post_init__(self) -> None:
        virtual.run(self._main)

    async def _main(self) -> None:
        self.limiter = Limiter(Slots(FixedControl(self.slots), virtual.now))
        limits = Limits(self.max_retries, max_outage=900.0)
        self.caller = Caller(
            self.endpoint, self.limiter, limits, probe=b"?", clock=virtual.now, rng=random.Random(1)
        )
        try:
            await virtual.all_of(*(self._chain(str(user)) for user in range(self.users)))
        except EndpointStopped as error:
            self.ending = error
        self.seconds = virtual.now()

    async def _chain(self, user: str) -> None:
        for left in range(self.steps, 0, -1):
            await self.caller.complete(b"{}", left, user, lambda fault, number: None)


@settings(max_examples=examples(10), deadline=None)
@given(
    st.integers(1, 200),
    st.integers(0, 8),
    st.sampled_from([0.2, 1.0, 5.0]),
    st.sampled_from([100, 300, 900]),
)
def test_no_user_fails_at_any_fixed_concurrency(slots, max_retries, seconds, tokens):
    """429s without Retry-After for slots, requests and tokens a minute: everybody is served in the
    end."""
    played = Played(Account(seconds, tokens), slots, users=50, steps=2, max_retries=max_retries)
    assert played.ending is None
    assert played.caller.traffic.successes == 100


@pytest.mark.slow
@pytest.mark.parametrize("slots", [1, 4, 16, 64])
@pytest.mark.parametrize("seconds", [0.2, 1.0])
def test_account_that_counts_by_time_is_used_up_with_few_refusals(slots, seconds):
    """180 requests at 60 a minute, most of them at once: hardly two minutes, or the chain's own
    time at one slot."""
    account = Account(seconds)
    played = Played(account, slots, users=60, steps=3)
    assert played.seconds <= max(160.0, 180 * seconds / slots + 5.0)
    assert account.refused <= slots + 2 * 60


@pytest.mark.parametrize("users", [1, 2, 20])
@pytest.mark.parametrize(
    "fault",
    [BUSY, TransportFault("http_503", "busy", retry_after=5.0)],
    ids=["429", "503 with Retry-After"],
)
def test_endpoint_that_only_refuses_stops_the_run_and_fails_nobody(users, fault):
    """After `--max-outage` without any success, however few users there are."""
    played = Played(Refusing(fault), 4, users, steps=1, max_retries=1)
    assert isinstance(played.ending, EndpointStopped)
    assert played.ending.exit_code == 3
    assert 900.0 <= played.seconds <= 900.0 + 75.0


def test_single_refusal_long_after_the_last_success_stops_nothing():
    """A chain whose second reply takes longer than `--max-outage`, and then one refusal."""
    played = Played(Late(), 1, users=1, steps=2)
    assert played.ending is None
    assert played.caller.traffic.successes == 2
