"""`status`: where every run stands."""

from __future__ import annotations

import argparse
import time

import orjson
from rich.console import Console
from rich.table import Table

from harness.commands import earlier, options
from harness.commands.earlier import Earlier
from harness.model import JSON
from harness.store.lock import held
from harness.store.log import sound_lines
from harness.store.manifest import RUNNING

NUMBERS = ("users", "done", "failed")
COLUMNS = ("name", "subset", "model", "state", *NUMBERS, "updated")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_which(parser)
    options.add_folders(parser)
    options.add_json(parser)


def execute(args: argparse.Namespace) -> int:
    rows = [_row(run) for run in earlier.find(args)]
    if args.json:
        print(orjson.dumps(rows, option=orjson.OPT_INDENT_2).decode())
        return 0
    table = Table(box=None, pad_edge=False)
    for name in COLUMNS:
        table.add_column(name, justify="right" if name in NUMBERS else "left", overflow="fold")
    for row in rows:
        shown = {**row, "updated": row["updated"].replace("T", " ").removesuffix("+00:00")}
        table.add_row(*(str(shown[name]) for name in COLUMNS))
    Console().print(table if rows else f"no run under {args.results_dir}")
    return 0


def _row(run: Earlier) -> JSON:
    """What the files say; users done are the lines of the results file, which may be ahead of the manifest."""
    manifest = run.manifest
    done = {orjson.loads(line.text)["user_id"] for line in sound_lines(run.files.results)}
    users = manifest.counts.get("users") or round(manifest.selection["ratio"] * manifest.tasks["users"])
    return {
        "name": run.name,
        "subset": run.files.subset,
        "model": manifest.identity["model"],
        "state": _state(run),
        "users": users,
        "done": len(done),
        "failed": manifest.counts.get("failed", 0),
        "updated": manifest.times.get("updated", manifest.times["created"]),
    }


def _state(run: Earlier) -> str:
    """A manifest that says `running` while nobody holds the lock is of a run that died."""
    if run.manifest.state != RUNNING:
        return run.manifest.state
    return RUNNING if held(run.files.lock, time.time) else "died (resume it)"
