"""`status`: the state of every run."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import Any

import msgspec
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from harness.analysis import selection
from harness.analysis.saved_runs import SavedRun
from harness.benchmarks.usage import USAGE
from harness.cost import Cost, money_text
from harness.engine.run import counted_cost
from harness.errors import BadInput
from harness.model import JSON
from harness.option import command_options
from harness.options import options
from harness.printable import on_one_line
from harness.reporting.report_files import loaded
from harness.store.lock import held
from harness.store.log import objects
from harness.store.manifest import COMPLETE, RUNNING
from harness.store.submissions import Wave, pending
from harness.store.tally import tally_of
from harness.ui.cells import to_left, to_right
from harness.ui.console import console
from harness.ui.streams import show_json
from harness.ui.words import plural

TOKENS = ("prompt_tokens", "completion_tokens")
NUMBERS = ("users", "repeats", "done", "percent", "failed", "requests", *TOKENS)
COLUMNS = ("name", "subset", "model", "state", *NUMBERS, "cost")
HEADS = ("name", "model")
WORTH = (*TOKENS, "requests", "percent", "repeats", "updated", "cost", "failed", "users", "done", "state", "subset")
"""From the least to the most: what a narrow terminal has no room for is left out in this order, others before."""
GAP = "  "
WAVES = "waves"


@command_options
class Options(options.AsJson, options.ResultsFolder, options.TasksFolder, options.Which):
    """Which runs to show."""


@dataclass(frozen=True, slots=True)
class _Column:
    """Where room is short, columns of the least `worth` are left out first."""

    heading: str
    cells: Sequence[str]
    worth: int
    left: bool

    @property
    def width(self) -> int:
        return max(map(cell_len, (self.heading, *self.cells)))


def execute(args: Options) -> int:
    found, skipped = selection.find(args)
    theirs, unnamed = selection.find_imported(args)
    if not args.runs:
        found = selection.without_merged(found)
    rows, failed = selection.each(found, _row, lambda run: run.label)
    rows += [of.row(_named({}, None)) for of in theirs]
    rows = [{**row, "percent": _percent(row)} for row in rows]
    if args.json:
        show_json(rows)
    elif rows:
        _print(rows)
    elif not (skipped or unnamed):
        raise selection.nothing_found(args)
    return max(skipped, unnamed, failed)


def _percent(row: JSON) -> int | None:
    """Return how much is done in percent, of users or of users times their repeats."""
    if not row["users"]:
        return None
    done, whole = (row["repeats_done"], row["repeats"]) if "repeats" in row else (row["done"], 1)
    return int(100 * done // (row["users"] * whole))


def _print(rows: list[JSON]) -> None:
    """Print a table: in a file or pipe, which programs read, each run on one line; on a terminal no wider than it."""
    screen, columns = console(), _columns(rows)
    shown = _lines(columns)
    if not screen.is_terminal or max(line.cell_len for line in shown) <= screen.width:
        screen.print(*shown, sep="\n", soft_wrap=True)
    else:
        _print_narrow(screen, rows, [column for column in columns if column.heading not in HEADS])


def _lines(columns: Sequence[_Column]) -> list[Text]:
    """Return a heading and a line for each row."""
    whole = zip(*[(column.heading, *column.cells) for column in columns], strict=True)
    heading, *lines = [
        GAP.join([(to_left if of.left else to_right)(cell, of.width) for cell, of in zip(cells, columns, strict=True)])
        for cells in whole
    ]
    return [Text(heading.rstrip(), style="dim"), *[Text(line.rstrip()) for line in lines]]


def _fitting(width: int, columns: Sequence[_Column]) -> list[_Column]:
    """Return the columns that so many cells have room for: at least the one of most worth."""
    kept = list(columns)
    while len(kept) > 1 and sum(column.width + len(GAP) for column in kept) - len(GAP) > width:
        kept.remove(min(kept, key=attrgetter("worth")))
    return kept


def _print_narrow(screen: Console, rows: list[JSON], columns: list[_Column]) -> None:
    """Print name and model above the rows of a run, without the columns of least worth; say which ones are missing.

    A longer name is left to the terminal to wrap, so that it can be copied.
    """
    columns = [replace(columns[0], cells=[f"  {cell}" for cell in columns[0].cells]), *columns[1:]]
    fitting = _fitting(screen.width, columns)
    heading, *lines = _lines(fitting)
    screen.print(heading, soft_wrap=True)
    for above, run in groupby(zip(rows, lines, strict=True), lambda pair: [pair[0][name] for name in HEADS]):
        screen.print(GAP.join(map(str, above)), *(line for _, line in run), sep="\n", soft_wrap=True)
    if missing := [column.heading for column in columns if column not in fitting]:
        screen.print(f"no room for {', '.join(missing)}: widen the terminal, or use --json")


def _columns(rows: list[JSON]) -> list[_Column]:
    """Return the columns that some row has, as text."""
    there = {name: any(name in row for row in rows) for name in ("repeats", WAVES)}
    there["cost"] = any(_money(row["cost"]) for row in rows)
    names = [name for name in (*COLUMNS, WAVES, "updated") if there.get(name, True)]
    words: dict[str, Callable[[Any], str]] = {WAVES: _waves}
    words |= {"cost": _money, "updated": lambda time: time.replace("T", " ").replace("+00:00", "Z")}

    def cell(row: JSON, name: str) -> str:
        if row.get(name) is None:
            return ""
        plus = "+" if name in TOKENS and row["requests_without_usage"] else ""
        return on_one_line(words.get(name, str)(row[name])) + plus

    return [
        _Column(
            name.removesuffix("_tokens"),
            [cell(row, name) for row in rows],
            worth=WORTH.index(name) if name in WORTH else -1,
            left=name not in NUMBERS,
        )
        for name in names
    ]


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
        **({WAVES: asdict(waves)} if (waves := Wave.of_run(run.files, ended=manifest.state == COMPLETE)) else {}),
    }


def _waves(wave: JSON) -> str:
    """Return how far a run's batches are, for people."""
    left = f" ({plural(wave['batches'], 'batch', 'batches')}, {wave['completed']}/{wave['requests']})"
    return f"{wave['number']}{left if wave['batches'] else ''}"


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
    bill = tally_of(run.files).bill.copy(pending(run.files))
    usage = bill.total
    named = {"untold": usage.requests_without_usage, **{name: getattr(usage, name) for name in USAGE[:3]}}
    return _named(named, counted_cost(manifest, bill))


def _named(usage: Mapping[str, int], cost: Cost | None) -> JSON:
    """Return the columns of a usage; None for counts that it lacks."""
    named = {{"untold": "requests_without_usage"}.get(name, name): usage.get(name) for name in USAGE}
    return {**named, "cost": msgspec.to_builtins(cost)}


def _state(run: SavedRun) -> str:
    """Return a run's state; `running` without a held lock means that the process died."""
    if run.manifest.state != RUNNING:
        return run.manifest.state
    return RUNNING if held(run.files.lock, time.time) else "died (resume it)"
