"""`report`: regenerate pages from a results folder: of one run, or one over all runs."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from harness import defaults
from harness.analysis import saved_runs
from harness.analysis.leaderboard import reports
from harness.analysis.leaderboard.footnotes import left_out
from harness.analysis.leaderboard.reports import Scored, Value
from harness.analysis.saved_runs import SavedRun
from harness.benchmark import Benchmark, Metric
from harness.benchmarks import overview, registry
from harness.benchmarks.records import ODD_SHAPE
from harness.benchmarks.reports import NOT_A_REPORT, Report
from harness.config import options
from harness.engine.files import index_file
from harness.errors import BadInput, HarnessError
from harness.model import Block, Chart, Heading, Page, Paragraph, Series, Table
from harness.report import pages
from harness.report.pages import SAMPLE, Source, Wish
from harness.store import atomic
from harness.store.files import RunFiles
from harness.store.manifest import Manifest, load
from harness.store.tasks import TaskIndex
from harness.ui.console import console
from harness.ui.streams import tell

ALL = "all"
INCOMPLETE = "* INCOMPLETE: not all of its users are scored; the table says on which subset."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_which(parser)
    options.add_folders(parser, of_earlier_runs=True)
    options.add_trust(parser)
    parser.add_argument(
        "--with-posts", action="store_true", help="show users' posts too: private data, share with care"
    )
    parser.add_argument(
        "--users",
        type=users,
        metavar="N",
        help=f"users to show one by one (default: {SAMPLE}); `all` writes a second page with every user",
    )
    parser.add_argument(
        "--out",
        type=options.file_of(".html"),
        metavar="FILE.html",
        help="where to write the page (default: with the report)",
    )


def users(text: str) -> Any:
    return text if text == ALL else options.whole(0, 1_000_000)(text)


def execute(args: argparse.Namespace) -> int:
    found = [files for files in _reports(args.results_dir) if _is_named(files, args)]
    if not (args.name or args.model or args.platform):
        if args.with_posts or args.users is not None:
            raise BadInput("--users and --with-posts are for pages of single runs: name one with --name")
        return _over_all(found, args)
    if not found:
        raise saved_runs.nothing_found(args)
    if args.out and len(found) > 1:
        raise BadInput(f"--out is for one page, and these are {len(found)}: name one with --name and --platform")
    return saved_runs.each(found, lambda files: _again(files, args), _label)


def _label(files: RunFiles) -> str:
    """Return a run's name for pages and messages; a folder's name may be no text."""
    return f"{_shown(files.folder.name)}, {files.subset}"


def _shown(name: str) -> str:
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _reports(results: Path) -> list[RunFiles]:
    """Return every report below a results folder, including those of scored results of another program."""
    paths = sorted(results.glob("*/eval_report_*.json"))
    return [RunFiles(path.parent, path.stem.removeprefix("eval_report_")) for path in paths]


def _is_named(files: RunFiles, args: argparse.Namespace) -> bool:
    platforms = {name.lower() for name in args.platform or ()}
    if (args.name and files.folder.name != args.name) or (platforms and files.subset not in platforms):
        return False
    try:
        return not args.model or args.model in (_data(files).model, files.folder.name)
    except BadInput as error:  # an unreadable report does not stop the others
        tell(str(error))
        args.least_code = error.exit_code
        return False


def _data(files: RunFiles) -> Report:
    """Return its report. Raise `BadInput` for one that `stats` could not read either."""
    path = files.report("json")
    try:
        report = reports.loaded(path)
        reports.checked(report, path)
    except BadInput as error:
        raise BadInput(f"{path} is {error}") from None
    return report


# One run


def _again(files: RunFiles, args: argparse.Namespace) -> int:
    data, manifest = _data(files), load(files.manifest)
    seed = manifest.selection["sample_seed"] if manifest else defaults.SAMPLE_SEED
    wish = Wish(SAMPLE if args.users in (None, ALL) else args.users, args.with_posts, patient=True)
    with ExitStack() as held:
        try:
            benchmark, index = _at_hand(files, manifest, args)
            held.callback(index.close)
            source = Source(files, data, seed, benchmark, index)
        except HarnessError as error:
            tell(f"{_label(files)}: without its tasks ({error})")
            source = Source(files, data, seed)
        made = [pages.write_page(source, wish, args.out)]
        if args.users == ALL:
            made.append(pages.write_all(source, wish, args.out and args.out.with_name(files.all_users.name)))
    for path in made:
        _say(path)
    return 0


def _at_hand(files: RunFiles, manifest: Manifest | None, args: argparse.Namespace) -> tuple[Benchmark, TaskIndex]:
    """Return a run's benchmark and tasks. Raise `BadInput` if they are missing or have changed."""
    if manifest is not None:
        run = SavedRun(files, manifest, args.trust, args.benchmark)
        benchmark = run.as_it_was(args.tasks_dir, play=False)
        return benchmark, index_file(benchmark, files.subset, run.tasks(args.tasks_dir), args.results_dir)
    cls, _ = registry.importing(files.subset)
    made = cls()
    tasks = (args.tasks_dir or defaults.TASKS_FOLDER) / made.subsets[files.subset]
    return made, index_file(made, files.subset, tasks, args.results_dir)


