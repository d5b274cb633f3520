"""The command `run` with both benchmarks that ship, on workers in this process that serve baselines themselves."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import anyio
import pytest

from harness.config import options
from harness.defaults import Engine
from harness.engine.accounts import Opening, remote_lanes, sockets
from harness.engine.lane import Lane
from harness.features.ray.crew import Crew
from harness.features.ray.player import LanePart, Player
from harness.features.ray.shipping import packed
from tests.features.ray.workers import another_loop
from tests.support.plugins import Commands


@dataclass
class Near:
    """A worker in real time, see `Worker`."""

    name: str
    player: Player

    async def turn(self, sent: bytes, seconds: float) -> bytes:
        await anyio.lowlevel.checkpoint()
        with another_loop():
            return self.player.turn(sent, seconds)

    def kill(self) -> None:
        raise AssertionError("no worker is lost")


class Cluster(ModuleType):
    """In place of the module of this name."""

    @staticmethod
    @contextmanager
    def connected(address: str | None, workers: int | None) -> Iterator[int]:
        yield workers or 1

    @staticmethod
    @asynccontextmanager
    async def open_lanes(openings: Sequence[Opening], engine: Engine, workers: int) -> AsyncIterator[list[Lane]]:
        contents: dict[str, bytes] = {}
        plans = [one.plan for one in openings]
        parts = [LanePart(packed(one.plan.benchmark, contents), one.plan.sampling, one.route) for one in openings]
        loops = [asyncio.new_event_loop() for _ in range(workers)]
        with another_loop():
            made = [
                Near(str(n), Player(parts, contents, sockets(plans), loop, cpu=lambda: 0.0))
                for n, loop in enumerate(loops)
            ]
        crew = Crew(made, _no_other, engine.turn)
        async with AsyncExitStack() as held, anyio.create_task_group() as serving:
            lanes = await remote_lanes(openings, crew.transport, crew.player, held)
            serving.start_soon(crew.serve, lanes)
            yield lanes
            serving.cancel_scope.cancel()
        with another_loop():
            for worker, loop in zip(made, loops, strict=True):
                worker.player.close()
                loop.close()


async def _no_other(count: int) -> list[Near]:
    raise AssertionError("no worker is lost")


@pytest.mark.parametrize("benchmark", ["streamprofile", "dailymobility"])
def test_results_of_both_benchmarks_are_those_of_this_process(
    benchmark: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the byte, over the embedded endpoint of each worker."""
    name = "harness.features.ray.cluster"
    monkeypatch.setitem(sys.modules, name, Cluster(name))
    monkeypatch.setattr(sys.modules["harness.features.ray"], "cluster", sys.modules[name], raising=False)
    monkeypatch.setattr(options, "find_spec", lambda package: package)
    folders = [tmp_path / "local", tmp_path / "workers"]
    model = "baseline/recency" if benchmark == "streamprofile" else "baseline/random-day"
    words = ["run", benchmark, "--demo", "--model", model, "--limit", "3", "--no-html", "--name", "r"]
    for folder, more in zip(folders, ([], ["--engine", "ray", "--workers", "2", "--turn", "1"]), strict=True):
        Commands(folder, capsys)(*words, *more)
    written = [sorted(path.name for path in folder.glob("r/inference_results_*")) for folder in folders]
    assert written[0] == written[1] != []
    for file in written[0]:
        assert (folders[0] / "r" / file).read_bytes() == (folders[1] / "r" / file).read_bytes() != b""
