"""Play the users of one plan's runs: their calls, their files and the end of the runs.

A runner stops in one of three ways. On request (a signal, an endpoint that refuses it): no new
request is sent, those in flight have a grace period to finish, and their replies are saved. On a
machine error: at once, since nothing more can be saved. On a second request: at once. Saved data
stays intact, and no other runner is affected unless the reason is a machine error.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import anyio
import numpy as np

from harness.benchmarks.user_code import guarded
from harness.client.caller import ABANDONED, Caller, RequestEvent, Warn
from harness.defaults import GRACE_SECONDS
from harness.engine.answers import Answers
from harness.engine.commit import GroupCommit
from harness.engine.play import play, recorded
from harness.engine.progress import EndpointFindings, Progress
from harness.engine.replay import Conversation, PendingRequest
from harness.engine.run import Run, models_warning
from harness.engine.schedule import Schedule
from harness.errors import (
    AgentFailed,
    AnswersUnusable,
    BenchmarkError,
    ConfigurationRefused,
    GaveUp,
    HarnessError,
    InvalidReply,
    MachineError,
    Rejected,
    RoleFailed,
    TransportFault,
)
from harness.model import JSON, Completion, Failure, Load, Reply, Snapshot, role_of
from harness.store.run import about, name_of

REJECTIONS_TO_STOP = 3
"""Users in a row that the endpoint refuses, without an answer in between, that indicate a wrong
configuration; likewise users for whom the benchmark's code failed, before any has completed."""
REFUSED = ("http_400", "http_413", "http_422", "denied")
"""Kinds of such refusals."""

BOUNDARIES: dict[type[HarnessError], str] = {
    AgentFailed: "agent",
    BenchmarkError: "benchmark",
    RoleFailed: "role",
}
"""The boundary that an error of a failed user crossed, if not the endpoint's."""


class RunnerTask(Protocol):
    """Work next to the users of a runner."""

    async def serve(self) -> None:
        """Work until it is cancelled, once the last user has ended."""
        ...

    def flushed(self) -> None:
        """Note that every reply is saved, after the last user has ended."""
        ...

    @property
    def load(self) -> Load:
        """Return what the display shows instead of requests in flight, where all users advance
        together."""
        ...


class RunnerPlan(NamedTuple):
    """What a runner takes of its plan: the name, the seed of its schedule, the requests in flight
    that the user asked for (None: automatic), whether records are to survive a power loss, and
    whether it goes on however few answers can be used."""

    name: str
    seed: int
    requested: int | None
    power: bool = False
    allow_invalid: bool = False


class UsersLeft:
    """The remaining users of runs, numbered one run after another: the `steps` that each has left,
    and its repeat, from 0. All runs have as many repeats."""

    def __init__(self, runs: Sequence[Run]) -> None:
        positions, steps = zip(*[run.start() for run in runs], strict=True)
        self._runs = runs
        self._positions = np.concatenate(positions)
        self._ends = np.cumsum(list(map(len, positions))).tolist()
        self.steps = np.concatenate(steps)
        self.repeats = self._positions % runs[0].index.repeats

    def place(self, number: int) -> tuple[Run, int]:
        """Return a user's run, and its position there."""
        return self._runs[bisect_right(self._ends, number)], int(self._positions[number])


