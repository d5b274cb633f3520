"""Reports as tables: of each metric one, with a row for each run, a column for each subset, and the best marked.

Which figures of different runs are ranked is decided here: complete ones, of the same prompt in the same version
(of a user's own prompt or agent, of files of the same SHA-256), on the same tasks file.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from statistics import fmean
from typing import NamedTuple

from harness.benchmark import Metric
from harness.benchmarks import registry
from harness.commands.stats.grid import Standing
from harness.commands.stats.reports import Declared, MetricValue, Scored, declared_of
from harness.model import Published

AVERAGE = "Avg."
MEAN = "mean of the subsets"
"""What the means of runs are called if these have different subsets."""
SURE = 2
"""Errors of a drawn chance level by which a value must be away from it."""
ENOUGH = 0.9
"""Share of the answers from which a metric that leaves some out ranks a run: below it, it would be about those that the
model chose to give."""


class Rank(NamedTuple):
    """The place of a run by its value, and whether it is shown to be worse than the best (equal values share a
    place)."""

    place: int
    separable: bool

    @property
    def text(self) -> str:
        """Return the place, with ` =` where the run is not the best and not separable from it."""
        return f"{self.place}{'' if self.separable or self.place == 1 else ' ='}"


@dataclass(frozen=True, slots=True)
class Layout(Declared):
    """The tables of one benchmark: what its reports declare, with all of their subsets as columns and all of their
    metrics. The headline metrics are shown if none is named; every metric has an Excel file. Several subsets have an
    average. `published` scores are shown after the runs.
    """

    benchmark: str
    published: Published | None

    @property
    def printed(self) -> tuple[str, ...]:
        """Return the metrics that have published scores."""
        return tuple(self.published.figures) if self.published else ()

    def ranked_by(self, metric: str) -> str:
        """Return the metric that another is ranked by, empty if that is itself."""
        return self.metrics[metric].ranked_by if metric in self.metrics else ""

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.subsets, AVERAGE) if len(self.subsets) > 1 else self.subsets


def layouts(reports: Sequence[Scored], *, with_published: bool) -> list[Layout]:
    """Return the tables of every benchmark that has reports or published scores; those that ship come first."""
    found: dict[str, list[Declared]] = {name: [] for name in registry.names()}
    for report in reports:
        found.setdefault(report.benchmark, []).append(report.declared)
    made = [_layout(name, of, with_published) for name, of in found.items() if of or registry.is_shipped(name)]
    return [layout for layout in made if found[layout.benchmark] or layout.published]


def _layout(name: str, reports: Sequence[Declared], with_published: bool) -> Layout:
    """Return the layout of the reports of one benchmark, which may be of several of its versions; one that ships may
    have none."""
    cls = registry.find(name) if registry.is_shipped(name) else None
    own = [declared_of(cls)] if cls else []  # reports of earlier versions do not know what ranks their metrics
    of = reports or own
    metrics = {metric: unit for one in (*reversed(of), *own) for metric, unit in one.metrics.items()}
    order = {metric: metrics[metric] for one in of for metric in one.metrics}
    subsets = tuple(dict.fromkeys(subset for one in of for subset in one.subsets))
    published = cls.imports.published() if cls is not None and with_published else None
    return Layout(of[0].title, order, of[0].headline, subsets, of[0].invalid_as, name, published)


@dataclass(frozen=True, slots=True)
class Figure:
    """A value of a table, whether it covers all users of the tasks file, the report that it is of, if it is of one, and
    its place; `rank` is its place among the runs that are ranked together.

    Only complete figures whose `alike` is equal are ranked against each other; None is ranked with nothing. `by` ranks
    them: another metric's value, if the table's is `ranked_by` one; None where there is none. `following`
    is the share of the answers that `by` is over, None if it is unknown. `ranked` is the value of `by`, None where the
    metric ranks nothing (`is_rankable`), or a run by too few answers. `chance` is the chance level and its standard
    error; a run that is not `skilled` has no place. `bias` is that of the value by the number of users,
    where it is known.
    """

    value: MetricValue
    complete: bool
    alike: tuple[str, ...] | None
    report: Scored | None = None
    place: Standing | None = None
    by: MetricValue | None = None
    following: float | None = 1.0
    is_rankable: bool = True
    skilled: bool = True
    rank: Rank | None = None
    chance: tuple[float, float] | None = None
    bias: float | None = None

    @property
    def ranked(self) -> float | None:
        is_over_enough = self.following is not None and self.following >= ENOUGH
        return self.by.value if self.by and self.is_rankable and is_over_enough else None

    @property
    def shown(self) -> MetricValue:
        """Return the value that tables show: the one that ranks, where there is one."""
        return self.by or self.value


@dataclass(frozen=True, slots=True)
class Row:
    """`figures` has a key for each column; `reports` are those it was made of, none for a published one.

    `own` is the mean over the subsets that the run has, `over`; of a single one that figure itself, None for a
    published row. Its rank is among the runs that have the same subsets.
    """

    name: str
    figures: Mapping[str, Figure | None]
    reports: tuple[Scored, ...] = ()
    own: Figure | None = None
    over: tuple[str, ...] = ()

    @property
    def is_published(self) -> bool:
        return not self.reports

    @property
    def label(self) -> str:
        return f"{self.name} (published)" if self.is_published else self.name

    @property
    def rank_text(self) -> str:
        """Return the rank of its own mean; empty for none."""
        return self.own.rank.text if self.own and self.own.rank else ""

    @property
    def about(self) -> str:
        return "; ".join(dict.fromkeys(report.about for report in self.reports))


@dataclass(frozen=True)
class MetricTable:
    """`rows` are the runs by name, then what was published. `label` is the metric's name, with its benchmark's if two
    have one of that name. `last` is the average, or the only subset of any run. The ranks of the rows' own means are
    shown under `rank_head`."""

    layout: Layout
    metric: Metric
    label: str
    rows: tuple[Row, ...]
    last: str
    source: Published | None = None

    @property
    def benchmark(self) -> str:
        return self.layout.benchmark

    @property
    def columns(self) -> tuple[str, ...]:
        return self.layout.columns

    @property
    def runs(self) -> list[Row]:
        return [row for row in self.rows if not row.is_published]

    @property
    def reports(self) -> list[Scored]:
        return [report for row in self.rows for report in row.reports]

    @cached_property
    def rank_head(self) -> tuple[str, ...]:
        """Return the head of the column of ranks; empty where no run has any."""
        return ("rank",) if any(row.rank_text for row in self.rows) else ()

    def ranks(self, row: Row | None) -> tuple[str, ...]:
        """Return the cells of a row under `rank_head`."""
        return tuple(row.rank_text if row else "" for _ in self.rank_head)

    @property
    def title(self) -> str:
        """Return the metric with its unit, and the benchmark if the name alone is ambiguous."""
        return self.metric.title.replace(self.metric.name, self.label, 1)

    @property
    def figures(self) -> list[Figure]:
        return [figure for row in self.rows for figure in row.figures.values() if figure is not None]

    @property
    def is_ranked(self) -> bool:
        return any(figure.place for figure in self.figures)

    @property
    def ranked_subsets(self) -> dict[tuple[str, ...], list[str]]:
        """Return the names of the runs that are ranked in a mean over some of the subsets that any run has, by these;
        nothing where all ranks are in the column `last`."""
        found: dict[tuple[str, ...], list[str]] = {}
        for row in self.rows:
            if row.own and row.own.rank:
                found.setdefault(row.over, []).append(row.name)
        in_last = self.layout.subsets if self.last == AVERAGE else (self.last,)
        return {} if found.keys() <= {in_last} else found

    @property
    def same_mean(self) -> str | None:
        """Return what the mean of every run is called; None where they are over different subsets."""
        names = {self.mean_name(row.over) for row in self.rows if row.over}
        return names.pop() if len(names) == 1 else None

    def mean_name(self, subsets: tuple[str, ...]) -> str:
        """Return what a mean over subsets is called: the average of all, else their names."""
        return AVERAGE if len(subsets) > 1 and subsets == self.layout.subsets else ", ".join(subsets)

    @property
    def is_ranked_by_other(self) -> bool:
        """Return whether the values that rank are not those of the table."""
        return any(figure.shown.value != figure.value.value for figure in self.figures)

    def published(self, figure: Figure) -> str:
        """Return the metric's own value as text where the figure shows another, else nothing."""
        given, shown = (self.metric.text(of.value) for of in (figure.value, figure.shown))
        return given if given != shown else ""

    @property
    def chance(self) -> dict[str, tuple[float, float]]:
        """Return the chance level by column and its error, where that of all runs reads the same."""
        found = dict[str, tuple[float, float]]()
        for column in self.columns:
            of = [figure for row in self.rows if (figure := row.figures[column])]
            levels = [one.chance for one in of if one.chance is not None and (one.complete or len(of) == 1)]
            if levels and len({self.metric.text(value) for value, _ in levels}) == 1:
                found[column] = levels[0]
        return found


