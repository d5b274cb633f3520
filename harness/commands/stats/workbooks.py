"""The tables of `stats` as Excel sheets: a workbook for each metric, and one with all of them and
their runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import filterfalse

from msgspec import structs

from harness.commands.stats import costs, leaderboard
from harness.commands.stats.notes import notes
from harness.commands.stats.run_reports import RunReport, about_run, grouped
from harness.commands.stats.standings import Standing, StandingFigure
from harness.document import Cell, Table
from harness.model import Money
from harness.printable import short_hash

SUMMARY = "summary"
RUNS_NOTES = (
    "A row for each run and subset. An asterisk: not all users of the tasks file are scored.",
    "Tokens as the endpoint counted them; those of the requests without count are not among them.",
)
SUMMARY_NOTES = (
    "From, to: the 95 % interval over users of the figure before them.",
    "Users, requests and tokens are those of all subsets of the run together.",
)
COSTS = (
    *("cached tokens", "reasoning tokens", "cost", "currency", "at least", "at most"),
    *("cost a user", "a user at least", "a user at most"),
)
"""Columns on what reports cost together, where the cost of any run is known. An asterisk: tokens
are estimated."""
RUN_COLUMNS = (
    *("users scored", "users expected", "requests", "prompt tokens", "completion tokens"),
    *("model", "prompt", "share", "tasks"),
)
Cells = tuple[str | Cell, ...]


def workbooks(
    standings: Sequence[Standing],
    reports: Sequence[RunReport],
    missing: Sequence[str] = (),
) -> Iterator[tuple[str, list[Table]]]:
    """Yield the name of each file, without its suffix, and its sheets; `missing` are notes for the
    sheet of runs.

    The sheet of a metric has a row for each run and a column for each subset, as the tables of
    papers.
    """
    for standing in standings:
        name = re.sub(r"[^\w ^().,+-]", "_", standing.label)[:100]
        about = [(about_run(row.reports),) for row in standing.runs]
        yield name, [_sheet(standing, ["what"], about, ends=False)]

    runs = grouped(((report.report.benchmark, report.run), report) for report in reports)
    facts = {key: _facts(of_run) for key, of_run in runs.items()}
    columns = (*RUN_COLUMNS, *COSTS) if costs.is_known(reports) else RUN_COLUMNS
    sheets = [_runs_sheet(reports, missing)]

    for standing in standings:
        cells = []
        for row in standing.runs:
            cells.append(_in_columns(facts[standing.benchmark, row.name], columns))

        sheets.append(_sheet(standing, columns, cells, ends=True))

    yield SUMMARY, sheets


def _in_columns(facts: Mapping[str, str | Cell], columns: Iterable[str]) -> Cells:
    return tuple(map(facts.__getitem__, columns))


def _sheet(
    standing: Standing,
    headings: Sequence[str],
    about: Sequence[Cells],
    *,
    ends: bool,
) -> Table:
    """Return the table of a metric, with cells `about` each run under further `headings`, and the
    metric's own figures of columns that show others for some run."""
    shown = leaderboard.table(standing, ends=ends)
    published = []
    for name in standing.columns:
        if any(map(standing.as_published, standing.in_column(name))):
            published.append(name)

    published_headings = [f"{name}, as published" for name in published]
    columns = [
        *shown.columns,
        *headings,
        *leaderboard.column_headings(published_headings, ends),
    ]
    rows = []
    for number, shown_cells in enumerate(shown.rows):
        # Beneath the runs are published figures, and the chance level, which is no row of figures.
        figures = standing.rows[number].figures if number < len(standing.rows) else {}
        row = [*shown_cells, *(about[number] if number < len(about) else [""] * len(headings))]
        for figure in map(figures.get, published):
            row += leaderboard.cells(standing, figure and StandingFigure(figure.value), ends)

        rows.append(tuple(row))

    about_metric = f"{standing.title}."
    if standing.metric.definition:
        about_metric += f" {standing.metric.name}: {standing.metric.definition}."

    lines = [about_metric, *notes([standing], intervals=ends)]
    if ends:
        lines += SUMMARY_NOTES

    return Table(tuple(columns), tuple(rows), standing.label, tuple(lines))


