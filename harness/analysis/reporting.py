"""Open saved runs under their locks, and make the reports of those that ended without one."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

from harness.analysis.saved_runs import SavedRun
from harness.benchmark import Benchmark
from harness.engine.files import index_file, stamp, write_report
from harness.engine.finish import finish
from harness.engine.run import Run
from harness.errors import BadInput
from harness.store.run import RunStore
from harness.store.tasks import TaskIndex


def report_of(run: SavedRun, results: Path, tasks: Path | None) -> None:
    """Make the report of a run that was stopped or killed, of its records as they are, under its lock."""
    benchmark, path = run.as_it_was(tasks, play=False), run.tasks(tasks)
    with (
        closing(index_file(benchmark, run.files.subset, path, results, run.manifest.selection)) as index,
        closing(RunStore(run.files, time.time, stamp())) as store,
    ):
        job = opened(benchmark, index, store)
        report, more = finish(job, run.name, stopped=True)
        write_report(run.files, report, more)
        job.manifest.save(run.files.manifest)


def opened(benchmark: Benchmark, index: TaskIndex, store: RunStore) -> Run:
    """Return a run that is locked: its manifest is read again. Raise `BadInput` if it is gone."""
    manifest = store.manifest()
    if manifest is None:
        raise BadInput(f"{store.files.manifest} no longer exists")
    done = store.open_logs(index)
    return Run(benchmark, store.files.subset, index, store, manifest, index.selected(manifest.selection) | done)
