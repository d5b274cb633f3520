"""What the choice of users leaves open: intervals of averages, and ranks of runs.

All of it is made of the records of the runs (docs/statistics.md, Leaderboard). A run whose records
cannot be used keeps its figures, and has none of this.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from harness.analysis.saved_runs import SavedRun
from harness.benchmarks import registry
from harness.commands.compare import sides
from harness.commands.stats.run_reports import RunReport
from harness.commands.stats.standings import AVERAGE, Figure, Rank, Row, Standing, groups
from harness.errors import BadInput, HarnessError
from harness.scoring.bootstrap import Array
from harness.scoring.differences import Side, Stratum, worse_than_best
from harness.scoring.intervals import interval, is_approximate, moments, parts
from harness.scoring.reports import Value
from harness.scoring.rows import having
from harness.scoring.scorer import ROWS_LIMIT
from harness.store.files import RunFiles
from harness.store.manifest import load
from harness.ui.streams import tell

MANY = 50_000
"""Records that take some seconds to read."""


def with_uncertainty(
    standings: Sequence[Standing], results: Path
) -> tuple[list[Standing], dict[str, str]]:
    """Return standings with what the records of their runs, below a results folder, say of the
    uncertainty; and why those of some runs cannot be used, by their names."""
    needed = (
        report for standing in standings for row in _rows_needed(standing) for report in row.reports
    )
    records = _Records({}, {})
    records.read(
        {(report.run, report.subset): report for report in needed if report.complete}, results
    )
    return [
        replace(standing, rows=_rows(standing, records)) for standing in standings
    ], records.unusable


def _rows_needed(standing: Standing) -> Iterator[Row]:
    """Yield the runs that are ranked, or have a mean over subsets."""
    ranked = {number for _, _, group in groups(standing) for number in group}
    for number, row in enumerate(standing.rows):
        if number in ranked or (row.mean and row.mean.complete and len(row.subsets) > 1):
            yield row


@dataclass(frozen=True, slots=True, eq=False)
class _RunRecords:
    """The records of a run on one subset: `parts` are those of its users in each metric, by name,
    and in what ranks each metric; `compared` are the names of the metrics by what ranks them."""

    subset: sides.Subset
    side: Side
    compared: Mapping[str, str]
    parts: Mapping[str, Array]


@dataclass(frozen=True, slots=True, eq=False)
class _Records:
    """The records by run and subset, and for each run why some cannot be used."""

    usable: dict[tuple[str, str], _RunRecords]
    unusable: dict[str, str]

    def read(self, reports: Mapping[tuple[str, str], RunReport], results: Path) -> None:
        users = sum(report.scored for report in reports.values() if report.scored <= ROWS_LIMIT)
        if users > MANY:
            tell(f"reading {users:,} records, for ranks and intervals of averages")
        for key, report in reports.items():
            try:
                self.usable[key] = _read(report, results)
            except HarnessError as error:
                self.unusable.setdefault(report.run, str(error))

    def of(self, row: Row, subsets: Sequence[str]) -> list[_RunRecords]:
        """Return the records of a run on subsets; none if some cannot be used."""
        keys = [(row.name, subset) for subset in subsets]
        return [self.usable[key] for key in keys] if self.usable.keys() >= set(keys) else []


def _read(report: RunReport, results: Path) -> _RunRecords:
    """Return the records that a report is of. Raise `BadInput` if they are not those, or too
    many."""
    files = RunFiles(results / report.run, report.subset)
    if report.scored > ROWS_LIMIT:
        raise BadInput(f"more than {ROWS_LIMIT:,} users on a subset")
    if not os.path.exists(
        files.results
    ):  # unlike the path's own method it fails for no name, however long
        raise BadInput("no records")
    saved = SavedRun(files, manifest) if (manifest := load(files.manifest)) else None
    if (
        saved
        and not saved.is_known
        and not registry.is_shipped(saved.manifest.identity["benchmark"])
    ):
        raise BadInput(
            "they need code of a folder that you have not run before"
        )  # a table does not ask for trust
    subset = sides.Subset(report.run, files, saved)
    figures = sides.figures([subset], None)
    side = sides.read(subset, figures)
    if len(side.tasks) != report.scored:
        raise BadInput("the report is not of the records as they are now: run `harness reeval`")
    ranking = tuple(metric.ranked_by or metric.name for metric in figures.benchmark.metrics)
    as_given = parts(side.given, figures.given, having(figures.benchmark, side.given))
    compared = parts(
        side.contributions, figures.values, having(figures.benchmark, side.contributions)
    )
    by_name = dict(
        [*zip(ranking, compared.T, strict=True), *zip(figures.names, as_given.T, strict=True)]
    )
    slim = replace(
        side, given=side.contributions, outcomes=()
    )  # of many runs, what is not needed is much memory
    return _RunRecords(subset, slim, dict(zip(ranking, figures.names, strict=True)), by_name)


def _rows(standing: Standing, records: _Records) -> tuple[Row, ...]:
    main = {
        name
        for metric in standing.headline
        for name in (metric, standing.metrics[metric].ranked_by)
    }
    ranks = _ranks(standing, records) if standing.metric.name in main else {}
    rows = []
    for number, row in enumerate(standing.rows):
        figures = {
            column: figure and replace(figure, rank=ranks.get((number, column)))
            for column, figure in row.figures.items()
        }
        mean = row.mean and replace(
            _with_interval(row.mean, row, standing, records), rank=ranks.get((number, AVERAGE))
        )
        if mean and (average := figures.get(AVERAGE)):
            figures[AVERAGE] = replace(mean, place=average.place)
        rows.append(replace(row, figures=figures, mean=mean))
    return tuple(rows)


def _with_interval(mean: Figure, row: Row, standing: Standing, records: _Records) -> Figure:
    """Return a run's mean over subsets with its interval, if it is complete; a single subset has
    its own."""
    if (
        len(row.subsets) < 2
        or not mean.complete
        or not (of_subsets := records.of(row, row.subsets))
    ):
        return mean

    def spanned(value: Value, name: str) -> Value:
        """Return the mean of the metric of this name with its 95 % interval."""
        strata = [moments(each.parts.get(name, np.empty(0))) for each in of_subsets]
        ends = interval(value.value, strata, standing.metric.bounds)
        return (
            msgspec.structs.replace(value, ci95=ends, approximate=is_approximate(strata))
            if ends
            else value
        )

    return replace(
        mean,
        value=spanned(mean.value, standing.metric.name),
        by=mean.by and spanned(mean.by, standing.ranking),
    )


def _ranks(standing: Standing, records: _Records) -> dict[tuple[int, str], Rank]:
    """Return the ranks by number of row and column: on each subset, and under `AVERAGE` those of
    the rows' means, among the rows with the same subsets."""
    by_group: dict[tuple[tuple[str, ...], tuple[int, ...]], dict[int, Rank]] = {}
    ranks: dict[tuple[int, str], Rank] = {}
    for column, subsets, group in groups(standing):
        key = subsets, tuple(group)  # a mean over one subset is that subset's figure
        if key not in by_group:
            by_group[key] = _ranks_in(standing, subsets, group, records)
        ranks |= {(number, column): rank for number, rank in by_group[key].items()}
    return ranks


