"""The list of all runs: a table of each benchmark and subset, with the marks that `stats` has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from harness.benchmarks.records import ODD_SHAPE
from harness.benchmarks.rendering import spanned
from harness.commands.view.reading import ViewedRun
from harness.cost import money_text
from harness.document import CHANCE, Cell, Table
from harness.model import Snapshot, SubsetProgress
from harness.reporting.report import level
from harness.scoring.reports import Report
from harness.store.manifest import whole_of
from harness.ui import words
from harness.ui.words import plural

READ_SECONDS = 0.05
"""CPU time in which users of a run without a report are counted; a further look goes on."""
HEADS = (
    "run",
    "score",
    CHANCE,
    "users",
    "state",
    "to go",
    "cost",
    "speed",
    "invalid",
    "failed",
    "model",
)
ALWAYS = ("run", "score", "users")
TEXT_COLUMNS = ("run", "state", "model")
NO_CELL = Cell("")


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run in the list. `rank` orders a table: playing runs first, then complete ones, the best
    first.

    `metric` is what the score is; `whole` names the run that this one is a part of; `partial` is
    how many users are scored, if not all of the tasks file are.
    """

    name: str
    benchmark: str
    subset: str
    state: str
    cells: Mapping[str, Cell]
    metric: str = ""
    rank: tuple[bool, bool, float] = (True, True, 0.0)
    whole: str | None = None
    partial: str = ""
    is_synthetic: bool = False


def listed(run: ViewedRun) -> RunRow:
    """Return a run's row."""
    state = run.state
    if run.problem and not (run.manifest or run.report):
        state = "unreadable"
    cells = {
        "run": Cell(run.name),
        "state": Cell(state, faint=state == "complete"),
        "model": Cell(run.model),
    }
    row = RunRow(run.name, run.benchmark, run.subset, state, cells)
    if run.snapshot:
        cells |= _playing(run.snapshot, run.subset)
        return replace(row, rank=(False, True, 0.0))
    if run.report is None:
        # The list is shown before all users are counted: it grows at the next look.
        run.users.advance(READ_SECONDS)
        counts = run.manifest.counts if run.manifest else {}
        cells |= _counted(len(run.users), counts.get("users"), counts.get("failed"))
        return row
    try:
        return _reported(row, run.report)
    except ODD_SHAPE:
        return row


def _counted(done: int, users: object, failed: object) -> dict[str, Cell]:
    """Return the cells of users: how many are done of how many, and the failed ones, if any."""
    text = f"{done:,}"
    if isinstance(users, int):
        text += f"/{users:,}"
    cells = {"users": Cell(text, done)}
    if isinstance(failed, int) and failed:
        cells["failed"] = Cell(str(failed), failed)
    return cells


def _reported(row: RunRow, report: Report) -> RunRow:
    """Return a row with what a report has: the headline figure, coverage, cost and speed."""
    metric = report.units[report.headline[0]]
    figure = report.ranking(metric)
    coverage = report.coverage
    # A run with --limit or --part is complete by itself, and covers some users of the tasks file.
    in_tasks = max(report.run.get("users_in_tasks", 0), coverage.expected_users)
    is_partial = not coverage.complete or coverage.scored_users < in_tasks
    score = Cell(metric.text(figure.value), figure.value, partial=is_partial)
    if figure.ci95:
        score = structs.replace(score, interval=spanned(metric, figure))

    cells = {**row.cells, **_report_cells(report), "score": score}
    whole = whole_of(row.name, report.run.get("part"))
    if whole:
        cells["run"] = Cell(row.name, note=f"part of {whole}")
    chance = report.chance.get(metric.name)
    if chance is not None:
        cells[CHANCE] = Cell(level(metric, chance, report.chance_error.get(metric.name)), chance)

    # Tables rank the smallest first, and figures that are not defined last.
    value = figure.value or 0.0
    if not metric.lower_is_better:
        value = -value
    return replace(
        row,
        cells=cells,
        metric=metric.title,
        rank=(True, is_partial or figure.value is None, value),
        whole=whole,
        partial=f"{coverage.scored_users} of {in_tasks}" if is_partial else "",
        is_synthetic=report.is_synthetic,
    )


