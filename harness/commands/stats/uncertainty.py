"""What the choice of users leaves open: intervals of averages, and ranks of runs.

All of it is made of the records of the runs (docs/statistics.md, Leaderboard). A run whose records
cannot be used keeps its figures, and has none of this.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import msgspec
import numpy as np

from harness.analysis.saved_runs import SavedRun
from harness.benchmarks import registry
from harness.commands.compare import sides
from harness.commands.stats.run_reports import RunReport
from harness.commands.stats.standings import (
    AVERAGE,
    ComparableGroup,
    Rank,
    Standing,
    StandingFigure,
    StandingRow,
    comparable_groups,
)
from harness.errors import BadInput, HarnessError
from harness.scoring.bootstrap import Array
from harness.scoring.differences import Side, Stratum, worse_than_best
from harness.scoring.intervals import interval, is_approximate, moments, parts
from harness.scoring.reports import Value
from harness.scoring.rows import counted_mask
from harness.scoring.scorer import ROWS_LIMIT
from harness.store.files import RunFiles
from harness.store.manifest import load
from harness.ui.streams import tell

SLOW_RECORDS = 50_000
"""Records that take some seconds to read."""


def with_uncertainty(
    standings: Sequence[Standing], results: Path
) -> tuple[list[Standing], dict[str, str]]:
    """Return standings with what the records of their runs, below a results folder, say of the
    uncertainty; and why those of some runs cannot be used, by their names."""
    needed: dict[tuple[str, str], RunReport] = {}
    for row in chain.from_iterable(map(_rows_needed, standings)):
        needed |= {report.key: report for report in row.reports if report.complete}

    records = _Records({}, {})
    records.read(needed, results)
    with_records = [replace(standing, rows=_rows(standing, records)) for standing in standings]

    return with_records, records.unusable


def _rows_needed(standing: Standing) -> Iterator[StandingRow]:
    """Yield the runs that are ranked, or have a mean over subsets."""
    ranked = set(chain.from_iterable(group.figures for group in comparable_groups(standing)))
    for number, row in enumerate(standing.rows):
        if number in ranked or _has_complete_mean(row):
            yield row


def _has_complete_mean(row: StandingRow) -> bool:
    return len(row.subsets) > 1 and row.mean is not None and row.mean.complete


@dataclass(
    frozen=True,
    slots=True,
    eq=False,
)
class _RunRecords:
    """The records of a run on one subset: `parts` are those of its users in each metric, by name,
    and in what ranks each metric; `ranked_metrics` are the names of the metrics by what ranks
    them."""

    subset: sides.Subset
    side: Side
    ranked_metrics: Mapping[str, str]
    parts: Mapping[str, Array]


@dataclass(
    frozen=True,
    slots=True,
    eq=False,
)
class _Records:
    """The records by run and subset, and for each run why some cannot be used."""

    usable: dict[tuple[str, str], _RunRecords]
    unusable: dict[str, str]

    def read(self, reports: Mapping[tuple[str, str], RunReport], results: Path) -> None:
        users = sum(report.scored for report in reports.values() if report.scored <= ROWS_LIMIT)
        if users > SLOW_RECORDS:
            tell(f"reading {users:,} records, for ranks and intervals of averages")

        for key, report in reports.items():
            try:
                self.usable[key] = _read(report, results)
            except HarnessError as error:
                self.unusable.setdefault(report.run, str(error))

    def on_subsets(self, row: StandingRow, subsets: Sequence[str]) -> list[_RunRecords]:
        """Return the records of a run on subsets; none if some cannot be used."""
        keys = [(row.name, subset) for subset in subsets]
        if not self.usable.keys() >= set(keys):
            return []

        return list(map(self.usable.__getitem__, keys))


def _read(report: RunReport, results: Path) -> _RunRecords:
    """Return the records that a report is of. Raise `BadInput` if they are not those, or too
    many."""
    files = RunFiles(results / report.run, report.subset)
    if report.scored > ROWS_LIMIT:
        raise BadInput(f"more than {ROWS_LIMIT:,} users on a subset")
    # Unlike the path's own method it fails for no name, however long.
    if not os.path.exists(files.results):
        raise BadInput("no records")

    manifest = load(files.manifest)
    subset = sides.Subset(report.run, files, SavedRun(files, manifest) if manifest else None)
    # A table does not ask for trust.
    if subset.saved and not (subset.saved.is_known or registry.is_shipped(subset.benchmark)):
        raise BadInput("they need code of a folder that you have not run before")

    figures = sides.common_figures([subset], None)
    side = sides.read_side(subset, figures)

    if len(side.tasks) != report.scored:
        raise BadInput("the report is not of the records as they are now: run `harness reeval`")

    benchmark = figures.benchmark
    contributions = side.contributions
    ranking = [metric.ranking for metric in benchmark.metrics]
    ranking_parts = parts(contributions, figures.values, counted_mask(benchmark, contributions))
    own_parts = parts(side.published, figures.published, counted_mask(benchmark, side.published))
    # A metric that also ranks another has its own parts under its name.
    parts_by_name = dict(zip(ranking, ranking_parts.T, strict=True))
    parts_by_name |= zip(figures.names, own_parts.T, strict=True)
    # Of many runs, what is not needed is much memory.
    slim = replace(side, published=contributions, outcomes=())

    return _RunRecords(subset, slim, dict(zip(ranking, figures.names, strict=True)), parts_by_name)


def _rows(standing: Standing, records: _Records) -> tuple[StandingRow, ...]:
    main = set(standing.headline)
    main.update(standing.metrics[name].ranking for name in standing.headline)
    ranks = _ranks(standing, records) if standing.metric.name in main else {}
    rows = []
    for number, row in enumerate(standing.rows):
        figures = dict(row.figures)
        for column, figure in row.figures.items():
            if figure:
                figures[column] = replace(figure, rank=ranks.get((number, column)))

        mean = row.mean
        if mean:
            mean = _with_interval(mean, row, standing, records)
            mean = replace(mean, rank=ranks.get((number, AVERAGE)))
            average = figures.get(AVERAGE)

            if average:
                figures[AVERAGE] = replace(mean, place=average.place)

        rows.append(replace(row, figures=figures, mean=mean))

    return tuple(rows)


def _with_interval(
    mean: StandingFigure,
    row: StandingRow,
    standing: Standing,
    records: _Records,
) -> StandingFigure:
    """Return a run's mean over subsets with its interval, if it is complete; a single subset has
    its own."""
    if not _has_complete_mean(row):
        return mean

    records_of_run = records.on_subsets(row, row.subsets)
    if not records_of_run:
        return mean

    def with_ends(value: Value, name: str) -> Value:
        """Return the mean of the metric of this name with its 95 % interval."""
        no_users = np.empty(0)
        strata = [moments(on_subset.parts.get(name, no_users)) for on_subset in records_of_run]
        ends = interval(value.value, strata, standing.metric.bounds)

        if not ends:
            return value

        approximate = is_approximate(strata)

        return msgspec.structs.replace(value, ci95=ends, approximate=approximate)

    return replace(
        mean,
        value=with_ends(mean.value, standing.metric.name),
        ranking_value=mean.ranking_value and with_ends(mean.ranking_value, standing.ranking),
    )


def _ranks(standing: Standing, records: _Records) -> dict[tuple[int, str], Rank]:
    """Return the ranks by number of row and column: on each subset, and under `AVERAGE` those of
    the rows' means, among the rows with the same subsets."""
    ranks_of_groups: dict[tuple[object, ...], dict[int, Rank]] = {}
    ranks: dict[tuple[int, str], Rank] = {}
    for group in comparable_groups(standing):
        # A mean over one subset is that subset's figure.
        key = group.subsets, tuple(group.figures)
        if key not in ranks_of_groups:
            ranks_of_groups[key] = _ranks_in(group, standing, records)

        for number, rank in ranks_of_groups[key].items():
            ranks[number, group.column] = rank

    return ranks


