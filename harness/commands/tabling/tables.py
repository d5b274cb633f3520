"""Reports side by side: of each metric a table, a row a run and a column a subset, with the best marked.

Where figures of different runs may be ranked is decided here: complete ones, of the same prompt in the same version
(of a prompt or agent of the user's, of files of the same SHA-256), on the same tasks file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from harness.benchmarks.streamprofile.published import Published, published
from harness.commands.tabling.scored import Scored, Value
from harness.report.grid import Place

AVERAGE = "Avg."


@dataclass(frozen=True, slots=True)
class Layout:
    """The tables of one benchmark: its subsets as columns, the metrics that are shown where none is named, and what
    becomes of invalid answers.

    Every metric has an Excel file. More than one subset have an average. A metric is better lower where its name, or
    what follows `FWT `, starts with one of `lower`. `published` reads scores to be shown beside runs.
    """

    subsets: tuple[str, ...]
    main: tuple[str, ...]
    lower: tuple[str, ...]
    invalid: str
    published: Callable[[], Published] | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.subsets, AVERAGE) if len(self.subsets) > 1 else self.subsets

    def is_lower_better(self, metric: str) -> bool:
        return metric.removeprefix("FWT ").startswith(self.lower)


LAYOUTS = {
    "streamprofile": Layout(
        ("zhihu", "weibo", "toutiao", "xiaohongshu", "douban"),
        ("Recall", "F1^NS"),
        ("Error_",),
        "Invalid answers count as empty",
        published,
    ),
    "dailymobility": Layout(
        ("beijing",),
        ("Score", "Score (asbench)", "Score (agentsociety2)"),
        ("JSD_",),
        "Invalid days count as stayed home with the intention other",
    ),
}
"""Platforms in the order of the published tables."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A value of a table, whether it covers all users of the tasks file, and the report that it is of, if it is of one.

    Only complete figures whose `alike` is equal are ranked against each other; None is ranked with nothing.
    """

    value: Value
    complete: bool
    alike: tuple[str, ...] | None
    report: Scored | None = None

    @property
    def percent(self) -> float:
        """As it is shown, with two decimals: what looks equal is equal."""
        return round(100 * self.value.value, 2)


@dataclass(frozen=True, slots=True)
class Row:
    """`figures` has a key for each column; `reports` are those it was made of, none for a published one."""

    name: str
    figures: Mapping[str, Figure | None]
    reports: tuple[Scored, ...] = ()

    @property
    def is_published(self) -> bool:
        return not self.reports

    @property
    def label(self) -> str:
        return f"{self.name} (published)" if self.is_published else self.name

    @property
    def about(self) -> str:
        return "; ".join(dict.fromkeys(report.about for report in self.reports))


@dataclass(frozen=True, slots=True)
class MetricTable:
    """`rows` are the runs by name, then what was published; `places` are by row number and column."""

    benchmark: str
    metric: str
    rows: tuple[Row, ...]
    places: Mapping[tuple[int, str], Place]
    source: Published | None = None

    @property
    def layout(self) -> Layout:
        return LAYOUTS[self.benchmark]

    @property
    def columns(self) -> tuple[str, ...]:
        return self.layout.columns

    @property
    def is_lower_better(self) -> bool:
        return self.layout.is_lower_better(self.metric)


def tables(reports: Sequence[Scored], *, with_published: bool) -> list[MetricTable]:
    """Of every benchmark and metric that has any, in the order of `LAYOUTS` and of the reports."""
    made = []
    for name, layout in LAYOUTS.items():
        runs: dict[str, list[Scored]] = {}
        for report in reports:
            if report.benchmark == name:
                runs.setdefault(report.run, []).append(report)
        source = layout.published() if with_published and layout.published else None
        metrics = dict.fromkeys(metric for of in runs.values() for report in of for metric in report.values)
        metrics |= dict.fromkeys(source.figures if source else ())
        made += [_table(name, metric, runs, source) for metric in metrics]
    return made


def _table(benchmark: str, metric: str, runs: Mapping[str, Sequence[Scored]], source: Published | None) -> MetricTable:
    layout = LAYOUTS[benchmark]
    told = source if source and metric in source.figures else None
    rows = [_row(name, metric, layout, of) for name, of in runs.items() if any(metric in each.values for each in of)]
    rows += _published(told, metric) if told else []
    return MetricTable(benchmark, metric, tuple(rows), _places(rows, layout, metric), told)


def _row(name: str, metric: str, layout: Layout, reports: Sequence[Scored]) -> Row:
    found = {report.subset: _figure(report, metric) for report in reports}
    figures = {subset: found.get(subset) for subset in layout.subsets}
    if len(layout.subsets) > 1:
        figures[AVERAGE] = _average([found.get(subset) for subset in layout.subsets])
    return Row(name, figures, tuple(reports))


def _figure(report: Scored, metric: str) -> Figure | None:
    value = report.values.get(metric)
    alike = (report.prompt, report.prompt_version, report.tasks, *report.files) if report.is_prompt_known else None
    return None if value is None else Figure(value, report.complete, alike, report)


def _average(figures: Sequence[Figure | None]) -> Figure | None:
    """The mean of subsets that are all there and complete; how sure it is cannot be told from theirs."""
    there = [figure for figure in figures if figure is not None and figure.complete]
    if len(there) < len(figures):
        return None
    mean = sum(figure.value.value for figure in there) / len(there)
    alike = [figure.alike for figure in there if figure.alike is not None]
    return Figure(Value(mean), True, tuple(chain(*alike)) if len(alike) == len(there) else None)


def _published(source: Published, metric: str) -> list[Row]:
    return [
        Row(model, {column: Figure(Value(percent / 100), True, None) for column, percent in figures.items()})
        for model, figures in source.figures[metric].items()
    ]


def _places(rows: Sequence[Row], layout: Layout, metric: str) -> dict[tuple[int, str], Place]:
    """The best and the second best value of each column."""
    places = {}
    for column, group in groups(rows, layout):
        for number, place in _ranked(group, lower=layout.is_lower_better(metric)):
            places[number, column] = place
    return places


def groups(rows: Sequence[Row], layout: Layout) -> Iterator[tuple[str, dict[int, Figure]]]:
    """By column the figures that compare, two or more, by the numbers of their rows."""
    for column in layout.columns:
        groups: dict[tuple[str, ...], dict[int, Figure]] = {}
        for number, row in enumerate(rows):
            figure = row.figures[column]
            if figure is not None and figure.complete and figure.alike is not None:
                groups.setdefault(figure.alike, {})[number] = figure
        yield from ((column, group) for group in groups.values() if len(group) > 1)


def _ranked(group: Mapping[int, Figure], *, lower: bool) -> list[tuple[int, Place]]:
    values = sorted({figure.percent for figure in group.values()}, reverse=not lower)
    best = dict(zip(values, Place, strict=False))
    return [(number, best[figure.percent]) for number, figure in group.items() if figure.percent in best]


def title(table: MetricTable) -> str:
    return f"{table.metric}, %{' (lower is better)' if table.is_lower_better else ''}"
