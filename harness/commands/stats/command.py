"""`stats`: tables of runs, a row a run and a column a subset, on the terminal, as text, and as Excel files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

from rich.cells import cell_len
from rich.table import Table as Columns
from rich.text import Text

from harness import defaults
from harness.analysis import selection
from harness.analysis.imported import imported
from harness.commands.parser import called
from harness.commands.stats import costs, footnotes, formats, tables, workbooks
from harness.commands.stats.grid import Grid, Number, Standing
from harness.commands.stats.reports import Scored, read, without_merged
from harness.commands.stats.tables import MetricTable
from harness.commands.stats.uncertainty import with_uncertainty
from harness.errors import BadInput, MachineError, in_brief, which_is_known
from harness.option import command_options, file_of, folder, option
from harness.options import options
from harness.reporting import xlsx
from harness.reporting.outputs import check_free
from harness.store import atomic
from harness.store.files import runs
from harness.ui.console import console
from harness.ui.streams import show, show_json, tell

NAME_LEAST = 12
"""Columns of a terminal that a run's name gets, however narrow it is."""
GAP = 2
STYLES = {None: "", Standing.BEST: "bold", Standing.SECOND: "underline"}


@command_options
class Options(options.Forced, options.AsJson, options.ResultsFolder, options.TasksFolder):
    examples: ClassVar[Sequence[str]] = (
        "harness stats",
        "harness stats deepseek-chat Qwen3-8B --intervals",
        "harness stats --format latex --published --into table.tex",
    )
    runs: Sequence[str] = options.runs_option("runs to rank against each other (default: all)", read=None)
    format: Literal["table", "markdown", "latex", "csv"] = option(
        "table",
        "what is printed (default: table; csv is UTF-8, one line per figure)",
    )
    metric: Sequence[str] | None = option(
        None,
        "a metric to print; may be repeated (default: the main ones of each benchmark; all in JSON)",
        unit="NAME",
    )
    published: bool = option(False, "show the published scores next to the runs")
    intervals: bool = option(False, "show 95 % intervals with the figures (CSV, JSON and Excel files always have them)")
    excel: bool = option(False, "write an Excel file per metric too")
    out: Path | None = option(
        None,
        "folder for the files of --excel (default: metric_excels in the results folder)",
        unit="DIR",
        read=folder,
    )
    into: Path | None = option(
        None, "write Markdown, LaTeX or CSV into this file instead", read=file_of(".md", ".tex", ".csv")
    )


def execute(args: Options) -> int:
    if args.json and args.format != "table":
        raise BadInput(f"--json prints JSON: leave out --format {args.format}")
    if args.into and (args.json or args.format == "table"):
        raise BadInput("--into takes what --format markdown, latex or csv makes")
    if args.out and not args.excel:
        raise BadInput("--out is the folder for the files of --excel")
    if args.into:
        check_free(args.into, force=args.force)
    found, reports, missing, code = _ranked(args)
    chosen = found if args.json and not args.metric else _chosen(found, args.metric, args.format == "csv")
    out = (args.out or args.results_dir / defaults.EXCEL_FOLDER) if args.excel else None
    failed = _write_all(found, reports, missing, out, args) if out else None
    _print(args, chosen, missing, None if failed else out)
    if failed:
        raise type(failed)(f"{failed} (--out DIR puts the Excel files elsewhere)") from failed
    return code


def _ranked(args: Options) -> tuple[list[MetricTable], list[Scored], list[str], int]:
    """Return the tables of all metrics, the reports in them, sentences on what is missing, and an exit code."""
    paths = sorted(args.results_dir.glob("*/eval_report_*.json"))
    reports, code = selection.each(_of(paths, args), read, str)
    left = footnotes.left_out(reports, paths, args.results_dir, args.runs)
    reports = [report for report in reports if (report.run, report.subset) not in left.outdated]
    reports = reports if args.runs else without_merged(reports)
    covered = [report for report in reports if report.scored]
    if not covered and not args.published:
        raise BadInput(left.nothing_else(args.results_dir, args.runs))
    found, unranked = with_uncertainty(tables.tables(covered, with_published=args.published), args.results_dir)
    missing = [*unranked, *left.sentences()]
    return found, reports, missing, code


def leaderboard(
    *runs: str,
    metric: str | Sequence[str] | None = None,
    published: bool | None = None,
    results_dir: str | Path | None = None,
    settings_file: str | Path | None = None,
) -> dict[str, object]:
    """Return the tables of all runs, or of those that are named, as `harness stats --json` prints them.

    `metric` are metrics, by name; without, all. Raise `BadInput` where no run has a report.
    """
    args = called("stats", {**locals(), "name": runs or None}).args
    found, _, _, _ = _ranked(args)
    return formats.plain(_chosen(found, args.metric, False) if args.metric else found)


