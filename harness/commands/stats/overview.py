"""The page over all runs (`report` without a name): the tables of `stats` by benchmark, charts and rankings."""

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
from harness.commands.stats import leaderboard, standings
from harness.commands.stats.leaderboard import RUN
from harness.commands.stats.missing import left_out, unranked
from harness.commands.stats.notes import notes
from harness.commands.stats.run_reports import RunReport, checked, without_merged
from harness.commands.stats.standings import Figure, Row, Standing, mean_groups
from harness.commands.stats.uncertainty import with_uncertainty
from harness.document import Block, Cell, Chart, Heading, Paragraph, Series, Table, without_empty_columns
from harness.errors import BadInput
from harness.reporting.outputs import check_free
from harness.store import atomic
from harness.store.files import RunFiles


def execute(args: report.Options) -> int:
    """Write the page over all runs, and return an exit code."""
    if args.with_posts or args.users is not None:
        raise BadInput("--users and --with-posts are for pages of single runs: name one with --name")
    if args.out:
        check_free(args.out, force=args.force)
    found, _ = report.selected(args)
    place = args.out or args.results_dir / defaults.ALL_RUNS_PAGE
    runs, code = selection.each(found, _reported, report.label)
    _write(runs, {files.report("json") for files in found}, args.results_dir, place)
    report.show(place)
    return code


def _reported(files: RunFiles) -> tuple[RunReport, str]:
    """Return a report as `stats` reads it, and the path of its page, else of its text, from the results folder."""
    run_report = checked(report.read(files), files.report("json"))
    paths = map(files.report, ("html", "txt"))
    path = next((path for path in paths if path.exists()), files.report("json"))
    return run_report, f"{quote(os.fsencode(path.parent.name))}/{quote(os.fsencode(path.name))}"


def _write(found: Sequence[tuple[RunReport, str]], there: Collection[Path], results: Path, place: Path) -> None:
    """Write the page over the runs of a results folder, with links to their own pages. `there` are the files of all
    reports, also of those that could not be read. Raise `BadInput` if no report is current."""
    from harness.reporting import html

    left = left_out([], there, results, ())
    reports = without_merged([of for of, _ in found if (of.run, of.subset) not in left.outdated])
    if not reports:
        raise BadInput(left.nothing_else(results, ()))
    ranked, unusable = with_uncertainty(standings.standings(reports, published=False), results)
    blocks: list[Block] = [Paragraph(sentence) for sentence in (*left.sentences(), *unranked(unusable))]
    main = [replace(standing, rows=tuple(_by_score(standing))) for standing in standings.main(ranked)]
    for name in dict.fromkeys(of.report.benchmark for of in reports):
        of_benchmark = [standing for standing in main if standing.benchmark == name]
        blocks += _blocks([of for of in reports if of.report.benchmark == name], of_benchmark)
    links: dict[tuple[str, str], str] = {}
    for of, address in found if place.parent == results else ():
        if of in reports:
            links[of.run, of.subset] = address
            links.setdefault((of.run, RUN), address)
    atomic.write(place, html.page("All runs", blocks, links=links).encode("utf-8", "replace"), shared=True)


def _by_score(standing: Standing) -> list[Row]:
    """Return complete runs first, of these the ones with the most subsets, those of the same subsets together and the
    best of them first."""
    sign = 1 if standing.metric.lower_is_better else -1

    def key(row: Row) -> tuple[bool, int, tuple[str, ...], float]:
        is_partial = not all(report.complete for report in row.reports)
        return is_partial, -len(row.subsets), row.subsets, sign * (row.mean.shown.value or 0.0) if row.mean else 0.0

    return sorted(standing.rows, key=key)


