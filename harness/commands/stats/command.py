"""`stats`: tables of runs, a row a run and a column a subset, on the terminal, as text, and as
Excel files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
from harness.commands.stats.run_reports import RunReport, read, without_merged
from harness.commands.stats.standings import Standing, main, standings
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
    chosen = _chosen(board.standings, args)
    out = args.out or args.results_dir / defaults.EXCEL_FOLDER
    error = _write_excel(board, out, args) if args.excel else None
    _print(board, chosen, args)
    if args.excel and not error and args.format == "table" and not args.json:
        console().print(f"every metric: {out}", soft_wrap=True)
    if error:
        raise type(error)(f"{error} (--out DIR puts the Excel files elsewhere)") from error
    return board.code


@dataclass(frozen=True, slots=True)
class Board:
    """The figures of all metrics, the reports that they are of, sentences on what is missing, and
    an exit code."""

    standings: list[Standing]
    reports: list[RunReport]
    missing: list[str]
    code: int


def _board(args: Options) -> Board:
    paths = sorted(args.results_dir.glob("*/eval_report_*.json"))
    reports, code = selection.each(_selected(paths, args), read, str)
    left = left_out(reports, paths, args.results_dir, args.runs, args.platform)
    reports = [report for report in reports if (report.run, report.subset) not in left.outdated]
    reports = reports if args.runs else without_merged(reports)
    covered = [report for report in reports if report.scored]
    if not covered and not args.published:
        raise BadInput(left.nothing_else(args.results_dir, (*args.runs, *(args.platform or ()))))
    found = standings(covered, published=args.published, subsets=args.platform or ())
    found, unusable = with_uncertainty(found, args.results_dir)
    return Board(found, reports, [*unranked(unusable), *left.sentences()], code)


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
    return formats.as_json(_chosen(_board(args).standings, args))


def _selected(paths: Sequence[Path], args: Options) -> list[Path]:
    """Return the reports of the runs and subsets that are named, of all without names."""
    found, others = list(runs(args.results_dir)), imported(args.results_dir)
    subsets = {path: path.stem.removeprefix("eval_report_") for path in paths}
    selection.check_subsets(args.platform, [*subsets.values(), *(files.subset for files in found)])
    there = (
        {path.parent.name for path in paths}
        | {files.folder.name for files in found}
        | {of.name for of in others}
    )
    if missing := [name for name in args.runs if name not in there]:
        known = f": there are {', '.join(sorted(there))}" if there else ""
        raise BadInput(
            f"no report of {', '.join(map(in_brief, missing))} under {args.results_dir}{known}"
        )
    return [
        path
        for path, subset in subsets.items()
        if (not args.runs or path.parent.name in args.runs)
        and (not args.platform or subset in args.platform)
    ]


def _chosen(found: list[Standing], args: Options) -> list[Standing]:
    """Return the named metrics, of all benchmarks that have one of that name, in the order of the
    names.

    Without names JSON has all, and anything else the main ones, and those with published scores; in
    CSV what ranks them has lines of its own.
    """
    if args.metric is None:
        return found if args.json else main(found, with_ranking=args.format == "csv")
    chosen: dict[str, Standing] = {}
    for name in args.metric:
        named = {
            standing.label: standing
            for standing in found
            if name.casefold() in (standing.metric.name.casefold(), standing.label.casefold())
        }
        if not named:
            known = [standing.label for standing in found]
            raise BadInput(
                f"no run has the metric {name!r}{which_is_known(name, known, '--metric')}"
            )
        chosen |= named
    return list(chosen.values())


def _write_excel(board: Board, out: Path, args: Options) -> MachineError | BadInput | None:
    """Write the Excel files, or return why they cannot be written: the tables of a read-only
    archive can still be printed. A folder that the command has named may be a symbolic link."""
    try:
        if args.out is None:
            atomic.check_folder(out)
        made = workbooks.workbooks(board.standings, board.reports, board.missing)
        files = {out / f"{name}.xlsx": sheets for name, sheets in made}
        if args.out is not None:
            check_free(*files, force=args.force)
        for path, sheets in files.items():
            xlsx.write(path, sheets)
    except (MachineError, BadInput) as error:
        return error
    return None


def _print(board: Board, chosen: Sequence[Standing], args: Options) -> None:
    if args.json or args.format == "csv":  # which have no place for sentences
        for sentence in board.missing:
            tell(sentence)
    if args.json:
        show_json(formats.as_json(chosen))
    elif args.format == "table":
        _show(board, chosen, args)
    elif args.into:
        atomic.write(args.into, _text(board, chosen, args).encode(), shared=True)
        tell(f"written: {args.into}")
    else:
        show(_text(board, chosen, args).rstrip("\n"))


def _text(board: Board, chosen: Sequence[Standing], args: Options) -> str:
    """Return tables as CSV, or as Markdown or LaTeX, where what is missing in them is a comment for
    the author."""
    about = [*_about(chosen), *board.missing]
    match args.format:
        case "csv":
            return formats.as_csv(chosen)
        case "latex":
            return latex.rendered(_tables(chosen, args, with_notes=True), about)
        case _:
            return markdown.rendered(_tables(chosen, args), [*_notes(chosen, args), *about])


def _show(board: Board, chosen: Sequence[Standing], args: Options) -> None:
    screen = console()
    for table in _tables(chosen, args):
        terminal.show(screen, table)
        screen.print()
    for line in [
        *_notes(chosen, args, places=screen.color_system is not None),
        *_about(chosen),
        *board.missing,
    ]:
        screen.print(line, soft_wrap=not screen.is_terminal)


def _tables(chosen: Sequence[Standing], args: Options, *, with_notes: bool = False) -> list[Table]:
    """Return the figures of each metric, and what runs cost unless metrics are named; with their
    notes on request."""
    found = [
        tables.table(
            of,
            intervals=args.intervals,
            notes=notes([of], intervals=args.intervals) if with_notes else (),
        )
        for of in chosen
    ]
    return (
        found
        if args.metric
        else [*found, *(costs.table(of, notes=with_notes) for of in costs.first(chosen))]
    )


def _notes(chosen: Sequence[Standing], args: Options, *, places: bool = True) -> list[str]:
    spent = [] if args.metric else costs.cost_notes(costs.first(chosen))
    return [*notes(chosen, places=places, intervals=args.intervals), *spent]


def _about(chosen: Sequence[Standing]) -> list[str]:
    """Return a description of each run, once."""
    about: dict[str, dict[str, None]] = {}
    for report in (report for standing in chosen for report in standing.reports):
        about.setdefault(report.run, {})[report.about] = None
    return [f"{run}: {'; '.join(texts)}" for run, texts in about.items()]
