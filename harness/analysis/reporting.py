"""Open saved runs under their locks, and make the reports of those that ended without one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from harness.analysis.saved_runs import SavedRun
from harness.benchmark import Benchmark
from harness.engine.files import index_file, stamp, write_report
from harness.engine.finish import finish
from harness.engine.run import Run
from harness.errors import BadInput
from harness.store.run import RunStore


def report_of(run: SavedRun, results: Path, tasks: Path | None) -> None:
    """Make the report of a run that was stopped or killed, of its records as they are, under its
    lock."""
    with opened(run, run.as_it_was(tasks, play=False), results, tasks) as job:
        report, extra_files = finish(job, run.name, stopped=True)
        write_report(run.files, report, extra_files)
        job.save()


@contextmanager
def opened(run: SavedRun, benchmark: Benchmark, results: Path, tasks: Path | None) -> Iterator[Run]:
    """Lock a run and open its files. Its manifest is read again. Raise `BadInput` if it is gone."""
    files = run.files
    path = run.tasks(tasks)
    with (
        closing(
            index_file(benchmark, files.subset, path, results, run.manifest.selection)
        ) as index,
        closing(RunStore(files, time.time, stamp())) as store,
    ):
        # Before the lock was held, another command may have changed or removed it.
        manifest = store.manifest()
        if manifest is None:
            raise BadInput(f"{files.manifest} no longer exists")
        store.roles = manifest.role_models
        done = store.open_logs(index)
        expected = index.selected(manifest.selection) | done
        yield Run(benchmark, files.subset, index, store, manifest, expected)
