"""The engine of one process: plays the owed users of several jobs in one schedule.

A run stops in one of three ways. Asked to (a signal, an endpoint that will not serve it): no new request
goes out, those on the wire may answer within a grace, and what they answer is saved. By this machine:
at once, since nothing more can be saved. Asked twice: at once. In all of them what is saved is intact.
"""

from __future__ import annotations

import signal
from bisect import bisect_right
from collections.abc import Awaitable, Callable
from functools import partial

import anyio

from harness.config import GRACE_SECONDS
from harness.endpoint.caller import Caller, Reply
from harness.engine.commit import GroupCommit
from harness.engine.conversation import Conversation
from harness.engine.job import Job
from harness.engine.progress import Part, Progress, parts
from harness.engine.schedule import Schedule
from harness.errors import (
    AgentFailed,
    BadInput,
    EndpointStopped,
    GaveUp,
    HarnessError,
    MachineError,
    Rejected,
    RunStopped,
    TransportFault,
)
from harness.model import JSON, Failure, Snapshot

TICK_SECONDS = 0.25
LIVE_SCORE_SECONDS = 2.0
NOTE_SECONDS = 10.0
"""Between two lines of the log that tell the true concurrency."""

REJECTIONS_TO_STOP = 3
"""Refused requests of different users, before any success, that mean a wrong configuration."""

SIGNALS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGUSR1: 143}


