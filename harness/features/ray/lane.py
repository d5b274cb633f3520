"""A lane whose users are played in parts by workers: its display, its limits and its end are those of any lane."""

from __future__ import annotations

import os
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import anyio
import anyio.to_thread
import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from harness.config.plan import Plan
from harness.defaults import Tuning
from harness.endpoint.limiter import Slots
from harness.engine.lane import Lane
from harness.engine.run import Run
from harness.errors import HarnessError
from harness.feature import counts
from harness.features.ray.messages import LOGS, PartEnd, SentPart, SubsetPart, TurnReport
from harness.model import JSON, RunUsage, Snapshot, SubsetProgress
from harness.store.log import objects
from harness.store.manifest import part_of

if TYPE_CHECKING:  # a circle of types alone
    from harness.features.ray.crew import Crew

PARTS_A_WORKER, USERS_A_SLOT, USERS_MOST = 4, 2, 2000
"""Parts are so many for each worker, but no more than leave this many users for each request in flight, and none has
much more users than the last."""
WARNINGS, SHOWN_SECONDS = 3, 0.8
STOP_SECONDS = 3.0
"""Beyond the grace of a stopping lane: until the workers have reported what was answered."""
TRAFFIC = ("requests", "retries", "prompt_tokens", "completion_tokens")
BY_KIND = ("faults", "failures", "notices", "unusable")
"""Members of a snapshot that are added up: counts, and counts by kind."""


