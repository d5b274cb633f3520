"""A worker: it plays one part after another, each with a local engine of its own. It knows no Ray.

The event loop runs only within a turn, which the driver asks for. So a worker that the driver does
not reach sends nothing, and each report is exact. A turn's permission to send ends `LEASE_SECONDS`
after its begin: a process that was stopped, and wakes within an old turn, waits for the driver's
next one before it sends.
"""

from __future__ import annotations

import asyncio
import os
import time
import traceback
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harness.analysis.saved_runs import SavedRun
from harness.client.transport import Received, Transport
from harness.engine.accounts import admit_sockets, control_of, rates_of, sockets
from harness.engine.hooks import Hooks
from harness.engine.local import Signals
from harness.engine.opening import open_sessions
from harness.engine.playing import play
from harness.engine.runner import ModelRunner
from harness.errors import HarnessError, MachineError, RunStopped
from harness.extensions.ray.messages import (
    LOGS,
    RESULTS,
    REUSED,
    TASKS,
    PartEnd,
    SentPart,
    TurnOrder,
    TurnReport,
    WorkerPlan,
)
from harness.model import Snapshots
from harness.options import trusted
from harness.options.extension import counts, extensions, hooks_of
from harness.options.options import ResumeOptions
from harness.options.plan import Plan, RunPolicy, sampling_again
from harness.store.files import RunFiles

LEASE_SECONDS = 10.0
"""How long a worker lives, and may send, without a new turn."""
DRIVERS_EVENTS = tuple(
    b'"what":"%b"' % name
    for name in (b"concurrency", b"stopping", b"progress", b"no_answer", b"answered_by")
)
"""Lines of the log that the driver writes itself, about all workers."""
STOPPED = 130


