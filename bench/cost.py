"""What a request costs: the whole harness beside the bare loop and beside other clients, in turn, in one run."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from bench.bodies import PLATFORM, write_bodies
from bench.processes import fast_endpoint, synthesise

CLIENTS = Path(__file__).with_name("clients")
PEERS = Path(__file__).parents[1] / ".bench"
"""Environments of the other clients, made by `make bench-peers`."""

PEER_SCRIPTS: dict[str, tuple[str, ...]] = {
    "openai": ("openai_sdk.py",),
    "openai[aiohttp]": ("openai_sdk.py", "aiohttp"),
    "litellm": ("litellm_sdk.py",),
    "inspect_ai": ("inspect_eval.py",),
}
PEER_ENVIRONMENTS = {"openai": "openai", "openai[aiohttp]": "openai", "litellm": "litellm", "inspect_ai": "inspect"}
PEER_REQUESTS = 600
"""Slow clients are measured over fewer requests."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One process's figures: CPU in microseconds a request, and requests a second."""

    requests: int
    cpu_us: float
    rate: float

    @classmethod
    def of(cls, command: Sequence[str]) -> Measured:
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, preexec_fn=_on_last_core)
        data: dict[str, Any] = orjson.loads(done.stdout.splitlines()[-1])
        requests = data["requests"]
        return cls(requests, 1e6 * data["cpu"] / requests, requests / data["wall"])


def _on_last_core() -> None:
    """The client gets a core of its own where there are two; the endpoint then keeps to the others."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[-1:])


class Workload:
    """Tasks and the bodies that they become, in a folder of their own."""

    def __init__(self, folder: Path, users: int, steps: float) -> None:
        self.tasks = folder / f"tasks-{users}-{steps:g}"
        self.bodies = self.tasks / "bodies.jsonl"
        synthesise(self.tasks, "--users", str(users), "--steps", str(steps), "--platform", PLATFORM)
        self.count = write_bodies(self.tasks / f"{PLATFORM}_inference_tasks.jsonl", self.bodies)

    def head(self, count: int) -> Path:
        """The first bodies, as a file."""
        path = self.tasks / f"bodies-{count}.jsonl"
        path.write_bytes(b"".join(self.bodies.read_bytes().splitlines(keepends=True)[:count]))
        return path


def bare(url: str, bodies: Path, in_flight: int) -> Measured:
    return Measured.of([sys.executable, str(CLIENTS / "bare.py"), url, str(bodies), str(in_flight)])


def whole(url: str, work: Workload, in_flight: int, *options: str) -> Measured:
    with tempfile.TemporaryDirectory(prefix="harness-bench-") as results:
        command = [sys.executable, "-m", "bench.clients.whole", url, str(work.tasks), results, str(in_flight)]
        return Measured.of([*command, *options])


def peer(name: str, url: str, bodies: Path, in_flight: int) -> Measured | None:
    """None where its environment has not been made."""
    python = PEERS / PEER_ENVIRONMENTS[name] / "bin" / "python"
    script, *options = PEER_SCRIPTS[name]
    if not python.exists():
        return None
    return Measured.of([str(python), str(CLIENTS / script), url, str(bodies), str(in_flight), *options])


def cpu(folder: Path, pairs: int, in_flight: int, users: int) -> dict[str, Any]:
    """CPU a request of the whole harness against the bare loop, pair by pair, then of the others in the same run."""
    work = Workload(folder, users, 6.0)
    rows = []
    with fast_endpoint("--latency", "0.2", "--jitter", "0.5") as url:
        for _ in range(pairs):
            a, b = whole(url, work, in_flight), bare(url, work.bodies, in_flight)
            rows.append({"whole_us": a.cpu_us, "bare_us": b.cpu_us, "ratio": a.cpu_us / b.cpu_us,
                         "whole_rate": a.rate, "bare_rate": b.rate})  # fmt: skip
            print(f"  whole {a.cpu_us:.0f} us, bare {b.cpu_us:.0f} us, ratio {a.cpu_us / b.cpu_us:.2f}", flush=True)
        others = {name: _peer_cpu(name, url, work, in_flight) for name in PEER_SCRIPTS}
    whole_us = statistics.median(row["whole_us"] for row in rows)
    return {
        "in_flight": in_flight,
        "requests": work.count,
        "pairs": rows,
        "ratio": statistics.median(row["ratio"] for row in rows),
        "whole_us": whole_us,
        "bare_us": statistics.median(row["bare_us"] for row in rows),
        "peers_us": others,
        "times_cheaper": {name: us / whole_us for name, us in others.items() if us is not None},
    }


def _peer_cpu(name: str, url: str, work: Workload, in_flight: int) -> float | None:
    found = [peer(name, url, work.head(PEER_REQUESTS), in_flight) for _ in range(3)]
    if any(one is None for one in found):
        print(f"  {name}: not measured (make bench-peers makes its environment)", flush=True)
        return None
    us = statistics.median(one.cpu_us for one in found if one)
    print(f"  {name}: {us:.0f} us", flush=True)
    return us


def throughput(
    folder: Path, settings: Sequence[tuple[int, float]], seconds: float, repeats: int
) -> list[dict[str, Any]]:
    """Answers a second of the whole harness and of the bare loop, against in flight / mean latency."""
    rows = []
    for in_flight, latency in settings:
        ideal = in_flight / latency
        work = Workload(folder, max(2 * in_flight, min(int(ideal * seconds), 30_000)), 1.0)
        found = []
        with fast_endpoint("--latency", str(latency), "--jitter", "0.5") as url:
            for _ in range(repeats):
                found.append((whole(url, work, in_flight), bare(url, work.bodies, in_flight)))
        ratio = statistics.median(a.rate / b.rate for a, b in found)
        row = {
            "in_flight": in_flight,
            "latency": latency,
            "requests": work.count,
            "whole_of_ideal": statistics.median(a.rate for a, _ in found) / ideal,
            "bare_of_ideal": statistics.median(b.rate for _, b in found) / ideal,
            "whole_of_bare": ratio,
        }
        rows.append(row)
        said = f"{row['whole_of_ideal']:.3f} of the ideal, {ratio:.3f} of the bare loop"
        print(f"  {in_flight} in flight, {latency:g} s: {said}")
    return rows
