"""How many requests may be in flight at once: at most a fixed number, or one that is found. Pure:
no clock of its own.

The control increases its limit while the limit is what holds the work back, until the endpoint
returns 429 or throughput stops improving. A refusal while n requests are in flight, itself
included, shows that n is too many, unless the endpoint refuses at any level. A refusal at a level
that held before, alone among answers, is a sign of that; then only refusals in quick succession
count, which are rare by chance and certain where no slot is free.

A mere delay shows by Little's law: n in flight at a mean latency of s seconds are n / s answers a
second; if more in flight is not more answers a second, the limit goes back. After either, a hold
keeps the limit from oscillating around the capacity: it doubles up to `LONGEST_HOLD` windows,
unless the capacity was twice as large before and may return.
"""

from __future__ import annotations

from dataclasses import dataclass

RETURN_HOLD, FIRST_HOLD, LONGEST_HOLD = 2, 4, 16
"""Windows at a found capacity before the next probe: where twice as much held before, at first, and
at most. A window is as many answers as the limit."""
WORTH_IT = 0.1
"""Share of the growth in flight that must come back as growth in answers a second."""
CONFIRMED = 4
"""Windows, pooled, that it takes to reject a growth."""
AS_GOOD = 0.9
"""Share of the best throughput that is enough for a smaller limit to be preferred."""
EVIDENCE = 16
"""Answers in a window below which a mean latency is too uncertain."""
COMPARABLE = 1.25
"""Growth below which two levels' throughputs differ by less than the noise of one window."""
LOAD_SCORE, MAX_SCORE, SCORE_PER_ANSWER = 5.0, 6.0, 0.75
"""Score at which refusals that may be chance mean load, its largest value, and what an answer takes
from it; a refusal adds 1. So a share of refusals below 3 in 7 tries, if they are spread evenly, is
not load: where no slot is free, a slot that a refusal leaves is refused again at once. An endpoint
that refuses a twentieth of the tries by chance costs hardly anything in this way, and one that
refuses a fifth little."""
MEMORY = 400
"""Answers after which a refusal by chance is forgotten; each time that refusals mean load a quarter
of them is left."""
FADE = 16
"""Part of its distance from the limit by which the best level fades with each failed probe."""


@dataclass(frozen=True, slots=True)
class _Level:
    """A limit that proved good, and its answers a second."""

    limit: int
    throughput: float


def _is_worth_it(level: _Level, last: _Level) -> bool:
    """Return whether a level has more throughput than the last comparable one; too few answers are
    no evidence."""
    if level.limit < max(EVIDENCE, COMPARABLE * last.limit):
        return True
    growth = level.limit / last.limit - 1
    return level.throughput >= last.throughput * (1 + WORTH_IT * growth)


