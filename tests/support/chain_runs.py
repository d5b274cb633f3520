"""Runs of the small benchmark of dependent requests, with real files, in this process or on
workers."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import anyio
import anyio.to_thread
import numpy as np

from harness.benchmarks import tasks
from harness.client.caller import Caller
from harness.client.control import AdaptiveControl, FixedControl
from harness.client.health import Limits
from harness.client.limiter import Limiter, Slots
from harness.client.rates import Rates
from harness.engine.finish import finish
from harness.engine.hooks import Hooks, extend
from harness.engine.local import LocalEngine, Signals
from harness.engine.progress import EndpointFindings
from harness.engine.run import Run as SubsetRun
from harness.engine.runner import ModelRunner, RunnerPlan
from harness.errors import HarnessError, MachineError
from harness.model import Snapshot, Where
from harness.store import log
from harness.store.manifest import RUNNING, Manifest
from harness.store.run import RunFiles, RunStore
from harness.store.tasks import TaskIndex, open_index
from tests.support.chains import Chains, Endpoint, no_wait, task_lines

USERS = {f"用户{n}": 1 + n * 7 % 5 for n in range(12)}
STEPS = sum(USERS.values())


class Run:
    """One folder and its tasks, played as often as a test wants, each time as a new process
    would."""

    def __init__(
        self,
        folder: Path,
        users: Mapping[str, int] = USERS,
        store: Callable[..., RunStore] = RunStore,
        benchmark: Chains | None = None,
        repeats: int = 1,
    ) -> None:
        self.files = RunFiles(folder / "run", "weibo")
        self.benchmark = benchmark or Chains()
        self._repeats = repeats
        self.snapshots: list[Snapshot] = []
        self.manifest = Manifest(
            subset="weibo",
            identity={"model": "m", "settings": {}, "sampling": {}, "files": {}},
            provenance={"endpoint": "http://x", "harness": "0", "quirks": [], "quirks_used": []},
            tuning={},
            tasks={"path": "tasks.jsonl", "sha256": "", "users": len(users)},
            selection={"ratio": 1.0, "sample_seed": 0},
            state=RUNNING,
            counts={},
            times={},
        )
        self._tasks = folder / "tasks.jsonl"
        self._tasks.write_text(task_lines(users), encoding="utf-8")
        self._make_store = store

    async def play(
        self,
        endpoint: Endpoint,
        *,
        limit: int = 3,
        control: AdaptiveControl | None = None,
        rates: Rates | None = None,
        power: bool = False,
        max_retries: int = 2,
        sleep: Callable[[float], Awaitable[None]] = no_wait,
        observe: Callable[[Snapshot], None] = lambda snapshot: None,
        hooks: Sequence[Hooks] = (),
    ) -> HarnessError | None:
        """Return how it ended early."""

        def observed(snapshots: tuple[Snapshot, ...]) -> None:
            self.snapshots += snapshots
            for snapshot in snapshots:
                observe(snapshot)

        clock = (
            asyncio.get_running_loop().time
        )  # anyio's needs a task, and timers run outside of them
        with self.open() as job:
            self.job = job
            self.caller: Caller = Caller(
                endpoint,
                Limiter(Slots(control or FixedControl(limit), clock, rates)),
                Limits(max_retries, max_outage=900.0),
                probe=b"?",
                clock=clock,
                sleep=sleep,
                rng=random.Random(0),
            )
            runner = self.runner = ModelRunner(
                RunnerPlan("run", 1, limit, power),
                EndpointFindings([job], clock),
                self.caller,
            )
            extend(runner, hooks)
            with Signals() as signals:
                signals.listen()
                await LocalEngine(
                    [runner], seed=1, clock=clock, observe=observed, signals=signals
                ).run()
                if not isinstance(runner.ending, MachineError):
                    await self._finish(job, runner.ending is not None)
            return runner.ending

    async def _finish(self, job: SubsetRun, stopped: bool) -> None:
        self.report, _ = await anyio.to_thread.run_sync(finish, job, "run", stopped)
        of = self.report.coverage
        self.counts = {
            "users": of.scored_users,
            "expected": of.expected_users,
            "failed": of.failed_users,
        }

    def open(self) -> Opened:
        cache = self._tasks.parent / ".index"
        index = open_index(self._tasks, "chains", self._measured, cache, repeats=self._repeats)
        return Opened(
            self.benchmark, index, self._make_store(self.files, lambda: 1.0, "s"), self.manifest
        )

    def _measured(self, line: bytes, where: Where) -> tuple[str, int]:
        task = tasks.parse(self.benchmark, line, where, "weibo")
        return task.key, task.steps

    @property
    def recorded(self) -> list[str]:
        return [
            log.decode_line(line.text)["user_id"] for line in log.valid_lines(self.files.results)
        ]

    @property
    def failures(self) -> list[tuple[str, str, int]]:
        found = [log.decode_line(line.text) for line in log.valid_lines(self.files.failures)]
        return [(failure["user_id"], failure["kind"], failure["tries"]) for failure in found]

    @property
    def saved(self) -> Counter[str]:
        """The requests whose responses are in the file."""
        return Counter(
            log.decode_line(line.text)["request"] for line in log.valid_lines(self.files.responses)
        )


class Opened:
    """A run's files, open for the time of a block."""

    def __init__(
        self, benchmark: Chains, index: TaskIndex, store: RunStore, manifest: Manifest
    ) -> None:
        self._benchmark, self._index, self._store, self._manifest = (
            benchmark,
            index,
            store,
            manifest,
        )

    def __enter__(self) -> SubsetRun:
        self._store.open_logs(self._index)
        everyone = np.ones(len(self._index), np.bool_)
        return SubsetRun(
            self._benchmark, "weibo", self._index, self._store, self._manifest, everyone
        )

    def __exit__(self, *_: object) -> None:
        self._store.close()
        self._index.close()
