"""Get a benchmark's files from the data set that it declares: each is downloaded, checked, put in its place, recorded.

Guarantee: a file gets its name only once its bytes have the hub's checksum. What was received of it stays in
`<file>.<blob>.part`, whatever ends the process, and the next `fetch` continues there. A file that differs from the data
set is never replaced, unless a `fetch` made it. Not covered: a power loss may take what was received of a partial file.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from glob import escape
from hashlib import sha1, sha256
from itertools import takewhile
from operator import eq
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from rich.filesize import decimal

from harness.benchmark import Benchmark, files_needed
from harness.benchmarks.files import BLOCK, open_regular
from harness.errors import BadInput, EndpointStopped, MachineError
from harness.features.fetch import fetched
from harness.features.fetch.fetched import Fetched, Source
from harness.features.fetch.hub import Digests, Hub, RemoteFile, Snapshot
from harness.store.atomic import make_folder, sync_folder
from harness.store.disk import APPEND, DISK, Content, Disk, write_whole
from harness.store.lock import RunLock

MAIN = "main"
LOCK, PART = ".fetched.lock", ".part"
DOWNLOADS = 2
"""Times to download a file whose bytes do not have the checksum."""

Advance = Callable[[int], None]
"""Takes the number of bytes that a download has come forward by; negative where it begins again."""


@dataclass(frozen=True, slots=True)
class _File:
    """A file of the data set, the path that it gets, and its name in the tasks folder's record."""

    remote: RemoteFile
    path: Path
    name: str


class Display(NamedTuple):
    """`say` gets a line a file; `progress` is opened with the number of bytes to download."""

    say: Callable[[str], None]
    progress: Callable[[int], AbstractContextManager[Advance]]


def fetch(
    cls: type[Benchmark],
    subsets: Sequence[str],
    folder: Path,
    hub: Hub,
    revision: str | None,
    display: Display,
    disk: Disk = DISK,
) -> None:
    """Get the files of some subsets into a tasks folder.

    Without a `revision` it is the commit that the folder has files of, or else the data set's main branch. Raise
    `BadInput` before any download if the data set does not have a file, or if one differs that no `fetch` made.
    """
    with _locked(folder, disk):
        record = fetched.load(folder)
        name = cls.task_files.data_set
        snapshot = hub.snapshot(name, revision or record.commit(name) or MAIN)
        files = list(_files(cls, subsets, folder, snapshot))
        there = {file: digests(file.path) for file in files if os.path.lexists(file.path)}
        equal = {file: found for file, found in there.items() if file.remote.has(found)}
        _refuse_others({file: found for file, found in there.items() if file not in equal}, snapshot, record)
        missing = [file for file in files if file not in equal]
        _check_disk(folder, missing)
        for file, found in equal.items():
            record.add(folder, file.name, _source(snapshot, found), disk)
            display.say(f"{file.path}: already there")
        with display.progress(sum(file.remote.size for file in missing)) as advance:
            for file in missing:
                found = _download(hub, snapshot, file, advance, disk)
                record.add(folder, file.name, _source(snapshot, found), disk)
                display.say(f"{file.path}: {decimal(file.remote.size)}")
        display.say(f"data set {snapshot.repository}, commit {snapshot.commit}")


@contextmanager
def _locked(folder: Path, disk: Disk) -> Iterator[None]:
    """Keep other processes from fetching into a tasks folder, which may be a link to a larger disk."""
    make_folder(folder, disk)
    lock = RunLock(folder.resolve() / LOCK, time.time, disk=disk)
    try:
        yield
    finally:
        lock.release()


def _files(cls: type[Benchmark], subsets: Sequence[str], folder: Path, snapshot: Snapshot) -> Iterator[_File]:
    for name in dict.fromkeys(name for subset in subsets for name in files_needed(cls, subset)):
        path = cls.task_files.file_in(folder, name)
        yield _File(_remote(snapshot, name), path, Path(os.path.relpath(path, folder)).as_posix())


