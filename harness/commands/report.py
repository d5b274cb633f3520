"""`report`: regenerate the pages of runs from a results folder."""

from __future__ import annotations

import argparse
import os
from contextlib import ExitStack
from glob import escape
from pathlib import Path

from harness import defaults
from harness.analysis import selection
from harness.analysis.imported import Imported
from harness.analysis.rescoring import report_of
from harness.analysis.saved_runs import SavedRun
from harness.benchmark import Benchmark
from harness.benchmarks import registry
from harness.benchmarks.reports import Report, loaded
from harness.config import options
from harness.engine.files import index_file
from harness.errors import BadInput, HarnessError
from harness.feature import takeovers
from harness.report import pages
from harness.store.files import RunFiles
from harness.store.manifest import RUNNING, STOPPED, Manifest, load
from harness.store.tasks import TaskIndex
from harness.ui.console import console
from harness.ui.streams import tell

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
    options.add_force(parser)


def users(text: str) -> int | str:
    return text if text == ALL else options.whole(0, 1_000_000)(text)


def execute(args: argparse.Namespace) -> int:
    if args.out:
        options.outputs(args).check(args.out)
    for other in takeovers("report", args):
        return other(args)
    unmade = _make_missing(args)
    found, skipped = selected(args)
    if not found:
        if unmade:
            return unmade
        raise selection.nothing_found(args)
    if args.out and len(found) > 1:
        raise BadInput(f"--out is for one page, and these are {len(found)}: name one with --name and --platform")
    return max(skipped, unmade, selection.each(found, lambda files: _write(files, args), label)[1])


def _make_missing(args: argparse.Namespace) -> int:
    """Make the reports of selected runs that ended without one; return an exit code. A run that was stopped by a signal
    has none, nor has one that was killed."""
    stopped = [
        run
        for run in selection.find(args)[0]
        if run.manifest.state in (STOPPED, RUNNING) and not run.files.report("json").exists()
    ]
    _, code = selection.each(
        stopped, lambda run: report_of(run, args.results_dir, args.tasks_dir), lambda run: run.label
    )
    return code


def selected(args: argparse.Namespace) -> tuple[list[RunFiles], int]:
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
            if not args.model or args.model in (read(files).model, files.folder.name):
                found.append(files)
        except BadInput as error:
            tell(str(error))
            code = error.exit_code
    return found, code


def read(files: RunFiles) -> Report:
    """Return a run's report. Raise `BadInput` if it cannot be used."""
    path = files.report("json")
    try:
        return loaded(path)
    except BadInput as error:
        raise BadInput(f"{path} is {error}") from None


def label(files: RunFiles) -> str:
    """Return a run's name for pages and messages; a folder's name may be no text."""
    return f"{_shown(files.folder.name)}, {files.subset}"


def _shown(name: str) -> str:
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _write(files: RunFiles, args: argparse.Namespace) -> None:
    report, manifest = read(files), load(files.manifest)
    if manifest is None and files.results.exists() and not (of := Imported(files)).is_current:
        raise BadInput(of.remedy)
    outputs = options.outputs(args)
    seed = manifest.selection["sample_seed"] if manifest else defaults.SAMPLE_SEED
    wish = pages.Wish(pages.SAMPLE if args.users in (None, ALL) else args.users, args.with_posts, patient=True)
    with ExitStack() as held:
        try:
            benchmark, index = _opened(files, manifest, args)
            held.callback(index.close)
            source = pages.Source(files, report, seed, benchmark, index)
        except HarnessError as error:
            tell(f"{label(files)}: without its tasks ({error})")
            source = pages.Source(files, report, seed)
        made = [pages.write_page(source, wish, args.out, outputs)]
        if args.users == ALL:
            every = args.out and args.out.with_name(files.all_users.name)
            made.append(pages.write_all(source, wish, every, outputs))
    for path in made:
        show(path)


def _opened(files: RunFiles, manifest: Manifest | None, args: argparse.Namespace) -> tuple[Benchmark, TaskIndex]:
    """Return a run's benchmark and tasks. Raise `BadInput` if they are missing or have changed."""
    if manifest is not None:
        run = SavedRun(files, manifest, args.trust, args.benchmark)
        benchmark = run.as_it_was(args.tasks_dir, play=False)
        tasks = run.tasks(args.tasks_dir)
        return benchmark, index_file(benchmark, files.subset, tasks, args.results_dir, manifest.repeats)
    cls, _ = registry.importing(files.subset)
    made = cls()
    tasks = made.task_files.file_in(args.tasks_dir or defaults.TASKS_FOLDER, made.subsets[files.subset])
    return made, index_file(made, files.subset, tasks, args.results_dir)


def show(path: Path) -> None:
    """Print where a page is, and its size."""
    console().print(f"{path} ({path.stat().st_size / 1e6:.2f} MB)", highlight=False, soft_wrap=True, markup=False)
