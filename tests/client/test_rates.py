"""Rates: smooth token buckets, reservations that are corrected, and requests that are spaced out by
them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.client.caller import Caller
from harness.client.control import FixedControl
from harness.client.health import Limits
from harness.client.limiter import Limiter, Slots
from harness.client.rates import BURST_SECONDS, BYTES_PER_TOKEN, Rates, TokenBucket
from harness.client.transport import Received
from harness.errors import TransportFault
from harness.model import Completion
from tests.support import virtual

TINY = 1e-6


def served(bucket: TokenBucket, asked: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """When each amount goes out, each asked for so many seconds after the one before went."""
    now, taken = 0.0, []
    for after, amount in asked:
        now += after
        now += bucket.wait(amount, now)
        assert bucket.wait(amount, now) <= TINY  # having waited as long as told is enough
        bucket.take(amount, now)
        taken.append((now, amount))
    return taken


ASKED = st.lists(st.tuples(st.floats(0.0, 3.0), st.floats(0.01, 1.0)), min_size=1, max_size=40)


# The bucket


@given(st.floats(1.0, 100_000.0), ASKED)
def test_no_window_admits_more_than_its_rate_and_one_burst(per_minute, asked):
    """Between any two requests, both included, no more goes out than the rate allows beside one
    bucket full."""
    rate = per_minute / 60.0
    burst = max(1.0, rate * BURST_SECONDS)
    taken = served(TokenBucket(per_minute, 0.0), [(after, share * burst) for after, share in asked])
    for first, (start, _) in enumerate(taken):
        admitted = 0.0
        for at, amount in taken[first:]:
            admitted += amount
            assert admitted <= (rate * (at - start) + burst) * (1 + TINY)


@given(st.floats(1.0, 100_000.0), ASKED)
def test_who_asks_without_pause_gets_the_whole_rate(per_minute, asked):
    """Smooth is not slow: beyond the first burst, nothing waits for longer than its amount takes to
    flow in."""
    rate = per_minute / 60.0
    burst = max(1.0, rate * BURST_SECONDS)
    taken = served(TokenBucket(per_minute, 0.0), [(0.0, share * burst) for _, share in asked])
    total = sum(amount for _, amount in taken)
    assert taken[-1][0] == pytest.approx(max(0.0, (total - burst) / rate), abs=TINY)


@given(st.floats(60.0, 100_000.0), st.lists(st.floats(0.1, 20.0), min_size=2, max_size=20))
def test_request_larger_than_the_bucket_goes_out_of_a_full_one_and_is_paid_after(per_minute, sizes):
    """It could never be had otherwise; whoever comes next waits until the debt is paid, so that the
    rate is kept."""
    rate = per_minute / 60.0
    burst = max(1.0, rate * BURST_SECONDS)
    taken = served(TokenBucket(per_minute, 0.0), [(0.0, size * burst) for size in sizes])
    before = 0.0
    for at, amount in taken:
        assert before + min(amount, burst) <= (rate * at + burst) * (1 + TINY)
        before += amount


def test_idle_hours_save_up_one_burst_and_no_more():
    """After a night at 600 a minute, ten go at once and the eleventh waits its tenth of a
    second."""
    bucket = TokenBucket(600.0, 0.0)
    taken = served(bucket, [(30_000.0, 1.0), *[(0.0, 1.0)] * 11])
    assert [at - 30_000.0 for at, _ in taken] == pytest.approx([0.0] * 10 + [0.1, 0.2])


def test_what_was_reserved_and_not_used_comes_back_up_to_a_full_bucket():
    """Giving back does not allow a larger burst than the bucket ever held."""
    bucket = TokenBucket(6000.0, 0.0)
    bucket.take(80.0, 0.0)
    bucket.take(-50.0, 0.0)
    assert bucket.wait(70.0, 0.0) == 0.0
    assert bucket.wait(71.0, 0.0) == pytest.approx(0.01)
    bucket.take(-500.0, 0.0)
    bucket.take(100.0, 0.0)
    assert bucket.wait(1.0, 0.0) == pytest.approx(0.01)


def test_debt_is_paid_before_anybody_goes():
    """A request that used more than it had reserved keeps the next one waiting, however small that
    is."""
    bucket = TokenBucket(6000.0, 0.0)
    bucket.take(100.0, 0.0)
    bucket.take(400.0, 0.0)  # the correction
    assert bucket.wait(1.0, 1.0) == pytest.approx(3.01)
    assert bucket.wait(1.0, 4.02) == 0.0


# Estimates


def test_estimate_is_the_prompt_and_what_completions_have_taken_so_far():
    """Bytes count for the prompt; the mean of the completions seen replaces the first guess from
    the first one on."""
    rates, body = Rates(None, 6000.0, 0.0), b"x" * 300
    prompt = 300 / BYTES_PER_TOKEN
    guess = rates.estimate(len(body)) - prompt
    assert guess > 0.0
    rates.correct(0.0, None, None, 0.0)
    assert rates.estimate(len(body)) == prompt + guess
    for completion in (10.0, 30.0):
        rates.correct(0.0, 0.0, completion, 0.0)
    assert rates.estimate(len(body)) == pytest.approx(prompt + 20.0)


def test_estimate_follows_completions_that_become_longer():
    """After thousands of short replies, some hundred long ones are enough to be believed."""
    rates = Rates(None, 6000.0, 0.0)
    for completion in [10.0] * 5000 + [500.0] * 500:
        rates.correct(0.0, 0.0, completion, 0.0)
    assert rates.estimate(0) > 450.0


@pytest.mark.parametrize(
    ("used", "wait"),
    [(20.0, 0.0), (0.0, 0.0), (150.0, 0.51), (None, 0.01)],
    ids=["less", "failed", "more", "unknown"],
)
def test_reservation_is_settled_by_what_was_used(used, wait):
    """Less or nothing: the rest is given back. More: a debt. Unknown: the reservation stands."""
    rates = Rates(None, 6000.0, 0.0)
    rates.take(100.0, 0.0)
    rates.correct(100.0, used, None, 0.0)
    assert rates.wait(1.0, 0.0) == pytest.approx(wait)


def test_slower_of_both_rates_counts():
    """Requests and tokens a minute are limits of their own; one alone leaves the other free."""
    both, requests, tokens = (
        Rates(60.0, 6000.0, 0.0),
        Rates(60.0, None, 0.0),
        Rates(None, 6000.0, 0.0),
    )
    for rates in (both, requests, tokens):
        rates.take(100.0, 0.0)
    assert (both.wait(100.0, 0.9), both.wait(50.0, 0.9)) == pytest.approx((0.1, 0.1))
    assert (
        both.wait(100.0, 0.0),
        requests.wait(100.0, 0.0),
        tokens.wait(50.0, 0.0),
    ) == pytest.approx((1.0, 1.0, 0.5))


# With the limiter, in virtual time


class Endpoint:
    """Notes when requests come; `script` says how each ends, after `seconds`."""

    def __init__(
        self, seconds: float, script: Callable[[int], Completion] = lambda number: Completion("好")
    ) -> None:
        self.times: list[float] = []
        self._seconds = seconds
        self._script = script

    async def send(self, body: bytes, user: str = "") -> Received:
        self.times.append(virtual.now())
        await asyncio.sleep(self._seconds)
        return Received(self._script(len(self.times)), "here")


def calls(
    endpoint: Endpoint, rates: Callable[[], Rates], users: int, slots: int, body: bytes = b"{}"
) -> Caller:
    """So many users with one request each, all at once, until all are settled."""

    async def main() -> Caller:
        limiter = Limiter(Slots(FixedControl(slots), virtual.now, rates()))
        caller = Caller(
            endpoint, limiter, Limits(8, 900.0), probe=b"?", clock=virtual.now, rng=random.Random(1)
        )

        await virtual.all_of(
            *(
                caller.complete(body, 1, str(user), lambda fault, tries: None)
                for user in range(users)
            )
        )
        return caller

    return virtual.run(main)


def test_retries_count_as_requests():
    """The endpoint counts them, so the rate does."""

    def every_second_fails(number: int) -> Completion:
        if number % 2:
            raise TransportFault("http_503", "busy")
        return Completion("好")

    endpoint = Endpoint(0.0, every_second_fails)
    caller = calls(endpoint, lambda: Rates(60.0, None, 0.0), users=10, slots=64)
    assert caller.traffic.requests == len(endpoint.times) == 20
    assert min(later - earlier for earlier, later in pairwise(endpoint.times)) >= 1.0 - TINY


def test_correction_shortens_a_wait_that_has_begun():
    """Who waits for tokens that were only reserved goes when they are given back, not when they
    would have flowed."""
    endpoint = Endpoint(
        0.25, lambda number: Completion("好", prompt_tokens=10, completion_tokens=10)
    )
    calls(endpoint, lambda: Rates(None, 600.0, 0.0), users=2, slots=8, body=b"x" * 3000)
    assert endpoint.times[1] == pytest.approx(
        2.0
    )  # 20 tokens at 10 a second; the 1,300 reserved would take minutes


def test_usage_that_is_more_than_reserved_slows_the_next_down():
    """Tokens a minute are kept by what was really used, however short the prompts look."""
    endpoint = Endpoint(
        0.1, lambda number: Completion("好", prompt_tokens=500, completion_tokens=500)
    )
    calls(endpoint, lambda: Rates(None, 60_000.0, 0.0), users=20, slots=1)
    used_before_the_last = 19 * 1000
    assert endpoint.times[-1] >= used_before_the_last / 1000.0 - BURST_SECONDS - TINY
    assert endpoint.times[-1] <= used_before_the_last / 1000.0 + BURST_SECONDS


def test_failed_tries_cost_no_tokens():
    """An endpoint that is busy has used none: what the try reserved is there for the next."""

    def first_four_fail(number: int) -> Completion:
        if number <= 4:
            raise TransportFault("http_503", "busy")
        return Completion("好", prompt_tokens=10, completion_tokens=10)

    endpoint = Endpoint(0.0, first_four_fail)
    calls(endpoint, lambda: Rates(None, 600.0, 0.0), users=1, slots=1, body=b"x" * 3000)
    assert len(endpoint.times) == 5
    assert (
        endpoint.times[-1] < 0.5 + 1.0 + 2.0 + 4.0 + TINY
    )  # the bounds of the jitter, and nothing beside


def test_who_waits_for_a_rate_is_said_to():
    """Slots are free, so it is not the limit that holds it."""

    async def main() -> None:
        limiter = Limiter(Slots(FixedControl(8), virtual.now, Rates(60.0, None, 0.0)))
        await limiter.acquire(1)
        waiting = asyncio.create_task(limiter.acquire(1))
        await asyncio.sleep(0.5)
        assert (limiter.in_flight, limiter.waiting, limiter.held_by) == (1, 1, "rate")
        await waiting
        assert virtual.now() == pytest.approx(1.0)
        assert limiter.held_by is None

    virtual.run(main)