@dataclass(eq=False)
class UserPart:
    """Users of a lane that one engine plays. `saved` is where their lines are, by subset and log. `progress` is
    what was reported last, by subset."""

    lane: LaneOfParts
    number: int
    saved: dict[tuple[str, str], list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    progress: dict[str, SubsetProgress] = field(default_factory=dict)

    def save(self, report: TurnReport) -> None:
        """Append what a worker reports to the runs' files."""
        stores = {run.subset: run.store for run in self.lane.runs}
        for (subset, log), lines in report.logs.items():
            self.saved[subset, log].append((stores[subset].append_lines(log, lines), len(lines)))

    def sent(self) -> SentPart:
        """Return the part as a worker gets it, with all that is saved of it."""
        runs = [run for run in self.lane.runs if run.subset in self.progress]
        return SentPart(self.lane.place, {run.subset: self._of_subset(run) for run in runs})

    def _of_subset(self, run: Run) -> SubsetPart:
        users = np.flatnonzero(self.lane.owners[run.subset] == self.number)
        lines = [run.index.read(user * run.index.repeats) for user in users.tolist()]
        path = os.path.relpath(run.index.path, self.lane.plan.benchmark.folder)
        tasks = b"[%b]" % b",\n".join(lines) if path.endswith(".json") else b"\n".join([*lines, b""])
        selection: Any = run.manifest.selection.copy() | {"ratio": 1.0}
        for name in ("limit", "part", "by"):
            selection.pop(name, None)
        logs = {log: self._read(run, log) for log in LOGS}
        return SubsetPart(path, tasks, logs, structs.replace(run.manifest, selection=selection))

    def _read(self, run: Run, log: str) -> bytes:
        with open(getattr(run.store.files, log), "rb") as file:
            return b"".join([os.pread(file.fileno(), size, offset) for offset, size in self.saved[run.subset, log]])


class LaneOfParts(Lane):
    """`place` is that of its plan. `parts` are all of it, `waiting` those that no worker has."""

    def __init__(self, *args: Any, crew: Crew, place: int, plan: Plan, workers: int, **more: Any) -> None:
        super().__init__(*args, **more)
        self.place, self.plan = place, plan
        self._crew = crew
        self.owners: dict[str, NDArray[np.int64]] = {}
        """The number of the part that each user belongs to, by subset; -1 for none."""
        self.parts = self._cut(workers)
        self.waiting = deque(self.parts)
        self._unfinished = len(self.parts)
        self._all_finished = anyio.Event()
        self._counted: Mapping[str, Counter[str]] = {name: Counter() for name in BY_KIND}
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
        left = [run.start() for run in self.runs]
        users = [np.unique(at // run.index.repeats) for run, (at, _) in zip(self.runs, left, strict=True)]
        whole, most = sum(map(len, users)), self.tuning.most
        fitting = max(min(workers, most), whole * workers // (USERS_A_SLOT * most))
        count = max(1, min(whole, max(min(PARTS_A_WORKER * workers, fitting), whole // USERS_MOST)))
        parts, dealt = [UserPart(self, number) for number in range(count)], 0
        for run, chosen, (positions, steps) in zip(self.runs, users, left, strict=True):
            owners = self.owners[run.subset] = np.full(run.index.users(), -1)
            owners[chosen] = (dealt + np.arange(len(chosen))) % count
            dealt += len(chosen)
            steps_left = np.zeros(len(run.index))
            steps_left[positions] = steps
            owner = np.repeat(owners, run.index.repeats) + 1
            sums = [
                np.bincount(owner, values, count + 1)[1:].astype(int).tolist()
                for values in (np.ones(len(owner)), run.done, run.index.steps - steps_left)
            ]
            for part, plays, done, steps_done in zip(parts, *sums, strict=True):
                if plays:
                    part.progress[run.subset] = replace(
                        run.progress(), done=done, failed=0, steps_done=steps_done, scores={}, scored_users=0
                    )
            for log in () if run.store.files.is_bare else LOGS:
                for line, data in objects(getattr(run.store.files, log)):
                    place = run.index.of(data) if log != "events" or data.get("what") == "retry" else None
                    if place is not None and (number := owners[place // run.index.repeats]) >= 0:
                        parts[number].saved[run.subset, log].append((line.offset, line.size))
        return parts

    # Its life

    @property
    def has_more(self) -> bool:
        return False

    def starts_no_more(self) -> None:
        self._users.start_soon(self._all_finished.wait)
        super().starts_no_more()

    @property
    def is_idle(self) -> bool:
        return not any(self._crew.plays(self))

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

    def count(self, part: UserPart, last: TurnReport, report: TurnReport) -> bool:
        """Add what a report has more than the one before it; return whether that is a user's end."""
        if (now := report.snapshot) is None:
            return False
        before, traffic, replies, steps = last.snapshot, self.caller.traffic, report.replies - last.replies, 0
        tokens = {}
        for name in TRAFFIC:
            tokens[name] = getattr(now, name) - (getattr(before, name) if before else 0)
            setattr(traffic, name, getattr(traffic, name) + tokens[name])
        traffic.successes += replies
        for name, counted in self._counted.items():
            counted.update(dict(getattr(now, name)))
            counted.subtract(dict(getattr(before, name)) if before else {})
        for seconds in report.latencies:
            self.caller.latency.add(seconds)
            self.progress.replied()
        now_done = 0
        for run in self.runs:
            shown = run.progress().subset
            for subset in [subset for subset in now.subsets if subset.subset == shown]:
                was, part.progress[run.subset] = part.progress[run.subset], subset
                self._done[run.subset] += subset.done - was.done
                self.advance(run, subset.steps_done - was.steps_done)
                run.failed += subset.failed - was.failed
                now_done += subset.done - was.done
                steps += subset.steps_done - was.steps_done
        usage = RunUsage(replies, tokens["prompt_tokens"], 0, tokens["completion_tokens"])
        self.runs[0].store.bill.at(self.runs[0].store.rate).merge(usage)  # until the files are read again
        self.progress.add_work(sum(report.latencies), 0.0, replies, steps)
        return now_done > 0

    def end_part(self, ended: PartEnd) -> None:
        """Note in the runs' manifests what an engine has learned and counted."""
        for run in self.runs:
            provenance, tuning = cast(JSON, run.manifest.provenance), cast(JSON, run.manifest.tuning)
            for name in ("quirks", "quirks_used"):
                provenance[name] = sorted({*provenance.get(name, ()), *ended.quirks})
            tuning |= counts(run.manifest) + Counter(ended.counts.get(run.subset, {}))
            run.diverged += ended.diverged.get(run.subset, 0)
            run.warnings += [words for words in ended.warnings.get(run.subset, ()) if words not in run.warnings]

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
        live, stopping = self._live, str(self.ending) if self.ending else None
        base = self.progress.snapshot(self.schedule.remaining_steps, 0, stopping, self.over)
        warnings = {one.text: one for snapshot in (base, *live) for one in snapshot.warnings}
        by_kind: Any = {
            name: tuple([item for item in counted.most_common() if item[1] > 0])
            for name, counted in self._counted.items()
        }
        return replace(
            base,
            subsets=tuple(map(self._subset, self.runs)),
            held_by=next((one.held_by for one in live if one.held_by), None),
            waiting=sum([one.waiting for one in live]),
            backing_off=sum([one.backing_off for one in live]),
            eta=base.eta and max([base.eta, *[one.eta or 0.0 for one in live]]),
            pause=min([one.pause for one in live], default=0.0),
            outage=min([one.outage for one in live], default=0.0),
            silence=min([one.silence for one in live], default=base.silence),
            warnings=tuple(sorted(warnings.values(), key=lambda one: one.age))[:WARNINGS],
            **by_kind,
        )

    def _subset(self, run: Run) -> SubsetProgress:
        """Return how far a run is; its scores are the means of the parts' scores, weighted by users."""
        base = run.progress()
        if self.over:
            return base
        scored = [base, *[part.progress[run.subset] for part in self.parts if run.subset in part.progress]]
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
