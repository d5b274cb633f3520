"""A cluster of workers in threads of this process, without Ray: turns are short, and a worker can
be lost at will."""

from __future__ import annotations

import asyncio
import pickle
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from inspect import CORO_CREATED, getcoroutinestate
from types import ModuleType
from typing import Any, TypeVar

import msgspec
import pytest

from harness.extensions import ray as package
from harness.extensions.ray import crew, engine
from harness.extensions.ray.crew import WorkerGone
from harness.extensions.ray.messages import SentPart, TurnOrder, TurnReport, WorkerPlan
from harness.extensions.ray.worker import Player
from harness.model import Completion, Reply

T = TypeVar("T")
for kind in (Completion, Reply):
    msgspec.json.Decoder(kind)  # as in `store/manifest.py`: here workers are threads


@dataclass
class Near:
    """A worker in a thread. It is lost with the report of its turn `lost_after`, None for never;
    `certain` as of `WorkerGone`."""

    name: str
    player: Player
    loop: asyncio.AbstractEventLoop
    lost_after: int | None = None
    certain: bool = True
    turns: int = 0
    thread: ThreadPoolExecutor = field(default_factory=partial(ThreadPoolExecutor, 1))

    async def turn(self, part: SentPart | None, order: TurnOrder) -> TurnReport:
        report: TurnReport = await self._own(self._turn, *copied((part, hurried(order))))
        self.turns += report.snapshot is not None
        if self.lost_after is not None and self.turns >= self.lost_after:
            await self._own(self._end)
            raise WorkerGone("it was to be lost", certain=self.certain)
        return report

    async def _own(self, work: Callable[..., Any], *args: Any) -> Any:
        """Do some work in the worker's thread."""
        return await asyncio.get_running_loop().run_in_executor(self.thread, partial(work, *args))

    def _turn(self, part: SentPart | None, order: TurnOrder) -> TurnReport:
        asyncio.set_event_loop(self.loop)
        report: TurnReport = copied(self.player.turn(part, order))
        return report

    def kill(self) -> None:
        pass

    def close(self) -> None:
        self.thread.submit(self._end).result()
        self.thread.shutdown()

    def _end(self) -> None:
        """End as a process does: its connections break."""
        if not self.loop.is_closed():
            self.loop.run_until_complete(self._cancel_all())
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()
        if self.player.engine:
            self.player.engine.close()

    async def _cancel_all(self) -> None:
        """Cancel all tasks once each has begun: one that is cancelled before leaves a warning."""
        while any(getcoroutinestate(task.get_coro()) == CORO_CREATED for task in others()):  # noqa: ASYNC110
            await asyncio.sleep(0)
        tasks = others()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def others() -> set[asyncio.Task[Any]]:
    """Return all tasks of this loop but the one that asks."""
    return asyncio.all_tasks() - {asyncio.current_task()}


def copied(sent: T) -> T:
    """Return what another process gets."""
    received: T = pickle.loads(pickle.dumps(sent))
    return received


async def until(look: Callable[[], object]) -> None:
    while not look():  # noqa: ASYNC110 (files have no events)
        await asyncio.sleep(0.01)


def hurried(order: TurnOrder) -> TurnOrder:
    return order._replace(seconds=min(order.seconds, 0.01))


class Place(ModuleType):
    """In place of the module `cluster`. `started` are the numbers of all workers, `workers` those
    that are ready.

    `change` changes one before its first turn, by its number from 0; `starts` is awaited before,
    and may raise."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.workers: list[Near] = []
        self.change: Callable[[int, Near], None] = lambda number, worker: None
        self.starts: Callable[[int], Awaitable[None]] = lambda number: asyncio.sleep(0)
        self.started: list[int] = []

    @contextmanager
    def connected(self, address: str | None, workers: int | None) -> Iterator[int]:
        before = len(self.workers)
        yield workers or 1
        for worker in self.workers[before:]:
            worker.close()

    def Cluster(self, plans: Sequence[WorkerPlan]) -> Place:
        self._plans = plans
        return self

    async def start(self) -> Near:
        number = len(self.started)
        self.started.append(number)
        await self.starts(number)
        loop = asyncio.new_event_loop()
        worker = Near(str(number), Player(self._plans, loop), loop)
        self.change(number, worker)
        self.workers.append(worker)
        return worker

    def head_answers(self) -> bool:
        return True


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Place:
    """`--engine ray` plays on workers of this process."""
    made = Place(f"{package.__name__}.cluster")
    monkeypatch.setitem(sys.modules, made.__name__, made)
    monkeypatch.setattr(package, "cluster", made, raising=False)
    monkeypatch.setattr(engine, "find_spec", lambda package: package)
    monkeypatch.setattr(crew, "TURN_SECONDS", 0.01)
    return made
