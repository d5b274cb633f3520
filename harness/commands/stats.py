"""`stats`: tables of all runs, a row a run and a column a platform, on the terminal and as Excel files."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from rich.table import Table

from harness.commands import earlier, options
from harness.errors import BadInput, MachineError
from harness.model import JSON
from harness.report.xlsx import Cell, write_table
from harness.ui.console import console
from harness.ui.streams import show

AVERAGE = "Avg."


@dataclass(frozen=True, slots=True)
class Layout:
    """The tables of one benchmark: its subsets as columns, and the metrics shown on the terminal.

    Every metric has an Excel file. More than one subset have an average.
    """

    subsets: tuple[str, ...]
    main: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.subsets, AVERAGE) if len(self.subsets) > 1 else self.subsets


LAYOUTS = {
    "streamprofile": Layout(("zhihu", "weibo", "toutiao", "xiaohongshu", "douban"), ("Recall", "F1^NS")),
    "dailymobility": Layout(("beijing",), ("Score", "Score (asbench)", "Score (agentsociety2)")),
}
"""Platforms in the order of the published tables."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_folders(parser)
    options.add_json(parser)
    parser.add_argument(
        "--out",
        type=options.folder,
        metavar="DIR",
        help="folder for the Excel files (default: metric_excels in the results folder)",
    )


@dataclass(frozen=True, slots=True)
class Figure:
    """A fraction, and whether it covers all users of the tasks file."""

    value: float
    complete: bool


Row = Mapping[str, Figure | None]


def execute(args: argparse.Namespace) -> int:
    reports: list[_Report] = []
    paths = sorted(args.results_dir.glob("*/eval_report_*.json"))
    code = earlier.each(paths, lambda path: _add(path, reports), lambda path: str(path))
    found = {name: _tables([report for report in reports if report.benchmark == name]) for name in LAYOUTS}
    found = {name: tables for name, tables in found.items() if tables}
    if not found:
        raise BadInput(f"no reports under {args.results_dir}: run something first")
    out = args.out or args.results_dir / "metric_excels"
    about = {run: _together([report.about for report in reports if report.run == run]) for run in _runs(found)}
    unwritten = _write_all(found, about, out)
    if args.json:
        plain = {metric: _plain(rows) for tables in found.values() for metric, rows in tables.items()}
        show(orjson.dumps(plain, option=orjson.OPT_INDENT_2).decode())
    else:
        _show(found, about, None if unwritten else out)
    if unwritten:
        raise MachineError(f"{unwritten} (--out DIR puts the Excel files elsewhere)") from unwritten
    return code


def _write_all(
    found: Mapping[str, Mapping[str, Mapping[str, Row]]], about: Mapping[str, str], out: Path
) -> MachineError | None:
    """Writes the Excel files, or returns why they cannot be: an archive's tables are worth a look all the same."""
    try:
        for name, tables in found.items():
            _write(LAYOUTS[name], tables, about, out)
    except MachineError as error:
        return error
    return None


def _write(layout: Layout, tables: Mapping[str, Mapping[str, Row]], about: Mapping[str, str], out: Path) -> None:
    for metric, rows in tables.items():
        cells = [
            (name, [_excel(row.get(column)) for column in layout.columns], about[name]) for name, row in rows.items()
        ]
        write_table(out / f"{metric.replace('/', '_')}.xlsx", metric, ("run", *layout.columns, "what"), cells)


@dataclass(frozen=True, slots=True)
class _Report:
    """What the tables take from a report: metric -> figure, None where there is none; `about` tells what was run."""

    benchmark: str
    run: str
    subset: str
    about: str
    figures: Mapping[str, Figure | None]


def _add(path: Path, reports: list[_Report]) -> int:
    try:
        data: Any = orjson.loads(path.read_bytes())
        coverage, run = data["coverage"], data.get("run", {})
        if not coverage["scored_users"]:
            return 0  # nothing was ever answered: a row of nothing
        complete = bool(coverage["complete"]) and run.get("ratio", 1.0) == 1.0
        figures = {
            name: None if value is None else Figure(float(value), complete) for name, value in _values(data).items()
        }
        about = _about(data, run)
        reports.append(_Report(str(data["benchmark"]), path.parent.name, str(data["subset"]), about, figures))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise BadInput("not a report of this harness: make it anew with `reeval`") from None
    return 0


