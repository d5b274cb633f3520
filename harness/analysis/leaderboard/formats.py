"""The tables of `stats` for other programs: Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from harness.analysis.leaderboard.footnotes import notes
from harness.analysis.leaderboard.tables import Figure, MetricTable, Row
from harness.benchmark import Metric
from harness.model import JSON, Published
from harness.printable import on_one_line
from harness.report import grid
from harness.report.grid import Grid, Number, Place

CSV_COLUMNS = (
    "benchmark",
    "metric",
    "run",
    "platform",
    "value",
    "unit",
    "from",
    "to",
    "users",
    "expected",
    "answers",
    "invalid",
    "complete",
    "place",
    "published",
    "what",
)
FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
"""How formulas begin, in some spreadsheets also in full width (owasp.org: CSV injection)."""


def text(form: str, chosen: Sequence[MetricTable], missing: Sequence[str] = ()) -> str:
    """Tables as `markdown`, `latex` or `csv`, ending with a line end.

    What is `missing` in them is for whoever makes a page or paper: LaTeX has it in a comment, CSV nowhere.
    """
    if form == "csv":
        return _csv(chosen)
    grids, below, runs = [_grid(table) for table in chosen], notes(chosen), [*about(chosen), *missing]
    return grid.markdown(grids, [*below, *runs]) if form == "markdown" else grid.latex(grids, below, runs)


def about(shown: Sequence[MetricTable]) -> list[str]:
    """What each run is, once."""
    of: dict[str, list[Row]] = {}
    for table in shown:
        for row in table.rows:
            if not row.is_published:
                of.setdefault(row.name, []).append(row)
    return [f"{name}: {'; '.join(dict.fromkeys(row.about for row in rows))}" for name, rows in of.items()]


def _grid(table: MetricTable) -> Grid:
    lines = [
        (row.is_published, (row.label, tuple(number(table, at, row, column) for column in table.columns)))
        for at, row in enumerate(table.rows)
    ]
    groups = tuple(tuple(line for published, line in lines if published is which) for which in (False, True))
    return Grid(table.title, "run", table.columns, tuple(group for group in groups if group))


def number(table: MetricTable, at: int, row: Row, column: str) -> Number | None:
    figure = row.figures[column]
    if figure is None:
        return None
    return Number(table.metric.text(figure.value.value), table.places.get((at, column)), not figure.complete)


def _csv(shown: Sequence[MetricTable]) -> str:
    """A line a figure, so that every benchmark and metric has the same columns."""
    content = io.StringIO()
    lines = csv.writer(content, lineterminator="\n")
    lines.writerow(CSV_COLUMNS)
    for table in shown:
        for at, row in enumerate(table.rows):
            for column, figure in row.figures.items():
                if figure is not None:
                    lines.writerow(_csv_line(table, row, column, figure, table.places.get((at, column))))
    return content.getvalue()


def _csv_line(table: MetricTable, row: Row, column: str, figure: Figure, place: Place | None) -> list[str]:
    interval = figure.value.interval
    return [
        *map(_csv_text, (table.benchmark, table.metric.name, row.name, column)),
        table.metric.text(figure.value.value),
        _csv_text(table.metric.shown_unit),
        *(map(table.metric.text, interval) if interval else ("", "")),
        *("" if number is None else str(number) for number in _numbers(figure).values()),
        "" if row.is_published else _yes(figure.complete),
        place.value if place else "",
        _yes(row.is_published),
        _csv_text(row.about),
    ]


def _csv_text(text: str) -> str:
    """One line, and with an apostrophe in front of what a spreadsheet would take for a formula."""
    plain = on_one_line(text)
    return f"'{plain}" if plain.startswith(FORMULA) else plain


def _numbers(figure: Figure) -> dict[str, int | None]:
    """How many users have a value and how many should, and of how many answers how many were invalid."""
    of = figure.report
    return {
        "users": figure.value.users,
        "expected": of.expected if of else None,
        "answers": of.answers if of else None,
        "invalid": of.invalid if of else None,
    }


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def plain(found: Sequence[MetricTable]) -> JSON:
    """Figures by metric, run and column, in the metric's own unit, which for a share is a fraction.

    What was published is under a key of its own, as it was printed; so are the units that are no shares.
    """
    made: JSON = {
        table.label: {
            row.name: {
                column: _plain_figure(figure, table.places.get((at, column))) for column, figure in row.figures.items()
            }
            for at, row in enumerate(table.rows)
            if not row.is_published
        }
        for table in found
    }
    for table in found:
        if table.metric.unit is not None:
            made.setdefault("units", {})[table.label] = table.metric.unit
        if table.source:
            of = made.setdefault("published", {"source": table.source.source})
            of[table.label] = _as_printed(table.metric, table.source)
    return made


def _as_printed(metric: Metric, source: Published) -> JSON:
    """Model -> column -> value."""
    figures = source.figures[metric.name]
    return {model: {column: metric.shown(value) for column, value in of.items()} for model, of in figures.items()}


def _plain_figure(figure: Figure | None, place: Place | None) -> JSON | None:
    if figure is None:
        return None
    return {
        "value": figure.value.value,
        "ci95": figure.value.interval,
        **_numbers(figure),
        "complete": figure.complete,
        "place": place.value if place else None,
    }
