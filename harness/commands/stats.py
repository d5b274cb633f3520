"""`stats`: tables of all runs, a row a run and a column a platform, on the terminal and as Excel files."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

from harness.commands import options
from harness.errors import BadInput
from harness.model import JSON
from harness.report.xlsx import Cell, write_table

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
        type=Path,
        metavar="DIR",
        help="folder for the Excel files (default: metric_excels in the results folder)",
    )


@dataclass(frozen=True, slots=True)
class Figure:
    """A fraction, and whether it covers all users of its run."""

    value: float
    complete: bool


Row = Mapping[str, Figure | None]


def execute(args: argparse.Namespace) -> int:
    tables = collect(args.results_dir)
    if not tables:
        raise BadInput(f"no reports under {args.results_dir}: run something first")
    out = args.out or args.results_dir / "metric_excels"
    columns = (*PLATFORMS, AVERAGE)
    for metric, rows in tables.items():
        cells = [(name, [_excel(row.get(column)) for column in columns]) for name, row in rows.items()]
        write_table(out / f"{metric.replace('/', '_')}.xlsx", metric, ("run", *columns), cells)
    if args.json:
        print(
            orjson.dumps({metric: _plain(rows) for metric, rows in tables.items()}, option=orjson.OPT_INDENT_2).decode()
        )
    else:
        _show(tables, out)
    return 0


def collect(results: Path) -> dict[str, dict[str, Row]]:
    """Metric -> run -> platform -> figure, from the reports under a folder; `Avg.` only where all five are complete."""
    tables: dict[str, dict[str, dict[str, Figure | None]]] = {}
    for path in sorted(results.glob("*/eval_report_*.json")):
        report = _report(path)
        if report.get("subset") not in PLATFORMS:
            continue
        complete = bool(report["coverage"]["complete"])
        for metric, value in _values(report).items():
            row = tables.setdefault(metric, {}).setdefault(path.parent.name, {})
            row[report["subset"]] = None if value is None else Figure(value, complete)
    for rows in tables.values():
        for row in rows.values():
            row[AVERAGE] = _average([row.get(platform) for platform in PLATFORMS])
    return {metric: dict(rows) for metric, rows in tables.items()}


def _report(path: Path) -> JSON:
    try:
        report: Any = orjson.loads(path.read_bytes())
        report["coverage"]["complete"], report["metrics"], report["fwt"], report["release_code"]
    except (OSError, ValueError, KeyError, TypeError):
        raise BadInput(f"{path} is not a report of this harness: make it anew with `reeval`") from None
    return dict(report)


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


def _show(tables: Mapping[str, Mapping[str, Row]], out: Path) -> None:
    console = Console()
    for metric in MAIN:
        table = Table(title=f"{metric}, %", title_justify="left", box=None, pad_edge=False)
        table.add_column("run")
        for column in (*PLATFORMS, AVERAGE):
            table.add_column(column, justify="right")
        for name, row in tables.get(metric, {}).items():
            table.add_row(name, *(_text(row.get(column)) for column in (*PLATFORMS, AVERAGE)))
        console.print(table)
    console.print(
        f"* incomplete: not all users are scored. {AVERAGE} needs all five platforms complete.", highlight=False
    )
    console.print(f"every metric: {out}", highlight=False, soft_wrap=True)


def _text(figure: Figure | None) -> str:
    return "" if figure is None else f"{100 * figure.value:.2f}{'' if figure.complete else '*'}"
