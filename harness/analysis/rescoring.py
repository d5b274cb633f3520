"""Score saved answers again, without any request (`reeval`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import orjson

from harness import defaults
from harness.analysis.reporting import opened
from harness.analysis.saved_runs import SavedRun
from harness.benchmarks.records import read_of
from harness.engine.files import now, stamp, write_report
from harness.engine.finish import ReportScores, facts
from harness.engine.play import play, recorded, rescored
from harness.engine.replay import ReplayMiss, replaying
from harness.engine.run import Run
from harness.errors import AgentFailed, BadInput
from harness.model import JSON, Record
from harness.options.prices import prices_again
from harness.reporting.reported import Reported
from harness.scoring.reports import Report
from harness.store.files import RunFiles
from harness.store.manifest import COMPLETE, INCOMPLETE
from harness.store.run import record_line, record_of, replace_results
from harness.ui.streams import tell


@dataclass(frozen=True, slots=True)
class RescoreOptions:
    """How runs are scored again. `tasks` is a folder, None for each run's own; `reparse` starts
    from the saved responses instead of the saved answers; `new_prices` takes those of today, by the
    user's own `providers` file if it is named; `reported` gets each new report while its tasks are
    open."""

    results: Path
    tasks: Path | None
    reparse: bool
    new_prices: bool
    providers: Path | None
    reported: Callable[[Reported], None]


@dataclass(frozen=True, slots=True)
class Rescored:
    """A run with its new report, and notes on what was left out. `complete` means that no user is
    missing."""

    files: RunFiles
    report: Report
    notes: tuple[str, ...]
    complete: bool


def rescored_run(run: SavedRun, chosen: RescoreOptions) -> Rescored:
    """Score a run again, under its lock. Raise `BadInput` if its tasks have changed; its results
    are then unchanged."""
    benchmark = run.as_it_was(chosen.tasks, play=chosen.reparse)
    with opened(run, benchmark, chosen.results, chosen.tasks) as job, asyncio.Runner() as loop:
        manifest = job.manifest
        scores = ReportScores(benchmark, job.subset, job.index)
        diverged = list[str]()
        records = _rescored(job)
        if chosen.reparse:
            job.store.load_responses(job.index)
            records = _reparsed(job, loop, diverged)
        _replace(job, _scored(records, scores))
        if chosen.new_prices:
            _price_again(job, chosen.providers, run.label)
        manifest.times["reevaluated"] = now()
        manifest.tasks["truth"] = benchmark.task_files.truth_sha256
        job.settle()
        job.save()
        notes: tuple[str, ...] = ()
        if diverged:
            notes = (
                f"{len(diverged)} users could not be played again from their saved responses and"
                " keep their records.",
            )
        run_facts = facts(job, run.name)
        report, extra_files = scores.report(replace(run_facts, notes=(*run_facts.notes, *notes)))
        write_report(run.files, report, extra_files)
        seed = manifest.selection["sample_seed"]
        chosen.reported(Reported(run.files, report, seed, benchmark, job.index))
        return Rescored(run.files, report, notes, manifest.state != INCOMPLETE)


def _replace(job: Run, records: Iterator[JSON]) -> None:
    """Replace the results of a run. Raise `BadInput` for a record that cannot be scored: the old
    results remain."""
    manifest = job.manifest
    files = job.store.files
    sha256_before = manifest.results_sha256
    manifest.results_sha256 = None
    job.save()  # if the process dies from here on, no outdated hash remains
    try:
        sha256 = replace_results(files.results, records, stamp(), shown_by=files.pages)
    except BadInput:
        manifest.results_sha256 = sha256_before
        job.save()
        raise
    if manifest.state != COMPLETE:
        return
    if len(job.remaining):
        manifest.state = INCOMPLETE
    else:
        manifest.results_sha256 = sha256


def _price_again(job: Run, providers_file: Path | None, label: str) -> None:
    """Give all replies of a run the price of today where they came from, or say that there is
    none."""
    manifest = job.manifest
    known_today = prices_again(manifest, providers_file)
    if manifest.provenance["endpoint"] != defaults.EMBEDDED and not any(known_today):
        tell(
            f"{label}: no price is known for {manifest.identity['model']}: its cost stays as it is"
        )
    job.price_again(known_today)


def _rescored(job: Run) -> Iterator[JSON]:
    """Yield the records of a run, their saved answers measured again."""
    for position, line in job.store.lines():
        yield rescored(job.benchmark, job.task(position), record_of(line).data)


def _reparsed(job: Run, loop: asyncio.Runner, diverged: list[str]) -> Iterator[JSON]:
    """Yield the records of a run, made again from its saved responses.

    A user who asks for a response that was not saved keeps the saved answers, and is added to
    `diverged`.
    """
    for position, line in job.store.lines():
        record = record_of(line).data
        task = job.task(position)
        repeat = job.index.repeat(position)
        saved = replaying(job.sampling_at(position), job.store.responses_of(position))
        try:
            played = loop.run(play(job.benchmark, task, saved.ask, repeat))
        except (ReplayMiss, AgentFailed):
            diverged.append(task.key)
            yield {**rescored(job.benchmark, task, record), "reparse": "diverged"}
        else:
            measured = recorded(job.benchmark, task, played)
            yield record_line(measured, repeat, record["task"], record.get("roles"))


def _scored(records: Iterator[JSON], scores: ReportScores) -> Iterator[JSON]:
    """Yield the records on their way to a file, scored as they will be read from it, before the
    file is in place."""
    for data in records:
        add(data, scores)
        yield data
    scores.flush()


def add(data: JSON, scores: ReportScores) -> None:
    """Score a record, as it will be read from a file."""
    key = str(data["user_id"])
    with read_of(key):  # a readable record may be nested too deeply to be written
        scores.add(Record(key, orjson.loads(orjson.dumps(data))))
