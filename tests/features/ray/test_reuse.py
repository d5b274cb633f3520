"""`run --reuse` with worker processes: the driver has a reply that the worker never received."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import anyio
import pytest

from harness.defaults import Engine
from harness.engine.accounts import Opening, remote_lanes, sockets
from harness.engine.lane import Lane
from harness.features import ray as package
from harness.features.ray.crew import Crew
from harness.features.ray.player import LanePart, Player
from harness.features.ray.shipping import packed
from tests.commands.test_commands import RESULTS
from tests.features.reuse.test_reuse import Case
from tests.support.scripted import baseline, serving


class InThread:
    """A worker of this process: a `Player` in a thread of its own. See `crew.Worker`."""

    name = "thread"

    def __init__(self, player: Callable[[asyncio.AbstractEventLoop], Player]) -> None:
        self._thread, self._loop = ThreadPoolExecutor(1), asyncio.new_event_loop()
        self._player = self._thread.submit(player, self._loop).result()

    async def turn(self, sent: bytes, seconds: float) -> bytes:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._player.turn, sent, seconds)

    def kill(self) -> None:
        self._thread.submit(self._player.close).result()
        self._thread.shutdown()
        self._loop.close()


@contextmanager
def connected(address: str | None, workers: int | None) -> Iterator[int]:
    yield 1


@asynccontextmanager
async def open_lanes(openings: Sequence[Opening], engine: Engine, workers: int) -> AsyncIterator[list[Lane]]:
    """As the cluster's own, with one worker and without Ray."""
    contents: dict[str, bytes] = {}
    bounds = sockets([one.plan for one in openings])
    parts = [LanePart(packed(one.plan.benchmark, contents), one.plan.sampling, one.route) for one in openings]

    async def start(count: int) -> list[InThread]:
        return [InThread(partial(Player, parts, contents, bounds))]

    (worker,) = await start(1)
    crew = Crew([worker], start, 0.001)
    async with AsyncExitStack() as held, anyio.create_task_group() as serving_users:
        lanes = await remote_lanes(openings, crew.transport, crew.player, held)
        serving_users.start_soon(crew.serve, lanes)
        yield lanes
        serving_users.cancel_scope.cancel()
    worker.kill()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's place is taken by one worker in a thread."""
    found, ray = ModuleType("cluster"), ModuleType("ray")
    vars(found).update(connected=connected, open_lanes=open_lanes)
    ray.__spec__ = ModuleSpec("ray", None)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "harness.features.ray.cluster", found)
    monkeypatch.setattr(package, "cluster", found, raising=False)


@pytest.mark.slow  # a worker collects all garbage of its process
@pytest.mark.usefixtures("cluster")
def test_workers_go_on_with_replies_that_they_did_not_receive(tmp_path: Path) -> None:
    """And with those to their own requests; the results are those of a run without reuse."""
    with serving(baseline) as server:
        case = Case(tmp_path, server)
        case.run("first", "--limit", "1")
        saved = len(server.bodies)
        case.run("whole", "--limit", "2")
        whole = len(server.bodies)
        assert case.run("second", "--limit", "2", "--reuse", "first", "--engine", "ray") == 0
    assert len(server.bodies) == whole - saved
    assert (case.out / "second" / RESULTS).read_bytes() == (case.out / "whole" / RESULTS).read_bytes()
