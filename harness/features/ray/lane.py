"""A lane whose users are played in parts by workers: its display, its limits and its end are those of any lane."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
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
from harness.features.ray.messages import LOGS, Ended, Part, Report, SubsetPart
from harness.model import JSON, RunUsage, Snapshot, SubsetProgress, Warned
from harness.store.log import objects, parsed
from harness.store.manifest import Selection, part_of

if TYPE_CHECKING:  # a circle of types alone
    from harness.features.ray.crew import Crew

PARTS_A_WORKER, USERS_A_SLOT = 4, 2
"""Parts are so many for each worker, but no more than leave this many users for each request in flight."""
STOP_SECONDS = 3.0
"""Beyond the grace of a stopping lane: until the workers have reported what was answered."""
WARNINGS = 3
COUNTS = attrgetter("requests", "retries", "prompt_tokens", "completion_tokens", "replayed")


@dataclass(eq=False)
class UserPart:
    """Users of a lane that one engine plays: their places in the tasks files by run. `saved` are their lines of earlier
    sessions, `chunks` the places of those of this one, by run and log. `figures` are the last running scores, and of
    how many users."""

    lane: LaneOfParts
    number: int
    positions: Mapping[int, NDArray[np.int64]]
    saved: dict[tuple[int, str], list[bytes]] = field(default_factory=dict)
    chunks: dict[tuple[int, str], list[tuple[int, int]]] = field(default_factory=dict)
    figures: dict[str, tuple[Mapping[str, float | None], int]] = field(default_factory=dict)

    def save(self, report: Report) -> None:
        """Append what a worker reports to the runs' files."""
        for subset, log, lines in report.logs:
            [number] = [at for at, run in enumerate(self.lane.runs) if run.store.files.subset == subset]
            offset = self.lane.runs[number].store.append_lines(log, lines)
            self.chunks.setdefault((number, log), []).append((offset, len(lines)))

    def sent(self) -> Part:
        """Return the part as a worker gets it, with all that is saved of it."""
        subsets = {}
        for number, positions in self.positions.items():
            run = self.lane.runs[number]
            logs = {log: b"".join([*self.saved.get((number, log), ()), *self._read(number, log)]) for log in LOGS}
            given_up = {
                run.index.of(data) for data in map(parsed, b"".join(self._read(number, "failures")).splitlines())
            }
            users = [position for position in positions.tolist() if position not in given_up]
            if users:
                subsets[run.subset] = _subset_part(run, users, logs)
        return Part(self.lane.place, subsets)

    def _read(self, number: int, log: str) -> Iterable[bytes]:
        if places := self.chunks.get((number, log)):
            with open(getattr(self.lane.runs[number].store.files, log), "rb") as file:
                for offset, size in places:
                    file.seek(offset)
                    yield file.read(size)


def _subset_part(run: Run, positions: Sequence[int], logs: Mapping[str, bytes]) -> SubsetPart:
    firsts = dict.fromkeys(position - position % run.index.repeats for position in positions)
    lines = [run.index.read(position) for position in firsts]
    selection: Selection = {"ratio": 1.0, "sample_seed": run.manifest.selection["sample_seed"]}
    if run.index.repeats > 1:
        selection["repeats"] = run.index.repeats
    name = run.index.path.name
    tasks = b"[%b]" % b",\n".join(lines) if name.endswith(".json") else b"\n".join([*lines, b""])
    manifest = structs.replace(run.manifest, selection=selection, tasks={**run.manifest.tasks, "path": name})
    return SubsetPart(name, tasks, logs, manifest)


