"""A cluster of workers in this thread, without Ray."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from types import ModuleType

import anyio
import pytest

from harness.features import ray as package
from harness.features.ray import engine
from harness.features.ray.player import LanePart, Player
from tests.features.ray.workers import another_loop


@dataclass
class Near:
    """A worker in real time, see `Worker`."""

    name: str
    player: Player
    loop: asyncio.AbstractEventLoop

    async def turn(self, sent: bytes, seconds: float) -> bytes:
        await anyio.lowlevel.checkpoint()
        with another_loop():
            return self.player.turn(sent, seconds)

    def kill(self) -> None:
        raise AssertionError("no worker is lost")


class Place(ModuleType):
    """In place of the module `cluster`; `workers` are all that were started."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.workers: list[Near] = []

    @contextmanager
    def connected(self, address: str | None, workers: int | None) -> Iterator[int]:
        yield workers or 1
        for worker in self.workers:
            worker.player.close()
            worker.loop.close()

    def Cluster(self, parts: Sequence[LanePart], contents: Mapping[str, bytes], sockets: tuple[int, int]) -> Place:
        numbers = count()

        def started() -> Near:
            loop = asyncio.new_event_loop()
            player = Player(parts, contents, sockets, loop, cpu=lambda: 0.0)
            return Near(str(next(numbers)), player, loop)

        self.started = started
        return self

    async def start(self, many: int) -> list[Near]:
        with another_loop():
            self.workers += [self.started() for _ in range(many)]
        return self.workers

    def head_answers(self) -> bool:
        return True


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Place:
    """`--engine ray` plays on workers of this process."""
    made = Place(f"{package.__name__}.cluster")
    monkeypatch.setitem(sys.modules, made.__name__, made)
    monkeypatch.setattr(package, "cluster", made, raising=False)
    monkeypatch.setattr(engine, "find_spec", lambda package: package)
    return made
