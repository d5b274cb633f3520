"""What a resident of DailyMobility costs, in each mode, and how that grows with their number."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from bench.processes import HARNESS, fast_endpoint
from harness.benchmarks.dailymobility.day import ROWS

SIZES = (100, 1_000, 10_000)
MOST_WITH_REQUESTS = 1_000
"""Of an agent that asks at each step: 100 requests a resident."""

REPEATS = 3
AGENTS = Path(__file__).with_name("agents")
MODES: dict[str, tuple[str, ...]] = {
    "plan": (),
    "agent, no requests": ("--agent", str(AGENTS / "rules.py")),
    "agent, a request a step": ("--agent", str(AGENTS / "asks.py")),
}

Row = dict[str, Any]


def mobility(folder: Path, quick: bool) -> list[Row]:
    """Whole runs (index, play, report) over a synthetic city; each fresh, medians of the
    repeats."""
    rows = []
    for residents in SIZES[: 2 if quick else 3]:
        tasks = folder / str(residents)
        out = ["--out", str(tasks), "--users", str(residents)]
        subprocess.run(
            [*HARNESS, "synth", "dailymobility", *out], check=True, stdout=subprocess.DEVNULL
        )
        for mode, options in MODES.items():
            if mode.endswith("a step") and residents > MOST_WITH_REQUESTS:
                continue
            rows.append(_measured(mode, residents, tasks, options, 1 if quick else REPEATS))
            print(
                f"  {residents} residents, {mode}: {rows[-1]['cpu_ms_a_resident']:.2f} ms each",
                flush=True,
            )
    return rows


def _measured(mode: str, residents: int, tasks: Path, options: Sequence[str], repeats: int) -> Row:
    found = []
    for _ in range(repeats):
        with (
            fast_endpoint("--latency", "0.02", "--jitter", "0.5") as url,
            tempfile.TemporaryDirectory() as results,
        ):
            command = [
                "run",
                "dailymobility",
                "--model",
                "fast",
                "--api-url",
                url,
                "--concurrency",
                "256",
            ]
            command += ["--tasks-dir", str(tasks), "--results-dir", results, *options]
            done = subprocess.run(
                [sys.executable, "-m", "bench.clients.command", *command],
                check=True,
                stdout=subprocess.PIPE,
            )
            found.append(orjson.loads(done.stdout.splitlines()[-1]))
    cpu = statistics.median(one["cpu"] for one in found)
    return {
        "mode": mode,
        "residents": residents,
        "cpu_s": cpu,
        "cpu_ms_a_resident": 1e3 * cpu / residents,
        "cpu_us_a_step": None if mode == "plan" else 1e6 * cpu / residents / ROWS,
        "wall_s": statistics.median(one["wall"] for one in found),
        "peak_mb": max(one["peak_mb"] for one in found),
    }