def _blocks(reports: Sequence[RunReport], of_benchmark: Sequence[Standing]) -> Iterator[Block]:
    by_run: dict[str, list[RunReport]] = {row.name: [] for standing in of_benchmark for row in standing.rows}
    for of in reports:
        by_run.setdefault(of.run, []).append(of)
    yield Heading(reports[0].report.heading)
    yield _means(by_run, of_benchmark)
    yield from map(Paragraph, notes(of_benchmark))
    for standing in of_benchmark:
        if len(standing.columns) > 1:
            yield leaderboard.table(standing, intervals=True)
        yield _of_subsets(standing)
        yield from rankings(standing)
    about = [(run, "; ".join(dict.fromkeys(report.about for report in some))) for run, some in by_run.items()]
    yield Table((RUN, "what"), tuple(about))


def _means(by_run: dict[str, list[RunReport]], of_benchmark: Sequence[Standing]) -> Table:
    """Return a row for each run, the best by the first metric first, with its means over its subsets."""
    columns, rows = [RUN], []
    for standing in of_benchmark:
        mean = f" ({standing.same_mean})" if len(standing.columns) > 1 else ""
        columns += [f"{standing.metric.name}, {standing.metric.shown_unit}{mean}", "rank"]
    for run, reports in by_run.items():
        cells: list[str | Cell] = [run]
        for standing in of_benchmark:
            row = next((row for row in standing.rows if row.name == run), Row(run, {}))
            cells += [*leaderboard.cells(standing, standing.mean(row)), row.rank]
        scored, expected = sum(of.scored for of in reports), sum(of.expected for of in reports)
        users = Cell(f"{scored} of {expected}", note="INCOMPLETE" if any(of.is_incomplete for of in reports) else "")
        invalid = sum(of.invalid for of in reports)
        rows.append(
            (*cells, users, f"{invalid} of {sum(of.answers for of in reports)}" if invalid else "", _subsets(reports))
        )
    return without_empty_columns(Table((*columns, "users", "invalid", "subsets"), tuple(rows)))


def _subsets(reports: Sequence[RunReport]) -> str:
    """Return the subsets of a run in the benchmark's order, of all of them their number."""
    known, there = reports[0].report.subsets, {report.subset for report in reports}
    return f"all {len(known)}" if there.issuperset(known) else ", ".join(name for name in known if name in there)


def _of_subsets(standing: Standing) -> Chart:
    """Return a row per run and a dot per subset; a run of which not all users are scored has an asterisk."""
    partial = [any(figure and not figure.complete for figure in row.figures.values()) for row in standing.rows]
    rows = [f"{row.name} *" if is_partial else row.name for row, is_partial in zip(standing.rows, partial, strict=True)]
    there = [name for name in standing.subsets if standing.in_column(name)]
    explained = "; *: not all users of the tasks file are scored" if any(partial) else ""
    series = [_series(name, [row.figures[name] for row in standing.rows]) for name in there]
    return _chart(standing, f"{standing.metric.name}, with 95 % intervals{explained}", rows, series)


def rankings(standing: Standing) -> Iterator[Chart]:
    """Yield a picture of the runs' means for each set of runs that are ranked together, the best run first, in the
    colour of those that are not separable from the best or of the others."""
    for subsets, group in mean_groups(standing.rows):
        ranked = [(standing.rows[number], figure) for number, figure in group.items() if figure.rank]
        ranked.sort(key=lambda run: run[1].ranked or 0.0, reverse=not standing.metric.lower_is_better)
        if ranked:
            first = [figure if figure.rank and not figure.rank.separable else None for _, figure in ranked]
            others = [None if best else figure for best, (_, figure) in zip(first, ranked, strict=True)]
            title = f"{standing.metric.name}, {standing.mean_name(subsets)}: runs with their ranks, and 95 % intervals"
            series = _series("not separable from the best", first), _series("worse than the best", others)
            yield _chart(standing, title, [f"{row.name} ({row.rank})" for row, _ in ranked], series)


def _series(name: str, figures: Sequence[Figure | None]) -> Series:
    values = tuple(figure.shown.value if figure else None for figure in figures)
    return Series(name, values, *ends([figure.shown.ci95 if figure else None for figure in figures]))


def _chart(standing: Standing, title: str, rows: Sequence[str], series: Sequence[Series]) -> Chart:
    metric = standing.metric
    return Chart("intervals", title, tuple(rows), metric.shown_unit, "", tuple(series), metric.unit is None)
