"""Kills a run with SIGKILL at random moments, in turn, and goes on each time.

Shows that the results file ends byte-identical to an undisturbed run's, and counts the requests that the
endpoint saw beyond one for each distinct body: at most those on the wire at the kills.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench.processes import endpoint, run_command, stats, synthesise

PLATFORM = "weibo"
START_UP = 0.45
"""Seconds before the first request, about; kills begin a little before it."""


@dataclass(frozen=True, slots=True)
class Campaign:
    """`identical` of `runs` ended as the undisturbed one; `extra` requests in all, at most `allowed`."""

    kills: int
    runs: int
    identical: int
    extra: int
    allowed: int
    unanswered: int

    @property
    def passed(self) -> bool:
        return self.identical == self.runs and self.extra <= self.allowed


def campaign(
    kills: int, users: int, steps: float, concurrency: int, seed: int, folder: Path, durability: str
) -> Campaign:
    """Runs until `kills` processes were killed, and the last run to its end."""
    rng = random.Random(seed)
    tasks = folder / "tasks"
    synthesise(tasks, "--users", str(users), "--seed", str(seed), "--steps", str(steps), "--platform", PLATFORM)
    options = ("--platform", PLATFORM, "--concurrency", str(concurrency), "--durability", durability, "--name", "run")
    whole = folder / "undisturbed"
    with endpoint("--latency", "0.02") as url:
        subprocess.run(run_command(url, tasks, whole, *options), check=True, stdout=subprocess.DEVNULL)
        distinct = stats(url)["distinct_bodies"]
    wanted = _results(whole)
    done = runs = identical = extra = unanswered = 0
    while done < kills:
        runs += 1
        broken = folder / f"disturbed-{runs}"
        with endpoint("--latency", "0.15", "--jitter", "0.5") as url:
            while done < kills and not _one_life(run_command(url, tasks, broken, *options), rng):
                done += 1
                print(f"\r{done} of {kills} kills, run {runs}", end="", flush=True)
            subprocess.run(run_command(url, tasks, broken, *options), check=True, stdout=subprocess.DEVNULL)
            seen = stats(url)
        extra += seen["requests"] - seen["distinct_bodies"]
        unanswered += seen["requests"] - seen["completed"]
        identical += _results(broken) == wanted and seen["distinct_bodies"] == distinct
    print()
    return Campaign(done, runs, identical, extra, done * concurrency, unanswered)


def _one_life(command: list[str], rng: random.Random) -> bool:
    """Starts a run and kills it at a random moment; True when it ended by itself before."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        code = process.wait(timeout=rng.uniform(0.7 * START_UP, START_UP + 0.9))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return False
    if code != 0:
        raise RuntimeError(f"a run ended with exit code {code}")
    return True


def _results(folder: Path) -> bytes:
    return (folder / "run" / f"inference_results_{PLATFORM}.jsonl").read_bytes()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--users", type=int, default=200)
    parser.add_argument("--steps", type=float, default=9.0)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--durability", choices=("process", "power"), default="process")
    args = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="harness-kill-") as folder:
        found = campaign(args.kills, args.users, args.steps, args.concurrency, args.seed, Path(folder), args.durability)
    print(
        f"{found.kills} kills over {found.runs} runs of {args.users} users in {time.monotonic() - started:.0f} s: "
        f"{found.identical} of {found.runs} results files byte-identical to the undisturbed one; "
        f"{found.extra} requests asked again (at most {found.allowed}: {args.concurrency} on the wire at each kill; "
        f"the endpoint left {found.unanswered} unanswered)"
    )
    return 0 if found.passed else 1


if __name__ == "__main__":
    sys.exit(main())
