"""What one process and worker processes of Ray cost, and a model of how far that goes
(docs/scale.md)."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from bench.bodies import PLATFORM
from bench.cost import Workload
from bench.machine import memory_mb
from bench.processes import HARNESS, fast_endpoint

Row = dict[str, Any]

LATENCY, IN_FLIGHT = 0.25, 128
STEPS = 2.0
"""The mean of a user; few, since a run ends with its longest chain."""
SIZES = ((300, STEPS), (1200, STEPS), (1200, 3 * STEPS))
"""Users of a run, and the mean of their steps: the differences leave out what a run costs once, and
tell the cost of a user (index, record, scores twice) from that of a reply."""
TURNS = (250, 1000)
"""Milliseconds: two lengths tell the cost of a turn from that of a reply."""
FEW, MANY = 64, 1024
"""In flight, for the memory of a user in play."""
AGENT = Path(__file__).with_name("agents") / "busy.py"
RESIDENTS, RESIDENTS_IN_FLIGHT = 60, 32
BUSY = 0.9
"""The share of a core that a process can be planned for."""
AGENT_STEP = 0.0021
"""Seconds of CPU of a step: the agent's own 2 ms, and what agent mode takes (docs/performance.md,
"mobility")."""
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Used:
    """What a run used. `cpu` is the driver's in seconds, `workers_cpu` that of all workers,
    `cluster_cpu` of the other processes of Ray; `bytes` those between driver and workers, `play`
    the seconds from the first user to the last."""

    users: int
    replies: int
    play: float
    cpu: float
    peak_mb: float
    disk: int
    turns: int
    bytes: int
    workers_cpu: float
    worker_mb: float
    cluster_cpu: float
    cluster_mb: float


@dataclass(frozen=True, slots=True)
class Engine:
    """`workers` 0 is `local`; `turn` in milliseconds."""

    workers: int = 0
    turn: int = 1000

    @property
    def options(self) -> list[str]:
        if not self.workers:
            return []
        return ["--engine", "ray", "--workers", str(self.workers)]


@dataclass(frozen=True, slots=True)
class Costs:
    """Of the model: CPU in seconds, memory and disk in bytes.

    `local` is a reply in one process; `reply`, `user` and `turn` are the driver's, `worker` a reply
    in a worker. `local` and `worker` have their share of a user of `chain` replies. `own` is the
    CPU of an agent's own code for a step, `replies` the replies of a step.
    """

    local: float
    reply: float
    user: float
    turn: float
    worker: float
    wire: float
    disk: float
    driver_user: float
    worker_user: float
    own: float = 0.0
    replies: float = 1.0
    chain: float = STEPS


# The model: pure.


def driver_most(costs: Costs, workers: int, turn: float) -> float:
    """Return the replies a second at which the driver of so many workers is busy; turns in
    seconds."""
    return max(0.0, BUSY - costs.turn * workers / turn) / (costs.reply + costs.user / costs.chain)


def local_most(costs: Costs) -> float:
    """Return the steps a second of one process."""
    return BUSY / (costs.local * costs.replies + costs.own)


def workers_most(costs: Costs, workers: int) -> float:
    """Return the steps a second of so many workers, a core each, whatever their driver does."""
    return workers * BUSY / (costs.worker * costs.replies + costs.own)


def ray_most(costs: Costs, workers: int, turn: float) -> float:
    """Return the steps a second of a driver and its workers."""
    return min(workers_most(costs, workers), driver_most(costs, workers, turn) / costs.replies)


def workers_to_saturate(costs: Costs, turn: float) -> int:
    """Return the number of workers from which on the driver, and no worker, is what limits."""
    workers = 1
    while workers_most(costs, workers) * costs.replies < driver_most(costs, workers, turn):
        workers += 1
    return workers


def needed(
    costs: Costs, steps: float, machines: int, cores: int, latency: float, turn: float
) -> list[Row]:
    """Return what each way of playing needs for so many steps, of an endpoint that is never the
    bottleneck.

    There are no more workers than the driver can keep busy.
    """
    workers = min(machines * cores - 1, workers_to_saturate(costs, turn))
    ways = [
        ("local", 1, local_most(costs)),
        (f"ray, {workers} workers", 1, ray_most(costs, workers, turn)),
        (f"{machines * cores} parts", machines * cores, machines * cores * local_most(costs)),
    ]
    return [_needs(costs, steps, way, drivers, rate, latency) for way, drivers, rate in ways]


def _needs(costs: Costs, steps: float, way: str, drivers: int, rate: float, latency: float) -> Row:
    remote = way.startswith("ray")
    replies = rate * costs.replies
    in_flight = replies * latency
    return {
        "way": way,
        "steps": steps,
        "steps_a_second": rate,
        "hours": steps / rate / 3600.0,
        "in_flight": round(in_flight),
        "driver_mb_a_second": replies * (costs.wire if remote else 0.0) / 1e6,
        "disk_gb": steps * costs.replies * costs.disk / 1e9,
        "memory_mb_in_play": in_flight
        * (costs.driver_user + (costs.worker_user if remote else 0.0))
        / drivers
        / 1e6,
    }


def solved(found: Sequence[tuple[Sequence[float], float]]) -> list[float]:
    """Return the costs of each amount, by least squares of (amounts, sum)."""
    amounts, sums = zip(*found, strict=True)
    return [
        float(each)
        for each in np.linalg.lstsq(np.array(amounts, float), np.array(sums), rcond=None)[0]
    ]


def share_a_reply(found: Sequence[tuple[Used, int]]) -> list[float]:
    """Return the driver's CPU once a run, a reply, a user and a turn, in seconds."""
    return solved([((1.0, one.replies, one.users, one.turns), one.cpu) for one, _ in found])


