"""The driver's side of all workers: which part each plays, its share of the limits, and what it reports.

A worker has one turn at a time. Its report is appended to the files of the runs, in order, before its next turn. A part
whose worker is lost goes on elsewhere, from these files: what is paid for twice is what was in flight, and what the
worker had saved since its last report.

Shares of an account's limits follow from who plays now. A share grows only by what others have given up: the sum of
what workers were allowed last, or have in flight if that is more, is never above the limit. A worker that does not
answer may send until its lease ends, so its share is dealt again after `SHARE_SECONDS`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import anyio
import anyio.to_thread

from harness.defaults import GRACE_SECONDS, Tuning
from harness.endpoint.limiter import Slots
from harness.errors import EndpointStopped, HarnessError, MachineError
from harness.feature import function
from harness.features.ray.lane import LaneOfParts, UserPart
from harness.features.ray.messages import SentPart, TurnOrder, TurnReport
from harness.features.ray.worker import LEASE_SECONDS

TURN_SECONDS, FIRST_TURN_SECONDS = 1.0, 0.1
"""How long a worker plays between two reports; the first is short: the log gets the requests in flight."""
SHARE_SECONDS, SILENT_SECONDS = LEASE_SECONDS + 1.0, 60.0
"""Without a report for so long, a worker's share is dealt again, and its part."""
UNREACHED = frozenset({"connect", "denied", "proxy", "replica", "unknown_host"})
"""Kinds of failed tries that reached no model."""
HEAD_SECONDS, HEAD_MISSES = 3.0, 4
"""Between two looks at the cluster's head, and failed ones in a row that mean that it is gone. Ray ends a driver that
has been without it for a minute."""
LOSSES_MOST = 5
"""Losses without any user's end in between, for few workers, after which the run stops: twice the workers if these are
more."""
CUT_OFF_SECONDS, REST_SECONDS = 10.0, 30.0
"""How long a worker may reach nothing while others have replies, and how long it gets no part then."""
BUDGET_REACHED = 5
"""Exit code of an error about a budget."""


class WorkersStopped(HarnessError):
    """No worker process is left, or nobody who could start another."""

    exit_code = MachineError.exit_code


class WorkerGone(Exception):
    """A worker takes no more turns. `certain`: its process is gone, and with it its connections."""

    def __init__(self, why: str, *, certain: bool) -> None:
        super().__init__(why)
        self.certain = certain


@dataclass(eq=False)
class _Seat:
    """A worker and what it has. `allowed` is how many requests it may have in flight, and `limit` the number that it
    found. `loan` is its part of a budget. It gets no part until `rests_until`, in seconds of the event loop, and while
    others play if it has `waived` its part of a budget. `cut_off`: others reach the endpoint, and it does not."""

    worker: Any
    part: UserPart | None = None
    begins: bool = False
    allowed: int = 0
    limit: int = 0
    last: TurnReport = field(default_factory=TurnReport)
    replied_at: float = float("-inf")
    turned_at: float = 0.0
    silent: bool = False
    rests_until: float = float("-inf")
    waived: bool = False
    cut_off: bool = False
    loan: Any = None

    @property
    def in_use(self) -> int:
        return max(self.allowed, self.last.in_flight)


