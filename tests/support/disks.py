"""Disks that a test passes to the store: one that fails at its Nth operation, one that keeps a
journal."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from harness.store.disk import DISK, Disk

T = TypeVar("T")

WRITES = ("write", "write_at")
CHANGING = (
    *WRITES,
    "open",
    "close",
    "truncate",
    "sync",
    "sync_folder",
    "replace",
    "link",
    "unlink",
    "mkdir",
)
GROWING = (*WRITES, "open", "link", "mkdir")
"""What needs space."""

ONCE = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO}
DEATHS = ("death before", "death after", "death midway")


class Death(BaseException):
    """The process has ended; what runs after it can do nothing to the disk any more."""


class QuickDisk(Disk):
    """Does everything but wait for the disk."""

    def sync(self, fd: int) -> None:
        os.fstat(fd)

    def sync_folder(self, folder: Path) -> None:
        folder.stat()


class WatchedDisk(Disk):
    """Hands each operation to `step`, with its kind and what it would do, and knows what is
    open."""

    def __init__(self, inner: Disk = DISK) -> None:
        self.inner = inner
        self.left_open: set[int] = set()

    def step(self, kind: str, act: Callable[[], T]) -> T:
        return act()

    def half(self, fd: int, content: bytes, offset: int | None) -> int:
        """Writes the first half, as a disk does that has no more room."""
        part = bytes(content)[: len(content) // 2]
        return (
            self.inner.write(fd, part) if offset is None else self.inner.write_at(fd, part, offset)
        )

    def written(self, kind: str, fd: int, content: bytes, offset: int | None) -> int:
        if offset is None:
            return self.step(kind, lambda: self.inner.write(fd, content))
        return self.step(kind, lambda: self.inner.write_at(fd, content, offset))

    def open(self, path: Path, how: int) -> int:
        fd = self.step("open", lambda: self.inner.open(path, how))
        self.left_open.add(fd)
        return fd

    def close(self, fd: int) -> None:
        def close() -> None:
            self.left_open.remove(fd)
            self.inner.close(fd)

        self.step("close", close)

    def write(self, fd: int, content: bytes) -> int:
        return self.written("write", fd, content, None)

    def write_at(self, fd: int, content: bytes, offset: int) -> int:
        return self.written("write_at", fd, content, offset)

    def truncate(self, fd: int, size: int) -> None:
        self.step("truncate", lambda: self.inner.truncate(fd, size))

    def sync(self, fd: int) -> None:
        self.step("sync", lambda: self.inner.sync(fd))

    def sync_folder(self, folder: Path) -> None:
        self.step("sync_folder", lambda: self.inner.sync_folder(folder))

    def replace(self, path: Path, taken: Path) -> None:
        self.step("replace", lambda: self.inner.replace(path, taken))

    def link(self, path: Path, second: Path) -> None:
        self.step("link", lambda: self.inner.link(path, second))

    def unlink(self, path: Path) -> None:
        self.step("unlink", lambda: self.inner.unlink(path))

    def mkdir(self, folder: Path) -> None:
        self.step("mkdir", lambda: self.inner.mkdir(folder))

    def bury(self) -> None:
        """Closes what a process that died leaves to the kernel."""
        while self.left_open:
            self.inner.close(self.left_open.pop())


class FaultyDisk(WatchedDisk):
    """Fails the `nth` operation (from 1) of the given kinds.

    `how` is one of these ways:

    `ENOSPC`, `EIO`     once, without doing it (a file is closed all the same) `full`
    from then on nothing that needs space is done; the first write goes in by half `broken`
    from then on nothing is done `short`             a write takes half of its bytes `death before`,
    `death after`, `death midway`   the process ends there; midway is a write that goes in by half

    `struck` is the kind of the operation that failed, None while none has.
    """

    def __init__(
        self, nth: int = 0, how: str = "EIO", kinds: tuple[str, ...] = CHANGING, inner: Disk = DISK
    ) -> None:
        super().__init__(inner)
        self.operations: Counter[str] = Counter()
        self.struck: str | None = None
        self._nth = nth
        self._how = how
        self._kinds = kinds

    @property
    def dead(self) -> bool:
        return self.struck is not None and self._how in DEATHS

    def written(self, kind: str, fd: int, content: bytes, offset: int | None) -> int:
        before = self.struck
        try:
            return super().written(kind, fd, content, offset)
        except (OSError, Death):
            if before is None and self._how in ("full", "death midway"):
                self.half(fd, content, offset)
                if self._how == "full":
                    return len(content) // 2
            if before is None and self._how == "short":
                return self.half(fd, content, offset)
            raise

    def step(self, kind: str, act: Callable[[], T]) -> T:
        if self.struck is not None:
            self._later(kind, act)
            return act()
        self.operations[kind] += 1
        if kind not in self._kinds or sum(self.operations[one] for one in self._kinds) != self._nth:
            return act()
        self.struck = kind
        if self._how in DEATHS:
            if self._how == "death after":
                act()
            raise Death
        raise self._refusal(kind, act)

    def _later(self, kind: str, act: Callable[[], Any]) -> None:
        if self._how in DEATHS:
            raise Death
        if self._how == "broken" or (self._how == "full" and kind in GROWING):
            raise self._refusal(kind, act)

    def _refusal(self, kind: str, act: Callable[[], Any]) -> OSError:
        if kind == "close":
            act()
        number = ONCE.get(self._how, errno.EIO if self._how == "broken" else errno.ENOSPC)
        return OSError(number, os.strerror(number))


# A journal


@dataclass(frozen=True, slots=True)
class Written:
    inode: int
    offset: int
    content: bytes


@dataclass(frozen=True, slots=True)
class Cut:
    inode: int
    size: int


@dataclass(frozen=True, slots=True)
class Synced:
    """`changes` of a file, counted from the first, were made before its sync began."""

    inode: int
    changes: int


@dataclass(frozen=True, slots=True)
class Named:
    """Names of a folder that are given to an inode, or (None) taken away, at once."""

    folder: Path
    names: Mapping[str, int | None]


@dataclass(frozen=True, slots=True)
class FolderSynced:
    folder: Path


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Something was reported as saved."""

    what: str


