"""Score saved answers again, without any request; also results that another program wrote (`reeval`)."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import numpy as np
import orjson

from harness import defaults
from harness.analysis.imported import Imported
from harness.analysis.saved_runs import SavedRun
from harness.benchmark import Benchmark, Importer
from harness.benchmarks import overview, registry
from harness.benchmarks.records import read_of
from harness.benchmarks.reports import Report
from harness.benchmarks.tasks import parse
from harness.benchmarks.template import AUTHORS
from harness.config import prices, providers
from harness.cost import DEFERRED
from harness.engine.files import Reported, index_file, keep_foreign_text, now, stamp, write_report
from harness.engine.finish import ReportScores, facts, finish
from harness.engine.play import play, recorded, rescored
from harness.engine.replay import ReplayMiss, replaying
from harness.engine.run import Run, counted_cost
from harness.errors import AgentFailed, BadInput
from harness.feature import how_to_get, pending
from harness.model import JSON, Record, RunFacts, Where
from harness.store.files import RunFiles
from harness.store.lock import RunLock
from harness.store.log import lines
from harness.store.manifest import COMPLETE, INCOMPLETE
from harness.store.run import RECORD_FORMAT, RunStore, numbered, replace_results
from harness.store.tasks import TaskIndex
from harness.ui.streams import tell


@dataclass(frozen=True, slots=True)
class RescoreOptions:
    """How runs are scored again. `tasks` is a folder, None for each run's own; `reparse` starts from the saved
    responses instead of the saved answers; `new_prices` takes those of today; `reported` gets each new
    report while its tasks are open."""

    results: Path
    tasks: Path | None
    reparse: bool
    new_prices: bool
    reported: Callable[[Sequence[Reported]], None]


@dataclass(frozen=True, slots=True)
class Rescored:
    """A run with its new report, and notes on what was left out. `complete` means that no user is missing."""

    files: RunFiles
    report: Report
    notes: tuple[str, ...]
    complete: bool


# Runs of the harness


def of_run(run: SavedRun, chosen: RescoreOptions) -> Rescored:
    """Score a run again, under its lock. Raise `BadInput` if its tasks have changed; its results are then unchanged."""
    benchmark = run.as_it_was(chosen.tasks, play=chosen.reparse)
    tasks = run.tasks(chosen.tasks)
    with (
        closing(index_file(benchmark, run.files.subset, tasks, chosen.results, run.manifest.selection)) as index,
        closing(RunStore(run.files, time.time, stamp())) as store,
        asyncio.Runner() as loop,
    ):
        job = _opened(benchmark, index, store)
        scores, diverged = ReportScores(benchmark, job.subset, index), list[str]()
        if chosen.reparse:
            store.load_responses(index)
        _replace(job, _scored(_measured(job, loop if chosen.reparse else None, diverged), scores))
        if chosen.new_prices:
            _price_again(job, run.label)
        failed = store.failed_users(index, job.expected)
        _settle(job, failed)
        many = f"{len(diverged)} users could not be played again from their saved responses and keep their records."
        about, notes = facts(job, run.name, failed), (many,) if diverged else ()
        report, more = scores.report(replace(about, notes=(*about.notes, *notes)))
        write_report(run.files, report, more)
        chosen.reported([Reported(run.files, report, job.manifest.selection["sample_seed"], benchmark, index)])
        return Rescored(run.files, report, notes, job.manifest.state != INCOMPLETE)


def report_of(run: SavedRun, results: Path, tasks: Path | None) -> None:
    """Make the report of a run that was stopped or killed, of its records as they are, under its lock."""
    benchmark, path = run.as_it_was(tasks, play=False), run.tasks(tasks)
    with (
        closing(index_file(benchmark, run.files.subset, path, results, run.manifest.selection)) as index,
        closing(RunStore(run.files, time.time, stamp())) as store,
    ):
        job = _opened(benchmark, index, store)
        report, more = finish(job, run.name, stopped=True)
        write_report(run.files, report, more)
        job.manifest.save(run.files.manifest)


def _opened(benchmark: Benchmark, index: TaskIndex, store: RunStore) -> Run:
    """Return a run that is locked: its manifest is read again. Raise `BadInput` if it is gone."""
    manifest = store.manifest()
    if manifest is None:
        raise BadInput(f"{store.files.manifest} no longer exists")
    done = store.open_logs(index)
    return Run(benchmark, store.files.subset, index, store, manifest, index.selected(manifest.selection) | done)


def _replace(job: Run, records: Iterator[JSON]) -> None:
    """Replace the results of a run. Raise `BadInput` for a record that cannot be scored: the old results remain."""
    manifest, files = job.manifest, job.store.files
    named, manifest.results_sha256 = manifest.results_sha256, None
    manifest.save(files.manifest)  # if the process dies from here on, no outdated hash remains
    try:
        sha256 = replace_results(files.results, records, stamp(), shown_by=files.pages)
    except BadInput:
        manifest.results_sha256 = named
        manifest.save(files.manifest)
        raise
    if manifest.state == COMPLETE and len(job.remaining):
        manifest.state = INCOMPLETE
    if manifest.state == COMPLETE:
        manifest.results_sha256 = sha256


def _settle(job: Run, failed: int) -> None:
    """Save what the new results change in the manifest."""
    manifest = job.manifest
    manifest.times["reevaluated"] = now()
    manifest.tasks["truth"] = job.benchmark.task_files.truth_sha256
    manifest.cost = msgspec.to_builtins(counted_cost(manifest, job.store.bill.copy(pending(job.store.files))))
    manifest.counts |= {"users": job.users, "done": job.users_done, "failed": failed}
    manifest.save(job.store.files.manifest)


def _price_again(job: Run, label: str) -> None:
    """Give all replies of a run the price of today, or say that there is none."""
    manifest = job.manifest
    if price := prices.price_again(manifest, providers.read(None, os.environ)):
        if manifest.tuning.get(DEFERRED) and not job.store.bill.has_deferred:
            price = price.when_deferred  # an earlier version's run, whose lines do not say that they were deferred
        manifest.provenance["price"] = msgspec.to_builtins(price)
        manifest.provenance.pop("later_prices", None)
    elif manifest.provenance["endpoint"] != defaults.EMBEDDED:
        tell(f"{label}: no price is known for {manifest.identity['model']}: its cost stays as it is")


def _measured(job: Run, loop: asyncio.Runner | None, diverged: list[str]) -> Iterator[JSON]:
    """Yield the records of a run, measured again: their saved answers, or with `loop` answers to its saved responses.

    A user who asks for a response that was not saved keeps the saved answers, and is added to `diverged`.
    """
    for record in job.store.records():
        position = job.index.of(record.data)
        assert position is not None  # `records` yields users of the index only
        task = job.task(position)
        if loop is None:
            yield rescored(job.benchmark, task, record.data)
            continue
        repeat = job.index.repeat(position)
        saved = replaying(job.sampling_at(position), job.store.responses_of(position))
        try:
            played = loop.run(play(job.benchmark, task, saved.ask, repeat))
        except (ReplayMiss, AgentFailed):
            diverged.append(task.key)
            yield {**rescored(job.benchmark, task, record.data), "reparse": "diverged"}
            continue
        made = {**recorded(job.benchmark, task, played), **numbered(repeat)}
        yield {**made, "task": record.data["task"], "format": RECORD_FORMAT}


def _scored(records: Iterator[JSON], scores: ReportScores) -> Iterator[JSON]:
    """Yield the records on their way to a file, scored as they will be read from it, before the file is in place."""
    for data in records:
        _add(data, scores)
        yield data
    scores.flush()


def _add(data: JSON, scores: ReportScores) -> None:
    key = str(data["user_id"])
    with read_of(key):  # a readable record may be nested too deeply to be written
        scores.add(Record(key, orjson.loads(orjson.dumps(data))))


# Results of another program


def of_another_program(found: Imported, chosen: RescoreOptions) -> Rescored:
    """Score the results of another program on a subset, under their lock. Raise `BadInput` if they cannot be read."""
    files = found.files
    cls, importer = registry.importing(files.subset)
    benchmark = cls()
    tasks = benchmark.task_files.file_in(chosen.tasks or defaults.TASKS_FOLDER, benchmark.subsets[files.subset])
    if not tasks.exists():
        words = f"name its folder with --tasks-dir; or {how_to_get(cls)}"
        raise BadInput(f"its tasks file {tasks} does not exist: {words}")
    lock = RunLock(files.lock, time.time)
    try:
        with closing(index_file(benchmark, files.subset, tasks, chosen.results)) as index:
            theirs = _Theirs(files, benchmark, importer, index)
            replace_results(files.results, theirs.records(lock.beat), stamp(), shown_by=files.pages)
            name, notes = files.folder.name, theirs.notes()
            about = RunFacts(files.subset, name, name, AUTHORS, len(index), theirs.failed, notes)
            report, more = theirs.scores.report(about)
            if theirs.failed:
                report = overview.with_failures(report, theirs.scores.report(about, theirs.failures)[0])
            keep_foreign_text(files)
            write_report(files, report, more)
            chosen.reported([Reported(files, report, defaults.SAMPLE_SEED, benchmark, index)])
    finally:
        lock.release()
    return Rescored(files, report, notes, report.coverage.complete)


@dataclass(slots=True)
class _Theirs:
    """Results of another program, and the tasks that they answer. `unknown` users have no task, `cut` ones not all
    steps of it, and `failed` ones answers that are failures of the endpoint: `failures` has their scores."""

    files: RunFiles
    benchmark: Benchmark
    importer: Importer
    index: TaskIndex
    unknown: int = 0
    cut: int = 0
    failed: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    scores: ReportScores = field(init=False)
    failures: ReportScores = field(init=False)

    def __post_init__(self) -> None:
        self.scores, self.failures = (ReportScores(self.benchmark, self.files.subset, self.index) for _ in range(2))

    def records(self, beat: Callable[[], None]) -> Iterator[JSON]:
        """Yield the records, those with a whole task measured again and scored; call `beat` before each."""
        seen = np.zeros(len(self.index), np.bool_)
        for number, line in enumerate(lines(self.files.results), 1):
            beat()
            if not line.text.strip():
                continue
            where = Where(str(self.files.results), number)
            data = self.importer.record(line.text, where)
            position = self.index.find(str(data["user_id"]))
            if position is None:
                self.unknown += 1
                yield data
                continue
            if seen[position]:
                raise BadInput(f"{where}: field user_id: duplicate user")
            seen[position] = True
            task = parse(self.benchmark, self.index.read(position), self.index.where(position), self.files.subset)
            if self.importer.is_partial(task, data):
                self.cut += 1
            else:
                data = rescored(self.benchmark, task, data)
                self.outcomes.update(self.benchmark.records.outcomes(data))
                if self.importer.has_failed(data):
                    self.failed += 1
                    _add(data, self.failures)
                else:
                    data = data | {"task": self.index.digest(position), "format": RECORD_FORMAT}  # not the author's own
                    _add(data, self.scores)
            yield data
        self.scores.flush()
        self.failures.flush()

    def notes(self) -> tuple[str, ...]:
        left_out = {
            "are not in the tasks file and are not scored.": self.unknown,
            "lack steps of their tasks, or have one twice, and are not scored.": self.cut,
            "have failures of the endpoint, and are not scored; the report has figures with them, too.": self.failed,
        }
        excluded = (f"{number} of its users {why}" for why, number in left_out.items() if number)
        return (*self.importer.notes(self.outcomes), *excluded)
