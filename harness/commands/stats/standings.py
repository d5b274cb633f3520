"""Figures of runs, metric by metric: which compare with each other, and which is the best and
second best of these.

Only complete figures compare, of the same prompt in the same version (of a user's own prompt or
agent, of files of the same SHA-256), on the same tasks file.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import fmean
from typing import Literal, NamedTuple, TypeVar

from harness.benchmark import Metric, headline_of, metrics_of
from harness.benchmarks import registry
from harness.commands.stats.run_reports import RunReport, by_run, grouped
from harness.model import Published
from harness.scoring.reports import Value

AVERAGE = "Avg."
MEAN = "mean of the subsets"
"""The name of a mean where runs have different subsets."""
# A drawn level is within two standard errors of the true one some 19 times in 20.
CHANCE_ERRORS = 2
"""Errors of a drawn chance level by which a value must be away from it."""
MIN_FOLLOWING = 0.9
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
        return str(self.place) if self.separable or self.place == 1 else f"{self.place} ="


@dataclass(frozen=True, slots=True)
class StandingFigure:
    """The value of a run in a metric, on a subset or on average.

    Only complete figures whose `comparison_key` is equal compare; None compares with nothing.
    `ranking_value` is the value that ranks, of another metric if the metric is `ranked_by` one,
    None where it has none; a figure that has one may not be `ranked` all the same. `following` is
    the share of the answers that `ranking_value` is over, None if it is unknown. `chance` is the
    chance level and its standard error; a run that is not `skilled` has no `place`. `rank` is its
    place among the runs that are ranked together.
    """

    value: Value
    complete: bool = True
    comparison_key: tuple[str, ...] | None = None
    report: RunReport | None = None
    ranking_value: Value | None = None
    ranked: bool = False
    following: float | None = 1.0
    skilled: bool = True
    chance: tuple[float, float] | None = None
    bias: float | None = None
    place: Place | None = None
    rank: Rank | None = None

    @property
    def shown(self) -> Value:
        """Return the value that tables show: the one that ranks, where there is one."""
        return self.ranking_value or self.value

    @property
    def number(self) -> float:
        """Return the value that tables show as a number: a figure always has one."""
        return self.shown.value or 0.0

    @property
    def is_comparable(self) -> bool:
        return self.complete and self.ranked and self.comparison_key is not None


@dataclass(frozen=True, slots=True)
class StandingRow:
    """The figures of a run, or published ones, with a key for each column; `reports` are those that
    they are from, none for published ones.

    `mean` is over the `subsets` that the run has; of a single one it is that figure itself. Its
    rank is among the runs that have the same subsets.
    """

    name: str
    figures: Mapping[str, StandingFigure | None]
    reports: tuple[RunReport, ...] = ()
    mean: StandingFigure | None = None
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
    rows: tuple[StandingRow, ...] = ()

    @property
    def all_columns(self) -> tuple[str, ...]:
        return (*self.subsets, AVERAGE) if len(self.subsets) > 1 else self.subsets

    @property
    def columns(self) -> list[str]:
        """Return the columns in which a row has a figure."""
        return list(filter(self.in_column, self.all_columns))

    @property
    def source(self) -> Published | None:
        """Return where published figures of the metric are from."""
        if self.published and self.metric.name in self.published.figures:
            return self.published

        return None

    @property
    def title(self) -> str:
        """Return the metric with its unit, and the benchmark if the name alone is ambiguous."""
        return self.metric.title.replace(self.metric.name, self.label, 1)

    @property
    def ranking(self) -> str:
        """Return the name of the metric that ranks."""
        return self.metric.ranking

    @property
    def runs(self) -> list[StandingRow]:
        return [row for row in self.rows if row.reports]

    @property
    def reports(self) -> list[RunReport]:
        return list(chain.from_iterable(row.reports for row in self.rows))

    @property
    def figures(self) -> list[StandingFigure]:
        figures = chain.from_iterable(row.figures.values() for row in self.rows)
        return list(filter(None, figures))

    def in_column(self, column: str) -> list[StandingFigure]:
        return list(filter(None, (row.figures[column] for row in self.rows)))

    def as_published(self, figure: StandingFigure) -> str:
        """Return the metric's own value as text where another ranks; empty where both read the
        same."""
        published = self.metric.text(figure.value.value)
        return "" if published == self.metric.text(figure.shown.value) else published

    @property
    def is_ranked_by_other(self) -> bool:
        """Return whether the values that rank are not those of the metric."""
        return any(figure.shown.value != figure.value.value for figure in self.figures)

    @property
    def subsets_ranked_apart(self) -> dict[tuple[str, ...], list[str]]:
        """Return the runs that are ranked in a mean over some of the subsets, by these; nothing
        where all are in one column."""
        columns = tuple(self.columns)
        common_subsets = columns if len(columns) == 1 else self.subsets
        runs = grouped((row.subsets, row.name) for row in self.rows if row.rank)

        return {} if runs.keys() <= {common_subsets} else runs

    @property
    def mean(self) -> str:
        """Return what the means of all runs are called."""
        combinations = {row.subsets for row in self.runs if row.subsets}
        if len(combinations) != 1:
            return MEAN

        subsets = combinations.pop()
        if len(subsets) == 1:
            return subsets[0]

        return AVERAGE if subsets == self.subsets else MEAN

    @property
    def chance(self) -> dict[str, tuple[float, float]]:
        """Return the chance level by column and its error, where that of all runs reads the same:
        of complete runs, and of partial ones where there are no others."""
        common_levels = dict[str, tuple[float, float]]()
        for column in self.columns:
            levels_by_completeness: dict[bool, dict[str, tuple[float, float]]] = {}
            for figure in self.in_column(column):
                if figure.chance:
                    levels = levels_by_completeness.setdefault(figure.complete, {})
                    levels[self.metric.text(figure.chance[0])] = figure.chance

            levels = levels_by_completeness.get(True) or levels_by_completeness.get(False, {})
            if len(levels) == 1:
                common_levels[column] = levels.popitem()[1]

        return common_levels


def standings(
    reports: Sequence[RunReport],
    *,
    published: bool,
    subsets: Sequence[str] = (),
) -> list[Standing]:
    """Return those of every benchmark and metric that have a row, benchmarks that ship first; on
    some subsets alone, if these are named.

    A metric that others are ranked by is left out if its values are theirs.
    """
    # Also without a report, since their published scores may be wanted.
    reports_by_benchmark: dict[str, list[RunReport]] = {name: [] for name in registry.names()}
    for report in reports:
        if not subsets or report.subset in subsets:
            reports_by_benchmark.setdefault(report.report.benchmark, []).append(report)

    all_standings: list[Standing] = []
    for name, of_benchmark in reports_by_benchmark.items():
        all_standings += _standings_of_benchmark(name, of_benchmark, published, subsets)

    duplicates = set()
    for standing in all_standings:
        if not standing.is_ranked_by_other:
            duplicates.add((standing.benchmark, standing.metric.ranked_by))

    distinct = []
    for standing in all_standings:
        if (standing.benchmark, standing.metric.name) not in duplicates:
            distinct.append(standing)

    return _with_unique_labels(distinct)


def _with_unique_labels(all_standings: Sequence[Standing]) -> list[Standing]:
    """Return standings whose labels name the benchmark too where two have a metric of one name."""
    times = Counter(standing.label for standing in all_standings)
    labelled = []
    for standing in all_standings:
        label = standing.label
        if times[label] > 1:
            label = f"{label} ({standing.benchmark})"

        labelled.append(replace(standing, label=label))

    return labelled


def _standings_of_benchmark(
    name: str,
    reports: Sequence[RunReport],
    with_published: bool,
    chosen: Sequence[str],
) -> Iterator[Standing]:
    """Yield the standings of one benchmark, whose reports may be of several of its versions."""
    shipped = registry.find(name) if registry.is_shipped(name) else None
    published = shipped.imports.published() if shipped and with_published else None
    if not reports and not published:
        return

    metrics, known_subsets = _metrics_and_subsets(reports)
    order = list(metrics)
    headline = reports[0].report.headline if reports else ()

    if shipped:
        # Reports of earlier versions do not know what ranks their metrics.
        metrics |= metrics_of(shipped)
        if not reports:
            order = list(metrics)
            known_subsets = tuple(shipped.subsets)
            headline = headline_of(shipped)

    subsets = tuple(subset for subset in known_subsets if not chosen or subset in chosen)
    for metric in order:
        standing = Standing(
            name,
            metrics[metric],
            metric,
            metrics,
            headline,
            subsets,
            published,
        )
        # A published average is over all subsets.
        columns = standing.all_columns if subsets == known_subsets else subsets
        rows = (*_run_rows(standing, reports), *_published_rows(standing, columns))

        if rows:
            yield _with_places(replace(standing, rows=rows))


def _metrics_and_subsets(
    reports: Sequence[RunReport],
) -> tuple[dict[str, Metric], tuple[str, ...]]:
    """Return what the reports have, by first occurrence, which also has the unit."""
    metrics: dict[str, Metric] = {}
    subsets: dict[str, None] = {}
    for report in reports:
        for name, metric in report.report.units.items():
            metrics.setdefault(name, metric)

        subsets |= dict.fromkeys(report.report.subsets)

    return metrics, tuple(subsets)


def _run_rows(standing: Standing, reports: Sequence[RunReport]) -> Iterator[StandingRow]:
    """Yield a row for each run whose reports have the metric."""
    for run, reports_of_run in by_run(reports).items():
        if any(standing.metric.name in report.report.values for report in reports_of_run):
            yield _run_row(run, standing, reports_of_run)


def _run_row(
    run: str,
    standing: Standing,
    reports: Sequence[RunReport],
) -> StandingRow:
    figures: dict[str, StandingFigure | None] = dict.fromkeys(standing.all_columns)
    for report in reports:
        figures[report.subset] = _figure(standing, report)

    by_subset = {subset: figure for subset, figure in figures.items() if figure}
    mean = _mean_figure(list(by_subset.values()))
    has_all_subsets = len(by_subset) == len(standing.subsets)

    if AVERAGE in figures and has_all_subsets and mean and mean.complete:
        figures[AVERAGE] = mean

    return StandingRow(
        run,
        figures,
        tuple(reports),
        mean,
        tuple(by_subset),
    )


def _published_rows(standing: Standing, columns: Sequence[str]) -> Iterator[StandingRow]:
    if not standing.source:
        return

    for model, values in standing.source.figures[standing.metric.name].items():
        figures: dict[str, StandingFigure | None] = {}
        for column, value in values.items():
            if column in columns:
                figures[column] = StandingFigure(Value(value))

        # Columns stay in the order in which they were printed.
        for column in standing.all_columns:
            figures.setdefault(column, None)
        yield StandingRow(model, figures)


def _figure(standing: Standing, report: RunReport) -> StandingFigure | None:
    name = standing.metric.name
    values = report.report.values
    value = values.get(name)

    if value is None or value.value is None:
        return None

    ranking_value = values.get(standing.ranking)
    if ranking_value and ranking_value.value is None:
        ranking_value = None

    following = report.following(standing.ranking)
    # A few answers that the model chose to give say nothing about the others.
    follows_rules = following is not None and following >= MIN_FOLLOWING
    has_value = ranking_value is not None

    return StandingFigure(
        value,
        report.complete,
        report.comparison_key,
        report,
        ranking_value=ranking_value,
        ranked=has_value and follows_rules and not standing.metric.unranked,
        following=following,
        skilled=not metrics_without_skill(report, standing),
        chance=_chance(report, name),
        bias=report.report.bias.get(name),
    )


def metrics_without_skill(report: RunReport, standing: Standing) -> list[str]:
    """Return the headline figures that deny a run its place in a metric's table, since they are not
    better than their chance level, by their interval where they have one: a headline's own, and for
    any other metric each of them."""
    headline = standing.headline
    judged = (standing.metric.name,) if standing.metric.name in headline else headline

    def lacks_skill(name: str) -> bool:
        chance = _chance(report, name)
        return chance is not None and not _is_better(report, standing.metrics[name], chance)

    return list(filter(lacks_skill, judged))


def _is_better(
    report: RunReport,
    metric: Metric,
    chance: tuple[float, float],
) -> bool:
    """Return whether a figure is shown to be better than its chance level."""
    value = report.report.values.get(metric.ranking)
    if value is None or value.value is None:
        return False

    level, error = chance
    if abs(value.value - level) <= CHANCE_ERRORS * error:
        return False

    low, high = value.ci95 or (value.value, value.value)

    return high < level if metric.lower_is_better else low > level


def _chance(report: RunReport, name: str) -> tuple[float, float] | None:
    """Return the chance level of a metric and its standard error, 0 of an exact one; None without a
    level."""
    if name not in report.report.chance:
        return None

    return report.report.chance[name], report.report.chance_error.get(name, 0.0)


def _mean_figure(figures: Sequence[StandingFigure]) -> StandingFigure | None:
    """Return the mean over subsets, which is complete if all of them are; of a single one its
    figure."""
    if len(figures) < 2:
        return next(iter(figures), None)

    return StandingFigure(
        _mean([figure.value for figure in figures]),
        all(figure.complete for figure in figures),
        _combined([figure.comparison_key for figure in figures], lambda keys: tuple(chain(*keys))),
        ranking_value=_combined([figure.ranking_value for figure in figures], _mean),
        ranked=all(figure.ranked for figure in figures),
        following=_combined([figure.following for figure in figures], min),
        skilled=all(figure.skilled for figure in figures),
        chance=_combined([figure.chance for figure in figures], _mean_chance),
    )


T = TypeVar("T")
R = TypeVar("R")


def _combined(values: Sequence[T | None], combine: Callable[[list[T]], R]) -> R | None:
    """Return values combined, None if one is missing."""
    present = [value for value in values if value is not None]
    return combine(present) if len(present) == len(values) else None


def _mean(values: Sequence[Value]) -> Value:
    """Return the mean of values that are all defined, without an interval."""
    return Value(sum(value.value or 0.0 for value in values) / len(values))


def _mean_chance(chances: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the mean of independent chance levels, and its standard error."""
    levels, errors = zip(*chances, strict=True)
    return fmean(levels), math.hypot(*errors) / len(errors)


