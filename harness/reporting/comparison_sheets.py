"""The result of `compare` as sheets of a spreadsheet: all pairs of runs in each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from harness.benchmark import Metric
from harness.document import Cell, Table
from harness.model import JSON
from harness.reporting import xlsx
from harness.reporting.comparison import coverage_notes, figures_of, method, units_of

COUNTED = ("scored", "expected", "failed", "users_in_tasks")

Row = tuple[str | Cell, ...]


def sheets(data: JSON) -> list[xlsx.Sheet]:
    """Return verdicts, figures, coverage and users."""
    pairs = data["pairs"]
    are_shares = all(metric.unit is None for pair in pairs for metric in units_of(pair).values())
    unit = " (%)" if are_shares else ""
    sides = [f"{side} {name.replace('_', ' ')}" for side in "AB" for name in COUNTED]
    figures = (
        *("subset", "metric", f"A{unit}", f"B{unit}", "A - B", "from", "to", "from (simultaneous)"),
        *("to (simultaneous)", "p (not corrected)", "p (adjusted)", "users", "A better", "equal", "B better"),
        *("unit", "kind", "compared by", "A as given", "B as given", "approximate"),
    )
    return [
        _sheet("Verdicts", pairs, ("", "in words"), _words, tuple(method(data))),
        _sheet("Figures", pairs, figures, _figures, ("Differences of shares in points; from, to: 95 % interval.",)),
        _sheet("Coverage", pairs, ("subset", *sides, "both", "other task", "only A", "only B"), _coverage),
        _sheet("Users", pairs, ("subset", "user", "metric", "A - B"), _users),
    ]


def _sheet(
    title: str,
    pairs: Sequence[JSON],
    columns: Sequence[str],
    rows: Callable[[JSON], Iterator[Row]],
    notes: Sequence[str] = (),
) -> xlsx.Sheet:
    """Return the rows of all pairs, each after the names of its runs."""
    content = tuple((pair["a"], pair["b"], *row) for pair in pairs for row in rows(pair))
    return in_workbook(title, Table(("A", "B", *columns), content), notes)


def in_workbook(title: str, table: Table, notes: Sequence[str] = ()) -> xlsx.Sheet:
    """Return a table as a sheet."""
    rows = [[_content(cell) for cell in row] for row in table.rows]
    return xlsx.Sheet(title, table.columns, rows, notes)


def _content(cell: str | Cell) -> xlsx.Content:
    if isinstance(cell, str) or cell.value is None:
        return cell if isinstance(cell, str) else None
    return xlsx.Cell(cell.value, number=xlsx.decimals(cell.digits) if cell.digits else xlsx.WHOLE)


def _words(pair: JSON) -> Iterator[Row]:
    for words in pair["warnings"]:
        yield "warning", words
    for words in coverage_notes(pair):
        yield "coverage", words
    for words in pair["verdicts"]:
        yield "verdict", words


def _figures(pair: JSON) -> Iterator[Row]:
    units = units_of(pair)
    for of in figures_of(pair):
        metric, given = units[of.metric], of.given or {"a": of.a, "b": of.b}
        bounds = (*(of.ci95 or (None, None)), *(of.ci95_simultaneous or (None, None)))
        yield (
            of.subset,
            metric.name,
            *(_value(metric, value) for value in (of.a, of.b, of.difference, *bounds)),
            *(_number(p, 4) for p in (of.p, of.p_adjusted)),
            *map(_number, (of.users, of.a_better, of.equal, of.b_better)),
            metric.shown_unit,
            "exploratory" if of.exploratory else "primary",
            of.compared,
            *(_value(metric, value) for value in given.values()),
            "~" if of.ci95 and of.approximate else "",
        )


def _coverage(pair: JSON) -> Iterator[Row]:
    for of in pair["coverage"]:
        counts = [of[side][name] for side in "ab" for name in COUNTED]
        alone = of["only_a"]["users"], of["only_b"]["users"]
        yield of["subset"], *map(_number, (*counts, of["common"], of["other_tasks"], *alone))


def _users(pair: JSON) -> Iterator[Row]:
    metric = units_of(pair)[pair["main"][-1]]
    for user in pair["most_different"]:
        yield user["subset"], user["user_id"], metric.name, _value(metric, user["difference"])


def _value(metric: Metric, value: float | None) -> Cell:
    return _number(None if value is None else metric.scale * value, metric.decimals)


def _number(value: float | None, digits: int = 0) -> Cell:
    return Cell("" if value is None else f"{value:.{digits}f}", value, digits)
