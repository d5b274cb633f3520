"""Kills a run with SIGKILL at random moments, in turn, and goes on each time.

Shows that the results file ends byte-identical to an undisturbed run's, and counts the requests
that the endpoint saw beyond one for each distinct body: at most those on the wire at the kills. A
reply that was saved is never asked for again.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import orjson

from bench.processes import endpoint, run_command, stats, synthesise
from harness.store.log import valid_lines

STREAMPROFILE, DAILYMOBILITY = "streamprofile", "dailymobility"
LIFE = 0.9
"""Seconds from the first request, about, within which a process is killed; kills begin a little
before it."""

LOOK_SECONDS = 0.01
"""Between two looks at whether the first request has come."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is run and killed."""

    benchmark: str
    subset: str
    model: str


SUBJECTS = {
    of.benchmark: of
    for of in (
        Subject(STREAMPROFILE, "weibo", "baseline/recency"),
        Subject(DAILYMOBILITY, "beijing", "baseline/commuter"),
    )
}


@dataclass(frozen=True, slots=True)
class Campaign:
    """`identical` of `runs` ended as the undisturbed one; `extra` requests in all, at most
    `allowed`.

    `twice` replies were saved, and asked for and saved again.
    """

    kills: int
    runs: int
    identical: int
    extra: int
    allowed: int
    unanswered: int
    twice: int

    @property
    def passed(self) -> bool:
        return self.identical == self.runs and self.extra <= self.allowed and not self.twice


def campaign(
    kills: int,
    users: int,
    steps: float,
    concurrency: int,
    seed: int,
    folder: Path,
    durability: str,
    benchmark: str = STREAMPROFILE,
    agent: Path | None = None,
    life: float = LIFE,
    repeats: int = 1,
) -> Campaign:
    """Run until `kills` processes were killed, and the last run to its end.

    `steps` is the mean of a user's in StreamProfileBench; `agent` is an agent file for
    DailyMobility. Each user is played `repeats` times.
    """
    subject = SUBJECTS[benchmark]
    rng = random.Random(seed)
    tasks = folder / "tasks"
    _synthesise(subject, tasks, users, seed, steps)
    options = (*_options(subject, agent, concurrency, durability), "--repeats", str(repeats))

    def command(url: str, results: Path) -> list[str]:
        return run_command(url, tasks, results, *options, model=subject.model)

    whole = folder / "undisturbed"
    with endpoint("--latency", "0.02") as url:
        start_up = _undisturbed(command(url, whole), url)
        distinct = stats(url)["distinct_bodies"]
    wanted = _results(whole, subject)
    done = runs = identical = extra = unanswered = twice = 0
    while done < kills:
        runs += 1
        broken = folder / f"disturbed-{runs}"
        with endpoint("--latency", "0.15", "--jitter", "0.5") as url:
            while done < kills and not _one_life(command(url, broken), rng, start_up, life):
                done += 1
                print(f"\r{done} of {kills} kills, run {runs}", end="", flush=True)
            subprocess.run(command(url, broken), check=True, stdout=subprocess.DEVNULL)
            seen = stats(url)
        extra += seen["requests"] - seen["distinct_bodies"]
        unanswered += seen["requests"] - seen["completed"]
        twice += _saved_twice(broken, subject)
        identical += _results(broken, subject) == wanted and seen["distinct_bodies"] == distinct
    print()
    return Campaign(done, runs, identical, extra, done * concurrency, unanswered, twice)


def _synthesise(subject: Subject, folder: Path, users: int, seed: int, steps: float) -> None:
    what = (
        ("--platform", subject.subset, "--steps", str(steps))
        if subject.benchmark == STREAMPROFILE
        else ()
    )
    synthesise(folder, subject.benchmark, "--users", str(users), "--seed", str(seed), *what)


def _options(
    subject: Subject, agent: Path | None, concurrency: int, durability: str
) -> tuple[str, ...]:
    played = ("--agent", str(agent)) if agent else ()
    tuning = ("--concurrency", str(concurrency), "--durability", durability)
    return (subject.benchmark, "--platform", subject.subset, *played, *tuning, "--name", "run")


def _undisturbed(command: list[str], url: str) -> float:
    """Run to the end; return the seconds until the first request, for which this machine is
    measured each time."""
    started = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while not stats(url)["requests"] and process.poll() is None:
            time.sleep(LOOK_SECONDS)
        start_up = time.monotonic() - started
    if process.returncode != 0:
        raise RuntimeError(f"the undisturbed run ended with exit code {process.returncode}")
    return start_up


def _one_life(command: list[str], rng: random.Random, start_up: float, life: float) -> bool:
    """Start a run and kill it at a random moment; return True when it ended by itself before."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        code = process.wait(timeout=rng.uniform(0.7 * start_up, start_up + life))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return False
    if code != 0:
        raise RuntimeError(f"a run ended with exit code {code}")
    return True


def _results(folder: Path, subject: Subject) -> bytes:
    return (folder / "run" / f"inference_results_{subject.subset}.jsonl").read_bytes()


def _saved_twice(folder: Path, subject: Subject) -> int:
    """Return the number of replies to the same question of the same user beyond the first."""
    saved = [
        orjson.loads(line.text)
        for line in valid_lines(folder / "run" / f"responses_{subject.subset}.jsonl")
    ]
    counts = Counter((line["user_id"], line["request"], line["nth"]) for line in saved)
    return len(saved) - len(counts)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--users", type=int, default=200)
    parser.add_argument(
        "--steps", type=float, default=9.0, help="mean steps of a user in StreamProfileBench"
    )
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--durability", choices=("process", "power"), default="process")
    parser.add_argument("--benchmark", choices=SUBJECTS, default=STREAMPROFILE)
    parser.add_argument(
        "--agent",
        type=Path,
        metavar="FILE",
        help="DailyMobility in agent mode, with this agent file",
    )
    parser.add_argument(
        "--life",
        type=float,
        default=LIFE,
        metavar="S",
        help="seconds of work that a process is given at most",
    )
    parser.add_argument("--repeats", type=int, default=1)
    args = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="harness-kill-") as folder:
        found = campaign(
            args.kills,
            args.users,
            args.steps,
            args.concurrency,
            args.seed,
            Path(folder),
            args.durability,
            args.benchmark,
            args.agent,
            args.life,
            args.repeats,
        )
    print(
        f"{found.kills} kills over {found.runs} runs of {args.users} users in"
        f" {time.monotonic() - started:.0f} s: {found.identical} of {found.runs} results files"
        f" byte-identical to the undisturbed one; {found.extra} requests asked again (at most"
        f" {found.allowed}: {args.concurrency} on the wire at each kill; the endpoint left"
        f" {found.unanswered} unanswered), {found.twice} of them for a reply that was saved"
    )
    return 0 if found.passed else 1


if __name__ == "__main__":
    sys.exit(main())
