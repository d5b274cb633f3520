"""`report`: regenerate pages from a results folder: of one run, or one over all runs."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from urllib.parse import quote

from harness import defaults
from harness.analysis import selection
from harness.analysis.imported import Imported
from harness.analysis.leaderboard import charts, formats, reports, tables
from harness.analysis.leaderboard.footnotes import left_out, notes
from harness.analysis.leaderboard.reports import Scored
from harness.analysis.leaderboard.tables import MetricTable, Row
from harness.analysis.leaderboard.uncertainty import with_uncertainty
from harness.analysis.saved_runs import SavedRun
from harness.benchmark import Benchmark
from harness.benchmarks import registry
from harness.benchmarks.reports import Report
from harness.config import options
from harness.engine.files import index_file
from harness.errors import BadInput, HarnessError
from harness.model import Block, Heading, Paragraph, Table
from harness.report import pages
from harness.report.grid import Grid
from harness.store import atomic
from harness.store.files import RunFiles
from harness.store.manifest import Manifest, load
from harness.store.tasks import TaskIndex
from harness.ui.console import console
from harness.ui.streams import tell
from harness.ui.words import plural

ALL = "all"
RUN = "run"
"""The first column of the table of all runs."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_which(parser)
    options.add_earlier(parser)
    words = "show users' posts too: private data, share with care"
    options.add(parser, "--with-posts", words, action="store_true")
    words = f"users to show one by one (default: {pages.SAMPLE}); `all` writes a second page with every user"
    options.add(parser, "--users N", words, type=users)
    words = "where to write the page (default: with the report)"
    options.add(parser, "--out FILE.html", words, type=options.file_of(".html"))


def users(text: str) -> int | str:
    return text if text == ALL else options.whole(0, 1_000_000)(text)


def execute(args: argparse.Namespace) -> int:
    found, skipped = _selected(args)
    if not (args.name or args.model or args.platform):
        if args.with_posts or args.users is not None:
            raise BadInput("--users and --with-posts are for pages of single runs: name one with --name")
        return _over_all(found, args)
    if not found:
        raise selection.nothing_found(args)
    if args.out and len(found) > 1:
        raise BadInput(f"--out is for one page, and these are {len(found)}: name one with --name and --platform")
    return max(skipped, selection.each(found, lambda files: _write(files, args), _label)[1])


def _selected(args: argparse.Namespace) -> tuple[list[RunFiles], int]:
    """Return the reports that the options select, those of another program's results included, and an exit code.

    A report that cannot be read is reported and skipped, if the model in it matters.
    """
    platforms, code = {name.lower() for name in args.platform or ()}, 0
    found = []
    for path in sorted(args.results_dir.glob(f"{escape(args.name or '') or '*'}/eval_report_*.json")):
        files = RunFiles(path.parent, path.stem.removeprefix("eval_report_"))
        if platforms and files.subset not in platforms:
            continue
        try:
            if not args.model or args.model in (_read(files)[0].model, files.folder.name):
                found.append(files)
        except BadInput as error:
            tell(str(error))
            code = error.exit_code
    return found, code


def _read(files: RunFiles) -> tuple[Report, Scored]:
    """Return a report, and as `stats` reads it. Raise `BadInput` if it cannot be used."""
    path = files.report("json")
    try:
        report = reports.loaded(path)
        return report, reports.checked(report, path)
    except BadInput as error:
        raise BadInput(f"{path} is {error}") from None


def _label(files: RunFiles) -> str:
    """Return a run's name for pages and messages; a folder's name may be no text."""
    return f"{_shown(files.folder.name)}, {files.subset}"


def _shown(name: str) -> str:
    return os.fsencode(name).decode("utf-8", "backslashreplace")


# One run


def _write(files: RunFiles, args: argparse.Namespace) -> None:
    report, manifest = _read(files)[0], load(files.manifest)
    if manifest is None and files.results.exists() and not (of := Imported(files)).is_current:
        raise BadInput(of.remedy)
    seed = manifest.selection["sample_seed"] if manifest else defaults.SAMPLE_SEED
    wish = pages.Wish(pages.SAMPLE if args.users in (None, ALL) else args.users, args.with_posts, patient=True)
    with ExitStack() as held:
        try:
            benchmark, index = _opened(files, manifest, args)
            held.callback(index.close)
            source = pages.Source(files, report, seed, benchmark, index)
        except HarnessError as error:
            tell(f"{_label(files)}: without its tasks ({error})")
            source = pages.Source(files, report, seed)
        made = [pages.write_page(source, wish, args.out)]
        if args.users == ALL:
            made.append(pages.write_all(source, wish, args.out and args.out.with_name(files.all_users.name)))
    for path in made:
        _print(path)


def _opened(files: RunFiles, manifest: Manifest | None, args: argparse.Namespace) -> tuple[Benchmark, TaskIndex]:
    """Return a run's benchmark and tasks. Raise `BadInput` if they are missing or have changed."""
    if manifest is not None:
        run = SavedRun(files, manifest, args.trust, args.benchmark)
        benchmark = run.as_it_was(args.tasks_dir, play=False)
        tasks = run.tasks(args.tasks_dir)
        return benchmark, index_file(benchmark, files.subset, tasks, args.results_dir, manifest.repeats)
    cls, _ = registry.importing(files.subset)
    made = cls()
    tasks = made.file_in(args.tasks_dir or defaults.TASKS_FOLDER, made.subsets[files.subset])
    return made, index_file(made, files.subset, tasks, args.results_dir)


def _print(path: Path) -> None:
    console().print(f"{path} ({path.stat().st_size / 1e6:.2f} MB)", highlight=False, soft_wrap=True, markup=False)


