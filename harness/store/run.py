"""The writer of one run's files: it holds the lock, sets torn lines aside, tells what is done and which
responses are saved, and appends. Guarantees are those of `log`, `atomic` and `aside`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.benchmarks.files import holds, open_regular
from harness.errors import MachineError
from harness.model import JSON, LARGEST_COUNT, Completion, Failure, Record, Reply
from harness.store import log, manifest
from harness.store.atomic import make_folder, replacing, sync_folder, write
from harness.store.backup import drop_second_names, keep_old, replace_results, set_aside, set_aside_any
from harness.store.disk import DISK, Disk
from harness.store.files import RunFiles, runs, runs_in
from harness.store.lock import RunLock
from harness.store.manifest import Manifest, same_identity, shown
from harness.store.tasks import TaskIndex

__all__ = ["RECORD_FORMAT", "RunFiles", "RunStore", "replace_results", "runs", "runs_in", "same_identity", "shown"]

RECORD_FORMAT = RESPONSE_FORMAT = FAILURE_FORMAT = EVENT_FORMAT = 1


class RunStore:
    """The writer of one run's files. `clock` gives seconds since the epoch, `stamp` names set-aside files."""

    def __init__(self, files: RunFiles, clock: Callable[[], float], stamp: str, disk: Disk = DISK) -> None:
        self.files = files
        self._disk = disk
        self._clock = clock
        self._stamp = stamp
        for folder in (files.folder.parent, files.folder):
            make_folder(folder, disk)
        self._lock = RunLock(files.lock, clock, disk=disk)
        self._logs: list[log.AppendLog] = []
        self._saved: dict[str, list[tuple[int, int]]] = {}
        self._records = 0
        self._appended_lines = self._appended_users = self._synced_lines = self._synced_users = 0
        self._synced_at = clock()
        self._results_at: NDArray[np.int64] = np.empty(0, np.int64)
        self.torn = 0

    def close(self) -> None:
        try:
            self._close_logs()
        finally:
            self._lock.release()

    def _close_logs(self) -> None:
        """Closes each, whatever befalls another."""
        with ExitStack() as closing:
            while self._logs:
                closing.callback(self._logs.pop().close)

    def beat(self) -> None:
        self._lock.beat()

    def manifest(self) -> Manifest | None:
        return manifest.load(self.files.manifest)

    def set_aside_report(self) -> None:
        """The report of a run that goes on is no longer true of it."""
        set_aside_any(self.files.reports, self._stamp, self._disk)

    def set_aside_everything(self) -> None:
        """Moves an earlier run of this name and subset aside (`--restart`).

        The manifest goes last: results without one would be another program's.
        """
        files = self.files
        paths = files.results, files.responses, files.failures, files.events, *files.reports, files.manifest
        set_aside_any(paths, self._stamp, self._disk)

    def keep_files(self, files: Mapping[str, bytes]) -> None:
        """Keep the bytes of prompts and agents with the results; others of the same name are set aside."""
        for name, content in files.items():
            path = self.files.folder / name
            if os.path.lexists(path):
                if _holds(path, content):
                    continue
                set_aside(path, self._stamp, self._disk)
            write(path, content, shared=True, disk=self._disk)  # runs of other subsets keep the same file

    def open_logs(self, index: TaskIndex) -> NDArray[np.bool_]:
        """Repairs and opens the logs; returns a mask of the tasks that are done in their current version."""
        files = self.files
        self._close_logs()
        paths = files.results, files.responses, files.failures, files.events
        drop_second_names(files.results, self._disk)
        self.torn = sum([log.repair(path, self._disk) for path in paths])
        for path in paths:
            self._logs.append(log.AppendLog(path, self._disk))
        self._results, self._responses, self._failures, self._events = self._logs
        sync_folder(files.folder, self._disk)
        self._results_at = self._find_done(index)
        self._saved = self._find_responses(index, self.done)
        return self.done

    @property
    def done(self) -> NDArray[np.bool_]:
        """A mask of the tasks that have a record of their present content."""
        return self._results_at >= 0

    def outside(self) -> int:
        """Records in the file of users or contents that the tasks file no longer has, and superseded ones."""
        return self._records - int((self._results_at >= 0).sum())

    def responses_of(self, key: str) -> dict[tuple[str, int], Completion]:
        """The saved responses of a user by request digest and how many times that was asked before."""
        places = self._saved.get(key)
        if not places:
            return {}
        found = {}
        try:
            with open_regular(self.files.responses) as file:
                for offset, size in places:
                    file.seek(offset)
                    data = log.parsed(log.checked(file.read(size).rstrip(b"\n"), self.files.responses))
                    if completion := completion_of(data):
                        found[data["request"], data["nth"]] = completion
        except OSError as error:
            raise MachineError(f"cannot read {self.files.responses}: {error.strerror}") from error
        return found

    def saved_counts(self) -> dict[str, int]:
        """How many responses are saved of each user that is not done."""
        return {key: len(places) for key, places in self._saved.items()}

    def load_responses(self, index: TaskIndex) -> None:
        """Makes `responses_of` know the responses of done users too, to play them again."""
        self._saved = self._find_responses(index, np.zeros(len(index), np.bool_))

    def failed_users(self, index: TaskIndex, expected: NDArray[np.bool_]) -> int:
        """Expected users in the failures file, with unchanged tasks, that are not done."""
        failed = set()
        for _, data in log.objects(self.files.failures):
            position = index.find(str(data.get("user_id")))
            if position is None or not expected[position] or self._results_at[position] >= 0:
                continue
            if index.digest(position) == data.get("task"):
                failed.add(position)
        return len(failed)

    def save_response(self, key: str, request: str, nth: int, reply: Reply) -> None:
        """Append a user's reply to the request with this digest; `nth` is how often it was sent before."""
        line = {
            "user_id": key,
            "request": request,
            "nth": nth,
            "completion": reply.completion,
            "seconds": round(reply.seconds, 4),
            "tries": reply.tries,
            "endpoint": reply.endpoint,
            "format": RESPONSE_FORMAT,
        }
        if reply.first_token is not None:
            line["first_token"] = round(reply.first_token, 4)
        self._responses.append(line)
        self._unsynced_line()

    def save_record(self, data: JSON, index: TaskIndex, position: int) -> Record:
        data = {**data, "task": index.digest(position), "format": RECORD_FORMAT}
        self._results_at[position] = self._results.append(data)
        self._records += 1
        self._appended_users += 1
        self._unsynced_line()
        key = str(data["user_id"])
        self._saved.pop(key, None)
        return Record(key, data)

    def save_failure(self, failure: Failure, digest: str) -> None:
        self._failures.append(
            {
                "user_id": failure.key,
                "boundary": failure.boundary,
                "kind": failure.kind,
                "detail": failure.detail,
                "tries": failure.tries,
                "task": digest,
                "time": self._clock(),
                "format": FAILURE_FORMAT,
            }
        )

    def event(self, what: str, **details: Any) -> None:
        line = {"time": round(self._clock(), 3), "what": what, **details, "format": EVENT_FORMAT}
        self._events.append(line)

    def slowest_write(self) -> float:
        """Seconds that the slowest append took since this was last asked."""
        slowest = max(opened.slowest for opened in self._logs)
        for opened in self._logs:
            opened.slowest = 0.0
        return slowest

    def sync(self) -> None:
        """Waits until all that was appended is on the disk; for a thread of its own."""
        began, lines, users = self._clock(), self._appended_lines, self._appended_users
        for opened in self._logs:
            opened.sync()
        self._synced_at, self._synced_lines, self._synced_users = began, lines, users

    def unsynced(self) -> tuple[int, float]:
        """Users whose records no sync has covered yet, and the seconds since all that was saved was on the disk."""
        if self._appended_lines == self._synced_lines:
            return 0, 0.0
        return self._appended_users - self._synced_users, max(0.0, self._clock() - self._synced_at)

    def _unsynced_line(self) -> None:
        if self._appended_lines == self._synced_lines:
            self._synced_at = self._clock()  # until this line all was
        self._appended_lines += 1

    def records(self) -> Iterator[Record]:
        """Every done task's record, in the order of the tasks file."""
        for line in self._lines_in_order():
            data = log.unseal(line)
            yield Record(str(data["user_id"]), data)

    def finish(self, records: Callable[[Record], None]) -> str:
        """Rewrites the results in input order and returns the file's SHA-256; `records` sees each on the way.

        Restartable: until the new file takes the old one's place, the old one is whole. Lines that are left out,
        of users whose task has changed or gone, stay behind in a set-aside copy of the old file.
        """
        whole = hashlib.sha256()
        if self.outside():
            keep_old(self.files.results, self._stamp, self._disk)
        rewritten = np.full_like(self._results_at, -1)
        with replacing(self.files.results, disk=self._disk) as file:
            for position, line in zip(np.flatnonzero(self._results_at >= 0), self._lines_in_order(), strict=True):
                rewritten[position] = file.tell()
                whole.update(line + b"\n")
                file.write(line + b"\n")
                data = log.unseal(line)
                records(Record(str(data["user_id"]), data))
        self._take_up(rewritten)
        return whole.hexdigest()

    def _take_up(self, results_at: NDArray[np.int64]) -> None:
        """Goes on with the results file that has taken the old one's place."""
        old = self._results
        self._results = self._logs[0] = log.AppendLog(self.files.results, self._disk)
        self._results_at = results_at
        self._records = int((results_at >= 0).sum())
        old.close()

    def _lines_in_order(self) -> Iterator[bytes]:
        """The records' lines. Raises `MachineError` for one that was changed under this process."""
        try:
            with open_regular(self.files.results) as file:
                for offset in self._results_at[self._results_at >= 0]:
                    self.beat()
                    yield log.checked(log.line_at(file, int(offset)), self.files.results)
        except OSError as error:
            raise MachineError(f"cannot read {self.files.results}: {error.strerror}") from error

    def _find_done(self, index: TaskIndex) -> NDArray[np.int64]:
        """Return the offset of each task's record in the results file; -1 without a record of its current content."""
        found = np.full(len(index), -1, np.int64)
        self._records = 0
        for line, data in log.objects(self.files.results):
            self._records += 1
            self.beat()
            position = index.find(str(data.get("user_id")))
            if position is not None and index.digest(position) == data.get("task"):
                found[position] = line.offset
        return found

    def _find_responses(self, index: TaskIndex, done: NDArray[np.bool_]) -> dict[str, list[tuple[int, int]]]:
        """Places of the saved responses of users that are not done."""
        places: dict[str, list[tuple[int, int]]] = {}
        for line, data in log.objects(self.files.responses):
            self.beat()
            key = str(data.get("user_id"))
            position = index.find(key)
            if position is not None and not done[position]:
                places.setdefault(key, []).append((line.offset, line.size))
        return places


TEXTS, COUNTS = ("finish_reason", "model", "refusal", "reasoning"), ("prompt_tokens", "completion_tokens")


def completion_of(line: JSON) -> Completion | None:
    """The completion of a response's line; None of one that is not as the harness writes it, and so is requested again.

    A checksum says that nothing happened to a line, and not that it is one of ours.
    """
    saved = line.get("completion")
    if type(saved) is not dict or type(line.get("request")) is not str or type(line.get("nth")) is not int:
        return None
    if type(saved.get("text")) is not str or saved.keys() - {"text", *TEXTS, *COUNTS}:
        return None
    texts, counts = [saved.get(name) for name in TEXTS], [saved.get(name) for name in COUNTS]
    if not all(text is None or type(text) is str for text in texts):
        return None
    if not all(count is None or (type(count) is int and 0 <= count < LARGEST_COUNT) for count in counts):
        return None
    return Completion(**saved)


def _holds(path: Path, content: bytes) -> bool:
    try:
        return holds(path, content)
    except FileNotFoundError:  # a link to nowhere
        return False
    except OSError as error:
        raise MachineError(f"cannot read {path}: {error.strerror}") from error
