"""Figures of runs as tables: a row for each run, a column for each subset."""

from __future__ import annotations

from collections.abc import Sequence

from harness.commands.stats.standings import Figure, Standing
from harness.document import Cell, Table
from harness.reporting.report import CHANCE, level

RUN = "run"


def table(
    standing: Standing, *, intervals: bool = False, ends: bool = False, notes: Sequence[str] = ()
) -> Table:
    """Return the figures of a metric: of the runs, with their ranks, then those published, and the
    chance level.

    Intervals are in the cells of their figures, or their `ends` in columns of their own.
    """
    columns, metric, levels = standing.columns, standing.metric, standing.chance
    ranks = ["rank"] if any(row.rank for row in standing.rows) else []
    rows = [
        [
            row.label,
            *(
                each
                for name in columns
                for each in cells(standing, row.figures[name], ends, intervals, not row.reports)
            ),
            *([row.rank] if ranks else []),
        ]
        for row in standing.rows
    ]
    rules = [len(standing.runs), len(rows)]
    heads_shown = [RUN, *heads(columns, ends), *ranks]
    if levels:
        chance: dict[str, str | Cell] = {
            name: Cell(level(metric, *of), metric.shown(of[0]), metric.decimals, faint=True)
            for name, of in levels.items()
        }
        rows.append([CHANCE, *(chance.get(name, "") for name in heads_shown[1:])])
    shown = tuple(number for number in dict.fromkeys(rules) if 0 < number < len(rows))
    return Table(tuple(heads_shown), tuple(map(tuple, rows)), standing.title, tuple(notes), shown)


def heads(columns: Sequence[str], ends: bool) -> list[str]:
    return [head for name in columns for head in (name, *(("from", "to") if ends else ()))]


def cells(
    standing: Standing,
    figure: Figure | None,
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
    bias = "" if figure.bias is None else f"bias {metric.text(figure.bias, signed=True)}"
    value = Cell(
        metric.text(shown.value),
        metric.shown(shown.value or 0.0),
        metric.decimals,
        figure.place,
        partial=not figure.complete,
        faint=faint,
        interval=metric.span(shown.ci95, approximate=is_approximate)
        if intervals and shown.ci95
        else "",
        note="; ".join(filter(None, (standing.as_published(figure), bias))),
    )
    if not ends:
        return [value]
    mark = "~" if is_approximate else ""
    bounds: list[str | Cell] = [
        Cell(f"{mark}{metric.text(end)}", metric.shown(end), metric.decimals, faint=True)
        for end in shown.ci95 or ()
    ]
    return [value, *(bounds or ["", ""])]
