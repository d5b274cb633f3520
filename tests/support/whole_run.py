"""A whole run over a scripted endpoint, from its lock to its manifest, in processes that follow one
another.

Each does what `run` does with its files, in the same order (harness/engine/run.py), on a disk of
the test's.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import orjson

from harness.chat import Chat
from harness.client.caller import Caller
from harness.client.control import FixedControl
from harness.client.health import Limits
from harness.client.limiter import Limiter, Slots
from harness.client.transport import Received
from harness.engine.finish import finish
from harness.engine.hooks import Hooks, extend
from harness.engine.local import LocalEngine
from harness.engine.progress import EndpointFindings
from harness.engine.run import Run
from harness.engine.runner import ModelRunner, RunnerPlan
from harness.errors import BadInput, Rejected, TransportFault
from harness.model import JSON, Completion, Record, Where
from harness.scoring.reports import encoded
from harness.store import atomic, log, manifest
from harness.store.disk import Disk
from harness.store.manifest import COMPLETE, RUNNING, Manifest
from harness.store.run import RunFiles, RunStore
from harness.store.tasks import TaskIndex, open_index
from tests.support.chains import Chains, Endpoint, no_wait, task_lines
from tests.support.disks import Death, FaultyDisk

USERS = {"甲": 2, "乙": 1, "丙": 3, "丁": 2}
LIMIT = 2
Script = Callable[[str, int], Awaitable[None]] | None
PROMPT = {"prompt_own.txt": "提示".encode()}


class Telling(Chains):
    """Says which replies a play has been shown."""

    def __init__(self, shown: Callable[[str], None]) -> None:
        super().__init__()
        self.configuration = replace(self.configuration, files=PROMPT)
        self._shown = shown

    async def asked(self, chat: Chat, key: str, before: str) -> Completion:
        completion = await super().asked(chat, key, before)
        self._shown(completion.text)
        return completion


class Wire(Endpoint):
    """Takes nothing more from a process that has died."""

    def __init__(self, disk: Disk, script: Script) -> None:
        super().__init__(script)
        self._disk = disk

    async def send(self, body: bytes, _: str = "") -> Received:
        if isinstance(self._disk, FaultyDisk) and self._disk.dead:
            raise Death
        return await super().send(body)


class TellingStore(RunStore):
    """Says whose records have been synced."""

    def __init__(self, tell: Callable[[str], None], *args: Any) -> None:
        self._tell = tell
        self._users: list[str] = []
        super().__init__(*args)

    def save_record(self, data: JSON, index: TaskIndex, position: int) -> Record:
        record = super().save_record(data, index, position)
        self._users.append(record.key)
        return record

    def sync(self) -> None:
        users = tuple(self._users)
        super().sync()
        for user in users:
            self._tell(user)


async def hiccup(user: str, before: int) -> None:
    """One request fails and is tried again; one user is refused and becomes a failure."""
    if user == "乙":
        raise Rejected("context", "太长")
    if user == "甲" and not before:
        raise TransportFault("http_503", "busy")


class WholeRun:
    """One run's folder below `folder`. `shown` are the replies that plays were shown, in all
    processes."""

    def __init__(
        self, folder: Path, users: Mapping[str, int] = USERS, *, power: bool = False
    ) -> None:
        self.root = folder
        self.files = RunFiles(folder / "results" / "run", "weibo")
        self.shown: Counter[str] = Counter()
        self.answered: list[Counter[str]] = []
        self._users = users
        self._power = power
        self._tasks = folder / "tasks.jsonl"
        if not self._tasks.exists():
            self._tasks.write_text(task_lines(users), encoding="utf-8")
        self._cache = folder / ".index"

    def process(
        self,
        disk: Disk,
        script: Script = None,
        tell: Callable[[str], None] = lambda text: None,
    ) -> Manifest:
        """Runs to an end; `tell` gets what is reported as saved, replies and users.

        Raises `MachineError` (or a death) where a process would end with it.
        """

        def shown(text: str) -> None:
            self.shown[text] += 1
            tell(text)

        endpoint = Wire(disk, script)
        self.answered.append(endpoint.answered)
        with closing(self.index()) as index:
            store = TellingStore(tell, self.files, lambda: 1.0, "s", disk)
            try:
                return self._run(store, index, disk, Telling(shown), endpoint)
            finally:
                store.close()

    def _run(
        self, store: RunStore, index: TaskIndex, disk: Disk, benchmark: Chains, endpoint: Endpoint
    ) -> Manifest:
        files, old = self.files, store.manifest()
        if old is None and files.results.exists() and files.results.stat().st_size:
            raise BadInput(f"{files.results} has no manifest")
        made = old or self._manifest(index)
        if old is None:
            made.save(files.manifest, disk)
        store.open_logs(index)
        job = Run(benchmark, "weibo", index, store, made, np.ones(len(index), np.bool_))
        if len(job.remaining):
            job.begin()
            anyio.run(self._play, job, endpoint, self.hooks(disk))
        elif made.state == COMPLETE:
            return made
        self.finish(job, disk)
        return made

    def finish(self, job: Run, disk: Disk) -> None:
        report, _ = finish(job, "run", stopped=False)
        atomic.write(self.files.report("json"), encoded(report), disk=disk)
        job.manifest.save(self.files.manifest, disk)

    def hooks(self, disk: Disk) -> Sequence[Hooks]:
        return ()

    async def _play(self, job: Run, endpoint: Endpoint, hooks: Sequence[Hooks]) -> None:
        clock = anyio.current_time
        findings, slots = EndpointFindings([job], clock), Slots(FixedControl(LIMIT), clock)
        limits, chance = Limits(2, 900.0), random.Random(0)
        caller = Caller(
            endpoint, Limiter(slots), limits, probe=b"?", clock=clock, sleep=no_wait, rng=chance
        )
        power = self._power
        runner = ModelRunner(RunnerPlan("run", 1, LIMIT, power), findings, caller)
        extend(runner, hooks)
        await LocalEngine([runner], seed=1, clock=clock, observe=lambda snapshots: None).run()
        if runner.ending is not None:
            raise runner.ending

    def index(self) -> TaskIndex:
        return open_index(self._tasks, "chains", self._measured, self._cache)

    def _measured(self, line: bytes, where: Where) -> tuple[str, int]:
        task = orjson.loads(line)
        return task["user_id"], task["steps"]

    def _manifest(self, index: TaskIndex) -> Manifest:
        return Manifest(
            subset="weibo",
            identity={
                "benchmark": "chains",
                "model": "m",
                "settings": {},
                "sampling": {},
                "files": {},
            },
            provenance={
                "endpoint": "http://x",
                "key_from": None,
                "harness": "0",
                "quirks": [],
                "quirks_used": [],
            },
            tuning={},
            tasks={"path": "tasks.jsonl", "sha256": index.sha256, "users": len(index)},
            selection={"ratio": 1.0, "sample_seed": 0},
            state=RUNNING,
            counts={},
            times={"created": "2025-01-01T00:00:00+00:00"},
        )

    # What stands in the files

    @property
    def saved(self) -> Counter[str]:
        """Requests whose replies are in the file."""
        return Counter(
            log.decode_line(line.text)["request"] for line in log.valid_lines(self.files.responses)
        )

    @property
    def replies(self) -> Counter[str]:
        return Counter(
            log.decode_line(line.text)["completion"]["text"]
            for line in log.valid_lines(self.files.responses)
        )

    @property
    def recorded(self) -> list[str]:
        return [
            log.decode_line(line.text)["user_id"] for line in log.valid_lines(self.files.results)
        ]

    def wrong(self) -> list[str]:
        """What `verify` would find in a run that is complete."""
        made = manifest.load(self.files.manifest)
        if made is None or made.state != COMPLETE:
            return ["it is not complete"]
        found = (
            [] if self.recorded == list(self._users) else [f"the records are of {self.recorded}"]
        )
        if made.results_sha256 != hashlib.sha256(self.files.results.read_bytes()).hexdigest():
            found.append("the manifest names another file")
        for path in (
            self.files.results,
            self.files.responses,
            self.files.failures,
            self.files.events,
        ):
            found += [
                f"{path.name}: torn" for line in log.lines(path) if not log.has_valid_crc(line.text)
            ]
        found += [f"{request} is saved twice" for request, times in self.saved.items() if times > 1]
        if self.files.folder.joinpath("prompt_own.txt").read_bytes() != PROMPT["prompt_own.txt"]:
            found.append("the prompt is another")
        return found
