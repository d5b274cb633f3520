"""`reeval`: score saved answers again, without any call. Also results that another program wrote."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import orjson
from rich.console import Console

from harness import defaults
from harness.analysis import saved_runs
from harness.analysis.saved_runs import SavedRun
from harness.benchmark import Benchmark, Importer, Task
from harness.benchmarks import registry
from harness.benchmarks.records import read_of
from harness.benchmarks.reports import Report
from harness.benchmarks.tasks import parse
from harness.benchmarks.template import AUTHORS
from harness.config import options, plan
from harness.engine.files import index_file, now, stamp, write_report
from harness.engine.finish import ReportScores, facts
from harness.engine.job import Job
from harness.engine.play import play, recorded, rescored
from harness.engine.replay import ReplayMiss, replaying
from harness.errors import AgentFailed, BadInput
from harness.model import JSON, Record, RunFacts, Where
from harness.report import pages
from harness.report.pages import Source, Wish
from harness.store.lock import RunLock
from harness.store.log import lines
from harness.store.manifest import COMPLETE, INCOMPLETE, RUNNING
from harness.store.run import RECORD_FORMAT, RunFiles, RunStore, replace_results
from harness.store.tasks import TaskIndex
from harness.ui.console import console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_which(parser)
    options.add_folders(parser, of_earlier_runs=True)
    options.add_page(parser)
    options.add_trust(parser)
    parser.add_argument(
        "--reparse", action="store_true", help="start from the saved responses instead of the saved answers"
    )


def execute(args: argparse.Namespace) -> int:
    screen = console()
    ours = saved_runs.find(args)
    foreign = _foreign(args, {run.files.results for run in ours})
    if not ours and not foreign:
        raise saved_runs.nothing_found(args)
    worst = saved_runs.each(ours, lambda run: _ours(run, args, screen), lambda run: f"{run.name}, {run.files.subset}")
    return max(
        worst,
        saved_runs.each(foreign, lambda files: _theirs(files, args, screen), lambda files: str(files.results)),
    )


def _ours(run: SavedRun, args: argparse.Namespace, screen: Console) -> int:
    benchmark = run.as_it_was(args.tasks_dir, play=args.reparse)
    tasks = run.tasks(args.tasks_dir)
    with (
        closing(index_file(benchmark, run.files.subset, tasks, args.results_dir)) as index,
        closing(RunStore(run.files, time.time, stamp())) as store,
        asyncio.Runner() as loop,
    ):
        manifest = store.manifest()  # read again under the lock
        if manifest is None:
            raise BadInput(f"{run.files.manifest} has gone")
        done, selection = store.open_logs(index), manifest.selection
        expected = index.select(selection["ratio"], selection["sample_seed"]) | done
        endpoint = manifest.provenance["endpoint"]
        job = Job(benchmark, run.files.subset, plan.sampling_again(manifest), endpoint, index, store, expected)
        again, scores = _Again(job, args.reparse, loop), ReportScores(benchmark, job.subset)
        state, manifest.state = manifest.state, RUNNING
        manifest.save(run.files.manifest)  # if the process dies from here on, no outdated hash remains
        records = _scored(again.records(), scores)
        try:
            sha256 = replace_results(run.files.results, records, stamp(), shown_by=run.files.pages)
        except BadInput:  # the old results are unchanged
            manifest.state = state
            manifest.save(run.files.manifest)
            raise
        manifest.state = state
        if manifest.state == COMPLETE and len(job.remaining):
            manifest.state = INCOMPLETE
        manifest.results_sha256 = sha256 if manifest.state == COMPLETE else None
        manifest.times["reevaluated"] = now()
        manifest.tasks["truth"] = benchmark.truth_sha256
        failed = store.failed_users(index, expected)
        manifest.counts |= {"users": job.users, "done": job.users_done, "failed": failed}
        manifest.save(run.files.manifest)
        about = facts(job, manifest, run.name, failed)
        report, more = scores.report(replace(about, notes=(*about.notes, *again.notes())))
        write_report(run.files, report, more)
        _tell(run.files, report, again.notes(), screen)
        if args.html:
            _write_page(Source(run.files, report, selection["sample_seed"], benchmark, index))
    return 1 if manifest.state == INCOMPLETE else 0


class _Again:
    """Measure the records of a run again, from its saved answers or (`reparse`) its saved responses."""

    def __init__(self, job: Job, reparse: bool, loop: asyncio.Runner) -> None:
        self._job = job
        self._loop = loop
        self._reparse = reparse
        self._diverged = 0
        if reparse:
            job.store.load_responses(job.index)

    def records(self) -> Iterator[JSON]:
        for record in self._job.store.records():
            position = self._job.index.find(record.key)
            assert position is not None  # `records` yields users of the index only
            task = self._job.task(position)
            if self._reparse:
                yield self._replayed(task, record.data)
            else:
                yield rescored(self._job.benchmark, task, record.data)

    def notes(self) -> tuple[str, ...]:
        if not self._diverged:
            return ()
        return (f"{self._diverged} users could not be played again from their saved responses and keep their records.",)

    def _replayed(self, task: Task, old: JSON) -> JSON:
        job = self._job
        conversation = replaying(job.sampling, job.store.responses_of(task.key))
        try:
            played = self._loop.run(play(job.benchmark, task, conversation.ask))
        except (ReplayMiss, AgentFailed):
            self._diverged += 1
            return {**rescored(job.benchmark, task, old), "reparse": "diverged"}
        return {**recorded(job.benchmark, task, played), "task": old["task"], "format": RECORD_FORMAT}


def _scored(records: Iterator[JSON], scores: ReportScores) -> Iterator[JSON]:
    """Yield the records on their way to a file, scored as they will be read from it, before the file is in place."""
    for data in records:
        key = str(data["user_id"])
        with read_of(key):  # a readable record may be nested too deeply to be written
            again = orjson.loads(orjson.dumps(data))
        scores.add(Record(key, again))
        yield data
    scores.flush()


def _foreign(args: argparse.Namespace, ours: set[Path]) -> list[RunFiles]:
    """Return results without a manifest, which another program wrote."""
    platforms = {name.lower() for name in args.platform or ()}
    found = []
    for path in sorted(args.results_dir.glob(f"{saved_runs.folder_named(args) or '*'}/inference_results_*.jsonl")):
        files = RunFiles(path.parent, path.stem.removeprefix("inference_results_"))
        if path in ours or files.manifest.exists() or (platforms and files.subset not in platforms):
            continue
        if saved_runs.has_name(path.parent, args):
            found.append(files)
    return found


def _theirs(files: RunFiles, args: argparse.Namespace, screen: Console) -> int:
    cls, importer = registry.importing(files.subset)
    benchmark = cls()
    tasks = (args.tasks_dir or defaults.TASKS_FOLDER) / benchmark.subsets[files.subset]
    if not tasks.exists():
        raise BadInput(f"its tasks file {tasks} does not exist: name its folder with --tasks-dir")
    lock = RunLock(files.lock, time.time)
    try:
        with closing(index_file(benchmark, files.subset, tasks, args.results_dir)) as index:
            found = _Theirs(files, benchmark, importer, index, lock)
            scores = ReportScores(benchmark, files.subset)
            replace_results(files.results, found.records(scores), stamp(), shown_by=files.pages)
            report, more = scores.report(found.facts())
            write_report(files, report, more)
            _tell(files, report, found.notes(), screen)
            if args.html:
                _write_page(Source(files, report, defaults.SAMPLE_SEED, benchmark, index))
    finally:
        lock.release()
    return 0


class _Theirs:
    """Results of another program, and the tasks that they answer."""

    def __init__(
        self, files: RunFiles, benchmark: Benchmark, importer: Importer, index: TaskIndex, lock: RunLock
    ) -> None:
        self._files = files
        self._benchmark = benchmark
        self._importer = importer
        self._index = index
        self._lock = lock
        self._unknown = 0
        self._cut = 0
        self._outcomes: Counter[str] = Counter()

    def records(self, scores: ReportScores) -> Iterator[JSON]:
        """Yield known users' records measured again and scored; unknown and incomplete ones unchanged."""
        seen = np.zeros(len(self._index), np.bool_)
        for number, line in enumerate(lines(self._files.results), 1):
            self._lock.beat()
            if not line.text.strip():
                continue
            where = Where(str(self._files.results), number)
            data = self._importer.record(line.text, where)
            position = self._index.find(str(data["user_id"]))
            if position is None:
                self._unknown += 1
                yield data
                continue
            if seen[position]:
                raise BadInput(f"{where}: field user_id: duplicate user")
            seen[position] = True
            task = parse(self._benchmark, self._index.read(position), self._index.where(position), self._files.subset)
            if self._importer.is_partial(task, data):
                self._cut += 1
                yield data
                continue
            again = self._measured(task, data, position)
            scores.add(Record(str(data["user_id"]), orjson.loads(orjson.dumps(again))))
            yield again
        scores.flush()

    def facts(self) -> RunFacts:
        name = self._files.folder.name
        return RunFacts(self._files.subset, name, name, AUTHORS, len(self._index), 0, self.notes())

    def notes(self) -> tuple[str, ...]:
        left_out = (
            (self._unknown, "are not in the tasks file and are not scored."),
            (self._cut, "lack steps of their tasks, or have one twice, and are not scored."),
        )
        excluded = (f"{number} of its users {why}" for number, why in left_out if number)
        return (*self._importer.notes(self._outcomes), *excluded)

    def _measured(self, task: Task, data: JSON, position: int) -> JSON:
        again = rescored(self._benchmark, task, data)
        self._outcomes.update(self._benchmark.outcomes(again))
        return again | {"task": self._index.digest(position), "format": RECORD_FORMAT}


def _write_page(source: Source) -> None:
    pages.attempt(partial(pages.write_page, source, Wish()), f"{source.files.folder.name}, {source.files.subset}")


def _tell(files: RunFiles, report: Report, notes: tuple[str, ...], screen: Console) -> None:
    users = f"{report.coverage.scored_users} of {report.coverage.expected_users} users"
    say = f"{files.folder.name}, {files.subset}: {users} scored again; report: {files.report('txt')}"
    for words in (say, *notes):
        screen.print(words, highlight=False, soft_wrap=True, markup=False)
