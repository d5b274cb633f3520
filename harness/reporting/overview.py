"""A report as a page: its tiles, and its blocks."""

from __future__ import annotations

from collections.abc import Iterator

from harness.benchmarks.rendering import called, spanned
from harness.cost import each, money_text
from harness.document import Page, Tile
from harness.reporting.report import blocks, covered, next_to
from harness.scoring.reports import Report


def page(report: Report, *, posts: bool = False) -> Page:
    """Return the page of a report: tiles, and its blocks, with users' own texts if `posts` are shown."""
    of, user = report.coverage, report.user
    warning = "" if of.complete else f"INCOMPLETE: {covered(report, user)} are scored, {of.failed_users} failed"
    return Page(
        f"{called(report)} · {report.heading} ({report.subset})",
        warning,
        tuple(_tiles(report)),
        tuple(blocks(report, posts=posts)),
    )


def _tiles(report: Report) -> Iterator[Tile]:
    for metric in (report.units[name] for name in report.headline):
        by = report.ranking(metric)
        unit = "" if by.value is None else f" {metric.shown_unit}"
        interval = [f"95 % interval {spanned(metric, by)}"] if by.ci95 else []
        yield Tile(metric.name, metric.text(by.value) + unit, "; ".join([*interval, *next_to(report, metric)]))
    of = report.coverage
    yield Tile(f"{report.user}s scored", str(of.scored_users), f"of {of.expected_users}")
    if report.cost and report.cost.money:
        of_each = money_text(each([report.cost.money], of.scored_users))
        yield Tile("cost", money_text([report.cost.money]), of_each and f"{of_each} a {report.user}")
