"""`report`: make the reports of runs that ended without one, from a results folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from harness.analysis import selection
from harness.analysis.reporting import report_of
from harness.benchmarks.reports import Report, loaded
from harness.errors import BadInput, ExitCode
from harness.feature import takeovers
from harness.options import options
from harness.store.files import RunFiles
from harness.store.manifest import RUNNING, STOPPED
from harness.ui.console import console
from harness.ui.streams import tell


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Options(options.Earlier, options.Which):
    """Which runs to report."""


def execute(args: Options) -> int:
    for other in takeovers("report", args):
        return other(args)
    found, code = made(args)
    for files in found:
        show(files.report("txt"))
    return code


def made(args: Options) -> tuple[list[RunFiles], int]:
    """Make the missing reports of the selected runs; return all their reports, and an exit code. Raise `BadInput`
    without any."""
    unmade = _make_missing(args)
    found, skipped = selected(args)
    if not (found or unmade):
        raise selection.nothing_found(args)
    return found, max(skipped, unmade)


def _make_missing(args: Options) -> int:
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


def selected(args: Options) -> tuple[list[RunFiles], int]:
    """Return the reports that the options select, those of another program's results included, and an exit code.

    A report that cannot be read is reported and skipped, if the model in it matters.
    """
    platforms, code = {name.lower() for name in args.platform or ()}, 0
    found = []
    for path in sorted(args.results_dir.glob("*/eval_report_*.json")):
        files = RunFiles(path.parent, path.stem.removeprefix("eval_report_"))
        if (args.runs and path.parent.name not in args.runs) or (platforms and files.subset not in platforms):
            continue
        try:
            if not args.model or args.model in (read(files).model, files.folder.name):
                found.append(files)
        except BadInput as error:
            tell(str(error))
            code = ExitCode.of(error)
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


def show(path: Path) -> None:
    """Print where a file is, and its size."""
    console().print(f"{path} ({path.stat().st_size / 1e6:.2f} MB)", highlight=False, soft_wrap=True, markup=False)
