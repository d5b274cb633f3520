"""`stats`: tables of runs, a row a run and a column a subset, on the terminal, as text, and as
Excel files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import ClassVar, Literal

from harness import defaults
from harness.analysis import selection
from harness.analysis.imported import imported
from harness.commands.parser import called
from harness.commands.stats import costs, formats, workbooks
from harness.commands.stats import leaderboard as tables
from harness.commands.stats.missing import left_out, unranked
from harness.commands.stats.notes import notes
from harness.commands.stats.run_reports import RunReport, about_run, by_run, read, without_merged
from harness.commands.stats.standings import Standing, main_standings, standings
from harness.commands.stats.uncertainty import with_uncertainty
from harness.document import Table
from harness.errors import BadInput, MachineError, in_brief, which_is_known
from harness.option import command_options, file_of, folder, option
from harness.options import options
from harness.reporting import latex, markdown, terminal, xlsx
from harness.reporting.outputs import check_free
from harness.store import atomic
from harness.store.files import runs
from harness.ui.console import console
from harness.ui.streams import show, show_json, tell


@command_options
class Options(options.Forced, options.AsJson, options.ResultsFolder, options.TasksFolder):
    examples: ClassVar[Sequence[str]] = (
        "harness stats",
        "harness stats deepseek-chat Qwen3-8B --intervals",
        "harness stats --format latex --published --into table.tex",
    )
    runs: Sequence[str] = options.runs_option(
        "runs to rank against each other (default: all)", read=None
    )
    format: Literal["table", "markdown", "latex", "csv"] = option(
        "table", "what is printed (default: table; csv is UTF-8, one line per figure)"
    )
    metric: Sequence[str] | None = option(
        None,
        "a metric to print; may be repeated (default: the main ones of each benchmark; all in"
        " JSON)",
        unit="NAME",
    )
    platform: Sequence[str] | None = options.platform_option(
        "one subset, with its figures alone; may be repeated"
    )
    published: bool = option(False, "show the published scores next to the runs")
    intervals: bool = option(
        False, "show 95 % intervals with the figures (CSV, JSON and Excel files always have them)"
    )
    excel: bool = option(False, "write an Excel file per metric too")
    out: Path | None = option(
        None,
        "folder for the files of --excel (default: metric_excels in the results folder)",
        unit="DIR",
        read=folder,
    )
    into: Path | None = option(
        None,
        "write Markdown, LaTeX or CSV into this file instead",
        read=file_of(".md", ".tex", ".csv"),
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

    board = _board(args)
    if args.excel:
        _print_with_excel(board, args)
    else:
        _print(board, args)

    return board.code


def _print_with_excel(board: Board, args: Options) -> None:
    """Write the Excel files and print the tables; these come also if the files cannot be written,
    as for a read-only archive."""
    out = args.out or args.results_dir / defaults.EXCEL_FOLDER
    try:
        _write_excel(board, out, args)
    except (MachineError, BadInput) as error:
        _print(board, args)
        raise type(error)(f"{error} (--out DIR puts the Excel files elsewhere)") from error

    _print(board, args)
    if args.format == "table" and not args.json:
        console().print(f"every metric: {out}", soft_wrap=True)


@dataclass(frozen=True, slots=True)
class Board:
    """The figures of all metrics, the `chosen` ones to print, the reports that they are of,
    sentences on what is missing, and an exit code."""

    standings: list[Standing]
    chosen: list[Standing]
    reports: list[RunReport]
    missing: list[str]
    code: int


def _board(args: Options) -> Board:
    paths = sorted(args.results_dir.glob("*/eval_report_*.json"))
    reports, code = selection.each(_selected(paths, args), read, str)
    left = left_out(
        reports,
        paths,
        args.results_dir,
        args.runs,
        args.platform,
    )
    reports = left.current(reports)
    # Parts that are named are compared with each other.
    if not args.runs:
        reports = without_merged(reports)

    covered = [report for report in reports if report.scored]
    subsets = args.platform or ()
    if not covered and not args.published:
        raise BadInput(left.nothing_else(args.results_dir, (*args.runs, *subsets)))

    all_standings, unusable = with_uncertainty(
        standings(covered, published=args.published, subsets=subsets), args.results_dir
    )

    return Board(
        all_standings,
        _chosen(all_standings, args),
        reports,
        [*unranked(unusable), *left.sentences()],
        code,
    )


def leaderboard(
    *runs: str,
    metric: str | Sequence[str] | None = None,
    subset: str | Sequence[str] | None = None,
    published: bool | None = None,
    results_dir: str | Path | None = None,
    settings_file: str | Path | None = None,
) -> dict[str, object]:
    """Return the tables of all runs, or of those that are named, as `harness stats --json` prints
    them.

    `metric` are metrics, by name, and `subset` subsets; without, all. Raise `BadInput` where no run
    has a report.
    """
    args = called("stats", {**locals(), "name": runs or None, "json": True}).args
    return formats.as_json(_board(args).chosen)


def _selected(paths: Sequence[Path], args: Options) -> list[Path]:
    """Return the reports of the runs and subsets that are named, of all without names."""
    # Runs without a report may be named: they are listed as left out.
    folders = {results.name for results in imported(args.results_dir)}
    subsets = set()
    for files in runs(args.results_dir):
        folders.add(files.folder.name)
        subsets.add(files.subset)

    selected = []
    for path in paths:
        run = path.parent.name
        subset = path.stem.removeprefix("eval_report_")
        folders.add(run)
        subsets.add(subset)
        is_named = not args.runs or run in args.runs

        if is_named and (not args.platform or subset in args.platform):
            selected.append(path)

    selection.check_subsets(args.platform, subsets)
    missing = [name for name in args.runs if name not in folders]
    if missing:
        known = f": there are {', '.join(sorted(folders))}" if folders else ""
        raise BadInput(
            f"no report of {', '.join(map(in_brief, missing))} under {args.results_dir}{known}"
        )

    return selected


def _chosen(all_standings: list[Standing], args: Options) -> list[Standing]:
    """Return the named metrics, of all benchmarks that have one of that name, in the order of the
    names.

    Without names JSON has all, and anything else the main ones, and those with published scores; in
    CSV what ranks them has lines of its own.
    """
    if args.metric is None and args.json:
        return all_standings
    if args.metric is None:
        return main_standings(all_standings, with_ranking=args.format == "csv")

    standings_by_name: dict[str, dict[str, Standing]] = {}
    for standing in all_standings:
        # Where two benchmarks have a metric of one name, the label has the benchmark's: either may
        # be typed.
        for name in (standing.metric.name, standing.label):
            standings_by_name.setdefault(name.casefold(), {})[standing.label] = standing

    chosen: dict[str, Standing] = {}
    for name in args.metric:
        if name.casefold() not in standings_by_name:
            labels = [standing.label for standing in all_standings]
            known = which_is_known(name, labels, "--metric")
            raise BadInput(f"no run has the metric {name!r}{known}")

        chosen |= standings_by_name[name.casefold()]

    return list(chosen.values())


def _write_excel(board: Board, out: Path, args: Options) -> None:
    """Write the Excel files. A folder that the command has named may be a symbolic link."""
    if args.out is None:
        atomic.check_folder(out)

    sheets_by_name = workbooks.workbooks(board.standings, board.reports, board.missing)
    files = {out / f"{name}.xlsx": sheets for name, sheets in sheets_by_name}
    if args.out is not None:
        # All before the first is written.
        check_free(*files, force=args.force)

    for path, sheets in files.items():
        xlsx.write(path, sheets)


def _print(board: Board, args: Options) -> None:
    if args.json or args.format == "csv":  # which have no place for sentences
        for sentence in board.missing:
            tell(sentence)

    if args.json:
        show_json(formats.as_json(board.chosen))
    elif args.format == "table":
        _show(board, args)
    elif args.into:
        atomic.write(args.into, _text(board, args).encode(), shared=True)
        tell(f"written: {args.into}")
    else:
        show(_text(board, args).rstrip("\n"))


def _text(board: Board, args: Options) -> str:
    """Return tables as CSV, or as Markdown or LaTeX, where what is missing in them is a comment for
    the author."""
    about = _about(board)
    match args.format:
        case "csv":
            return formats.as_csv(board.chosen)
        case "latex":
            return latex.rendered(_tables(board, args, with_notes=True), about)
        case _:
            return markdown.rendered(_tables(board, args), [*_notes(board, args), *about])


def _show(board: Board, args: Options) -> None:
    screen = console()
    for table in _tables(board, args):
        terminal.show(screen, table)
        screen.print()

    # Without colours and styles no place is marked.
    lines = _notes(board, args, places=screen.color_system is not None)
    for line in [*lines, *_about(board)]:
        # In a file each note stays on one line, by which it can be found.
        screen.print(line, soft_wrap=not screen.is_terminal)


def _tables(board: Board, args: Options, *, with_notes: bool = False) -> list[Table]:
    """Return the figures of each metric, and what runs cost unless metrics are named; with their
    notes on request."""
    shown = []
    for standing in board.chosen:
        lines = notes([standing], intervals=args.intervals) if with_notes else ()
        shown.append(tables.table(standing, intervals=args.intervals, notes=lines))

    if not args.metric:
        for standing in costs.first_priced(board.chosen):
            shown.append(costs.table(standing, notes=with_notes))

    return shown


def _notes(board: Board, args: Options, *, places: bool = True) -> list[str]:
    lines = notes(board.chosen, places=places, intervals=args.intervals)
    if not args.metric:
        lines += costs.cost_notes(costs.first_priced(board.chosen))

    return lines


def _about(board: Board) -> list[str]:
    """Return a description of each run, once, and what is missing."""
    reports = chain.from_iterable(standing.reports for standing in board.chosen)
    lines = [f"{run}: {about_run(of_run)}" for run, of_run in by_run(reports).items()]
    return lines + board.missing