class LaneOfParts(Lane):
    """`place` is that of its plan. `parts` are all of it, `waiting` those that no worker has. `tuning` are the plan's
    limits as they are now."""

    def __init__(self, *args: Any, crew: Crew, place: int, plan: Plan, workers: int, **more: Any) -> None:
        super().__init__(*args, **more)
        self.place = place
        self._crew = crew
        self._plan = plan
        self.parts = self._cut(workers)
        self.waiting = deque(self.parts)
        self._unfinished = len(self.parts)
        self._all_finished = anyio.Event()
        self._live: Sequence[Snapshot] = ()
        self._done = Counter[str]()
        self._faults, self._failures, self._unusable = Counter[str](), Counter[str](), Counter[str]()

    @property
    def slots(self) -> Slots:
        return self.caller.limiter.slots

    @property
    def tuning(self) -> Tuning:
        set_later = {name: self.runs[0].manifest.tuning.get(name) for name in ("concurrency", "rpm", "tpm")}
        return replace(self._plan.tuning, **cast(JSON, set_later)).shared(*part_of(self._plan.selection))

    def _cut(self, workers: int) -> list[UserPart]:
        """Return parts of the users who are left, dealt round from the longest chain on, a user's repeats together."""
        most = self.tuning.most
        runs = np.searchsorted(self._ends, np.arange(len(self._positions)), side="right")
        repeats = np.array([run.index.repeats for run in self.runs])[runs]
        _, first, owner = np.unique(
            np.stack([runs, self._positions // repeats]), axis=1, return_index=True, return_inverse=True
        )
        users_left = len(first)
        fitting = users_left * workers // (USERS_A_SLOT * most)
        count = max(1, min(users_left, max(min(workers, most), min(PARTS_A_WORKER * workers, fitting))))
        number_of_user = np.empty(users_left, np.int64)
        number_of_user[np.argsort(-self._steps[first], kind="stable")] = np.arange(users_left) % count
        number_of = number_of_user[owner.reshape(-1)]
        made = []
        for number in range(count):
            chosen = number_of == number
            positions = {int(run): self._positions[chosen & (runs == run)] for run in np.unique(runs[chosen])}
            made.append(UserPart(self, number, positions))
        for at, run in enumerate(self.runs):
            self._share_saved(at, run, made)
        return made

    def _share_saved(self, at: int, run: Run, parts: Sequence[UserPart]) -> None:
        """Give each part the lines of earlier sessions about its users."""
        if run.is_new:
            return
        owner = np.full(run.index.users(), -1)
        for part in parts:
            owner[part.positions.get(at, np.empty(0, np.int64)) // run.index.repeats] = part.number
        for log in LOGS:
            for line, data in objects(getattr(run.store.files, log)):
                position = run.index.of(data) if log != "events" or data.get("what") == "retry" else None
                if position is not None and (number := owner[position // run.index.repeats]) >= 0:
                    parts[number].saved.setdefault((at, log), []).append(line.text + b"\n")

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

    def finished(self, part: UserPart) -> None:
        self._unfinished -= 1
        if not self._unfinished:
            self._all_finished.set()

    async def _flush(self) -> None:
        """Find out what the files hold now."""
        self.over = True  # nothing is logged while the logs are opened again
        whole = {run: self._subset(run) for run in self.runs}
        for part in self.parts:
            part.figures.clear()
        for run, figures in whole.items():
            await anyio.to_thread.run_sync(run.store.open_logs, run.index)
            await run.scores.advance()
            run.scores.figures, run.scores.users = figures.scores, figures.scored_users
        await super()._flush()

    # What its workers report

    def count(self, part: UserPart, last: Report, report: Report) -> bool:
        """Add what a report has more than the one before it; return whether that is a user's end."""
        now, before, has_ended = report.snapshot, last.snapshot, False
        for seconds in report.latencies:
            self.caller.latency.add(seconds)
            self.progress.replied()
        if now is None:
            return False
        traffic = self.caller.traffic
        requests, retries, prompts, completions, replayed = (
            value - earlier for value, earlier in zip(COUNTS(now), COUNTS(before) if before else (0,) * 5, strict=True)
        )
        traffic.requests += requests
        traffic.retries += retries
        traffic.prompt_tokens += prompts
        traffic.completion_tokens += completions
        self.progress.replayed += replayed
        for total, name in (
            (traffic.notices, "notices"),
            (self._faults, "faults"),
            (self._failures, "failures"),
            (self._unusable, "unusable"),
        ):
            total.update(dict(getattr(now, name)))
            total.subtract(dict(getattr(before, name)) if before else {})
        earlier = before.subsets if before else [None] * len(now.subsets)
        of_subset = {run.progress().subset: run for run in self.runs}
        for subset, was in zip(now.subsets, earlier, strict=True):
            run = of_subset[subset.subset]
            part.figures[run.subset] = subset.scores, subset.scored_users
            if was is None:
                continue
            self._done[run.subset] += subset.done - was.done
            run.failed += subset.failed - was.failed
            self.advance(run, subset.steps_done - was.steps_done)
            has_ended |= subset.done > was.done
        self._count_of_runs(last, report)
        return has_ended

    def _count_of_runs(self, last: Report, report: Report) -> None:
        work = zip(report.work, last.work, strict=True)
        seconds, _, replies, steps = (value - before for value, before in work)
        self.progress.add_work(seconds, report.work[1], int(replies), int(steps))
        for run in self.runs:
            if used := report.usage.get(run.subset):
                before = last.usage.get(run.subset, (0,) * len(used))
                usage = RunUsage(*[value - was for value, was in zip(used, before, strict=True)])
                usage.longest = RunUsage(*used).longest
                run.store.bill.at(run.store.rate).merge(usage)
                self.caller.traffic.successes += usage.requests
            new = Counter(report.counts.get(run.subset, {}))
            new.subtract(last.counts.get(run.subset, {}))
            for name, number in (counts(run.manifest) + new).items():
                cast(JSON, run.manifest.tuning)[name] = number
            provenance = run.manifest.provenance
            if not set(report.quirks) <= set(provenance["quirks"]):
                provenance["quirks"] = sorted({*provenance["quirks"], *report.quirks})
                provenance["quirks_used"] = sorted({*provenance["quirks_used"], *report.quirks})
                run.manifest.save(run.store.files.manifest)

    def mirror(self, reports: Sequence[Report]) -> None:
        """Show the requests in flight of all workers, and the limit that they have found."""
        self._live = [report.snapshot for report in reports if report.snapshot]
        in_flight, limiter = sum([report.in_flight for report in reports]), self.caller.limiter
        self.slots.in_flight += in_flight - limiter.in_flight
        limiter.in_flight = in_flight
        self.caller.traffic.backing_off = sum([one.backing_off for one in self._live])
        if self.tuning.concurrency is None and (found := sum([report.limit for report in reports])):
            self.slots.control.limit = found

    def note_end(self, ended: Ended) -> None:
        for run in self.runs:
            run.diverged += ended.diverged.get(run.subset, 0)
            run.warnings += [words for words in ended.warnings.get(run.subset, ()) if words not in run.warnings]

    def snapshot(self) -> Snapshot:
        live, stopping = self._live, str(self.ending) if self.ending else None
        base = self.progress.snapshot(self.schedule.remaining_steps, 0, stopping, self.over)
        warnings = {one.text: one for one in sorted(_warnings(base, *live), key=attrgetter("age"), reverse=True)}
        return replace(
            base,
            subsets=tuple(map(self._subset, self.runs)),
            held_by=next((one.held_by for one in live if one.held_by), None),
            waiting=sum([one.waiting for one in live]),
            eta=base.eta and max([base.eta, *[one.eta for one in live if one.eta is not None]]),
            outage=min([one.outage for one in live], default=0.0),
            silence=min([one.silence for one in live], default=base.silence),
            awaited=min([one.awaited for one in live], default=0.0),
            faults=_most_common(self._faults),
            failures=_most_common(self._failures),
            unusable=_most_common(self._unusable),
            warnings=tuple(reversed(warnings.values()))[:WARNINGS],
        )

    def _subset(self, run: Run) -> SubsetProgress:
        base = run.progress()
        scored = [(base.scores, base.scored_users), *[part.figures.get(run.subset, ({}, 0)) for part in self.parts]]
        return replace(
            base,
            done=base.done + (0 if self.over else self._done[run.subset]),
            scores={
                name: _mean(name, scored) for name in dict.fromkeys(name for figures, _ in scored for name in figures)
            },
            scored_users=sum([users for _, users in scored]),
        )


def _mean(name: str, scored: Sequence[tuple[Mapping[str, float | None], int]]) -> float | None:
    """Return a figure over the users of all parts: the mean of theirs, weighted by users."""
    known = [(value, users) for figures, users in scored if users and (value := figures.get(name)) is not None]
    return sum([value * users for value, users in known]) / sum([users for _, users in known]) if known else None


def _warnings(*snapshots: Snapshot) -> Iterable[Warned]:
    return (warned for one in snapshots for warned in one.warnings)


def _most_common(counted: Counter[str]) -> tuple[tuple[str, int], ...]:
    return tuple([item for item in counted.most_common() if item[1] > 0])
