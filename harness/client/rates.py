"""Rates of requests and tokens a minute, kept smoothly. Pure: the time is an argument.

A token bucket fills at its rate up to `BURST_SECONDS` of it. Tokens of a request are reserved by an
estimate when it is sent, and corrected when its usage is known; a bucket may be in debt by that,
and then admits no request until the debt is paid (docs/design.md, section 4).
"""

from __future__ import annotations

from harness.cost import BYTES_PER_TOKEN

BURST_SECONDS, REQUESTS_BURST_SECONDS = 1.0, 0.1
"""Seconds of the rate that may go at once: tokens come in lumps; few requests, so that no minute
has more than its number and one."""
FIRST_GUESS, MEMORY = 300.0, 100
"""Completion tokens of a short reply, before the first is known; replies over which their mean
forgets."""


class TokenBucket:
    """`per_minute` units a minute, of which so many `seconds` at once. Begins full."""

    def __init__(self, per_minute: float, now: float, seconds: float = BURST_SECONDS) -> None:
        self._rate = per_minute / 60.0
        self._capacity = max(1.0, self._rate * seconds)
        self._level = self._capacity
        self._at = now

    def wait(self, amount: float, now: float) -> float:
        """Return the seconds until `amount` may be taken. More than the capacity may be taken from
        a full bucket."""
        self._fill(now)
        missing = min(amount, self._capacity) - self._level
        return missing / self._rate if missing > 1e-9 else 0.0

    def take(self, amount: float, now: float) -> None:
        """Take an amount; a negative one returns what was reserved and not used."""
        self._fill(now)
        self._level -= amount

    def _fill(self, now: float) -> None:
        self._level = min(self._capacity, self._level + (now - self._at) * self._rate)
        self._at = max(self._at, now)


class Rates:
    """Both buckets of an endpoint; either may be without a limit."""

    def __init__(self, rpm: float | None, tpm: float | None, now: float) -> None:
        self._requests = TokenBucket(rpm, now, REQUESTS_BURST_SECONDS) if rpm else None
        self._tokens = TokenBucket(tpm, now) if tpm else None
        self._completion = FIRST_GUESS
        self._replies = 0

    def estimate(self, size: int) -> float:
        """Return the tokens that a request of so many bytes will use, prompt and completion."""
        return size / BYTES_PER_TOKEN + self._completion

    def wait(self, tokens: float, now: float) -> float:
        """Return the seconds until a request of about so many tokens may be sent."""
        seconds = self._requests.wait(1.0, now) if self._requests else 0.0
        if self._tokens:
            seconds = max(seconds, self._tokens.wait(tokens, now))
        return seconds

    def take(self, tokens: float, now: float) -> None:
        if self._requests:
            self._requests.take(1.0, now)
        if self._tokens:
            self._tokens.take(tokens, now)

    def correct(
        self, reserved: float, used: float | None, completion: float | None, now: float
    ) -> None:
        """Settle a reservation; `used` is None if the endpoint reported no usage, and 0 for a
        request that failed."""
        if completion is not None:
            self._replies += 1
            self._completion += (completion - self._completion) / min(self._replies, MEMORY)
        if self._tokens and used is not None:
            self._tokens.take(used - reserved, now)
