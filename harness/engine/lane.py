"""Run the users of one run: their calls, their files and the end of the run.

A lane stops in one of three ways. On request (a signal, an endpoint that refuses it): no new request is sent, those in
flight have a grace period to finish, and their replies are saved. On a machine error: at once, since nothing more can
be saved. On a second request: at once. Saved data stays intact, and no other lane is affected unless the reason is a
machine error.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Awaitable, Callable

import anyio

from harness.defaults import GRACE_SECONDS
from harness.endpoint.caller import Caller, Reply
from harness.engine.commit import GroupCommit
from harness.engine.job import Job
from harness.engine.play import play, recorded
from harness.engine.progress import Ahead, Part, Progress, parts
from harness.engine.replay import Conversation
from harness.engine.schedule import Schedule
from harness.errors import (
    AgentFailed,
    BadInput,
    BenchmarkError,
    EndpointStopped,
    GaveUp,
    HarnessError,
    MachineError,
    Rejected,
    TransportFault,
)
from harness.model import Failure, Snapshot

REJECTIONS_TO_STOP = 3
"""Refused requests of different users, before any success, that indicate a wrong configuration; likewise users for
whom the benchmark's code failed."""

BOUNDARIES: dict[type[HarnessError], str] = {AgentFailed: "agent", BenchmarkError: "benchmark"}
"""The boundary that an error of a failed user crossed, if not the endpoint's."""


