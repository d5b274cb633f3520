"""Kills workers, raylets, drivers and heads of runs on Ray at random moments, one in each run; then
the run is ended.

Shows that the results are those of one process, that no reply is saved twice, and how often a
request was sent again: at most for what a lost process had in flight, and what it had answered
since its last report.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from bench.processes import endpoint, run_command, stats, synthesise
from harness.store.log import valid_lines
from tests.extensions.ray.raylets import Raylets, cluster
from tests.support.processes import children, wait_for, words_of

KINDS = ("worker", "raylet", "driver", "head")
LIMIT, LATENCY = 8, 0.3
REPORT_SECONDS = 1.3
"""Between two reports of a worker, at most, where nothing else uses the machine much."""
LOST_MOST = round(LIMIT * (1 + REPORT_SECONDS / LATENCY))
"""Requests that a kill may cost: in flight, and answered since the last report."""
CHECKS = {"initial_delay_ms": "0", "period_ms": "500", "failure_threshold": "2"}
NOTICED = {f"RAY_health_check_{name}": value for name, value in CHECKS.items()}
"""Ray notices a lost raylet within seconds, and not after the run."""
RESULTS, RESPONSES = "inference_results_weibo.jsonl", "responses_weibo.jsonl"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a run: `again` requests were sent again, `twice` replies saved again."""

    kind: str
    after: float
    code: int
    identical: bool
    again: int
    twice: int
    most_in_flight: int

    @property
    def passed(self) -> bool:
        return (
            self.identical
            and not self.twice
            and self.again <= LOST_MOST
            and self.most_in_flight <= 2 * LIMIT
        )


def campaign(kills: int, kinds: Sequence[str], seed: int, folder: Path) -> list[Outcome]:
    """Return what became of a run for each kill."""
    rng, tasks = random.Random(seed), folder / "tasks"
    synthesise(tasks, "--users", "24", "--platform", "weibo", "--steps", "6")
    with endpoint() as url:
        subprocess.run(words(url, tasks, folder / "local"), check=True, stdout=subprocess.DEVNULL)
    wanted = (folder / "local" / "run" / RESULTS).read_bytes()
    outcomes = []
    for number in range(kills):
        outcomes.append(
            killed(kinds[number % len(kinds)], rng, tasks, folder / str(number), wanted)
        )
        print(number, outcomes[-1], flush=True)
    return outcomes


def words(url: str, tasks: Path, results: Path, *more: str) -> list[str]:
    limits = ("--concurrency", str(LIMIT), "--name", "run", "--no-html")
    return run_command(url, tasks, results, "streamprofile", "--platform", "weibo", *limits, *more)


def killed(kind: str, rng: random.Random, tasks: Path, results: Path, wanted: bytes) -> Outcome:
    """Play a run on two raylets, kill one process of a kind, and go on to the end."""
    after, run = rng.uniform(0.0, 5.0), results / "run"
    with endpoint("--latency", str(LATENCY), "--jitter", "0.3") as url:
        with cluster(1, 1, **NOTICED) as raylets:
            on_ray = ("--engine", "ray", "--ray-address", raylets.address, "--workers", "2")
            quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            driver = subprocess.Popen(words(url, tasks, results, *on_ray), **quiet)
            wait_for(lambda: driver.poll() is not None or stats(url)["requests"])
            time.sleep(after)
            with suppress(ProcessLookupError):
                os.kill(victim(kind, driver.pid, raylets, rng), signal.SIGKILL)
            code = driver.wait()
            if code and kind == "driver":  # its workers end by themselves
                wait_for(lambda: not workers(*raylets.raylets))
                code = subprocess.run(words(url, tasks, results, *on_ray), **quiet).returncode
        if code:
            code = subprocess.run(words(url, tasks, results), **quiet).returncode
        seen = stats(url)
    saved = [orjson.loads(line.text) for line in valid_lines(run / RESPONSES)]
    times = Counter((one["user_id"], one["request"], one["nth"]) for one in saved)
    return Outcome(
        kind,
        round(after, 2),
        code,
        (run / RESULTS).read_bytes() == wanted,
        seen["requests"] - seen["distinct_bodies"],
        times.total() - len(times),
        seen["most_in_flight"],
    )


def victim(kind: str, driver: int, raylets: Raylets, rng: random.Random) -> int:
    if kind == "driver":
        return driver
    if kind == "head":
        return raylets.head
    if kind == "raylet":
        return raylets.raylets[rng.randrange(2)]  # the first is that of the driver's machine
    return rng.choice(workers(*raylets.raylets) or [driver])


def workers(*raylets: int) -> list[int]:
    """Return the ids of the workers that these raylets have started."""
    return [
        process
        for raylet in raylets
        for process in children(raylet)
        if b"ray::Actor" in words_of(process)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument(
        "--kind", choices=KINDS, action="append", help="what is killed (default: each in turn)"
    )
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        outcomes = campaign(args.kills, args.kind or KINDS, args.seed, Path(folder))
    return 0 if all(outcome.passed for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