def _say(path: Path) -> None:
    console().print(f"{path} ({path.stat().st_size / 1e6:.2f} MB)", highlight=False, soft_wrap=True, markup=False)


# All runs


@dataclass(frozen=True, slots=True)
class _Run:
    files: RunFiles
    page: Page
    scored: Scored

    @property
    def name(self) -> str:
        return _shown(self.files.folder.name)

    @property
    def label(self) -> str:
        return f"{self.name} · {self.files.subset}"

    @property
    def address(self) -> str:
        """Return the path of its page, else of its text; relative to the results folder."""
        made = next(
            (path for path in map(self.files.report, ("html", "txt")) if path.exists()), self.files.report("json")
        )
        return f"{quote(os.fsencode(made.parent.name))}/{quote(os.fsencode(made.name))}"


def _over_all(found: Sequence[RunFiles], args: argparse.Namespace) -> int:
    from harness.report import html

    runs: list[_Run] = []
    code = saved_runs.each(found, lambda files: _add(files, runs), _label)
    left = left_out([], {files.report("json") for files in found}, args.results_dir, ())
    if not runs:
        raise BadInput(left.nothing_else(args.results_dir, ()))
    place = args.out or args.results_dir / defaults.ALL_RUNS_PAGE
    links = {run.label: run.address for run in runs} if place.parent == args.results_dir else {}
    names = dict.fromkeys(run.scored.benchmark for run in runs)
    blocks = [
        *map(Paragraph, left.sentences()),
        *(block for name in names for block in _blocks(name, [run for run in runs if run.scored.benchmark == name])),
    ]
    atomic.write(place, html.page("All runs", blocks, links=links).encode("utf-8", "replace"), shared=True)
    _say(place)
    return code


def _add(files: RunFiles, runs: list[_Run]) -> int:
    report = _data(files)
    try:
        page = overview.page(report)
    except ODD_SHAPE:
        raise BadInput(f"{files.report('json')} is {NOT_A_REPORT}") from None
    runs.append(_Run(files, page, reports.checked(report, files.report("json"))))
    return 0


def _blocks(benchmark: str, runs: Sequence[_Run]) -> Iterator[Block]:
    yield Heading(benchmark)
    incomplete = sum(1 for run in runs if run.page.warning)
    how_many = f", {incomplete} of them INCOMPLETE" if incomplete else ""
    yield Paragraph(
        f"{len(runs)} report{'' if len(runs) == 1 else 's'}{how_many}. Only runs with the same prompt, tasks and "
        "settings compare; intervals are over the choice of users."
    )
    declared = runs[0].scored.declared
    metrics = [declared.metrics[name] for name in declared.headline]
    yield _table(metrics, runs)
    for metric in metrics:
        yield _chart(metric, runs)
        if incomplete:
            yield Paragraph(INCOMPLETE)


def _table(metrics: Sequence[Metric], runs: Sequence[_Run]) -> Table:
    """Return a row per report and a column per metric; runs are described as in the tables of `stats`."""
    rows = []
    for run in runs:
        of = run.scored
        users = f"{of.scored} of {of.expected}"
        coverage = f"INCOMPLETE: {users}" if run.page.warning else users
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
    starred = {run.name for run in runs if run.page.warning}
    rows = tuple(f"{name} *" if name in starred else name for name in names)
    subsets = tuple(dict.fromkeys(run.files.subset for run in runs))
    found = {(run.name, run.files.subset): run.scored.values.get(metric.name) for run in runs}

    def series(subset: str) -> Series:
        of = [found.get((name, subset)) for name in names]
        bounds = [(one.interval if one else None) or (None, None) for one in of]
        return Series(subset, tuple(one.value if one else None for one in of), *map(tuple, zip(*bounds, strict=True)))

    title, shares = f"{metric.name}, with 95 % intervals", metric.unit is None
    return Chart("intervals", title, rows, metric.shown_unit, "", tuple(map(series, subsets)), shares)
