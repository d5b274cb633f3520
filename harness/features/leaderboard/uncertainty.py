"""What the choice of users leaves open in tables: intervals of averages, ranks of runs, and the spread over prompts.

All of it is made of the records of the runs (docs/statistics.md, Leaderboard). A run whose records cannot be used keeps
its figures, and has none of this.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, reduce
from itertools import chain
from pathlib import Path
from statistics import fmean

import numpy as np
import orjson

from harness.analysis.saved_runs import SavedRun
from harness.benchmarks import registry
from harness.benchmarks.registry import KEPT
from harness.benchmarks.scorer import ROWS_LIMIT, having
from harness.errors import BadInput, HarnessError
from harness.features.compare import sides as runs
from harness.features.compare.sides import Side, Subset
from harness.features.leaderboard.footnotes import bounded
from harness.features.leaderboard.ranking import Rank, Stratum, ranks, stratum
from harness.features.leaderboard.reports import MetricValue, Scored
from harness.features.leaderboard.tables import AVERAGE, Figure, MetricTable, Row, Spread, groups, own_groups
from harness.model import JSON
from harness.scoring.bootstrap import Array
from harness.scoring.intervals import Interval, interval, moments, parts
from harness.store.files import RunFiles
from harness.store.manifest import Manifest, load
from harness.ui.streams import tell

SEED = 20_250
MANY = 50_000
"""Records that take some seconds to read."""


def with_uncertainty(found: Sequence[MetricTable], results: Path) -> tuple[list[MetricTable], list[str]]:
    """Return tables with what the records of their runs, below a results folder, say of the uncertainty; and sentences
    on the runs whose records say nothing."""
    alike = [_alike_but_for_prompts(table, results) if _is_main(table) else [] for table in found]
    needed = [*chain.from_iterable(map(_rows_needed, found)), *chain(*chain(*alike))]
    records = _records((report for row in needed for report in row.reports), results)
    tables = []
    for table, of in zip(found, alike, strict=True):
        spreads = tuple(_spread(table, runs_alike, records) for runs_alike in of)
        tables.append(replace(table, rows=_rows(table, records), spreads=spreads))
    return tables, records.sentences()


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
    """The records of a run on one subset; `parts` are those of its users in each metric, and in what ranks each metric
    (`ranking`), by name."""

    side: Side
    ranking: tuple[str, ...]
    parts: Mapping[str, Array]


@dataclass(frozen=True, slots=True, eq=False)
class _Records:
    """The records by run and subset, for each run why some cannot be used, and the strata that were made of them."""

    read: Mapping[tuple[str, str], _Read]
    unusable: dict[str, str]
    strata: dict[tuple[tuple[str, ...], str], Stratum | None] = field(default_factory=dict)

    def has(self, run: str, subsets: Iterable[str]) -> bool:
        return all((run, subset) in self.read for subset in subsets)

    def stratum(self, names: tuple[str, ...], subset: str) -> Stratum | None:
        """Return the stratum of runs on the users that all have; None if they do not compare."""
        if (names, subset) not in self.strata:
            try:
                self.strata[names, subset] = _stratum([self.read[name, subset].side for name in names])
            except BadInput as error:
                self.strata[names, subset] = None
                self.unusable.update(dict.fromkeys(names, str(error)))
        return self.strata[names, subset]

    def mean(self, names: Sequence[str], subset: str, metric: str) -> Array:
        """Return the users' parts in the mean of a metric over runs; none if it is not made of sums over users."""
        of = [self.read[name, subset] for name in names]
        if metric not in of[0].parts:
            return np.empty(0)
        users = runs.common(*(one.side for one in of))
        found: Array = np.mean([one.parts[metric][one.side.places(users)] for one in of], axis=0)
        return found

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
    if saved and not saved.is_own and not registry.is_shipped(saved.manifest.identity["benchmark"]):
        raise BadInput("they need code of a folder that is not this user's own")  # a table does not ask for trust
    figures = runs.figures([subset := Subset(report.run, files, saved)], None)
    side = runs.read(subset, figures)
    if len(side.tasks) != report.scored:
        raise BadInput("the report is not of the records as they are now: run `harness reeval`")
    ranking = tuple(metric.ranked_by or metric.name for metric in figures.benchmark.metrics)
    given = parts(side.given, figures.given, having(figures.benchmark, side.given))
    compared = parts(side.contributions, figures.values, having(figures.benchmark, side.contributions))
    slim = replace(side, given=side.contributions, outcomes=())  # of many runs, what is not needed is much memory
    by_name = [*zip(ranking, compared.T, strict=True), *zip(figures.names, given.T, strict=True)]
    return _Read(slim, ranking, dict(by_name))


