"""`status`: the state of every run."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
from rich.console import Console, JustifyMethod
from rich.measure import Measurement
from rich.table import Table

from harness.analysis import selection
from harness.analysis.imported import Imported
from harness.analysis.saved_runs import SavedRun
from harness.benchmarks.reports import loaded
from harness.benchmarks.usage import USAGE
from harness.config import options
from harness.cost import Cost, money_text
from harness.engine.run import counted_cost
from harness.errors import BadInput
from harness.feature import Column, features, pending
from harness.model import JSON
from harness.store.lock import held
from harness.store.log import lines, objects
from harness.store.manifest import COMPLETE, RUNNING
from harness.store.run import bill_of
from harness.ui.console import console
from harness.ui.streams import show_json

TOKENS = ("prompt_tokens", "completion_tokens")
NUMBERS = ("users", "repeats", "done", "percent", "failed", "requests", *TOKENS)
COLUMNS = ("name", "subset", "model", "state", *NUMBERS, "cost")
LEAST_FIRST = (*reversed(TOKENS), "requests", "updated", "cost", "repeats", "model", "percent", "failed", "subset")
"""Columns that a narrow terminal leaves out, in this order: the others are the fewest that are of use."""
WIDEST = 1_000_000
"""More columns than any table has, so that a table gets its natural width."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Options(options.AsJson, options.ResultsFolder, options.TasksFolder, options.Which):
    """Which runs to show."""


def execute(args: Options) -> int:
    found, skipped = selection.find(args)
    theirs, unnamed = selection.find_imported(args)
    if not args.runs:
        found = selection.without_merged(found)
    rows, failed = selection.each(found, _row, lambda run: run.label)
    rows += map(_imported_row, theirs)
    rows = [{**row, "percent": _percent(row)} for row in rows]
    if args.json:
        show_json(rows)
    elif rows:
        _print(rows)
    else:
        console().print(f"no run under {args.results_dir}", soft_wrap=True)
    return max(skipped, unnamed, failed)


