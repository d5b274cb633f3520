"""Several servers for one model: which of them a request goes to, and which are left alone (docs/design.md, section 6).

A request goes to the replica with the fewest of ours in flight. By Little's law n requests in flight at a mean latency
of s seconds are n / s answers a second: with equal numbers in flight each replica answers in proportion to its speed,
whether it is slow because each reply takes long or because few fit in at a time, and nobody has to tell or to measure
which. Servers keep the prefix that a user's steps share, so a user stays where it was served last until that replica
has clearly more in flight than the least loaded one, or another has come to stand idle, as at the end of a run.

All is decided from counts and the clock when a request is sent or has ended: no timer, no task, no waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.endpoint.limiter import REFUSED
from harness.endpoint.replies import Denied
from harness.endpoint.transport import Received, Transport
from harness.errors import EndpointStopped, Rejected, TransportFault
from harness.model import NEVER_ANSWERED

SLACK, SLACK_PART = 2, 8
"""A replica keeps a user while it has at most 2 more in flight than the least loaded; or an eighth, if that is more."""
FASTER, SMOOTHING = 1.25, 16
"""Ratio of mean latencies from which on one replica is clearly the faster; answers over which such a mean forgets."""
FULL_SECONDS, IN_A_ROW = 5.0, 3
"""How long one that refused gets no more than it then had; faults in a row (one if unreachable) that set one aside."""
FIRST_PROBE, LONGEST_PROBE = 1.0, 30.0
"""Seconds between probes of a replica that is set aside: doubling from the first to the longest."""
REMEMBERED = 2**14
"""Users whose replica is remembered: at least so many of those seen last, at most twice as many."""
NEVER, SERVES = float("inf"), float("-inf")


@dataclass(slots=True, eq=False)
class _Replica:
    """`seconds` is the mean latency of its latest answers, 0 before the first; `faults` are those since the last one.

    `room` is how many it holds, as a refusal at the time `refused` told; `refusals` are those in a row of what another
    answered. Set aside, it is probed next when `due`, after `wait` seconds; `probes` are in flight. `due` is `NEVER` of
    one set aside for good, `SERVES` of one that serves.
    """

    name: str
    sender: Transport
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
    """A `Transport` over several, each with its address as it may be shown; `clock` is in seconds, monotonic.

    `on_change` hears a sentence when one is set aside, and when it is back.
    """

    def __init__(
        self, replicas: Sequence[tuple[str, Transport]], clock: Callable[[], float], on_change: Callable[[str], None]
    ) -> None:
        self._replicas = [_Replica(name, sender) for name, sender in replicas]
        self._serving = list(self._replicas)
        self._clock = clock
        self._on_change = on_change
        self._tries_left = tuple(reversed(range(len(self._replicas))))
        self._recent: dict[str, _Replica] = {}
        self._earlier: dict[str, _Replica] = {}

    async def send(self, body: bytes, user: str = "") -> Received:
        """One try, at one replica; at another at once where the first is full (429) and another is not.

        What one replica refuses (`Rejected`, or a prompt that it will not take) is asked of another, once: it may have
        another configuration, and what it refuses is quickly done. Raises what the replica raised. `EndpointStopped`
        is a `TransportFault` of kind `replica` as long as not all replicas have come to that, and a fault is
        `unreachable` only while none serves.
        """
        refuser: _Replica | None = None
        for left in self._tries_left:
            start = self._clock()
            replica = self._choose(user, start, refuser)
            probe = replica.due != SERVES
            replica.in_flight = place = replica.in_flight + 1
            replica.probes += probe
            try:
                received = await replica.sender.send(body, user)
            except TransportFault as fault:
                if self._failed(replica, fault, user, probe) or not left:
                    raise
            except EndpointStopped as error:
                if self._all_stopped(replica, error, probe):
                    raise
                raise TransportFault("replica", replica.named(str(error))) from error
            except Rejected:
                self._answered(replica, start, place, probe)
                if refuser is not None or not left or not self._has_other(replica):
                    raise
                refuser = replica
            else:
                self._answered(replica, start, place, probe)
                if not _answers(received) and refuser is None and left and self._has_other(replica):
                    refuser = replica
                    continue
                self._settled(replica, refuser, received, user, start)
                return received
            finally:
                replica.in_flight -= 1
                replica.probes -= probe
        raise AssertionError("the last try returns or raises")

    def _has_other(self, replica: _Replica) -> bool:
        return any(one is not replica for one in self._serving)

    def _settled(
        self, replica: _Replica, refuser: _Replica | None, received: Received, user: str, start: float
    ) -> None:
        """A reply came; who refused what another answers is soon set aside, like one with faults."""
        if not _answers(received):
            return  # both refuse it: that says nothing of how fast they are, or where the user should stay
        took = self._clock() - start
        replica.seconds += (took - replica.seconds) / SMOOTHING if replica.seconds else took
        self._remember(user, replica)
        replica.refusals = 0
        if refuser is not None and refuser.due == SERVES:
            refuser.refusals += 1
            if refuser.refusals >= IN_A_ROW:
                refuser.refusals, refuser.wait = 0, LONGEST_PROBE
                self._set(
                    refuser, self._clock() + refuser.wait, "is set aside for a while: it refuses what others answer"
                )

    def _choose(self, user: str, now: float, refuser: _Replica | None) -> _Replica:
        if refuser is not None:
            return self._least([one for one in self._serving if one is not refuser] or self._serving, now)
        if len(self._serving) < len(self._replicas) and (probed := self._probe(now)):
            return probed
        least = self._least(self._serving, now)
        home = self._recent.get(user) or self._earlier.get(user) or least
        kept = home is least or (home.due == SERVES and not home.full(now) and _keeps(home, least))
        return home if kept else least

    def _least(self, among: list[_Replica], now: float) -> _Replica:
        """The least loaded that is not full, of equals the fastest; where all are full, the least beyond its room."""
        found, fewest = None, NEVER
        for replica in among:
            number = replica.in_flight
            if number > fewest or (number >= replica.room and replica.full(now)):
                continue
            if found is None or number < fewest or replica.seconds < found.seconds:
                found, fewest = replica, number
        return found or min(among, key=lambda replica: replica.in_flight - replica.room)

    def _probe(self, now: float) -> _Replica | None:
        """A replica that is set aside and gets this request: where none serves, the one whose probe is due first."""
        aside = [one for one in self._replicas if one.due != SERVES]
        if self._serving:
            aside = [one for one in aside if one.due <= now and not one.probes]
        return min(aside, key=lambda one: (one.due == NEVER, one.probes, one.due), default=None)

    def _answered(self, replica: _Replica, start: float, place: int, probe: bool) -> None:
        """It serves: `place` is how many it had in flight when this one was sent."""
        replica.faults = 0
        if place > replica.room and start >= replica.refused:
            replica.room = NEVER
        if probe and replica.due != SERVES:  # what was sent before it was set aside shows nothing
            self._set(replica, SERVES, "is back")

    def _failed(self, replica: _Replica, fault: TransportFault, user: str, probe: bool) -> bool:
        """Draws the conclusions; whether the fault goes up, as a refusal does not while another replica has room."""
        now = self._clock()
        if others := [one for one in self._serving if one is not replica]:
            self._remember(user, self._least(others, now))  # the next try is to go elsewhere
        if fault.kind == REFUSED:
            self._answered(replica, now, 0, probe)  # somebody is there, at least
            replica.room, replica.refused = replica.in_flight - 1, now
        else:  # whatever the kind: what fails fast has few in flight, and would draw all requests
            replica.faults += 1
            self._doubt(replica, fault, now)
        fault.detail = replica.named(fault.detail)
        fault.args = (f"{fault.kind}: {fault.detail}",)
        fault.unreachable = fault.unreachable and not self._serving  # before any success it would end the run
        return fault.kind != REFUSED or all(one.full(now) for one in others)

    def _doubt(self, replica: _Replica, fault: TransportFault, now: float) -> None:
        """Sets a replica aside after its faults, and puts the next probe off after one that was due."""
        first = replica.due == SERVES
        if (fault.unreachable or replica.faults >= IN_A_ROW) if first else now >= replica.due:
            replica.wait = FIRST_PROBE if first else min(2 * replica.wait, LONGEST_PROBE)
            told = f"is set aside until it answers again ({fault.kind}: {fault.detail})" if first else ""
            self._set(replica, now + replica.wait, told)

    def _all_stopped(self, replica: _Replica, error: EndpointStopped, probe: bool) -> bool:
        """Sets a replica aside for good; whether that leaves none.

        A denial after answers may pass: then a probe has to confirm it (docs/design.md, section 6).
        """
        if isinstance(error, Denied) and replica.seconds and not (probe and replica.due != NEVER):
            if replica.due == SERVES:
                replica.wait = FIRST_PROBE
                self._set(replica, self._clock() + replica.wait, f"is set aside until it answers again ({error})")
            return all(one.due == NEVER for one in self._replicas if one is not replica)  # the caller asks once more
        if replica.due != NEVER:
            self._set(replica, NEVER, f"is set aside for good ({error})")
        return all(one.due == NEVER for one in self._replicas)

    def _set(self, replica: _Replica, due: float, told: str) -> None:
        replica.due = due
        self._serving = [one for one in self._replicas if one.due == SERVES]
        if told:
            self._on_change(f"{replica.name} {told}")

    def _remember(self, user: str, replica: _Replica) -> None:
        """In two generations: the older one goes when the younger is full."""
        if user:
            self._recent[user] = replica
        if len(self._recent) >= REMEMBERED:
            self._recent, self._earlier = {}, self._recent


def _answers(received: Received) -> bool:
    """Whether a reply is an answer, and not a prompt that was refused."""
    return bool(received.completion.text) or received.completion.finish_reason not in NEVER_ANSWERED


def _keeps(home: _Replica, least: _Replica) -> bool:
    """Whether the replica that served a user last gets the next step, too.

    One that has almost nothing to do draws whom it serves clearly faster; an idle one whom it serves no slower, too, if
    the user's has others; one that fails nobody. So a run's end does not wait for its slowest replica.
    """
    if home.in_flight > least.in_flight + max(SLACK, least.in_flight // SLACK_PART):
        return False
    if least.faults or least.in_flight > SLACK:
        return True
    drawn = home.seconds > least.seconds * FASTER
    return not drawn and (least.in_flight > 0 or home.in_flight == 0 or home.seconds * FASTER <= least.seconds)
