"""What a request costs: the whole harness beside the bare loop and beside other clients, in turn,
in one run."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from bench.bodies import PLATFORM, write_bodies
from bench.machine import starting_on
from bench.processes import fast_endpoint, synthesise
from bench.watch import steady_rate, watching

CLIENTS = Path(__file__).with_name("clients")
PEERS = Path(__file__).parents[1] / ".bench"
"""Environments of the other clients, made by `make bench-peers`."""

PEER_SCRIPTS: dict[str, tuple[str, ...]] = {
    "openai": ("openai_sdk.py",),
    "openai[aiohttp]": ("openai_sdk.py", "aiohttp"),
    "litellm": ("litellm_sdk.py",),
    "inspect_ai": ("inspect_eval.py",),
}
PEER_ENVIRONMENTS = {
    "openai": "openai",
    "openai[aiohttp]": "openai",
    "litellm": "litellm",
    "inspect_ai": "inspect",
}
PEER_REQUESTS = 1000
"""Slow clients are measured over fewer requests."""

CLIENT_CORES, ENDPOINT_CORES = slice(-1, None), slice(0, -1)
"""The client gets a core of its own where there are two; the endpoint then keeps to the others."""

SETTINGS = [(in_flight, latency) for latency in (0.2, 1.0) for in_flight in (16, 256, 1024, 2048)]
"""Requests at once and mean latency in seconds."""

MOST_REQUESTS = 30_000
WATCH_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Measured:
    """One process's figures: CPU in microseconds a request, requests a second, and seconds, without
    its imports."""

    requests: int
    cpu_us: float
    rate: float
    wall: float
    version: str | None = None

    @classmethod
    def of(cls, command: Sequence[str], cores: slice = CLIENT_CORES) -> Measured:
        with starting_on(cores):
            process = subprocess.Popen(command, stdout=subprocess.PIPE)
        with process:
            printed, _ = process.communicate()
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command)
        return cls.parse(printed)

    @classmethod
    def parse(cls, printed: bytes) -> Measured:
        """From what a client prints: a JSON object on its last line."""
        data: dict[str, Any] = orjson.loads(printed.splitlines()[-1])
        requests, wall = data["requests"], data["wall"]
        return cls(
            requests, 1e6 * data["cpu"] / requests, requests / wall, wall, data.get("version")
        )


class Workload:
    """Tasks and the bodies that they become, in a folder of their own."""

    def __init__(self, folder: Path, users: int, steps: float) -> None:
        self.tasks = folder / f"tasks-{users}-{steps:g}"
        self.bodies = self.tasks / "bodies.jsonl"
        if not self.tasks.exists():
            synthesise(
                self.tasks, "--users", str(users), "--steps", str(steps), "--platform", PLATFORM
            )
        self.count = write_bodies(self.tasks / f"{PLATFORM}_inference_tasks.jsonl", self.bodies)

    def head(self, count: int) -> Path:
        """Write the first bodies to a file."""
        path = self.tasks / f"bodies-{count}.jsonl"
        path.write_bytes(b"".join(self.bodies.read_bytes().splitlines(keepends=True)[:count]))
        return path


@contextmanager
def endpoint_apart(latency: float, seed: int = 0) -> Iterator[str]:
    """Yield the fast endpoint away from the client's core; for one seed, the same latencies in the
    same order."""
    with starting_on(ENDPOINT_CORES):
        endpoint = fast_endpoint("--latency", str(latency), "--jitter", "0.5", "--seed", str(seed))
        url = endpoint.__enter__()
    try:
        yield url
    finally:
        endpoint.__exit__(None, None, None)


def bare(url: str, bodies: Path, in_flight: int) -> Measured:
    return Measured.of([sys.executable, str(CLIENTS / "bare.py"), url, str(bodies), str(in_flight)])


def whole(url: str, work: Workload, in_flight: int, *options: str) -> Measured:
    return run_harness(url, work.tasks, str(in_flight), *options, cores=CLIENT_CORES)


def run_harness(
    url: str, tasks: Path, concurrency: str, *options: str, cores: slice = slice(None)
) -> Measured:
    """Play a whole run into a folder that is thrown away. Raise `CalledProcessError` where it does
    not end complete."""
    with tempfile.TemporaryDirectory(prefix="harness-bench-") as results:
        return Measured.of(harness_command(url, tasks, Path(results), concurrency, *options), cores)


def harness_command(
    url: str, tasks: Path, results: Path, concurrency: str, *options: str
) -> list[str]:
    return [
        sys.executable,
        "-m",
        "bench.clients.whole",
        url,
        str(tasks),
        str(results),
        concurrency,
        *options,
    ]


def peer(name: str, url: str, bodies: Path, in_flight: int) -> Measured | None:
    """None where its environment has not been made."""
    python = PEERS / PEER_ENVIRONMENTS[name] / "bin" / "python"
    script, *options = PEER_SCRIPTS[name]
    if not python.exists():
        return None
    return Measured.of(
        [str(python), str(CLIENTS / script), url, str(bodies), str(in_flight), *options]
    )


def cost(folder: Path, quick: bool) -> list[dict[str, Any]]:
    """CPU a request at 256 in flight and 200 ms."""
    return cpu(folder, 3, 256, 1500, 1) if quick else cpu(folder, 9, 256, 3000, 3)


def cpu(
    folder: Path, pairs: int, in_flight: int, users: int, peer_repeats: int = 3
) -> list[dict[str, Any]]:
    """CPU a request of the whole harness against the bare loop, pair by pair, then of the others in
    the same run."""
    work = Workload(folder, users, 6.0)
    found = []
    with endpoint_apart(0.2) as url:
        for _ in range(pairs):
            a, b = whole(url, work, in_flight), bare(url, work.bodies, in_flight)
            found.append((a, b))
            print(
                f"  whole {a.cpu_us:.0f} us, bare {b.cpu_us:.0f} us, ratio"
                f" {a.cpu_us / b.cpu_us:.2f}",
                flush=True,
            )
        others = [
            (name, _peer_cpu(name, url, work, in_flight, peer_repeats)) for name in PEER_SCRIPTS
        ]
    whole_us = statistics.median(a.cpu_us for a, _ in found)
    bare_us = statistics.median(b.cpu_us for _, b in found)
    ratios = [a.cpu_us / b.cpu_us for a, b in found]
    rows = [
        {
            "client": "bare aiohttp + uvloop",
            "requests": work.count,
            "cpu_us": bare_us,
            "of_bare": 1.0,
        },
        {"client": "whole harness", "requests": work.count, "cpu_us": whole_us,
         "of_bare": statistics.median(ratios), "of_whole": 1.0, "ratios": ratios},
    ]  # fmt: skip
    for name, one in others:
        row: dict[str, Any] = {"client": name}
        if one is not None:
            row |= {"version": one.version, "requests": one.requests, "cpu_us": one.cpu_us}
            row |= {"of_bare": one.cpu_us / bare_us, "of_whole": one.cpu_us / whole_us}
        rows.append(row)
    return rows


def _peer_cpu(name: str, url: str, work: Workload, in_flight: int, repeats: int) -> Measured | None:
    """Return the median of some runs of another client; None, and say so, where it cannot be
    had."""
    found = []
    for _ in range(repeats):
        try:
            one = peer(name, url, work.head(PEER_REQUESTS), in_flight)
        except subprocess.CalledProcessError as error:
            print(
                f"  {name}: not measured (its script ended with exit code {error.returncode})",
                flush=True,
            )
            return None
        if one is None:
            print(f"  {name}: not measured (make bench-peers makes its environment)", flush=True)
            return None
        found.append(one)
    middle = sorted(found, key=lambda one: one.cpu_us)[len(found) // 2]
    print(f"  {name}: {middle.cpu_us:.0f} us", flush=True)
    return middle


def throughput(folder: Path, quick: bool) -> list[dict[str, Any]]:
    """Single-step users, so that any number of requests can be on the wire."""
    return [
        rates(folder, *setting, seconds=10.0, repeats=1 if quick else 3) for setting in SETTINGS
    ]


def rates(
    folder: Path, in_flight: int, latency: float, seconds: float, repeats: int
) -> dict[str, Any]:
    """Answers a second of the whole harness and of the bare loop, against in flight / mean
    latency."""
    ideal = in_flight / latency
    work = Workload(folder, max(2 * in_flight, min(int(ideal * seconds), MOST_REQUESTS)), 1.0)
    pairs = []
    for seed in range(repeats):
        with endpoint_apart(latency, seed) as url, watching(url, WATCH_SECONDS) as seen:
            a = whole(url, work, in_flight)
        with endpoint_apart(latency, seed) as url, watching(url, WATCH_SECONDS) as seen_of_bare:
            b = bare(url, work.bodies, in_flight)
        steady = (
            steady_rate(seen, work.count) or a.rate,
            steady_rate(seen_of_bare, work.count) or b.rate,
        )
        pairs.append((steady[0], steady[1], a.rate / b.rate))
    row = {
        "in_flight": in_flight,
        "latency": latency,
        "requests": work.count,
        "ideal_rate": ideal,
        "bare_of_ideal": statistics.median(b for _, b, _ in pairs) / ideal,
        "whole_of_ideal": statistics.median(a for a, _, _ in pairs) / ideal,
        "whole_of_bare": statistics.median(a / b for a, b, _ in pairs),
        "with_start_and_end": statistics.median(ratio for *_, ratio in pairs),
    }
    said = f"{row['whole_of_ideal']:.3f} of the ideal, {row['whole_of_bare']:.3f} of the bare loop"
    print(f"  {in_flight} in flight, {latency:g} s: {said}", flush=True)
    return row
