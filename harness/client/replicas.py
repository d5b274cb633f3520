"""Several servers for one model: which of them gets a request, and which are set aside
(docs/design.md, section 6).

A request goes to the replica with the fewest of ours in flight. By Little's law n requests in
flight at a mean latency of s seconds are n / s answers a second: with equal numbers in flight each
replica answers in proportion to its speed, whether it is slow because each reply takes long or
because few fit in at a time, and without any measurement. Servers cache the prefix that a user's
steps share, so a user stays with the replica that served it last, until that has clearly more in
flight than the least loaded one, or another has become idle, as at the end of a run.

All is decided from counts and the clock when a request is sent or has ended: no timer, no task, no
waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.client.replies import Denied
from harness.client.transport import Received, Transport
from harness.errors import TOO_MANY_REQUESTS, EndpointStopped, Rejected, TransportFault
from harness.model import NEVER_ANSWERED

SLACK, SLACK_PART = 2, 8
"""A replica keeps a user while it has at most 2 more in flight than the least loaded; or an eighth,
if that is more."""
FASTER = 1.25
"""Ratio of mean latencies from which on one replica is clearly faster."""
SMOOTHING = 16
"""Answers over which a mean latency forgets."""
FULL_SECONDS = 5.0
"""How long a refusal (429) caps a replica."""
IN_A_ROW = 3
"""Faults in a row (one if unreachable) that set a replica aside. So do as many refusals of requests
that another answers: they are quick, so that the fewest in flight would attract all requests."""
FIRST_PROBE, LONGEST_PROBE = 1.0, 30.0
"""Seconds between probes of a replica that is set aside: doubling from the first to the longest."""
REMEMBERED = 2**14
"""Users for which the replica is remembered: at least so many of the latest, at most twice as
many."""
NEVER, SERVES = float("inf"), float("-inf")


@dataclass(slots=True, eq=False)
class _Replica:
    """`seconds` is the mean latency of its latest answers, 0 before the first; `faults` are those
    since the last one.

    `room` is its capacity, by a refusal (429) at the time `refused`; `refusals` are those in a row
    of requests that another answered. Set aside, it is probed when `due`, `wait` seconds after the
    last probe; `probes` are in flight. `due` is `NEVER` for a replica set aside for good, `SERVES`
    for one that serves.
    """

    name: str
    transport: Transport
    in_flight: int = 0
    seconds: float = 0.0
    faults: int = 0
    room: float = NEVER
    refused: float = -NEVER
    due: float = SERVES
    wait: float = FIRST_PROBE
    probes: int = 0
    refusals: int = 0

    def full(self, now: float) -> bool:
        return self.in_flight >= self.room and now < self.refused + FULL_SECONDS

    def named(self, detail: str) -> str:
        return detail if self.name in detail else f"{self.name}: {detail}"


class Replicas:
    """A `Transport` over several, each with its address as it may be shown; `clock` is in seconds,
    monotonic.

    `on_change` gets a sentence when a replica is set aside, and when it is back.
    """

    def __init__(
        self,
        replicas: Sequence[tuple[str, Transport]],
        clock: Callable[[], float],
        on_change: Callable[[str], None],
    ) -> None:
        self._replicas = [_Replica(name, transport) for name, transport in replicas]
        self._serving = list(self._replicas)
        self._clock = clock
        self._on_change = on_change
        self._tries_left = tuple(reversed(range(len(self._replicas))))
        self._recent: dict[str, _Replica] = {}
        self._earlier: dict[str, _Replica] = {}
        self._current: dict[str, str] = {}

    async def send(self, body: bytes, user: str = "") -> Received:
        """Try once, at one replica; at another at once if the first is full (429) and another is
        not.

        A request that one replica refuses (`Rejected`, or a prompt that it does not take) is sent
        to another, once: it may have another configuration, and a refusal costs little. Raise what
        the replica raised. `EndpointStopped` becomes a `TransportFault` of kind `replica` until all
        replicas have stopped, and a fault is `unreachable` only while none serves.
        """
        refuser: _Replica | None = None
        for left in self._tries_left:
            start = self._clock()
            replica = self._choose(user, start, refuser)
            probe = replica.due != SERVES
            replica.in_flight = place = replica.in_flight + 1
            replica.probes += probe
            self._current[user] = replica.name
            try:
                received = await replica.transport.send(body, user)
            except TransportFault as fault:
                if self._failed(replica, fault, user, probe) or not left:
                    raise
            except EndpointStopped as error:
                raise self._stopped(replica, error, probe) from None
            except Rejected:
                self._answered(replica, start, place, probe)
                if refuser is not None or not left or not self._has_other(replica):
                    raise
                refuser = replica
            else:
                self._answered(replica, start, place, probe)
                completion = received.completion
                if completion.text or completion.finish_reason not in NEVER_ANSWERED:
                    self._settled(replica, refuser, user, start)
                elif refuser is None and left and self._has_other(replica):
                    refuser = replica
                    continue
                return received
            finally:
                replica.in_flight -= 1
                replica.probes -= probe
                self._current.pop(user, None)
        raise AssertionError("the last try returns or raises")

    def where(self, user: str) -> str:
        """Return the replica that a user's request is at now; empty for none."""
        return self._current.get(user, "")

    def _has_other(self, replica: _Replica) -> bool:
        return any(other is not replica for other in self._serving)

    def _settled(
        self, replica: _Replica, refuser: _Replica | None, user: str, start: float
    ) -> None:
        """Note an answer; a replica that refuses what others answer is soon set aside, like one
        with faults."""
        took = self._clock() - start
        replica.seconds += (took - replica.seconds) / SMOOTHING if replica.seconds else took
        self._remember(user, replica)
        replica.refusals = 0
        if refuser is not None and refuser.due == SERVES:
            refuser.refusals += 1
            if refuser.refusals >= IN_A_ROW:
                refuser.refusals = 0
                why = "is set aside for a while: it refuses what others answer"
                self._set_aside(refuser, LONGEST_PROBE, why)

    def _choose(self, user: str, now: float, refuser: _Replica | None) -> _Replica:
        if refuser is not None:
            others = [replica for replica in self._serving if replica is not refuser]
            return self._least_loaded(others or self._serving, now)
        if len(self._serving) < len(self._replicas):
            probed = self._probe(now)
            if probed:
                return probed
        idlest = self._least_loaded(self._serving, now)
        home = self._recent.get(user) or self._earlier.get(user) or idlest
        if home is idlest or home.due != SERVES or home.full(now) or not _keeps(home, idlest):
            return idlest
        return home

    def _least_loaded(self, among: list[_Replica], now: float) -> _Replica:
        """Return the least loaded that is not full, of equals the fastest; if all are full, the
        least beyond."""
        best = None
        fewest = NEVER
        for replica in among:
            number = replica.in_flight
            if number > fewest or (number >= replica.room and replica.full(now)):
                continue
            if best is None or number < fewest or replica.seconds < best.seconds:
                best = replica
                fewest = number
        return best or min(among, key=lambda replica: replica.in_flight - replica.room)

    def _probe(self, now: float) -> _Replica | None:
        """Return a replica that is set aside and gets this request: if none serves, that with the
        first probe due."""
        aside = [replica for replica in self._replicas if replica.due != SERVES]
        if self._serving:
            aside = [replica for replica in aside if replica.due <= now and not replica.probes]
        # Those that are set aside for good have the last `due`.
        return min(
            aside,
            key=lambda replica: (replica.due == NEVER, replica.probes, replica.due),
            default=None,
        )

    def _answered(self, replica: _Replica, start: float, place: int, probe: bool) -> None:
        """Note that a replica serves; `place` is how many it had in flight when this request was
        sent."""
        replica.faults = 0
        if place > replica.room and start >= replica.refused:
            replica.room = NEVER
        if probe and replica.due != SERVES:  # a request from before it was set aside is no probe
            self._set(replica, SERVES, "is back")

    def _failed(self, replica: _Replica, fault: TransportFault, user: str, probe: bool) -> bool:
        """Draw the conclusions; return whether to raise the fault: not a refusal while another
        replica has room."""
        now = self._clock()
        others = [other for other in self._serving if other is not replica]
        if others:
            self._remember(user, self._least_loaded(others, now))  # the next try goes elsewhere
        if fault.kind == TOO_MANY_REQUESTS:
            self._answered(replica, now, 0, probe)  # a server is there, at least
            replica.room = replica.in_flight - 1
            replica.refused = now
        else:
            self._count_fault(replica, fault, now)
        fault.detail = replica.named(fault.detail)
        fault.args = (f"{fault.kind}: {fault.detail}",)
        # Before any success either of them would end the run.
        fault.unreachable = fault.unreachable and not self._serving
        fault.foreign = fault.foreign and not self._serving
        return fault.kind != TOO_MANY_REQUESTS or all(other.full(now) for other in others)

    def _count_fault(self, replica: _Replica, fault: TransportFault, now: float) -> None:
        """Set a replica aside if its faults show that it does not serve, or for longer."""
        # Whatever the kind: a replica that fails fast has few in flight, and would attract all
        # requests.
        replica.faults += 1
        if replica.due == SERVES:
            if fault.unreachable or fault.foreign or replica.faults >= IN_A_ROW:
                why = f"is set aside until it answers again ({fault.kind}: {fault.detail})"
                self._set_aside(replica, FIRST_PROBE, why)
        elif now >= replica.due:
            self._set_aside(replica, min(2 * replica.wait, LONGEST_PROBE), "")

    def _stopped(
        self, replica: _Replica, error: EndpointStopped, probe: bool
    ) -> EndpointStopped | TransportFault:
        """Set a replica aside for good; return its error if that leaves none, else a fault.

        A denial after answers may pass: then a probe must confirm it (docs/design.md, section 6).
        """
        if isinstance(error, Denied) and replica.seconds and not (probe and replica.due != NEVER):
            if replica.due == SERVES:
                why = f"is set aside until it answers again ({error})"
                self._set_aside(replica, FIRST_PROBE, why)
        elif replica.due != NEVER:
            self._set(replica, NEVER, f"is set aside for good ({error})")
        if all(other.due == NEVER for other in self._replicas if other is not replica):
            return error
        return TransportFault("replica", replica.named(str(error)), billed=False)

    def _set_aside(self, replica: _Replica, wait: float, why: str) -> None:
        """Send a replica nothing until a probe, after so many seconds."""
        replica.wait = wait
        self._set(replica, self._clock() + wait, why)

    def _set(self, replica: _Replica, due: float, why: str) -> None:
        replica.due = due
        self._serving = [other for other in self._replicas if other.due == SERVES]
        if why:
            self._on_change(f"{replica.name} {why}")

    def _remember(self, user: str, replica: _Replica) -> None:
        """Remember a user's replica, in two generations: the older one is dropped when the younger
        is full."""
        if user:
            self._recent[user] = replica
        if len(self._recent) >= REMEMBERED:
            self._recent, self._earlier = {}, self._recent


def _keeps(home: _Replica, idlest: _Replica) -> bool:
    """Return whether the replica that served a user last gets the next step, too."""
    if home.in_flight > idlest.in_flight + max(SLACK, idlest.in_flight // SLACK_PART):
        return False
    # A run's end is not to wait for its slowest replica. So a replica with almost no work attracts
    # the users that it serves clearly faster; an idle one also those that it serves no slower, if
    # theirs is busy with others; one with faults none.
    if idlest.faults or idlest.in_flight > SLACK:
        return True
    if home.seconds > idlest.seconds * FASTER:
        return False
    is_clearly_faster = home.seconds * FASTER <= idlest.seconds
    return idlest.in_flight > 0 or home.in_flight == 0 or is_clearly_faster
