"""Whether an endpoint answers, and which failed tries count (docs/design.md, section 6). Pure: the
time is an argument.

A failed try counts against its request once the endpoint has answered something since the try
began. Where nothing is answered, a request for one token, a *probe*, decides: answered, the tries
that failed before it count; unanswered, the endpoint is `down`, and they never count.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from harness.errors import EndpointStopped, GaveUp, Rejected, TransportFault

UNCOUNTED_IN_A_ROW, REFUSALS = 3, 3
"""Tries of a request after which a probe decides: those that do not count yet, and refusals."""
MAX_BILLABLE, BILLABLE_WHILE_DOWN = 30, 10
"""Tries of a request that may be billed, counted or not: then its user fails. And those from which
on it waits for the end of an outage, instead of showing by a try of its own that it goes on."""
BETWEEN_PROBES, BETWEEN_TRIES = 10.0, 2.0
"""Seconds between two probes, and between two requests while an endpoint is down. What a run loses
after an outage is the latter at most: the first answer wakes everybody."""
PROBE_SECONDS = 15.0
"""The longest that a probe may take."""
PATIENCE_WITH_AN_ADDRESS = 5.0
"""Seconds for which an address that has never answered is tried before the run stops."""
INSTANT = 1e-6
"""Seconds; less is the rounding of a clock."""
LOADING = "if it is still loading, give --wait 600"
NOT_SERVED = ("http_404", "http_405")
"""Kinds of a path that the server does not have, or does not take requests at."""
HINTS = {
    "unknown_host": f"check the address; {LOADING}",
    "proxy": "check HTTP_PROXY, HTTPS_PROXY and ALL_PROXY, or name the endpoint's host in NO_PROXY",
}
"""What to do about an address that has never answered, by the kind of the last fault."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a caller's patience: retries of one request; seconds without any answer at all;
    those to the first."""

    max_retries: int
    max_outage: float
    wait: float = 0.0


@dataclass(slots=True, eq=False)
class FailedTries:
    """The failed tries of one request: those that count, those of which that is `undecided`, and
    those that may be billed, counted or not.

    In addition, not as failures: `waits` that the endpoint asked for, and tries that it `refused`
    for the key, the model or the like. `served_others`: it has answered since so many of these that
    a last one decides.
    """

    counted: int = 0
    undecided: int = 0
    billable: int = 0
    waits: int = 0
    refused: int = 0
    served_others: bool = False
    last: TransportFault | None = None

    def check(self, number: int, max_retries: int) -> None:
        """Raise why the request's user fails after its try of this number, unless it is to be tried
        again."""
        if self.last is None:
            return
        if self.refused > REFUSALS and self.served_others:
            hint = "others are answered, so it may be this prompt that is blocked"
            detail = f"{self.last.detail}; {hint}"
            raise Rejected(self.last.kind, detail) from self.last
        if self.counted > max_retries or self.billable >= MAX_BILLABLE:
            detail = f"{self.last.kind}: {self.last.detail}"
            raise GaveUp("persistent_error", detail, number) from self.last


class Health:
    """What one runner knows of its endpoint. `last_answer` is the start of the run until there is
    one.

    `in_doubt`: only a probe can tell whether requests are bad or the endpoint is down. Then, and
    while it is `down`, one request at a time goes out.
    """

    def __init__(self, now: float, limits: Limits) -> None:
        self.last_answer = now
        self.has_answered = False
        self.in_doubt = False
        self.down = False
        self._limits = limits
        self._silent_since: float | None = None
        """The start of the first failed try since the last answer."""
        self._unreachable_since: float | None = None
        self._refusal: EndpointStopped | None = None
        self._probed_at = -math.inf
        self._undecided: set[FailedTries] = set()

    @property
    def one_at_a_time(self) -> bool:
        return self.down or self.in_doubt

    @property
    def is_silent(self) -> bool:
        """Return whether anything has failed since the last answer."""
        return self._silent_since is not None or bool(self._undecided)

    def wait_left(self, now: float) -> float:
        """Return the seconds of `--wait` that are left; 0 after the first answer, and where none is
        awaited."""
        left = self.last_answer + self._limits.wait - now
        return 0.0 if self.has_answered or left < INSTANT else left

    def outage(self, now: float) -> float:
        """Return for how many seconds the endpoint has been down, 0 if it is not."""
        return self._silence(now) if self.down else 0.0

    def answered(self, now: float) -> None:
        """Note an answer to a request, or to a probe."""
        self.last_answer = now
        self.has_answered = True
        if not self.is_silent:
            return
        for tries in self._undecided:
            tries.counted += tries.undecided
            tries.undecided = 0
            tries.served_others = True
        self._undecided.clear()
        self.in_doubt = self.down = False
        self._silent_since = self._unreachable_since = self._refusal = None

    def failed_before(self, tries: FailedTries) -> None:
        """Note failed tries of an earlier session, as if they had begun with this one."""
        if self.has_answered:
            tries.counted, tries.undecided = tries.undecided, 0
        else:
            self._undecided.add(tries)

    def failed(self, tries: FailedTries, fault: TransportFault, begun: float, now: float) -> None:
        """Note a failed try from `begun` to now. Raise `EndpointStopped` if the run cannot go
        on."""
        tries.last = fault
        tries.billable += fault.billed
        self._judge_address(fault, begun, now)
        if fault.refusal:
            tries.refused += 1
            if tries.refused >= REFUSALS:
                self._refusal = fault.refusal
                self._undecided.add(tries)
        elif fault.asks_to_wait:
            tries.waits += 1
            if self._silent_since is None:
                self._silent_since = now
        else:
            self._count(tries, begun)
        if self._is_too_long(now):
            if self.down or fault.asks_to_wait:
                self._stop(fault, now)
            self._probed_at, self.in_doubt = -math.inf, True
        elif self.wait_left(now) and not fault.asks_to_wait:
            self._is_down()
        elif self.needs_probe(tries):
            if fault.unreachable and fault.kind not in NOT_SERVED:
                self._probed_at = -math.inf  # it costs nobody anything
            self.doubt(now)

    def _count(self, tries: FailedTries, begun: float) -> None:
        if self._silent_since is None:
            self._silent_since = max(begun, self.last_answer)
        if self.last_answer > begun:
            tries.counted += 1
        elif not self.down:
            tries.undecided += 1
            self._undecided.add(tries)

    def needs_probe(self, tries: FailedTries) -> bool:
        """Return whether only an answer shows what becomes of a request: after some tries, or after
        its last one."""
        if tries.refused >= REFUSALS:
            return not tries.served_others
        enough = 1 if self.is_over(tries) else UNCOUNTED_IN_A_ROW
        return tries.undecided >= enough

    def is_over(self, tries: FailedTries) -> bool:
        """Return whether a request is not tried again before it is known what counts."""
        if tries.refused >= REFUSALS:
            return True
        return tries.counted + tries.undecided > self._limits.max_retries

    def doubt(self, now: float) -> None:
        """Have a probe sent, if the last one is long enough ago."""
        self.in_doubt = self.in_doubt or not self.until_probe(now)

    def until_probe(self, now: float) -> float:
        """Return the seconds until a probe may be sent; the last one is when the patience ends."""
        return min(max(0.0, self._probed_at + BETWEEN_PROBES - now), self.patience(now))

    def until_next(self, now: float) -> float:
        """Return the seconds until the next of the requests that go out one at a time: the last one
        is due when the patience ends."""
        if not self.down:
            return 0.0
        return min(BETWEEN_TRIES, self.patience(now) or BETWEEN_TRIES)

    def probes_now(self, now: float) -> bool:
        """Return whether the next request that goes out is to be a probe."""
        return self.one_at_a_time and not self.until_probe(now)

    def seconds_to_spare(self, tries: FailedTries, now: float) -> float:
        """Return for how long a request that has failed often waits for a probe, instead of going
        out while the endpoint is down."""
        if self.down and tries.billable >= BILLABLE_WHILE_DOWN:
            return self.until_probe(now)
        return 0.0

    def probe(self, now: float) -> float:
        """Note that a probe is sent; return how long it may take, in seconds."""
        self._probed_at = now
        return min(PROBE_SECONDS, max(1.0, self.patience(now)))

    def unanswered(self, fault: TransportFault, now: float) -> None:
        """Note a probe that failed. Raise `EndpointStopped` if the run cannot go on."""
        refusal = self._refusal or fault.refusal
        if refusal:
            raise refusal
        self._judge_address(fault, now, now)
        if self._is_too_long(now):
            self._stop(fault, now)
        self._is_down()

    def _is_down(self) -> None:
        self.down, self.in_doubt = True, False
        for tries in self._undecided:
            tries.undecided = 0
        self._undecided.clear()

    def patience(self, now: float) -> float:
        """Return the seconds after which the run stops without an answer."""
        wait = self.wait_left(now)
        if wait:
            return wait
        if self._unreachable_since is not None and not self.has_answered:
            left = self._unreachable_since + PATIENCE_WITH_AN_ADDRESS - now
        else:
            left = self._limits.max_outage - self._silence(now)
        return left if left > INSTANT else 0.0

    def _silence(self, now: float) -> float:
        if self._silent_since is None:
            return 0.0
        return now - self._silent_since

    def _is_too_long(self, now: float) -> bool:
        return self._silence(now) >= self._limits.max_outage - INSTANT and not self.wait_left(now)

    def _judge_address(self, fault: TransportFault, begun: float, now: float) -> None:
        """Stop the run when nothing has ever been answered and the address does not answer, or
        something else does.

        A fault of any other kind shows that a server is there, and resets the patience.
        """
        if not fault.unreachable:
            self._unreachable_since = None
        elif self._unreachable_since is None:
            self._unreachable_since = begun
        if self.has_answered or self.wait_left(now):
            return
        if fault.foreign:
            raise EndpointStopped(f"this is not an endpoint for chat completions: {fault.detail}")
        if fault.unreachable and fault.kind in NOT_SERVED:
            raise EndpointStopped(f"no chat completions are served at this address: {fault.detail}")
        if self.is_unreached and self.patience(now) <= 0.0:
            wait = self._limits.wait
            hint = f"--wait {wait:g} is over" if wait else HINTS.get(fault.kind, LOADING)
            raise EndpointStopped(f"the endpoint has never answered: {fault.detail}; {hint}")

    @property
    def is_unreached(self) -> bool:
        """Return whether the address takes no connection, and never has."""
        return self._unreachable_since is not None and not self.has_answered

    def _stop(self, fault: TransportFault, now: float) -> None:
        seconds = self._silence(now)
        duration = f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds:.0f} seconds"
        raise EndpointStopped(
            f"the endpoint has not answered with a completion for {duration} ({fault.kind}:"
            f" {fault.detail}): go on when it is back"
        )