class Lane:
    """The jobs of one run's subsets and the caller that they share. `clock` is in seconds, monotonic.

    `ending` is why it stopped early, else None. `in_play` counts users that have started and not ended; `over` means
    that all have ended and that their results are in the files.
    """

    def __init__(
        self,
        name: str,
        jobs: list[Job],
        caller: Caller,
        *,
        seed: int,
        requested: int | None,
        power: bool,
        clock: Callable[[], float],
    ) -> None:
        self.caller = caller
        self.ending: HarnessError | None = None
        self.in_play = 0
        self.over = False
        self._completed = self._broken = 0
        self.parts, self._steps = parts(jobs)
        self.schedule = Schedule(self._steps, seed)
        self.progress = Progress(name, self.parts, caller, requested, clock, power)
        self._to_go: dict[int, int] = {}
        self._commit = GroupCommit([job.store for job in jobs], power)
        self._firsts = [part.first for part in self.parts]
        self._users = anyio.create_task_group()
        self._all_started = anyio.Event()

    async def run(self) -> None:
        """Run from the first user to the last one's end. The caller decides who starts when, by `start_next`."""
        async with anyio.create_task_group() as background:
            async with self._users:
                background.start_soon(self.guarded, self._commit.serve)
                await self._all_started.wait()
            background.cancel_scope.cancel()
        if not isinstance(self.ending, MachineError):
            await self.guarded(self._commit.flush)
        self.over = True

    @property
    def has_more(self) -> bool:
        """Return whether users wait to be started; a stopping lane starts none."""
        return bool(self.schedule) and self.ending is None

    @property
    def in_outage(self) -> bool:
        return self.caller.limiter.probing

    def start_next(self, slots: int, other_steps: int) -> None:
        """Starts a user; `slots` and `other_steps` as for `Schedule.next`."""
        self.in_play += 1
        self._users.start_soon(self._user, self.schedule.next(slots, other_steps))

    def starts_no_more(self) -> None:
        self._all_started.set()

    def stop(self, reason: HarnessError, grace: float) -> None:
        """End the lane. The first reason is reported; a later one can only shorten the grace, in seconds."""
        first = self.ending is None
        if first or isinstance(reason, MachineError):  # reported even after another reason
            self.ending = reason
        self.caller.limiter.close()
        self._users.cancel_scope.deadline = min(self._users.cancel_scope.deadline, anyio.current_time() + grace)
        self.caller.limiter.slots.wake()
        if first and not isinstance(reason, MachineError):
            self._note(reason)

    def look_around(self, lag: float) -> None:
        """Do the periodic work; `lag` is how late the event loop was, in seconds."""
        self.progress.tick(lag)
        if self.ending is not None and not self.caller.limiter.in_flight:
            self._users.cancel_scope.cancel()  # the rest wait for a slot that they will not get
        for part in self.parts:
            self._take_warnings(part.job)
            part.job.store.beat()

    def note_concurrency(self) -> None:
        snapshot = self.snapshot()
        for part in self.parts:
            part.job.store.event(
                "concurrency",
                requested=snapshot.requested or "auto",
                admitted=snapshot.limit,
                on_the_wire=snapshot.in_flight,
                beside=snapshot.others_in_flight,
                waiting=snapshot.waiting,
                held_by=snapshot.held_by,
                outage_seconds=round(snapshot.outage, 1),
                loop_lag_ms=round(1e3 * snapshot.lag, 1),
                slowest_write_ms=round(1e3 * snapshot.slowest_write, 1),
            )

    def note(self, what: str, detail: str) -> None:
        """Log a finding about the endpoint, and show it."""
        self.progress.warn(detail)
        for part in self.parts:
            part.job.store.event(what, detail=detail)

    def snapshot(self) -> Snapshot:
        longest = max(self.schedule.longest(), max(self._to_go.values(), default=0))
        stopping = str(self.ending) if self.ending else None
        return self.progress.snapshot(Ahead(self.schedule.remaining_steps, longest, stopping, self.over))

    async def guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        """Dispatch an error that no user can go on after into the end of the lane, or of all."""
        try:
            await work()
        except MachineError as error:
            self.stop(error, grace=0.0)
        except (BadInput, BenchmarkError, EndpointStopped) as error:
            self.stop(error, grace=GRACE_SECONDS)

    async def _user(self, user: int) -> None:
        part = self.parts[bisect_right(self._firsts, user) - 1]
        try:
            await self.guarded(lambda: self._play(part, user))
        finally:
            self.in_play -= 1
            self._to_go.pop(user, None)
            self.caller.limiter.slots.wake()

    async def _play(self, part: Part, user: int) -> None:
        """Play one user, from its line to its record or failure."""
        job, position, steps = part.job, int(part.positions[user - part.first]), int(self._steps[user])
        self._to_go[user] = steps
        task = job.task(position)
        counted, busy = 0, 0.0

        def warn(fault: TransportFault, number: int) -> None:
            self._warn(job, task.key, fault, number)

        def call(body: bytes, rank: int) -> Awaitable[Reply]:
            return self.caller.complete(body, rank, task.key, warn)

        def save(request: str, nth: int, reply: Reply) -> Awaitable[None] | None:
            job.store.save_response(
                task.key, request, nth, reply.completion, reply.seconds, reply.tries, reply.endpoint, reply.first_token
            )
            nonlocal counted, busy
            busy += reply.seconds
            self.progress.answered(reply.seconds)
            if counted < steps:
                counted += 1
                self._to_go[user] = steps - counted
                self._advance(part, 1)
            return self._commit.saved() if self._commit.power else None

        conversation = Conversation(job.sampling, job.store.responses_of(task.key), task.steps, call, save)
        played = None
        try:
            played = await play(job.benchmark, task, conversation.ask)
            made = recorded(job.benchmark, task, played)
        except (GaveUp, Rejected, AgentFailed, BenchmarkError) as error:
            if played is not None and not self._completed:
                raise  # a benchmark that cannot measure its first user stops before others are paid for
            self._fail(part, task.key, position, error)
            self._advance(part, steps - counted)
        else:
            self._completed += 1
            record = job.store.save_record(made, job.index, position)
            await self._commit.saved()
            part.live.add(record)
            self._advance(part, steps - counted)
            if conversation.unused:
                job.otherwise += 1
                job.store.event("asked_otherwise", user_id=task.key, unused_responses=conversation.unused)
        finally:
            self._take_warnings(job)
            self.progress.replayed += conversation.replayed
            self.progress.user_ended(busy, conversation.asked - conversation.replayed, steps)

    def _advance(self, part: Part, steps: int) -> None:
        part.steps_done += steps
        self.schedule.done(steps)

    def _fail(
        self, part: Part, key: str, position: int, error: GaveUp | Rejected | AgentFailed | BenchmarkError
    ) -> None:
        """Record a failed user; refusals before any success mean that no other user will succeed."""
        tries = error.tries if isinstance(error, GaveUp) else 1
        failure = Failure(key, BOUNDARIES.get(type(error), "endpoint"), error.kind, error.detail, tries)
        part.job.store.save_failure(failure, part.job.index.digest(position))
        part.job.failed += 1
        self.progress.user_failed(key, error.kind, str(error))
        if isinstance(error, Rejected):
            self.progress.rejected += 1
            if self.progress.rejected >= REJECTIONS_TO_STOP and not self.caller.traffic.successes:
                self.stop(EndpointStopped(f"the endpoint refuses every request so far ({error})"), GRACE_SECONDS)
        elif isinstance(error, BenchmarkError):
            self._broken += 1
            if self._broken >= REJECTIONS_TO_STOP and not self._completed:
                self.stop(error, GRACE_SECONDS)

    def _take_warnings(self, job: Job) -> None:
        """Log the benchmark's warnings since the last call, and show them."""
        fresh, job.benchmark.warnings = job.benchmark.warnings, []
        for warning in fresh:
            job.store.event("warning", detail=warning)
            job.warnings += [warning] if warning not in job.warnings else []
            self.progress.warn(warning)

    def _warn(self, job: Job, key: str, fault: TransportFault, number: int) -> None:
        job.store.event("retry", user_id=key, kind=fault.kind, detail=fault.detail, try_number=number)
        self.progress.try_failed(fault.kind, fault.detail)

    def _note(self, reason: HarnessError) -> None:
        """Log why the lane ends, if this machine still can."""
        try:
            for part in self.parts:
                part.job.store.event("stopping", reason=str(reason))
        except MachineError as error:
            self.stop(error, grace=0.0)
