"""The tables of runs as pictures of pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.benchmarks.overview import ends
from harness.features.leaderboard.tables import Figure, MetricTable, Row, own_groups
from harness.model import Chart, Series


def subsets(table: MetricTable) -> Chart:
    """Return a row per run and a dot per subset; a run of which not all users are scored has a star."""
    starred = [any(of and not of.complete for of in row.figures.values()) for row in table.rows]
    rows = [f"{row.name} *" if star else row.name for row, star in zip(table.rows, starred, strict=True)]
    there = [name for name in table.layout.subsets if any(row.figures[name] for row in table.rows)]
    explained = "; *: not all users of the tasks file are scored" if any(starred) else ""
    made = [_series(name, [row.figures[name] for row in table.rows]) for name in there]
    return _chart(table, f"{table.metric.name}, with 95 % intervals{explained}", rows, made)


def rankings(table: MetricTable) -> Iterator[Chart]:
    """Yield a picture of the runs' own means for each set of runs that are ranked together, the best run first."""
    for subsets, group in own_groups(table.rows):
        ranked = [(table.rows[number], figure) for number, figure in group.items() if figure.rank]
        ranked.sort(key=lambda one: one[1].ranked or 0.0, reverse=not table.metric.lower_is_better)
        if ranked:
            yield _ranking(table, table.mean_name(subsets), ranked)


def _ranking(table: MetricTable, mean: str, ranked: Sequence[tuple[Row, Figure]]) -> Chart:
    """Return a row per run, in the colour of those that are not separable from the best or of the others."""
    first = [figure if figure.rank and figure.rank[0] == 1 else None for _, figure in ranked]
    others = [None if best else figure for best, (_, figure) in zip(first, ranked, strict=True)]
    title = f"{table.metric.name}, {mean}: runs with their ranks, and 95 % intervals"
    series = _series("not separable from the best", first), _series("worse than the best", others)
    return _chart(table, title, [f"{row.name} ({row.rank_text})" for row, _ in ranked], series)


def _series(name: str, figures: Sequence[Figure | None]) -> Series:
    values = tuple(figure.shown.value if figure else None for figure in figures)
    return Series(name, values, *ends([figure.shown.interval if figure else None for figure in figures]))


def _chart(table: MetricTable, title: str, rows: Sequence[str], series: Sequence[Series]) -> Chart:
    metric = table.metric
    return Chart("intervals", title, tuple(rows), metric.shown_unit, "", tuple(series), metric.unit is None)
