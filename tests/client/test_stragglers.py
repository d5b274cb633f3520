"""Requests far beyond the usual latency are named. In virtual time."""

from __future__ import annotations

import asyncio

import pytest

from harness.client.caller import Caller
from harness.client.control import FixedControl
from harness.client.health import Limits
from harness.client.latency import LEAST_BEYOND, MIN_REPLIES, Latency
from harness.client.limiter import Limiter, Slots
from harness.client.transport import Received
from harness.model import Completion
from tests.support import virtual


class Slow:
    """An endpoint that takes seconds for a reply, and longer for the user `hangs`."""

    async def send(self, body: bytes, user: str = "") -> Received:
        await asyncio.sleep(500.0 if user == "hangs" else 2.0)
        return Received(Completion("text"), "here")


def test_stragglers_are_named_with_their_seconds():
    """Those in flight far beyond the 99th percentile, the oldest first; none before enough replies
    are known."""

    async def main() -> None:
        caller = Caller(
            Slow(),
            Limiter(Slots(FixedControl(4), virtual.now)),
            Limits(2, 900.0),
            probe=b"?",
            clock=virtual.now,
        )

        async def ask(user: str) -> None:
            await caller.complete(b"", 1, user, lambda fault, number: None)

        first = asyncio.create_task(ask("hangs"))
        await asyncio.sleep(100.0)
        assert caller.stragglers() == []
        for _ in range(MIN_REPLIES):
            await ask("usual")
        second = asyncio.create_task(ask("hangs"))
        await asyncio.sleep(LEAST_BEYOND - 1.0)
        [(place, user, lasted)] = caller.stragglers()
        assert (place, user, lasted) == (1, "hangs", pytest.approx(virtual.now()))
        await asyncio.sleep(2.0)
        assert [place for place, *_ in caller.stragglers()] == [1, MIN_REPLIES + 2]
        first.cancel()
        second.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        assert caller.stragglers() == []

    virtual.run(main)


def test_far_beyond_is_a_multiple_of_the_tail():
    """And at least some seconds, so that fast endpoints are not warned of."""
    latency = Latency()
    for _ in range(MIN_REPLIES - 1):
        latency.add(30.0)
    assert (latency.tail, latency.beyond) == (None, None)
    latency.add(30.0)
    assert (latency.tail, latency.beyond) == (30.0, 120.0)
    for _ in range(1000):
        latency.add(0.01)
    assert latency.beyond == LEAST_BEYOND