def main_standings(
    all_standings: Sequence[Standing], *, with_ranking: bool = False
) -> list[Standing]:
    """Return the main metrics of each benchmark, in its order, and those with published scores;
    with those of the metrics that these are ranked by, if wanted."""
    wanted = dict[tuple[str, str], None]()
    by_name: dict[tuple[str, str], Standing] = {}
    for standing in all_standings:
        by_name[standing.benchmark, standing.metric.name] = standing
        published = standing.published.figures if standing.published else ()
        for name in (*standing.headline, *published):
            wanted[standing.benchmark, name] = None
            if with_ranking and name in standing.metrics:
                wanted[standing.benchmark, standing.metrics[name].ranking] = None

    return [by_name[key] for key in wanted if key in by_name]


def _with_places(standing: Standing) -> Standing:
    """Return a standing with the best and second best of each column marked. A run without skill
    has no mark, and no other run has that of its value."""
    figures_by_row = [dict(row.figures) for row in standing.rows]
    for group in comparable_groups(standing):
        places = _places(standing, group.column)
        for number, figure in group.figures.items():
            figures = figures_by_row[number]
            # A mean over some of the subsets is in no column.
            if figure.skilled and figures.get(group.column):
                place = places.get(standing.metric.shown(figure.number))
                figures[group.column] = replace(figure, place=place)

    rows = map(lambda row, figures: replace(row, figures=figures), standing.rows, figures_by_row)

    return replace(standing, rows=tuple(rows))


