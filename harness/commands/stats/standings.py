"""Figures of runs, metric by metric: which compare with each other, and which is the best and
second best of these.

Only complete figures compare, of the same prompt in the same version (of a user's own prompt or
agent, of files of the same SHA-256), on the same tasks file.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import fmean
from typing import Literal, NamedTuple, TypeVar

from harness.benchmark import Metric, headline_of, metrics_of
from harness.benchmarks import registry
from harness.commands.stats.run_reports import RunReport
from harness.model import Published
from harness.scoring.reports import Value

AVERAGE = "Avg."
MEAN = "mean of the subsets"
"""The name of a mean where runs have different subsets."""
SURE = 2
"""Errors of a drawn chance level by which a value must be away from it."""
ENOUGH = 0.9
"""Share of the answers from which a metric that leaves some out ranks a run: below it, it would be
about those that the model chose to give."""


Place = Literal["best", "second"]


class Rank(NamedTuple):
    """The place of a run by its value, and whether it is shown to be worse than the best (equal
    values share a place)."""

    place: int
    separable: bool

    @property
    def text(self) -> str:
        """Return the place, with ` =` where the run is not the best and not separable from it."""
        return f"{self.place}{'' if self.separable or self.place == 1 else ' ='}"


@dataclass(frozen=True, slots=True)
class Figure:
    """The value of a run in a metric, on a subset or on average.

    Only complete figures whose `alike` is equal compare; None compares with nothing. `by` is the
    value that ranks, of another metric if the metric is `ranked_by` one, None where it has none;
    `ranked` is the same number, None for a run or metric that is not ranked. `following` is the
    share of the answers that `by` is over, None if it is unknown. `chance` is the chance level and
    its standard error; a run that is not `skilled` has no `place`. `rank` is its place among the
    runs that are ranked together.
    """

    value: Value
    complete: bool = True
    alike: tuple[str, ...] | None = None
    report: RunReport | None = None
    by: Value | None = None
    ranked: float | None = None
    following: float | None = 1.0
    skilled: bool = True
    chance: tuple[float, float] | None = None
    bias: float | None = None
    place: Place | None = None
    rank: Rank | None = None

    @property
    def shown(self) -> Value:
        """Return the value that tables show: the one that ranks, where there is one."""
        return self.by or self.value


@dataclass(frozen=True, slots=True)
class Row:
    """`figures` has a key for each column; `reports` are those it is made of, none for a published
    one.

    `mean` is over the `subsets` that the run has; of a single one it is that figure itself. Its
    rank is among the runs that have the same subsets.
    """

    name: str
    figures: Mapping[str, Figure | None]
    reports: tuple[RunReport, ...] = ()
    mean: Figure | None = None
    subsets: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return self.name if self.reports else f"{self.name} (published)"

    @property
    def rank(self) -> str:
        """Return the rank of its mean as text; empty for none."""
        return self.mean.rank.text if self.mean and self.mean.rank else ""


@dataclass(frozen=True)
class Standing:
    """The figures of one metric of a benchmark. `rows` are the runs by name, then what was
    published.

    `subsets`, in the benchmark's order, are all that the rows could have. `label` is the metric's
    name, with its benchmark's if two have one of that name. `headline` names the main ones of the
    benchmark's `metrics`.
    """

    benchmark: str
    metric: Metric
    label: str
    metrics: Mapping[str, Metric]
    headline: tuple[str, ...]
    subsets: tuple[str, ...]
    published: Published | None
    rows: tuple[Row, ...] = ()

    @property
    def all_columns(self) -> tuple[str, ...]:
        return (*self.subsets, AVERAGE) if len(self.subsets) > 1 else self.subsets

    @property
    def columns(self) -> list[str]:
        """Return the columns in which a row has a figure."""
        return [name for name in self.all_columns if self.in_column(name)]

    @property
    def source(self) -> Published | None:
        """Return where published figures of the metric are from."""
        return (
            self.published
            if self.published and self.metric.name in self.published.figures
            else None
        )

    @property
    def title(self) -> str:
        """Return the metric with its unit, and the benchmark if the name alone is ambiguous."""
        return self.metric.title.replace(self.metric.name, self.label, 1)

    @property
    def ranking(self) -> str:
        """Return the name of the metric that ranks."""
        return self.metric.ranked_by or self.metric.name

    @property
    def runs(self) -> list[Row]:
        return [row for row in self.rows if row.reports]

    @property
    def reports(self) -> list[RunReport]:
        return [report for row in self.rows for report in row.reports]

    @property
    def figures(self) -> list[Figure]:
        return [figure for row in self.rows for figure in row.figures.values() if figure]

    def in_column(self, column: str) -> list[Figure]:
        return [figure for row in self.rows if (figure := row.figures[column])]

    def as_published(self, figure: Figure) -> str:
        """Return the metric's own value as text where another ranks; empty where both read the
        same."""
        own, shown = (self.metric.text(value.value) for value in (figure.value, figure.shown))
        return own if own != shown else ""

    @property
    def is_ranked_by_other(self) -> bool:
        """Return whether the values that rank are not those of the metric."""
        return any(figure.shown.value != figure.value.value for figure in self.figures)

    @property
    def subsets_ranked_apart(self) -> dict[tuple[str, ...], list[str]]:
        """Return the runs that are ranked in a mean over some of the subsets, by these; nothing
        where all are in one column."""
        runs: dict[tuple[str, ...], list[str]] = {}
        for row in self.rows:
            if row.rank:
                runs.setdefault(row.subsets, []).append(row.name)
        only = tuple(self.columns) if len(self.columns) == 1 else self.subsets
        return {} if runs.keys() <= {only} else runs

    @property
    def mean(self) -> str:
        """Return what the means of all runs are called."""
        names = {row.subsets for row in self.runs if row.subsets}
        only = names.pop() if len(names) == 1 else ()
        return only[0] if len(only) == 1 else AVERAGE if only == self.subsets else MEAN

    @property
    def chance(self) -> dict[str, tuple[float, float]]:
        """Return the chance level by column and its error, where that of all runs reads the same:
        of complete runs, and of partial ones where there are no others."""
        levels = dict[str, tuple[float, float]]()
        for column in self.columns:
            figures = [figure for figure in self.in_column(column) if figure.chance]
            chosen = [figure for figure in figures if figure.complete] or figures
            texts = {
                self.metric.text(figure.chance[0]): figure.chance
                for figure in chosen
                if figure.chance
            }
            if len(texts) == 1:
                levels[column] = texts.popitem()[1]
        return levels


def standings(
    reports: Sequence[RunReport], *, published: bool, subsets: Sequence[str] = ()
) -> list[Standing]:
    """Return those of every benchmark and metric that have a row, benchmarks that ship first; on
    some subsets alone, if these are named.

    A metric that others are ranked by is left out if its values are theirs.
    """
    of_benchmark: dict[str, list[RunReport]] = {name: [] for name in registry.names()}
    for report in reports:
        if not subsets or report.subset in subsets:
            of_benchmark.setdefault(report.report.benchmark, []).append(report)
    found = [
        standing
        for name, some in of_benchmark.items()
        for standing in _of_benchmark(name, some, published, subsets)
    ]
    same = {
        (standing.benchmark, standing.metric.ranked_by)
        for standing in found
        if not standing.is_ranked_by_other
    }
    found = [
        standing for standing in found if (standing.benchmark, standing.metric.name) not in same
    ]
    times = Counter(standing.label for standing in found)
    return [
        replace(standing, label=f"{standing.label} ({standing.benchmark})")
        if times[standing.label] > 1
        else standing
        for standing in found
    ]


def _of_benchmark(
    name: str, reports: Sequence[RunReport], with_published: bool, chosen: Sequence[str]
) -> Iterator[Standing]:
    """Yield the standings of one benchmark, whose reports may be of several of its versions."""
    shipped = registry.find(name) if registry.is_shipped(name) else None
    published = shipped.imports.published() if shipped and with_published else None
    if not reports and not published:
        return
    metrics = {
        metric: unit for report in reversed(reports) for metric, unit in report.report.units.items()
    }
    order: Iterable[str] = dict.fromkeys(
        metric for report in reports for metric in report.report.units
    )
    subsets: Iterable[str] = chain.from_iterable(report.report.subsets for report in reports)
    headline = reports[0].report.headline if reports else ()
    if shipped:
        # Reports of earlier versions do not know what ranks their metrics.
        metrics |= metrics_of(shipped)
        if not reports:
            order, subsets, headline = metrics, shipped.subsets, headline_of(shipped)
    known = tuple(dict.fromkeys(subsets))
    columns = tuple(subset for subset in known if not chosen or subset in chosen)
    runs: dict[str, list[RunReport]] = {}
    for report in reports:
        runs.setdefault(report.run, []).append(report)
    for metric in order:
        standing = Standing(name, metrics[metric], metric, metrics, headline, columns, published)
        rows = [
            _run_row(run, standing, some)
            for run, some in runs.items()
            if any(metric in report.report.values for report in some)
        ]
        if standing.source:
            # A published average is over all subsets.
            names = standing.all_columns if columns == known else columns
            rows += [
                _published_row(*row, standing, names)
                for row in standing.source.figures[metric].items()
            ]
        if rows:
            yield _placed(replace(standing, rows=tuple(rows)))


def _run_row(run: str, standing: Standing, reports: Sequence[RunReport]) -> Row:
    figures: dict[str, Figure | None] = dict.fromkeys(standing.all_columns)
    for report in reports:
        figures[report.subset] = _figure(standing, report)
    there = {subset: figure for subset, figure in figures.items() if figure}
    mean = _mean_figure(list(there.values()))
    if AVERAGE in figures and mean and mean.complete and len(there) == len(standing.subsets):
        figures[AVERAGE] = mean
    return Row(run, figures, tuple(reports), mean, tuple(there))


def _published_row(
    model: str, values: Mapping[str, float], standing: Standing, columns: Sequence[str]
) -> Row:
    figures = {name: Figure(Value(value)) for name, value in values.items() if name in columns}
    return Row(
        model, figures | {name: None for name in standing.all_columns if name not in figures}
    )


def _figure(standing: Standing, report: RunReport) -> Figure | None:
    name, values = standing.metric.name, report.report.values
    value, by = values.get(name), values.get(standing.ranking)
    if value is None or value.value is None:
        return None
    by = by if by and by.value is not None else None
    following = report.following(standing.ranking)
    is_ranked = not standing.metric.unranked and following is not None and following >= ENOUGH
    return Figure(
        value,
        report.complete,
        report.alike,
        report,
        by=by,
        ranked=by.value if by and is_ranked else None,
        following=following,
        skilled=not without_skill(report, standing),
        chance=_chance(report, name),
        bias=report.report.bias.get(name),
    )


def without_skill(report: RunReport, standing: Standing) -> list[str]:
    """Return the headline figures that deny a run its place in a metric's table, since they are not
    better than their chance level, by their interval where they have one: a headline's own, and for
    any other metric each of them."""
    name, headline = standing.metric.name, standing.headline
    judged = (name,) if name in headline else headline
    return [
        name
        for name in judged
        if name in report.report.chance and not _is_better(report, standing.metrics[name])
    ]


def _is_better(report: RunReport, metric: Metric) -> bool:
    """Return whether a figure is shown to be better than its chance level."""
    value = report.report.values.get(metric.ranked_by or metric.name)
    if value is None or value.value is None:
        return False
    low, high = value.ci95 or (value.value, value.value)
    level, error = (
        report.report.chance[metric.name],
        report.report.chance_error.get(metric.name, 0.0),
    )
    if abs(value.value - level) <= SURE * error:
        return False
    return high < level if metric.lower_is_better else low > level


def _chance(report: RunReport, name: str) -> tuple[float, float] | None:
    """Return the chance level of a metric and its standard error, 0 of an exact one; None without a
    level."""
    level = report.report.chance.get(name)
    return None if level is None else (level, report.report.chance_error.get(name, 0.0))


def _mean_figure(figures: Sequence[Figure]) -> Figure | None:
    """Return the mean over subsets, which is complete if all of them are; of a single one its
    figure."""
    if len(figures) < 2:
        return figures[0] if figures else None
    by = _mean([figure.by.value if figure.by else None for figure in figures])
    return Figure(
        Value(_mean([figure.value.value for figure in figures])),
        all(figure.complete for figure in figures),
        _all([figure.alike for figure in figures], lambda alike: tuple(chain(*alike))),
        by=None if by is None else Value(by),
        ranked=_mean([figure.ranked for figure in figures]),
        following=_all([figure.following for figure in figures], min),
        skilled=all(figure.skilled for figure in figures),
        chance=_all([figure.chance for figure in figures], _mean_chance),
    )


T = TypeVar("T")
R = TypeVar("R")


def _all(values: Sequence[T | None], combine: Callable[[list[T]], R]) -> R | None:
    """Return values combined, None if one is missing."""
    there = [value for value in values if value is not None]
    return combine(there) if len(there) == len(values) else None


def _mean(values: Sequence[float | None]) -> float | None:
    return _all(values, lambda there: sum(there) / len(there))


def _mean_chance(levels: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the mean of independent chance levels, and its standard error."""
    return fmean(level for level, _ in levels), math.hypot(*(error for _, error in levels)) / len(
        levels
    )


