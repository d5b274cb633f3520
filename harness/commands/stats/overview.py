"""The page over all runs (`report` without a name): the tables of `stats` by benchmark, charts and
rankings."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
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
from harness.commands.stats.run_reports import RunReport, about_run, checked, without_merged
from harness.commands.stats.standings import Row, Standing
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
    place = args.out or results / defaults.ALL_RUNS_PAGE
    found, _ = report.selected(args)
    addressed, code = selection.each(found, _addressed, report.label)
    left = left_out([], {files.report("json") for files in found}, results)
    reports = without_merged(
        [of for of, _ in addressed if (of.run, of.subset) not in left.outdated]
    )
    if not reports:
        raise BadInput(left.nothing_else(results, ()))
    ranked, unusable = with_uncertainty(standings.standings(reports, published=False), results)
    blocks: list[Block] = [
        Paragraph(sentence) for sentence in (*left.sentences(), *unranked(unusable))
    ]
    for name in dict.fromkeys(of.report.benchmark for of in reports):
        main = [standing for standing in standings.main(ranked) if standing.benchmark == name]
        blocks += _blocks([of for of in reports if of.report.benchmark == name], main)
    shown = [
        (of, address) for of, address in addressed if of in reports and place.parent == results
    ]
    links = {(of.run, RUN): address for of, address in reversed(shown)}
    links |= {(of.run, of.subset): address for of, address in shown}
    atomic.write(
        place, html.page("All runs", blocks, links=links).encode("utf-8", "replace"), shared=True
    )
    report.show(place)
    return code


def _addressed(files: RunFiles) -> tuple[RunReport, str]:
    """Return a report as `stats` reads it, and the path of its page, else of its text, from the
    results folder."""
    run_report = checked(report.read(files), files.report("json"))
    paths = map(files.report, ("html", "txt"))
    path = next((path for path in paths if path.exists()), files.report("json"))
    return run_report, f"{quote(os.fsencode(path.parent.name))}/{quote(os.fsencode(path.name))}"


def _blocks(reports: Sequence[RunReport], of_benchmark: Sequence[Standing]) -> Iterator[Block]:
    yield Heading(reports[0].report.heading)
    for standing in of_benchmark:
        ordered = _by_score(standing)
        yield leaderboard.table(ordered, intervals=True)
        yield _chart(ordered)
    yield from map(Paragraph, notes(of_benchmark))
    by_run: dict[str, list[RunReport]] = {}
    for of in reports:
        by_run.setdefault(of.run, []).append(of)
    rows = [
        (
            run,
            f"{sum(of.scored for of in some)} of {sum(of.expected for of in some)}",
            about_run(some),
        )
        for run, some in by_run.items()
    ]
    yield Table((RUN, "users", "what"), tuple(rows))


def _by_score(standing: Standing) -> Standing:
    """Return a standing with the complete runs first, of these the ones with the most subsets,
    those of the same subsets together and the best of them first."""
    sign = 1 if standing.metric.lower_is_better else -1

    def key(row: Row) -> tuple[bool, int, tuple[str, ...], float]:
        is_partial = not (row.mean and row.mean.complete)
        return (
            is_partial,
            -len(row.subsets),
            row.subsets,
            sign * (row.mean.shown.value or 0.0) if row.mean else 0.0,
        )

    return replace(standing, rows=tuple(sorted(standing.rows, key=key)))


def _chart(standing: Standing) -> Chart:
    """Return a row per run and a dot per subset; a run of which not all users are scored has an
    asterisk."""
    labels = {
        row.name: row.name if row.mean and row.mean.complete else f"{row.name} *"
        for row in standing.rows
    }
    explained = (
        ""
        if labels.keys() == set(labels.values())
        else " (*: not all users of the tasks file are scored)"
    )
    by_subset = {
        subset: {
            row.name: figure.shown if (figure := row.figures[subset]) else Value(None)
            for row in standing.rows
        }
        for subset in standing.subsets
        if standing.in_column(subset)
    }
    chart = intervals(
        f"{standing.metric.name}{explained}", standing.metric, by_subset, list(labels)
    )
    return structs.replace(chart, x=tuple(labels.values()))
