"""Rates of requests and tokens a minute, kept smoothly. Pure: the time is an argument.

A token bucket fills at its rate up to `BURST_SECONDS` of it. Tokens of a request are reserved by an estimate when it
is sent, and corrected when its usage is known; a bucket may be in debt by that, and then admits nobody until it is
paid (docs/design.md, section 4).
"""

from __future__ import annotations

from dataclasses import dataclass

BURST_SECONDS, REQUESTS_BURST_SECONDS = 1.0, 0.1
"""Of the rate, at once: tokens come in lumps; of requests so few that no minute has more than its number, and one."""

BYTES_PER_TOKEN = 3.0
"""Of a request's body, for the estimate; Chinese text takes about three bytes a character and a token."""


class TokenBucket:
    """`per_minute` units a minute, of which so many `seconds` at once. Begins full."""

    def __init__(self, per_minute: float, now: float, seconds: float = BURST_SECONDS) -> None:
        self._rate = per_minute / 60.0
        self._capacity = max(1.0, self._rate * seconds)
        self._level = self._capacity
        self._at = now

    def wait(self, amount: float, now: float) -> float:
        """Seconds until `amount` may be taken. More than the bucket can hold may be taken when it is full."""
        self._fill(now)
        missing = min(amount, self._capacity) - self._level
        return missing / self._rate if missing > 1e-9 else 0.0

    def take(self, amount: float, now: float) -> None:
        """Takes an amount; a negative one gives back what was reserved and not used."""
        self._fill(now)
        self._level -= amount

    def _fill(self, now: float) -> None:
        self._level = min(self._capacity, self._level + (now - self._at) * self._rate)
        self._at = max(self._at, now)


@dataclass(slots=True)
class _Seen:
    """A running mean of completion tokens; the first guess is what a short reply takes."""

    mean: float = 300.0
    count: int = 0

    def add(self, tokens: float) -> None:
        self.count += 1
        self.mean += (tokens - self.mean) / min(self.count, 100)


class Rates:
    """Both buckets of an endpoint; either may be without a limit."""

    def __init__(self, rpm: float | None, tpm: float | None, now: float) -> None:
        self._requests = TokenBucket(rpm, now, REQUESTS_BURST_SECONDS) if rpm else None
        self._tokens = TokenBucket(tpm, now) if tpm else None
        self._completion = _Seen()

    def estimate(self, body: bytes) -> float:
        """Tokens that a request will take, prompt and completion."""
        return len(body) / BYTES_PER_TOKEN + self._completion.mean

    def wait(self, tokens: float, now: float) -> float:
        """Seconds until a request of about so many tokens may go out."""
        requests = self._requests.wait(1.0, now) if self._requests else 0.0
        return max(requests, self._tokens.wait(tokens, now) if self._tokens else 0.0)

    def take(self, tokens: float, now: float) -> None:
        if self._requests:
            self._requests.take(1.0, now)
        if self._tokens:
            self._tokens.take(tokens, now)

    def correct(self, reserved: float, used: float | None, completion: float | None, now: float) -> None:
        """Settles a reservation; `used` is None where the endpoint told no usage, and 0 for a request that failed."""
        if completion is not None:
            self._completion.add(completion)
        if self._tokens and used is not None:
            self._tokens.take(used - reserved, now)