def main(found: Sequence[Standing], *, with_ranking: bool = False) -> list[Standing]:
    """Return the main metrics of each benchmark, in its order, and those with published scores;
    with those of the metrics that these are ranked by, if wanted."""
    wanted = dict[tuple[str, str], None]()
    for standing in found:
        for name in (
            *standing.headline,
            *(standing.published.figures if standing.published else ()),
        ):
            wanted[standing.benchmark, name] = None
            if with_ranking and name in standing.metrics:
                wanted[standing.benchmark, standing.metrics[name].ranked_by or name] = None
    by_name = {(standing.benchmark, standing.metric.name): standing for standing in found}
    return [by_name[key] for key in wanted if key in by_name]


def _placed(standing: Standing) -> Standing:
    """Return a standing with the best and second best of each column marked, by the values that are
    shown: what looks equal is equal. A run without a place has no mark, and no other run has that
    of its value."""
    metric, placed = standing.metric, [dict(row.figures) for row in standing.rows]
    for column, subsets, group in groups(standing):
        if column == AVERAGE and not (
            subsets == standing.subsets and AVERAGE in standing.all_columns
        ):
            continue
        complete = [row.figures[column] for row in standing.runs]
        values = {
            metric.shown(figure.shown.value or 0.0)
            for figure in complete
            if figure and figure.complete
        }
        ordered = sorted(values, reverse=not metric.lower_is_better)
        places: dict[float, Place] = dict(zip(ordered, ("best", "second"), strict=False))
        for number, figure in group.items():
            if figure.skilled:
                placed[number][column] = replace(
                    figure, place=places.get(metric.shown(figure.ranked or 0.0))
                )
    rows = zip(standing.rows, placed, strict=True)
    return replace(standing, rows=tuple(replace(row, figures=figures) for row, figures in rows))


def groups(standing: Standing) -> Iterator[tuple[str, tuple[str, ...], dict[int, Figure]]]:
    """Yield figures that compare, two or more, by the numbers of their rows, with their column and
    what they are over: those of each subset, and under `AVERAGE` the means of the rows that have
    exactly the same subsets."""
    alike: dict[tuple[str, tuple[str, ...], tuple[str, ...]], dict[int, Figure]] = {}
    for number, row in enumerate(standing.rows):
        of_subsets = [(subset, (subset,), row.figures[subset]) for subset in standing.subsets]
        for column, subsets, figure in (*of_subsets, (AVERAGE, row.subsets, row.mean)):
            if (
                figure
                and figure.complete
                and figure.alike is not None
                and figure.ranked is not None
            ):
                alike.setdefault((column, subsets, figure.alike), {})[number] = figure
    return (
        (column, subsets, group) for (column, subsets, _), group in alike.items() if len(group) > 1
    )
