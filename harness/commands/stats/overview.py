"""The page over all runs (`report` without a name): a table of each metric, charts and rankings."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from harness import defaults
from harness.analysis import selection
from harness.benchmarks.rendering import ends
from harness.commands import report
from harness.commands.stats import formats, tables
from harness.commands.stats.footnotes import left_out, notes
from harness.commands.stats.grid import Number
from harness.commands.stats.reports import Scored, checked, without_merged
from harness.commands.stats.tables import Figure, MetricTable, Row, own_groups
from harness.commands.stats.uncertainty import with_uncertainty
from harness.document import Block, Chart, Heading, Paragraph, Series, Table
from harness.errors import BadInput
from harness.reporting.outputs import check_free
from harness.reporting.report import CHANCE, level
from harness.store import atomic
from harness.store.files import RunFiles
from harness.ui.words import plural

RUN = "run"
"""The first column of the table of all runs."""


def execute(args: report.Options) -> int:
    """Write the page over all runs, and return an exit code."""
    if args.with_posts or args.users is not None:
        raise BadInput("--users and --with-posts are for pages of single runs: name one with --name")
    if args.out:
        check_free(args.out, force=args.force)
    found, _ = report.selected(args)
    place = args.out or args.results_dir / defaults.ALL_RUNS_PAGE
    runs, code = selection.each(found, _reported, report.label)
    write(runs, {files.report("json") for files in found}, args.results_dir, place)
    report.show(place)
    return code


def _reported(files: RunFiles) -> tuple[Scored, str]:
    """Return a report as `stats` reads it, and the path of its page, else of its text, from the results folder."""
    scored = checked(report.read(files), files.report("json"))
    paths = map(files.report, ("html", "txt"))
    path = next((path for path in paths if path.exists()), files.report("json"))
    return scored, f"{quote(os.fsencode(path.parent.name))}/{quote(os.fsencode(path.name))}"


def write(found: Sequence[tuple[Scored, str]], there: Collection[Path], results: Path, place: Path) -> None:
    """Write the page over the runs of a results folder, with links to their own pages. `there` are the files of all
    reports, also of those that could not be read. Raise `BadInput` if no report is current."""
    from harness.reporting import html

    left = left_out([], there, results, ())
    runs = without_merged([run for run, _ in found if (run.run, run.subset) not in left.outdated])
    if not runs:
        raise BadInput(left.nothing_else(results, ()))
    blocks: list[Block] = list(map(Paragraph, left.sentences()))
    uncertain, unranked = with_uncertainty(tables.tables(runs, with_published=False), results)
    blocks += map(Paragraph, unranked)
    of_metrics = [replace(table, rows=tuple(_by_score(table))) for table in tables.main(uncertain)]
    for name in dict.fromkeys(run.benchmark for run in runs):
        mine = [table for table in of_metrics if table.benchmark == name]
        blocks += _blocks([run for run in runs if run.benchmark == name], mine)
    links = _links([(run, address) for run, address in found if run in runs]) if place.parent == results else {}
    atomic.write(place, html.page("All runs", blocks, links=links).encode("utf-8", "replace"), shared=True)


def _links(found: Sequence[tuple[Scored, str]]) -> dict[tuple[str, str], str]:
    """Return the address of each run's page, by run and subset; by run alone that of its first subset."""
    links: dict[tuple[str, str], str] = {}
    for run, address in found:
        links[run.run, run.subset] = address
        links.setdefault((run.run, RUN), address)
    return links


def _by_score(table: MetricTable) -> list[Row]:
    """Return the rows with the most subsets first, those of the same subsets together and the best of them first."""
    sign = 1 if table.metric.lower_is_better else -1

    def key(row: Row) -> tuple[int, tuple[str, ...], float]:
        return -len(row.over), row.over, sign * row.own.shown.value if row.own else 0.0

    return sorted(table.rows, key=key)