def _of(paths: Sequence[Path], args: Options) -> list[Path]:
    """Return the reports of the runs that are named, of all without names."""
    if not args.runs:
        return list(paths)
    there = {path.parent.name for path in paths} | {files.folder.name for files in runs(args.results_dir)}
    there |= {one.name for one in imported(args.results_dir)}
    if missing := [name for name in args.runs if name not in there]:
        known = f": there are {', '.join(sorted(there))}" if there else ""
        raise BadInput(f"no report of {', '.join(map(in_brief, missing))} under {args.results_dir}{known}")
    return [path for path in paths if path.parent.name in args.runs]


def _chosen(found: Sequence[MetricTable], names: Sequence[str] | None, for_programs: bool) -> list[MetricTable]:
    """Return the tables of the named metrics, of all benchmarks that have one of that name, in the order of the names;
    without names the main ones, and those with published scores; for programs what ranks them has lines of its own."""
    if names is None:
        return tables.main(found, with_ranking=for_programs)
    chosen: list[MetricTable] = []
    for name in names:
        of = [table for table in found if name.casefold() in (table.metric.name.casefold(), table.label.casefold())]
        if not of:
            known = [table.label for table in found]
            raise BadInput(f"no run has the metric {name!r}{which_is_known(name, known, '--metric')}")
        chosen += [table for table in of if not any(table is one for one in chosen)]
    return chosen


def _write_all(
    found: Sequence[MetricTable], reports: Sequence[Scored], missing: Sequence[str], out: Path, args: Options
) -> MachineError | BadInput | None:
    """Write the Excel files, or return why they cannot be written: the tables of a read-only archive can still be
    printed. A folder that the command has named may be a symbolic link."""
    try:
        if args.out is None:
            atomic.check_folder(out)
        made = {out / f"{name}.xlsx": sheets for name, sheets in workbooks.workbooks(found, reports, missing)}
        if args.out is not None:
            check_free(*made, force=args.force)
        for path, sheets in made.items():
            xlsx.write(path, sheets)
    except (MachineError, BadInput) as error:
        return error
    return None


def _print(args: Options, chosen: Sequence[MetricTable], missing: Sequence[str], out: Path | None) -> None:
    """Print the tables, and in sentences which runs are `missing` in them."""
    if args.json or args.format == "csv":  # which have no place for sentences
        for line in missing:
            tell(line)
    if args.json:
        show_json(formats.plain(chosen))
    elif args.format == "table":
        _show(chosen, missing, out, args.intervals)
    elif args.into:
        written = formats.text(args.format, chosen, missing, intervals=args.intervals)
        atomic.write(args.into, written.encode(), shared=True)
        tell(f"written: {args.into}")
    else:
        show(formats.text(args.format, chosen, missing, intervals=args.intervals).rstrip("\n"))


def _show(chosen: Sequence[MetricTable], missing: Sequence[str], out: Path | None, intervals: bool) -> None:
    screen = console()
    for grid in formats.grids(chosen, intervals=intervals):
        screen.print(grid.title, style="italic", highlight=False)
        columns = _columns(grid)
        screen.width = max(screen.width, _least(columns))
        screen.print(columns, crop=False)
        screen.print()
    for line in [
        *formats.about(chosen),
        *footnotes.notes(chosen, show_ranks=screen.color_system is not None),
        *costs.notes(chosen),
        *missing,
    ]:
        screen.print(line, soft_wrap=True)
    if out is not None:
        screen.print(f"every metric: {out}", soft_wrap=True)


def _columns(table: Grid) -> Columns:
    made = Columns(box=None, pad_edge=False)
    made.add_column(table.corner, overflow="fold", min_width=NAME_LEAST)
    for column in table.columns:
        made.add_column(column, justify="right", no_wrap=True)
    for group in table.groups:
        if made.row_count:
            made.add_row()
        for name, numbers in group:
            made.add_row(name, *map(_cell, numbers))
    return made


def _least(columns: Columns) -> int:
    """Return the width that shows every figure whole, with folded names; a narrower terminal breaks the lines."""
    figures = [column for column in columns.columns if column.no_wrap]
    widest = (max(cell_len(str(text)) for text in (column.header, *column.cells)) for column in figures)
    return NAME_LEAST + sum(GAP + width for width in widest)


def _cell(number: Number | None) -> Text:
    if number is None:
        return Text("")
    interval = f" {number.interval}" if number.interval else ""
    published = f" ({number.published})" if number.published else ""
    return Text.assemble((number.text, STYLES[number.place]), "*" if number.marked else "", published, interval)