def _remote(snapshot: Snapshot, name: str) -> RemoteFile:
    """Return the file of a data set that is meant by a name below the tasks folder: the one whose path ends most like
    it, and of several the one that lies highest. Raise `BadInput` if there is none, or more than one."""
    wanted, ranked = PurePosixPath(name).parts[::-1], dict[tuple[int, int], list[RemoteFile]]()
    for path, file in snapshot.files.items():
        parts = PurePosixPath(path).parts[::-1]
        if common := len(list(takewhile(bool, map(eq, parts, wanted)))):  # parts that both end in
            ranked.setdefault((common, -len(parts)), []).append(file)
    best = ranked[max(ranked)] if ranked else []
    where = f"the data set {snapshot.repository} at commit {snapshot.commit}"
    if not best:
        raise BadInput(f"{where} has no file {PurePosixPath(name).name}: name another --revision")
    if len(best) > 1:
        raise BadInput(f"{where} has more than one {name}: {', '.join(sorted(file.path for file in best))}")
    return best[0]


def _refuse_others(differing: Mapping[_File, Digests], snapshot: Snapshot, record: Fetched) -> None:
    """Raise `BadInput` for files that differ from the data set, unless a `fetch` of another commit made them."""
    made = {name: source.sha256 for name, source in record.files.items()}
    others = [str(file.path) for file, found in differing.items() if made.get(file.name) != found.sha256]
    if others:
        raise BadInput(
            f"{', '.join(others)}: not as in {snapshot.repository} at commit {snapshot.commit}, and not made by "
            "`fetch`: move it away, or name another folder with --tasks-dir"
        )


def digests(path: Path) -> Digests:
    """Return the digests of a file. Raise `BadInput` if it cannot be read."""
    try:
        with open_regular(path) as file:
            blob = sha1(b"blob %d\0" % os.fstat(file.fileno()).st_size, usedforsecurity=False)
            whole = sha256()
            while block := file.read(BLOCK):
                blob.update(block)
                whole.update(block)
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from None
    return Digests(whole.hexdigest(), blob.hexdigest())


def _source(snapshot: Snapshot, found: Digests) -> Source:
    return Source(snapshot.repository, snapshot.commit, found.sha256)


def _check_disk(folder: Path, missing: Sequence[_File]) -> None:
    needed = sum(file.remote.size - _received(file) for file in missing)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise MachineError(f"{folder} has {decimal(free)} free, and {decimal(needed)} are to be downloaded")


def _part(file: _File) -> Path:
    return file.path.with_name(f"{file.path.name}.{file.remote.blob[:12]}{PART}")


def _received(file: _File) -> int:
    """Return the size of what an earlier download received, at most that of the file."""
    return min(file.remote.size, _part(file).stat().st_size) if _part(file).exists() else 0


def _download(hub: Hub, snapshot: Snapshot, file: _File, advance: Advance, disk: Disk) -> Digests:
    """Receive what is missing of a file, check it, and give it its name."""
    part = _part(file)
    make_folder(part.parent, disk)
    for _ in range(DOWNLOADS):
        with _writing(part):
            _receive(hub, snapshot, file, part, advance, disk)
        if file.remote.has(found := digests(part)):
            with _writing(file.path):
                disk.replace(part, file.path)
                for other in file.path.parent.glob(f"{escape(file.path.name)}.*{PART}"):  # of other commits
                    disk.unlink(other)
            sync_folder(part.parent, disk)
            return found
        advance(-part.stat().st_size)
        with _writing(part):
            disk.unlink(part)
    raise EndpointStopped(
        f"{hub.shown}: {file.remote.path} of {snapshot.repository} came {DOWNLOADS} times with bytes that do not have "
        "the checksum of its listing: try again later, or another address (HF_ENDPOINT)"
    )


def _receive(hub: Hub, snapshot: Snapshot, file: _File, part: Path, advance: Advance, disk: Disk) -> None:
    fd = disk.open(part, APPEND)
    with Content(disk, fd):
        if (start := os.fstat(fd).st_size) > file.remote.size:
            disk.truncate(fd, start := 0)
        advance(start)
        for piece in hub.pieces(snapshot, file.remote, start):
            write_whole(disk, fd, piece)
            advance(len(piece))
        disk.sync(fd)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise MachineError(f"cannot write {path}: {error.strerror}; what was received is kept") from error
