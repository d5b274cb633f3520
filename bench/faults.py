"""Runs with transport faults injected, and compares the results file with that of a fault-free run."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.processes import endpoint, run_command, stats, synthesise

PLATFORM = "zhihu"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=200)
    parser.add_argument("--rate", type=float, default=0.3)
    parser.add_argument("--faults", default="transport")
    parser.add_argument("--concurrency", type=int, default=64)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="harness-faults-") as name:
        folder = Path(name)
        tasks = folder / "tasks"
        synthesise(tasks, "--users", str(args.users), "--platform", PLATFORM)
        tuning = (
            "--platform",
            PLATFORM,
            "--concurrency",
            str(args.concurrency),
            "--timeout",
            "2",
            "--max-retries",
            "30",
        )
        results = {}
        for label, options in (("clean", ()), ("faulty", ("--fault-rate", str(args.rate), "--faults", args.faults))):
            with endpoint(*options) as url:
                started = time.monotonic()
                code = subprocess.run(
                    run_command(url, tasks, folder / label, *tuning, "--name", "run"), check=False
                ).returncode
                print(f"{label}: exit code {code}, {time.monotonic() - started:.1f} s, the endpoint saw {stats(url)}")
            results[label] = (folder / label / "run" / f"inference_results_{PLATFORM}.jsonl").read_bytes()
    same = results["clean"] == results["faulty"]
    print(f"results files of {len(results['clean'])} bytes: {'byte-identical' if same else 'DIFFERENT'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