def _report_cells(report: Report) -> dict[str, Cell]:
    """Return the cells of a report that need no metric: users, answers, cost and speed."""
    coverage = report.coverage
    cells = _counted(coverage.scored_users, coverage.expected_users, coverage.failed_users)
    answers = report.diagnostics.answers
    invalid = sum(report.diagnostics.invalid.values())
    if invalid:
        cells["invalid"] = Cell(f"{100 * invalid / answers:.1f} %", invalid / answers)
    if report.cost and report.cost.money:
        cells["cost"] = Cell(money_text([report.cost.money]), float(report.cost.money.amount))
    seconds = (report.schedule or {}).get("seconds")
    if isinstance(seconds, int | float) and seconds > 0:
        cells["speed"] = _speed(answers / seconds)
    return cells


def _speed(rate: float) -> Cell:
    """Return a rate of answers a second, with two digits where it is small."""
    text = f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
    return Cell(f"{text} a second", rate)


def progress_of(snapshot: Snapshot, subset: str) -> SubsetProgress:
    return next(progress for progress in snapshot.subsets if progress.subset == subset)


def _playing(snapshot: Snapshot, subset: str) -> dict[str, Cell]:
    progress = progress_of(snapshot, subset)
    cells = _counted(progress.done, progress.users, progress.failed)
    cells["speed"] = Cell(words.pace(snapshot.rate), snapshot.rate)
    cells["to go"] = Cell(words.state(snapshot), snapshot.eta)
    if progress.scores:
        name, value = next(iter(progress.scores.items()))
        text = words.figure(value, progress.units.get(name))
        cells["score"] = Cell(text, value, note=f"{name} so far")
    if snapshot.cost:
        amount = sum(money.amount for money in snapshot.cost)
        cells["cost"] = Cell(money_text(snapshot.cost), float(amount))
    unusable = sum(dict(snapshot.unusable).values())
    if unusable:
        cells["invalid"] = Cell(plural(unusable, "reply", "replies"), unusable)
    faults = sum(dict(snapshot.faults).values())
    if faults:
        note = f"{plural(faults, 'try', 'tries')} failed"
        cells["failed"] = Cell(str(progress.failed), progress.failed, note=note)
    return cells


def group(row: RunRow) -> tuple[str, str]:
    """Return what runs of one table have in common."""
    return row.benchmark, row.subset


def ordered(rows: Sequence[RunRow], column: str, is_down: bool) -> list[RunRow]:
    """Return runs table by table, those with playing runs first. In a table parts follow their
    whole run, or runs are sorted by a column, those without a value last."""
    playing = {group(row) for row in rows if not row.rank[0]}
    places = {(group(row), row.name): (row.rank, row.name) for row in rows}

    def nested(row: RunRow) -> tuple[object, ...]:
        """Return the place of a run's whole, if that is in the table, before its own."""
        place = row.rank, row.name
        return places.get((group(row), row.whole or ""), place), bool(row.whole), place

    rows = sorted(rows, key=nested)
    if column in HEADS:
        # Two sorts, as a column is sorted down or up, and rows without a value are last in both.
        rows.sort(key=lambda row: _sort_value(row, column), reverse=is_down)
        rows.sort(key=lambda row: row.cells.get(column, NO_CELL).value is None)
    return sorted(rows, key=lambda row: (group(row) not in playing, group(row)))


def _sort_value(row: RunRow, column: str) -> tuple[float, str]:
    cell = row.cells.get(column, NO_CELL)
    if column in TEXT_COLUMNS:
        return 0.0, cell.text
    return cell.value or 0.0, ""


def table(rows: Sequence[RunRow]) -> tuple[Table, dict[str, str]]:
    """Return a table of runs of one benchmark and subset, and the heads of its columns by name."""
    used = set(ALWAYS).union(*[row.cells for row in rows])
    if {row.state for row in rows} <= {"complete", "scored"}:
        used.remove("state")
    heads = {name: name for name in HEADS if name in used}
    metrics = dict.fromkeys(row.metric for row in rows)
    heads["score"] = ", ".join(filter(None, metrics)) or "score"

    table_rows = []
    for row in rows:
        table_rows.append(tuple([row.cells.get(name, NO_CELL) for name in heads]))
    title = f"{rows[0].benchmark or 'unknown benchmark'} on {rows[0].subset}"
    shown = Table(tuple(heads.values()), tuple(table_rows), title, tuple(_notes(rows)))
    return shown, heads


def _notes(rows: Sequence[RunRow]) -> Iterator[str]:
    partial = [f"{row.name} {row.partial}" for row in rows if row.partial]
    if partial:
        yield f"*: not all users of the tasks file are scored: {', '.join(partial)}."
    synthetic = [row.name for row in rows if row.is_synthetic]
    if synthetic:
        names = "All runs" if len(synthetic) == len(rows) else ", ".join(synthetic)
        yield f"{names}: synthetic tasks, which say nothing about real users."
