"""Figures of runs as tables: a row for each run, a column for each subset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from harness.commands.stats.standings import Standing, StandingFigure
from harness.document import CHANCE, Cell, Table
from harness.reporting.report import level

RUN = "run"


def table(
    standing: Standing,
    *,
    intervals: bool = False,
    ends: bool = False,
    notes: Sequence[str] = (),
) -> Table:
    """Return the figures of a metric: of the runs, with their ranks, then those published, and the
    chance level.

    Intervals are in the cells of their figures, or their `ends` in columns of their own.
    """
    has_ranks = any(row.rank for row in standing.rows)
    headings = [RUN, *column_headings(standing.columns, ends)]
    if has_ranks:
        headings.append("rank")

    rows = []
    for row in standing.rows:
        row_cells: list[str | Cell] = [row.label]
        for name in standing.columns:
            row_cells += cells(
                standing,
                row.figures[name],
                ends,
                intervals,
                not row.reports,
            )

        if has_ranks:
            row_cells.append(row.rank)

        rows.append(tuple(row_cells))

    # A line above what was published, and one above the chance level.
    rules = []
    if 0 < len(standing.runs) < len(rows):
        rules.append(len(standing.runs))
    if standing.chance:
        rules.append(len(rows))
        rows.append((CHANCE, *_chance_cells(standing, headings[1:])))

    return Table(
        tuple(headings),
        tuple(rows),
        standing.title,
        tuple(notes),
        tuple(rules),
    )


def _chance_cells(standing: Standing, headings: Sequence[str]) -> Iterator[str | Cell]:
    metric, chance = standing.metric, standing.chance
    for name in headings:
        if name in chance:
            value, error = chance[name]
            text = level(metric, value, error)
            yield Cell(text, metric.shown(value), metric.decimals, faint=True)
        else:
            yield ""


def column_headings(columns: Sequence[str], ends: bool) -> list[str]:
    if not ends:
        return list(columns)

    return list(chain.from_iterable((name, "from", "to") for name in columns))


def cells(
    standing: Standing,
    figure: StandingFigure | None,
    ends: bool = False,
    intervals: bool = False,
    faint: bool = False,
) -> list[str | Cell]:
    """Return a figure as every table shows it, with the ends of its interval if these are separate;
    empty for none."""
    if figure is None:
        return ["", "", ""] if ends else [""]

    metric, shown = standing.metric, figure.shown
    is_approximate = bool(shown.approximate)
    interval = ""
    if intervals and shown.ci95:
        interval = metric.span(shown.ci95, approximate=is_approximate)

    notes = [standing.as_published(figure)]
    if figure.bias is not None:
        notes.append(f"bias {metric.text(figure.bias, signed=True)}")

    value = Cell(
        metric.text(shown.value),
        metric.shown(figure.number),
        metric.decimals,
        figure.place,
        partial=not figure.complete,
        faint=faint,
        interval=interval,
        note="; ".join(filter(None, notes)),
    )
    if not ends:
        return [value]
    if not shown.ci95:
        return [value, "", ""]

    mark = "~" if is_approximate else ""
    row_cells: list[str | Cell] = [value]
    for end in shown.ci95:
        text = f"{mark}{metric.text(end)}"
        row_cells.append(Cell(text, metric.shown(end), metric.decimals, faint=True))

    return row_cells
