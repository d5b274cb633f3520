"""When an endpoint is down rather than a request bad (docs/design.md, section 6). Pure: the time is an argument.

An outage is declared after `SILENCE` seconds without any success and `FAILURES` failures over `USERS` users. It
began with the last success: what failed since then was not the requests' doing, and does not count as their tries.
"""

from __future__ import annotations

from dataclasses import dataclass, field

SILENCE, FAILURES, USERS = 20.0, 10, 3
FIRST_PROBE, LONGEST_PROBE = 1.0, 15.0
"""Seconds between probes: doubling from the first to the longest."""


@dataclass(slots=True)
class Outage:
    """`last_success` is the start of the run until there is one; `silent` says that a failure came long after it."""

    last_success: float
    active: bool = False
    silent: bool = False
    ended: list[tuple[float, float]] = field(default_factory=list)
    _failures: int = 0
    _users: set[str] = field(default_factory=set)
    _probe: float = FIRST_PROBE
    _due: float = float("-inf")

    def failed(self, now: float, user: str) -> bool:
        """A try failed; tells whether an outage is on."""
        self._failures += 1
        if len(self._users) < USERS:
            self._users.add(user)
        self.silent = now - self.last_success >= SILENCE
        self.active = self.active or (self.silent and self._failures >= FAILURES and len(self._users) >= USERS)
        return self.active

    def succeeded(self, now: float) -> bool:
        """A try succeeded; tells whether that ended an outage."""
        over = self.active
        if over:
            self.ended.append((self.last_success, now))
        self.last_success, self.active, self.silent = now, False, False
        self._failures, self._probe, self._due = 0, FIRST_PROBE, now
        self._users.clear()
        return over

    def next_probe(self, now: float) -> float:
        """Seconds until the next probe, after a failure; one from before it is due was none of a probe."""
        if now >= self._due:
            self._due = now + self._probe
            self._probe = min(2 * self._probe, LONGEST_PROBE)
        return self._due - now

    def lasted(self, now: float) -> float:
        """Seconds since the last success while an outage is on, else 0."""
        return now - self.last_success if self.active else 0.0

    def covers(self, time: float) -> bool:
        """Whether a failure at that time fell into an outage."""
        if self.active and time >= self.last_success:
            return True
        return any(start <= time <= end for start, end in self.ended)
