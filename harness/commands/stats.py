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
from harness.errors import BadInput
from harness.model import JSON
from harness.report.xlsx import Cell, write_table
from harness.ui.console import console
from harness.ui.streams import show

PLATFORMS = ("zhihu", "weibo", "toutiao", "xiaohongshu", "douban")
"""In the order of the published tables."""

MAIN = ("Recall", "F1^NS")
"""Shown on the terminal; every metric has an Excel file."""

AVERAGE = "Avg."


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
    tables = _tables(reports)
    if not tables:
        raise BadInput(f"no reports under {args.results_dir}: run something first")
    about = {run: _together([report.about for report in reports if report.run == run]) for run in _runs(tables)}
    out = args.out or args.results_dir / "metric_excels"
    columns = (*PLATFORMS, AVERAGE)
    for metric, rows in tables.items():
        cells = [(name, [_excel(row.get(column)) for column in columns], about[name]) for name, row in rows.items()]
        write_table(out / f"{metric.replace('/', '_')}.xlsx", metric, ("run", *columns, "what"), cells)
    if args.json:
        show(
            orjson.dumps({metric: _plain(rows) for metric, rows in tables.items()}, option=orjson.OPT_INDENT_2).decode()
        )
    else:
        _show(tables, about, out)
    return code


@dataclass(frozen=True, slots=True)
class _Report:
    """What the tables take from a report: metric -> figure, None where there is none; `about` tells what was run."""

    run: str
    platform: str
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
        reports.append(_Report(path.parent.name, str(data["subset"]), _about(data, run), figures))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise BadInput("not a report of this harness: make it anew with `reeval`") from None
    return 0


def _about(report: JSON, run: JSON) -> str:
    """What a reader must know before comparing: model, prompt, ablation, share, synthetic tasks."""
    said = [str(report["model"]), f"{report['prompt']} prompt"]
    said += ["no persona"] if run.get("persona") is False else []
    said += [f"share {run['ratio']:g}"] if run.get("ratio", 1.0) != 1.0 else []
    said += ["synthetic tasks"] if any("synthetic" in str(note) for note in report["notes"]) else []
    return ", ".join(said)


def _together(about: list[str]) -> str:
    return "; ".join(dict.fromkeys(about))


def _runs(tables: Mapping[str, Mapping[str, Row]]) -> list[str]:
    return list(dict.fromkeys(run for rows in tables.values() for run in rows))


def _tables(reports: list[_Report]) -> dict[str, dict[str, Row]]:
    """Metric -> run -> platform -> figure; `Avg.` only where all five are complete."""
    tables: dict[str, dict[str, dict[str, Figure | None]]] = {}
    for report in reports:
        if report.platform in PLATFORMS:
            for metric, figure in report.figures.items():
                tables.setdefault(metric, {}).setdefault(report.run, {})[report.platform] = figure
    for rows in tables.values():
        for row in rows.values():
            row[AVERAGE] = _average([row.get(platform) for platform in PLATFORMS])
    return {metric: dict(rows) for metric, rows in tables.items()}


def _values(report: JSON) -> dict[str, float | None]:
    values = {name: entry["value"] for name, entry in report["metrics"].items()}
    values["F1^NS (release code)"] = report["release_code"]["F1^NS"]
    return values | {f"FWT {name}": entry["value"] for name, entry in report["fwt"].items()}


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


def _show(tables: Mapping[str, Mapping[str, Row]], about: Mapping[str, str], out: Path) -> None:
    screen = console()
    for metric in MAIN:
        table = Table(title=f"{metric}, %", title_justify="left", box=None, pad_edge=False)
        table.add_column("run")
        for column in (*PLATFORMS, AVERAGE):
            table.add_column(column, justify="right")
        for name, row in tables.get(metric, {}).items():
            table.add_row(name, *(_text(row.get(column)) for column in (*PLATFORMS, AVERAGE)))
        screen.print(table)
        screen.print()
    for name, said in about.items():
        screen.print(f"{name}: {said}", soft_wrap=True)
    screen.print(f"* not all users of the tasks file are scored. {AVERAGE} needs all five platforms complete.")
    screen.print(f"every metric: {out}", soft_wrap=True)


def _text(figure: Figure | None) -> str:
    return "" if figure is None else f"{100 * figure.value:.2f}{'' if figure.complete else '*'}"
