"""Workers without processes: each has a real `Player` on an event loop in virtual time, which runs in its turns only.

All loops run in one thread: the driver's is left while a worker has its turn, so that everything happens in one order.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

import anyio

from harness.benchmarks import registry
from harness.config.plan import sampling_again
from harness.endpoint.address import Address
from harness.endpoint.quirks import Adapted
from harness.engine.transports import Listener, Route
from harness.errors import HarnessError
from harness.features.ray import messages as m
from harness.features.ray.crew import Crew, WorkerGone
from harness.features.ray.player import LEASE_SECONDS, LanePart, Player
from harness.features.ray.shipping import packed
from tests.support import virtual
from tests.support.chain_runs import Run
from tests.support.chains import Chains, Endpoint
from tests.support.virtual import VirtualLoop

TURN = 0.5
"""Seconds."""


class Shared(Chains):
    """`Chains` as a plug-in that a worker imports; how many are in play is counted over all workers."""


def importable(cls: type[Chains]) -> Chains:
    """Return a benchmark that workers import by its module and name."""
    made = registry.find(f"{cls.__module__}:{cls.__name__}")()
    assert isinstance(made, Chains)
    return made


@contextmanager
def another_loop() -> Iterator[None]:
    """Leave the running loop, and its task if there is one, so that another loop can run in this thread."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    if task:
        asyncio._leave_task(loop, task)
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(loop)
        if task:
            asyncio._enter_task(loop, task)


@dataclass(frozen=True)
class Loss:
    """A worker is lost in the turn after the one with which the driver has so many of its messages. `certain`: its
    process is gone; else it lives until its lease is over. The lost turn is begun if it is `reached`, and never
    returns if the worker is `silent`."""

    after: int
    certain: bool = True
    reached: bool = False
    silent: bool = False


@dataclass(eq=False)
class Fake:
    """See `Worker`. `rng` delays turns and cuts batches of messages; None: neither."""

    name: str
    player: Player
    loop: VirtualLoop
    loss: Loss | None
    rng: random.Random | None
    inbox: list[m.ToWorker] = field(default_factory=list)
    outbox: list[m.ToDriver] = field(default_factory=list)
    heard: int = 0
    turns: int = 0
    killed: bool = False
    ended: bool = False
    lost_at: float | None = None
    sent: list[tuple[float, m.ToWorker]] = field(default_factory=list)

    async def turn(self, sent: bytes, seconds: float) -> bytes:
        if self.loss and self.heard >= self.loss.after:
            return await self._lost(self.loss, sent, seconds)
        self.turns += 1
        self.inbox += m.to_worker(sent)
        arrived = self._cut(self.inbox)
        self.sent += [(virtual.now(), message) for message in arrived]
        await self._delayed(0.0)
        with another_loop():
            heard = self.player.turn(m.encode(arrived), seconds)
        await self._delayed(seconds)
        self.outbox += [message for message in m.to_driver(heard) if not isinstance(message, m.Worked)]
        most = len(self.outbox) if self.loss is None else self.loss.after - self.heard
        given = self._cut(self.outbox, most)
        self.heard += len(given)
        return m.encode(given)

    async def _lost(self, loss: Loss, sent: bytes, seconds: float) -> bytes:
        if loss.reached:
            with another_loop():
                self.player.turn(m.encode([*self.inbox, *m.to_worker(sent)]), seconds)
        self.lost_at = virtual.now()
        if loss.certain:
            self.end()
        else:
            asyncio.get_running_loop().call_later(LEASE_SECONDS, self.end)
        if loss.silent:
            await anyio.sleep_forever()
        raise WorkerGone("its process ended", certain=loss.certain)

    def _cut(self, queue: list[Any], most: int | None = None) -> list[Any]:
        """Take the first messages of a queue; the rest come with a later turn."""
        most = len(queue) if most is None else min(most, len(queue))
        taken = queue[: most if self.rng is None else self.rng.randint(0, most)]
        del queue[: len(taken)]
        return taken

    async def _delayed(self, seconds: float) -> None:
        await anyio.sleep(seconds + (self.rng.random() * TURN if self.rng else 0.0))

    def kill(self) -> None:
        """Note it; whether the process is still reached is up to the test's `Loss`."""
        self.killed = True

    def end(self) -> None:
        """End the process, and its requests."""
        if not self.ended:
            self.ended = True
            with another_loop():
                self.player.close()
            self.loop.close()


@dataclass(eq=False)
class Yard:
    """Starts workers for a run, each with the loss of its number if it has one. `refused` is why no other starts;
    workers of some numbers send to an endpoint that is `cut_off` instead."""

    run: Run
    endpoint: Any
    losses: Sequence[Loss | None] = ()
    seed: int | None = None
    refused: HarnessError | None = None
    cut_off: Any = None
    cut_off_workers: Sequence[int] = ()
    workers: list[Fake] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._numbers = count()
        self._contents: dict[str, bytes] = {}
        self._parts = parts_of(self.run, self._contents)

    async def start(self, many: int) -> list[Fake]:
        if self.refused and self.workers:
            raise self.refused
        return [self._started(next(self._numbers)) for _ in range(many)]

    def _started(self, number: int) -> Fake:
        endpoint = self.cut_off if self.cut_off and number in self.cut_off_workers else self.endpoint
        loop, connect = VirtualLoop(), partial(_scripted, endpoint)
        with another_loop():
            made = Player(self._parts, self._contents, (1, 1), loop, connect, cpu=lambda: 0.0)
        loss = self.losses[number] if number < len(self.losses) else None
        rng = None if self.seed is None else random.Random(f"{self.seed} {number}")
        self.workers.append(Fake(f"{number}", made, loop, loss, rng))
        return self.workers[-1]

    def close(self) -> None:
        for worker in self.workers:
            worker.end()


def parts_of(run: Run, contents: dict[str, bytes]) -> list[LanePart]:
    """Return what workers need of a run's only lane, and add the bytes of its files to `contents`."""
    route = Route((Address("http://here/v1"),), 0, 1, 60.0, 60.0, "auto", frozenset(), frozenset())
    return [LanePart(packed(run.benchmark, contents), sampling_again(run.manifest), route)]


async def _scripted(
    endpoint: Any, route: Route, addresses: Any, clients: Any, listener: Listener, held: AsyncExitStack
) -> tuple[Adapted, Callable[[str], str]]:
    return Adapted(endpoint, route.known, route.stream, listener.learned, route.given), lambda user: "http://here/v1"


@asynccontextmanager
async def crew_of(
    run: Run, endpoint: Endpoint, many: int = 2, turn: float = TURN, **more: Any
) -> AsyncIterator[tuple[Crew, Yard]]:
    """Workers for a run, which send to one endpoint. `more` as for `Yard`."""
    yard = Yard(run, endpoint, **more)
    try:
        yield Crew(await yard.start(many), yard.start, turn), yard
    finally:
        yard.close()


async def played(run: Run, endpoint: Endpoint, many: int = 2, *, limit: int = 3, **more: Any) -> HarnessError | None:
    """Play a run on so many workers, within an hour; `more` as for `Yard`. Return how it ended early."""
    async with crew_of(run, endpoint, many, **more) as (crew, _):
        with anyio.fail_after(3600):
            return await run.play(endpoint, crew=crew, limit=limit, sleep=anyio.sleep)
