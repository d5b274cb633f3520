"""What the choice of users leaves open in tables: intervals of averages, and ranks of runs.

All of it is made of the records of the runs (docs/statistics.md, Leaderboard). A run whose records cannot be used keeps
its figures, and has none of this.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np

from harness.analysis.saved_runs import SavedRun
from harness.benchmark import Metric
from harness.benchmarks import registry
from harness.commands.compare import sides as runs
from harness.commands.compare.figures import Stratum, worse_than_best
from harness.commands.compare.sides import Side, Subset
from harness.commands.stats.footnotes import bounded
from harness.commands.stats.reports import MetricValue, Scored
from harness.commands.stats.tables import AVERAGE, Figure, MetricTable, Rank, Row, groups, own_groups
from harness.errors import BadInput, HarnessError
from harness.scoring.bootstrap import Array
from harness.scoring.intervals import interval, is_approximate, moments, parts
from harness.scoring.rows import having
from harness.scoring.scorer import ROWS_LIMIT
from harness.store.files import RunFiles
from harness.store.manifest import load
from harness.ui.streams import tell

MANY = 50_000
"""Records that take some seconds to read."""


def with_uncertainty(found: Sequence[MetricTable], results: Path) -> tuple[list[MetricTable], list[str]]:
    """Return tables with what the records of their runs, below a results folder, say of the uncertainty; and sentences
    on the runs whose records say nothing."""
    needed = chain.from_iterable(map(_rows_needed, found))
    records = _records((report for row in needed for report in row.reports), results)
    return [replace(table, rows=_rows(table, records)) for table in found], records.sentences()


def _is_main(table: MetricTable) -> bool:
    names = {name for main in table.layout.headline for name in (main, table.layout.ranked_by(main))}
    return table.metric.name in names


def _rows_needed(table: MetricTable) -> Iterator[Row]:
    """Yield the runs that are ranked, or have a mean over subsets."""
    ranked = {number for _, group in groups(table.rows, table.columns) for number in group}
    for number, row in enumerate(table.rows):
        if number in ranked or (row.own and row.own.complete and len(row.over) > 1):
            yield row


# Records


@dataclass(frozen=True, slots=True, eq=False)
class _Read:
    """The records of a run on one subset; `parts` are those of its users in each metric, and in what ranks each metric,
    by name; `compared` are the names of the metrics by what ranks them."""

    side: Side
    compared: Mapping[str, str]
    parts: Mapping[str, Array]


@dataclass(frozen=True, slots=True, eq=False)
class _Records:
    """The records by run and subset, and for each run why some cannot be used."""

    read: Mapping[tuple[str, str], _Read]
    unusable: dict[str, str]

    def has(self, run: str, subsets: Iterable[str]) -> bool:
        return all((run, subset) in self.read for subset in subsets)

    def parts(self, run: str, subset: str, metric: str) -> Array:
        """Return the users' parts in a metric; none if it is not made of sums over users."""
        return self.read[run, subset].parts.get(metric, np.empty(0))

    def separable(self, best: str, others: Sequence[str], subsets: Sequence[str], metric: str) -> list[bool]:
        """Return which runs are shown to be worse than the best in the mean of a metric over subsets. Raise `BadInput`
        if they do not compare."""
        sides = [[self.read[run, subset].side for run in (best, *others)] for subset in subsets]
        figures = [runs.figures([side.of for side in of], None) for of in sides]
        pairs = [
            [Stratum.of(of[0], of[place], each) for of, each in zip(sides, figures, strict=True)]
            for place in range(1, 1 + len(others))
        ]
        return worse_than_best(pairs, figures[0], metric)

    def sentences(self) -> list[str]:
        """Return which runs have no ranks, once for each reason."""
        of: dict[str, list[str]] = {}
        for run, reason in self.unusable.items():
            of.setdefault(reason, []).append(run)
        return [f"Without ranks and intervals of averages: {bounded(names)} ({why})." for why, names in of.items()]


def _records(reports: Iterable[Scored], results: Path) -> _Records:
    found, unusable = dict[tuple[str, str], _Read](), dict[str, str]()
    wanted = {(report.run, report.subset): report for report in reports if report.complete}
    if (users := sum(report.scored for report in wanted.values())) > MANY:
        tell(f"reading {users:,} records, for ranks and intervals of averages")
    for key, report in wanted.items():
        try:
            found[key] = _read(report, results)
        except HarnessError as error:
            unusable.setdefault(report.run, str(error))
    return _Records(found, unusable)


