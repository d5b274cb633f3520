"""Runs on the real Ray, as processes, and what they leave in their files and at the endpoint when parts of it are hit.

In each the endpoint itself counts: never more requests in flight than the limit, and after a kill at most those again
that were in flight. The results have the same bytes as those of a run in one process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from bench.processes import HARNESS, endpoint, run_command, stats, synthesise
from harness.store.log import sound_lines
from tests.support import ROOT
from tests.support.processes import wait_for_responses
from tests.support.raylets import Raylets, cluster

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.ray]

LIMIT = 8
SLOW = ("--latency", "0.3", "--jitter", "0.3")
AGENT = ROOT / "examples" / "commuting_agent.py"
HURRIED = (sys.executable, "-m", "tests.support.hurried")


@dataclass(frozen=True, slots=True)
class Kind:
    """What is played: words of the command, the subset and the model."""

    words: tuple[str, ...]
    subset: str
    model: str

    def results(self, folder: Path) -> bytes:
        return (folder / f"inference_results_{self.subset}.jsonl").read_bytes()

    def responses(self, folder: Path) -> Path:
        return folder / f"responses_{self.subset}.jsonl"


CHAINS = Kind(("streamprofile", "--platform", "weibo"), "weibo", "baseline/recency")
DAYS = Kind(("dailymobility",), "beijing", "baseline/commuter")
AGENTS = Kind((*DAYS.words, "--agent", str(AGENT)), DAYS.subset, DAYS.model)
KINDS = {"chains": CHAINS, "days": DAYS, "agents": AGENTS}


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    synthesise(folder, "--users", "24", "--platform", "weibo", "--steps", "6")
    synthesise(folder, "dailymobility", "--users", "12")
    return folder


@pytest.fixture(scope="module")
def wanted(tasks: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Kind], bytes]:
    """The results of runs in one process, each made once."""
    found: dict[Kind, bytes] = {}

    def of(kind: Kind) -> bytes:
        if kind not in found:
            results = tmp_path_factory.mktemp("local")
            with endpoint() as url:
                assert command(kind, url, tasks, results).wait() == 0
            found[kind] = kind.results(results / "run")
        return found[kind]

    return of


@pytest.fixture(scope="module")
def raylets() -> Iterator[Raylets]:
    with cluster(1, 1, 2) as found:
        yield found


def command(
    kind: Kind, url: str, tasks: Path, results: Path, *options: str, start: tuple[str, ...] = HARNESS, **more: Any
) -> subprocess.Popen[str]:
    words = ("--concurrency", str(LIMIT), "--name", "run", "--no-html", *options)
    whole = run_command(url, tasks, results, *kind.words, *words, model=kind.model)
    more = {"stdout": subprocess.DEVNULL, **more}
    return subprocess.Popen([*start, *whole[len(HARNESS) :]], text=True, **more)


def on(raylets: Raylets, workers: int = 2) -> tuple[str, ...]:
    return ("--engine", "ray", "--ray-address", raylets.address, "--workers", str(workers))


def prove(kind: Kind, folder: Path, url: str, wanted: bytes, kills: int = 0, limit: int = LIMIT) -> dict[str, Any]:
    """Check the files of a run against the endpoint's counts, and return these."""
    seen = stats(url)
    saved = [orjson.loads(line.text) for line in sound_lines(kind.responses(folder))]
    assert kind.results(folder) == wanted
    assert len(saved) == len({(one["user_id"], one["request"], one["nth"]) for one in saved})
    assert len(saved) == seen["distinct_bodies"]
    assert seen["most_in_flight"] <= limit
    assert seen["requests"] <= seen["distinct_bodies"] + sum(seen["faults"].values()) + kills * limit
    print(folder, seen, f"{kills} kills")
    return seen


def actors(process: subprocess.Popen[str], raylets: Raylets) -> list[int]:
    """Return the ids of the worker processes that play now."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if b"ray::Actor" in (path / "cmdline").read_bytes():
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
                found += [int(path.name)] if parent in raylets.raylets else []
        except OSError:
            continue
    return found


@pytest.mark.parametrize(
    ("name", "workers", "faults", "options"),
    [
        ("chains", 1, (), ("--durability", "power")),
        ("chains", 4, ("--fault-rate", "0.3"), ()),
        ("days", 2, (), ()),
        ("agents", 2, (), ()),
    ],
)
def test_cluster_gives_the_bytes_of_one_process(
    name: str,
    workers: int,
    faults: tuple[str, ...],
    options: tuple[str, ...],
    tasks: Path,
    wanted: Callable[[Kind], bytes],
    raylets: Raylets,
    tmp_path: Path,
) -> None:
    """Both benchmarks, an agent, transport faults: the same results, each request paid once."""
    kind = KINDS[name]
    with endpoint("--latency", "0.02", *faults) as url:
        quick = ("--timeout", "2") if faults else ()
        assert command(kind, url, tasks, tmp_path, *on(raylets, workers), *options, *quick).wait() == 0
        prove(kind, tmp_path / "run", url, wanted(kind))
