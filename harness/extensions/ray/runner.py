"""A runner whose users are played in parts by workers: its display, its limits and its end are
those of any runner."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from harness.client.limiter import Slots
from harness.defaults import RunTuning
from harness.engine.run import Run
from harness.engine.runner import ModelRunner
from harness.errors import HarnessError
from harness.extensions.ray.messages import LOGS, PartEnd, SentPart, TurnReport
from harness.model import JSON, Record, Snapshot, Warned
from harness.options.plan import Plan
from harness.store.log import objects
from harness.store.manifest import part_of

if TYPE_CHECKING:  # a circle of types alone
    from harness.extensions.ray.crew import Crew

PARTS_A_WORKER = 4
USERS_A_SLOT = 2
"""Users of a part for each request in flight: with fewer there are fewer parts."""
MAX_USERS = 2000
"""Of a part, about."""
WARNINGS = 3
STOP_SECONDS = 3.0
"""Beyond the grace of a stopping runner: until the workers have reported what was answered."""


@dataclass(eq=False)
class UserPart:
    """Users of a run, by their places, whom one engine after another plays; `engines` is how many
    so far. `saved` is where their lines are, by log."""

    runner: PartsRunner
    run: Run
    users: NDArray[np.int64]
    steps_left: int
    engines: int = 0
    saved: dict[str, list[tuple[int, int]]] = field(
        default_factory=lambda: {log: [] for log in LOGS}
    )

    def sent(self) -> SentPart:
        """Return the part as a worker gets it, with all that is saved of it."""
        runner = self.runner
        run = self.run
        lines = [run.index.read(user * run.index.repeats) for user in self.users.tolist()]
        path = os.path.relpath(run.index.path, runner.plan.benchmark.folder)
        if path.endswith(".json"):
            tasks = b"[%b]" % b",\n".join(lines)
        else:
            tasks = b"\n".join([*lines, b""])
        # These users are all of the worker's tasks file.
        selection: Any = run.manifest.selection.copy() | {"ratio": 1.0}
        for name in ("limit", "part", "by"):
            selection.pop(name, None)
        manifest = structs.replace(run.manifest, selection=selection)
        logs = {log: self._read(log) for log in LOGS}
        self.engines += 1
        return SentPart(runner.place, run.subset, path, tasks, logs, manifest)

    def _read(self, log: str) -> bytes:
        path: Path = getattr(self.run.store.files, log)
        with path.open("rb") as file:
            # Lines go to the worker as they are in the file: nothing is decoded for that.
            pieces = [os.pread(file.fileno(), size, offset) for offset, size in self.saved[log]]
        return b"".join(pieces)


class PartsRunner(ModelRunner):
    """`place` is that of its plan. `parts` are all of it, `waiting` those that no worker has.
    `replied_at` is when any worker reported a reply last, in seconds of the event loop."""

    crew: Crew
    place: int
    plan: Plan
    parts: list[UserPart]
    waiting: deque[UserPart]

    def cut(self, crew: Crew, place: int, plan: Plan, workers: int) -> None:
        """Cut the users into parts, for a crew of so many workers, before the first user starts."""
        self.crew, self.place, self.plan = crew, place, plan
        self.parts = self._cut(workers)
        self.waiting = deque(self.parts)
        self._unfinished = len(self.parts)
        self._all_finished = anyio.Event()
        self.replied_at: float | None = None
        self._snapshots: dict[tuple[UserPart, int], Snapshot] = {}
        """The last one of each engine that played a part, by the part and the engine's number."""

    @property
    def slots(self) -> Slots:
        return self.caller.limiter.slots

    @property
    def tuning(self) -> RunTuning:
        """Return the plan's limits as they are now."""
        tuning = self.runs[0].manifest.tuning
        limits: JSON = {name: tuning.get(name) for name in ("concurrency", "rpm", "tpm")}
        return replace(self.plan.tuning, **limits).shared(*part_of(self.plan.selection))

    def _cut(self, workers: int) -> list[UserPart]:
        """Return parts of the users who are left, dealt round, each with what earlier sessions have
        saved."""
        steps_left = [_steps_by_user(run) for run in self.runs]
        all_left = int(sum(map(np.count_nonzero, steps_left)))
        slots = self.tuning.most
        fitting = max(min(workers, slots), all_left * workers // (USERS_A_SLOT * slots))
        count = max(min(PARTS_A_WORKER * workers, fitting), all_left // MAX_USERS)
        parts: list[UserPart] = []
        for run, steps in zip(self.runs, steps_left, strict=True):
            users = np.flatnonzero(steps)
            number = min(len(users), max(1, count * len(users) // all_left))
            parts_of_run: list[UserPart] = []
            for first in range(number):
                dealt = users[first::number]
                parts_of_run.append(UserPart(self, run, dealt, int(steps[dealt].sum())))
            self._find_saved(run, parts_of_run)
            parts += parts_of_run
        return parts

    def _find_saved(self, run: Run, parts: Sequence[UserPart]) -> None:
        """Note which lines of earlier sessions are of the users of parts."""
        if run.store.files.is_bare:
            return
        owners = np.full(run.index.users(), -1)
        for number, part in enumerate(parts):
            owners[part.users] = number
        for log in LOGS:
            for line, data in objects(getattr(run.store.files, log)):
                if log == "events" and data.get("what") != "retry":
                    continue
                position = run.index.position_of(data)
                if position is None:
                    continue
                owner = owners[position // run.index.repeats]
                if owner >= 0:
                    parts[owner].saved[log].append((line.offset, line.size))

    # Its life

    @property
    def has_more(self) -> bool:
        return False

    def starts_no_more(self) -> None:
        self._users.start_soon(self._all_finished.wait)
        super().starts_no_more()

    @property
    def is_idle(self) -> bool:
        return not any(self.crew.plays(self))

    def stop(self, reason: HarnessError, grace: float) -> None:
        super().stop(reason, grace + STOP_SECONDS if grace else 0.0)

    def finished(self) -> None:
        """Note the end of a part."""
        self._unfinished -= 1
        if not self._unfinished:
            self._all_finished.set()

    async def _flush(self) -> None:
        """Find out what the files hold now: also what was in flight where a worker was lost."""
        self.over = True  # nothing is logged while the logs are opened again
        for run in self.runs:
            await anyio.to_thread.run_sync(run.store.open_logs, run.index)
        await super()._flush()

    # What its workers report

    def take(self, part: UserPart, report: TurnReport) -> None:
        """Save what a worker reports of a part, and count it. Raise `MachineError`."""
        run = part.run
        seconds: list[float] = []
        for log, lines in report.logs.items():
            offset, objects = run.store.append_lines(log, lines, run.index)
            part.saved[log].append((offset, len(lines)))
            for data in objects:
                if log == "results":
                    run.scores.add(Record(str(data["user_id"]), data))
                elif log == "responses" and "reused" not in data:
                    seconds.append(data["seconds"])
        for reply_seconds in seconds:
            self.caller.latency.add(reply_seconds)
            self.progress.replied()
            self.replied_at = anyio.current_time()
        self.caller.traffic.successes += len(seconds)
        steps = 0
        if report.snapshot:
            self._snapshots[part, part.engines] = report.snapshot
            [progress] = report.snapshot.subsets
            steps = part.steps_left - (progress.steps - progress.steps_done)
        part.steps_left -= steps
        self.advance(run, steps)
        self.progress.add_work(sum(seconds), 0.0, len(seconds), steps)

    def end_part(self, run: Run, ended: PartEnd) -> None:
        """Note in the manifests what an engine has learned of the endpoint, and counted of its
        run."""
        for run_of_plan in self.runs:
            run_of_plan.learned(ended.quirks)
        run.count(ended.counts)
        run.diverged += ended.diverged
        run.warnings += [warning for warning in ended.warnings if warning not in run.warnings]

    def snapshot(self) -> Snapshot:
        """Return the sums over all engines, with the troubles of the worker that had an answer
        last."""
        reports = [seat.last for seat in self.crew.plays(self)]
        self._add_up(reports)
        stopping = str(self.ending) if self.ending else None
        unusable = tuple(self.answers.unusable.most_common())
        base = self.progress.snapshot(
            self.schedule.remaining_steps, 0, stopping, self.over, unusable=unusable
        )
        live = [report.snapshot for report in reports if report.snapshot]
        if self.over or not live:
            return base
        calmest = min(live, key=lambda snapshot: snapshot.silence)
        eta = None if base.eta is None else base.eta + calmest.pause
        # Workers see the same troubles: each is shown once.
        warnings: dict[str, Warned] = {}
        for snapshot in (base, *live):
            warnings |= {warning.text: warning for warning in snapshot.warnings}
        return replace(
            base,
            held_by=calmest.held_by,
            waiting=sum([snapshot.waiting for snapshot in live]),
            backing_off=sum([snapshot.backing_off for snapshot in live]),
            pause=calmest.pause,
            eta=eta,
            outage=calmest.outage,
            silence=calmest.silence,
            warnings=tuple(sorted(warnings.values(), key=lambda warning: warning.age))[:WARNINGS],
        )

    def _add_up(self, reports: Sequence[TurnReport]) -> None:
        """Count what engines did, the requests in flight of all workers that play, and the limit
        that they have found.

        Users whom the last engine of a part has given up are failed: another plays them again.
        """
        limiter = self.caller.limiter
        in_flight = sum([report.in_flight for report in reports])
        self.slots.in_flight += in_flight - limiter.in_flight
        limiter.in_flight = in_flight
        if self.tuning.concurrency is None and reports:
            self.slots.control.limit = max(1, sum([report.limit for report in reports]))
        engines = self._snapshots.values()
        last = {part: snapshot for (part, _), snapshot in self._snapshots.items()}
        traffic = self.caller.traffic
        for name in ("requests", "retries", "prompt_tokens", "completion_tokens"):
            setattr(traffic, name, sum([getattr(snapshot, name) for snapshot in engines]))
        traffic.notices = _by_kind(snapshot.notices for snapshot in engines)
        self.answers.unusable = _by_kind(snapshot.unusable for snapshot in engines)
        self.progress.faults = _by_kind(snapshot.faults for snapshot in engines)
        self.progress.failures = _by_kind(snapshot.failures for snapshot in last.values())
        for run in self.runs:
            run.failed = 0
        for part, snapshot in last.items():
            part.run.failed += snapshot.subsets[0].failed


def _steps_by_user(run: Run) -> NDArray[Any]:
    """Return the steps that each user of the tasks file has left, in all repeats."""
    positions, steps = run.start()
    return np.bincount(positions // run.index.repeats, steps)


def _by_kind(counts: Iterable[Sequence[tuple[str, int]]]) -> Counter[str]:
    return sum(map(Counter, map(dict, counts)), Counter())
