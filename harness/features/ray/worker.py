"""A worker: it plays one part after another, each with a local engine of its own. It knows no Ray.

The event loop runs only within a turn, which the driver asks for. So a worker that the driver does not reach sends
nothing, and each report is exact. A turn's permission to send ends `LEASE_SECONDS` after its begin: a process that was
stopped and wakes within an old turn waits for the driver's next one before it sends.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harness.commands.parser import Interface, shape
from harness.config.plan import Plan, Terms
from harness.endpoint.transport import Received, Transport
from harness.engine.accounts import admit_sockets, control_of, rates_of, sockets
from harness.engine.extension import Extension
from harness.engine.lane import Lane
from harness.engine.local import Signals
from harness.engine.opening import open_sessions
from harness.engine.session import Session, play
from harness.errors import HarnessError, MachineError, RunStopped
from harness.feature import counts, extensions, function
from harness.features.ray.messages import LOGS, Ended, Order, Part, Report, WorkerPlan, packed
from harness.features.ray.shipping import unpacked
from harness.model import LONGEST, Snapshots
from harness.store.files import RunFiles

LEASE_SECONDS = 10.0
"""How long a worker lives, and may send, without a new turn."""
DRIVERS_EVENTS = tuple(b'"what":"%b"' % name for name in (b"concurrency", b"stopping", b"progress", b"no_answer"))
"""Lines of the log that the driver writes itself, about all workers."""
STOPPED = 130


class Lease:
    """What keeps a worker from sending, and then from living, without its driver. `clock` is in seconds, monotonic."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ends: float | None = None
        self._in_turn = False
        self._renewed = asyncio.Event()

    def begin(self) -> None:
        """Note the begin of a turn."""
        self._ends, self._in_turn = self._clock() + LEASE_SECONDS, True
        self._renewed.set()
        self._renewed = asyncio.Event()

    def end(self) -> None:
        self._ends, self._in_turn = self._clock() + LEASE_SECONDS, False

    @property
    def is_over(self) -> bool:
        """Return whether the worker has had no turn for too long, after its first."""
        return self._ends is not None and not self._in_turn and self._clock() >= self._ends

    async def permission(self) -> None:
        """Return once a request may be sent."""
        while self._ends is not None and self._clock() >= self._ends:
            await self._renewed.wait()

    def watch(self) -> None:
        """End this process, and so its requests, once the lease is over."""

        def look() -> None:
            while not self.is_over:
                time.sleep(LEASE_SECONDS / 20)
            os._exit(0)

        threading.Thread(target=look, daemon=True).start()


class LeasedTransport:
    """A transport that sends only while the lease lasts."""

    def __init__(self, transport: Transport, lease: Lease) -> None:
        self._transport, self._lease = transport, lease

    async def send(self, body: bytes, user: str = "") -> Received:
        await self._lease.permission()
        return await self._transport.send(body, user)


