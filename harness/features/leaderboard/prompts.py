"""How much a figure depends on the prompt: runs that differ in nothing else (docs/statistics.md, Leaderboard)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import orjson

from harness.benchmarks.registry import KEPT
from harness.errors import HarnessError
from harness.features.leaderboard.reports import Scored
from harness.features.leaderboard.tables import MetricTable, Row
from harness.model import JSON
from harness.store.files import RunFiles
from harness.store.manifest import Manifest, load


def groups(table: MetricTable, results: Path) -> list[list[Row]]:
    """Return the runs of a table that differ only in the prompt, two or more of them together."""
    found: dict[bytes, list[Row]] = {}
    for row in table.rows:
        figure = row.figures[table.last]
        if figure is not None and figure.complete and (key := _conditions(row.reports, results)):
            found.setdefault(key, []).append(row)
    return [rows for rows in found.values() if len({_prompt(row) for row in rows}) > 1]


def _prompt(row: Row) -> tuple[object, ...]:
    return tuple((report.prompt, report.prompt_version, report.files) for report in row.reports)


def _conditions(reports: Sequence[Scored], results: Path) -> bytes:
    """Return what runs have in common that differ only in the prompt; empty if one has no manifest."""
    try:
        found = [load(RunFiles(results / report.run, report.subset).manifest) for report in reports]
    except HarnessError:
        return b""
    return b"" if None in found else orjson.dumps([*map(_but_prompt, filter(None, found))], option=orjson.OPT_SORT_KEYS)


def _but_prompt(manifest: Manifest) -> JSON:
    """Return identity, tasks and selection of a run without its prompt or agent, whose files are named after their
    setting."""
    of, files = manifest.identity, manifest.identity["files"]
    code = {name: digest for name, digest in files.items() if name.startswith(KEPT)}
    named = {name for name in of["settings"] if any(file.startswith(f"{name}_") for file in files.keys() - code)}
    settings = {name: value for name, value in of["settings"].items() if name not in named}
    others = {name: value for name, value in of.items() if name != "prompt_version"}
    tasks = {name: value for name, value in manifest.tasks.items() if name != "path"}
    return {**others, "files": code, "settings": settings, "tasks": tasks, "selection": manifest.selection}
