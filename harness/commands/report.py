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
from harness.analysis.leaderboard import reports
from harness.analysis.leaderboard.footnotes import left_out
from harness.analysis.leaderboard.reports import Scored, Value
from harness.analysis.saved_runs import SavedRun
from harness.benchmark import Benchmark, Metric
from harness.benchmarks import registry
from harness.benchmarks.reports import Report
from harness.config import options
from harness.engine.files import index_file
from harness.errors import BadInput, HarnessError
from harness.model import Block, Chart, Heading, Paragraph, Series, Table
from harness.report import pages
from harness.store import atomic
from harness.store.files import RunFiles
from harness.store.manifest import Manifest, load
from harness.store.tasks import TaskIndex
from harness.ui.console import console
from harness.ui.streams import tell
from harness.ui.words import plural

ALL = "all"


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
        return benchmark, index_file(benchmark, files.subset, run.tasks(args.tasks_dir), args.results_dir)
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
    def name(self) -> str:
        return _shown(self.files.folder.name)

    @property
    def label(self) -> str:
        return f"{self.name} · {self.files.subset}"

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
    if not runs:
        raise BadInput(left.nothing_else(args.results_dir, ()))
    place = args.out or args.results_dir / defaults.ALL_RUNS_PAGE
    links = {run.label: run.address for run in runs} if place.parent == args.results_dir else {}
    blocks: list[Block] = list(map(Paragraph, left.sentences()))
    for name in dict.fromkeys(run.scored.benchmark for run in runs):
        blocks += _blocks([run for run in runs if run.scored.benchmark == name])
    atomic.write(place, html.page("All runs", blocks, links=links).encode("utf-8", "replace"), shared=True)
    _print(place)
    return code


def _run(files: RunFiles) -> _Run:
    report, scored = _read(files)
    return _Run(files, scored, not report.coverage.complete)


def _blocks(runs: Sequence[_Run]) -> Iterator[Block]:
    declared = runs[0].scored.declared
    yield Heading(declared.title)
    incomplete = sum(run.is_incomplete for run in runs)
    how_many = f", {incomplete} of them INCOMPLETE" if incomplete else ""
    yield Paragraph(
        f"{plural(len(runs), 'report')}{how_many}. Only runs with the same prompt, tasks and settings compare; "
        "intervals are over the choice of users."
    )
    metrics = [declared.metrics[name] for name in declared.headline]
    yield _table(metrics, runs)
    for metric in metrics:
        yield _chart(metric, runs)
        if incomplete:
            yield Paragraph("* INCOMPLETE: not all of its users are scored; the table shows on which subset.")


def _table(metrics: Sequence[Metric], runs: Sequence[_Run]) -> Table:
    """Return a row per report and a column per metric; runs are described as in the tables of `stats`."""
    rows = []
    for run in runs:
        of = run.scored
        coverage = f"{'INCOMPLETE: ' if run.is_incomplete else ''}{of.scored} of {of.expected}"
        invalid = f"{of.invalid} of {of.answers}" if of.invalid else "0"
        figures = [_figure(metric, of.values.get(metric.name)) for metric in metrics]
        rows.append((run.label, coverage, invalid, *figures, of.about))
    heads = (f"{metric.name}, {metric.shown_unit}" for metric in metrics)
    return Table(("run", "users", "invalid", *heads, "what"), tuple(rows))


def _figure(metric: Metric, of: Value | None) -> str:
    """Return a value with its interval."""
    if of is None:
        return "n/a"
    return f"{metric.text(of.value)}{f' {metric.span(of.interval)}' if of.interval else ''}"


def _chart(metric: Metric, runs: Sequence[_Run]) -> Chart:
    """Return a row per run and a dot per subset; an incomplete run has a star."""
    names = tuple(dict.fromkeys(run.name for run in runs))
    starred = {run.name for run in runs if run.is_incomplete}
    rows = tuple(f"{name} *" if name in starred else name for name in names)
    subsets = tuple(dict.fromkeys(run.files.subset for run in runs))
    found = {(run.name, run.files.subset): run.scored.values.get(metric.name) for run in runs}

    def series(subset: str) -> Series:
        of = [found.get((name, subset)) for name in names]
        bounds = [(one.interval if one else None) or (None, None) for one in of]
        return Series(subset, tuple(one.value if one else None for one in of), *map(tuple, zip(*bounds, strict=True)))

    title, shares = f"{metric.name}, with 95 % intervals", metric.unit is None
    return Chart("intervals", title, rows, metric.shown_unit, "", tuple(map(series, subsets)), shares)
