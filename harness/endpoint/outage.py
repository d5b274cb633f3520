"""When an endpoint is down rather than a request bad (docs/design.md, section 6). Pure: the time is an argument.

An outage is declared after `SILENCE` seconds without any success and `FAILURES` failures over `USERS` users. It
began with the last success: failures since then were not the requests' fault, and do not count as their tries.
"""

from __future__ import annotations

from dataclasses import dataclass, field

SILENCE, FAILURES, USERS = 20.0, 10, 3
FIRST_PROBE, LONGEST_PROBE = 1.0, 15.0
"""Seconds between probes: doubling from the first to the longest."""


@dataclass(slots=True)
class Outage:
    """`last_success` is the start of the run until there is one; `silent`: a failure came long after it.

    `awaited`: there was no success yet, and the endpoint may still be loading, so that the first failure declares it.
    """

    last_success: float
    awaited: bool = False
    active: bool = False
    silent: bool = False
    ended: list[tuple[float, float]] = field(default_factory=list)
    _failures: int = 0
    _users: set[str] = field(default_factory=set)
    _probe: float = FIRST_PROBE
    _due: float = float("-inf")

    def failed(self, now: float, user: str) -> bool:
        """Note a failed try; return whether there is an outage."""
        self._failures += 1
        if len(self._users) < USERS:
            self._users.add(user)
        self.silent = now - self.last_success >= SILENCE
        self.active = (
            self.active or self.awaited or (self.silent and self._failures >= FAILURES and len(self._users) >= USERS)
        )
        return self.active

    def succeeded(self, now: float) -> bool:
        """Note a success; return whether it ended an outage."""
        over = self.active
        if over:
            self.ended.append((self.last_success, now))
        self.last_success, self.active, self.silent, self.awaited = now, False, False, False
        self._failures, self._probe, self._due = 0, FIRST_PROBE, now
        self._users.clear()
        return over

    def next_probe(self, now: float) -> float:
        """Return the seconds from a failure to the next probe; a failure before a probe is due was not a probe's."""
        if now >= self._due:
            self._due = now + self._probe
            self._probe = min(2 * self._probe, LONGEST_PROBE)
        return self._due - now

    def lasted(self, now: float) -> float:
        """Return the seconds since the last success during an outage, else 0."""
        return now - self.last_success if self.active else 0.0

    def covers(self, time: float) -> bool:
        """Return whether a failure at that time was during an outage."""
        current = self.active and time >= self.last_success
        return current or any(start <= time <= end for start, end in self.ended)
