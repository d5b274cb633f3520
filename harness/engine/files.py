"""Files that several commands read and write: the index of a tasks file, reports, names of moments."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import orjson

from harness import defaults
from harness.benchmark import Benchmark
from harness.benchmarks import tasks
from harness.benchmarks.files import holds
from harness.config import origin
from harness.model import Report, Where
from harness.report import text
from harness.store import atomic
from harness.store.backup import set_aside_any
from harness.store.run import RunFiles
from harness.store.tasks import TaskIndex, open_index


def index_file(benchmark: Benchmark, subset: str, path: Path, results: Path) -> TaskIndex:
    """Return the index of a subset's tasks; every line is validated before anything is sent."""

    def measured(line: bytes, where: Where) -> tuple[str, int]:
        return tasks.outline(benchmark, line, where, subset)

    kind = f"{benchmark.name} {subset} {benchmark.task_version}"
    secret = origin.secret(os.environ)
    return open_index(path, kind, measured, results / defaults.INDEX_FOLDER, benchmark.key_field, secret)


def write_report(files: RunFiles, report: Report) -> None:
    """Write a report's files. Unless the report is unchanged, the pages of the old one are set aside first.

    So a page never belongs to another report than the one in its folder, whenever the process ends.
    """
    path, data = files.report("json"), orjson.dumps(report.data, option=orjson.OPT_INDENT_2) + b"\n"
    try:
        unchanged = holds(path, data)
    except OSError:
        unchanged = False
    if not unchanged:
        set_aside_any(files.pages, stamp())
    atomic.write(path, data)
    atomic.write(files.report("txt"), text.render(report).encode())
    for name, made in report.files.items():
        atomic.write(files.folder / name, made)


def now() -> str:
    """Return this moment for manifests: ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def stamp() -> str:
    """Return this moment for names of set-aside files."""
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