class AdaptiveControl:
    """Between `floor` and `ceiling`, from `start`. Doubles until that is no improvement, then
    probes by ones.

    With `judges_delay` throughput counts, too; otherwise refusals alone.
    """

    def __init__(self, start: int, floor: int, ceiling: int, *, judges_delay: bool = True) -> None:
        self.limit = min(max(start, floor), ceiling)
        self._floor = floor
        self._ceiling = ceiling
        self._judges_delay = judges_delay
        self._searching = True
        self._step = 1
        self._hold = 0
        self._next_hold = FIRST_HOLD
        self._levels: list[_Level] = []
        self._latency = 0.0
        self._held = self._best = 0
        self._score = 0.0
        self._by_chance = 0
        self._burst_began = float("-inf")
        self._least = floor
        self._pressed = self._doubted = False
        self._restart(0.0)

    def answered(self, now: float, seconds: float, pressed: bool) -> None:
        """Note an answer after `seconds`; `pressed`: all slots were taken, or requests waited for
        one."""
        self._pressed |= pressed
        self._score = max(0.0, self._score - SCORE_PER_ANSWER)
        self._by_chance = max(0, self._by_chance - 1)
        if now - seconds < self._since:
            return  # sent under another limit, or before this one had its effect
        self._answers += 1
        self._seconds += seconds
        if self._answers >= (CONFIRMED * self.limit if self._doubted else self.limit):
            self._judge(now)

    def refused(self, now: float, seconds: float, in_flight: int) -> None:
        """Note a 429 after `seconds` while so many were in flight, the refused request included.

        Those of one burst that were sent before the limit fell each show one too many, but are no
        new evidence: they take it to half at most.
        """
        is_alone = self._score < 1.0
        self._score = min(MAX_SCORE, self._score + 1.0)
        if is_alone and self.limit <= self._held:
            self._by_chance = MEMORY
            self._hold = 0
        if (self._by_chance or in_flight <= self.limit // 2) and self._score < LOAD_SCORE:
            return  # a falling capacity refuses near the limit first
        self._by_chance //= 4  # the more refusals mean load, the sooner one alone is enough again
        if now - seconds < self._burst_began:
            lower = self.limit - 1
        else:
            self._burst_began = now
            self._least = max(self._floor, self.limit // 2)
            lower = in_flight - 1
        lower = min(self.limit, max(self._least, lower))
        if lower < self.limit or in_flight <= self.limit:
            self._settle(now, lower)

    def _judge(self, now: float) -> None:
        """End a window: decide whether the last growth was worth it, and whether it is time for
        another."""
        if not self._pressed:  # the limit is not what holds the work back
            self._restart(now)
            return
        self._latency = self._seconds / self._answers
        level = _Level(self.limit, self.limit / max(self._latency, 1e-9))
        last = self._levels[-1] if self._levels else None
        if last is None or not self._judges_delay or _is_worth_it(level, last):
            if last is None or level.limit >= COMPARABLE * last.limit:
                self._levels.append(level)
            self._held = self.limit
            self._best = max(self._best, self.limit)
            self._grow(now)
        elif self._doubted:
            levels = (*self._levels, level)
            enough = AS_GOOD * max(known.throughput for known in levels)
            self._best = next(known.limit for known in levels if known.throughput >= enough)
            self._settle(now, self._best)
        else:
            self._doubted = True  # one window may be chance: the verdict takes more of the same

    def _grow(self, now: float) -> None:
        """Raise the limit, unless it is held, and begin a window."""
        since = now
        if self._hold:
            self._hold -= 1
            if 2 * self.limit <= self._best:
                since = self._since
        elif self._searching:
            self.limit = min(2 * self.limit, self._ceiling)
            if self.limit > EVIDENCE:
                since = now + self._latency  # its first answers flatter it
        elif self._step > 1 and self.limit < self._best:  # a capacity that returns
            self._next_hold = FIRST_HOLD
            self.limit = min(2 * self.limit, self._best)
        else:
            if self._step > 1:
                self._next_hold = FIRST_HOLD  # the probe before this one went well
            self.limit = min(self.limit + self._step, self._ceiling)
            self._step = min(2 * self._step, max(1, self.limit // 2))
            if self.limit >= self._best:
                since = now + self._latency
        self._restart(since)

    def _settle(self, now: float, limit: int) -> None:
        """Go back to a limit and hold it for a while."""
        failed_probe = self.limit > self._held
        if failed_probe:
            self._best -= (self._best - limit) // FADE
        if 2 * limit <= self._best:
            self._hold = RETURN_HOLD
        elif failed_probe:
            self._hold = self._next_hold
            self._next_hold = min(2 * self._next_hold, LONGEST_HOLD)
        else:
            self._hold = max(self._hold, FIRST_HOLD)
        self.limit = self._held = limit
        self._searching, self._step = False, 1
        self._levels.clear()
        self._restart(now)

    def _restart(self, since: float) -> None:
        """Begin a window of the requests that are sent from `since` on."""
        self._since = since
        self._answers = 0
        self._seconds = 0.0
        self._pressed = self._doubted = False


class FixedControl(AdaptiveControl):
    """At most `limit`: less while the endpoint refuses so many, whatever its latency."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit, 1, limit, judges_delay=False)
