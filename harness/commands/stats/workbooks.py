"""The tables of `stats` as Excel sheets: a workbook for each metric, and one with all of them and their runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from harness.benchmark import Metric
from harness.commands.stats import costs
from harness.commands.stats.footnotes import notes
from harness.commands.stats.grid import Standing
from harness.commands.stats.reports import MetricValue, Scored
from harness.commands.stats.tables import Figure, MetricTable, Row
from harness.model import Money
from harness.printable import short_hash
from harness.reporting.report import CHANCE
from harness.reporting.xlsx import PERCENT, WHOLE, Cell, Content, Sheet, decimals

SUMMARY = "summary"
RUNS_NOTES = (
    "A row for each run and subset. An asterisk: not all users of the tasks file are scored.",
    "Tokens as the endpoint counted them; those of the requests without count are not among them.",
)
SUMMARY_NOTES = (
    "From, to: the 95 % interval over users of the figure before them.",
    "Users, requests and tokens are those of all subsets of the run together.",
)


def workbooks(
    tables: Sequence[MetricTable], reports: Sequence[Scored], missing: Sequence[str] = ()
) -> Iterator[tuple[str, list[Sheet]]]:
    """Yield the name of each file, without its suffix, and its sheets; `missing` are notes for the sheet of runs.

    The sheet of a metric has a row for each run and a column for each subset, as the tables of papers.
    """
    for table in tables:
        sheet = Sheet(table.label, *_figures(table, 1, ["what"], lambda row: [row.about or None]), _notes(table))
        yield re.sub(r"[^\w ^().,+-]", "_", table.label)[:100], [sheet]
    runs: dict[tuple[str, str], list[Scored]] = {}
    for report in reports:
        runs.setdefault((report.benchmark, report.run), []).append(report)
    spent: Columns = COSTS if costs.is_known(reports) else {}
    columns = {**ABOUT, **spent}
    about = {key: [made(of) for made in columns.values()] for key, of in runs.items()}
    sheets = [
        _runs_sheet(reports, {**RUNS, **spent}, missing),
        *(_summary_sheet(table, tuple(columns), about) for table in tables),
    ]
    yield SUMMARY, sheets


def _notes(table: MetricTable) -> list[str]:
    definition = f" {table.metric.name}: {table.metric.definition}." if table.metric.definition else ""
    return [f"{table.title}.{definition}", *notes([table])]


def _figures(
    table: MetricTable, each: int, heads: Sequence[str], about: Callable[[Row], Sequence[Content]]
) -> tuple[list[str], list[list[Content]]]:
    """Return the columns of a table and its rows: `each` cells of a figure, three with its interval; what is `about` a
    row, under its own heads; and the published figures of columns that show another one for some run."""
    unlike = [name for name in table.columns if any(map(table.published, _there(table, name)))]
    columns = ["run", *_heads(table.columns, each), *table.rank_head, *heads]
    columns += _heads([f"{name}, as published" for name in unlike], each)
    rows = list[list[Content]]()
    for row in table.rows:
        shown = (cell for name in table.columns for cell in _cells(table.metric, row, name)[:each])
        given = (of.value if (of := row.figures[name]) else None for name in unlike)
        published = (cell for value in given for cell in _values(table.metric, value)[:each])
        rows.append([row.label, *shown, *(rank or None for rank in table.ranks(row)), *about(row), *published])
    if levels := table.chance:
        faint = ((_shown(table.metric, levels.get(name, (None,))[0], faint=True), None, None) for name in table.columns)
        chance = [CHANCE, *(cell for cells in faint for cell in cells[:each])]
        rows.append([*chance, *[None] * (len(columns) - len(chance))])
    return columns, rows


def _there(table: MetricTable, column: str) -> Iterator[Figure]:
    return (figure for row in table.rows if (figure := row.figures[column]))


def _heads(names: Sequence[str], each: int) -> Iterator[str]:
    return (head for name in names for head in (name, "from", "to")[:each])


def _cells(metric: Metric, row: Row, column: str) -> list[Cell | None]:
    """Return the figure of a run and the ends of its interval."""
    if (figure := row.figures[column]) is None:
        return [None] * 3
    marked = Cell(
        metric.shown(figure.shown.value),
        not figure.complete,
        number=decimals(metric.decimals),
        bold=figure.place is Standing.BEST,
        underlined=figure.place is Standing.SECOND,
        faint=row.is_published,
    )
    return [marked, *_values(metric, figure.shown)[1:]]


def _values(metric: Metric, of: MetricValue | None) -> list[Cell | None]:
    """Return a value and the ends of its interval."""
    value, ends = (of.value, of.interval or (None, None)) if of else (None, (None, None))
    mark = bool(of and of.approximate)
    return [_shown(metric, value), *(_shown(metric, end, faint=True, approximate=mark) for end in ends)]


def _summary_sheet(table: MetricTable, head: Sequence[str], about: Mapping[tuple[str, str], list[Content]]) -> Sheet:
    """Return the same figures with their intervals, and the cells `about` each benchmark and run under `head`; a
    published row has none."""
    nothing = [None] * len(head)
    columns, rows = _figures(
        table, 3, head, lambda row: nothing if row.is_published else about[table.benchmark, row.name]
    )
    return Sheet(table.label, columns, rows, [*_notes(table), *SUMMARY_NOTES])


def _shown(metric: Metric, value: float | None, *, faint: bool = False, approximate: bool = False) -> Cell | None:
    number = f"{'~' * approximate}{decimals(metric.decimals)}"
    return None if value is None else Cell(metric.shown(value), faint=faint, number=number)


def _scored(reports: Sequence[Scored]) -> Cell:
    are_complete = all(report.complete for report in reports)
    return Cell(sum(report.scored for report in reports), not are_complete, number=WHOLE)


def _sum(name: str, reports: Sequence[Scored]) -> Cell:
    return Cell(sum(getattr(report, name) for report in reports), number=WHOLE)


def _used(name: str, reports: Sequence[Scored]) -> Cell | None:
    """Return a sum, blank if no request was counted, as for results of the authors' runner."""
    counted = [report.usage.get(name, 0) for report in reports if report.usage]
    return Cell(sum(counted), number=WHOLE) if counted else None


