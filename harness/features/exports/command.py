"""`export`: write saved runs for other programs: their rows as CSV, JSON lines or Parquet, or logs of Inspect; or send
them to a tracker."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.analysis import plays, rows, selection
from harness.analysis.saved_runs import SavedRun
from harness.benchmarks.reports import loaded
from harness.config import options
from harness.errors import BadInput
from harness.features.exports import TRACKERS, formats, inspect_log, trackers
from harness.model import JSON
from harness.store import atomic
from harness.ui.streams import tell
from harness.ui.words import plural

INSPECT = "inspect"
ENDINGS = {"csv": ".csv", "jsonl": ".jsonl", "parquet": ".parquet", INSPECT: ".eval"}
FORMATS = {ending: name for name, ending in ENDINGS.items()}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_runs(parser, "names of runs (default: all)", options.filled)
    words = "default: csv, or what the ending of --out says; inspect is a log that `inspect view` opens; wandb and "
    words += "mlflow send the runs there"
    options.add(parser, "--format", words, choices=(*ENDINGS, *TRACKERS))
    words = "what each row is: a step (default), a user or a response"
    options.add(parser, "--rows", words, choices=rows.ROWS)
    words = f"a file ({', '.join(FORMATS)}) for all rows together, or a folder (default: each run's own)"
    options.add(parser, "--out FILE_OR_DIR", words, type=options.filled)
    options.add_force(parser)
    options.add_platform(parser, "one subset; may be repeated")
    options.add_earlier(parser)


def execute(args: argparse.Namespace) -> int:
    args.model = None
    found, code = selection.find(args)
    found = found if args.runs else selection.without_merged(found)
    args.runs = [name for name in args.runs if name not in {run.name for run in found}]
    if not code and (args.runs or not found):
        raise selection.nothing_found(args)
    out = Path(args.out) if args.out else None
    ending = FORMATS.get(out.suffix.lower()) if out else None
    form = args.format or ending or "csv"
    if form in TRACKERS:
        if out or args.rows:
            raise BadInput(f"--out and --rows are for files: --format {form} sends the folders of runs")
        trackers.check(form)
        return max(code, selection.each(found, lambda run: tell(trackers.sent(run, form)), lambda run: run.label)[1])
    if ending not in (None, form):
        raise BadInput(f"--out {out} is not a file of --format {form}, whose ending is {ENDINGS[form]}")
    if form == INSPECT and args.rows:
        raise BadInput("--rows is for tables: a log of --format inspect has a sample a user")
    if out and ending:
        return max(code, _together(found, out, form, args))
    formats.check(form)
    return max(code, selection.each(found, lambda run: _apart(run, out, form, args), lambda run: run.label)[1])


def _together(found: Sequence[SavedRun], path: Path, form: str, args: argparse.Namespace) -> int:
    """Write the rows of all runs into one file."""
    if path.suffix.lower() == ".jsonl" and path.exists():  # as the files of tasks, records and replies end
        raise BadInput(f"{path} is there already: give --out another name, or remove the file")
    options.outputs(args).check(path)
    if form != INSPECT:
        atomic.make_folder(path.parent)
        count = formats.write(path, form, (row for run in found for row in _rows(run, args)), options.outputs(args))
        tell(f"{plural(count, 'row')} of {plural(len(found), 'run')}: {path}")
        return 0
    if len(found) > 1:
        raise BadInput(f"--out {path} is for one log, and these are {len(found)}: name one run with its --subset")
    return selection.each(found, lambda run: _log(run, path, args), lambda run: run.label)[1]


def _apart(run: SavedRun, out: Path | None, form: str, args: argparse.Namespace) -> None:
    """Write a run's own file into its folder, or into one of its name below `out`."""
    folder = out / run.name if out else run.files.folder
    if out:
        atomic.make_folder(folder)
    atomic.check_folder(folder)
    if form == INSPECT:
        _log(run, folder / f"export_{run.files.subset}.eval", args)
        return
    path = folder / f"export_{args.rows or rows.ROWS[0]}_{run.files.subset}{ENDINGS[form]}"
    count = formats.write(path, form, _rows(run, args), options.outputs(args))
    tell(f"{run.label}: {plural(count, 'row')}: {path}")


def _rows(run: SavedRun, args: argparse.Namespace) -> Iterator[JSON]:
    return rows.rows(run, args.rows or rows.ROWS[0], args.tasks_dir, args.results_dir)


def _log(run: SavedRun, path: Path, args: argparse.Namespace) -> None:
    report = run.files.report("json")
    atomic.make_folder(path.parent)
    with plays.opened(run, args.tasks_dir, args.results_dir) as played:
        of = loaded(report) if report.exists() else None
        count = inspect_log.write(path, run, played, of, options.outputs(args))
    tell(f"{run.label}: {plural(count, 'sample')}: {path}")