class Player:
    """Plays parts of `plans` by turns in a loop. `clock` is in seconds, monotonic."""

    def __init__(
        self,
        plans: Sequence[WorkerPlan],
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.plans = plans
        self.loop = loop
        self.engine: PartEngine | None = None
        self._clock = clock
        self._in_turn = False
        # The driver may ask for the first turn long after this process has started.
        self._lease_ends = float("inf")
        self._renewed = asyncio.Event()

    def turn(self, part: SentPart | None, order: TurnOrder) -> TurnReport:
        """Play for a turn, a new `part` if there is one."""
        self._in_turn = True
        self._lease_ends = self._clock() + LEASE_SECONDS
        # Whoever waits has the event of the lease before.
        self._renewed.set()
        self._renewed = asyncio.Event()
        try:
            if part is not None:
                self.engine = PartEngine(self, self.plans[part.plan], part, order)
            report = self.engine.turn(order) if self.engine else TurnReport()
            if self.engine and report.ended:
                self.engine.close()
                self.engine = None
            return report
        finally:
            self._in_turn = False
            self._lease_ends = self._clock() + LEASE_SECONDS

    @property
    def is_abandoned(self) -> bool:
        """Return whether the driver has asked for no turn for too long, after the first one."""
        return not self._in_turn and self._clock() >= self._lease_ends

    async def permission(self) -> None:
        """Return once a request may be sent: at once, or in the next turn."""
        while self._clock() >= self._lease_ends:
            await self._renewed.wait()


class PermittedTransport:
    """A transport that sends with its worker's permission alone."""

    def __init__(self, transport: Transport, player: Player) -> None:
        self._transport = transport
        self._player = player

    async def send(self, body: bytes, user: str = "") -> Received:
        await self._player.permission()
        return await self._transport.send(body, user)


class PartEngine(Hooks):
    """The local engine of one part, in a folder of its own."""

    def __init__(self, player: Player, plan: WorkerPlan, part: SentPart, order: TurnOrder) -> None:
        self._player = player
        self._plan = plan
        self._part = part
        self._order = order
        self._held = ExitStack()
        temporary = TemporaryDirectory(prefix="part-", ignore_cleanup_errors=True)
        self._folder = Path(self._held.enter_context(temporary))
        self._files = RunFiles(self._folder / RESULTS / plan.name, part.subset)
        self._reported = {log: len(lines) for log, lines in part.logs.items()}
        self._share: tuple[int, Any] = (-1, None)
        self._runner: ModelRunner | None = None
        self._task: asyncio.Task[None] | None = None

    def close(self) -> None:
        self._held.close()

    def turn(self, order: TurnOrder) -> TurnReport:
        try:
            if self._task is None:
                self._open()
            self._player.loop.run_until_complete(self._play(order))
        except HarnessError as error:
            return TurnReport(ended=PartEnd(error))
        return self._report()

    async def _play(self, order: TurnOrder) -> None:
        if self._runner:
            self._obey(self._runner, order)
        if self._task:
            await asyncio.wait({self._task}, timeout=order.seconds)

    def _open(self) -> None:
        """Open the part as a run of this machine's own, and begin to play it; its loop runs in
        turns."""
        self._write_files()
        plan = self._resumed_plan()
        options: dict[str, Any] = {}
        for extension in extensions():
            if extension.name == "reuse" and self._plan.reused:
                folder = self._folder / REUSED / self._plan.reused
                options["reuse"] = extension.options(reuse=str(folder))
        command = ResumeOptions(extension_options=options)
        hooks = [*hooks_of(command, [self._part.manifest]), self]
        for hook in hooks:
            hook.check([plan])
        for hook in hooks:
            hook.prepare([plan], self._held, print)
        sessions: Sequence[Any]
        sessions, _ = open_sessions([plan], self._held, lambda event: None, hooks)
        for hook in hooks:
            sessions = hook.before_play(sessions, lambda alone: None, print)
        if sessions[0].unfinished:
            play(sessions, hooks, print, lambda: nullcontext(_unseen), False, self._begin)

    def _begin(self, playing: Callable[[Signals], Coroutine[Any, Any, None]]) -> None:
        self._task = self._player.loop.create_task(playing(Signals()))

    def _write_files(self) -> None:
        part = self._part
        files = {self._folder / path: content for path, content in self._plan.files.items()}
        files[self._folder / TASKS / part.tasks_path] = part.tasks
        files |= {getattr(self._files, log): lines for log, lines in part.logs.items()}
        for path, content in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        trusted.remember_code(part.manifest, os.environ)
        part.manifest.save(self._files.manifest)

    def _resumed_plan(self) -> Plan:
        manifest = self._part.manifest
        tasks_folder = self._folder / TASKS
        plan = Plan(
            name=self._plan.name,
            benchmark=SavedRun(self._files, manifest, trust=True).benchmark(tasks_folder),
            sampling=sampling_again(manifest),
            tasks={self._part.subset: tasks_folder / self._part.tasks_path},
            results=self._folder / RESULTS,
            endpoint_choice=self._plan.endpoint,
            tuning=self._plan.tuning,
            selection=manifest.selection,
            terms=RunPolicy(allow_invalid=self._plan.allow_invalid, earlier=manifest),
        )
        # For all of the account's requests, which may become this worker's.
        admit_sockets(*sockets([plan]))
        return replace(plan, tuning=self._order.tuning)

    def runner_task(self, runner: ModelRunner) -> None:
        self._runner = runner
        caller = runner.caller
        caller.transport = PermittedTransport(caller.transport, self._player)
        self._extension_counts = counts(runner.runs[0].manifest)
        self._obey(runner, self._order)

    def _obey(self, runner: ModelRunner, order: TurnOrder) -> None:
        """Have the limits of an order, and stop if it says so."""
        slots = runner.caller.limiter.slots
        tuning = order.tuning
        earlier_limits = self._order.tuning
        # What is found or awaited is this engine's own.
        share = order.slots, replace(tuning, start=1, wait=0.0)
        if share != self._share:
            self._share = share
            if tuning.concurrency is None:
                limits = replace(tuning, ceiling=order.slots)
            else:
                limits = replace(tuning, concurrency=order.slots)
            slots.control = control_of(limits, slots.limit or tuning.start)
        if (tuning.rpm, tuning.tpm) != (earlier_limits.rpm, earlier_limits.tpm):
            slots.rates = rates_of(tuning)
        if order.loan is not None:
            runner.caller.allowance.limit(order.loan)
        if order.grace is not None:
            runner.stop(RunStopped(STOPPED), order.grace)
        self._order = order
        slots.pump()
        slots.wake()

    def _report(self) -> TurnReport:
        ended = self._end() if self._task is None or self._task.done() else None
        appended = {log: self._appended(log) for log in LOGS}
        report = TurnReport({log: lines for log, lines in appended.items() if lines}, ended=ended)
        runner = self._runner
        if runner is None:
            return report
        slots = runner.caller.limiter.slots
        if self._order.loan is not None:
            taken, reserved = runner.caller.allowance.spent_and_reserved()
            report = report._replace(taken=taken, reserved=reserved)
        return report._replace(
            snapshot=runner.snapshot(), limit=slots.limit, in_flight=slots.in_flight
        )

    def _appended(self, log: str) -> bytes:
        """Return the whole lines that were appended to a log since the last call."""
        path: Path = getattr(self._files, log)
        with path.open("rb") as file:
            file.seek(self._reported[log])
            lines = file.read()
        self._reported[log] += len(lines)
        if log != "events":
            return lines
        events = b""
        for line in lines.splitlines(True):
            if not any(name in line for name in DRIVERS_EVENTS):
                events += line
        return events

    def _end(self) -> PartEnd:
        error: HarnessError | None = None
        try:
            if self._task:
                self._task.result()
        except HarnessError as raised:
            error = raised
        except Exception as unforeseen:
            trace = "".join(traceback.format_exception(unforeseen))
            error = MachineError(f"a worker failed: {trace}")
        runner = self._runner
        if runner is None:
            return PartEnd(error)
        [run] = runner.runs
        new_counts = counts(run.manifest) - self._extension_counts
        quirks = run.manifest.provenance["quirks"]
        return PartEnd(error or runner.ending, quirks, run.diverged, run.warnings, new_counts)


def _unseen(snapshots: Snapshots) -> None:
    """Show nothing: the driver asks for snapshots."""
