"""`reeval`: score saved answers again, without any request; also those of other programs."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from harness.analysis import imported_scores, rescoring, selection
from harness.analysis.rescoring import Rescored
from harness.commands.report import write_new_page
from harness.option import command_options, option
from harness.options import options
from harness.reporting import report as overview
from harness.ui.console import PLAIN, console


@command_options
class Options(options.Pages, options.Earlier, options.Which):
    reparse: bool = option(
        False, "start from the saved responses instead of the saved answers", everyday=True
    )
    new_prices: bool = option(
        False,
        "use today's prices (your providers.toml, else the shipped ones) instead of those of the"
        " run's time",
    )

    providers: Path | None = option(
        None, "with --new-prices: your own providers file (default: as in `run`)", unit="FILE"
    )


def execute(args: Options) -> int:
    runs, skipped = selection.find(args)
    imported, unnamed = selection.find_imported(args)
    if not runs and not imported:
        raise selection.nothing_found(args)
    chosen = rescoring.RescoreOptions(
        args.results_dir,
        args.tasks_dir,
        args.reparse,
        args.new_prices,
        args.providers,
        partial(write_new_page, args),
    )
    codes, failed = selection.each(runs, lambda run: _show(rescoring.rescored_run(run, chosen)))
    imported_codes, unread = selection.each(
        imported,
        lambda results: _show(imported_scores.scored_again(results, chosen)),
        lambda results: str(results.files.results),
    )
    return max(skipped, unnamed, *codes, *imported_codes, failed, unread)


def _show(rescored: Rescored) -> int:
    """Print where the new report is; return an exit code."""
    files = rescored.files
    users = overview.covered(rescored.report)
    summary = (
        f"{files.folder.name}, {files.subset}: scored again: {users}; report: {files.report('txt')}"
    )
    for line in (summary, *rescored.notes):
        console().print(line, **PLAIN)
    return 0 if rescored.complete else 1