def tables(reports: Sequence[Scored], *, with_published: bool) -> list[MetricTable]:
    """Return those with a row, of every benchmark and metric, in the order of `layouts` and of the reports.

    A metric that others are ranked by has a table only where its values are not theirs.
    """
    made = [
        _table(layout, metric, [report for report in reports if report.benchmark == layout.benchmark])
        for layout in layouts(reports, with_published=with_published)
        for metric in layout.metrics.values()
    ]
    same = {(table.benchmark, table.metric.ranked_by) for table in made if not table.is_ranked_by_other}
    made = [table for table in made if table.rows and (table.benchmark, table.metric.name) not in same]
    times = Counter(table.label for table in made)
    return [
        replace(table, label=f"{table.label} ({table.benchmark})") if times[table.label] > 1 else table
        for table in made
    ]


def main(found: Sequence[MetricTable], *, with_ranking: bool = False) -> list[MetricTable]:
    """Return the tables of the main metrics of each benchmark, in its order, and those with published scores; with
    those of the metrics that these are ranked by, if wanted."""
    wanted = dict.fromkeys(
        (table.benchmark, one)
        for table in found
        for metric in (*table.layout.headline, *table.layout.printed)
        for one in (metric, table.layout.ranked_by(metric) if with_ranking else metric)
    )
    return [table for key in wanted for table in found if (table.benchmark, table.metric.name) == key]


