"""`export`: write saved runs for other programs: their rows as CSV, JSON lines or Parquet, or logs
of Inspect; or send them to a tracker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
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
    found, code = selection.find(args)
    found = found if args.runs else selection.without_merged(found)
    left = replace(
        args, runs=[name for name in args.runs if name not in {run.name for run in found}]
    )
    if not code and (left.runs or not found):
        raise selection.nothing_found(left)
    out = Path(args.out) if args.out else None
    ending = FORMATS.get(out.suffix.lower()) if out else None
    form = args.format or ending or "csv"
    if form in TRACKERS:
        if out or args.rows:
            raise BadInput(
                f"--out and --rows are for files: --format {form} sends the folders of runs"
            )
        trackers.check(form)
        return max(
            code,
            selection.each(found, lambda run: trackers.send(run, form), lambda run: run.label)[1],
        )
    if ending not in (None, form):
        raise BadInput(
            f"--out {out} is not a file of --format {form}, whose ending is {ENDINGS[form]}"
        )
    if form in LOGS and args.rows:
        raise BadInput(f"--rows is for tables: a file of --format {form} has a sample a user")
    formats.check(form)
    if out and ending:
        return max(code, _together(found, out, form, args))
    return max(
        code,
        selection.each(found, lambda run: _apart(run, out, form, args), lambda run: run.label)[1],
    )


def _together(found: Sequence[SavedRun], path: Path, form: str, args: Options) -> int:
    """Write the rows of all runs into one file."""
    if (
        path.suffix.lower() == ".jsonl" and path.exists()
    ):  # as the files of tasks, records and replies end
        raise BadInput(f"{path} is there already: give --out another name, or remove the file")
    check_free(path, force=args.force)
    atomic.make_folder(path.parent)
    if form not in LOGS:
        count = formats.write(path, form, (row for run in found for row in _rows(run, args)))
        tell(f"{plural(count, 'row')} of {plural(len(found), 'run')}: {path}")
        return 0
    if len(found) > 1:
        raise BadInput(
            f"--out {path} is for one log, and these are {len(found)}: name one run with its"
            " --subset"
        )
    return selection.each(found, lambda run: _log(run, path, form, args), lambda run: run.label)[1]


def _apart(run: SavedRun, out: Path | None, form: str, args: Options) -> None:
    """Write a run's own file into its folder, or into one of its name below `out`."""
    folder = out / run.name if out else run.files.folder
    if out:
        atomic.make_folder(folder)
    atomic.check_folder(folder)
    what = "" if form in LOGS else f"{args.rows or 'steps'}_"
    path = folder / f"export_{what}{run.files.subset}{ENDINGS[form]}"
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
    report = run.files.report("json")
    with plays.opened(run, args.tasks_dir, args.results_dir) as played:
        of = loaded(report) if report.exists() else None
        count = LOGS[form](path, run, played, of)
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
    more = {"name": runs or None, "out": out and str(out)}
    code = execute(called("export", {**locals(), **more}).args)
    if isinstance(code, ExitCode):
        raise code.error
