"""A long run against an endpoint that fails: what it holds on to must not grow.

`python -m bench.soak` starts an endpoint with transport faults and `run` with two models (one
streamed, one not) over users of one step and of several. Every five seconds it reads what the run's
process holds: resident memory, open files, threads and CPU from /proc, asyncio's tasks and Python's
blocks from the process itself, requests that back off from its display, and how late its event loop
is from its log. After some minutes it ends the run as a job queue does (SIGTERM). The samples go to
bench/results/soak.csv; the table gives the slope of each series once the run has settled.

The run's process is `python -m bench.soak --inside FILE run ...`, which is `python -m harness run
...` with a handler of SIGUSR2 that appends the counts which cannot be seen from outside to FILE.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import math
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, fields
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import orjson
from scipy.stats import t as student

from bench.machine import memory_mb
from bench.models import providers_file
from bench.processes import endpoint, stats, synthesise
from harness.cli import main as harness_main

RESULTS = Path(__file__).with_name("results") / "soak.csv"
LATENCY, JITTER = 4.0, 0.3
"""Mean seconds of a reply, and the spread: with 1,000 in flight some 250 requests a second."""

RETRIES, TIMEOUT = 30, 30
SAMPLE_SECONDS, SETTLING = 5.0, 300.0
TERMINATED = 143
"""What a run that SIGTERM has ended in good order exits with."""

SINGLE, SEVERAL, MEAN_STEPS = "zhihu", "weibo", 6
"""The subset whose users have one step, the other, and its mean steps; each has half of the
steps."""

MODELS = {"whole": "baseline/recency", "streamed": "baseline/frequency"}
"""By provider: the same endpoint under two names."""

CONFIDENCE = 0.95
LAGS = 0.03
"""Of the samples: as many are taken into account as neighbours, beyond the correlation of order
one."""

LARGEST_MEMORY = 0.99
"""Of a series from one sample to the next; more cannot be told from a random walk in so few
samples."""

MOST_GROWTH = 1.0
"""MB in ten minutes that memory may grow by."""

TELLING = 10.0
"""MB in ten minutes: an interval that reaches above tells nothing, though it hold zero. Garbage
that is let pile up for minutes and then collected has such an interval."""


@dataclass(frozen=True, slots=True)
class Setting:
    """`minutes` is how long requests go out, `faults` the part of them that fails."""

    minutes: float
    in_flight: int
    faults: float
    latency: float = LATENCY
    every: float = SAMPLE_SECONDS
    settling: float = SETTLING

    @property
    def steps(self) -> int:
        """Of each model: what both could have answered in the time if nothing failed."""
        return math.ceil(self.minutes * 60 * self.in_flight / self.latency / len(MODELS))


@dataclass(frozen=True, slots=True)
class Sample:
    """One look, `seconds` after the first request. None where that figure was not told since the
    look before.

    `resident_mb` is all that the process has in memory, `own_mb` what of it is no file's. `cpu_s`,
    `requests`, `completed` and `users` count since the start, `users` those with a record;
    `late_ms` is of the event loop.
    """

    seconds: float
    resident_mb: float
    own_mb: float
    files: int
    threads: int
    cpu_s: float
    requests: int
    completed: int
    users: int
    tasks: int | None
    blocks: int | None
    backing_off: int | None
    late_ms: float | None


COUNTS = {
    name: f"{name.removesuffix('_s')}/s" for name in ("cpu_s", "requests", "completed", "users")
}
"""What only grows, and the name of its rate."""


@dataclass(frozen=True, slots=True)
class Trend:
    """Of a series: its range, and its slope in ten minutes with the interval at `CONFIDENCE`."""

    samples: int
    mean: float
    least: float
    most: float
    slope: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Soak:
    """What was seen, and how the run ended: its exit code, users given up on, and faults that were
    served by kind."""

    samples: list[Sample]
    code: int
    failed: int
    faults: dict[str, int]


# ---- The slope


def trend(seconds: Sequence[float], values: Sequence[float]) -> Trend | None:
    """Least squares; the interval allows for what one sample has of the one before. None of fewer
    than ten samples.

    Newey-West (Econometrica 55, 1987), pre-whitened as in Andrews and Monahan (Econometrica 60,
    1992) by the correlation of neighbouring residuals, which is corrected for its bias in a short
    series (Kendall, Biometrika 41, 1954, here with a slope taken out) and which also sets the
    degrees of freedom. Of 300 samples it covers 92 to 95 % for autoregressions up to 0.98, and 88 %
    for a random walk.
    """
    count = len(values)
    if count < 10:
        return None
    minutes, y = np.asarray(seconds) / 600, np.asarray(values, np.float64)
    x = minutes - minutes.mean()
    level = y - y.mean()
    slope = float(x @ level / (x @ x))
    half = _half_width(x, level - slope * x)
    return Trend(
        count,
        float(y.mean()),
        float(y.min()),
        float(y.max()),
        slope,
        float(slope - half),
        float(slope + half),
    )


def _half_width(
    x: np.ndarray[Any, np.dtype[np.float64]], residuals: np.ndarray[Any, np.dtype[np.float64]]
) -> float:
    """Half of the interval of the slope; `x` has mean 0."""
    count, before = len(x), residuals[:-1]
    spread = float(before @ before)
    if spread == 0:
        return 0.0
    found = float(residuals[1:] @ before) / spread
    kept = min(max(found + (2 + 4 * found) / count, 0.0), LARGEST_MEMORY)
    scores = x * residuals
    white = scores[1:] - kept * scores[:-1]
    lags = max(1, round(LAGS * count))
    total = float(white @ white)
    for lag in range(1, lags):
        total += 2 * (1 - lag / lags) * float(white[lag:] @ white[:-lag])
    error = math.sqrt(max(0.0, total) * count / (count - 1)) / (1 - kept) / float(x @ x)
    freedom = max(3.0, count * (1 - kept) / (1 + kept) - 2)
    return float(student.ppf((1 + CONFIDENCE) / 2, freedom)) * error


def trends(samples: Sequence[Sample], settling: float) -> dict[str, Trend]:
    """By series, once the run has settled; of `COUNTS` the rate a second between neighbours."""
    settled = [sample for sample in samples if sample.seconds >= settling]
    found = {}
    for field in fields(Sample)[1:]:
        told = [
            (one.seconds, value)
            for one in settled
            if (value := getattr(one, field.name)) is not None
        ]
        if field.name in COUNTS:
            told = [(b[0], (b[1] - a[1]) / (b[0] - a[0])) for a, b in pairwise(told)]
        if made := trend([seconds for seconds, _ in told], [value for _, value in told]):
            found[COUNTS.get(field.name, field.name)] = made
    return found


def flat(memory: Trend) -> bool:
    """Whether the interval lies below `MOST_GROWTH`, or holds zero and tells something."""
    return memory.high < MOST_GROWTH or memory.low <= 0 < memory.high < TELLING


# ---- The run


def soak(folder: Path, setting: Setting, out: Path) -> Soak:
    """Make the tasks, run, look, and end the run. Raise `RuntimeError` where it ends by itself
    before."""
    tasks = folder / "tasks"
    several = setting.steps // 2 // MEAN_STEPS + 1
    synthesise(tasks, "--users", str(several), "--steps", str(MEAN_STEPS), "--platform", SEVERAL)
    synthesise(tasks, "--users", str(setting.steps // 2 + 1), "--steps", "1", "--platform", SINGLE)
    latency = ("--latency", str(setting.latency), "--jitter", str(JITTER))
    with endpoint(*latency, "--fault-rate", str(setting.faults)) as url:
        shared = {"base_url": url, "key_required": False}
        streams = {"whole": "off", "streamed": "on"}
        book = providers_file(
            folder / "two.toml",
            {name: shared | {"stream": stream} for name, stream in streams.items()},
        )
        with _running(
            folder, _options(tasks, folder / "results", book, setting.in_flight)
        ) as process:
            samples = _samples(process, url, folder, setting, out)
            process.send_signal(signal.SIGTERM)
            code = process.wait()
        seen = stats(url)
    failed = sum(
        [path.read_bytes().count(b"\n") for path in (folder / "results").glob("*/failures_*.jsonl")]
    )
    return Soak(samples, code, failed, seen["faults"])


def _options(tasks: Path, results: Path, book: Path, in_flight: int) -> list[str]:
    named = [
        word for provider, model in MODELS.items() for word in ("--model", f"{provider}:{model}")
    ]
    where = ["--tasks-dir", str(tasks), "--results-dir", str(results), "--providers", str(book)]
    pace = [
        "--concurrency",
        str(in_flight),
        "--max-retries",
        str(RETRIES),
        "--timeout",
        str(TIMEOUT),
    ]
    return ["run", "--platform", SEVERAL, "--platform", SINGLE, *named, *where, *pace]


@contextmanager
def _running(folder: Path, options: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "bench.soak", "--inside", str(folder / "counts"), *options]
    with (
        (folder / "display").open("wb") as shown,
        subprocess.Popen(command, stdout=shown, stderr=subprocess.STDOUT) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def _samples(
    process: subprocess.Popen[bytes], url: str, folder: Path, setting: Setting, out: Path
) -> list[Sample]:
    """Look every so often from the first request on; each goes to the file at once."""
    while not stats(url)["requests"]:
        _check(process, folder)
        time.sleep(0.05)
    watch, began, samples = _Watch(process.pid, url, folder), time.monotonic(), list[Sample]()
    with out.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow([field.name for field in fields(Sample)])
        while (due := began + len(samples) * setting.every) <= began + setting.minutes * 60:
            time.sleep(max(0.0, due - time.monotonic()))
            _check(process, folder)
            samples.append(watch.look(time.monotonic() - began))
            table.writerow(["" if value is None else value for value in astuple(samples[-1])])
            file.flush()
    return samples


def _check(process: subprocess.Popen[bytes], folder: Path) -> None:
    if process.poll() is not None:
        last = (folder / "display").read_text(encoding="utf-8", errors="replace")[-1000:]
        raise RuntimeError(f"the run ended by itself with exit code {process.returncode}: {last}")


class _Watch:
    """Looks at the run's process, of which the folder holds display, counts and results."""

    def __init__(self, process: int, url: str, folder: Path) -> None:
        self._process = process
        self._proc = Path(f"/proc/{process}")
        self._url = url
        self._display = _Growing(folder / "display")
        self._counts = _Growing(folder / "counts")
        self._log = _Growing(
            folder / "results" / MODELS["whole"].rpartition("/")[2] / f"run_{SEVERAL}.log"
        )
        self._records = [
            _Growing(
                folder / "results" / model.rpartition("/")[2] / f"inference_results_{subset}.jsonl"
            )
            for model in MODELS.values()
            for subset in (SEVERAL, SINGLE)
        ]
        self._users = 0
        self._counted: list[str] = []

    def look(self, seconds: float) -> Sample:
        os.kill(self._process, signal.SIGUSR2)  # its counts are read with the next look
        seen, counts = stats(self._url), self._counts.more().split()[-2:] or self._counted
        self._counted = counts  # a process that is busy answers later than the next look
        self._users += sum([records.more().count("\n") for records in self._records])
        backing_off = re.findall(r"backing off (\d+)", self._display.more())[-len(MODELS) :]
        late = re.findall(r'"loop_lag_ms":([\d.]+)', self._log.more())
        return Sample(
            seconds=round(seconds, 2),
            resident_mb=round(memory_mb("VmRSS", self._process) or 0.0, 3),
            own_mb=round(memory_mb("RssAnon", self._process) or 0.0, 3),
            files=len([*(self._proc / "fd").iterdir()]),
            threads=len([*(self._proc / "task").iterdir()]),
            cpu_s=_cpu_seconds(self._proc),
            requests=seen["requests"],
            completed=seen["completed"],
            users=self._users,
            tasks=int(counts[0]) if counts else None,
            blocks=int(counts[1]) if counts else None,
            backing_off=sum(map(int, backing_off)) if len(backing_off) == len(MODELS) else None,
            late_ms=max(map(float, late), default=None),
        )


