"""An endpoint that allows only so much at once, and one that fails: time taken against the shortest
possible."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import orjson

from bench.bodies import PLATFORM
from bench.cost import run_harness
from bench.processes import fast_endpoint, stats, synthesise
from bench.watch import Sample, steady_rate, watching

CHAIN = 4
"""Steps of every user."""

SLOTS, SLOTS_DROPPED = 30, 10
LATENCY = 1.0
STARTS = (4, 16, 64)
CHANGES = ((30.0, SLOTS_DROPPED), (60.0, SLOTS))
"""Seconds from the first request, and the capacity from then on."""

SETTLING = 10.0
"""Seconds after a change that belong to following it, not to what was reached."""

FAULT_RATE, FAULTY_IN_FLIGHT, FAULTY_LATENCY = 0.3, 64, 0.2
FAULTY_USERS = 2000
WATCH_SECONDS = 0.25

Row = dict[str, Any]


def cut(line: bytes) -> bytes | None:
    """Return a task with exactly `CHAIN` steps; None of a user who has fewer."""
    user = orjson.loads(line)
    if len(user["prediction_tasks"]) < CHAIN:
        return None
    user["total_steps"] = CHAIN
    user["prediction_tasks"] = [
        step | {"total_steps": CHAIN} for step in user["prediction_tasks"][:CHAIN]
    ]
    return orjson.dumps(user, option=orjson.OPT_APPEND_NEWLINE)


def chains(folder: Path, users: int) -> Path:
    """Make a tasks folder in which every user has `CHAIN` steps."""
    drawn, made = folder / f"drawn-{users}", folder / f"chains-{users}"
    synthesise(drawn, "--users", str(4 * users), "--steps", "6", "--platform", PLATFORM)
    name = f"{PLATFORM}_inference_tasks.jsonl"
    made.mkdir()
    with (drawn / name).open("rb") as lines, (made / name).open("wb") as file:
        kept = list(islice((line for line in map(cut, lines) if line), users))
        file.writelines(kept)
    if len(kept) < users:
        raise RuntimeError(
            f"only {len(kept)} of {4 * users} synthetic users have {CHAIN} steps or more"
        )
    return made


def limits(folder: Path, quick: bool) -> list[Row]:
    """Measure the limits. A slow endpoint loads nothing, so runs of a repeat share the machine,
    each with its own."""
    users = 750
    tasks = chains(folder, users)
    found: dict[int, list[Row]] = {start: [] for start in STARTS}
    with ThreadPoolExecutor(len(STARTS) + 1) as pool:
        change = pool.submit(followed, tasks)
        for repeat in range(1 if quick else 5):
            for start, row in zip(
                STARTS, pool.map(partial(limited, tasks, repeat), STARTS), strict=True
            ):
                found[start].append(row)
                print(
                    f"  from {start}: {row['of_ideal']:.3f} of the ideal, {row['rejected']:.2%}"
                    " rejected",
                    flush=True,
                )
        changed = change.result()
    return [summary(start, rows, users * CHAIN) for start, rows in found.items()] + changed


def limited(tasks: Path, seed: int, start: int) -> Row:
    """One run from one start."""
    with fast_endpoint(*_slow(seed)) as url:
        run = run_harness(url, tasks, "auto", "--auto-start", str(start))
        seen = stats(url)
    ideal = run.requests * LATENCY / SLOTS
    return {
        "wall": run.wall,
        "of_ideal": run.wall / ideal,
        "rejected": seen["rejected"] / seen["requests"],
        "most_in_flight": seen["most_in_flight"],
    }


def _slow(seed: int) -> tuple[str, ...]:
    return (
        "--slots",
        str(SLOTS),
        "--latency",
        str(LATENCY),
        "--jitter",
        "0.5",
        "--seed",
        str(seed),
    )


def summary(start: int, rows: Sequence[Row], requests: int) -> Row:
    """Medians over the repeats of one start."""
    return {
        "case": f"start {start}",
        "requests": requests,
        **{
            name: statistics.median(row[name] for row in rows)
            for name in ("wall", "of_ideal", "rejected")
        },
        "repeats": list(rows),
    }


def followed(tasks: Path) -> list[Row]:
    """Play a run in which the capacity drops and returns; a row for each stretch of constant
    capacity."""
    with fast_endpoint(*_slow(seed=100)) as url, watching(url, WATCH_SECONDS) as samples:
        over = threading.Event()
        changing = threading.Thread(target=_change, args=(url, samples, over), daemon=True)
        changing.start()
        run_harness(url, tasks, "auto", "--auto-start", "16")
        over.set()
        changing.join()
    return stretches(samples)


def _change(url: str, samples: Sequence[Sample], over: threading.Event) -> None:
    while not any(sample.requests for sample in samples) and not over.wait(WATCH_SECONDS):
        pass
    began = time.monotonic()
    for at, slots in CHANGES:
        if over.wait(max(0.0, began + at - time.monotonic())):
            return
        with urlopen(
            Request(url.removesuffix("/v1") + "/slots", str(slots).encode(), method="POST"),
            timeout=10,
        ):
            pass


def stretches(samples: Sequence[Sample]) -> list[Row]:
    """Return what was on the wire in each stretch but for its first seconds, and how much was
    rejected in all of it."""
    began = next(sample.seconds for sample in samples if sample.requests)
    last = [sample.seconds for sample in samples if sample.in_flight >= SLOTS_DROPPED][
        -1
    ]  # the run's tail left out
    bounds = [(0.0, SLOTS), *CHANGES, (last - began, 0)]
    rows = []
    for (start, slots), (end, _) in pairwise(bounds):
        all_of_it = [sample for sample in samples if start <= sample.seconds - began < end]
        settled = [sample for sample in all_of_it if sample.seconds - began >= start + SETTLING]
        if not settled:
            continue
        rows.append(_stretch(f"{slots} slots, {start:g} to {end:.0f} s", slots, all_of_it, settled))
    return rows


def _stretch(case: str, slots: int, samples: Sequence[Sample], settled: Sequence[Sample]) -> Row:
    first, last = samples[0], samples[-1]
    asked = last.requests - first.requests
    used = statistics.mean(sample.in_flight for sample in settled)
    return {
        "case": case,
        "requests": asked,
        "rejected": (last.rejected - first.rejected) / max(1, asked),
        "in_flight": used,
        "of_slots": used / slots,
        "over_time": [(round(sample.seconds, 2), sample.in_flight) for sample in samples],
    }


def faults(folder: Path, quick: bool) -> list[Row]:
    """Immediate 500s, in turn with none. The yardstick is the fault-free time / the share of tries
    that succeed.

    A try that fails at once holds its slot for no time, so that it can be undercut: what a faulty
    run takes longer is the waiting before other tries.
    """
    tasks = chains(folder, FAULTY_USERS)
    found: dict[float, list[Faulty]] = {0.0: [], FAULT_RATE: []}
    for seed in range(1 if quick else 3):
        for rate, runs in found.items():
            runs.append(faulty(tasks, rate, seed))
    return [compared(rate, runs, found[0.0]) for rate, runs in found.items()]


@dataclass(frozen=True, slots=True)
class Faulty:
    """Seconds that a run took, and answers a second in its middle."""

    wall: float
    rate: float


def compared(rate: float, runs: Sequence[Faulty], clean: Sequence[Faulty]) -> Row:
    """Medians of runs at one rate of faults, and of their ratios to the fault-free runs beside
    them."""
    ratios = [run.wall / other.wall * (1 - rate) for run, other in zip(runs, clean, strict=True)]
    return {
        "fault_rate": rate,
        "requests": FAULTY_USERS * CHAIN,
        "wall": statistics.median(run.wall for run in runs),
        "of_ideal": statistics.median(ratios),
        "answers_a_second": statistics.median(run.rate for run in runs),
    }


def faulty(tasks: Path, rate: float, seed: int) -> Faulty:
    options = (
        "--fault-rate",
        str(rate),
        "--latency",
        str(FAULTY_LATENCY),
        "--jitter",
        "0.5",
        "--seed",
        str(seed),
    )
    with fast_endpoint(*options) as url, watching(url, WATCH_SECONDS) as samples:
        run = run_harness(url, tasks, str(FAULTY_IN_FLIGHT))
    print(f"  {rate:.0%} faults: {run.wall:.1f} s", flush=True)
    return Faulty(run.wall, steady_rate(samples, run.requests) or run.rate)
