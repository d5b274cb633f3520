"""When an endpoint is down rather than a request bad (docs/design.md, section 6). Pure: the time is an argument.

A moment is *served* if a request succeeds that is on the wire then. A failed try between two served moments counts. A
*silence* is the time between two successes, and what failed in it is undecided until it ends. Then failures of more
than one user are the endpoint's, and are forgiven, however short it was; but those at served moments are not.

An outage is declared after `silence` seconds without any success and `FAILURES` failures over `USERS` users, or once
the endpoint has not answered a request of its own (`unanswered`) either. From then on single probes go out. All that
failed in it is forgiven.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

SILENCE, FAILURES, USERS = 20.0, 10, 3
PROBE_SECONDS = 2.0
"""Between two probes. What a run loses after an outage is this at most: its first success wakes everybody."""
SEVERAL = 2
"""Users whose requests fail in one silence before it is taken for the endpoint's; one request fails by itself."""
REMEMBERED = 4096
"""Silences, and times without a gap in which the endpoint served, that are remembered: far longer than a request is
tried."""

Span = tuple[float, float]
"""From when to when."""


@dataclass(slots=True)
class Outage:
    """`last_success` is the start of the run until there is one; `silent`: a failure came `silence` seconds after it.

    `awaited`: there was no success yet, and the endpoint may still be loading, so that the first failure declares it.
    `undecided_since` is the start of the silence: a later failure may still be forgiven. `ended` are the declared
    outages, in order.
    """

    last_success: float
    awaited: bool = False
    silence: float = SILENCE
    active: bool = False
    silent: bool = False
    unanswered: bool = False
    undecided_since: float = field(init=False)
    ended: list[Span] = field(default_factory=list)
    _silences: deque[Span] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    _served: deque[Span] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    _first_sent: float = float("inf")
    _failures: int = 0
    _first_failures: dict[str, float] = field(default_factory=dict)
    _due: float = float("-inf")

    def __post_init__(self) -> None:
        self.undecided_since = self.last_success

    def failed(self, now: float, user: str) -> bool:
        """Note a failed try (without a user, the second one of a request); return whether there is an outage."""
        self._failures += 1
        if user:
            self._first_failures.setdefault(user, now)
        return self.declared(now)

    def declared(self, now: float) -> bool:
        """Return whether there is an outage after a failure, which may declare it."""
        self.silent = now - self.last_success >= self.silence
        enough = self._failures >= FAILURES and len(self._first_failures) >= USERS
        self.active = self.active or self.awaited or (self.silent and (enough or self.unanswered))
        return self.active

    def failed_before(self, user: str) -> None:
        """Note a user whose failures of an earlier process are undecided."""
        self._first_failures.setdefault(user, self.undecided_since)

    def succeeded(self, now: float, sent: float | None = None) -> bool:
        """Note a success of a request `sent` then (now, without it); return whether it forgave earlier failures."""
        sent = now if sent is None else sent
        served, start = self._served, sent
        self._first_sent = min(self._first_sent, sent)
        while served and served[-1][1] >= sent:
            start = min(start, served.pop()[0])
        served.append((start, now))
        silence, several = (self.undecided_since, now), False
        if self._first_failures:
            if several := sum(first <= sent for first in self._first_failures.values()) >= SEVERAL:
                self._silences.append(silence)
            self._first_failures.clear()
        self.undecided_since, self.awaited = now, False
        if over := self.answered(now):
            self.ended.append(silence)
        return over or several

    def answered(self, now: float) -> bool:
        """Note that the endpoint answers, whosever requests fail; return whether that ended an outage."""
        over = self.active
        self.last_success, self.active, self.silent, self.unanswered = now, False, False, False
        self._failures, self._due = 0, now
        return over

    def next_probe(self, now: float) -> float:
        """Return the seconds from a failure to the next probe; a failure before a probe is due was not a probe's."""
        if now >= self._due:
            self._due = now + PROBE_SECONDS
        return self._due - now

    def lasted(self, now: float) -> float:
        """Return the seconds since the last success during an outage, else 0."""
        return now - self.last_success if self.active else 0.0

    def undecided(self, failure: Span) -> bool:
        """Return whether it is still open if a try from when to when, which failed, counts."""
        return failure[1] >= self.undecided_since

    def forgives(self, failure: Span) -> bool:
        """Return whether a failed try does not count."""
        sent, failed = failure
        if _within(self.ended, failed):
            return True
        served = (sent <= self._first_sent or _within(self._served, sent)) and _within(self._served, failed)
        return not served and _within(self._silences, failed)


def _within(spans: Sequence[Span], time: float) -> bool:
    """Return whether one of the spans, which are in order, has this time."""
    for start, end in reversed(spans):
        if time > end:
            return False
        if time >= start:
            return True
    return False