class ModelRunner:
    """The runs of one plan and the caller that they share.

    `ending` is why it stopped early, else None. `in_play` counts users that have started and not
    ended; `over` means that all have ended and that their results are in the files. `where` names
    the address that a user's request is at. `callers` are that of the model under test, by an empty
    name, and those of its roles. Extensions wrap `settle` and `send` and add `tasks`, before the
    first user starts.
    """

    def __init__(
        self,
        plan: RunnerPlan,
        findings: EndpointFindings,
        caller: Caller,
        where: Callable[[str], str] = lambda user: "",
        roles: Mapping[str, Caller] = MappingProxyType({}),
    ) -> None:
        self.findings = findings
        self.runs = findings.runs
        self.caller = caller
        self.callers = {"": caller, **roles}
        self.asking_roles = 0
        self.settle: Settle = self._settle
        self.send: Send = self._send
        self.tasks: list[RunnerTask] = []
        self.answers = Answers(plan.allow_invalid)
        self.commit = GroupCommit([run.store for run in self.runs], plan.power)
        self._users_left = UsersLeft(self.runs)
        self.schedule = Schedule(self._users_left.steps, plan.seed, self._users_left.repeats)
        self.progress = Progress(plan.name, findings, caller, plan.requested, where)
        self._users = anyio.create_task_group()
        self._all_started = anyio.Event()
        self.in_play = 0
        self._steps_left: dict[int, int] = {}
        self.ending: HarnessError | None = None
        self.over = False
        self._completed = self._broken = 0
        self._rejected: dict[str, tuple[int, int]] = {}
        """By role: the users that were refused in a row, and the answers until the last of them."""
        self._has_warned_of_models = False

    async def run(self) -> None:
        """Run from the first user to the last one's end. The caller decides who starts when, by
        `start_next`."""
        async with anyio.create_task_group() as background:
            async with self._users:
                background.start_soon(self.guarded, self.commit.serve)
                for task in self.tasks:
                    background.start_soon(self.guarded, task.serve)
                await self._all_started.wait()
            background.cancel_scope.cancel()
        # A machine that cannot save cannot sync, either.
        if not isinstance(self.ending, MachineError):
            await self.guarded(self._flush)
        self.over = True

    @property
    def is_idle(self) -> bool:
        """Return whether nothing more will come of a runner that is stopping."""
        return not any(caller.limiter.in_flight for caller in self.callers.values())

    @property
    def has_more(self) -> bool:
        """Return whether users wait to be started; a stopping runner starts none."""
        return bool(self.schedule) and self.ending is None

    async def _flush(self) -> None:
        """Note that nothing is in flight, and sync what nobody waits for any more."""
        self._warn_of_other_models()
        for run in self.runs:
            run.store.log_none_in_flight()
        await self.commit.flush()
        for task in self.tasks:
            task.flushed()

    def start_next(self, slots: int, other_steps: int) -> None:
        """Start a user; `slots` and `other_steps` as for `Schedule.next`."""
        # The user is counted as soon as it is scheduled, so that the dispatcher starts no second
        # one for the same place before the task has run.
        self.in_play += 1
        self._users.start_soon(self._user, self.schedule.next(slots, other_steps))

    def starts_no_more(self) -> None:
        self._all_started.set()

    def stop(self, reason: HarnessError, grace: float) -> None:
        """End the runner. The first reason is reported; a later one can only shorten the grace, in
        seconds."""
        is_first = self.ending is None
        is_of_machine = isinstance(reason, MachineError)
        if is_first or is_of_machine:  # a machine error is reported even after another reason
            self.ending = reason
        scope = self._users.cancel_scope
        scope.deadline = min(scope.deadline, anyio.current_time() + grace)
        for caller in self.callers.values():
            # No new request is sent: those that wait for a slot get none.
            caller.limiter.close()
            caller.limiter.slots.wake()
        if is_first and not is_of_machine:
            try:
                for run in self.runs:
                    run.store.event("stopping", reason=str(reason))
            except MachineError as error:  # this machine can no longer log it
                self.stop(error, grace=0.0)

    def judge(self, user: str, completion: Completion, error: InvalidReply | None) -> None:
        """Count how a user's new reply was read; stop if almost none of the first ones can be
        used."""
        try:
            self.answers.add(user, completion, error)
        except AnswersUnusable as error:
            self.stop(error, GRACE_SECONDS)

    async def look_around(self, lag: float, log: bool) -> None:
        """Do the periodic work; `lag` is how late the event loop was, in seconds; `log`: log the
        concurrency."""
        self.progress.tick(lag)
        if self.ending is not None and self.is_idle:
            self._users.cancel_scope.cancel()  # the rest wait for a slot that they will not get
        for run in self.runs:
            self._take_warnings(run)
            run.store.beat()
        self._warn_of_other_models()
        if log:
            self._log_concurrency()

    def _log_concurrency(self) -> None:
        snapshot = self.snapshot()
        for run in self.runs:
            run.store.event(
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

    def snapshot(self) -> Snapshot:
        stopping = str(self.ending) if self.ending else None
        return self.progress.snapshot(
            steps=self.schedule.remaining_steps,
            longest=max([self.schedule.longest(), *self._steps_left.values()]),
            stopping=stopping,
            over=self.over,
            load=tuple(chain.from_iterable([task.load for task in self.tasks])),
            unusable=tuple(self.answers.unusable.most_common()),
        )

    async def guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do some work; an error after which no user can go on ends the runner, or all runners."""
        try:
            await work()
        except HarnessError as error:
            self.stop(error, grace=0.0 if isinstance(error, MachineError) else GRACE_SECONDS)

    def note(self, what: str, detail: str) -> None:
        """Show a finding, and log it."""
        try:
            self.findings.note(what, detail)
        except MachineError as error:
            self.stop(error, grace=0.0)

    def limits_changed(self, requested: int | None, changes: Mapping[str, Any]) -> None:
        """Show, log and keep limits that were changed; `requested` is the concurrency of the
        account, None for auto."""
        self.progress.requested = requested
        for run in self.runs:
            run.change_limits(changes)
        texts = []
        for name, value in changes.items():
            text = "auto" if value is None else f"{value:g}"
            texts.append(f"{name} {text}")
        self.findings.note("limits", f"limits were changed: {', '.join(texts)}")

    async def _settle(self, user: User, pending: PendingRequest) -> Completion:
        """Return the reply to a request that goes by the caller."""
        run, role = user.run, pending.role
        size = len(pending.body)
        # Requests in flight are logged for the bill after a crash: none where nothing is billed.
        times = self.callers[role].at_once if role in run.billed_roles else 0
        run.store.request_sent(size, times, role)
        try:
            reply = await self.send(user, pending, partial(user.warn, pending))
            user.keep(pending, reply)
        except MachineError:  # what could not be saved stays in the log as in flight
            raise
        except BaseException:
            user.failed_role = role
            run.store.request_done(size, times, role)
            raise
        run.store.request_done(size, times, role)
        return reply.completion

    async def _send(self, user: User, pending: PendingRequest, warn: Warn) -> Reply:
        failed_before = user.run.failed_tries.get((user.name, pending.digest), (0, 0))
        complete = self.callers[pending.role].complete
        sending = complete(pending.body, pending.rank, user.name, warn, failed_before)
        if not pending.role:
            return await sending
        self.asking_roles += 1
        self.caller.limiter.slots.wake()
        try:
            return await sending
        finally:
            self.asking_roles -= 1

    async def _user(self, number: int) -> None:
        run, position = self._users_left.place(number)
        steps = self._steps_left[number] = int(self._users_left.steps[number])
        user = User(self, run, number, position, steps, run.index.repeat(position))
        try:
            await self.guarded(partial(self._play, user))
        finally:
            self.in_play -= 1
            del self._steps_left[number]
            self.caller.limiter.slots.wake()

    async def _play(self, user: User) -> None:
        """Play a user, from its line to its record or failure."""
        try:
            await self._ask_and_record(user)
        finally:
            self._take_warnings(user.run)
            self.progress.add_work(user.busy, user.busy, user.settled, user.steps)

    async def _ask_and_record(self, user: User) -> None:
        run, position = user.run, user.position
        benchmark = run.benchmark
        task = run.task(position)
        user.key = task.key
        saved = run.store.responses_of(position)
        if position in run.role_failures:
            # The saved replies of the role made the user fail: only new ones can mend that.
            saved = {key: saved[key] for key in saved if not role_of(key[0])}
        judged = partial(self.judge, user.name)
        conversation = Conversation(
            run.sampling_at(position), saved, task.steps, user.settle, judged
        )
        played = None
        try:
            played = await play(benchmark, task, conversation.ask, user.repeat, conversation.judge)
            record = recorded(benchmark, task, played, run.index.repeats)
        except (GaveUp, Rejected, AgentFailed, BenchmarkError) as error:
            if played and not self._completed:
                # a benchmark that cannot measure its first user stops before others are paid for
                raise
            self._fail(user, error)
        else:
            if run.drawn[position]:
                # Taken while the task is parsed. What fails here is asked for by the report again.
                with suppress(BenchmarkError), guarded(benchmark, "facts"):
                    run.facts[task.key] = benchmark.scoring.facts(task)
            await self._complete(user, record, conversation.unused)
        finally:
            self.progress.replayed += conversation.replayed

    async def _complete(self, user: User, record: JSON, unused_responses: int) -> None:
        """Save a user's record. Unused responses mean that the requests differed from those of an
        earlier session."""
        run = user.run
        self._completed += 1
        saved = run.store.save_record(record, run.index, user.position)
        # The record first: figures must never show a user whom a crash would take back.
        await self.commit.saved()
        run.scores.add(saved)
        self.advance(run, user.steps - user.counted)
        if unused_responses:
            run.diverged += 1
            run.store.event("asked_otherwise", **user.about, unused_responses=unused_responses)

    def step_done(self, user: User) -> None:
        """Count a new reply as one of the steps that its user had left, if any."""
        if user.counted < user.steps:
            user.counted += 1
            self._steps_left[user.number] = user.steps - user.counted
            self.advance(user.run, 1)

    def advance(self, run: Run, steps: int) -> None:
        """Count steps that are done or given up."""
        run.steps_done += steps
        self.schedule.done(steps)

    def _fail(self, user: User, error: GaveUp | Rejected | AgentFailed | BenchmarkError) -> None:
        """Record a failed user, and stop where no other user will succeed."""
        run = user.run
        tries = error.tries if isinstance(error, GaveUp) else 1
        boundary = BOUNDARIES.get(type(error), "endpoint")
        failure = Failure(user.key, boundary, error.kind, error.detail, tries, user.repeat)
        run.store.save_failure(failure, run.index.digest(user.position))
        run.failed += 1
        if isinstance(error, Rejected):
            run.refused.append(user.key)
        self.progress.user_failed(user.name, error.kind, str(error))
        self.advance(run, user.steps - user.counted)
        if error.kind in REFUSED:
            self._count_refusal(user.failed_role, error)
        elif isinstance(error, (BenchmarkError, RoleFailed)):
            self._broken += 1
            if self._broken >= REJECTIONS_TO_STOP and not self._completed:
                self.stop(error, GRACE_SECONDS)

    def _count_refusal(self, role: str, error: HarnessError) -> None:
        """Count a user that the endpoint of a role has refused; stop after several in a row."""
        answers = self.callers[role].traffic.successes
        users, answers_before = self._rejected.get(role, (0, answers))
        if answers != answers_before:
            users = 0  # it answers others: its refusals are about single users
        users += 1
        self._rejected[role] = users, answers
        if users >= REJECTIONS_TO_STOP:
            why = f"the endpoint has refused three users in a row ({error})"
            self.stop(ConfigurationRefused(why), GRACE_SECONDS)

    def _take_warnings(self, run: Run) -> None:
        """Log the benchmark's lines and warnings since the last call, and show the latter."""
        benchmark = run.benchmark
        # Taken out first: a thread that scores may add to the new lists meanwhile.
        lines, benchmark.logged = benchmark.logged, []
        for line in lines:
            run.store.event("output", detail=line)
        warnings, benchmark.warnings = benchmark.warnings, []
        for warning in warnings:
            run.store.event("warning", detail=warning)
            if warning not in run.warnings:
                run.warnings.append(warning)
            self.findings.show(warning)

    def _warn_of_other_models(self) -> None:
        """Say once while it matters that another model answers than the one that was asked for."""
        warning = models_warning(self.runs)
        if warning and not self._has_warned_of_models:
            self._has_warned_of_models = True
            self.note("answered_by", warning)


@dataclass(slots=True, eq=False)
class User:
    """A user in play. `number` is its place in the schedule, `position` that in the tasks file,
    `steps` what it had left at the start, `repeat` which of its repeats is played. `key` is known
    once its task is parsed. `counted` are the steps that are counted as done, `settled` the
    requests that the model under test answered, and `busy` their seconds in flight. `failed_role`
    is whose request failed last, empty for the model under test.
    """

    runner: ModelRunner
    run: Run
    number: int
    position: int
    steps: int
    repeat: int
    key: str = ""
    counted: int = 0
    settled: int = 0
    busy: float = 0.0
    failed_role: str = ""

    @property
    def name(self) -> str:
        return name_of(self.key, self.repeat)

    @property
    def about(self) -> JSON:
        return about(self.key, self.repeat)

    async def settle(self, pending: PendingRequest) -> Completion:
        """Return the reply to a new request, once it is as durable as the run requires."""
        completion = await self.runner.settle(self, pending)
        if self.runner.commit.power:
            await self.runner.commit.saved()
        return completion

    def keep(self, pending: PendingRequest, reply: Reply) -> None:
        """Save a new reply of the endpoint."""
        if not pending.role:
            self.busy += reply.seconds
            self.settled += 1
        self.runner.progress.replied()
        self.save(pending, reply)

    def save(self, pending: PendingRequest, reply: Reply) -> None:
        """Save a reply to a request."""
        self.run.store.save_response(
            self.position, self.key, pending.digest, pending.nth, reply, self.repeat
        )
        if not pending.role:
            self.runner.step_done(self)

    def warn(self, pending: PendingRequest, fault: TransportFault, number: int) -> None:
        """Log what became of a try of a request, by which later sessions count its tries."""
        log = self.run.store.event
        details = {"detail": fault.detail, "try_number": number}
        if isinstance(fault, RequestEvent):
            log(fault.kind, **self.about, **details, **self._billed(pending, fault.sent))
            return
        billed = self._billed(pending, len(pending.body) * fault.billed)
        if fault is not ABANDONED:
            counted = {"request": pending.digest} if fault.may_count else {}
            log("retry", **self.about, kind=fault.kind, **details, **counted, **billed)
            self.runner.progress.try_failed(fault.kind, fault.detail)
        elif billed:
            log("unanswered", **self.about, **billed, try_number=number)

    def _billed(self, pending: PendingRequest, size: int) -> JSON:
        """Return what a try of so many bytes may be billed for, and at what price; empty for
        nothing."""
        if not size or pending.role not in self.run.billed_roles:
            return {}
        return {"sent": size, **self.run.store.rates[pending.role].data}


Settle = Callable[[User, PendingRequest], Awaitable[Completion]]
"""Returns the reply to a request, once it is saved. Raises `GaveUp`, `Rejected` and
`EndpointStopped`."""
Send = Callable[[User, PendingRequest, Warn], Awaitable[Reply]]
"""Returns the endpoint's reply to a request, after as many tries as it takes. Raises as `Settle`
does."""
