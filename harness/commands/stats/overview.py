"""The page over all runs (`report` without a name): the tables of `stats` by benchmark, charts and
rankings."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from msgspec import structs

from harness import defaults
from harness.analysis import selection
from harness.benchmarks.rendering import intervals
from harness.commands import report
from harness.commands.stats import leaderboard, standings
from harness.commands.stats.leaderboard import RUN
from harness.commands.stats.missing import left_out, unranked
from harness.commands.stats.notes import notes
from harness.commands.stats.run_reports import (
    RunReport,
    about_run,
    by_run,
    checked,
    grouped,
    without_merged,
)
from harness.commands.stats.standings import Standing, StandingRow
from harness.commands.stats.uncertainty import with_uncertainty
from harness.document import Block, Chart, Heading, Paragraph, Table
from harness.errors import BadInput
from harness.reporting.outputs import check_free
from harness.scoring.reports import Value
from harness.store import atomic
from harness.store.files import RunFiles


def execute(args: report.Options) -> int:
    """Write the page over all runs, with links to their own pages; return an exit code. Raise
    `BadInput` if no report is current."""
    from harness.reporting import html

    if args.with_posts or args.users is not None:
        raise BadInput(
            "--users and --with-posts are for pages of single runs: name one with --name"
        )

    if args.out:
        check_free(args.out, force=args.force)

    results = args.results_dir
    page_path = args.out or results / defaults.ALL_RUNS_PAGE
    selected, _ = report.selected(args)
    linked_reports, code = selection.each(selected, _linked_report, report.label)
    left = left_out([], {files.report("json") for files in selected}, results)
    reports = without_merged(left.current(run_report for run_report, _ in linked_reports))
    if not reports:
        raise BadInput(left.nothing_else(results, ()))

    ranked, unusable = with_uncertainty(standings.standings(reports, published=False), results)
    blocks: list[Block] = [*map(Paragraph, left.sentences()), *map(Paragraph, unranked(unusable))]
    main = grouped((standing.benchmark, standing) for standing in standings.main_standings(ranked))

    for name, of_benchmark in grouped((each.report.benchmark, each) for each in reports).items():
        blocks += _blocks(of_benchmark, main.get(name, []))

    links: dict[tuple[str, str], str] = {}
    if page_path.parent == results:  # addresses are relative to the results folder
        links = _links(linked_reports, reports)

    page = html.page("All runs", blocks, links=links)
    # Half a surrogate pair in some text must not cost the whole page.
    atomic.write(page_path, page.encode("utf-8", "replace"), shared=True)
    report.show(page_path)

    return code


def _links(
    linked_reports: Sequence[tuple[RunReport, str]],
    shown: Sequence[RunReport],
) -> dict[tuple[str, str], str]:
    """Return the addresses of the shown reports by run and subset; the name of a run leads to its
    first one."""
    links: dict[tuple[str, str], str] = {}
    for run_report, address in linked_reports:
        if run_report in shown:
            links.setdefault((run_report.run, RUN), address)
            links[run_report.key] = address

    return links


def _linked_report(files: RunFiles) -> tuple[RunReport, str]:
    """Return a report as `stats` reads it, and the path of its page, else of its text, from the
    results folder."""
    run_report = checked(report.read(files), files.report("json"))
    paths = filter(Path.exists, map(files.report, ("html", "txt")))
    path = next(paths, files.report("json"))

    # By their bytes, since a folder's name may be no text.
    return run_report, f"{quote(os.fsencode(path.parent.name))}/{quote(os.fsencode(path.name))}"


def _blocks(reports: Sequence[RunReport], of_benchmark: Sequence[Standing]) -> Iterator[Block]:
    yield Heading(reports[0].report.heading)
    for standing in of_benchmark:
        # Table and chart have the runs in one order.
        ordered = _by_score(standing)
        yield leaderboard.table(ordered, intervals=True)
        yield _chart(ordered)

    yield from map(Paragraph, notes(of_benchmark))
    rows = []
    for run, of_run in by_run(reports).items():
        users = [(run_report.scored, run_report.expected) for run_report in of_run]
        scored, expected = map(sum, zip(*users, strict=True))
        rows.append((run, f"{scored} of {expected}", about_run(of_run)))

    yield Table((RUN, "users", "what"), tuple(rows))


def _by_score(standing: Standing) -> Standing:
    """Return a standing with the complete runs first, of these the ones with the most subsets,
    those of the same subsets together and the best of them first."""
    sign = 1 if standing.metric.lower_is_better else -1

    def key(row: StandingRow) -> tuple[bool, int, tuple[str, ...], float]:
        score = row.mean.number if row.mean else 0.0
        return not _is_complete(row), -len(row.subsets), row.subsets, sign * score

    return replace(standing, rows=tuple(sorted(standing.rows, key=key)))


def _chart(standing: Standing) -> Chart:
    """Return a row per run and a dot per subset; a run of which not all users are scored has an
    asterisk."""
    title = standing.metric.name
    if not all(map(_is_complete, standing.rows)):
        title = f"{title} (*: not all users of the tasks file are scored)"

    by_subset: dict[str, dict[str, Value]] = {}
    for subset in filter(standing.in_column, standing.subsets):
        by_subset[subset] = values = {}
        for row in standing.rows:
            figure = row.figures[subset]
            values[row.name] = figure.shown if figure else Value(None)

    chart = intervals(title, standing.metric, by_subset, [row.name for row in standing.rows])
    labels = (row.name if _is_complete(row) else f"{row.name} *" for row in standing.rows)

    return structs.replace(chart, x=tuple(labels))


def _is_complete(row: StandingRow) -> bool:
    return row.mean is not None and row.mean.complete
