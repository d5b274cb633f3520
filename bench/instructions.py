"""Instructions of the client per request, counted by valgrind, and its system calls, counted by
strace.

A machine that does other work, or slows down, changes times by far more than counts. What a run
costs once cancels out, since each figure is the difference between a run of many users and one of
few.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.cost import CLIENTS, Measured, Workload
from bench.processes import fast_endpoint

FEW, MANY = 40, 240
"""Users of the two runs whose difference counts."""
CLIENT = str(CLIENTS / "counted.py")
ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    # a first run compiles, so that none of those that are counted does
    "PYTHONDONTWRITEBYTECODE": "",
    "PYTHONPATH": str(CLIENTS.parents[1]),
    "COLUMNS": "100",
}

Command = Callable[[str, Workload, Path, int], list[str]]
"""Takes an address, tasks, a folder for results, and the requests in flight."""


def bare(url: str, work: Workload, results: Path, in_flight: int) -> list[str]:
    return [str(CLIENTS / "bare.py"), url, str(work.bodies), str(in_flight)]


def whole(url: str, work: Workload, results: Path, in_flight: int) -> list[str]:
    return [str(CLIENTS / "whole.py"), url, str(work.tasks), str(results), str(in_flight)]


CLIENT_COMMANDS: dict[str, Command] = {"bare aiohttp + uvloop": bare, "whole harness": whole}


class Counted(NamedTuple):
    requests: int
    events: int


def instructions(folder: Path, quick: bool) -> list[dict[str, Any]]:
    """Return a row for each client and number in flight, and one for the start; none where valgrind
    is missing."""
    if shutil.which("valgrind") is None:
        print("  not counted: valgrind is not installed", flush=True)
        return []
    few, many = (Workload(folder, users, 8.0) for users in (FEW, MANY))
    rows: list[dict[str, Any]] = []
    with fast_endpoint() as url:
        _run([], whole(url, many, folder / "first", 256), folder / "first")
        for in_flight in (256,) if quick else (256, 16):
            of_bare = 0.0
            for client, command in CLIENT_COMMANDS.items():
                a, b = ((command, url, work, folder / f"{len(rows)}-{users}", in_flight)
                        for work, users in ((few, FEW), (many, MANY)))  # fmt: skip
                figure = difference(_counted(*a), _counted(*b))
                of_bare = of_bare or figure
                row: dict[str, Any] = {
                    "client": client,
                    "in_flight": in_flight,
                    "instructions": figure,
                }
                rows.append(row | {"of_bare": figure / of_bare})
                if not quick and shutil.which("strace"):
                    rows[-1]["system_calls"] = difference(_traced(*a), _traced(*b))
                print(
                    f"  {client}, {in_flight} in flight: {figure:,.0f}, {figure / of_bare:.2f}"
                    " times",
                    flush=True,
                )
    return [
        *rows,
        {
            "client": "start of run to its first request",
            "instructions": _start(few, folder / "start"),
        },
    ]


def difference(few: Counted, many: Counted) -> float:
    """Return the count per request, of two runs that differ in their requests only."""
    return (many.events - few.events) / (many.requests - few.requests)


def references(log: str) -> int:
    """Return the instructions that valgrind has counted, from its log."""
    [found] = re.findall(r"^==\d+== I\s+refs:\s+([\d,]+)$", log, re.MULTILINE)
    return int(found.replace(",", ""))


def calls(summary: str) -> int:
    """Return the system calls that `strace -c` has counted, from the last line of its table."""
    [found] = re.findall(
        r"^100\.00\s+\S+\s+(?:\d+\s+)?(\d+)(?:\s+\d+)?\s+total$", summary, re.MULTILINE
    )
    return int(found)


def _valgrind(log: Path) -> list[str]:
    return [
        "valgrind",
        "--tool=cachegrind",
        "--cache-sim=no",
        "--cachegrind-out-file=/dev/null",
        f"--log-file={log}",
    ]


def _counted(command: Command, url: str, work: Workload, results: Path, in_flight: int) -> Counted:
    log = results.with_suffix(".log")
    return Counted(
        _run(_valgrind(log), command(url, work, results, in_flight), results),
        references(log.read_text()),
    )


def _traced(command: Command, url: str, work: Workload, results: Path, in_flight: int) -> Counted:
    log = results.with_suffix(".strace")
    apart = results.with_suffix(".traced")
    counter = ["strace", "-f", "-c", "-o", str(log)]
    return Counted(
        _run(counter, command(url, work, apart, in_flight), apart), calls(log.read_text())
    )


def _run(counter: Sequence[str], command: Sequence[str], home: Path) -> int:
    """Run a client below a counter. Return its requests."""
    printed = subprocess.run(
        [*counter, sys.executable, CLIENT, *command],
        stdout=subprocess.PIPE,
        env=_environment(home),
        check=True,
    )
    return Measured.parse(printed.stdout).requests


def _environment(home: Path) -> dict[str, str]:
    home.mkdir(exist_ok=True)
    return (
        os.environ
        | ENVIRONMENT
        | {
            "HOME": str(home),
            "PYTHONPYCACHEPREFIX": str(home.parent / "compiled"),
        }
    )


def _start(work: Workload, results: Path) -> int:
    """Return the instructions of a run, its imports too, until its first request has arrived."""
    log = results.with_suffix(".log")
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v1"
        command = [*_valgrind(log), sys.executable, CLIENT, *whole(url, work, results, 1)]
        with subprocess.Popen(command, env=_environment(results)) as process:
            connection, _ = server.accept()
            with connection:
                connection.recv(1)
                process.send_signal(signal.SIGUSR2)
                process.wait()
    return references(log.read_text())
