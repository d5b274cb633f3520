"""A provider's Batch API in memory, which outlives the processes that use it, and an account of
what it ran."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import anyio
import orjson

from harness.client.address import Address
from harness.client.http import Client
from harness.client.quirks import Adapted
from harness.client.request_body import digest
from harness.engine.runner import ModelRunner
from harness.errors import Rejected, TransportFault
from harness.extensions.batches import Batch as BatchOptions
from harness.extensions.batches.api import MOST_REQUESTS, BatchApi, ProviderBatch, RequestCounts
from harness.extensions.batches.batches import Batches
from harness.extensions.batches.waves import MAX_FILE, Waves
from harness.model import JSON
from harness.options.options import ResumeOptions
from harness.store.disk import Disk
from harness.store.manifest import Manifest
from harness.store.tasks import TaskIndex
from tests.support.chains import no_wait
from tests.support.disks import FaultyDisk
from tests.support.whole_run import USERS, WholeRun

T = TypeVar("T")
TOO_MUCH = (
    "Enqueued token limit reached for m. Please try again once some in_progress batches have been"
    " completed."
)

Line = Callable[[JSON, int], JSON | None]
"""From a request's body and its try to the error, in OpenAI's form, that the line has; None for an
answer."""


def at_once(act: Callable[[], Any]) -> Any:
    return act()


class Provider(BatchApi):
    """`step` does each operation, or fails before or after it. `ran` and `answered` count requests
    by digest.

    `fates` are the statuses in which batches end, in order, then all are completed; one that
    expires or is cancelled answers its first half, one that fails says `why`. A batch with which
    more than `room` requests are enqueued fails, or is not created if it is `strict`; one is
    enqueued until it was looked at. The first `cut` downloads break off; where they are `doubled`,
    each line is there twice.
    """

    def __init__(
        self,
        fates: tuple[str, ...] = (),
        line: Line = lambda body, tries: None,
        why: str = "limit: too many requests",
        cut: int = 0,
        doubled: bool = False,
        room: int | None = None,
        strict: bool = False,
    ) -> None:
        super().__init__(Client(Address("http://there/v1"), timeout=1.0, connections=1))
        self.step: Callable[[Callable[[], Any]], Any] = at_once
        self.files: dict[str, tuple[str, bytes]] = {}
        self.batches: dict[str, ProviderBatch] = {}
        self.ran: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        self.operations: Counter[str] = Counter()
        self.enqueued: dict[str, int] = {}
        self._room = room
        self._strict = strict
        self._fates = fates
        self._line = line
        self._why = why
        self._cut = cut
        self._doubled = doubled

    async def upload(self, name: str, content: bytes) -> str:
        def act() -> str:
            assert name not in [one for one, _ in self.files.values()], "uploaded twice"
            return self._kept(name, content)

        return self._done("upload", act)

    async def create(self, file: str, label: str) -> ProviderBatch:
        def act() -> ProviderBatch:
            number = len(self.batches)
            fate = self._fates[number] if number < len(self._fates) else "completed"
            lines = len(self.files[file][1].splitlines())
            if self._room is not None and sum(self.enqueued.values()) + lines > self._room:
                if self._strict:
                    raise Rejected("http_400", TOO_MUCH)
                fate, self._why = "failed", TOO_MUCH
            else:
                self.enqueued[f"batch-{number}"] = lines
            made = ProviderBatch(
                f"batch-{number}", "in_progress", file, metadata={"behavior_harness": label}
            )
            self.batches[made.id] = made
            self.batches[made.id] = self._run(made, fate)
            return made

        return self._done("create", act)

    async def get(self, batch: str) -> ProviderBatch:
        self.enqueued.pop(batch, None)
        return self._done("get", lambda: self.batches[batch])

    async def find_file(self, name: str) -> str | None:
        found = (id for id, (one, _) in self.files.items() if one == name)
        return self._done("find_file", lambda: next(found, None))

    async def find_batch(self, file: str, label: str) -> ProviderBatch | None:
        found = (batch for batch in self.batches.values() if batch.input_file_id == file)
        return self._done("find_batch", lambda: next(found, None))

    async def download(self, file: str, into: BinaryIO) -> None:
        content = self.files[file][1] * (2 if self._doubled else 1)
        if self._cut:
            self._cut -= 1
            content = content[: len(content) // 2]
        self._done("download", lambda: into.write(content))

    def lines(self) -> list[JSON]:
        """All lines of all batches."""
        inputs = [self.files[batch.input_file_id or ""][1] for batch in self.batches.values()]
        return [orjson.loads(line) for content in inputs for line in content.splitlines()]

    def _done(self, kind: str, act: Callable[[], T]) -> T:
        self.operations[kind] += 1
        made: T = self.step(act)
        return made

    def _kept(self, name: str, content: bytes) -> str:
        self.files[f"file-{len(self.files)}"] = name, content
        return f"file-{len(self.files) - 1}"

    def _run(self, batch: ProviderBatch, fate: str) -> ProviderBatch:
        assert batch.input_file_id is not None
        if fate == "failed":
            return changed(batch, status=fate, errors={"data": [{"message": self._why}]})
        lines = self.files[batch.input_file_id][1].splitlines()
        run = len(lines) if fate == "completed" else len(lines) // 2
        results = [self._result(orjson.loads(line)) for line in lines[:run]]
        failed = [one for one in results if one["response"]["status_code"] != 200]
        output = [one for one in results if one not in failed]
        return changed(
            batch,
            status=fate,
            output_file_id=self._kept("output", _jsonl(output)) if output else None,
            error_file_id=self._kept("errors", _jsonl(failed)) if failed else None,
            request_counts=RequestCounts(len(output)),
        )

    def _result(self, line: JSON) -> JSON:
        body = line["body"]
        key = digest(orjson.dumps(body))
        self.ran[key] += 1
        error = self._line(body, self.ran[key])
        if error is not None:
            return {
                "custom_id": line["custom_id"],
                "response": {"status_code": error["status"], "body": error},
            }
        self.answered[key] += 1
        choice = {"index": 0, "message": {"content": f"答 {key[:12]}"}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 3, "completion_tokens": 2}
        reply = {"model": "served", "choices": [choice], "usage": usage}
        return {
            "custom_id": line["custom_id"],
            "response": {"status_code": 200, "body": reply},
            "error": None,
        }


def hurried() -> float:
    """A thousand seconds a second: for pauses between batches."""
    return 1000.0 * anyio.current_time()


class InMemory(Batches):
    """Takes a provider, and at most so many requests in a file."""

    def __init__(self, provider: Provider, most: int) -> None:
        super().__init__(BatchOptions(batch=True), ResumeOptions())
        self._provider, self._most = provider, MAX_FILE._replace(requests=most)

    def _made(self, runner: ModelRunner) -> Waves:
        adapted = Adapted(self._provider, on_learned=runner.findings.learned)  # type: ignore[arg-type]
        chance = random.Random(0)
        return Waves(
            runner,
            self._provider,
            adapted,
            clock=hurried,
            sleep=no_wait,
            rng=chance,
            limits=self._most,
        )


class BatchRun(WholeRun):
    """Goes by batches of a provider, each of whose operations `step` does, or the disk, which may
    fail there."""

    def __init__(
        self,
        folder: Path,
        provider: Provider,
        users: Mapping[str, int] = USERS,
        *,
        power: bool = False,
        most_requests: int = MOST_REQUESTS,
    ) -> None:
        super().__init__(folder, users, power=power)
        self.step: Callable[[Callable[[], Any]], Any] = at_once
        self.provider, self._most = provider, most_requests

    def hooks(self, disk: Disk) -> Sequence[Batches]:
        self.provider.step = (
            partial(disk.step, "network") if isinstance(disk, FaultyDisk) else self.step
        )
        return [InMemory(self.provider, self._most)]

    def _manifest(self, index: TaskIndex) -> Manifest:
        made = super()._manifest(index)
        made.tuning = {"batch": True}  # type: ignore[typeddict-unknown-key]
        return made


class Losing:
    """A step that is done, and whose answer is lost at its nth time; `before`: it is not done
    either."""

    def __init__(self, nth: int, *, before: bool = False) -> None:
        self._left = nth
        self._before = before

    def __call__(self, act: Callable[[], Any]) -> Any:
        self._left -= 1
        if self._left == 0 and self._before:
            raise TransportFault("http_503", "busy")
        made = act()
        if self._left == 0:
            raise TransportFault("connection", "the connection broke")
        return made


def changed(batch: ProviderBatch, **changes: Any) -> ProviderBatch:
    return ProviderBatch(
        **{name: getattr(batch, name) for name in ProviderBatch.__struct_fields__} | changes
    )


def _jsonl(lines: list[JSON]) -> bytes:
    return b"".join(orjson.dumps(line) + b"\n" for line in lines)
