"""How time, memory and disk grow with the number of users: the index of a tasks file, and a whole
run over it."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError

import orjson

from bench.bodies import PLATFORM
from bench.cost import harness_command
from bench.machine import memory_mb
from bench.processes import fast_endpoint, stats, synthesise
from harness.defaults import BYTES_PER_STEP

SIZES = (10_000, 100_000, 1_000_000)
MOST_OF_QUICK = 100_000
LATENCY, IN_FLIGHT = 0.02, 512
TASK_BYTES = 2_000
"""Of a single-step user's line, about."""

REPEATS = 3
WATCH_SECONDS = 0.5

Row = dict[str, Any]


def memory(folder: Path, quick: bool) -> list[Row]:
    """Users of one step each; a size that the disk cannot hold is left out, and said."""
    rows = []
    for users in SIZES:
        if quick and users > MOST_OF_QUICK:
            continue
        needed, free = disk_needed(users), shutil.disk_usage(folder).free
        if free < needed:
            print(
                f"  {users} users: left out, {free / 1e9:.1f} GB are free of {needed / 1e9:.1f} GB"
                " needed",
                flush=True,
            )
            rows.append({"users": users, "left_out": "not enough disk"})
            continue
        rows.append(_size(folder / str(users), users))
    return rows


def disk_needed(users: int) -> int:
    """Bytes for the tasks, for the run with its rewrite as `run` itself wants them, and some to
    spare."""
    return users * (TASK_BYTES + BYTES_PER_STEP * 3 // 2) * 5 // 4


def _size(folder: Path, users: int) -> Row:
    """Every measurement of one size; its files go at once."""
    began = time.monotonic()
    synthesise(folder / "tasks", "--users", str(users), "--steps", "1", "--platform", PLATFORM)
    path = folder / "tasks" / f"{PLATFORM}_inference_tasks.jsonl"
    print(
        f"  {users} users: {path.stat().st_size / 1e6:.0f} MB of tasks in"
        f" {time.monotonic() - began:.0f} s",
        flush=True,
    )
    try:
        row = {
            "users": users,
            "tasks_mb": path.stat().st_size / 1e6,
            **index(path, folder / "index"),
        }
        row |= whole_run(folder / "tasks", folder / "results", users)
    finally:
        shutil.rmtree(folder)
    print(
        f"  {users} users: index {row['index_s']:.1f} s, peak {row['run_peak_mb']:.0f} MB",
        flush=True,
    )
    return row


def index(path: Path, results: Path) -> Row:
    """Compare the index with a bare orjson pass over the same file, in turn, and once more from its
    cache."""
    found = []
    for _ in range(REPEATS):
        shutil.rmtree(results, ignore_errors=True)
        found.append((_pass("index", path, results), _pass("orjson", path)))
    cached = _pass("index", path, results)
    return {
        "orjson_s": statistics.median(b["cpu"] for _, b in found),
        "index_s": statistics.median(a["cpu"] for a, _ in found),
        "of_orjson": statistics.median(a["cpu"] / b["cpu"] for a, b in found),
        "cached_s": cached["cpu"],
        "index_peak_mb": max(a["peak_mb"] for a, _ in found),
    }


def _pass(what: str, path: Path, *folder: Path) -> Row:
    command = [sys.executable, "-m", "bench.clients.index", what, str(path), *map(str, folder)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    found: Row = orjson.loads(done.stdout)
    return found


@dataclass(frozen=True, slots=True)
class Held:
    """What a run holds at one moment."""

    completed: int
    memory_mb: float
    disk_mb: float


def whole_run(tasks: Path, results: Path, users: int) -> Row:
    """Measure a run from its index to its report, watched from outside."""
    with fast_endpoint("--latency", str(LATENCY), "--jitter", "0.5") as url:
        command = harness_command(url, tasks, results, str(IN_FLIGHT))
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            held = _watch(process, url, results)
            printed = process.stdout.read() if process.stdout else b""
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command)
    found = orjson.loads(printed.splitlines()[-1])
    last = _size_mb(results)
    return {
        "run_s": found["wall"],
        "run_peak_mb": found["peak_mb"],
        **growth(held, users),
        "disk_mb": last,
        "most_disk_mb": max([last, *(one.disk_mb for one in held)]),
    }


def _watch(process: subprocess.Popen[bytes], url: str, results: Path) -> list[Held]:
    held = []
    while process.poll() is None:
        now = memory_mb("VmRSS", process.pid)
        if now is not None:
            with suppress(
                URLError, TimeoutError
            ):  # where both cores are busy, this look is left out
                held.append(Held(stats(url)["completed"], now, _size_mb(results)))
        time.sleep(WATCH_SECONDS)
    return held


def growth(held: Sequence[Held], users: int) -> Row:
    """Memory when a tenth of the users and when nine tenths have been answered; None where no look
    fell there."""

    def at(share: float) -> float | None:
        return next((one.memory_mb for one in held if share * users <= one.completed < users), None)

    return {"at_tenth_mb": at(0.1), "at_nine_tenths_mb": at(0.9)}


def _size_mb(folder: Path) -> float:
    """Return what stands in the files of a folder; one that goes away meanwhile counts as
    nothing."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total / 1e6
