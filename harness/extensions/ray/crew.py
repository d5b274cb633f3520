"""The driver's side of all workers: which part each plays, its share of the limits, and what it
reports.

A worker has one turn at a time. Its report is appended to the files of the runs, in order, before
its next turn. A part whose worker is lost goes on elsewhere, from these files: what is paid for
twice is what was in flight, and what the worker had saved since its last report.

Shares of an account's limits follow from who plays now. A share grows only by what others have
given up: the sum of what workers were allowed last, or have in flight if that is more, is never
above the limit. A worker that does not answer may send until its lease ends, so its share is dealt
again after `SHARE_SECONDS`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, Protocol

import anyio
import anyio.to_thread

from harness.client.caller import Loan
from harness.defaults import GRACE_SECONDS, RunTuning
from harness.errors import EndpointStopped, HarnessError, MachineError
from harness.extensions.ray.messages import PartEnd, SentPart, TurnOrder, TurnReport
from harness.extensions.ray.runner import PartsRunner, UserPart
from harness.extensions.ray.worker import LEASE_SECONDS

TURN_SECONDS = 1.0
"""How long a worker plays between two reports."""
FIRST_TURN_SECONDS = 0.1
"""The first turn is short: the log gets the requests in flight."""
SHARE_SECONDS = LEASE_SECONDS + 1.0
"""Without a report for so long, a worker's share is dealt again."""
SILENT_SECONDS = 60.0
"""Without a report for so long, a worker's part is dealt again."""
HEAD_SECONDS = 3.0
"""Between two looks at the cluster's head."""
HEAD_MISSES = 4
"""Failed looks in a row that mean that it is gone. Ray ends a driver that has been without it for a
minute."""
LOSSES_MOST = 5
"""Losses without any user's end in between, for few workers, after which the run stops: twice the
workers if these are more."""
REST_SECONDS = 30.0
"""How long a worker gets no part whose last one could not go on there, and may elsewhere."""
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


class Worker(Protocol):
    """A process that plays parts, with its `name` for messages."""

    name: str

    async def turn(self, part: SentPart | None, order: TurnOrder) -> TurnReport: ...

    def kill(self) -> None: ...


@dataclass(eq=False)
class _Seat:
    """A worker and what it has. `allowed` is how many requests it may have in flight, and `limit`
    the number that it found. `loan` is its part of a budget. It gets no part until `rests_until`,
    in seconds of the event loop."""

    worker: Worker
    part: UserPart | None = None
    allowed: int = 0
    limit: int = 0
    last: TurnReport = field(default_factory=TurnReport)
    turned_at: float = 0.0
    silent: bool = False
    rests_until: float = float("-inf")
    loan: Loan | None = None

    @property
    def in_use(self) -> int:
        return max(self.allowed, self.last.in_flight)