def _percent(row: JSON) -> int | None:
    """Return how much is done in percent, of users or of users times their repeats."""
    if not row["users"]:
        return None
    done, whole = (row["repeats_done"], row["repeats"]) if "repeats" in row else (row["done"], 1)
    return int(100 * done // (row["users"] * whole))


def _print(rows: list[JSON]) -> None:
    """Print a table. In a file or pipe, which programs read, it has its natural width, each run on one line; on a
    terminal the columns of least worth are left out that do not fit, and only a name wider than all is folded."""
    more = [feature.column for feature in features() if feature.column]
    there = {name: any(name in row for row in rows) for name in ("repeats", *[column.name for column in more])}
    there["cost"] = any(_money(row["cost"]) for row in rows)
    columns = [name for name in (*COLUMNS, *[column.name for column in more], "updated") if there.get(name, True)]
    cells = [_cells(row, more) for row in rows]
    screen, table = console(), _table(columns, cells)
    if not screen.is_terminal:
        screen.width = max(screen.width, _width(screen, table))
    droppable = [name for name in (*LEAST_FIRST, *[column.name for column in more]) if name in columns]
    gone: list[str] = []
    while droppable and _width(screen, table) > screen.width:
        gone.append(droppable.pop(0))
        table = _table([name for name in columns if name not in gone], cells)
    screen.print(table)
    if gone:
        screen.print(f"not in this width: {', '.join(map(_heading, gone))} (--json has all)", soft_wrap=True)


def _cells(row: JSON, more: Sequence[Column]) -> dict[str, str]:
    """Return the texts of a row, without those that are unknown."""
    plus = "+" if row["requests_without_usage"] else ""
    cells = {**row, "updated": row["updated"].replace("T", " ").replace("+00:00", "Z")}
    cells |= {name: f"{row[name]}{plus}" for name in TOKENS if row[name] is not None}
    cells["cost"] = _money(row["cost"])
    cells |= {column.name: column.words(row[column.name]) for column in more if column.name in row}
    return {name: str(cell) for name, cell in cells.items() if cell is not None}


def _table(columns: Sequence[str], cells: Sequence[dict[str, str]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in columns:
        justify: JustifyMethod = "right" if name in NUMBERS else "left"
        table.add_column(_heading(name), justify=justify, overflow="fold", no_wrap=name != "name")
    for row in cells:
        table.add_row(*(row.get(name, "") for name in columns))
    return table


def _heading(name: str) -> str:
    return name.removesuffix("_tokens")


def _width(screen: Console, table: Table) -> int:
    """Return the natural width of a table."""
    return Measurement.get(screen, screen.options.update(width=WIDEST), table).maximum


def _money(cost: JSON | None) -> str:
    """Return a cost for people, empty if it is not known."""
    of = msgspec.convert(cost, Cost | None)
    return money_text([of.money]) if of and of.money else ""


def _row(run: SavedRun) -> JSON:
    """Return a run's row; users done are counted in the results file, which may be ahead of the manifest. With repeats
    a user is done once all of them are; `repeats_done` counts them."""
    manifest = run.manifest
    plays = {
        (str(data["user_id"]), str(data.get("repeat"))) for _, data in objects(run.files.results) if "user_id" in data
    }
    done, repeats = Counter(user for user, _ in plays), manifest.repeats
    return {
        "name": run.name,
        "subset": run.files.subset,
        "model": manifest.identity["model"],
        "state": _state(run),
        "users": run.expected_users,
        "done": sum(times >= repeats for times in done.values()),
        "failed": manifest.counts.get("failed", 0),
        **_usage(run),
        "updated": manifest.times.get("updated", manifest.times["created"]),
        **({"repeats": repeats, "repeats_done": len(plays)} if repeats > 1 else {}),
        **_of_features(run),
    }


def _of_features(run: SavedRun) -> JSON:
    """Return the members of a run's row that features have."""
    columns = [feature.column for feature in features() if feature.column]
    return {column.name: of for column in columns if (of := column.of(run.files, run.manifest)) is not None}


def _usage(run: SavedRun) -> JSON:
    """Return requests, tokens and cost: of a complete run those of its report, else those of every reply saved so far.

    Failed tries are in the upper bound of the cost alone. Nothing is known without a report that can be read.
    """
    manifest = run.manifest
    if manifest.state == COMPLETE:
        try:
            report = loaded(run.files.report("json"))
        except BadInput:
            return _named({}, None)
        return _named(report.usage, report.cost or None)
    bill = bill_of(run.files).copy(pending(run.files))
    usage = bill.total
    named = {"untold": usage.requests_without_usage, **{name: getattr(usage, name) for name in USAGE[:3]}}
    return _named(named, counted_cost(manifest, bill))


def _named(usage: Mapping[str, int], cost: Cost | None) -> JSON:
    """Return the columns of a usage; None for counts that it lacks."""
    named = {{"untold": "requests_without_usage"}.get(name, name): usage.get(name) for name in USAGE}
    return {**named, "cost": msgspec.to_builtins(cost)}


def _imported_row(of: Imported) -> JSON:
    """Return the row of another program's results; how many users they should have is unknown until they are scored."""
    report, results = of.report if of.is_current else None, of.files.results
    coverage = report.coverage if report else None
    return {
        "name": of.name,
        "subset": of.files.subset,
        "model": of.name,
        "state": "scored" if report else "not scored (reeval it)",
        "users": coverage.expected_users if coverage else None,
        "done": coverage.scored_users if coverage else sum(1 for line in lines(results) if line.text.strip()),
        "failed": coverage.failed_users if coverage else 0,
        **_named({}, None),
        "updated": datetime.fromtimestamp(results.stat().st_mtime, UTC).isoformat(timespec="seconds"),
    }


def _state(run: SavedRun) -> str:
    """Return a run's state; `running` without a held lock means that the process died."""
    if run.manifest.state != RUNNING:
        return run.manifest.state
    return RUNNING if held(run.files.lock, time.time) else "died (resume it)"
