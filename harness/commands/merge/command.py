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
from harness.commands.merge.merge import Part
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
    folders = [
        folder
        for word in options.named_runs(args.runs)
        for folder in _folders(word, args.results_dir)
    ]
    name, screen = options.new_run_name(args.out or _name(folders), ""), console()
    subsets = sorted({files.subset for folder in folders for files in runs_in(folder)})
    with merge.locked(folders, subsets) as found, ExitStack() as held:
        made = []
        with merge.placed(args.results_dir, name) as folder:
            for parts in found:
                for words in merge.notes(parts):
                    screen.print(words, **PLAIN)
                made.append(_merged(parts, folder, args, held))
        for files, report in made:
            summary = f"{files.subset}: {covered(report)}: {headline(report)}"
            screen.print(f"{summary}; report: {files.report('txt')}", **PLAIN)
    if all(report.coverage.complete for _, report in made):
        return 0
    screen.print(f"{name} is incomplete: `resume --name {name}` continues it", **PLAIN)
    return 1


def _merged(
    parts: Sequence[Part], folder: Path, args: Options, held: ExitStack
) -> tuple[RunFiles, Report]:
    """Merge the parts of one subset, and make its page; return the files of the run to be, and its
    report."""
    first = parts[0]
    saved = SavedRun(first.files, first.manifest, args.trust, args.benchmark)
    benchmark, tasks = saved.as_it_was(args.tasks_dir, play=False), saved.tasks(args.tasks_dir)
    index = index_file(
        benchmark,
        first.files.subset,
        tasks,
        args.results_dir,
        merge.whole(first.manifest.selection),
    )
    held.callback(index.close)
    manifest, report = merge.merge(parts, benchmark, index, folder)
    files = RunFiles(folder, first.files.subset)
    write_new_page(
        args,
        Reported(files, report, manifest.selection["sample_seed"], benchmark, index),
        lambda words: None,
    )
    return RunFiles(args.results_dir / folder.name, files.subset), report


def _folders(word: str, results: Path) -> list[Path]:
    """Return the folders of parts that a word names. Raise `BadInput` if there is none."""
    named = Path(word) if os.sep in word else results / word
    several = () if os.sep in word else sorted(results.glob(f"{escape(word)}.part*of*"))
    found = [folder for folder in (named, *several) if any(runs_in(folder))]
    if not found:
        raise BadInput(
            f"{named} holds no run, and has no parts {named.name}.part1of...: `status` lists the"
            " runs"
        )
    for folder in found:
        selection.check_name(folder)
    return found


def _name(folders: Sequence[Path]) -> str:
    """Return the name that all parts have in common. Raise `BadInput` if they have none."""
    names = {PART_NAME.sub("", folder.name) for folder in folders}
    if len(names) != 1:
        raise BadInput("the parts have no name in common: name the whole run with --out")
    return names.pop()