class Player:
    """Plays parts of `plans` by turns in a loop. `contents` are the files of benchmarks by SHA-256."""

    def __init__(
        self,
        plans: Sequence[WorkerPlan],
        contents: Mapping[str, bytes],
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lease = Lease(clock)
        self._plans = plans
        self._contents = contents
        self._loop = loop
        self._engine: Engine | None = None

    def turn(self, part: Part | None, order: Order) -> Report:
        """Play for a turn; begin a new `part` before, if there is one. Without any part return at once."""
        self.lease.begin()
        try:
            if part is not None and not part.subsets:
                return Report(ended=Ended(None))
            if part is not None:
                self._engine = Engine(self._plans[part.plan], part, self._contents, self._loop, self.lease)
            if self._engine is None:
                return Report()
            report = self._engine.turn(order)
            if report.ended:
                self._engine.close()
                self._engine = None
            return report
        finally:
            self.lease.end()


class Engine(Extension):
    """The local engine of one part, in a folder of its own."""

    def __init__(
        self,
        plan: WorkerPlan,
        part: Part,
        contents: Mapping[str, bytes],
        loop: asyncio.AbstractEventLoop,
        lease: Lease,
    ) -> None:
        self._plan, self._part, self._contents, self._loop, self._lease = plan, part, contents, loop, lease
        self._held = ExitStack()
        self._folder = Path(self._held.enter_context(TemporaryDirectory(prefix="part-", ignore_cleanup_errors=True)))
        self._sent = {(subset, log): len(of.logs.get(log, b"")) for subset, of in part.subsets.items() for log in LOGS}
        self._sessions: Sequence[Session] = ()
        self._lane: Lane | None = None
        self._task: asyncio.Task[None] | None = None
        self._order: Order | None = None
        self._tuning = plan.tuning
        self._snapshots: Snapshots = ()
        self._before: dict[str, tuple[tuple[int, ...], Counter[str]]] = {}
        self._replies = 0

    def close(self) -> None:
        self._held.close()

    def turn(self, order: Order) -> Report:
        self._order = order
        try:
            if self._task is None:
                self._open(order)
            elif self._lane is not None:
                self._obey(self._lane, order)
            assert self._task
            self._loop.run_until_complete(asyncio.wait({self._task}, timeout=order.seconds))
        except HarnessError as error:
            return Report(ended=Ended(packed(error)))
        return self._report(self._task)

    def _open(self, order: Order) -> None:
        plan = self._opened_plan(order)
        manifests = [of.manifest for of in self._part.subsets.values()]
        options = Interface("resume", shape("resume")).made({}, {})
        switched_on = [*extensions(options, manifests), self]
        for extension in switched_on:
            extension.check([plan])
        for extension in switched_on:
            extension.begin([plan], self._held, _say)
        self._sessions, _ = open_sessions([plan], self._held, lambda event: None, switched_on)
        for extension in switched_on:
            self._sessions = extension.before(self._sessions, lambda sessions: None, _say)
        if not self._sessions[0].unfinished:  # whoever is left has failed before
            self._task = self._loop.create_task(asyncio.sleep(0))
            return
        play(self._sessions, switched_on, _say, lambda: nullcontext(self._observe), False, self._begin)

    def _opened_plan(self, order: Order) -> Plan:
        """Write the part's files, and return the plan that plays it."""
        shipped, subsets = self._plan, self._part.subsets
        benchmark = unpacked(shipped.shipped, self._contents, self._folder / "benchmark")
        tasks, results = {}, self._folder / "results"
        (results / shipped.name).mkdir(parents=True)
        for number, (subset, of) in enumerate(subsets.items()):
            tasks[subset] = self._folder / str(number) / of.tasks_name
            tasks[subset].parent.mkdir()
            tasks[subset].write_bytes(of.tasks)
            files = RunFiles(results / shipped.name, subset)
            for log, lines in of.logs.items():
                getattr(files, log).write_bytes(lines)
            of.manifest.save(files.manifest)
        first = next(iter(subsets.values())).manifest
        plan = Plan(
            name=shipped.name,
            benchmark=benchmark,
            sampling=shipped.sampling,
            tasks=tasks,
            results=results,
            way=shipped.way,
            tuning=shipped.tuning,
            selection=first.selection,
            terms=Terms(allow_invalid=shipped.allow_invalid, earlier=first),
        )
        admit_sockets(*sockets([plan]))  # for all of the account's requests, which may become this worker's
        return replace(plan, tuning=order.tuning)

    def _begin(self, playing: Any) -> None:
        """Keep what plays the sessions, for turns; `play` itself returns at once."""
        self._task = self._loop.create_task(playing(Signals()))

    def _observe(self, snapshots: Snapshots) -> None:
        self._snapshots = snapshots

    def joining(self, lane: Lane) -> None:
        self._lane = lane
        caller = lane.caller
        caller.transport = LeasedTransport(caller.transport, self._lease)
        if caller.question:
            caller.question = replace(
                caller.question, transport=LeasedTransport(caller.question.transport, self._lease)
            )
        self._before = {
            run.subset: (run.store.bill.at(run.store.rate).counts, counts(run.manifest)) for run in lane.runs
        }
        assert self._order
        self._obey(lane, self._order)

    def _obey(self, lane: Lane, order: Order) -> None:
        slots = lane.caller.limiter.slots
        is_automatic = order.tuning.concurrency is None
        tuning = replace(order.tuning, concurrency=None if is_automatic else order.slots)
        tuning = replace(tuning, ceiling=order.slots) if is_automatic else tuning
        if (tuning.rpm, tuning.tpm) != (self._tuning.rpm, self._tuning.tpm):
            slots.rates = rates_of(tuning)
        if tuning != self._tuning:
            slots.control = control_of(tuning, slots.limit or tuning.start)
        self._tuning = tuning
        if order.loan is not None and (lend := function("lend")):
            lend(lane.caller.allowance, order.loan)
        if order.grace is not None and not lane.over:
            lane.stop(RunStopped(STOPPED), order.grace)
        self._loop.call_soon(slots.pump)
        slots.wake()

    def _report(self, task: asyncio.Task[None]) -> Report:
        ended = self._ended(task) if task.done() else None
        logs = [(subset, log, lines) for subset, log in self._sent if (lines := self._appended(subset, log))]
        lane = self._lane
        if lane is None:
            return Report(logs=logs, ended=ended)
        new, self._replies = lane.caller.traffic.successes - self._replies, lane.caller.traffic.successes
        taken = function("taken")
        spent, reserved = taken(lane.caller.allowance) if taken else (Decimal(0), Decimal(0))
        return Report(
            logs=logs,
            snapshot=lane.snapshot(),
            limit=lane.caller.limiter.slots.limit,
            in_flight=lane.caller.limiter.slots.in_flight,
            latencies=lane.caller.latency.seconds[-new:].tolist() if new else (),
            usage={run.subset: self._used(run.subset, run.store.bill.at(run.store.rate).counts) for run in lane.runs},
            work=lane.progress.work,
            quirks=lane.runs[0].manifest.provenance["quirks"],
            counts={run.subset: counts(run.manifest) - self._before[run.subset][1] for run in lane.runs},
            taken=spent,
            reserved=reserved,
            ended=ended,
        )

    def _used(self, subset: str, now: tuple[int, ...]) -> tuple[int, ...]:
        before = self._before[subset][0]
        used = [after - earlier for after, earlier in zip(now, before, strict=True)]
        used[LONGEST] = now[LONGEST]
        return tuple(used)

    def _appended(self, subset: str, log: str) -> bytes:
        """Return the whole lines that were appended to a log since the last call."""
        path = getattr(RunFiles(self._folder / "results" / self._plan.name, subset), log)
        with open(path, "rb") as file:
            file.seek(self._sent[subset, log])
            new = file.read()
        new = new[: new.rfind(b"\n") + 1]
        self._sent[subset, log] += len(new)
        if log != "events":
            return new
        return b"".join([line for line in new.splitlines(True) if not any(of in line for of in DRIVERS_EVENTS)])

    def _ended(self, task: asyncio.Task[None]) -> Ended:
        try:
            task.result()
            error = self._lane.ending if self._lane else None
        except HarnessError as raised:
            error = raised
        except Exception as unforeseen:
            error = MachineError(f"a worker failed: {''.join(traceback.format_exception(unforeseen))}")
        runs = self._lane.runs if self._lane else ()
        return Ended(
            None if error is None else packed(error),
            {run.subset: run.diverged for run in runs},
            {run.subset: run.warnings for run in runs},
        )


def _say(words: str) -> None:
    """Say nothing: the driver has said it."""