def _runs_sheet(reports: Sequence[RunReport], missing: Sequence[str]) -> Table:
    """Return a row for each report, by run, its subsets in the order of the tables."""
    ordered = sorted(
        reports, key=lambda report: (report.run, report.report.subsets.index(report.subset))
    )
    lines = dict.fromkeys((*RUNS_NOTES, *(f"{report.report.invalid_as}." for report in ordered)))
    facts = [_facts([report]) for report in ordered]
    columns = tuple(facts[0])

    if costs.is_known(reports):
        lines[costs.COUNTED] = None
    else:
        columns = tuple(filterfalse(COSTS.__contains__, columns))

    rows = tuple(_in_columns(cells, columns) for cells in facts)

    return Table(columns, rows, "Runs", (*lines, *missing))


def _facts(reports: Sequence[RunReport]) -> dict[str, str | Cell]:
    """Return the cells on a run, on all its subsets or on one, by their columns."""
    first = reports[0]
    cost = costs.run_cost(reports)
    usages = [report.report.usage for report in reports if report.report.usage.get("requests")]
    users_scored = _sum(report.scored for report in reports)
    is_partial = not all(report.complete for report in reports)

    def used(name: str) -> str | Cell:
        """Return a sum, blank if no request was counted, as for results of the authors' runner."""
        return _sum(usage.get(name, 0) for usage in usages) if usages else ""

    def billed(name: str) -> str | Cell:
        return _sum([cost.total(name)]) if cost.costs else ""

    return {
        "run": first.run,
        "benchmark": first.report.benchmark,
        "subset": first.subset,
        "users scored": structs.replace(users_scored, partial=is_partial),
        "users expected": _sum(report.expected for report in reports),
        "users failed": _sum(report.report.coverage.failed_users for report in reports),
        "answers": _sum(report.answers for report in reports),
        "invalid": _sum(report.invalid for report in reports),
        "share": Cell("", min(report.ratio for report in reports)),
        "model": _joined(report.report.model for report in reports),
        "prompt": _joined(", ".join((report.prompt, *report.settings)) for report in reports),
        "prompt version": first.report.prompt_version,
        "tasks": "synthetic" if any(report.is_synthetic for report in reports) else "",
        "tasks SHA-256": short_hash(first.run_settings.tasks_sha256 or ""),
        "requests": used("requests"),
        "prompt tokens": used("prompt_tokens"),
        "completion tokens": used("completion_tokens"),
        "requests without count": used("untold"),
        "begun": first.run_settings.created or "",
        "harness": first.run_settings.harness or "",
        "cached tokens": billed("cached_tokens"),
        "reasoning tokens": billed("reasoning_tokens"),
        "cost": _amount(cost.money, "amount"),
        "currency": " + ".join(money.currency for money in cost.money),
        "at least": _amount(cost.money, "low"),
        "at most": _amount(cost.money, "high"),
        "cost a user": _amount(cost.money_per_user, "amount"),
        "a user at least": _amount(cost.money_per_user, "low"),
        "a user at most": _amount(cost.money_per_user, "high"),
    }


def _sum(counts: Iterable[int]) -> Cell:
    number = sum(counts)
    return Cell(str(number), number, 0)


def _amount(amounts: Sequence[Money], bound: str) -> str | Cell:
    """Return an amount or a bound of it, blank without one, and where there are several
    currencies."""
    if len(amounts) != 1:
        return ""

    amount = getattr(amounts[0], bound)
    if amount is None:
        return ""

    is_estimated = amounts[0].about and bound == "amount"

    return Cell(str(amount), float(amount), 6, partial=is_estimated)


def _joined(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(filter(None, texts)))