def _blocks(runs: Sequence[Scored], of_metrics: Sequence[MetricTable]) -> Iterator[Block]:
    yield Heading(runs[0].declared.title)
    yield Paragraph(
        f"{plural(len(runs), 'report')}. Only runs with the same prompt, tasks and settings compare; "
        "intervals are over the choice of users."
    )
    yield _overview(runs, of_metrics)
    yield from map(Paragraph, notes(of_metrics, show_ranks=False))
    for table in of_metrics:
        if len(table.columns) > 1:
            yield _by_subset(table)
        yield _of_subsets(table)
        yield from rankings(table)


def _overview(runs: Sequence[Scored], of_metrics: Sequence[MetricTable]) -> Table:
    """Return a row per run, the best by the first metric first, with its mean over its subsets, described as in the
    tables of `stats`."""
    by_name: dict[str, list[Scored]] = {row.name: [] for table in of_metrics for row in table.rows}
    for run in runs:
        by_name.setdefault(run.run, []).append(run)
    differ, rows = any(table.same_mean is None for table in of_metrics), []
    for name, of in by_name.items():
        scored, expected = sum(one.scored for one in of), sum(one.expected for one in of)
        invalid, answers = sum(one.invalid for one in of), sum(one.answers for one in of)
        figures = [cell for table in of_metrics for cell in _mean(table, name)]
        rows.append(
            (
                name,
                f"{'INCOMPLETE: ' * any(one.is_incomplete for one in of)}{scored} of {expected}",
                f"{invalid} of {answers}" if invalid else "0",
                *((_subsets(of),) if differ else ()),
                *figures,
                Row(name, {}, tuple(of)).about,
            )
        )
    chance = [cell for table in of_metrics for cell in _chance(table)]
    if any(chance):
        rows.append((CHANCE, "", "", *([""] if differ else ()), *chance, ""))
    heads = [head for table in of_metrics for head in (_head(table), *table.rank_head)]
    return Table((RUN, "users", "invalid", *(["subsets"] if differ else ()), *heads, "what"), tuple(rows))


def _subsets(of: Sequence[Scored]) -> str:
    """Return the subsets of a run in the benchmark's order, of all of them their number."""
    known, there = of[0].declared.subsets, {report.subset for report in of}
    return f"all {len(known)}" if there.issuperset(known) else ", ".join(name for name in known if name in there)


def _head(table: MetricTable) -> str:
    column = f" ({table.same_mean or tables.MEAN})" if len(table.columns) > 1 else ""
    return f"{table.metric.name}, {table.metric.shown_unit}{column}"


def _mean(table: MetricTable, run: str) -> tuple[str, ...]:
    """Return a run's mean over its subsets, and its rank if the table has ranks."""
    row = next((row for row in table.rows if row.name == run), None)
    return (_figure(table, row.own if row else None), *table.ranks(row))


def _chance(table: MetricTable) -> tuple[str, ...]:
    """Return the chance level of the mean, empty for none or several; nothing under the ranks."""
    chance = table.chance.get(table.same_mean or "")
    return ("" if chance is None else level(table.metric, *chance), *table.ranks(None))


def _by_subset(table: MetricTable) -> Table:
    """Return the figures of each subset, and the average if a run has one."""
    columns = [name for name in table.columns if any(row.figures[name] for row in table.rows)]
    rows = [
        (row.name, *(_figure(table, row.figures[column]) for column in columns), *table.ranks(row))
        for row in table.rows
    ]
    if levels := table.chance:
        texts = (level(table.metric, *levels[column]) if column in levels else "" for column in columns)
        rows.append((CHANCE, *texts, *table.ranks(None)))
    return Table((table.title, *columns, *table.rank_head), tuple(rows))


def _figure(table: MetricTable, of: Figure | None) -> str:
    return _text(formats.number(table, of, intervals=True)) or "n/a"


def _text(number: Number | None) -> str:
    """Return a figure with its interval on a line of its own; empty for none."""
    if number is None:
        return ""
    published = f" ({number.published})" if number.published else ""
    return "\n".join(filter(None, (f"{number.text}{'*' if number.marked else ''}{published}", number.interval)))


def _of_subsets(table: MetricTable) -> Chart:
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
    first = [figure if figure.rank and not figure.rank.separable else None for _, figure in ranked]
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
