"""The engine of one process: play the remaining users of several plans' runs at once, each plan in
its own runner."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from types import FrameType
from typing import Any

import anyio

from harness.client.limiter import Slots
from harness.defaults import GRACE_SECONDS
from harness.engine.dispatch import Dispatch
from harness.engine.runner import ModelRunner
from harness.errors import EXIT_CODES, MachineError, RunStopped, heeded
from harness.model import JSON, Snapshots

TICK_SECONDS = 0.25
RUNNING_SCORE_SECONDS = 2.0
NOTE_SECONDS = 10.0
"""Between two log lines with the actual concurrency."""
SATURATED, SATURATED_SECONDS = 0.9, 60.0
"""The share of its core above which the event loop holds a run up, and the shortest run of which
a report has that share."""

Signalled = Callable[[], RunStopped | None]
"""Returns the last signal that asked this process to end, None before; from any thread."""


class Signals:
    """The signals that ask this process to end, from `listen` until after the event loop. Enter it
    in the main thread; in another, where no handlers can be set, it gets none.

    The event loop's own receivers would leave its last steps to the handlers from before, whose
    exceptions break them.
    """

    def __init__(self) -> None:
        self._before: dict[signal.Signals, Any] = {}
        self._received: deque[signal.Signals] = deque()
        self._wake: Callable[[], object] = bool

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.getsignal(number) for number in heeded()}
        return self

    def __exit__(self, *raised: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        for number in self._received:  # too late for the engine
            signal.raise_signal(number)

    def listen(self) -> None:
        """Set the handlers, after libraries have set theirs."""
        for number in self._before:
            signal.signal(number, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        # Handlers run between two instructions of anything, so they only note the signal.
        self._received.append(signal.Signals(number))
        self._wake()

    def late(self) -> RunStopped | None:
        """Return the signal that has come since the engine ended, as `Signalled`."""
        return RunStopped(EXIT_CODES[self._received[-1]]) if self._received else None

    async def each(self) -> AsyncIterator[signal.Signals]:
        """Yield each signal in the event loop."""
        fresh = asyncio.Event()
        self._wake = partial(asyncio.get_running_loop().call_soon_threadsafe, fresh.set)
        try:
            while True:
                while self._received:
                    yield self._received.popleft()
                await fresh.wait()
                fresh.clear()
        finally:
            self._wake = bool


class LocalEngine:
    """`observe` gets frozen snapshots several times a second; `clock` is in seconds, monotonic.

    `ended` is awaited for each runner that has ended while others still run, with its schedule, and
    ends early once its last argument returns a signal. `cpu` is the CPU time of this thread in
    seconds. Create it in the event loop's thread.
    """

    def __init__(
        self,
        runners: Sequence[ModelRunner],
        *,
        seed: int,
        clock: Callable[[], float],
        observe: Callable[[Snapshots], None],
        ended: Callable[[ModelRunner, JSON, Signalled], Awaitable[None]] | None = None,
        cpu: Callable[[], float] = time.thread_time,
        signals: Signals | None = None,
    ) -> None:
        self._runners = runners
        self._signals = signals or Signals()
        self._clock = clock
        self._cpu = cpu
        self._started = clock()
        self._cpu_before = cpu()
        self._observe = observe
        self._ended = ended
        self._signalled: RunStopped | None = None
        sharing: dict[Slots, list[ModelRunner]] = {}
        for runner in runners:
            sharing.setdefault(runner.caller.limiter.slots, []).append(runner)
        self._dispatches = [Dispatch(slots, group, seed) for slots, group in sharing.items()]

    async def run(self) -> None:
        """Play every remaining user of every runner; a runner's `ending` holds why it stopped
        early."""
        async with anyio.create_task_group() as background:
            background.start_soon(self._watch_signals)
            background.start_soon(self._tick)
            background.start_soon(self._score)
            async with anyio.create_task_group() as running:
                for runner in self._runners:
                    running.start_soon(self._runner, runner)
                for dispatch in self._dispatches:
                    running.start_soon(dispatch.serve)
            background.cancel_scope.cancel()
        self._observe(self._snapshots())

    def schedule(self, runner: ModelRunner) -> JSON:
        """Return how close the runs on a runner's slots came to the shortest time possible, for its
        report."""
        slots = runner.caller.limiter.slots
        others = []
        for other in self._runners:
            if other is not runner and other.caller.limiter.slots is slots:
                others.append(other.progress)
        return runner.progress.schedule(others) | self._bottleneck()

    def _bottleneck(self) -> JSON:
        """Return the share of its core that the event loop used, if that held the run up."""
        seconds = self._clock() - self._started
        used = self._cpu() - self._cpu_before
        if seconds < SATURATED_SECONDS or used < SATURATED * seconds:
            return {}
        return {"event_loop": round(used / seconds, 2)}

    async def _runner(self, runner: ModelRunner) -> None:
        await runner.run()
        self._stop_others(runner)
        # Before the run's files are rewritten, which moves the records that the scores still read.
        for run in runner.runs:
            await runner.guarded(run.scores.advance)
            while run.scores.is_behind and not runner.ending:
                await runner.guarded(run.scores.advance)
        if self._ended and any(not other.over for other in self._runners):
            before = self._signalled  # its grace period is also for the last pass

            def signalled() -> RunStopped | None:
                return None if self._signalled is before else self._signalled

            await self._ended(runner, self.schedule(runner), signalled)
            self._stop_others(runner)

    def _stop_others(self, ended: ModelRunner) -> None:
        """Stop all runners after a machine error, which affects every run."""
        if isinstance(ended.ending, MachineError):
            for runner in self._runners:
                runner.stop(ended.ending, grace=0.0)

    async def _watch_signals(self) -> None:
        """Stop every runner on a signal: with a grace period if any runner was still running, else
        (a second signal, or all runners already stopping) at once."""
        async for number in self._signals.each():
            playing = [runner for runner in self._runners if not runner.over]
            is_first = any(runner.ending is None for runner in playing)
            if not is_first and number == signal.SIGHUP:
                continue  # a closed terminal sends one itself, and so does its shell
            self._signalled = RunStopped(EXIT_CODES[number])
            for runner in self._runners:
                for run in runner.runs:
                    run.scores.end()
            for runner in playing:
                # A grace period is given once: a second signal, or one to runners that stop
                # already, ends at once.
                runner.stop(self._signalled, GRACE_SECONDS if is_first else 0.0)

    async def _tick(self) -> None:
        logged = self._clock()
        while True:
            due = self._clock() + TICK_SECONDS
            await anyio.sleep(TICK_SECONDS)
            now = self._clock()
            lag = max(0.0, now - due)
            log = now - logged >= NOTE_SECONDS
            if log:
                logged = now
            for runner in self._runners:
                if not runner.over:
                    await runner.guarded(partial(runner.look_around, lag, log))
            for dispatch in self._dispatches:
                dispatch.slots.wake()  # the limit may have grown
            self._observe(self._snapshots())

    async def _score(self) -> None:
        """Score the users that have ended, in runners that play: of all runs now and then, else of
        those behind."""
        last = self._clock()
        while True:
            await anyio.sleep(TICK_SECONDS)
            due = self._clock() - last >= RUNNING_SCORE_SECONDS
            for runner in self._runners:
                for run in runner.runs:
                    if not runner.over and (due or run.scores.is_behind):
                        await runner.guarded(run.scores.advance)
            if due:
                last = self._clock()

    def _snapshots(self) -> Snapshots:
        return tuple([runner.snapshot() for runner in self._runners])
