"""The tables of `stats` as Excel sheets: a workbook for each metric, and one with all of them and
their runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from msgspec import structs

from harness.commands.stats import costs, leaderboard
from harness.commands.stats.notes import notes
from harness.commands.stats.run_reports import RunReport, about_run
from harness.commands.stats.standings import Figure, Standing
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
    *(
        "users scored",
        "users expected",
        "requests",
        "prompt tokens",
        "completion tokens",
        "model",
        "prompt",
        "share",
    ),
    "tasks",
)
Cells = Sequence[str | Cell]


def workbooks(
    standings: Sequence[Standing], reports: Sequence[RunReport], missing: Sequence[str] = ()
) -> Iterator[tuple[str, list[Table]]]:
    """Yield the name of each file, without its suffix, and its sheets; `missing` are notes for the
    sheet of runs.

    The sheet of a metric has a row for each run and a column for each subset, as the tables of
    papers.
    """
    for standing in standings:
        name = re.sub(r"[^\w ^().,+-]", "_", standing.label)[:100]
        yield (
            name,
            [
                _sheet(
                    standing,
                    ["what"],
                    [[about_run(row.reports)] for row in standing.runs],
                    ends=False,
                )
            ],
        )
    by_run: dict[tuple[str, str], list[RunReport]] = {}
    for report in reports:
        by_run.setdefault((report.report.benchmark, report.run), []).append(report)
    spent = COSTS if costs.is_known(reports) else ()
    facts = {key: _facts(some) for key, some in by_run.items()}
    columns = (*RUN_COLUMNS, *spent)
    sheets = [_runs_sheet(reports, missing)]
    for standing in standings:
        runs = [facts[standing.benchmark, row.name] for row in standing.runs]
        about = [[cells[column] for column in columns] for cells in runs]
        sheets.append(_sheet(standing, columns, about, ends=True))
    yield SUMMARY, sheets


def _sheet(
    standing: Standing, heads: Sequence[str], about: Sequence[Cells], *, ends: bool
) -> Table:
    """Return the table of a metric, with cells `about` each run under further `heads`, and the
    metric's own figures of columns that show others for some run."""
    shown = leaderboard.table(standing, ends=ends)
    own = [
        name
        for name in standing.columns
        if any(map(standing.as_published, standing.in_column(name)))
    ]
    columns = [
        *shown.columns,
        *heads,
        *leaderboard.heads([f"{name}, as published" for name in own], ends),
    ]
    rows = []
    for number, cells in enumerate(shown.rows):
        figures = standing.rows[number].figures if number < len(standing.rows) else {}
        run = about[number] if number < len(about) else [""] * len(heads)
        plain = (figure and Figure(figure.value) for figure in map(figures.get, own))
        rows.append(
            (
                *cells,
                *run,
                *(cell for figure in plain for cell in leaderboard.cells(standing, figure, ends)),
            )
        )
    definition = (
        f" {standing.metric.name}: {standing.metric.definition}."
        if standing.metric.definition
        else ""
    )
    lines = (
        f"{standing.title}.{definition}",
        *notes([standing], intervals=ends),
        *(SUMMARY_NOTES if ends else ()),
    )
    return Table(tuple(columns), tuple(rows), standing.label, lines)


def _runs_sheet(reports: Sequence[RunReport], missing: Sequence[str]) -> Table:
    """Return a row for each report, by run, its subsets in the order of the tables."""
    ordered = sorted(
        reports, key=lambda report: (report.run, report.report.subsets.index(report.subset))
    )
    notes = dict.fromkeys((*RUNS_NOTES, *(f"{report.report.invalid_as}." for report in ordered)))
    facts = [_facts([report]) for report in ordered]
    columns = list(facts[0])
    if costs.is_known(reports):
        notes[costs.COUNTED] = None
    else:
        columns = [column for column in columns if column not in COSTS]
    rows = tuple(tuple(cells[column] for column in columns) for cells in facts)
    return Table(tuple(columns), rows, "Runs", (*notes, *missing))


def _facts(reports: Sequence[RunReport]) -> dict[str, str | Cell]:
    """Return the cells on a run, on all its subsets or on one, by their columns."""
    first, cost = reports[0], costs.spent(reports)
    usages = [report.report.usage for report in reports if report.report.usage.get("requests")]

    def count(name: str) -> Cell:
        return _count(sum(getattr(report, name) for report in reports))

    def used(name: str) -> str | Cell:
        """Return a sum, blank if no request was counted, as for results of the authors' runner."""
        return _count(sum(usage.get(name, 0) for usage in usages)) if usages else ""

    def billed(name: str) -> str | Cell:
        return _count(cost.total(name)) if cost.reports else ""

    return {
        "run": first.run,
        "benchmark": first.report.benchmark,
        "subset": first.subset,
        "users scored": structs.replace(
            count("scored"), partial=not all(report.complete for report in reports)
        ),
        "users expected": count("expected"),
        "users failed": _count(sum(report.report.coverage.failed_users for report in reports)),
        "answers": count("answers"),
        "invalid": count("invalid"),
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
        "cost a user": _amount(cost.each, "amount"),
        "a user at least": _amount(cost.each, "low"),
        "a user at most": _amount(cost.each, "high"),
    }


def _count(number: int) -> Cell:
    return Cell(str(number), number, 0)


def _amount(amounts: Sequence[Money], bound: str) -> str | Cell:
    """Return an amount or a bound of it, blank without one, and where there are several
    currencies."""
    amount = getattr(amounts[0], bound) if len(amounts) == 1 else None
    return (
        ""
        if amount is None
        else Cell(str(amount), float(amount), 6, partial=amounts[0].about and bound == "amount")
    )


def _joined(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(filter(None, texts)))