def _stratum(sides: Sequence[Side]) -> Stratum:
    """Return the stratum of several runs, on the values that all define. Raise `BadInput` if they do not compare."""
    figures, users = runs.figures([side.of for side in sides], None), runs.common(*sides)
    if not users:
        raise BadInput(f"no user in common on {sides[0].of.name}")
    rows = [side.contributions[side.places(users)] for side in sides]
    shared = reduce(lambda one, other: figures.on_both(one, other)[0], rows)
    rng = np.random.default_rng([SEED, *sides[0].of.name.encode()])
    alike = [figures.on_both(each, shared)[0] for each in rows]
    return stratum(alike, figures.values, rng, has=having(figures.benchmark, alike[0]))


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
    value = replace(own.value, interval=_interval(table, table.metric.name, own.value, [row], records))
    return replace(own, value=value, by=own.by and replace(own.by, interval=_shown(table, own.by, [row], records)))


def _ranks(table: MetricTable, records: _Records) -> dict[tuple[int, str], Rank]:
    """Return the ranks by number of row and column: on each subset, and under `AVERAGE` those of the rows' own means,
    among the rows with the same subsets."""
    among: list[tuple[str, Sequence[str], tuple[int, ...]]] = []
    among += ((column, (column,), tuple(group)) for column, group in groups(table.rows, table.layout.subsets))
    among += ((AVERAGE, subsets, tuple(group)) for subsets, group in own_groups(table.rows))
    ranks_in = cache(lambda subsets, group: dict(_ranks_in(table, subsets, group, records)))
    return {(number, column): rank for column, *of in among for number, rank in ranks_in(*of).items()}


def _ranks_in(
    table: MetricTable, subsets: Sequence[str], group: Iterable[int], records: _Records
) -> Iterator[tuple[int, Rank]]:
    """Yield the ranks of rows in the mean over subsets, by their number; none if they do not compare."""
    numbers = [number for number in group if records.has(table.rows[number].name, subsets)]
    names = tuple(table.rows[number].name for number in numbers)
    ranked_by = table.metric.ranked_by or table.metric.name
    if len(names) < 2 or ranked_by not in (ranking := records.read[names[0], subsets[0]].ranking):
        return
    made, at = [records.stratum(names, subset) for subset in subsets], ranking.index(ranked_by)
    strata = [of for of in made if of is not None and not np.isnan(of.figures[:, at]).any()]
    if len(strata) == len(subsets):
        yield from zip(numbers, ranks(strata, at, lower_is_better=table.metric.lower_is_better), strict=True)


def _spread(table: MetricTable, rows: Sequence[Row], records: _Records) -> Spread:
    values = tuple(figure.shown.value for row in rows if (figure := row.figures[table.last]))
    return Spread(tuple(row.name for row in rows), values, _shown(table, MetricValue(fmean(values)), rows, records))


def _shown(table: MetricTable, mean: MetricValue, rows: Sequence[Row], records: _Records) -> Interval | None:
    return _interval(table, table.metric.ranked_by or table.metric.name, mean, rows, records)


def _interval(
    table: MetricTable, metric: str, mean: MetricValue, rows: Sequence[Row], records: _Records
) -> Interval | None:
    """Return the 95 % interval of the mean of a metric over some runs of the same subsets, on the users that all
    have."""
    subsets, names = rows[0].over, [row.name for row in rows]
    if not all(records.has(name, subsets) for name in names):
        return None
    strata = [moments(records.mean(names, subset, metric)) for subset in subsets]
    return interval(mean.value, strata, table.metric.bounds)


def _alike_but_for_prompts(table: MetricTable, results: Path) -> list[list[Row]]:
    """Return the runs of a table that differ only in the prompt, two or more of them together."""
    found: dict[bytes, list[Row]] = {}
    for row in table.rows:
        figure = row.figures[table.last]
        if figure is not None and figure.complete and (key := _conditions(row.reports, results)):
            found.setdefault(key, []).append(row)
    return [rows for rows in found.values() if len({_prompt(row) for row in rows}) > 1]


def _prompt(row: Row) -> tuple[object, ...]:
    return tuple((report.prompt, report.prompt_version, report.files) for report in row.reports)


def _conditions(reports: Sequence[Scored], results: Path) -> bytes:
    """Return what runs have in common that differ only in the prompt; empty if one has no manifest."""
    try:
        found = [load(RunFiles(results / report.run, report.subset).manifest) for report in reports]
    except HarnessError:
        return b""
    return b"" if None in found else orjson.dumps([*map(_but_prompt, filter(None, found))], option=orjson.OPT_SORT_KEYS)


def _but_prompt(manifest: Manifest) -> JSON:
    """Return identity, tasks and selection of a run without its prompt or agent, whose files are named after their
    setting."""
    of, files = manifest.identity, manifest.identity["files"]
    code = {name: digest for name, digest in files.items() if name.startswith(KEPT)}
    named = {name for name in of["settings"] if any(file.startswith(f"{name}_") for file in files.keys() - code)}
    settings = {name: value for name, value in of["settings"].items() if name not in named}
    others = {name: value for name, value in of.items() if name != "prompt_version"}
    tasks = {name: value for name, value in manifest.tasks.items() if name != "path"}
    return {**others, "files": code, "settings": settings, "tasks": tasks, "selection": manifest.selection}
