"""A lane whose users are played in parts by workers: its display, its limits and its end are those of any lane."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import anyio
import anyio.to_thread
import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from harness.client.limiter import Slots
from harness.defaults import Tuning
from harness.engine.lane import Lane
from harness.engine.run import Run
from harness.errors import HarnessError
from harness.extensions.ray.messages import LOGS, NUMBERS, PartEnd, SentPart, TurnReport
from harness.model import JSON, Snapshot, SubsetProgress
from harness.options.plan import Plan
from harness.store.log import objects
from harness.store.manifest import part_of

if TYPE_CHECKING:  # a circle of types alone
    from harness.extensions.ray.crew import Crew

PARTS_A_WORKER, USERS_A_SLOT, USERS_MOST = 4, 2, 2000
"""Parts are so many for each worker, but no more than leave this many users for each request in flight, and none has
much more users than the last."""
WARNINGS, SHOWN_SECONDS = 3, 0.8
STOP_SECONDS = 3.0
"""Beyond the grace of a stopping lane: until the workers have reported what was answered."""


@dataclass(eq=False)
class UserPart:
    """Users of a run, by their places, whom one engine plays. `saved` is where their lines are, by log. `last` is the
    snapshot that was reported last."""

    lane: LaneOfParts
    run: Run
    users: NDArray[np.int64]
    saved: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: {log: [] for log in LOGS})
    last: Snapshot | None = None

    def save(self, report: TurnReport) -> None:
        """Append what a worker reports to the run's files."""
        for log, lines in report.logs.items():
            self.saved[log].append((self.run.store.append_lines(log, lines), len(lines)))

    def sent(self) -> SentPart:
        """Return the part as a worker gets it, with all that is saved of it."""
        lane, run = self.lane, self.run
        lines = [run.index.read(user * run.index.repeats) for user in self.users.tolist()]
        path = os.path.relpath(run.index.path, lane.plan.benchmark.folder)
        tasks = b"[%b]" % b",\n".join(lines) if path.endswith(".json") else b"\n".join([*lines, b""])
        selection: Any = run.manifest.selection.copy() | {"ratio": 1.0}
        for name in ("limit", "part", "by"):
            selection.pop(name, None)
        manifest = structs.replace(run.manifest, selection=selection)
        logs = {log: self._read(log) for log in LOGS}
        return SentPart(lane.place, run.subset, path, tasks, logs, manifest, self.last)

    def _read(self, log: str) -> bytes:
        with open(getattr(self.run.store.files, log), "rb") as file:
            return b"".join([os.pread(file.fileno(), size, offset) for offset, size in self.saved[log]])


