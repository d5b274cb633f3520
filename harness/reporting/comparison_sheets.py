"""The result of `compare` as sheets of a spreadsheet: all pairs of runs in each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from harness.document import Cell, Table
from harness.model import JSON
from harness.reporting import xlsx
from harness.reporting.comparison import (
    coverage,
    coverage_notes,
    figures_of,
    method,
    most_different,
    number_cell,
    units_of,
    value_cell,
)


def sheets(data: JSON) -> list[xlsx.Sheet]:
    """Return verdicts, figures, coverage and users."""
    are_shares = all(metric.unit is None for pair in data["pairs"] for metric in units_of(pair).values())
    unit = " (%)" if are_shares else ""
    columns = (
        *("subset", "metric", f"A{unit}", f"B{unit}", "A - B", "from", "to"),
        *("from (simultaneous)", "to (simultaneous)", "p (not corrected)", "p (adjusted)"),
        *("users", "A better", "equal", "B better", "unit", "kind", "compared by", "A as given", "B as given"),
        "approximate",
    )
    spans = ("Differences of shares in points; from, to: 95 % interval.",)
    return [
        _sheet("Verdicts", data, lambda pair: Table(("", "in words"), tuple(_words(pair))), tuple(method(data))),
        _sheet("Figures", data, lambda pair: Table(columns, tuple(_figures(pair))), spans),
        _sheet("Coverage", data, coverage),
        _sheet("Users", data, most_different),
    ]


def _sheet(title: str, data: JSON, table: Callable[[JSON], Table], notes: Sequence[str] = ()) -> xlsx.Sheet:
    """Return the tables of all pairs below one another, each row after the names of its runs."""
    tables = [(pair, table(pair)) for pair in data["pairs"]]
    rows = [(pair["a"], pair["b"], *map(_content, row)) for pair, of_pair in tables for row in of_pair.rows]
    return xlsx.Sheet(title, ("A", "B", *tables[0][1].columns), rows, notes)


def _content(cell: str | Cell) -> xlsx.Content:
    if isinstance(cell, str) or cell.value is None:
        return cell if isinstance(cell, str) else None
    return xlsx.Cell(cell.value, cell.partial, number=xlsx.decimals(cell.digits) if cell.digits else xlsx.WHOLE)


def _words(pair: JSON) -> Iterator[tuple[str, str]]:
    kinds = {"warning": pair["warnings"], "coverage": coverage_notes(pair), "verdict": pair["verdicts"]}
    return ((kind, words) for kind, sentences in kinds.items() for words in sentences)


def _figures(pair: JSON) -> Iterator[tuple[str | Cell, ...]]:
    units = units_of(pair)
    for of in figures_of(pair):
        metric, given = units[of.metric], of.given or {"a": of.a, "b": of.b}
        bounds = (*(of.ci95 or (None, None)), *(of.ci95_simultaneous or (None, None)))
        yield (
            of.subset,
            metric.name,
            *(value_cell(metric, value) for value in (of.a, of.b, of.difference, *bounds)),
            *(number_cell(p, 4) for p in (of.p, of.p_adjusted)),
            *map(number_cell, (of.users, of.a_better, of.equal, of.b_better)),
            metric.shown_unit,
            "exploratory" if of.exploratory else "primary",
            of.compared,
            *(value_cell(metric, value) for value in given.values()),
            "~" if of.ci95 and of.approximate else "",
        )
