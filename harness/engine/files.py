"""Files that several commands read and write: the index of a tasks file, reports, names of
moments."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from harness import defaults
from harness.benchmark import Benchmark
from harness.benchmarks import tasks
from harness.benchmarks.files import holds
from harness.reporting import text
from harness.reporting.report import text_blocks
from harness.scoring.reports import Report, encoded
from harness.store import atomic
from harness.store.disk import DISK, Disk
from harness.store.manifest import WHOLE, Selection, slice_of
from harness.store.run import RunFiles
from harness.store.tasks import TaskIndex, open_index


def index_file(
    benchmark: Benchmark,
    subset: str,
    path: Path,
    results: Path,
    selection: Selection | None = None,
) -> TaskIndex:
    """Return the index of a subset's tasks, with the repeats of a selection; every line is
    validated before anything is sent, or those of the slice that the selection takes its users
    from."""
    kind = f"{benchmark.name} {subset} {tasks.version(benchmark)}"
    measured = partial(tasks.outline, benchmark, subset=subset)
    tasks_slice = WHOLE
    repeats = 1
    if selection:
        tasks_slice = slice_of(selection)
        repeats = selection.get("repeats", 1)
    cache = results / defaults.INDEX_FOLDER
    return open_index(
        path, kind, measured, cache, benchmark.task_files.key_field, tasks_slice, repeats
    )


def write_report(
    files: RunFiles, report: Report, other_files: Mapping[str, bytes], disk: Disk = DISK
) -> None:
    """Write a report as JSON and as text, and the benchmark's files that belong to it.

    If the report differs from the one that was there, the pages of that one are set aside first. So
    a page never belongs to another report than the one in its folder, whenever the process ends.
    """
    path = files.report("json")
    data = encoded(report)
    is_unchanged = False
    with suppress(OSError):  # as where there is none yet
        is_unchanged = holds(path, data)
    if not is_unchanged:
        atomic.set_aside_any(files.pages, stamp(), disk)
    atomic.write(path, data, disk=disk)
    atomic.write(files.report("txt"), text.rendered(list(text_blocks(report))).encode(), disk=disk)
    for name, content in other_files.items():
        atomic.write(files.folder / name, content, disk=disk)


def now() -> str:
    """Return this moment for manifests: ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def stamp() -> str:
    """Return this moment for names of set-aside files."""
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
