"""The writer of one run's files: hold the lock, set torn lines aside, find done users and saved
responses, append.

Guarantees are those of `log` and `atomic`.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from harness.benchmarks.files import holds, open_regular
from harness.cost import Rate
from harness.errors import BadInput, as_machine_error, reading
from harness.model import JSON, Completion, Failure, Record, Reply, role_of
from harness.store import log, manifest
from harness.store.atomic import (
    clear,
    drop_second_names,
    keep_old,
    make_folder,
    remove_folder,
    replacing,
    set_aside_any,
    sync_folder,
    write,
)
from harness.store.disk import DISK, Disk
from harness.store.files import RunFiles, has_content, runs, runs_in
from harness.store.lock import RunLock
from harness.store.manifest import Identity, Manifest, same_identity, value_text
from harness.store.tally import IN_FLIGHT, RunTally, completion_of
from harness.store.tasks import TaskIndex

__all__ = [
    "RECORD_FORMAT",
    "RunFiles",
    "RunStore",
    "completion_of",
    "replace_results",
    "runs",
    "runs_in",
    "same_identity",
    "value_text",
]

NO_FAILURE = ("http_429", "denied")
"""Kinds of tries that count against no request; a 503 that asks to wait is logged without its
request."""
EVENT_SECONDS = 0.001
"""To which times of events are rounded."""
RECORD_FORMAT = RESPONSE_FORMAT = FAILURE_FORMAT = EVENT_FORMAT = 1


@dataclass(slots=True)
class InFlight:
    """Requests that were sent and not answered, and the bytes of their bodies; `logged` are both as
    the log has them last."""

    requests: int = 0
    sent: int = 0
    logged: tuple[int, int] = (0, 0)


class RunStore:
    """The writer of one run's files. `clock` gives seconds since the epoch, `stamp` names set-aside
    files.

    `tally` is what the lines of all sessions add up to. `rates` are those of new requests, by role,
    empty for the model under test. `roles` are the models of roles that a record must have been
    made with to count, None without roles.
    """

    def __init__(
        self, files: RunFiles, clock: Callable[[], float], stamp: str, disk: Disk = DISK
    ) -> None:
        self.files = files
        self._disk = disk
        self._clock = clock
        self._stamp = stamp
        for folder in (files.folder.parent, files.folder):
            make_folder(folder, disk)
        self._lock = RunLock(files.lock, clock, disk=disk)
        self._logs: list[log.AppendLog] = []
        self._saved: dict[int, list[int]] = {}
        self._saved_of_roles: Counter[int] = Counter()
        self._records = 0
        self._appended_lines = self._appended_users = 0
        self._synced_lines = self._synced_users = 0
        self._synced_at = clock()
        self._results_at: NDArray[np.int64] = np.empty(0, np.int64)
        self.torn = 0
        self.tally = RunTally()
        self.rates = {"": Rate()}
        self.roles: JSON | None = None
        self._session = uuid4().hex[:12]
        self._in_flight = {"": InFlight()}

    def close(self) -> None:
        with ExitStack() as closing:
            closing.callback(self._lock.release)
            self._close_logs()

    def _close_logs(self) -> None:
        """Close each log, also where closing another fails."""
        with ExitStack() as closing:
            while self._logs:
                closing.callback(self._logs.pop().close)

    def beat(self) -> None:
        self._lock.beat()

    def manifest(self) -> Manifest | None:
        return manifest.load(self.files.manifest)

    def set_aside_report(self) -> None:
        """Set the report aside: it is no longer true of a run that goes on."""
        set_aside_any(self.files.reports, self._stamp, self._disk)

    def set_aside_everything(self) -> None:
        """Set an earlier run aside, its manifest last: results without one are another
        program's."""
        files = self.files
        names = *files.logs, files.batches, *files.reports, files.manifest
        set_aside_any(names, self._stamp, self._disk)

    def save(self, manifest: Manifest) -> None:
        manifest.save(self.files.manifest, self._disk)

    @property
    def received(self) -> bool:
        """Whether anything of a reply is saved."""
        return has_content(self.files.results) or has_content(self.files.responses)

    def drop(self) -> None:
        """Remove the files of a new run of which nothing was received. Its lock and what it keeps
        go with the folder, if that was made for it."""
        files = self.files
        with as_machine_error(f"cannot remove files of {files.folder}"):
            # Another subset of this folder may be in play, and its files are not touched.
            for path in filter(os.path.lexists, (files.manifest, *files.logs, files.batches)):
                self._disk.unlink(path)

    def own_log(self, path: Path) -> log.AppendLog:
        """Repair and open another log of the run; it is closed with the others."""
        log.repair(path, self._disk)
        self._logs.append(log.AppendLog(path, self._disk))
        self._sync_logs()  # as in `open_logs`
        sync_folder(self.files.folder, self._disk)
        return self._logs[-1]

    def now(self) -> float:
        """Return the seconds since the epoch."""
        return self._clock()

    def keep_files(self, files: Mapping[str, bytes]) -> None:
        """Keep the bytes of prompts and agents with the results; other files of the same name are
        set aside."""
        for name, content in files.items():
            path = self.files.folder / name
            clear(path, self._disk)
            with reading(path), suppress(FileNotFoundError):  # or a link to nowhere
                if holds(path, content):
                    continue
            if os.path.lexists(path):
                keep_old(path, self._stamp, self._disk)
            # Shared, since runs of other subsets keep the same file.
            write(path, content, shared=True, disk=self._disk)

    def open_logs(self, index: TaskIndex) -> NDArray[np.bool_]:
        """Repair and open the logs; return a mask of the tasks that are done in their current
        version."""
        files = self.files
        self._close_logs()
        drop_second_names(files.results, self._disk)
        self.torn = sum([log.repair(path, self._disk) for path in files.logs])
        for path in files.logs:
            self._logs.append(log.AppendLog(path, self._disk))
        self._results, self._responses, self._failures, self._events = self._logs
        # what a dead process left may be in the kernel alone, and is now built on
        self._sync_logs()
        sync_folder(files.folder, self._disk)
        self._results_at = self._find_done(index)
        self._find_responses(index, self.done)
        return self.done

    @property
    def done(self) -> NDArray[np.bool_]:
        """A mask of the tasks that have a record of their current content."""
        return self._results_at >= 0

    def outside(self) -> int:
        """Return the number of records of users or contents that the tasks file no longer has, and
        superseded ones."""
        return self._records - int(self.done.sum())

    def responses_of(self, position: int) -> dict[tuple[str, int], Completion]:
        """Return the saved responses of a task by request digest, and how often that request was
        sent before."""
        saved: dict[tuple[str, int], Completion] = {}
        if position not in self._saved:
            return saved
        for line in self._lines(self.files.responses, self._saved[position]):
            data = log.decode_or_empty(line)
            completion = completion_of(data)
            if completion is not None:
                saved[data["request"], data["nth"]] = completion
        return saved

    def saved_counts(self) -> dict[int, int]:
        """Return how many responses of the model under test are saved of each task that is not
        done."""
        counts: dict[int, int] = {}
        for position, offsets in self._saved.items():
            counts[position] = len(offsets) - self._saved_of_roles[position]
        return counts

    def load_responses(self, index: TaskIndex) -> None:
        """Find the responses of done users too, to play them again."""
        self._find_responses(index, np.zeros(len(index), np.bool_))

    def failed(self, index: TaskIndex) -> NDArray[np.bool_]:
        """Return a mask of the tasks in the failures file that are unchanged."""
        failed = np.zeros(len(index), np.bool_)
        for _, data in log.objects(self.files.failures):
            position = index.current(data)
            if position is not None:
                failed[position] = True
        return failed

    def failed_by_role(self, index: TaskIndex) -> frozenset[int]:
        """Return the positions of the users in the failures file who failed for a role."""
        positions = set()
        for _, data in log.objects(self.files.failures):
            position = index.current(data) if data.get("boundary") == "role" else None
            if position is not None:
                positions.add(position)
        return frozenset(positions)

    def failed_tries(self, index: TaskIndex) -> dict[tuple[str, str], tuple[int, int]]:
        """Return how often each request failed, by the play's name and the request's digest: the
        tries that may count, which are those since the last outage, and those that may be billed.
        Only of users that are not done, since they were last given up."""
        given_up: dict[int | None, float] = {}
        for _, data in log.objects(self.files.failures):
            # An event is rounded, so one of the same instant must not count as later.
            given_up[index.position_of(data)] = _time(data) + EVENT_SECONDS
        counts: dict[tuple[str, str], tuple[int, int]] = {}
        done = self.done
        for _, data in log.objects(self.files.events):
            self.beat()
            what = data.get("what")
            request = data.get("request")
            # An outage is the endpoint's fault: tries before it count against no request.
            if what == "outage":
                counts = {key: (0, billable) for key, (_, billable) in counts.items()}
            if what != "retry" or type(request) is not str or data.get("kind") in NO_FAILURE:
                continue
            position = index.position_of(data)
            if position is None or done[position] or _time(data) <= given_up.get(position, 0.0):
                continue
            key = name_of(str(data["user_id"]), index.repeat(position)), request
            tries, billable = counts.get(key, (0, 0))
            counts[key] = tries + 1, billable + ("sent" in data)
        return counts

    def save_response(
        self, position: int, key: str, request: str, nth: int, reply: Reply, repeat: int = 1
    ) -> None:
        """Append a user's reply to the request with this digest; `nth` is how often it was sent
        before. It can be read again (`responses_of`) until the user has its record."""
        role = role_of(request)
        rate = self.rates[role]
        line = response_line(key, request, nth, reply, repeat, rate)
        offset = self._responses.append(line)
        self._saved.setdefault(position, []).append(offset)
        self._saved_of_roles[position] += bool(role)
        self.tally.add(reply.completion, rate, reply.sent, reply.reused, reply.endpoint, role)
        self._unsynced_line()

    def append_lines(self, name: str, lines: bytes, index: TaskIndex) -> tuple[int, list[JSON]]:
        """Append whole lines, which another process has sealed, to the log of this name (as in
        `RunFiles`); return where, and what they say. Replies and records are counted at once, the
        rest once the logs are opened again."""
        opened = {
            "results": self._results,
            "responses": self._responses,
            "failures": self._failures,
        }
        offset = opened.get(name, self._events).append_encoded(lines)
        line_offset = offset
        objects: list[JSON] = []
        for line in lines.splitlines(keepends=True):
            data = log.decode_line(line)
            objects.append(data)
            if name == "responses":
                self.tally.add_reply(data)
            position = self._current(data, index) if name == "results" else None
            if position is not None:
                self._results_at[position] = line_offset
                self._appended_users += 1
            line_offset += len(line)
        self._unsynced_line()
        return offset, objects

    def save_record(self, data: JSON, index: TaskIndex, position: int) -> Record:
        """Append a user's record; return it as it is in the file."""
        line = record_line(data, index.repeat(position), index.digest(position), self.roles)
        self._results_at[position] = self._results.append(line)
        self._records += 1
        self._appended_users += 1
        self._unsynced_line()
        # The record replaces the replies: nothing asks for them again, and memory stays bounded.
        self._saved.pop(position, None)
        return Record(str(line["user_id"]), line)

    def save_failure(self, failure: Failure, digest: str) -> None:
        self._failures.append(
            {
                **about(failure.key, failure.repeat),
                "boundary": failure.boundary,
                "kind": failure.kind,
                "detail": failure.detail,
                "tries": failure.tries,
                "task": digest,
                "time": self._clock(),
                "format": FAILURE_FORMAT,
            }
        )

    def event(self, what: str, **details: object) -> None:
        line = {"time": round(self._clock(), 3), "what": what, **details, "format": EVENT_FORMAT}
        self._events.append(line)
        self.tally.add_event(line)

    def request_sent(self, size: int, times: int = 1, role: str = "") -> None:
        """Count a request of `size` bytes as in flight, sent up to `times` times at once, until
        `request_done` is called with the same.

        Guarantee: wherever this process dies, the log has at least the requests that were in
        flight, by their number and bytes (`in_flight`), for each role. A line is written only where
        they are more than the last line says, which is twice what there was. `log_none_in_flight`
        writes that there are none left.
        """
        in_flight = self._in_flight.setdefault(role, InFlight())
        in_flight.requests += times
        in_flight.sent += times * size
        logged_requests, logged_sent = in_flight.logged
        if in_flight.requests > logged_requests or in_flight.sent > logged_sent:
            # Twice as many, so that a run of millions of requests writes a handful of such lines.
            requests = max(2 * in_flight.requests, logged_requests)
            self._log_in_flight(role, requests, max(2 * in_flight.sent, logged_sent))

    def request_done(self, size: int, times: int = 1, role: str = "") -> None:
        in_flight = self._in_flight[role]
        in_flight.requests -= times
        in_flight.sent -= times * size

    def log_none_in_flight(self) -> None:
        """Note that no request is in flight any more, if that is so."""
        for role, in_flight in self._in_flight.items():
            if in_flight.requests == in_flight.sent == 0 and in_flight.logged != (0, 0):
                self._log_in_flight(role, 0, 0)

    def _log_in_flight(self, role: str, requests: int, sent: int) -> None:
        session = f"{self._session} {role}" if role else self._session
        rate = self.rates[role].data
        self.event(IN_FLIGHT, session=session, requests=requests, sent=sent, **rate)
        self._in_flight[role].logged = requests, sent

    def slowest_write(self) -> float:
        """Return the seconds that the slowest append took since the last call."""
        # The logs of a run that is over are closed.
        slowest = max([opened.slowest for opened in self._logs], default=0.0)
        for opened in self._logs:
            opened.slowest = 0.0
        return slowest

    def sync(self) -> None:
        """Wait until all that was appended is on the disk; for a thread of its own."""
        # Taken before: what is appended during the sync may not be in it.
        began = self._clock()
        lines = self._appended_lines
        users = self._appended_users
        self._sync_logs()
        self._synced_at = began
        self._synced_lines = lines
        self._synced_users = users

    def _sync_logs(self) -> None:
        for opened in self._logs:
            opened.sync()

    def unsynced(self) -> tuple[int, float]:
        """Return the users whose records no sync has covered, and the seconds since all saved data
        was on the disk."""
        if self._appended_lines == self._synced_lines:
            return 0, 0.0
        return self._appended_users - self._synced_users, max(0.0, self._clock() - self._synced_at)

    def _unsynced_line(self) -> None:
        if self._appended_lines == self._synced_lines:
            self._synced_at = self._clock()  # until this line all was
        self._appended_lines += 1

    def records(self) -> Iterator[Record]:
        """Yield the record of every task that is done at the time of the call, in the order of the
        tasks file."""
        return (record_of(line) for _, line in self.lines())

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield the position and line of each record of `records`."""
        positions = np.flatnonzero(self.done)
        offsets = self._results_at[positions].tolist()
        return zip(positions.tolist(), self._lines(self.files.results, offsets), strict=True)

    def finish(self, add: Callable[[bytes], None]) -> str:
        """Rewrite the results in input order and return the file's SHA-256; `add` gets each line.

        Restartable: until the new file takes the old one's place, the old one is whole. Lines that
        are left out, of users whose task has changed or gone, stay behind in a set-aside copy of
        the old file.
        """
        hasher = hashlib.sha256()
        if self.outside():
            keep_old(self.files.results, self._stamp, self._disk)
        rewritten = np.full_like(self._results_at, -1)
        with replacing(self.files.results, disk=self._disk) as file:
            for position, line in self.lines():
                rewritten[position] = file.tell()
                hasher.update(line + b"\n")
                file.write(line + b"\n")
                add(line)
        old = self._results  # the log goes on in the file that has taken the old one's place
        self._results = self._logs[0] = log.AppendLog(self.files.results, self._disk)
        self._results_at = rewritten
        self._records = int(self.done.sum())
        old.close()
        return hasher.hexdigest()

    def _lines(self, path: Path, offsets: Iterable[int]) -> Iterator[bytes]:
        """Yield the lines of a log at these places. Raise `MachineError` for one that was changed
        meanwhile."""
        with reading(path), open_regular(path) as file:
            for offset in offsets:
                self.beat()
                yield log.checked(log.line_at(file, offset), path)

    def _find_done(self, index: TaskIndex) -> NDArray[np.int64]:
        """Return the offset of each task's record in the results file; -1 without a record of its
        current content."""
        offsets = np.full(len(index), -1, np.int64)
        self._records = 0
        for line, data in log.objects(self.files.results):
            self._records += 1
            self.beat()
            position = self._current(data, index)
            if position is not None:
                # The last record of a user counts: one that was played again follows the one it
                # replaces.
                offsets[position] = line.offset
        return offsets

    def _current(self, record: JSON, index: TaskIndex) -> int | None:
        """Return the position of a record of a current task that was made with the run's `roles`,
        None for any other record: with another judge its user is judged again."""
        return index.current(record) if record.get("roles") == self.roles else None

    def _find_responses(self, index: TaskIndex, done: NDArray[np.bool_]) -> None:
        """Count all saved responses, and find those of tasks that are not done."""
        self.tally = RunTally()
        self._saved = {}
        self._saved_of_roles = Counter()
        for line, data in log.objects(self.files.responses):
            self.beat()
            self.tally.add_reply(data)
            position = index.position_of(data)
            if position is not None and not done[position]:
                self._saved.setdefault(position, []).append(line.offset)
                self._saved_of_roles[position] += bool(role_of(str(data.get("request"))))
        self.tally.add_events(self.files)


def lock_runs(
    folder: Path, subsets: Iterable[str], file_names: Collection[str], stamp: str, held: ExitStack
) -> dict[str, RunStore]:
    """Return the stores of a folder's runs, locked for as long as `held`. A folder that was made
    for them is removed at the end if it has no run. `file_names` are those of the files that the
    runs keep. Raise `BadInput` for a name that cannot be kept."""
    for name in file_names:
        if not manifest.is_file_name(name):
            raise BadInput(
                f"{value_text(name)} cannot be kept under this name in the run's folder: give the"
                " file another name"
            )
    is_first = not folder.exists()
    stores: dict[str, RunStore] = {}
    for subset in subsets:
        files = RunFiles(folder, subset)
        stores[subset] = RunStore(files, time.time, stamp)
        held.callback(stores[subset].close)
    if is_first:
        removable = set(file_names)
        for store in stores.values():
            removable |= {store.files.events.name, store.files.lock.name}
        held.callback(remove_folder, folder, removable)
    return stores


def manifests_to_continue(
    stores: Mapping[str, RunStore],
    folder: Path,
    identity: Identity,
    allowed: frozenset[str],
    *,
    restart: bool,
) -> dict[str, Manifest | None]:
    """Return the manifests from which the runs of locked stores go on, by subset; None for one of
    another configuration that has nothing to lose, so that a new run replaces it. With `restart`
    earlier runs are set aside. Raise `BadInput` if the folder holds a run of another configuration,
    of any subset, or results of another program."""
    to_continue: dict[str, Manifest | None] = {}
    restarted = stores if restart else {}
    for subset, old in manifest.manifests(folder).items():
        if subset in restarted:
            continue
        if subset in stores and stores[subset].files.is_bare:
            differs = manifest.differences(old.identity, identity)
            to_continue[subset] = None if differs else old
        else:
            same_identity(old, identity, allowed, folder)
            to_continue[subset] = old
    for store in restarted.values():
        store.set_aside_everything()
    for subset, store in stores.items():
        results = store.files.results
        if to_continue.get(subset) is None and has_content(results):
            raise BadInput(
                f"{results} has no manifest: another program wrote it (`reeval` scores it), "
                "so give this run a --name of its own"
            )
    return to_continue


def replace_results(
    path: Path,
    records: Iterator[JSON],
    stamp: str,
    disk: Disk = DISK,
    *,
    shown_by: Iterable[Path] = (),
) -> str:
    """Rewrite records and return the file's SHA-256. If its content changes, the old file, and the
    pages that it is `shown_by`, are set aside before the new content takes the place."""
    hasher = hashlib.sha256()
    with replacing(path, disk=disk) as file:
        for data in records:
            line = log.encode_line(data)
            hasher.update(line)
            file.write(line)
        with open_regular(path) as old:
            if hashlib.file_digest(old, "sha256").digest() != hasher.digest():
                keep_old(path, stamp, disk)
                set_aside_any(shown_by, stamp, disk)
    return hasher.hexdigest()


def numbered(repeat: int) -> JSON:
    """Return the member of a line that says which repeat it is of. The first has none: so a run
    that is repeated later has the lines that it had."""
    return {"repeat": repeat} if repeat != 1 else {}


def name_of(key: str, repeat: int) -> str:
    """Return what tells a play from those of the user's other repeats, which may be in flight
    too."""
    return key if repeat == 1 else f"{key} (repeat {repeat})"


def about(key: str, repeat: int) -> JSON:
    """Return the members of a line that say whom it is about."""
    return {"user_id": key, **numbered(repeat)}


def record_of(line: bytes) -> Record:
    """Return the record of a sound line."""
    data = log.decode_line(line)
    return Record(str(data["user_id"]), data)


def record_line(data: JSON, repeat: int, digest: str, roles: JSON | None) -> JSON:
    """Return the line of a user's record; `digest` is that of its task, and `roles` are the models
    of the roles that took part."""
    line = {**data, **numbered(repeat), "task": digest, "format": RECORD_FORMAT}
    return line if roles is None else line | {"roles": roles}


def response_line(key: str, request: str, nth: int, reply: Reply, repeat: int, rate: Rate) -> JSON:
    """Return the line of a user's reply; `rate` is that of the run's own requests."""
    line: JSON = {
        **about(key, repeat),
        "request": request,
        "nth": nth,
        "completion": reply.completion.data,
        "seconds": round(reply.seconds, 4),
        "tries": reply.tries,
        "endpoint": reply.endpoint,
        "format": RESPONSE_FORMAT,
    }
    if reply.first_token is not None:
        line["first_token"] = round(reply.first_token, 4)
    if reply.reused is not None:
        return line | {"reused": reply.reused}
    # All of them show the ratio for prompts without usage.
    return line | {"sent": reply.sent, **rate.data}


def _time(data: JSON) -> float:
    """Return when a line was written, 0 where it does not say so in a number."""
    written = data.get("time")
    return float(written) if isinstance(written, int | float) else 0.0