Entry = Written | Cut | Synced | Named | FolderSynced | Acknowledged

FOLDER = 0
"""The inode that stands for any folder."""


class RecordingDisk(WatchedDisk):
    """Does everything, under `root`, and keeps a journal. `bury` it where a process ends, and use
    it for the next."""

    def __init__(self, root: Path, inner: Disk = DISK) -> None:
        super().__init__(inner)
        self.root = root
        self.journal: list[Entry] = []
        self.held: dict[Path, int] = {}
        self._of: dict[int, int] = {}
        self._changes: Counter[int] = Counter()
        self._inodes = FOLDER
        self.before = {
            path: path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()
        }
        self.folders = [path for path in sorted(root.rglob("*")) if path.is_dir()]
        for path in self.before:
            self._inodes += 1
            self.held[path] = self._inodes

    def inodes_named(self, name: str) -> set[int | None]:
        """Those that have had a name."""
        return {entry.names.get(name) for entry in self.journal if isinstance(entry, Named)}

    def acknowledge(self, what: str) -> None:
        self.journal.append(Acknowledged(what))

    def _name(self, path: Path, inode: int | None) -> dict[str, int | None]:
        if inode is None:
            del self.held[path]
        else:
            self.held[path] = inode
        return {path.name: inode}

    def _changed(self, change: Written | Cut) -> None:
        self._changes[change.inode] += 1
        self.journal.append(change)

    def open(self, path: Path, how: int) -> int:
        fd = super().open(path, how)
        if path not in self.held:
            self._inodes += 1
            self.journal.append(Named(path.parent, self._name(path, self._inodes)))
        elif how & os.O_TRUNC:
            self._changed(Cut(self.held[path], 0))
        self._of[fd] = self.held[path]
        return fd

    def written(self, kind: str, fd: int, content: bytes, offset: int | None) -> int:
        count = super().written(kind, fd, content, offset)
        start = os.lseek(fd, 0, os.SEEK_CUR) - count if offset is None else offset
        self._changed(Written(self._of[fd], start, bytes(content)[:count]))
        return count

    def truncate(self, fd: int, size: int) -> None:
        super().truncate(fd, size)
        self._changed(Cut(self._of[fd], size))

    def sync(self, fd: int) -> None:
        inode = self._of[fd]
        changes = self._changes[inode]
        super().sync(fd)
        self.journal.append(Synced(inode, changes))

    def sync_folder(self, folder: Path) -> None:
        super().sync_folder(folder)
        self.journal.append(FolderSynced(folder))

    def replace(self, path: Path, taken: Path) -> None:
        super().replace(path, taken)
        inode = self.held[path]
        self.journal.append(Named(path.parent, self._name(path, None) | self._name(taken, inode)))

    def link(self, path: Path, second: Path) -> None:
        super().link(path, second)
        self.journal.append(Named(second.parent, self._name(second, self.held[path])))

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        self.journal.append(Named(path.parent, self._name(path, None)))

    def mkdir(self, folder: Path) -> None:
        super().mkdir(folder)
        self.journal.append(Named(folder.parent, self._name(folder, FOLDER)))


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Nothing under a folder can be opened for writing, as on an archive; root may write everywhere
    else."""
    real_open, real_mkdir, real_path_open, real_access = os.open, Path.mkdir, Path.open, os.access

    def accessible(path: Any, mode: int, **named: Any) -> bool:
        is_here = str(path).startswith(str(folder))
        return not (mode & os.W_OK and is_here) and real_access(path, mode, **named)

    def refuse(path: Any) -> None:
        if str(path).startswith(str(folder)):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    def opened(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            refuse(path)
        return real_open(path, flags, *rest, **named)

    def made(self: Path, *rest: Any, **named: Any) -> None:
        if not self.is_dir():
            refuse(self)
        real_mkdir(self, *rest, **named)

    def path_opened(self: Path, mode: str = "r", *rest: Any, **named: Any) -> Any:
        if set(mode) & set("wax+"):
            refuse(self)
        return real_path_open(self, mode, *rest, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.open", opened)
        patch.setattr("os.access", accessible)
        patch.setattr("pathlib.Path.mkdir", made)
        patch.setattr("pathlib.Path.open", path_opened)
        yield