def worker_a_reply(found: Sequence[tuple[Used, int]]) -> list[float]:
    """Return a worker's CPU once, and a reply with its share of turns, in seconds."""
    return solved([((workers, one.replies), one.workers_cpu) for one, workers in found])


# Measured.


@contextmanager
def watched(process: int, every: float = 0.1) -> Iterator[dict[int, tuple[str, float, float]]]:
    """Yield a mapping that has name, CPU in seconds and peak memory in MB of each descendant of a
    process, by id."""
    seen: dict[int, tuple[str, float, float]] = {}
    over = threading.Event()

    def look() -> None:
        turn = 0
        while not over.wait(every):
            known = list(seen) if turn % 10 else _descendants(process)
            turn += 1
            seen.update({each: found for each in known if (found := _used(each))})

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def _descendants(process: int) -> list[int]:
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int(
                (folder / "stat").read_text().rpartition(")")[2].split()[1]
            )
        except OSError:
            continue
    found = [process]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found[1:]


def _used(process: int) -> tuple[str, float, float] | None:
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        name = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")[0].decode()
    except OSError:
        return None
    if not name:  # it has ended, and waits for its parent to notice
        return None
    return name, (int(fields[11]) + int(fields[12])) / TICKS, memory_mb("VmHWM", process) or 0.0


def played(url: str, tasks: Path, concurrency: int, engine: Engine, *options: str) -> Used:
    """Play a whole run, and return what it used. Raise `CalledProcessError`."""
    with tempfile.TemporaryDirectory(prefix="harness-bench-") as results:
        turn = ["--turn", str(engine.turn)] if engine.workers else []
        command = [
            sys.executable,
            "-m",
            "bench.clients.driver",
            *turn,
            "run",
            *options,
            "--model",
            "fast",
        ]
        command += ["--api-url", url]
        command += [
            "--tasks-dir",
            str(tasks),
            "--results-dir",
            results,
            "--name",
            "run",
            "--no-html",
        ]
        command += ["--concurrency", str(concurrency), *engine.options]
        with (
            subprocess.Popen(
                command, stdout=subprocess.PIPE, env=os.environ | {"PYTHONHASHSEED": "0"}
            ) as process,
            watched(process.pid) as seen,
        ):
            printed, _ = process.communicate()
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command)
        return _used_by(
            orjson.loads(printed.splitlines()[-1]), Path(results, "run"), list(seen.values())
        )