def _counted(name: str, reports: Sequence[Scored]) -> Cell | None:
    of = costs.spent(reports)
    return Cell(of.total(name), number=WHOLE) if of.reports else None


def _cost(name: str, bound: str, reports: Sequence[Scored]) -> Cell | None:
    """Return an amount or a bound of it, blank without one, and where there are several currencies."""
    amounts: Sequence[Money] = getattr(costs.spent(reports), name)
    if len(amounts) != 1 or (amount := getattr(amounts[0], bound)) is None:
        return None
    return Cell(float(amount), amounts[0].about and bound == "amount", number=decimals(6))


def _text(name: str, reports: Sequence[Scored]) -> str:
    return _together(getattr(report, name) for report in reports)


def _together(words: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(word for word in words if word))


Columns = Mapping[str, Callable[[Sequence[Scored]], Content]]
"""Columns by name, each made of the reports of a run, on all its subsets or on one."""

ABOUT: Columns = {
    "users scored": _scored,
    "users expected": partial(_sum, "expected"),
    "requests": partial(_used, "requests"),
    "prompt tokens": partial(_used, "prompt_tokens"),
    "completion tokens": partial(_used, "completion_tokens"),
    "model": partial(_text, "model"),
    "prompt": lambda reports: _together(", ".join((of.prompt_label, *of.settings)) for of in reports),
    "share": lambda reports: Cell(min(report.ratio for report in reports), number=PERCENT),
    "tasks": lambda reports: _together("synthetic" for report in reports if report.synthetic),
}
"""Columns on a run."""

RUNS: Columns = {
    "run": partial(_text, "run"),
    "benchmark": partial(_text, "benchmark"),
    "subset": partial(_text, "subset"),
    **{name: ABOUT[name] for name in ("users scored", "users expected")},
    "users failed": partial(_sum, "failed"),
    "answers": partial(_sum, "answers"),
    "invalid": partial(_sum, "invalid"),
    **{name: ABOUT[name] for name in ("share", "model", "prompt")},
    "prompt version": partial(_text, "prompt_version"),
    "tasks": ABOUT["tasks"],
    "tasks SHA-256": lambda reports: short_hash(reports[0].tasks),
    **{name: ABOUT[name] for name in ("requests", "prompt tokens", "completion tokens")},
    "requests without count": partial(_used, "untold"),
    "begun": partial(_text, "begun"),
    "harness": partial(_text, "harness"),
}
"""Columns on one report."""

COSTS: Columns = {
    "cached tokens": partial(_counted, "cached_tokens"),
    "reasoning tokens": partial(_counted, "reasoning_tokens"),
    "cost": partial(_cost, "money", "amount"),
    "currency": lambda reports: " + ".join(one.currency for one in costs.spent(reports).money),
    "at least": partial(_cost, "money", "low"),
    "at most": partial(_cost, "money", "high"),
    "cost a user": partial(_cost, "each", "amount"),
    "a user at least": partial(_cost, "each", "low"),
    "a user at most": partial(_cost, "each", "high"),
}
"""Columns on what reports cost together, where the cost of any run is known. An asterisk: tokens are estimated."""


def _runs_sheet(reports: Sequence[Scored], columns: Columns, missing: Sequence[str]) -> Sheet:
    """Return a row for each report, by run, its subsets in the order of the tables."""
    ordered = sorted(reports, key=lambda report: (report.run, report.declared.subsets.index(report.subset)))
    invalid = dict.fromkeys(f"{report.declared.invalid_as}." for report in ordered)
    rows = [[made([report]) for made in columns.values()] for report in ordered]
    spent = [costs.COUNTED] if costs.is_known(reports) else []
    return Sheet("Runs", tuple(columns), rows, [*RUNS_NOTES, *spent, *invalid, *missing])
