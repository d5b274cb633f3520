"""The list of all runs: a table of each benchmark and subset, with the marks that `stats` has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

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
    cells = {"state": Cell(state, faint=state == "complete"), "model": Cell(run.model)}
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
    in_tasks = max(report.run.get("users_in_tasks", 0), coverage.expected_users)
    is_partial = not coverage.complete or coverage.scored_users < in_tasks
    cells = {
        **row.cells,
        **_counted(coverage.scored_users, coverage.expected_users, coverage.failed_users),
        "score": Cell(
            metric.text(figure.value),
            figure.value,
            partial=is_partial,
            interval=spanned(metric, figure) if figure.ci95 else "",
        ),
    }
    if metric.name in report.chance:
        chance = report.chance[metric.name]
        cells[CHANCE] = Cell(level(metric, chance, report.chance_error.get(metric.name)), chance)
    answers = report.diagnostics.answers
    invalid = sum(report.diagnostics.invalid.values())
    if invalid:
        cells["invalid"] = Cell(f"{100 * invalid / answers:.1f} %", invalid / answers)
    if report.cost and report.cost.money:
        cells["cost"] = Cell(money_text([report.cost.money]), float(report.cost.money.amount))
    seconds = (report.schedule or {}).get("seconds")
    if isinstance(seconds, int | float) and seconds > 0:
        cells["speed"] = _speed(answers / seconds)

    # Tables rank the smallest first, and figures that are not defined last.
    value = figure.value or 0.0
    if not metric.lower_is_better:
        value = -value
    return replace(
        row,
        cells=cells,
        metric=metric.title,
        rank=(True, is_partial or figure.value is None, value),
        whole=whole_of(row.name, report.run.get("part")),
        partial=f"{coverage.scored_users} of {in_tasks}" if is_partial else "",
        is_synthetic=any("synthetic" in note for note in report.notes),
    )


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
    unusable = sum(number for _, number in snapshot.unusable)
    if unusable:
        cells["invalid"] = Cell(plural(unusable, "reply", "replies"), unusable)
    faults = sum(number for _, number in snapshot.faults)
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
    anchors = {(group(row), row.name): (row.rank, row.name) for row in rows}

    def nested(row: RunRow) -> tuple[object, ...]:
        place = row.rank, row.name
        return anchors.get((group(row), row.whole or ""), place), bool(row.whole), place

    rows = sorted(rows, key=nested)
    if column in HEADS:
        with_value = list[RunRow]()
        without_value = list[RunRow]()
        for row in rows:
            (without_value if _value(row, column) is None else with_value).append(row)
        with_value.sort(key=lambda row: _value(row, column), reverse=is_down)  # type: ignore[arg-type, return-value]
        rows = with_value + without_value
    return sorted(rows, key=lambda row: (group(row) not in playing, group(row)))


def _value(row: RunRow, column: str) -> float | str | None:
    if column == "run":
        return row.name
    cell = row.cells.get(column, Cell(""))
    if column in ("state", "model"):
        return cell.text
    return cell.value


def table(rows: Sequence[RunRow]) -> tuple[Table, dict[str, str]]:
    """Return a table of runs of one benchmark and subset, and the heads of its columns by name."""
    shown = [name for name in HEADS if name in ALWAYS or any(name in row.cells for row in rows)]
    if all(row.state in ("complete", "scored") for row in rows):
        shown.remove("state")
    metrics = dict.fromkeys(row.metric for row in rows if row.metric)
    heads = {name: name for name in shown} | {"score": ", ".join(metrics) or "score"}
    cells = [[_first(row), *(row.cells.get(name, Cell("")) for name in shown[1:])] for row in rows]
    title = f"{rows[0].benchmark or 'unknown benchmark'} on {rows[0].subset}"
    return Table(tuple(heads.values()), tuple(map(tuple, cells)), title, tuple(_notes(rows))), heads


def _first(row: RunRow) -> Cell:
    return Cell(row.name, note=f"part of {row.whole}" if row.whole else "")


def _notes(rows: Sequence[RunRow]) -> Iterator[str]:
    partial = [f"{row.name} {row.partial}" for row in rows if row.partial]
    if partial:
        yield f"*: not all users of the tasks file are scored: {', '.join(partial)}."
    synthetic = [row.name for row in rows if row.is_synthetic]
    if synthetic:
        names = "All runs" if len(synthetic) == len(rows) else ", ".join(synthetic)
        yield f"{names}: synthetic tasks, which say nothing about real users."
