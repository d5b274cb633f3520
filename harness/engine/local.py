"""The engine of one process: plays the remaining users of several runs at once, each run in its own lane."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import anyio

from harness.defaults import GRACE_SECONDS
from harness.engine.dispatch import Dispatch
from harness.engine.lane import Lane
from harness.engine.progress import Part
from harness.errors import MachineError, RunStopped
from harness.model import JSON, Snapshots

TICK_SECONDS = 0.25
LIVE_SCORE_SECONDS = 2.0
NOTE_SECONDS = 10.0
"""Between two log lines with the actual concurrency."""

SIGNALS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGUSR1: 143}


async def _nothing(lane: Lane) -> None:
    pass


class LocalEngine:
    """`observe` gets frozen snapshots several times a second; `clock` is in seconds, monotonic.

    `ended` is awaited for each lane that has ended while others still run.
    """

    def __init__(
        self,
        lanes: Sequence[Lane],
        *,
        seed: int,
        clock: Callable[[], float],
        observe: Callable[[Snapshots], None],
        ended: Callable[[Lane], Awaitable[None]] = _nothing,
    ) -> None:
        self._lanes = lanes
        self._clock = clock
        self._observe = observe
        self._ended = ended
        shared = list(dict.fromkeys(lane.caller.limiter.slots for lane in lanes))
        self._turns = [
            Dispatch(slots, [lane for lane in lanes if lane.caller.limiter.slots is slots], seed) for slots in shared
        ]

    async def run(self) -> None:
        """Play every remaining user of every lane; a lane's `ending` holds why it stopped early."""
        async with anyio.create_task_group() as background:
            background.start_soon(self._watch_signals)
            background.start_soon(self._tick)
            background.start_soon(self._score_live)
            async with anyio.create_task_group() as running:
                for lane in self._lanes:
                    running.start_soon(self._lane, lane)
                for turns in self._turns:
                    running.start_soon(turns.serve)
            background.cancel_scope.cancel()
        for lane, part in self._parts:
            await lane.guarded(part.live.advance)
        self._observe(self._snapshots())

    @property
    def _parts(self) -> list[tuple[Lane, Part]]:
        return [(lane, part) for lane in self._lanes for part in lane.parts]

    async def _lane(self, lane: Lane) -> None:
        await lane.run()
        self._stop_others(lane)
        if any(not other.over for other in self._lanes):
            await self._ended(lane)
            self._stop_others(lane)

    def schedule(self, lane: Lane) -> JSON:
        """Return how close the runs on a lane's slots came to the shortest time possible, for its report."""
        [turns] = [turns for turns in self._turns if lane in turns.lanes]
        return lane.progress.schedule([other.progress for other in turns.lanes if other is not lane])

    def _stop_others(self, ended: Lane) -> None:
        """Stop all lanes: a machine error affects every run."""
        if isinstance(ended.ending, MachineError):
            for lane in self._lanes:
                lane.stop(ended.ending, grace=0.0)

    async def _watch_signals(self) -> None:
        """Stop every lane on a signal: with a grace period if any lane was still running, else (a second signal, or
        all lanes already stopping) at once."""
        with anyio.open_signal_receiver(*SIGNALS) as signals:
            async for number in signals:
                lanes = [lane for lane in self._lanes if not lane.over]
                grace = GRACE_SECONDS if any(lane.ending is None for lane in lanes) else 0.0
                for lane in lanes:
                    lane.stop(RunStopped(SIGNALS[number]), grace)

    async def _tick(self) -> None:
        noted = self._clock()
        while True:
            due = self._clock() + TICK_SECONDS
            await anyio.sleep(TICK_SECONDS)
            lag = max(0.0, self._clock() - due)
            note = self._clock() - noted >= NOTE_SECONDS
            noted = self._clock() if note else noted
            for lane in self._lanes:
                await lane.guarded(partial(self._look_around, lane, lag, note))
            for turns in self._turns:
                turns.slots.wake()  # the limit may have grown
            self._observe(self._snapshots())

    async def _look_around(self, lane: Lane, lag: float, note: bool) -> None:
        if lane.over:
            return
        lane.look_around(lag)
        if note:
            lane.note_concurrency()

    async def _score_live(self) -> None:
        last = self._clock()
        while True:
            await anyio.sleep(TICK_SECONDS)
            due = self._clock() - last >= LIVE_SCORE_SECONDS
            for lane, part in self._parts:
                if due or part.live.shard_is_full:
                    await lane.guarded(part.live.advance)
            if due:
                last = self._clock()

    def _snapshots(self) -> Snapshots:
        return tuple([lane.snapshot() for lane in self._lanes])
