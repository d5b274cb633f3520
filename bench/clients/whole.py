"""The whole harness, in one process: index, prompts, client, store, scores, display, final rewrite
and report.

Takes URL, TASKS FOLDER, RESULTS FOLDER, CONCURRENCY and further options of `run`; prints what the
other clients print, and the most memory that it held, in MB.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
from pathlib import Path

import uvloop

import harness.commands.run
from bench.machine import peak_mb
from harness.cli import main as harness_main

assert uvloop and harness.commands.run  # imported here, so that imports are not counted


def main() -> int:
    url, tasks, results, concurrency, *options = sys.argv[1:]
    command = [
        "run",
        "--model",
        "fast",
        "--api-url",
        url,
        "--platform",
        "weibo",
        "--tasks-dir",
        tasks,
    ]
    command += ["--results-dir", results, "--name", "run", "--concurrency", concurrency, *options]
    cpu, wall = time.process_time(), time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        code = harness_main(command)
    done = {
        "cpu": time.process_time() - cpu,
        "wall": time.perf_counter() - wall,
        "peak_mb": peak_mb(),
    }
    if code != 0:
        print(shown.getvalue(), file=sys.stderr)
        return code
    with (Path(results) / "run" / "responses_weibo.jsonl").open("rb") as lines:
        requests = sum(1 for _ in lines)
    print(json.dumps({"requests": requests, **done}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