class LaneOfParts(Lane):
    """`place` is that of its plan. `parts` are all of it, `waiting` those that no worker has. `replied_at` is when any
    worker reported a reply last, in seconds of the event loop."""

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
        self._by_kind = {
            "faults": self.progress.faults,
            "failures": self.progress.failures,
            "notices": self.caller.traffic.notices,
            "unusable": self.answers.unusable,
        }
        self.replied_at: float | None = None
        self._done = Counter[str]()
        self._live: Sequence[Snapshot] = ()
        self._last: Snapshot | None = None
        self._shown_at = float("-inf")

    @property
    def slots(self) -> Slots:
        return self.caller.limiter.slots

    @property
    def tuning(self) -> Tuning:
        """Return the plan's limits as they are now."""
        set_later = {name: self.runs[0].manifest.tuning.get(name) for name in ("concurrency", "rpm", "tpm")}
        return replace(self.plan.tuning, **cast(JSON, set_later)).shared(*part_of(self.plan.selection))

    def _cut(self, workers: int) -> list[UserPart]:
        """Return parts of the users who are left, dealt round, each with what earlier sessions have saved."""
        users_left = [np.unique(run.start()[0] // run.index.repeats) for run in self.runs]
        all_left, most = sum(map(len, users_left)), self.tuning.most
        fitting = max(min(workers, most), all_left * workers // (USERS_A_SLOT * most))
        count = max(min(PARTS_A_WORKER * workers, fitting), all_left // USERS_MOST)
        parts = []
        for run, users in zip(self.runs, users_left, strict=True):
            number = min(len(users), max(1, count * len(users) // all_left))
            parts_of_run = [UserPart(self, run, users[first::number]) for first in range(number)]
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
                position = run.index.of(data)
                owner = -1 if position is None else owners[position // run.index.repeats]
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
        """Find out what the files hold now."""
        self._last = last = self._snapshot()
        self.over = True  # nothing is logged while the logs are opened again, and the last snapshot is shown
        for run, shown in zip(self.runs, last.subsets, strict=True):
            await anyio.to_thread.run_sync(run.store.open_logs, run.index)
            await run.scores.advance()
            run.scores.figures, run.scores.users = shown.scores, shown.scored_users
        await super()._flush()
        self._last = self._snapshot()

    # What its workers report

    def count(self, part: UserPart, report: TurnReport) -> None:
        """Count what is new in a report."""
        counts, run, traffic = Counter(report.counts), part.run, self.caller.traffic
        replies, steps = counts["replies", ""], counts["steps", ""]
        for name in NUMBERS:
            setattr(traffic, name, getattr(traffic, name) + counts[name, ""])
        traffic.successes += replies
        progress = self.progress
        for name, by_kind in self._by_kind.items():
            by_kind += Counter({kind: number for (member, kind), number in counts.items() if member == name})
        for seconds in report.latencies:
            self.caller.latency.add(seconds)
            progress.replied()
        progress.add_work(sum(report.latencies), 0.0, replies, steps)
        self._done[run.subset] += counts["done", ""]
        run.failed += counts["failed", ""]
        self.advance(run, steps)
        part.last = report.snapshot or part.last

    def end_part(self, run: Run, ended: PartEnd) -> None:
        """Note in the manifests what an engine has learned of the endpoint, and counted of its run."""
        for each in self.runs:
            each.learned(ended.quirks)
        run.count(ended.counts)
        run.diverged += ended.diverged
        run.warnings += [warning for warning in ended.warnings if warning not in run.warnings]

    def mirror(self, reports: Sequence[TurnReport]) -> None:
        """Show the requests in flight of all workers, and the limit that they have found."""
        self._live = [report.snapshot for report in reports if report.snapshot]
        limiter, in_flight = self.caller.limiter, sum([report.in_flight for report in reports])
        self.slots.in_flight += in_flight - limiter.in_flight
        limiter.in_flight = in_flight
        if self.tuning.concurrency is None and reports:
            self.slots.control.limit = max(1, sum([report.limit for report in reports]))

    def snapshot(self) -> Snapshot:
        """Return what reports show, which come once a second: so one of that age is good enough."""
        if not self._last or not (self.over or anyio.current_time() - self._shown_at < SHOWN_SECONDS):
            self._last, self._shown_at = self._snapshot(), anyio.current_time()
        return self._last

    def _snapshot(self) -> Snapshot:
        live = self._live
        stopping = str(self.ending) if self.ending else None
        unusable = tuple(self.answers.unusable.most_common())
        base = self.progress.snapshot(self.schedule.remaining_steps, 0, stopping, self.over, unusable=unusable)
        warnings = {warning.text: warning for snapshot in (base, *live) for warning in snapshot.warnings}
        return replace(
            base,
            subsets=tuple(map(self._subset, self.runs)),
            held_by=next((snapshot.held_by for snapshot in live if snapshot.held_by), None),
            waiting=sum([snapshot.waiting for snapshot in live]),
            backing_off=sum([snapshot.backing_off for snapshot in live]),
            eta=base.eta and max([base.eta, *[snapshot.eta or 0.0 for snapshot in live]]),
            pause=min([snapshot.pause for snapshot in live], default=0.0),
            outage=min([snapshot.outage for snapshot in live], default=0.0),
            silence=min([snapshot.silence for snapshot in live], default=base.silence),
            warnings=tuple(sorted(warnings.values(), key=lambda warning: warning.age))[:WARNINGS],
        )

    def _subset(self, run: Run) -> SubsetProgress:
        """Return how far a run is; its scores are the means of the parts' scores, weighted by users."""
        base = run.progress()
        if self.over:
            return base
        scored = [base, *[part.last.subsets[0] for part in self.parts if part.run is run and part.last]]
        sums, users = Counter[str](), Counter[str]()
        for progress in scored:
            for name, score in progress.scores.items():
                if score is not None:
                    sums[name] += score * progress.scored_users  # type: ignore[assignment]
                    users[name] += progress.scored_users
        return replace(
            base,
            done=base.done + self._done[run.subset],
            scores={name: sums[name] / users[name] if users[name] else None for name in sums},
            scored_users=sum([progress.scored_users for progress in scored]),
        )
