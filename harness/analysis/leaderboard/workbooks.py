"""The tables of `stats` as Excel sheets: a workbook a metric, and one with them all and what they are of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from harness.analysis.leaderboard.footnotes import notes
from harness.analysis.leaderboard.reports import Scored
from harness.analysis.leaderboard.tables import Figure, MetricTable, Row
from harness.benchmark import Metric
from harness.report.grid import Place
from harness.report.xlsx import PERCENT, WHOLE, Cell, Sheet

SUMMARY = "summary"
RUNS_NOTES = (
    "A row for each run and platform. An asterisk: not all users of the tasks file are scored.",
    "Tokens as the endpoint counted them; those of the requests without count are not among them.",
)
Content = Cell | str | None


def workbooks(
    tables: Sequence[MetricTable], reports: Sequence[Scored], missing: Sequence[str] = ()
) -> Iterator[tuple[str, list[Sheet]]]:
    """Name of the file, without its suffix, and its sheets; `missing` are notes for the sheet of runs."""
    for table in tables:
        yield re.sub(r"[^\w ^().,+-]", "_", table.label)[:100], [_metric_sheet(table)]
    runs: dict[tuple[str, str], list[Scored]] = {}
    for report in reports:
        runs.setdefault((report.benchmark, report.run), []).append(report)
    about = {key: _about(of) for key, of in runs.items()}
    yield SUMMARY, [_runs_sheet(reports, missing), *(_summary_sheet(table, about) for table in tables)]


def _metric_sheet(table: MetricTable) -> Sheet:
    """A row a run and a column a platform, as in the tables of papers."""
    rows = [
        (row.label, *(_cell(table, number, row, column) for column in table.columns), row.about or None)
        for number, row in enumerate(table.rows)
    ]
    return Sheet(table.label, ("run", *table.columns, "what"), rows, _notes(table))


def _notes(table: MetricTable) -> list[str]:
    return [f"{table.title}.", *notes([table])]


def _cell(table: MetricTable, number: int, row: Row, column: str) -> Cell | None:
    figure, place = row.figures[column], table.places.get((number, column))
    if figure is None:
        return None
    return Cell(
        table.metric.shown(figure.value.value),
        not figure.complete,
        number=_format(table.metric),
        bold=place is Place.BEST,
        underlined=place is Place.SECOND,
        faint=row.is_published,
    )


About = Mapping[tuple[str, str], list[Content]]
"""Of each benchmark and run the cells for `ABOUT`."""


def _summary_sheet(table: MetricTable, about: About) -> Sheet:
    """The same figures with their intervals, and what they are of."""
    columns = ["run"]
    for column in table.columns:
        columns += [column, "from", "to"] if column in table.layout.subsets else [column]
    rows = [_summary_row(table, number, row, about) for number, row in enumerate(table.rows)]
    notes_below = [
        "From, to: the 95 % interval over users of the figure before them; an average has none.",
        "Users, requests and tokens are those of all platforms of the run together.",
    ]
    return Sheet(table.label, (*columns, *ABOUT), rows, [*_notes(table), *notes_below])


ABOUT = (
    "users scored",
    "users expected",
    "requests",
    "prompt tokens",
    "completion tokens",
    "model",
    "prompt",
    "share",
    "tasks",
)


def _summary_row(table: MetricTable, number: int, row: Row, about: About) -> list[Content]:
    """Nothing of what a published row is of: its table does not say."""
    cells: list[Content] = [row.label]
    for column in table.columns:
        cells.append(_cell(table, number, row, column))
        cells += _interval(table.metric, row.figures[column]) if column in table.layout.subsets else []
    return cells + ([None for _ in ABOUT] if row.is_published else about[table.benchmark, row.name])


def _interval(metric: Metric, figure: Figure | None) -> list[Content]:
    if figure is None or figure.value.interval is None:
        return [None, None]
    return [Cell(metric.shown(end), faint=True, number=_format(metric)) for end in figure.value.interval]


def _format(metric: Metric) -> str:
    return f"0.{'0' * metric.decimals}"


def _about(reports: Sequence[Scored]) -> list[Content]:
    return [
        Cell(
            sum(report.scored for report in reports),
            not all(report.complete for report in reports),
            number=WHOLE,
        ),
        _whole(sum(report.expected for report in reports)),
        *(_used(reports, name) for name in ("requests", "prompt_tokens", "completion_tokens")),
        _together(report.model for report in reports),
        _together(_prompt(report) for report in reports),
        Cell(min(report.ratio for report in reports), number=PERCENT),
        _together(_tasks(report) for report in reports),
    ]


def _whole(number: int) -> Cell:
    return Cell(number, number=WHOLE)


def _used(reports: Iterable[Scored], name: str) -> Cell | None:
    """Blank where no request was counted, as for results of the authors' runner."""
    counted = [report.usage.get(name, 0) for report in reports if report.usage]
    return _whole(sum(counted)) if counted else None


def _together(words: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(word for word in words if word))


def _prompt(report: Scored) -> str:
    return ", ".join((report.prompt_label, *report.settings))


def _tasks(report: Scored) -> str:
    return "synthetic" if report.synthetic else ""


RUNS = (
    "run",
    "benchmark",
    "platform",
    "users scored",
    "users expected",
    "users failed",
    "answers",
    "invalid",
    "share",
    "model",
    "prompt",
    "prompt version",
    "tasks",
    "tasks SHA-256",
    "requests",
    "prompt tokens",
    "completion tokens",
    "requests without count",
    "begun",
    "harness",
)


def _runs_sheet(reports: Sequence[Scored], missing: Sequence[str]) -> Sheet:
    """By run, its platforms in the order of the tables."""
    ordered = sorted(reports, key=lambda report: (report.run, report.declared.subsets.index(report.subset)))
    invalid = dict.fromkeys(f"{report.declared.invalid_as}." for report in ordered)
    return Sheet("Runs", RUNS, [_run_row(report) for report in ordered], [*RUNS_NOTES, *invalid, *missing])


def _run_row(report: Scored) -> list[Content]:
    return [
        report.run,
        report.benchmark,
        report.subset,
        Cell(report.scored, not report.complete, number=WHOLE),
        _whole(report.expected),
        _whole(report.failed),
        _whole(report.answers),
        _whole(report.invalid),
        Cell(report.ratio, number=PERCENT),
        report.model,
        _prompt(report),
        report.prompt_version,
        _tasks(report),
        report.tasks[:16],
        *(_used([report], name) for name in ("requests", "prompt_tokens", "completion_tokens", "untold")),
        report.begun,
        report.harness,
    ]
