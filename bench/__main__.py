"""`make bench`: measures, shows tables, and writes bench/results/<part>.json. No figure is a
condition for anything."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench import cost, instructions, limits, memory, mobility, models, scale, schedule
from bench.machine import facts

RESULTS = Path(__file__).with_name("results")

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Part:
    """`measure` takes a folder for its files, and whether to be quick."""

    title: str
    measure: Callable[[Path, bool], list[Row]]


PARTS = {
    "cost": Part("CPU a request, 256 in flight, 200 ms", cost.cost),
    "instructions": Part(
        "Instructions and system calls a request, without any latency", instructions.instructions
    ),
    "throughput": Part("Answers a second, of in flight / mean latency", cost.throughput),
    "limits": Part("30 slots of 1 s, 429 beyond, chains of 4, --concurrency auto", limits.limits),
    "faults": Part("Immediate 500s, 64 in flight, 200 ms, chains of 4", limits.faults),
    "schedule": Part(
        "Makespan / lower bound, and the sample at half time (simulated)", schedule.schedule
    ),
    "memory": Part("Index, memory and disk, single-step users, 512 in flight", memory.memory),
    "mobility": Part("CPU of a resident in DailyMobility, 256 in flight, 20 ms", mobility.mobility),
    "scale": Part("Worker processes of Ray against one process, and a model of scale", scale.scale),
    "models": Part("Several models, accounts and replicas in one command", models.models),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description="measure speed and memory")
    parser.add_argument(
        "part", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} (default: all)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer repeats and no million users; for a first look"
    )
    args = parser.parse_args(arguments)
    if unknown := set(args.part) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    os.environ |= {
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }  # loopback, whatever else this machine does
    return max([attempt(name, args.quick) for name in args.part or PARTS])


def attempt(name: str, quick: bool) -> int:
    """One part; where a client fails, the other parts are still measured, and the exit code is
    1."""
    try:
        run(name, quick, RESULTS)
    except subprocess.CalledProcessError as error:
        print(
            f"{name}: not measured: exit code {error.returncode} of"
            f" {shlex.join(map(str, error.cmd))}",
            file=sys.stderr,
        )
        return 1
    return 0


def run(name: str, quick: bool, results: Path) -> None:
    """Measures one part, shows it and saves it."""
    part = PARTS[name]
    console = Console(width=None if sys.stdout.isatty() else 140)  # a file has room
    console.rule(f"{name}: {part.title}")
    with tempfile.TemporaryDirectory(prefix="harness-bench-") as folder:
        machine = facts(Path(folder))
        began, started = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
        rows = part.measure(Path(folder), quick)
    made = {
        "part": name,
        "quick": quick,
        "started": started,
        "seconds": round(time.monotonic() - began, 1),
    }
    results.mkdir(exist_ok=True)
    path = results / f"{name}.json"
    path.write_bytes(
        orjson.dumps({**made, "machine": machine, "rows": rows}, option=orjson.OPT_INDENT_2) + b"\n"
    )
    for title, group in groupby(rows, key=lambda row: row.get("table")):
        console.print(
            table(
                [{name: value for name, value in row.items() if name != "table"} for row in group],
                title,
            )
        )
    load = f"{machine['cpu']}, {machine['cores']} cores, load {machine['load']} before"
    console.print(f"{made['seconds']} s on {load}; {path}", highlight=False, soft_wrap=True)


def table(rows: Sequence[Row], title: str | None = None) -> Table:
    """Write a column for each plain value; lists and objects stand in the file alone."""
    names = list(dict.fromkeys(name for row in rows for name, value in row.items() if plain(value)))
    made = Table(title=title)
    for name in names:
        words = any(isinstance(row.get(name), str) for row in rows)
        made.add_column(name.replace("_", " "), justify="left" if words else "right")
    for row in rows:
        made.add_row(
            *(escape(cell(row.get(name))) for name in names)
        )  # names of clients hold brackets
    return made


def plain(value: Any) -> bool:
    return not isinstance(value, list | dict)


def cell(value: Any) -> str:
    """Three digits that count after the point, fewer of large numbers."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return (
            f"{value:,.3f}"
            if abs(value) < 10
            else f"{value:,.1f}"
            if abs(value) < 1000
            else f"{value:,.0f}"
        )
    return f"{value:,}" if isinstance(value, int) else str(value)


if __name__ == "__main__":
    signal.signal(
        signal.SIGTERM, lambda number, frame: sys.exit(128 + number)
    )  # endpoints end, and files go
    sys.exit(main())