# All runs


@dataclass(frozen=True, slots=True)
class _Run:
    files: RunFiles
    scored: Scored
    is_incomplete: bool

    @property
    def address(self) -> str:
        """Return the path of its page, else of its text; relative to the results folder."""
        paths = map(self.files.report, ("html", "txt"))
        path = next((path for path in paths if path.exists()), self.files.report("json"))
        return f"{quote(os.fsencode(path.parent.name))}/{quote(os.fsencode(path.name))}"


def _over_all(found: Sequence[RunFiles], args: argparse.Namespace) -> int:
    from harness.report import html

    runs, code = selection.each(found, _run, _label)
    left = left_out([], {files.report("json") for files in found}, args.results_dir, ())
    runs = [run for run in runs if (run.scored.run, run.scored.subset) not in left.outdated]
    if not runs:
        raise BadInput(left.nothing_else(args.results_dir, ()))
    place = args.out or args.results_dir / defaults.ALL_RUNS_PAGE
    links: dict[tuple[str, str], str] = {}
    for run in runs if place.parent == args.results_dir else ():
        links[run.scored.run, run.scored.subset] = run.address
        links.setdefault((run.scored.run, RUN), run.address)
    blocks: list[Block] = list(map(Paragraph, left.sentences()))
    made = tables.tables([run.scored for run in runs], with_published=False)
    uncertain, unranked = with_uncertainty(made, args.results_dir)
    blocks += map(Paragraph, unranked)
    of_metrics = tables.main(uncertain)
    for name in dict.fromkeys(run.scored.benchmark for run in runs):
        mine = [table for table in of_metrics if table.benchmark == name]
        blocks += _blocks([run for run in runs if run.scored.benchmark == name], mine)
    atomic.write(place, html.page("All runs", blocks, links=links).encode("utf-8", "replace"), shared=True)
    _print(place)
    return code


def _run(files: RunFiles) -> _Run:
    report, scored = _read(files)
    return _Run(files, scored, not report.coverage.complete)


def _blocks(runs: Sequence[_Run], of_metrics: Sequence[MetricTable]) -> Iterator[Block]:
    yield Heading(runs[0].scored.declared.title)
    incomplete = sum(run.is_incomplete for run in runs)
    how_many = f", {incomplete} of them INCOMPLETE" if incomplete else ""
    yield Paragraph(
        f"{plural(len(runs), 'report')}{how_many}. Only runs with the same prompt, tasks and settings compare; "
        "intervals are over the choice of users."
    )
    yield _overview(runs, of_metrics)
    yield from map(Paragraph, notes(of_metrics, show_ranks=False))
    for table in of_metrics:
        if len(table.columns) > 1:
            yield _by_subset(table)
        yield charts.subsets(table)
        yield from charts.rankings(table)
        if table.spreads:
            yield _block(formats.prompts(table))


def _overview(runs: Sequence[_Run], of_metrics: Sequence[MetricTable]) -> Table:
    """Return a row per run, with its average over subsets if there are several, described as in the tables of
    `stats`."""
    by_name: dict[str, list[_Run]] = {}
    for run in runs:
        by_name.setdefault(run.scored.run, []).append(run)
    rows = []
    for name, mine in by_name.items():
        of = [run.scored for run in mine]
        scored, expected = sum(one.scored for one in of), sum(one.expected for one in of)
        invalid, answers = sum(one.invalid for one in of), sum(one.answers for one in of)
        figures = [cell for table in of_metrics for cell in _last(table, name)]
        rows.append(
            (
                name,
                f"{'INCOMPLETE: ' * any(run.is_incomplete for run in mine)}{scored} of {expected}",
                f"{invalid} of {answers}" if invalid else "0",
                *figures,
                Row(name, {}, tuple(of)).about,
            )
        )
    heads = [head for table in of_metrics for head in (_head(table), *table.rank_head)]
    return Table((RUN, "users", "invalid", *heads, "what"), tuple(rows))


def _head(table: MetricTable) -> str:
    column = f" ({table.last})" if len(table.columns) > 1 else ""
    return f"{table.metric.name}, {table.metric.shown_unit}{column}"


def _last(table: MetricTable, run: str) -> tuple[str, ...]:
    """Return the last figure of a run, and its rank if the table has ranks."""
    row = next((row for row in table.rows if row.name == run), None)
    rank = row.rank_text(table.last) if row else ""
    return (_figure(table, row, table.last) if row else "n/a", *(rank for _ in table.rank_head))


def _by_subset(table: MetricTable) -> Table:
    columns = [name for name in table.columns if name == tables.AVERAGE or any(row.figures[name] for row in table.rows)]
    others, rows = [column for column in columns if column != table.last], []
    for row in table.rows:
        rows.append((row.name, *(_figure(table, row, column) for column in others), *_last(table, row.name)))
    return Table((table.title, *others, table.last, *table.rank_head), tuple(rows))


def _figure(table: MetricTable, row: Row, column: str) -> str:
    """Return a value, with its interval on a line of its own."""
    of = row.figures[column]
    if of is None:
        return "n/a"
    interval = f"\n{table.metric.span(of.value.interval)}" if of.value.interval else ""
    return f"{table.metric.text(of.value.value)}{'' if of.complete else '*'}{interval}"


def _block(grid: Grid) -> Table:
    """Return a grid as a block, intervals on lines of their own."""
    rows = (
        (name, *("\n".join(filter(None, (number.text, number.interval))) if number else "" for number in numbers))
        for group in grid.groups
        for name, numbers in group
    )
    return Table((grid.title, *grid.columns), tuple(rows))