class Crew:
    """Workers for the runners of a session; `count` are wanted, of which the `first` is there.
    `start` returns one, or raises `HarnessError`."""

    def __init__(self, first: Worker, start: Callable[[], Awaitable[Worker]], count: int) -> None:
        self._first = first
        self._start = start
        self._count = count
        self._runners: Sequence[PartsRunner] = ()
        self._seats: list[_Seat] = []
        self._losses = 0
        self._starting = 0
        """Workers that are being started."""
        self._serving = anyio.create_task_group()

    async def serve(self, runners: Sequence[PartsRunner]) -> None:
        """Have workers play the parts of runners, until cancelled."""
        self._runners = runners
        async with self._serving:
            self._serving.start_soon(self._employ, self._first)
            for _ in range(self._count - 1):
                self._serving.start_soon(self._hire)

    async def watch(self, head_answers: Callable[[], bool]) -> None:
        """Stop all runners once the cluster's head is gone."""
        missed = 0
        while missed < HEAD_MISSES:
            await anyio.sleep(HEAD_SECONDS)
            missed += 1
            # A look may hang where the head is gone, and must not keep the driver from ending.
            if await anyio.to_thread.run_sync(head_answers, abandon_on_cancel=True):
                missed = 0
        self._stop(
            WorkersStopped(
                "the head of the Ray cluster is gone: `resume` continues on another cluster"
            )
        )

    def plays(self, runner: PartsRunner) -> Iterator[_Seat]:
        """Yield the seats with a part of a runner."""
        return (seat for seat in self._seats if seat.part and seat.part.runner is runner)

    async def _hire(self) -> None:
        """Start a worker, and have it play until it is lost."""
        self._starting += 1
        try:
            worker = await self._start()
        except HarnessError as error:
            if isinstance(error, MachineError) and (self._seats or self._starting > 1):
                return self._note(f"the run goes on with fewer workers: {error}")
            return self._stop(error)
        finally:
            self._starting -= 1
        await self._employ(worker)

    async def _employ(self, worker: Worker) -> None:
        seat = _Seat(worker)
        self._seats.append(seat)
        try:
            while True:
                part = self._next(seat)
                if part:
                    await self._play(seat, part)
                else:
                    await worker.turn(None, TurnOrder(0.0, RunTuning(), 0))
                    await anyio.sleep(TURN_SECONDS / 4)
        except WorkerGone as gone:
            if seat.part and not gone.certain:  # it may be sending until then
                await anyio.sleep_until(seat.turned_at + SHARE_SECONDS)
            self._lose(seat, gone)

    async def _play(self, seat: _Seat, part: UserPart) -> None:
        """Have a worker play a part, until it has ended. Raise `WorkerGone`."""
        runner = part.runner
        seat.part = part
        seat.last = TurnReport()
        seat.allowed = 0
        seat.loan = runner.caller.allowance.loan()
        report = await self._answer(seat, part.sent(), self._order(seat, runner))
        while not report.ended and not runner.over:
            await self._take(seat, part, report)
            report = await self._answer(seat, None, self._order(seat, runner))
        if not runner.over:
            await self._take(seat, part, report)
        if not report.ended:
            raise WorkerGone("it played on after its run had ended", certain=False)
        seat.part = None
        if not runner.over:
            self._end(seat, part, report.ended)

    async def _answer(self, seat: _Seat, sent: SentPart | None, order: TurnOrder) -> TurnReport:
        """Return the report of a turn. Raise `WorkerGone`."""
        seat.turned_at = anyio.current_time()
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
        """Return the part that a worker plays next: of the runner with the largest share of parts
        left."""
        if anyio.current_time() < seat.rests_until:
            return None
        best = None
        largest = 0.0
        for runner in self._runners:
            if not runner.waiting or runner.ending is not None or not self._has_room(runner):
                continue
            left = len(runner.waiting) / len(runner.parts)
            if left > largest:
                best = runner
                largest = left
        return best.waiting.popleft() if best else None

    def _has_room(self, runner: PartsRunner) -> bool:
        """Return whether one more worker has a share of a runner's limit."""
        return len(self._sharing(runner)) < self._limits(runner).most

    def _sharing(self, runner: PartsRunner) -> list[_Seat]:
        """Return the seats that have a share of the limits of a runner's account."""
        return [
            seat
            for seat in self._seats
            if seat.part and seat.part.runner.slots is runner.slots and not seat.silent
        ]

    def _limits(self, runner: PartsRunner) -> RunTuning:
        """Return the limits of a runner's account as they are now."""
        slots = runner.slots
        return reduce(
            RunTuning.combined, [other.tuning for other in self._runners if other.slots is slots]
        )

    def _order(self, seat: _Seat, runner: PartsRunner) -> TurnOrder:
        """Return what holds in a worker's next turn. A share grows by what others have given up."""
        sharing = self._sharing(runner)
        limits = self._limits(runner)
        number = sharing.index(seat) + 1
        shares = min(len(sharing), limits.most)
        tuning = limits.shared(min(number, shares), shares)
        share = tuning.most if number <= shares else 0
        # What others have in flight cannot be taken back, so it counts against this share.
        used_by_others = sum([other.in_use for other in sharing]) - seat.in_use
        seat.allowed = max(0, min(share, limits.most - used_by_others))
        rates: dict[str, Any] = {}
        for name in ("rpm", "tpm"):
            rate = getattr(limits, name)
            if rate:
                rates[name] = rate * seat.allowed / limits.most
        tuning = replace(tuning, start=seat.limit or tuning.start, **rates)
        loan = None
        if seat.loan:
            loan = seat.loan.renewed(seat.last.taken, seat.last.reserved, len(sharing))
        seconds = TURN_SECONDS if seat.last.in_flight else FIRST_TURN_SECONDS
        grace = None if runner.ending is None else GRACE_SECONDS
        return TurnOrder(seconds, tuning, seat.allowed, loan, grace)

    # What a worker reports

    async def _take(self, seat: _Seat, part: UserPart, report: TurnReport) -> None:
        """Save and count what a worker reports."""
        runner = part.runner
        try:
            runner.take(part, report)
            await runner.commit.saved()
        except MachineError as error:
            runner.stop(error, grace=0.0)
        if report.logs.get("results"):
            self._losses = 0
        seat.last = report
        seat.limit = report.limit or seat.limit

    def _end(self, seat: _Seat, part: UserPart, ended: PartEnd) -> None:
        """Note how a part has ended; give it to others if it is its worker that cannot go on."""
        runner = part.runner
        error = ended.error
        if seat.loan:
            seat.loan.settle(seat.last.taken)
        runner.end_part(part.run, ended)
        if error is None:
            runner.finished()
        elif runner.ending is not None:
            return
        elif self._may_go_on(runner, error):
            seat.rests_until = anyio.current_time() + REST_SECONDS
            runner.waiting.appendleft(part)
            self._note(f"worker {seat.worker.name} gets no users for {REST_SECONDS:.0f} s: {error}")
        else:
            if seat.loan:
                error = seat.loan.reached(error)
            runner.stop(error, GRACE_SECONDS)

    def _may_go_on(self, runner: PartsRunner, error: HarnessError) -> bool:
        """Return whether other workers, or the same one later, may play a part that an error has
        ended."""
        # While others play, their replies may give back a part of the budget.
        if error.exit_code == BUDGET_REACHED:
            return bool(self._sharing(runner))
        if type(error) is not EndpointStopped:
            return False
        if runner.replied_at is None:
            return self._starting > 0 or any(self.plays(runner))
        return anyio.current_time() - runner.replied_at < runner.tuning.max_outage

    def _lose(self, seat: _Seat, gone: WorkerGone) -> None:
        """Give a lost worker's part to others, and start another worker."""
        self._seats.remove(seat)
        if seat.part:
            # To the front, since its users are half done: those of other parts may not have begun.
            seat.part.runner.waiting.appendleft(seat.part)
            if seat.loan:
                seat.loan.lose()
        seat.worker.kill()
        self._losses += 1
        self._note(f"worker {seat.worker.name} is lost: {gone}")
        if self._losses > max(LOSSES_MOST, 2 * self._count):
            why = f"{self._losses} workers were lost, and no user was done: {gone}"
            self._stop(WorkersStopped(why))
        elif self._open_runners:
            self._serving.start_soon(self._hire)

    def _note(self, text: str) -> None:
        for runner in self._open_runners:
            runner.note("worker", text)

    def _stop(self, error: HarnessError) -> None:
        for runner in self._open_runners:
            runner.stop(error, GRACE_SECONDS)

    @property
    def _open_runners(self) -> list[PartsRunner]:
        return [runner for runner in self._runners if not runner.over]
