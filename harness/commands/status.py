"""`status`: the state of every run."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import msgspec
from msgspec import structs
from rich.cells import cell_len

from harness.analysis import selection
from harness.analysis.saved_runs import SavedRun
from harness.benchmarks.usage import USAGE
from harness.cost import Cost, money_text
from harness.document import Table, without_empty_columns
from harness.engine.run import counted_cost
from harness.errors import BadInput
from harness.model import JSON
from harness.option import command_options
from harness.options import options
from harness.reporting import terminal, text
from harness.reporting.report_files import loaded
from harness.store.lock import held
from harness.store.log import objects
from harness.store.manifest import COMPLETE, RUNNING, Manifest
from harness.store.run import RunFiles, runs
from harness.store.submissions import Wave, pending
from harness.store.tally import tally_of
from harness.ui.console import console
from harness.ui.streams import show_json
from harness.ui.words import plural

COLUMN_NAMES = {"untold": "requests_without_usage"}
"""By the names that counts have elsewhere."""
TOKENS = ("prompt_tokens", "completion_tokens")
COLUMNS = (
    "name",
    "subset",
    "model",
    "state",
    "users",
    "repeats",
    "done",
    "percent",
    "failed",
    "requests",
    *TOKENS,
    "cost",
    "waves",
    "updated",
)
LEAST_FIRST = (
    "completion_tokens",
    "prompt_tokens",
    "model",
    "requests",
    "updated",
    "percent",
    "repeats",
    "waves",
)
"""Columns that a narrow terminal has no room for are left out in this order; of the others some may
follow below."""


@command_options
class Options(options.AsJson, options.ResultsFolder, options.TasksFolder, options.Which):
    """Which runs to show."""


def execute(args: Options) -> int:
    selection.check_subsets(args.platform, (files.subset for files in runs(args.results_dir)))
    found_runs, skipped = selection.find(args)
    screen = console()
    imported, unnamed = selection.find_imported(args)
    if not args.runs:
        found_runs = selection.without_merged(found_runs)
    rows, failed = selection.each(found_runs, _row)
    rows += [results.row(_named({}, None)) for results in imported]
    for row in rows:
        row["percent"] = _percent(row)
    if args.json:
        show_json(rows)
    elif rows:
        terminal.show(screen, _fitting(rows, terminal.width(screen)))
    elif not (skipped or unnamed):
        raise selection.nothing_found(args)
    return max(skipped, unnamed, failed)


def _percent(row: JSON) -> int | None:
    """Return how much is done in percent, of users or of users times their repeats."""
    expected = row["users"]
    done = row["done"]
    if not expected:
        return None
    if "repeats" in row:
        expected *= row["repeats"]
        done = row["repeats_done"]
    # Rounded down: 99.9 % must not look complete.
    return int(100 * done // expected)


def _fitting(rows: list[JSON], width: int) -> Table:
    """Return a table without columns for which there is no room; a note names them."""
    table = _table(rows)
    columns = table.columns
    left_out = list[str]()
    for name in LEAST_FIRST:
        # Without a limit, since wrapped cells would hide how wide the table is.
        lines = text.rendered([table], terminal.NO_LIMIT).splitlines()
        if max(map(cell_len, lines)) <= width:
            break
        left_out.append(name)
        table = _table(rows, left_out)
    missing = [name for name in columns if name not in table.columns]
    if not missing:
        return structs.replace(table, notes=())
    note = f"no room for {', '.join(missing)}: widen the terminal, or use --json"
    return structs.replace(table, notes=(note,))


def _table(rows: list[JSON], left_out: Sequence[str] = ()) -> Table:
    """Return a row for each run on each subset, with the columns that some row has."""
    columns = list[tuple[str, ...]]()
    for name in COLUMNS:
        if name not in left_out:
            columns.append((name.removesuffix("_tokens"), *[_cell(row, name) for row in rows]))
    heads, *cells = zip(*columns, strict=True)
    return without_empty_columns(Table(heads, tuple(cells)))


def _cell(row: JSON, name: str) -> str:
    value = row.get(name)
    if value is None:
        return ""
    match name:
        case "cost":
            cost = msgspec.convert(value, Cost)
            return money_text([cost.money]) if cost.money else ""
        case "waves":
            if not value["batches"]:
                return str(value["number"])
            batches = plural(value["batches"], "batch", "batches")
            return f"{value['number']} ({batches}, {value['completed']}/{value['requests']})"
        case "updated":
            return str(value).replace("T", " ").replace("+00:00", "Z")
    # Where the endpoint reported no usage for some requests, the sum is a lower bound.
    is_incomplete = name in TOKENS and row["requests_without_usage"]
    return f"{value}+" if is_incomplete else str(value)


def _row(run: SavedRun) -> JSON:
    """Return a run's row; users done are counted in the results file, which may be ahead of the
    manifest. With repeats a user is done once all of them are; `repeats_done` counts them."""
    manifest = run.manifest
    repeats = manifest.repeats
    plays = set[tuple[str, str]]()
    for _, data in objects(run.files.results):
        if "user_id" in data:
            plays.add((str(data["user_id"]), str(data.get("repeat"))))
    # A user whose task changed has several records: plays are counted, not lines.
    repeats_done = Counter([user for user, _ in plays])
    row = {
        "name": run.name,
        "subset": run.files.subset,
        "model": manifest.identity["model"],
        "state": state(run.files, manifest),
        "users": run.expected_users,
        "done": sum(times >= repeats for times in repeats_done.values()),
        "failed": manifest.counts.get("failed", 0),
        **_usage(run),
        "updated": manifest.times.get("updated", manifest.times["created"]),
    }
    if repeats > 1:
        row |= {"repeats": repeats, "repeats_done": len(plays)}
    waves = Wave.of_run(run.files, ended=manifest.state == COMPLETE)
    if waves:
        row["waves"] = asdict(waves)
    return row


def _usage(run: SavedRun) -> JSON:
    """Return requests, tokens and cost: of a complete run those of its report, else those of every
    reply saved so far.

    Failed tries are in the upper bound of the cost alone. Nothing is known without a report that
    can be read.
    """
    manifest = run.manifest
    if manifest.state == COMPLETE:
        try:
            report = loaded(run.files.report("json"))
        except BadInput:
            return _named({}, None)
        return _named(report.usage, report.cost or None)
    bill = tally_of(run.files).bill.copy(pending(run.files))
    usage = bill.total
    counts = {name: getattr(usage, name) for name in USAGE[:3]}
    counts["untold"] = usage.requests_without_usage
    return _named(counts, counted_cost(manifest, bill))


def _named(usage: Mapping[str, int], cost: Cost | None) -> JSON:
    """Return the columns of a usage; None for counts that it lacks."""
    columns = {COLUMN_NAMES.get(name, name): usage.get(name) for name in USAGE}
    return {**columns, "cost": msgspec.to_builtins(cost)}


def state(files: RunFiles, manifest: Manifest) -> str:
    """Return a run's state; `running` without a held lock means that the process died."""
    if manifest.state == RUNNING and not held(files.lock, time.time):
        return "died (resume it)"
    return manifest.state