def _table(layout: Layout, metric: Metric, reports: Sequence[Scored]) -> MetricTable:
    runs: dict[str, list[Scored]] = {}
    for report in reports:
        runs.setdefault(report.run, []).append(report)
    has = {name: of for name, of in runs.items() if any(metric.name in each.values for each in of)}
    rows = [_row(name, metric, layout, of) for name, of in has.items()]
    there = [column for column in layout.columns if any(row.figures[column] for row in rows)]
    last = there[0] if len(there) == 1 else layout.columns[-1]
    source = layout.published if layout.published and metric.name in layout.published.figures else None
    for model, values in source.figures[metric.name].items() if source else ():
        figures = {column: Figure(MetricValue(value), True, None) for column, value in values.items()}
        rows.append(Row(model, {**figures, **{column: None for column in layout.columns if column not in figures}}))
    return MetricTable(layout, metric, metric.name, _placed(rows, layout.columns, metric), last, source)


def _row(name: str, metric: Metric, layout: Layout, reports: Sequence[Scored]) -> Row:
    figures: dict[str, Figure | None] = dict.fromkeys(layout.subsets)
    for report in reports:
        if (value := report.values.get(metric.name)) is not None:
            prompt = (report.prompt, report.prompt_version, report.tasks, *report.files)
            alike = prompt if report.is_prompt_known else None
            ranking = metric.ranked_by or metric.name
            figures[report.subset] = Figure(
                *(value, report.complete, alike, report),
                by=report.values.get(ranking),
                following=report.following.get(ranking),
                is_rankable=not metric.unranked,
                skilled=not without_skill(report, metric, layout),
                chance=chance_of(report, metric.name),
                bias=report.bias.get(metric.name),
            )
    there = {subset: figure for subset, figure in figures.items() if figure is not None}
    own = _average(list(there.values()))
    if len(layout.subsets) > 1:
        figures[AVERAGE] = own if own and own.complete and len(there) == len(layout.subsets) else None
    return Row(name, figures, tuple(reports), own, tuple(there))


def without_skill(report: Scored, metric: Metric, layout: Layout) -> list[str]:
    """Return the headline figures that deny a run its place in a metric's table, since they are not better than their
    chance level, by their interval where they have one: a headline's own, and for any other metric each of them."""
    judged = (metric.name,) if metric.name in layout.headline else layout.headline
    return [name for name in judged if name in report.chance and not _is_better_than_chance(report, name, layout)]


