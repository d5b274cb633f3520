"""One command of the harness in a process of its own; prints CPU and wall seconds without imports,
and peak memory."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
from collections.abc import Sequence

import uvloop

import harness.commands.run
from bench.machine import peak_mb
from harness.cli import main as harness_main

assert uvloop and harness.commands.run  # imported here, so that imports are not counted


def main() -> int:
    code, done = measured(sys.argv[1:])
    if code == 0:
        print(json.dumps(done))
    return code


def measured(command: Sequence[str]) -> tuple[int, dict[str, float]]:
    """Run a command; return its exit code, and CPU and wall seconds and peak memory. What it shows
    is an error's."""
    cpu, wall = time.process_time(), time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        code = harness_main(list(command))
    done = {
        "cpu": time.process_time() - cpu,
        "wall": time.perf_counter() - wall,
        "peak_mb": peak_mb(),
    }
    if code != 0:
        print(shown.getvalue(), file=sys.stderr)
    return code, done


if __name__ == "__main__":
    sys.exit(main())
