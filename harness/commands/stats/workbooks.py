"""The tables of `stats` as Excel sheets: a workbook for each metric, and one with all of them and
their runs."""

from __future__ import annotations

import re
from collections import Counter
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
USAGE_COLUMNS = {
    "requests": "requests",
    "prompt_tokens": "prompt tokens",
    "completion_tokens": "completion tokens",
    "untold": "requests without count",
}
"""Names of a report's usage, and their columns."""
RUN_COLUMNS = (
    *("users scored", "users expected", "requests", "prompt tokens", "completion tokens"),
    *("model", "prompt", "share", "tasks"),
)
Facts = Mapping[str, str | Cell]
"""Cells on a run by their columns."""


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
        # A metric's name may have characters that no file's name has.
        name = re.sub(r"[^\w ^().,+-]", "_", standing.label)[:100]
        facts: list[Facts] = [{"what": about_run(row.reports)} for row in standing.runs]
        yield name, [_sheet(standing, ["what"], facts, ends=False)]

    runs = grouped(((report.report.benchmark, report.run), report) for report in reports)
    facts_by_run = {key: _facts(of_run) for key, of_run in runs.items()}
    columns = (*RUN_COLUMNS, *COSTS) if costs.is_known(reports) else RUN_COLUMNS
    sheets = [_runs_sheet(reports, missing)]

    for standing in standings:
        facts = [facts_by_run[standing.benchmark, row.name] for row in standing.runs]
        sheets.append(_sheet(standing, columns, facts, ends=True))

    yield SUMMARY, sheets


def _sheet(
    standing: Standing,
    headings: Sequence[str],
    facts: Sequence[Facts],
    *,
    ends: bool,
) -> Table:
    """Return the table of a metric, with the facts on each run under these `headings` too, and the
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
        row = [*shown_cells]
        # Beneath the runs are published figures, without facts.
        facts_of_row = facts[number] if number < len(facts) else {}
        for name in headings:
            row.append(facts_of_row.get(name, ""))

        # The last row may be the chance level, which is no row of figures.
        figures = standing.rows[number].figures if number < len(standing.rows) else {}
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
    lines = [*RUNS_NOTES, *(f"{report.report.invalid_as}." for report in ordered)]
    facts = [_facts([report]) for report in ordered]
    columns = tuple(facts[0])

    if costs.is_known(reports):
        lines.append(costs.COUNTED)
    else:
        columns = tuple(filterfalse(COSTS.__contains__, columns))

    rows = [tuple(map(cells.__getitem__, columns)) for cells in facts]

    return Table(columns, tuple(rows), "Runs", (*dict.fromkeys(lines), *missing))


def _facts(reports: Sequence[RunReport]) -> Facts:
    """Return the cells on a run, on all its subsets or on one."""
    # The summary shows none of the columns that are of the first report alone.
    first = reports[0]
    counts = Counter[str]()
    for report in reports:
        counts["users scored"] += report.scored
        counts["users expected"] += report.expected
        counts["users failed"] += report.report.coverage.failed_users
        counts["answers"] += report.answers
        counts["invalid"] += report.invalid

    cells = {name: _count(number) for name, number in counts.items()}
    if not all(report.complete for report in reports):
        cells["users scored"] = structs.replace(cells["users scored"], partial=True)

    return {
        "run": first.run,
        "benchmark": first.report.benchmark,
        "subset": first.subset,
        **cells,
        "share": Cell("", min(report.report.share for report in reports)),
        "model": _joined(report.report.model for report in reports),
        "prompt": _joined(", ".join((report.prompt, *report.settings)) for report in reports),
        "prompt version": first.report.prompt_version,
        "tasks": _joined(["synthetic" for report in reports if report.report.is_synthetic]),
        "tasks SHA-256": short_hash(first.run_settings.tasks_sha256 or ""),
        **_usage_cells(reports),
        "begun": first.run_settings.created or "",
        "harness": first.run_settings.harness or "",
        **_cost_cells(costs.run_cost(reports)),
    }


def _usage_cells(reports: Sequence[RunReport]) -> dict[str, str | Cell]:
    """Return the cells on requests and tokens, blank if no request was counted, as for results of
    the authors' runner."""
    usage = Counter[str]()
    for report in reports:
        usage.update(report.report.usage)

    cells: dict[str, str | Cell] = dict.fromkeys(USAGE_COLUMNS.values(), "")
    if usage["requests"]:
        for name, column in USAGE_COLUMNS.items():
            cells[column] = _count(usage[name])

    return cells


def _cost_cells(cost: costs.RunCost) -> dict[str, str | Cell]:
    """Return the cells on tokens and money, blank without known tokens or price."""
    cells: dict[str, str | Cell] = dict.fromkeys(COSTS, "")
    if cost.costs:
        cells["cached tokens"] = _count(cost.total("cached_tokens"))
        cells["reasoning tokens"] = _count(cost.total("reasoning_tokens"))

    cells["currency"] = " + ".join(money.currency for money in cost.money)
    cells |= _amounts(cost.money, ("cost", "at least", "at most"))
    cells |= _amounts(cost.money_per_user, ("cost a user", "a user at least", "a user at most"))

    return cells


def _count(number: int) -> Cell:
    return Cell(str(number), number, 0)


def _amounts(amounts: Sequence[Money], columns: Sequence[str]) -> dict[str, Cell]:
    """Return the cells of an amount and of its lower and upper bound, if known; none for amounts in
    several currencies, which have no sum."""
    if len(amounts) != 1:
        return {}

    [money] = amounts
    cells = {}
    for column, amount in zip(columns, (money.amount, money.low, money.high), strict=True):
        if amount is not None:
            # A spreadsheet computes with floats; the exact amount is in the JSON and CSV.
            cells[column] = Cell(str(amount), float(amount), 6)

    # Bounds are no estimates.
    cells[columns[0]] = structs.replace(cells[columns[0]], partial=money.about)

    return cells


def _joined(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(filter(None, texts)))
