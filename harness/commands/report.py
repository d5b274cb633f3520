"""`report`: write the pages of saved runs, and the reports of those that ended without one."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from harness import defaults
from harness.analysis import selection
from harness.analysis.imported import imported_of
from harness.analysis.reporting import report_of
from harness.analysis.saved_runs import SavedRun
from harness.benchmark import Benchmark
from harness.benchmarks import registry
from harness.engine.files import index_file
from harness.errors import BadInput, ExitCode, HarnessError, in_brief
from harness.option import command_options, file_of, option, whole
from harness.options import options
from harness.reporting import pages
from harness.reporting.outputs import check_free
from harness.reporting.report_files import loaded
from harness.reporting.reported import Reported
from harness.scoring.reports import Report
from harness.store.files import RunFiles
from harness.store.manifest import RUNNING, STOPPED, Manifest, load
from harness.store.tasks import TaskIndex
from harness.ui.console import PLAIN, console
from harness.ui.streams import tell

ALL_USERS = "all"


def _users(text: str) -> int | str:
    """Parse how many users a page shows."""
    if text == ALL_USERS:
        return ALL_USERS
    fits, expected = whole(0, 1_000_000)
    # `int` refuses thousands of digits with a message of its own.
    if not (text.isdecimal() and len(text) < 9 and fits(int(text))):
        raise ValueError(f"expected {expected}, or `{ALL_USERS}`, got {in_brief(text)}")
    return int(text)


@command_options
class Options(options.Forced, options.Earlier, options.Which):
    """Which runs to report, what a page shows, and where it is written."""

    with_posts: bool = option(False, "show users' posts too: private data, share with care")
    users: int | str | None = option(
        None,
        f"users to show one by one (default: {pages.SAMPLE_USERS}); `{ALL_USERS}` writes a second"
        " page with every user",
        unit="N",
        read=_users,
        per_command=True,
    )
    out: Path | None = option(
        None,
        "where to write the page (default: with the report)",
        unit="FILE.html",
        read=file_of(".html"),
    )


def execute(args: Options) -> int:
    """Write the pages of the named runs; without a name, one over all runs."""
    if not (args.runs or args.model or args.platform):
        from harness.commands.stats import overview

        return overview.execute(args)
    # Refused before missing reports are made, which can take minutes.
    if args.out:
        check_free(args.out, force=args.force)
    code = _make_missing(args)
    reports, code_of_unreadable = selected(args)
    if not (reports or code):
        raise selection.nothing_found(args)
    if args.out and len(reports) > 1:
        raise BadInput(
            f"--out is for one page, and these are {len(reports)}: name one and its --subset"
        )
    _, code_of_pages = selection.each(reports, lambda files: _write(files, args), label)
    return max(code, code_of_unreadable, code_of_pages)


def write_new_page(
    args: options.Pages, run: Reported, say: Callable[[str], None] = lambda line: None
) -> None:
    """Write the page of a new report, but of a run that was begun without."""
    manifest = load(run.files.manifest)
    if not args.html or (manifest and manifest.is_without_pages):
        return
    name = f"{run.files.folder.name}, {run.files.subset}"
    if pages.attempt(partial(pages.write_page, run, pages.PageOptions()), name):
        say(f"page: {run.files.report('html')}")


def _write(files: RunFiles, args: Options) -> None:
    """Write the page of a run, and with `--users all` that of all users."""
    report = read(files)
    manifest = load(files.manifest)
    seed = defaults.SAMPLE_SEED
    if manifest:
        seed = manifest.selection["sample_seed"]
    else:
        results = imported_of(files)
        if results and not results.is_current:
            raise BadInput(results.remedy)
    all_users = args.out and args.out.with_name(files.all_users.name)
    if all_users and args.users == ALL_USERS:
        check_free(all_users, force=args.force)
    # `all` writes a second page: this one has the usual sample.
    users = args.users if isinstance(args.users, int) else pages.SAMPLE_USERS
    options = pages.PageOptions(users, args.with_posts, patient=True)
    source = Reported(files, report, seed)
    with ExitStack() as stack:
        try:
            benchmark, index = _opened(files, manifest, args)
            stack.callback(index.close)
            source = Reported(files, report, seed, benchmark, index)
        except HarnessError as error:
            tell(f"{label(files)}: without its tasks ({error})")
        written = [pages.write_page(source, options, args.out)]
        if args.users == ALL_USERS:
            written.append(pages.write_all(source, options, all_users))
    for path in written:
        show(path)


def _opened(
    files: RunFiles, manifest: Manifest | None, args: Options
) -> tuple[Benchmark, TaskIndex]:
    """Return a run's benchmark and tasks. Raise `BadInput` if they are missing or have changed."""
    if manifest is None:
        benchmark = registry.importing(files.subset)[0]()
        folder = args.tasks_dir or defaults.TASKS_FOLDER
        tasks = benchmark.task_files.file_in(folder, benchmark.subsets[files.subset])
        return benchmark, index_file(benchmark, files.subset, tasks, args.results_dir)
    run = SavedRun(files, manifest, args.trust, args.benchmark)
    benchmark = run.as_it_was(args.tasks_dir, play=False)
    tasks = run.tasks(args.tasks_dir)
    return benchmark, index_file(
        benchmark, files.subset, tasks, args.results_dir, manifest.selection
    )


def _make_missing(args: Options) -> int:
    """Make the reports of selected runs that ended without one; return an exit code. A run that was
    stopped by a signal has none, nor has one that was killed."""
    without_report = list[SavedRun]()
    for run in selection.find(args)[0]:
        has_ended = run.manifest.state in (STOPPED, RUNNING)
        if has_ended and not run.files.report("json").exists():
            without_report.append(run)
    make = partial(report_of, results=args.results_dir, tasks=args.tasks_dir)
    return selection.each(without_report, make)[1]


def selected(args: Options) -> tuple[list[RunFiles], int]:
    """Return the reports that the options select, those of another program's results included, and
    an exit code.

    A report that cannot be read is reported and skipped, if the model in it matters.
    """
    reports = list[RunFiles]()
    code = 0
    for path in sorted(args.results_dir.glob("*/eval_report_*.json")):
        files = RunFiles(path.parent, path.stem.removeprefix("eval_report_"))
        if args.runs and path.parent.name not in args.runs:
            continue
        if args.platform and files.subset not in args.platform:
            continue
        try:
            if not args.model or args.model in (read(files).model, files.folder.name):
                reports.append(files)
        except BadInput as error:
            tell(str(error))
            code = ExitCode.of(error)
    return reports, code


def read(files: RunFiles) -> Report:
    """Return a run's report. Raise `BadInput` if it cannot be used."""
    path = files.report("json")
    try:
        return loaded(path)
    except BadInput as error:
        raise BadInput(f"{path} is {error}") from None


def label(files: RunFiles) -> str:
    """Return a run's name for pages and messages; a folder's name may be no text."""
    name = os.fsencode(files.folder.name).decode("utf-8", "backslashreplace")
    return f"{name}, {files.subset}"


def show(path: Path) -> None:
    """Print where a file is, and its size."""
    console().print(f"{path} ({path.stat().st_size / 1e6:.2f} MB)", **PLAIN)