def _used_by(done: Row, folder: Path, seen: Sequence[tuple[str, float, float]]) -> Used:
    [responses] = folder.glob("responses_*.jsonl")
    [results] = folder.glob("inference_results_*.jsonl")
    [manifest] = folder.glob("run_*.json")
    workers = [one for one in seen if one[0].startswith("ray::Actor")]
    others = [one for one in seen if not one[0].startswith("ray::Actor")]
    return Used(
        users=results.read_bytes().count(b"\n"),
        replies=responses.read_bytes().count(b"\n"),
        play=orjson.loads(manifest.read_bytes())["times"]["schedule"]["seconds"],
        cpu=done["cpu"],
        peak_mb=done["peak_mb"],
        disk=responses.stat().st_size + results.stat().st_size,
        turns=int(done["turns"]),
        bytes=int(done["bytes"]),
        workers_cpu=sum(cpu for _, cpu, _ in workers),
        worker_mb=max((peak for *_, peak in workers), default=0.0),
        cluster_cpu=sum(cpu for _, cpu, _ in others),
        cluster_mb=sum(peak for *_, peak in others),
    )


def scale(folder: Path, quick: bool) -> list[Row]:
    """Costs, memory, agents and the model."""
    rows = replies(folder, 1 if quick else 5)
    costs = Costs(**rows[-1].pop("costs"))
    users = memory(folder)
    costs = replace(
        costs,
        driver_user=users[-1]["driver_kb_a_user"] * 1e3,
        worker_user=users[-1]["worker_kb_a_user"] * 1e3,
    )
    return [*rows, *users, *agents(folder, 1 if quick else 5), *model(costs)]


def _stream_profile(url: str, work: Workload, concurrency: int, engine: Engine) -> Used:
    return played(url, work.tasks, concurrency, engine, "--platform", PLATFORM)


def replies(folder: Path, repeats: int) -> list[Row]:
    """CPU a reply and a turn, of the driver and of a worker; the engines in turn."""
    works = [Workload(folder, *size) for size in SIZES]
    engines = [Engine(), *(Engine(*each) for each in product((1, 2), TURNS))]
    found: list[list[tuple[Engine, Used]]] = []
    for _ in range(repeats):
        with fast_endpoint("--latency", str(LATENCY), "--jitter", "0.5") as url:
            found.append(
                [
                    (each, _stream_profile(url, work, IN_FLIGHT, each))
                    for work in works
                    for each in engines
                ]
            )
        print(f"  {_costs(found[-1])}", flush=True)
    every = [_costs(one) for one in found]
    middle = {name: statistics.median(one[name] for one in every) for name in every[0]}
    names = {"local": "local_us", "reply": "driver_us", "user": "driver_user_us", "turn": "turn_us"}
    names |= {"worker": "worker_us"}
    row: Row = {
        "table": f"CPU a reply and a turn (us), {IN_FLIGHT} in flight, {LATENCY} s; medians",
        "repeats": repeats,
    }
    row |= {words: 1e6 * middle[name] for name, words in names.items()}
    row |= {
        "wire_bytes": middle["wire"],
        "disk_bytes": middle["disk"],
        "costs": middle,
        "every": every,
    }
    runs = [
        {"workers": each.workers, "turn_ms": each.turn, **_of(used)}
        for one in found
        for each, used in one
    ]
    return [row | {"runs": runs}]


def _costs(found: Sequence[tuple[Engine, Used]]) -> dict[str, float]:
    here = [used for engine, used in found if not engine.workers]
    there = [(used, engine.workers) for engine, used in found if engine.workers]
    few = [(used, workers) for used, workers in there if used.replies < 1.5 * STEPS * used.users]
    _, local = solved(
        [
            ((1.0, used.replies), used.cpu)
            for used in here
            if used.replies < 1.5 * STEPS * used.users
        ]
    )
    _, reply, user, turn = share_a_reply(there)
    _, worker = worker_a_reply(few)
    return {
        "local": local,
        "reply": reply,
        "user": user,
        "turn": turn,
        "worker": worker,
        "wire": statistics.median(used.bytes / used.replies for used, _ in there),
        "disk": statistics.median(used.disk / used.replies for used in here),
        "driver_user": 0.0,
        "worker_user": 0.0,
    }


