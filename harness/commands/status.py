"""`status`: the state of every run."""

from __future__ import annotations

import argparse
import time
from datetime import UTC, datetime

from rich.measure import Measurement
from rich.table import Table

from harness.analysis import selection
from harness.analysis.imported import Imported
from harness.analysis.saved_runs import SavedRun
from harness.config import options
from harness.model import JSON
from harness.store.lock import held
from harness.store.log import lines, objects
from harness.store.manifest import RUNNING
from harness.ui.console import console
from harness.ui.streams import show_json

NUMBERS = ("users", "done", "percent", "failed")
COLUMNS = ("name", "subset", "model", "state", *NUMBERS, "updated")
WIDEST = 1_000_000
"""More columns than any table has, so that a table gets its natural width."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_which(parser)
    options.add_folders(parser)
    options.add_json(parser)


def execute(args: argparse.Namespace) -> int:
    found, skipped = selection.find(args)
    theirs, unnamed = selection.find_imported(args)
    rows, failed = selection.each(found, _row, lambda run: run.label)
    rows += map(_imported_row, theirs)
    rows = [{**row, "percent": 100 * row["done"] // row["users"] if row["users"] else None} for row in rows]
    if args.json:
        show_json(rows)
    elif rows:
        _print(rows)
    else:
        console().print(f"no run under {args.results_dir}", soft_wrap=True)
    return max(skipped, unnamed, failed)


def _print(rows: list[JSON]) -> None:
    """Print a table, folded on a narrow terminal; in a file or pipe, which programs read, each run on one line."""
    table = Table(box=None, pad_edge=False)
    for name in COLUMNS:
        table.add_column(name, justify="right" if name in NUMBERS else "left", overflow="fold")
    for row in rows:
        shown = {**row, "updated": row["updated"].replace("T", " ").replace("+00:00", "Z")}
        table.add_row(*("" if shown[name] is None else str(shown[name]) for name in COLUMNS))
    screen = console()
    if not screen.is_terminal:
        screen.width = max(screen.width, Measurement.get(screen, screen.options.update(width=WIDEST), table).maximum)
    screen.print(table)


def _row(run: SavedRun) -> JSON:
    """Return a run's row; users done are counted in the results file, which may be ahead of the manifest."""
    manifest = run.manifest
    done = {str(data.get("user_id")) for _, data in objects(run.files.results) if "user_id" in data}
    return {
        "name": run.name,
        "subset": run.files.subset,
        "model": manifest.identity["model"],
        "state": _state(run),
        "users": run.expected_users,
        "done": len(done),
        "failed": manifest.counts.get("failed", 0),
        "updated": manifest.times.get("updated", manifest.times["created"]),
    }


def _imported_row(of: Imported) -> JSON:
    """Return the row of another program's results; how many users they should have is unknown until they are scored."""
    report, results = of.report, of.files.results
    coverage = report.coverage if report else None
    return {
        "name": of.name,
        "subset": of.files.subset,
        "model": of.name,
        "state": "scored" if report else "not scored (reeval it)",
        "users": coverage.expected_users if coverage else None,
        "done": coverage.scored_users if coverage else sum(1 for line in lines(results) if line.text.strip()),
        "failed": coverage.failed_users if coverage else 0,
        "updated": datetime.fromtimestamp(results.stat().st_mtime, UTC).isoformat(timespec="seconds"),
    }


def _state(run: SavedRun) -> str:
    """Return a run's state; `running` without a held lock means that the process died."""
    if run.manifest.state != RUNNING:
        return run.manifest.state
    return RUNNING if held(run.files.lock, time.time) else "died (resume it)"
