"""A small city and its residents, for tests of agent files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import dedent

import numpy as np

from harness.benchmarks.agents import loader
from harness.benchmarks.agents.city import Aoi, City, Poi
from harness.benchmarks.agents.loader import AgentFile
from harness.benchmarks.agents.resident import Resident, Row
from harness.benchmarks.agents.runner import Runner, World
from harness.benchmarks.agents.session import play
from harness.benchmarks.agents.spatial import Line, Lines
from harness.benchmarks.agents.watchdog import SliceLimits
from harness.benchmarks.dailymobility.agent import DailyMobilityAgent
from harness.benchmarks.dailymobility.day import ROW_SECONDS, ROWS
from harness.model import Ask, Completion, Request
from tests.support import DATA

FILES = DATA / "agents"
AOI, POI = 500_000_000, 700_000_000
HOME, WORK = AOI, AOI + 7
SIDE = 6
KINDS = ("amenity|restaurant", "shop|supermarket", "leisure|park")


def load_agent(path: Path, digests: Mapping[str, str] | None = None) -> AgentFile:
    """Return an agent file of DailyMobility."""
    return loader.load_agent(path, DailyMobilityAgent, digests)


def lanes_of(lines: Mapping[int, Line]) -> Lines:
    """Return lanes by id from their corners."""
    corners = [corner for line in lines.values() for corner in line]
    return Lines(
        list(lines),
        [len(line) for line in lines.values()],
        np.array(corners, np.float64).reshape(-1, 2),
    )


def city() -> City:
    """36 squares of 100 m, 500 m apart, with a POI in the middle of each; AOI n is in row n //
    6."""
    aois, pois = {}, {}
    for number in range(SIDE * SIDE):
        x, y = 500.0 * (number % SIDE), 500.0 * (number // SIDE)
        outline = ((x - 50, y - 50), (x + 50, y - 50), (x + 50, y + 50), (x - 50, y + 50))
        aois[AOI + number] = Aoi(AOI + number, x, y, outline, 10_000.0, "R", (POI + number,))
        pois[POI + number] = Poi(
            POI + number, f"地点{number}", KINDS[number % 3], x, y, AOI + number
        )
    return City(aois, pois, lanes_of({1: ((-100.0, -100.0), (3000.0, 3000.0))}), "", "0" * 64)


def world() -> World:
    """Return the city on a day of DailyMobility."""
    return World(city(), ROWS, ROW_SECONDS)


def resident(number: int = 1) -> Resident:
    profile = {"id": number, "age": 35, "occupation": "教师", "home": HOME, "work": WORK}
    return Resident(str(number), number, HOME, WORK, profile)


def runner(
    file: str | Path,
    warn: Callable[[str], None] = lambda warning: None,
    seed: int = 1,
    log: Callable[[str], None] | None = None,
    finds_memories: bool = False,
    **limits: float,
) -> Runner:
    path = file if isinstance(file, Path) else FILES / file
    agent, bounds = load_agent(path), SliceLimits(**limits)
    return Runner(
        agent,
        world(),
        seed=seed,
        finds_memories=finds_memories,
        warn=warn,
        log=log,
        limits=bounds,
    )


def written(folder: Path, body: str, *, top: str = "") -> Path:
    """An agent file with these lines in its class, and at its top."""
    file = folder / "agent.py"
    lines = "".join(f"    {line}\n" for line in dedent(body).strip("\n").splitlines())
    head = (
        "import asyncio, random, sys, time\nfrom agentsociety_benchmark.benchmarks import"
        " DailyMobilityAgent\n"
    )
    file.write_text(
        f"{head}{dedent(top)}\nclass Own(DailyMobilityAgent):\n{lines}", encoding="utf-8"
    )
    return file


async def silence(request: Request) -> Completion:
    raise AssertionError("nobody was to ask")


def saying(text: str) -> Ask:
    async def ask(request: Request) -> Completion:
        await asyncio.sleep(0)
        return Completion(text)

    return ask


def played(runner: Runner, ask: Ask = silence, number: int = 1) -> list[Row]:
    return asyncio.run(play(runner, resident(number), ask))