class _Growing:
    """What has been added to a file since it was last asked for; the file may not be there yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def more(self) -> str:
        with suppress(FileNotFoundError), self._path.open("rb") as file:
            file.seek(self._read)
            whole = file.read()
            self._read += len(whole)
            return whole.decode("utf-8", "replace")
        return ""


def _cpu_seconds(proc: Path) -> float:
    """User and system, of fields 14 and 15 of `stat` (proc_pid_stat(5)); the name before them may
    hold blanks."""
    after = (proc / "stat").read_text().rpartition(")")[2].split()
    return (int(after[11]) + int(after[12])) / os.sysconf("SC_CLK_TCK")


def inside(counts: str, arguments: list[str]) -> int:
    """Run the harness's command line in this process, with a handler that appends what can only be
    counted here."""
    file = os.open(counts, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)

    def count(number: int, frame: FrameType | None) -> None:
        with suppress(RuntimeError):  # no loop runs any more
            os.write(file, b"%d %d\n" % (len(asyncio.all_tasks()), sys.getallocatedblocks()))

    signal.signal(signal.SIGUSR2, count)
    return harness_main(arguments)


# ---- What is shown


def report(found: Soak, setting: Setting) -> str:
    """Return a table of the series, and how the run ended."""
    rows = trends(found.samples, setting.settling)
    heading = (
        f"{'':<12} {'samples':>7} {'mean':>12} {'least':>12} {'most':>12} {'per 10 min':>12}  95 %"
        " interval"
    )
    lines = [
        f"{name:<12} {row.samples:>7} {row.mean:>12,.3f} {row.least:>12,.3f} {row.most:>12,.3f}"
        f" {row.slope:>+12,.4f}  {row.low:+,.4f} to {row.high:+,.4f}"
        for name, row in rows.items()
    ]
    last = found.samples[-1]
    return "\n".join(
        [
            (
                f"{setting.in_flight} in flight, {setting.faults:.0%} faults,"
                f" {last.seconds / 60:.1f} minutes: {last.requests:,} requests, {last.completed:,}"
                f" answers, {last.users:,} users, {found.failed} lost, exit code {found.code}; from"
                f" {setting.settling:g} s on:"
            ),
            heading,
            *lines,
            f"faults served: {orjson.dumps(found.faults, option=orjson.OPT_SORT_KEYS).decode()}",
        ]
    )


def passed(found: Soak, setting: Setting) -> bool:
    """Return whether the run ended as asked with no user lost, and its memory is flat."""
    memory = trends(found.samples, setting.settling).get("resident_mb")
    return found.code == TERMINATED and not found.failed and memory is not None and flat(memory)


def main() -> int:
    if sys.argv[1:2] == ["--inside"]:
        return inside(sys.argv[2], sys.argv[3:])
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--in-flight", type=int, default=1000)
    parser.add_argument("--faults", type=float, default=0.2, metavar="RATE")
    args = parser.parse_args()
    setting = Setting(args.minutes, args.in_flight, args.faults)
    signal.signal(
        signal.SIGTERM, lambda number, frame: sys.exit(128 + number)
    )  # run and endpoint end, and files go
    os.environ |= {
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }  # loopback, whatever else this machine does
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (hard, hard)
    )  # the endpoint has a socket for each request
    RESULTS.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="harness-soak-") as folder:
        found = soak(Path(folder), setting, RESULTS)
    sound = passed(found, setting)
    print(report(found, setting))
    print(f"{'passed' if sound else 'NOT passed'}; samples: {RESULTS}")
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