def _places(standing: Standing, column: str) -> dict[float, Place]:
    """Return the places of the best values of a column, as they are shown: what looks equal is
    equal."""
    values = set()
    for row in standing.runs:
        figure = row.figures.get(column)
        # Also of runs that get no mark: otherwise the next one would look like the best.
        if figure and figure.complete:
            values.add(standing.metric.shown(figure.number))

    ordered = sorted(values, reverse=not standing.metric.lower_is_better)

    return dict(zip(ordered, ("best", "second"), strict=False))


class ComparableGroup(NamedTuple):
    """Figures that compare with each other, by the numbers of their rows: those on one subset, the
    `column`, or under `AVERAGE` the means of the rows that have exactly these `subsets`."""

    column: str
    subsets: tuple[str, ...]
    figures: dict[int, StandingFigure]


def comparable_groups(standing: Standing) -> list[ComparableGroup]:
    """Return the groups of two or more figures."""
    groups: dict[tuple[object, ...], ComparableGroup] = {}
    for number, row in enumerate(standing.rows):
        figures = {subset: row.figures[subset] for subset in standing.subsets}
        # Means over some of the subsets compare, too, although they are in no column.
        figures[AVERAGE] = row.mean
        for column, figure in figures.items():
            if figure and figure.is_comparable:
                subsets = row.subsets if column == AVERAGE else (column,)
                key = column, subsets, figure.comparison_key
                group = groups.setdefault(key, ComparableGroup(column, subsets, {}))
                group.figures[number] = figure

    return [group for group in groups.values() if len(group.figures) > 1]
