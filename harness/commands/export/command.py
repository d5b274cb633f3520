"""`export`: write saved runs for other programs: their rows as CSV, JSON lines or Parquet, or logs
of Inspect; or send them to a tracker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Literal

from harness.analysis import plays, rows, selection
from harness.analysis.saved_runs import Rows, SavedRun
from harness.commands.export import TRACKERS, every_eval_ever, formats, inspect_log, trackers
from harness.commands.parser import called
from harness.errors import BadInput, ExitCode
from harness.model import JSON
from harness.option import command_options, option
from harness.options import options
from harness.reporting.outputs import check_free
from harness.reporting.report_files import loaded
from harness.store import atomic
from harness.ui.streams import tell
from harness.ui.words import plural

LOGS = {"inspect": inspect_log.write, "every-eval-ever": every_eval_ever.write}
"""Formats with a file for each run, and what writes it."""
ENDINGS = {
    "csv": ".csv",
    "jsonl": ".jsonl",
    "parquet": ".parquet",
    "inspect": ".eval",
    "every-eval-ever": ".json",
}
FORMATS = {ending: name for name, ending in ENDINGS.items()}


@command_options
class Options(options.Forced, options.Earlier):
    runs: Sequence[str] = options.runs_option("names of runs (default: all)", read=None)
    format: (
        Literal["csv", "jsonl", "parquet", "inspect", "every-eval-ever", "wandb", "mlflow"] | None
    ) = option(
        None,
        "default: csv, or what the ending of --out says; inspect is a log that `inspect view`"
        " opens, every-eval-ever the schema of that name; wandb and mlflow send the runs there",
    )
    model: str | None = None
    rows: Rows | None = option(None, "what each row is: a step (default), a user or a response")
    out: str | None = option(
        None,
        f"a file ({', '.join(FORMATS)}) for all rows together, or a folder (default: each run's"
        " own)",
        unit="FILE_OR_DIR",
    )
    platform: Sequence[str] | None = options.platform_option("one subset; may be repeated")


def execute(args: Options) -> int:
    runs, code = selection.find(args)
    # Runs that were merged are in the merged one, and their rows would be there twice.
    if not args.runs:
        runs = selection.without_merged(runs)
    names_found = {run.name for run in runs}
    unfound = replace(args, runs=[name for name in args.runs if name not in names_found])
    if not code and (unfound.runs or not runs):
        raise selection.nothing_found(unfound)
    return max(code, _export(runs, args))


def _export(runs: Sequence[SavedRun], args: Options) -> int:
    """Send runs to a tracker, or write their files; return an exit code."""
    out = None
    out_format = None
    if args.out:
        out = Path(args.out)
        out_format = FORMATS.get(out.suffix.lower())
    form = args.format or out_format or "csv"
    _check_options(args, form, out_format)
    if form in TRACKERS:
        trackers.check(form)
        return selection.each(runs, lambda run: trackers.send(run, form))[1]
    formats.check(form)
    if out and out_format:
        return _write_together(runs, out, form, args)
    return selection.each(runs, lambda run: _write_run(run, out, form, args))[1]


def _check_options(args: Options, form: str, out_format: str | None) -> None:
    """Raise `BadInput` for options that a format does not have. `out_format` is that of the ending
    of --out."""
    if form in TRACKERS and (args.out or args.rows):
        raise BadInput(f"--out and --rows are for files: --format {form} sends the folders of runs")
    if out_format not in (None, form):
        raise BadInput(
            f"--out {args.out} is not a file of --format {form}, whose ending is {ENDINGS[form]}"
        )
    if form in LOGS and args.rows:
        raise BadInput(f"--rows is for tables: a file of --format {form} has a sample a user")


def _write_together(runs: Sequence[SavedRun], path: Path, form: str, args: Options) -> int:
    """Write the rows of all runs into one file; return an exit code."""
    # The files of tasks, records and replies have this ending: none is replaced, even by --force.
    if path.suffix.lower() == ".jsonl" and path.exists():
        raise BadInput(f"{path} is there already: give --out another name, or remove the file")
    check_free(path, force=args.force)
    atomic.make_folder(path.parent)
    if form not in LOGS:
        all_rows = chain.from_iterable(_rows(run, args) for run in runs)
        count = formats.write(path, form, all_rows)
        tell(f"{plural(count, 'row')} of {plural(len(runs), 'run')}: {path}")
        return 0
    if len(runs) > 1:
        raise BadInput(
            f"--out {path} is for one log, and these are {len(runs)}: name one run with its"
            " --subset"
        )
    return selection.each(runs, lambda run: _log(run, path, form, args))[1]


def _write_run(run: SavedRun, out: Path | None, form: str, args: Options) -> None:
    """Write a run's own file into its folder, or into one of its name below `out`."""
    folder = run.files.folder
    if out:
        folder = out / run.name
        atomic.make_folder(folder)
    atomic.check_folder(folder)
    rows_name = "" if form in LOGS else f"{args.rows or 'steps'}_"
    path = folder / f"export_{rows_name}{run.files.subset}{ENDINGS[form]}"
    if out:
        check_free(path, force=args.force)
    if form in LOGS:
        _log(run, path, form, args)
        return
    count = formats.write(path, form, _rows(run, args))
    tell(f"{run.label}: {plural(count, 'row')}: {path}")


def _rows(run: SavedRun, args: Options) -> Iterator[JSON]:
    return rows.rows(run, args.rows or "steps", args.tasks_dir, args.results_dir)


def _log(run: SavedRun, path: Path, form: str, args: Options) -> None:
    report_path = run.files.report("json")
    report = loaded(report_path) if report_path.exists() else None
    with plays.opened(run, args.tasks_dir, args.results_dir) as played:
        count = LOGS[form](path, run, played, report)
    tell(f"{run.label}: {plural(count, 'sample')}: {path}")


def export(  # noqa: PLR0913
    *runs: str,
    format: (
        Literal["csv", "jsonl", "parquet", "inspect", "every-eval-ever", "wandb", "mlflow"] | None
    ) = None,
    rows: Rows | None = None,
    out: str | Path | None = None,
    subset: str | Sequence[str] | None = None,
    results_dir: str | Path | None = None,
    tasks_dir: str | Path | None = None,
    force: bool | None = None,
    benchmark: str | None = None,
    trust: bool | None = None,
    settings_file: str | Path | None = None,
) -> None:
    """Write runs for other programs, as `harness export` does; without names, all.

    `format` is CSV, or what the ending of `out` says; each of the `rows` is a step, a user or a
    response. Raise `BadInput`, or the error of a run that cannot be written.
    """
    replaced = {"name": runs or None, "out": out and str(out)}
    code = execute(called("export", {**locals(), **replaced}).args)
    if isinstance(code, ExitCode):
        raise code.error
