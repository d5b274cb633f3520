"""`merge`: make one run of its parts, which stay as they are."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import ClassVar

from harness.analysis import selection
from harness.analysis.saved_runs import SavedRun
from harness.commands.merge import merge
from harness.commands.merge.merge import LockedPart
from harness.commands.report import write_new_page
from harness.engine.files import index_file
from harness.errors import BadInput
from harness.option import option
from harness.options import options
from harness.reporting.report import covered, headline
from harness.reporting.reported import Reported
from harness.scoring.reports import Report
from harness.store.run import RunFiles, runs_in
from harness.ui.console import PLAIN, console

PART_NAME = re.compile(r"\.part[0-9]+of[0-9]+\Z")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Options(options.Pages, options.Earlier):
    examples: ClassVar[Sequence[str]] = (
        "harness merge Qwen3-8B",
        "harness merge /a/results/Qwen3-8B.part1of2 /b/results/Qwen3-8B.part2of2 --out whole",
    )
    runs: Sequence[str] = options.runs_option(
        "a part's name or folder, or NAME for all of NAME.part1of4, NAME.part2of4, ...",
        read=None,
        unit="PART",
    )
    out: str | None = option(
        None,
        "name of the whole run (default: the parts' own)",
        unit="NAME",
        read=options.folder_name,
    )


def execute(args: Options) -> int:
    folders = list[Path]()
    for name_or_folder in options.named_runs(args.runs):
        folders += _folders(name_or_folder, args.results_dir)
    name = options.new_run_name(args.out or _name(folders), "")
    screen = console()
    subsets = sorted({files.subset for folder in folders for files in runs_in(folder)})
    with merge.locked(folders, subsets) as parts_by_subset, ExitStack() as stack:
        merged = []
        with merge.placed(args.results_dir, name) as folder:
            for run_parts in parts_by_subset:
                for note in merge.notes(run_parts):
                    screen.print(note, **PLAIN)
                merged.append(_merged(run_parts, folder, args, stack))
        for files, report in merged:
            summary = f"{files.subset}: {covered(report)}: {headline(report)}"
            screen.print(f"{summary}; report: {files.report('txt')}", **PLAIN)
    if all(report.coverage.complete for _, report in merged):
        return 0
    screen.print(f"{name} is incomplete: `resume --name {name}` continues it", **PLAIN)
    return 1


def _merged(
    run_parts: Sequence[LockedPart], folder: Path, args: Options, stack: ExitStack
) -> tuple[RunFiles, Report]:
    """Merge the parts of one subset, and make its page; return the files of the run to be, and its
    report."""
    first = run_parts[0]
    subset = first.files.subset
    run = SavedRun(first.files, first.manifest, args.trust, args.benchmark)
    benchmark = run.as_it_was(args.tasks_dir, play=False)
    tasks = run.tasks(args.tasks_dir)
    selected = merge.whole_selection(first.manifest.selection)
    index = index_file(benchmark, subset, tasks, args.results_dir, selected)
    stack.callback(index.close)
    manifest, report = merge.merge(run_parts, benchmark, index, folder)
    seed = manifest.selection["sample_seed"]
    reported = Reported(RunFiles(folder, subset), report, seed, benchmark, index)
    write_new_page(args, reported, lambda line: None)
    return RunFiles(args.results_dir / folder.name, subset), report


def _folders(name: str, results: Path) -> list[Path]:
    """Return the folders of parts that a name or path means. Raise `BadInput` if there is none."""
    path = Path(name)
    candidates = [path]
    if os.sep not in name:
        path = results / name
        candidates = [path, *sorted(results.glob(f"{escape(name)}.part*of*"))]
    folders = [folder for folder in candidates if any(runs_in(folder))]
    if not folders:
        raise BadInput(
            f"{path} holds no run, and has no parts {path.name}.part1of...: `status` lists the runs"
        )
    for folder in folders:
        selection.check_name(folder)
    return folders


def _name(folders: Sequence[Path]) -> str:
    """Return the name that all parts have in common. Raise `BadInput` if they have none."""
    names = {PART_NAME.sub("", folder.name) for folder in folders}
    if len(names) != 1:
        raise BadInput("the parts have no name in common: name the whole run with --out")
    return names.pop()
