"""How many requests may be in flight at once: a fixed number, or one that is found. Pure: no clock of its own.

The adaptive control increases its limit while the limit is what holds the work back, until the endpoint returns 429 or
throughput stops improving. A 429 shows the capacity exactly: a refusal while n requests are in flight, itself included,
shows that n is too many. (The order in which they were sent is weaker evidence, since requests overtake each other.) A
mere delay shows by Little's law: n in flight at a mean latency of s seconds are n / s answers a second; if more in
flight is not more answers a second, the limit goes back. After either, a hold that doubles up to `LONGEST_HOLD` windows
keeps the limit from oscillating around the capacity; each later probe starts with one request more.
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST_HOLD, LONGEST_HOLD = 4, 16
"""Windows at a found capacity before the next probe. A window is as many answers as the limit."""
WORTH_IT = 0.1
"""Share of the growth in flight that must come back as growth in answers a second."""
CONFIRMED = 4
"""Windows, pooled, that it takes to reject a growth."""
STRAYS = 3
"""Refusals in a row, with few requests in flight, that are ignored."""
AS_GOOD = 0.9
"""Share of the best throughput that is enough for a smaller limit to be preferred."""
EVIDENCE = 16
"""Answers in a window below which a mean latency is too uncertain."""
COMPARABLE = 1.25
"""Growth below which two levels' throughputs differ by less than the noise of one window."""


@dataclass(slots=True)
class FixedControl:
    limit: int

    def answered(self, now: float, seconds: float, pressed: bool) -> None:
        """Note an answer after `seconds`; `pressed`: all slots were taken, or requests waited for one."""

    def refused(self, now: float, in_flight: int) -> None:
        """Note a 429 while so many were in flight, the refused request included."""


@dataclass(frozen=True, slots=True)
class _Level:
    """A limit that proved good, and its answers a second."""

    limit: int
    throughput: float


class AdaptiveControl:
    """Between `floor` and `ceiling`, from `start`. Doubles until that is no improvement, then probes by ones."""

    def __init__(self, start: int, floor: int, ceiling: int) -> None:
        self.limit = min(max(start, floor), ceiling)
        self._floor, self._ceiling = floor, ceiling
        self._searching, self._step = True, 1
        self._hold, self._next_hold = 0, FIRST_HOLD
        self._levels: list[_Level] = []
        self._strays = 0
        self._latency = 0.0
        self._pressed = self._doubted = False
        self._restart(0.0)

    def answered(self, now: float, seconds: float, pressed: bool) -> None:
        self._pressed |= pressed
        self._strays = 0
        if now - seconds < self._since:
            return  # sent under another limit, or before this one had its effect
        self._answers += 1
        self._seconds += seconds
        if self._answers >= (CONFIRMED * self.limit if self._doubted else self.limit):
            self._judge(now)

    def refused(self, now: float, in_flight: int) -> None:
        if in_flight <= self.limit // 2 and self._strays < STRAYS:
            self._strays += 1  # a falling capacity refuses near the limit first; this endpoint may count by time
            return
        lower = max(self._floor, min(self.limit, in_flight - 1))
        if lower < self.limit or in_flight <= self.limit:
            self._settle(now, lower)

    def _judge(self, now: float) -> None:
        """End a window: decide whether the last growth was worth it, and whether it is time for another."""
        if not self._pressed:
            return self._restart(now)  # the limit is not what holds the work back
        self._latency = self._seconds / self._answers
        level = _Level(self.limit, self.limit / max(self._latency, 1e-9))
        if not self._worth_it(level):
            if not self._doubted:
                self._doubted = True  # one window may be chance: the verdict takes more of the same
                return None
            levels = (*self._levels, level)
            enough = AS_GOOD * max(known.throughput for known in levels)
            return self._settle(now, next(known.limit for known in levels if known.throughput >= enough))
        if not self._levels or level.limit >= COMPARABLE * self._levels[-1].limit:
            self._levels.append(level)
        return self._grow(now)

    def _worth_it(self, level: _Level) -> bool:
        """Return whether a level has more throughput than the last comparable one; too few answers are no evidence."""
        last = self._levels[-1] if self._levels else None
        if last is None or level.limit < max(EVIDENCE, COMPARABLE * last.limit):
            return True
        return level.throughput >= last.throughput * (1 + WORTH_IT * (level.limit / last.limit - 1))

    def _grow(self, now: float) -> None:
        if self._hold:
            self._hold -= 1
            return self._restart(now)
        if self._searching:
            self.limit = min(2 * self.limit, self._ceiling)
            return self._restart(now + self._latency if self.limit > EVIDENCE else now)  # its first answers flatter it
        if self._step > 1:
            self._next_hold = FIRST_HOLD  # the probe before this one went well
        self.limit = min(self.limit + self._step, self._ceiling)
        self._step = min(2 * self._step, max(1, self.limit // 2))
        return self._restart(now + self._latency)

    def _settle(self, now: float, limit: int) -> None:
        """Go back to a limit and hold it for a while."""
        if limit < self.limit or not self._hold:
            self._hold = self._next_hold
            self._next_hold = min(2 * self._next_hold, LONGEST_HOLD)
        self.limit, self._searching, self._step = limit, False, 1
        self._levels.clear()
        self._restart(now)

    def _restart(self, since: float) -> None:
        """Begin a window of the requests that are sent from `since` on."""
        self._since, self._answers, self._seconds = since, 0, 0.0
        self._pressed = self._doubted = False


Control = FixedControl | AdaptiveControl