def _read(report: Scored, results: Path) -> _Read:
    """Return the records that a report is of. Raise `BadInput` if they are not those, or too many."""
    files = RunFiles(results / report.run, report.subset)
    if report.scored > ROWS_LIMIT:
        raise BadInput(f"more than {ROWS_LIMIT:,} users on a subset")
    if not os.path.exists(files.results):  # unlike the path's own method it fails for no name, however long
        raise BadInput("no records")
    saved = SavedRun(files, manifest) if (manifest := load(files.manifest)) else None
    if saved and not saved.is_known and not registry.is_shipped(saved.manifest.identity["benchmark"]):
        raise BadInput("they need code of a folder that you have not run before")  # a table does not ask for trust
    figures = runs.figures([subset := Subset(report.run, files, saved)], None)
    side = runs.read(subset, figures)
    if len(side.tasks) != report.scored:
        raise BadInput("the report is not of the records as they are now: run `harness reeval`")
    ranking = tuple(metric.ranked_by or metric.name for metric in figures.benchmark.metrics)
    given = parts(side.given, figures.given, having(figures.benchmark, side.given))
    compared = parts(side.contributions, figures.values, having(figures.benchmark, side.contributions))
    slim = replace(side, given=side.contributions, outcomes=())  # of many runs, what is not needed is much memory
    by_name = [*zip(ranking, compared.T, strict=True), *zip(figures.names, given.T, strict=True)]
    return _Read(slim, dict(zip(ranking, figures.names, strict=True)), dict(by_name))


# Figures


def _rows(table: MetricTable, records: _Records) -> tuple[Row, ...]:
    ranked = _ranks(table, records) if _is_main(table) else {}
    made = []
    for number, row in enumerate(table.rows):
        figures = {column: of and replace(of, rank=ranked.get((number, column))) for column, of in row.figures.items()}
        own = row.own and replace(_with_interval(row.own, table, row, records), rank=ranked.get((number, AVERAGE)))
        if own and (average := figures.get(AVERAGE)):
            figures[AVERAGE] = replace(own, place=average.place)
        made.append(replace(row, figures=figures, own=own))
    return tuple(made)


def _with_interval(own: Figure, table: MetricTable, row: Row, records: _Records) -> Figure:
    """Return a run's mean over subsets with its interval, if it is complete; a single subset has its own."""
    if len(row.over) < 2 or not own.complete:
        return own
    ranking = table.metric.ranked_by or table.metric.name
    value = _spanned(own.value, table.metric, table.metric.name, row, records)
    return replace(own, value=value, by=own.by and _spanned(own.by, table.metric, ranking, row, records))


def _ranks(table: MetricTable, records: _Records) -> dict[tuple[int, str], Rank]:
    """Return the ranks by number of row and column: on each subset, and under `AVERAGE` those of the rows' own means,
    among the rows with the same subsets."""
    among: list[tuple[str, tuple[str, ...], dict[int, Figure]]] = []
    among += [(column, (column,), group) for column, group in groups(table.rows, table.layout.subsets)]
    among += [(AVERAGE, subsets, group) for subsets, group in own_groups(table.rows)]
    by_group: dict[tuple[Sequence[str], Sequence[int]], dict[int, Rank]] = {}
    ranks: dict[tuple[int, str], Rank] = {}
    for column, subsets, group in among:
        key = subsets, tuple(group)  # a mean over one subset is that subset's figure
        if key not in by_group:
            by_group[key] = dict(_ranks_in(table, subsets, group, records))
        ranks |= {(number, column): rank for number, rank in by_group[key].items()}
    return ranks


def _ranks_in(
    table: MetricTable, subsets: Sequence[str], group: Mapping[int, Figure], records: _Records
) -> Iterator[tuple[int, Rank]]:
    """Yield the ranks of rows in the mean over subsets, by their number; none if they do not compare."""
    metric, name = table.metric, {number: table.rows[number].name for number in group}
    values = {
        number: metric.shown(figure.ranked) * (1 if metric.lower_is_better else -1)
        for number, figure in group.items()
        if figure.ranked is not None and records.has(name[number], subsets)
    }
    ranking = metric.ranked_by or metric.name
    if len(values) < 2 or ranking not in (compared := records.read[name[min(values)], subsets[0]].compared):
        return
    best, *others = sorted(values, key=values.__getitem__)
    try:
        worse = records.separable(name[best], [name[number] for number in others], subsets, compared[ranking])
    except BadInput as error:
        records.unusable.update({name[number]: str(error) for number in values})
        return
    for number, separable in zip((best, *others), (False, *worse), strict=True):
        yield number, Rank(1 + sum(value < values[number] for value in values.values()), separable)


def _spanned(mean: MetricValue, metric: Metric, name: str, row: Row, records: _Records) -> MetricValue:
    """Return the mean of a metric (of this name) over a run's subsets with its 95 % interval."""
    if not records.has(row.name, row.over):
        return mean
    strata = [moments(records.parts(row.name, subset, name)) for subset in row.over]
    if (ends := interval(mean.value, strata, metric.bounds)) is None:
        return mean
    return replace(mean, interval=ends, approximate=is_approximate(strata))