def _of(used: Used) -> Row:
    return {name: getattr(used, name) for name in Used.__dataclass_fields__}


def memory(folder: Path) -> list[Row]:
    """Memory of the driver and of the worker for each user in play."""
    work, rows = Workload(folder, 2 * MANY, STEPS), []
    for engine in (Engine(), Engine(1)):
        with fast_endpoint("--latency", "1", "--jitter", "0.5") as url:
            few, many = (_stream_profile(url, work, in_flight, engine) for in_flight in (FEW, MANY))
        more = MANY - FEW
        driver, worker = (
            (many.peak_mb - few.peak_mb) / more,
            (many.worker_mb - few.worker_mb) / more,
        )
        row: Row = {
            "table": f"Memory, {FEW} and {MANY} in flight, 1 s",
            "engine": "ray" if engine.workers else "local",
        }
        row |= {
            "driver_mb": few.peak_mb,
            "driver_mb_many": many.peak_mb,
            "driver_kb_a_user": 1e3 * driver,
        }
        row |= {
            "worker_mb": few.worker_mb,
            "worker_mb_many": many.worker_mb,
            "worker_kb_a_user": 1e3 * worker,
        }
        rows.append(row | {"cluster_mb": many.cluster_mb})
    return rows


def agents(folder: Path, pairs: int) -> list[Row]:
    """Residents a second of an agent with work of its own: one process against two workers, in
    turn."""
    tasks, found = folder / "residents", []
    command = [*HARNESS, "synth", "dailymobility", "--out", str(tasks), "--users", str(RESIDENTS)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    options = ("dailymobility", "--agent", str(AGENT))
    for _ in range(pairs):
        with fast_endpoint("--latency", "0.1", "--jitter", "0.5") as url:
            a, b = (
                played(url, tasks, RESIDENTS_IN_FLIGHT, each, *options)
                for each in (Engine(), Engine(2))
            )
        found.append((a, b))
        print(
            f"  local {a.play:.1f} s, 2 workers {b.play:.1f} s: {a.play / b.play:.2f}", flush=True
        )
    ratios = [a.play / b.play for a, b in found]
    row: Row = {
        "table": f"An agent with 2 ms of CPU a step, a request every tenth; {RESIDENTS} residents",
        "pairs": pairs,
    }
    row |= {"local_a_second": RESIDENTS / statistics.median(a.play for a, _ in found)}
    row |= {"workers_a_second": RESIDENTS / statistics.median(b.play for _, b in found)}
    row |= {
        "ratio": statistics.median(ratios),
        "lowest": min(ratios),
        "highest": max(ratios),
        "ratios": ratios,
    }
    row |= {"local_cpu_ms": 1e3 * statistics.median(a.cpu for a, _ in found) / RESIDENTS}
    row |= {"workers_cpu_ms": 1e3 * statistics.median(b.workers_cpu for _, b in found) / RESIDENTS}
    return [row | {"driver_cpu_ms": 1e3 * statistics.median(b.cpu for _, b in found) / RESIDENTS}]


def model(costs: Costs, latency: float = 1.0, turn: float = 1.0, cores: int = 32) -> list[Row]:
    """Return what N steps on M machines need, of replies alone and of agents, as the measured costs
    say."""
    rows = []
    for what, each in (("replies", costs), ("agents", replace(costs, own=AGENT_STEP, replies=0.1))):
        for steps, machines in product((1e6, 1e8), (1, 16)):
            title = (
                f"Model: {what}; {cores} cores a machine, {latency:g} s, turns of {1e3 * turn:g} ms"
            )
            rows += [
                {"table": title, "machines": machines, **row}
                for row in needed(each, steps, machines, cores, latency, turn)
            ]
    return rows