class LocalEngine:
    """`observe` gets a frozen snapshot several times a second; `clock` is in seconds, monotonic."""

    def __init__(
        self,
        jobs: list[Job],
        caller: Caller,
        *,
        seed: int,
        requested: int | None,
        power: bool,
        clock: Callable[[], float],
        observe: Callable[[Snapshot], None],
    ) -> None:
        self._caller = caller
        self._clock = clock
        self._observe = observe
        self._commit = GroupCommit([job.store for job in jobs], power)
        self._parts, steps = parts(jobs)
        self._firsts = [part.first for part in self._parts]
        self._schedule = Schedule(steps, seed)
        self._steps = steps
        self._in_play = 0
        self._room = anyio.Event()
        self._progress = Progress(self._parts, caller, requested, clock)
        self._ending: HarnessError | None = None
        self._users = anyio.create_task_group()
        for job in jobs:
            job.benchmark.on_warning(partial(self._hear, job))

    async def run(self) -> HarnessError | None:
        """Plays every owed user; returns why the run stopped early, None where it did not."""
        async with anyio.create_task_group() as background:
            async with self._users:
                background.start_soon(self._watch_signals)
                background.start_soon(self._guarded, self._tick)
                background.start_soon(self._score_live)
                background.start_soon(self._guarded, self._commit.serve)
                await self._start_users()
            background.cancel_scope.cancel()
        if not isinstance(self._ending, MachineError):
            await self._guarded(self._commit.flush)
        self._observe(self._snapshot())
        return self._ending

    def schedule(self) -> JSON:
        """How close the run came to the shortest time possible; for the report, once it has ended."""
        return self._progress.schedule()

    async def _start_users(self) -> None:
        while self._schedule and self._ending is None:
            limit = self._caller.limiter.limit
            instead = min(limit, self._caller.traffic.backing_off)  # of who backs off; no crowd where everybody does
            if self._in_play >= limit + instead:
                self._room = anyio.Event()
                await self._room.wait()
                continue
            user = self._schedule.next(limit)
            self._in_play += 1
            self._users.start_soon(self._user, user)

    async def _user(self, user: int) -> None:
        part = self._parts[bisect_right(self._firsts, user) - 1]
        try:
            await self._guarded(
                lambda: self._play(part, int(part.positions[user - part.first]), int(self._steps[user]))
            )
        finally:
            self._in_play -= 1
            self._room.set()

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        """Turns an error that no user can go on after into the end of the run."""
        try:
            await work()
        except MachineError as error:
            self._stop(error, grace=0.0)
        except (BadInput, EndpointStopped) as error:
            self._stop(error, grace=GRACE_SECONDS)

    async def _play(self, part: Part, position: int, steps: int) -> None:
        """One user, from its line to its record or failure."""
        job = part.job
        task = job.task(position)
        counted, busy = 0, 0.0

        def warn(fault: TransportFault, number: int) -> None:
            self._warn(job, task.key, fault, number)

        def call(body: bytes, rank: int) -> Awaitable[Reply]:
            return self._caller.complete(body, rank, task.key, warn)

        def save(request: str, nth: int, reply: Reply) -> Awaitable[None] | None:
            job.store.save_response(
                task.key, request, nth, reply.completion, reply.seconds, reply.tries, reply.endpoint, reply.first_token
            )
            nonlocal counted, busy
            busy += reply.seconds
            if counted < steps:
                counted += 1
                self._advance(part, 1)
            return self._commit.saved() if self._commit.power else None

        conversation = Conversation(
            job.sampling, job.store.responses_of(task.key), job.benchmark.steps(task), call, save
        )
        try:
            answer = await job.benchmark.play(task, conversation.ask)
        except (GaveUp, Rejected, AgentFailed) as error:
            self._fail(part, task.key, position, error)
            self._advance(part, steps - counted)
        else:
            metrics = job.benchmark.measure(task, answer)
            record = job.store.save_record(job.benchmark.record(task, answer, metrics), job.index, position)
            await self._commit.saved()
            part.live.add(record)
            self._advance(part, steps - counted)
            if conversation.unused:
                job.otherwise += 1
                job.store.event("asked_otherwise", user_id=task.key, unused_responses=conversation.unused)
        finally:
            self._progress.replayed += conversation.replayed
            self._progress.user_ended(busy)

    def _advance(self, part: Part, steps: int) -> None:
        part.steps_done += steps
        self._schedule.done(steps)

    def _fail(self, part: Part, key: str, position: int, error: GaveUp | Rejected | AgentFailed) -> None:
        """Records a user given up on; refusals before any success mean that no user will do better."""
        tries = error.tries if isinstance(error, GaveUp) else 1
        boundary = "agent" if isinstance(error, AgentFailed) else "endpoint"
        failure = Failure(key, boundary, error.kind, error.detail, tries)
        part.job.store.save_failure(failure, part.job.index.digest(position))
        part.job.failed += 1
        self._progress.last_warning = f"{key}: {error}"
        if isinstance(error, Rejected):
            self._progress.rejected += 1
            if self._progress.rejected >= REJECTIONS_TO_STOP and not self._caller.traffic.successes:
                self._stop(EndpointStopped(f"the endpoint refuses every request so far ({error})"), GRACE_SECONDS)

    def _hear(self, job: Job, warning: str) -> None:
        """A warning of the benchmark."""
        job.store.event("warning", detail=warning)
        job.warnings.append(warning)
        self._progress.last_warning = warning

    def _warn(self, job: Job, key: str, fault: TransportFault, number: int) -> None:
        job.store.event("retry", user_id=key, kind=fault.kind, detail=fault.detail, try_number=number)
        self._progress.last_warning = f"{fault.kind}: {fault.detail}"

    def _stop(self, reason: HarnessError, grace: float) -> None:
        """Ends the run: the first reason is the one that is told, a later one can only shorten the grace."""
        first = self._ending is None
        if first or isinstance(reason, MachineError):  # that one is told whatever came before it
            self._ending = reason
        self._caller.limiter.close()
        self._users.cancel_scope.deadline = min(self._users.cancel_scope.deadline, anyio.current_time() + grace)
        self._room.set()
        if first and not isinstance(reason, MachineError):
            self._note(reason)

    def _note(self, reason: HarnessError) -> None:
        """Writes down why the run ends, where this machine still can."""
        try:
            for part in self._parts:
                part.job.store.event("stopping", reason=str(reason))
        except MachineError as error:
            self._stop(error, grace=0.0)

    async def _watch_signals(self) -> None:
        with anyio.open_signal_receiver(*SIGNALS) as signals:
            async for number in signals:
                again = self._ending is not None
                self._stop(RunStopped(SIGNALS[number]), grace=0.0 if again else GRACE_SECONDS)

    async def _tick(self) -> None:
        noted = self._clock()
        while True:
            due = self._clock() + TICK_SECONDS
            await anyio.sleep(TICK_SECONDS)
            self._progress.tick(max(0.0, self._clock() - due))
            if self._ending is not None and not self._caller.limiter.in_flight:
                self._users.cancel_scope.cancel()  # whoever is left waits for a slot that will not come
            for part in self._parts:
                part.job.store.beat()
            self._room.set()  # the limit may have grown
            snapshot = self._snapshot()
            self._observe(snapshot)
            if self._clock() - noted >= NOTE_SECONDS:
                noted = self._clock()
                self._note_concurrency(snapshot)

    def _note_concurrency(self, snapshot: Snapshot) -> None:
        for part in self._parts:
            part.job.store.event(
                "concurrency",
                requested=snapshot.requested or "auto",
                admitted=snapshot.limit,
                on_the_wire=snapshot.in_flight,
                waiting=snapshot.waiting,
                held_by=snapshot.held_by,
                outage_seconds=round(snapshot.outage, 1),
                loop_lag_ms=round(1e3 * snapshot.lag, 1),
                slowest_write_ms=round(1e3 * snapshot.slowest_write, 1),
            )

    async def _score_live(self) -> None:
        last = self._clock()
        while True:
            await anyio.sleep(TICK_SECONDS)
            due = self._clock() - last >= LIVE_SCORE_SECONDS
            for part in self._parts:
                if due or part.live.shard_is_full:
                    await part.live.advance()
            if due:
                last = self._clock()

    def _snapshot(self) -> Snapshot:
        return self._progress.snapshot(self._schedule.remaining_steps, str(self._ending) if self._ending else None)
