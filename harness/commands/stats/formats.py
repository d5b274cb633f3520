"""The tables of `stats` for other programs: Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from harness.benchmark import Metric
from harness.commands.stats import costs
from harness.commands.stats.footnotes import notes
from harness.commands.stats.grid import Grid, Number, latex, markdown
from harness.commands.stats.reports import Scored
from harness.commands.stats.tables import AVERAGE, Figure, MetricTable, Rank, Row
from harness.cost import plain as plain_amount
from harness.model import JSON, Money
from harness.printable import in_cell
from harness.reporting.report import CHANCE, level
from harness.scoring.differences import ALL

CSV_COLUMNS = (
    *("benchmark", "metric", "run", "subset", "value", "unit", "from", "to", "users", "expected", "answers"),
    *("invalid", "complete", "place", "published", "what", "rank", "separable"),
    *("ranked_by", "ranked_value", "ranked_users", "following", "chance", "chance_error", "approximate", "bias"),
)

SHARE = Metric("share")


def text(form: str, chosen: Sequence[MetricTable], missing: Sequence[str] = (), *, intervals: bool = False) -> str:
    """Return tables as `markdown`, `latex` or `csv`, ending with a line end.

    What is `missing` in them is for the author of a page or paper: LaTeX has it in a comment, CSV nowhere.
    """
    if form == "csv":
        return _csv(chosen)
    made, runs = grids(chosen, intervals=intervals), [*about(chosen), *missing]
    return markdown(made, [*notes(chosen), *costs.notes(chosen), *runs]) if form == "markdown" else latex(made, runs)


def about(shown: Sequence[MetricTable]) -> list[str]:
    """Return a description of each run, once."""
    of: dict[str, dict[str, None]] = {}
    for row in (row for table in shown for row in table.runs):
        of.setdefault(row.name, {})[row.about] = None
    return [f"{name}: {'; '.join(words)}" for name, words in of.items()]


def grids(chosen: Sequence[MetricTable], *, intervals: bool) -> list[Grid]:
    """Return the figures of each table, and then the costs."""
    return [*(_grid(table, intervals) for table in chosen), *costs.grids(chosen)]


def _grid(table: MetricTable, intervals: bool) -> Grid:
    """Return the figures as text, with the ranks of the last column: runs, published rows and the chance level as
    groups."""

    def numbers(row: Row) -> tuple[Number | None, ...]:
        figures = (number(table, row.figures[column], intervals=intervals) for column in table.columns)
        return (*figures, *(Number(rank) if rank else None for rank in table.ranks(row)))

    published = [row for row in table.rows if row.is_published]
    groups = [tuple((row.label, numbers(row)) for row in rows) for rows in (table.runs, published) if rows]
    if chance := table.chance:
        levels = (Number(level(table.metric, *chance[name])) if name in chance else None for name in table.columns)
        groups.append(((CHANCE, (*levels, *(None for _ in table.rank_head))),))
    columns = (*table.columns, *table.rank_head)
    return Grid(table.title, "run", columns, tuple(groups), tuple(notes([table])), table.label)


def number(table: MetricTable, figure: Figure | None, *, intervals: bool) -> Number | None:
    """Return a figure as it is printed."""
    if figure is None:
        return None
    of = figure.shown
    interval = table.metric.span(of.interval, approximate=of.approximate) if intervals and of.interval else ""
    bias = "" if figure.bias is None else f"bias {table.metric.text(figure.bias, signed=True)}"
    brackets = "; ".join(filter(None, (table.published(figure), bias)))
    return Number(table.metric.text(of.value), figure.place, not figure.complete, interval, published=brackets)


def _csv(shown: Sequence[MetricTable]) -> str:
    """Return one line for each figure, so that every benchmark and metric has the same columns."""
    content = io.StringIO()
    lines = csv.writer(content, lineterminator="\n")
    lines.writerow(CSV_COLUMNS)
    for table in shown:
        for row in table.rows:
            lines.writerows(_csv_line(table, row, column, of) for column, of in row.figures.items() if of is not None)
    for table in costs.first(shown):
        lines.writerows(_csv_cost(table, *line) for line in costs.lines(table))
    return content.getvalue()


def _csv_line(table: MetricTable, row: Row, column: str, figure: Figure) -> list[str]:
    of, metric = _plain_figure(table.metric, figure), table.metric

    def text(value: float | None) -> str:
        return "" if value is None else metric.text(value)

    return [
        *map(in_cell, (table.benchmark, metric.name, row.name, ALL if column == AVERAGE else column)),
        text(of["value"]),
        in_cell(metric.shown_unit),
        *map(text, of["ci95"] or (None, None)),
        *("" if of[name] is None else str(of[name]) for name in ("users", "expected", "answers", "invalid")),
        "" if row.is_published else _yes(of["complete"]),
        of["place"] or "",
        _yes(row.is_published),
        in_cell(row.about),
        *(("", "") if figure.rank is None else (str(figure.rank.place), _yes(figure.rank.separable))),
        in_cell(of["ranked_by"] or ""),
        text(of["ranked_value"]),
        str(of["ranked_users"] or ""),
        "" if of["following"] is None else SHARE.text(of["following"]),
        text(of["chance"]),
        text(of["chance_error"]),
        _yes(of["approximate"]) if of["ci95"] else "",
        text(of["bias"]),
    ]


def _csv_cost(table: MetricTable, name: str, row: Row, report: Scored, money: Money) -> list[str]:
    """Return a line with a cost as the value of a metric, over the scored users, and its bounds where it has some."""
    counts = map(str, (report.scored, report.expected, report.answers, report.invalid))
    head = map(in_cell, (table.benchmark, name, row.name, report.subset))
    has_bounds = money.low is not None or money.high is not None
    bounds = map(plain_amount, (money.least, money.most)) if has_bounds else ("", "")
    line = [*head, plain_amount(money.amount), money.currency, *bounds, *counts, _yes(report.complete)]
    return [*line, "", "no", in_cell(row.about), *[""] * 10]


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def plain(found: Sequence[MetricTable]) -> JSON:
    """Return figures by metric, run and column, in the metric's own unit, which for a share is a fraction.

    Published scores have a key of their own, as they were printed; so have the units of metrics that are no shares,
    costs, and the ranks of runs where not all have the same subsets.
    """
    made: JSON = {
        table.label: {
            row.name: {column: of and _plain_figure(table.metric, of) for column, of in row.figures.items()}
            for row in table.runs
        }
        for table in found
    }
    for table in found:
        if table.ranked_subsets:
            made.setdefault("ranks", {})[table.label] = _plain_ranks(table)
        if table.metric.unit is not None:
            made.setdefault("units", {})[table.label] = table.metric.unit
        if table.source:
            of = made.setdefault("published", {"source": table.source.source})
            of[table.label] = {
                model: {column: table.metric.shown(value) for column, value in values.items()}
                for model, values in table.source.figures[table.metric.name].items()
            }
    return {**made, "costs": costs.as_json(found)} if costs.first(found) else made


def _plain_ranks(table: MetricTable) -> JSON:
    """Return the ranked mean of each run, with the subsets that it is over."""
    return {
        row.name: {"subsets": row.over, "value": row.own.ranked, **_plain_rank(row.own.rank)}
        for row in table.rows
        if row.own and row.own.rank
    }


def _plain_rank(rank: Rank | None) -> JSON:
    return {"rank": rank and rank.place, "separable": rank and rank.separable}


def _plain_figure(metric: Metric, figure: Figure) -> JSON:
    """Return a figure with how many users have it and how many should, of how many answers how many were invalid, and
    what ranks it."""
    of, by = figure.report, figure.by if figure.ranked is not None else None
    return {
        "value": figure.value.value,
        "ci95": figure.value.interval,
        "users": figure.value.users,
        "expected": of and of.expected,
        "answers": of and of.answers,
        "invalid": of and of.invalid,
        "complete": figure.complete,
        "place": figure.place.value if figure.place else None,
        **_plain_rank(figure.rank),
        "ranked_by": (metric.ranked_by or metric.name) if by else None,
        "ranked_value": by and by.value,
        "ranked_users": by and by.users,
        "following": figure.following,
        "chance": figure.chance and figure.chance[0],
        "chance_error": figure.chance and figure.chance[1],
        "approximate": figure.value.approximate,
        "bias": figure.bias,
    }