def _ranks_in(
    standing: Standing, subsets: Sequence[str], group: Mapping[int, Figure], records: _Records
) -> dict[int, Rank]:
    """Return the ranks of rows in the mean over subsets, by their number; none if they do not
    compare."""
    metric, rows = standing.metric, standing.rows
    found = {number: records.of(rows[number], subsets) for number in group}
    values = {
        number: metric.shown(figure.ranked or 0.0) * (1 if metric.lower_is_better else -1)
        for number, figure in group.items()
        if found[number]
    }
    if len(values) < 2 or standing.ranking not in (compared := found[min(values)][0].compared):
        return {}
    best, *others = sorted(values, key=values.__getitem__)
    try:
        figures = [
            sides.figures([found[number][place].subset for number in values], None)
            for place in range(len(subsets))
        ]
        pairs = [
            [
                Stratum.of(a.side, b.side, common)
                for a, b, common in zip(found[best], found[other], figures, strict=True)
            ]
            for other in others
        ]
        worse = worse_than_best(pairs, figures[0], compared[standing.ranking])
    except BadInput as error:
        records.unusable.update({rows[number].name: str(error) for number in values})
        return {}
    return {
        number: Rank(1 + sum(value < values[number] for value in values.values()), separable)
        for number, separable in zip((best, *others), (False, *worse), strict=True)
    }