def _is_better_than_chance(report: Scored, name: str, layout: Layout) -> bool:
    if (value := report.values.get(layout.ranked_by(name) or name)) is None:
        return False
    low, high = value.interval or (value.value, value.value)
    level, error = report.chance[name], report.chance_error.get(name, 0.0)
    if abs(value.value - level) <= SURE * error:
        return False
    return high < level if layout.metrics[name].lower_is_better else low > level


def _average(there: Sequence[Figure]) -> Figure | None:
    """Return the mean over subsets, which is complete if all of them are; of a single one its figure."""
    if len(there) < 2:
        return there[0] if there else None
    alike = [figure.alike for figure in there if figure.alike is not None]
    shares = [figure.following for figure in there if figure.following is not None]
    by = _mean([figure.by.value if figure.by else None for figure in there])
    return Figure(
        MetricValue(sum(figure.value.value for figure in there) / len(there)),
        all(figure.complete for figure in there),
        tuple(chain(*alike)) if len(alike) == len(there) else None,
        by=None if by is None else MetricValue(by),
        following=min(shares) if len(shares) == len(there) else None,
        is_rankable=all(figure.is_rankable for figure in there),
        skilled=all(figure.skilled for figure in there),
        chance=_mean_chance([figure.chance for figure in there]),
    )


def chance_of(report: Scored, name: str) -> tuple[float, float] | None:
    """Return the chance level of a metric and its standard error, 0 of an exact one; None without a level."""
    level = report.chance.get(name)
    return None if level is None else (level, report.chance_error.get(name, 0.0))


def _mean_chance(levels: Sequence[tuple[float, float] | None]) -> tuple[float, float] | None:
    """Return the mean of chance levels and its error, None if one is missing."""
    there = [level for level in levels if level is not None]
    if len(there) < len(levels):
        return None
    return fmean(value for value, _ in there), math.hypot(*(error for _, error in there)) / len(there)


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean, None if a value is missing."""
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if len(there) == len(values) else None


def _placed(rows: Sequence[Row], columns: Sequence[str], metric: Metric) -> tuple[Row, ...]:
    """Return the rows with the best and second best of each column marked, by the values that are shown: what looks
    equal is equal. A run without a place has no mark, and no other run has that of its value."""
    places: dict[tuple[int, str], Standing] = {}
    for column, group in groups(rows, columns):
        there = [figure for row in rows if row.reports and (figure := row.figures[column]) and figure.complete]
        values = {metric.shown(figure.shown.value) for figure in there}
        best = dict(zip(sorted(values, reverse=not metric.lower_is_better), Standing, strict=False))
        places |= {
            (number, column): best[value]
            for number, figure in group.items()
            if figure.ranked is not None and figure.skilled and (value := metric.shown(figure.ranked)) in best
        }
    return tuple(
        replace(
            row,
            figures={
                column: figure and replace(figure, place=places.get((number, column)))
                for column, figure in row.figures.items()
            },
        )
        for number, row in enumerate(rows)
    )


def groups(rows: Sequence[Row], columns: Sequence[str]) -> Iterator[tuple[str, dict[int, Figure]]]:
    """Yield each column with figures that compare, two or more, by the numbers of their rows."""
    for column in columns:
        yield from ((column, group) for group in _alike([(row.figures[column], ()) for row in rows]))


def own_groups(rows: Sequence[Row]) -> Iterator[tuple[tuple[str, ...], dict[int, Figure]]]:
    """Yield subsets with the own means of the rows that have exactly these and compare, by the numbers of the rows."""
    for group in _alike([(row.own, row.over) for row in rows]):
        yield rows[next(iter(group))].over, group


def _alike(figures: Iterable[tuple[Figure | None, tuple[str, ...]]]) -> Iterator[dict[int, Figure]]:
    """Yield the figures that compare, two or more, by their number; each is given with what they must have in common,
    besides."""
    found: dict[object, dict[int, Figure]] = {}
    for number, (figure, of) in enumerate(figures):
        if figure is not None and figure.complete and figure.alike is not None and figure.ranked is not None:
            found.setdefault((figure.alike, of), {})[number] = figure
    return (group for group in found.values() if len(group) > 1)