def _ranks_in(
    group: ComparableGroup,
    standing: Standing,
    records: _Records,
) -> dict[int, Rank]:
    """Return the ranks of rows in the mean over subsets, by their number; none if they do not
    compare."""
    metric = standing.metric
    sign = 1 if metric.lower_is_better else -1
    usable: dict[int, list[_RunRecords]] = {}
    values: dict[int, float] = {}  # the lower, the better

    for number, figure in group.figures.items():
        records_of_run = records.on_subsets(standing.rows[number], group.subsets)
        if records_of_run:
            usable[number] = records_of_run
            # What looks equal in the table shares a rank.
            values[number] = sign * metric.shown(figure.number)

    if len(values) < 2:
        return {}

    best, *others = sorted(values, key=values.__getitem__)
    ranked_metrics = usable[best][0].ranked_metrics
    if standing.ranking not in ranked_metrics:
        return {}

    runs_of_others = list(map(usable.__getitem__, others))
    try:
        worse = _worse_than_best(usable[best], runs_of_others, ranked_metrics[standing.ranking])
    except BadInput as error:
        for number in values:
            records.unusable[standing.rows[number].name] = str(error)
        return {}

    ordered_values = sorted(values.values())
    ranks = {}
    for number, separable in zip((best, *others), (False, *worse), strict=True):
        ranks[number] = Rank(1 + ordered_values.index(values[number]), separable)

    return ranks


def _worse_than_best(
    best: Sequence[_RunRecords],
    others: Sequence[Sequence[_RunRecords]],
    metric: str,
) -> Sequence[bool]:
    """Return whether each of the other runs is shown to be worse in a metric than the best one. A
    run has its records on each subset. Raise `BadInput` for runs that cannot be compared."""
    figures = [
        sides.common_figures([records.subset for records in on_subset], None)
        for on_subset in zip(best, *others, strict=True)
    ]
    pairs = []
    for other in others:
        strata = map(lambda a, b, common: Stratum.of(a.side, b.side, common), best, other, figures)
        pairs.append(list(strata))

    return worse_than_best(pairs, figures[0], metric)