def _about(report: JSON, run: JSON) -> str:
    """What a reader must know before comparing: model, prompt, ablation, share, synthetic tasks."""
    prompt = str(report["prompt"])
    said = [str(report["model"]), prompt if prompt.startswith("agent ") else f"{prompt} prompt"]
    said += ["no persona"] if run.get("persona") is False else []
    said += [f"share {run['ratio']:g}"] if run.get("ratio", 1.0) != 1.0 else []
    said += ["synthetic tasks"] if any("synthetic" in str(note) for note in report["notes"]) else []
    return ", ".join(said)


def _together(about: list[str]) -> str:
    return "; ".join(dict.fromkeys(about))


def _runs(found: Mapping[str, Mapping[str, Mapping[str, Row]]]) -> list[str]:
    return list(dict.fromkeys(run for tables in found.values() for rows in tables.values() for run in rows))


def _tables(reports: list[_Report]) -> dict[str, dict[str, Row]]:
    """Of one benchmark: metric -> run -> subset -> figure; `Avg.` only where all are complete."""
    tables: dict[str, dict[str, dict[str, Figure | None]]] = {}
    for report in reports:
        subsets = LAYOUTS[report.benchmark].subsets
        if report.subset in subsets:
            for metric, figure in report.figures.items():
                row = tables.setdefault(metric, {}).setdefault(report.run, {})
                row[report.subset] = figure
                if len(subsets) > 1:
                    row[AVERAGE] = _average([row.get(subset) for subset in subsets])
    return {metric: dict(rows) for metric, rows in tables.items()}


def _values(report: JSON) -> dict[str, float | None]:
    values = {name: entry["value"] for name, entry in report["metrics"].items()}
    values |= {f"{name} (release code)": value for name, value in report.get("release_code", {}).items()}
    return values | {f"FWT {name}": entry["value"] for name, entry in report.get("fwt", {}).items()}


def _average(row: list[Figure | None]) -> Figure | None:
    if any(figure is None or not figure.complete for figure in row):
        return None
    return Figure(sum(figure.value for figure in row if figure) / len(row), True)


def _excel(figure: Figure | None) -> Cell | None:
    return None if figure is None else Cell(round(100 * figure.value, 2), marked=not figure.complete)


def _plain(rows: Mapping[str, Row]) -> JSON:
    return {
        name: {
            column: None if figure is None else {"value": figure.value, "complete": figure.complete}
            for column, figure in row.items()
        }
        for name, row in rows.items()
    }


def _show(found: Mapping[str, Mapping[str, Mapping[str, Row]]], about: Mapping[str, str], out: Path | None) -> None:
    screen = console()
    for benchmark, tables in found.items():
        layout = LAYOUTS[benchmark]
        for metric in layout.main:
            screen.print(f"{metric}, %", style="italic", highlight=False)
            table = Table(box=None, pad_edge=False)
            table.add_column("run")
            for column in layout.columns:
                table.add_column(column, justify="right")
            for name, row in tables.get(metric, {}).items():
                table.add_row(name, *(_text(row.get(column)) for column in layout.columns))
            screen.print(table)
            screen.print()
    for name, said in about.items():
        screen.print(f"{name}: {said}", soft_wrap=True)
    averaged = any(AVERAGE in LAYOUTS[benchmark].columns for benchmark in found)
    screen.print(
        "* not all users of the tasks file are scored."
        + (f" {AVERAGE} needs all five platforms complete." if averaged else "")
    )
    if out is not None:
        screen.print(f"every metric: {out}", soft_wrap=True)


def _text(figure: Figure | None) -> str:
    return "" if figure is None else f"{100 * figure.value:.2f}{'' if figure.complete else '*'}"