class Crew:
    """Workers for the lanes of a session; `count` are wanted, of which the `first` is there. `start` returns one, or
    raises `HarnessError`."""

    def __init__(self, first: Any, start: Callable[[], Awaitable[Any]], count: int) -> None:
        self._first = first
        self._start = start
        self._count = count
        self._lanes: Sequence[LaneOfParts] = ()
        self._seats: list[_Seat] = []
        self._withheld: list[tuple[Slots, int, float]] = []
        """Slots that lost workers may still use, and until when."""
        self._losses = 0
        self._serving = anyio.create_task_group()

    async def serve(self, lanes: Sequence[LaneOfParts]) -> None:
        """Have workers play the parts of lanes, until cancelled."""
        self._lanes = lanes
        async with self._serving:
            self._serving.start_soon(self._employ, self._first)
            for _ in range(self._count - 1):
                self._serving.start_soon(self._hire)

    async def watch(self, head_answers: Callable[[], bool]) -> None:
        """Stop all lanes once the cluster's head is gone."""
        missed = 0
        while missed < HEAD_MISSES:
            await anyio.sleep(HEAD_SECONDS)
            missed = 0 if await anyio.to_thread.run_sync(head_answers, abandon_on_cancel=True) else missed + 1
        self._stop(WorkersStopped("the head of the Ray cluster is gone: `resume` continues on another cluster"))

    def plays(self, lane: LaneOfParts) -> Iterator[_Seat]:
        """Yield the seats with a part of a lane."""
        return (seat for seat in self._seats if seat.part and seat.part.lane is lane)

    async def _hire(self) -> None:
        """Start a worker, and have it play until it is lost."""
        try:
            worker = await self._start()
        except HarnessError as error:
            if self._seats and isinstance(error, MachineError):
                return self._note(f"the run goes on with fewer workers: {error}")
            return self._stop(error)
        await self._employ(worker)

    async def _employ(self, worker: Any) -> None:
        self._seats.append(seat := _Seat(worker))
        try:
            while True:
                await self._turn(seat)
        except WorkerGone as gone:
            self._lose(seat, gone)

    async def _turn(self, seat: _Seat) -> None:
        if seat.part is None and (part := self._next(seat)):
            seat.part, seat.begins, seat.last = part, True, TurnReport()
        if seat.part is None:
            await seat.worker.turn(None, TurnOrder(0.0, Tuning(), 0))
            return await anyio.sleep(TURN_SECONDS / 4)
        order = self._order(seat, seat.part)
        sent, seat.begins = seat.part.sent() if seat.begins else None, False
        report = await self._answer(seat, sent, order)
        await self._take(seat, seat.part, report)

    async def _answer(self, seat: _Seat, sent: SentPart | None, order: TurnOrder) -> TurnReport:
        """Return the report of a turn. Raise `WorkerGone`."""
        seat.turned_at = asyncio.get_running_loop().time()
        answer = asyncio.ensure_future(seat.worker.turn(sent, order))
        try:
            await asyncio.wait({answer}, timeout=SHARE_SECONDS)
            seat.silent = not answer.done()
            if seat.silent:
                await asyncio.wait({answer}, timeout=SILENT_SECONDS - SHARE_SECONDS)
            if not answer.done():
                raise WorkerGone(f"it has not answered for {SILENT_SECONDS:.0f} s", certain=False)
            report: TurnReport = answer.result()
            return report
        finally:
            answer.cancel()
            seat.silent = False

    # Parts and shares

    def _next(self, seat: _Seat) -> UserPart | None:
        """Return the part that a worker plays next: of the lane with the largest share of parts left."""
        if asyncio.get_running_loop().time() < seat.rests_until:
            return None
        open_lanes = [
            lane for lane in self._lanes if lane.waiting and lane.ending is None and self._has_room(seat, lane)
        ]
        if not open_lanes:
            return None
        return max(open_lanes, key=lambda lane: len(lane.waiting) / len(lane.parts)).waiting.popleft()

    def _has_room(self, seat: _Seat, lane: LaneOfParts) -> bool:
        """Return whether one more worker has a share of a lane's limit and budget."""
        others = len(self._sharing(lane.slots))
        return others < _tuning(self._lanes, lane.slots).most and not (seat.waived and others)

    def _sharing(self, slots: Slots) -> list[_Seat]:
        """Return the seats that have a share of an account's limits."""
        return [seat for seat in self._seats if seat.part and seat.part.lane.slots is slots and not seat.silent]

    def _order(self, seat: _Seat, part: UserPart) -> TurnOrder:
        lane, slots = part.lane, part.lane.slots
        sharing, whole = self._sharing(slots), _tuning(self._lanes, slots)
        number, shares = sharing.index(seat) + 1, min(len(sharing), whole.most)
        tuning = whole.shared(min(number, shares), shares)
        now = asyncio.get_running_loop().time()
        self._withheld = [held for held in self._withheld if held[2] > now]
        used = sum([other.in_use for other in sharing if other is not seat])
        used += sum([number for account, number, _ in self._withheld if account is slots])
        seat.allowed = max(0, min(tuning.most if number <= shares else 0, whole.most - used))
        if seat.limit and seat.begins:
            tuning = replace(tuning, start=seat.limit)
        if seat.begins and (borrow := function("loan")):
            seat.loan = borrow(lane.caller.allowance)
        loan = seat.loan.renewed(seat.last.taken, seat.last.reserved, len(sharing)) if seat.loan else None
        seconds = FIRST_TURN_SECONDS if seat.begins or not seat.last.in_flight else TURN_SECONDS
        if seat.begins and lane.caller.traffic.successes:  # as in an outage of one process
            tuning = replace(tuning, wait=max(tuning.wait, tuning.max_outage))
        grace = 0.0 if seat.cut_off else None if lane.ending is None else GRACE_SECONDS
        return TurnOrder(seconds, tuning, seat.allowed, loan, grace)

    # What a worker reports

    async def _take(self, seat: _Seat, part: UserPart, report: TurnReport) -> None:
        now, lane = asyncio.get_running_loop().time(), part.lane
        if lane.over and report.ended:
            return self._leave(seat)
        if lane.over:
            raise WorkerGone("it played on after its run had ended", certain=False)
        try:
            part.save(report)
            await lane.commit.saved()
        except MachineError as error:
            lane.stop(error, grace=0.0)
        if lane.count(part, seat.last, report):
            self._losses = 0
        if report.latencies:
            seat.replied_at = now
        seat.last, seat.limit = report, report.limit or seat.limit
        lane.mirror([other.last for other in self.plays(lane)])
        if report.ended:
            self._end(seat, part, report)
        elif _reached_nothing(report) and self._others_reply(seat):
            seat.cut_off = True

    def _end(self, seat: _Seat, part: UserPart, report: TurnReport) -> None:
        assert report.ended
        lane, error = part.lane, report.ended.error
        others = [other for other in self._sharing(lane.slots) if other is not seat]
        undecided = _reached_nothing(report) and any(not other.last.replies for other in others)
        may_be_alone, was_cut_off = undecided or self._others_reply(seat), seat.cut_off
        loan = seat.loan
        if loan:
            loan.settle(report.taken)
        self._leave(seat)
        lane.end_part(report.ended)
        if error is None:
            lane.finished()
        elif lane.ending is None and error.exit_code == BUDGET_REACHED and others:
            seat.waived = True
            lane.waiting.appendleft(part)
        elif lane.ending is None and (was_cut_off or (type(error) is EndpointStopped and may_be_alone)):
            self._rest(seat, part, "it does not reach the endpoint" if was_cut_off else str(error))
        elif lane.ending is None:
            lane.stop(loan.reached(error) if loan else error, GRACE_SECONDS)

    def _others_reply(self, seat: _Seat) -> bool:
        since = asyncio.get_running_loop().time() - REST_SECONDS
        return any(other.replied_at > since for other in self._seats if other is not seat)

    def _rest(self, seat: _Seat, part: UserPart, why: str) -> None:
        """Give a part to others, and none to its worker for a while."""
        seat.rests_until = asyncio.get_running_loop().time() + REST_SECONDS
        part.lane.waiting.appendleft(part)
        self._note(f"worker {seat.worker.name} gets no users for {REST_SECONDS:.0f} s: {why}")

    def _leave(self, seat: _Seat) -> None:
        seat.part, seat.loan, seat.cut_off, seat.allowed, seat.last = None, None, False, 0, TurnReport()

    def _lose(self, seat: _Seat, gone: WorkerGone) -> None:
        """Give a lost worker's part to others, and start another worker."""
        self._seats.remove(seat)
        if part := seat.part:
            if not gone.certain:
                self._withheld.append((part.lane.slots, seat.in_use, seat.turned_at + SHARE_SECONDS))
            part.lane.waiting.appendleft(part)
            part.lane.mirror([other.last for other in self.plays(part.lane)])
            if seat.loan:
                seat.loan.lose()
        seat.worker.kill()
        self._losses += 1
        self._note(f"worker {seat.worker.name} is lost: {gone}")
        if self._losses > max(LOSSES_MOST, 2 * self._count):
            return self._stop(WorkersStopped(f"{self._losses} workers were lost, and no user was done: {gone}"))
        if any(not lane.over for lane in self._lanes):
            self._serving.start_soon(self._hire)

    def _note(self, words: str) -> None:
        for lane in self._lanes:
            if not lane.over:
                lane.note("worker", words)

    def _stop(self, error: HarnessError) -> None:
        for lane in self._lanes:
            if not lane.over:
                lane.stop(error, GRACE_SECONDS)


def _tuning(lanes: Sequence[LaneOfParts], slots: Slots) -> Tuning:
    """Return the limits of an account as they are now."""
    return reduce(Tuning.combined, [lane.tuning for lane in lanes if lane.slots is slots])


def _reached_nothing(report: TurnReport) -> bool:
    """Return whether all tries of a part failed on the way to the endpoint, for a while."""
    now = report.snapshot
    if now is None or report.replies or not now.faults or (not report.ended and now.seconds < CUT_OFF_SECONDS):
        return False
    return all(kind in UNREACHED for kind, _ in now.faults)
