"""One writer for a run of one subset.

Guarantee: while a process holds the lock, no other process that uses this module does; the lock
ends with its holder, however that dies. It is the kernel's lock on a file of its own, not inherited
by spawned processes. Where the file system has no such locks, it is a lease in that file: its
holder renews it by `beat`, and it ends after `LEASE` seconds without. The lease is weaker: clocks
of machines that share a folder must agree to within it, and a holder that slept through it (or one
that started in the same instant as another) notices that only at its next `beat`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from harness.benchmarks.files import open_regular
from harness.errors import InUse, MachineError, as_machine_error, reading
from harness.store.atomic import check_folder
from harness.store.disk import DISK, KEEP, Disk

LEASE = 60.0
"""Seconds."""

# Some network mounts have no locks.
NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})


def kernel_lock(fd: int) -> None:
    """Lock a file. Raise `BlockingIOError` if another process holds it, another `OSError` where
    there are no locks."""
    # `flock` belongs to the open file, so no other library of this process can drop it by closing a
    # file of its own, as it could with `lockf`.
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


class RunLock:
    """A lock that is held from construction until `release`. Raise `InUse` with its holder if it is
    taken.

    `clock` gives seconds since the epoch; `lock` locks a descriptor by the kernel.
    """

    def __init__(
        self,
        path: Path,
        clock: Callable[[], float],
        lock: Callable[[int], None] = kernel_lock,
        disk: Disk = DISK,
    ) -> None:
        self._path = path
        self._disk = disk
        self._clock = clock
        self._holder: dict[str, Any] = {}
        self._leased = False
        check_folder(path.parent)
        with as_machine_error(f"cannot open {path}"):
            self._fd = disk.open(path, KEEP)
        try:
            self._take(lock)
        except (InUse, MachineError):
            self._close()
            raise

    def _take(self, lock: Callable[[int], None]) -> None:
        try:
            lock(self._fd)
        except BlockingIOError:
            raise self._in_use() from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise MachineError(f"cannot lock {self._path}: {error.strerror}") from error
            self._leased = True
            if _is_current(self._read(), self._clock()):
                raise self._in_use() from None
        if not self._is_there():  # its holder removed the folder of a run that came to nothing
            raise InUse(f"{self._path.parent} was removed by the process that had it: try again")
        self._write()

    def _is_there(self) -> bool:
        """Return whether the path still leads to the file that is locked."""
        try:
            return os.path.samestat(self._path.stat(), os.fstat(self._fd))
        except OSError:
            return False

    def beat(self) -> None:
        """Renew the lease if it is due; else this is a comparison. Raise `MachineError` if it was
        lost."""
        # Often enough that a slow disk does not lose the lease, and rarely enough to cost nothing.
        if self._clock() - self._holder["renewed"] <= LEASE / 6:
            return
        if not self._is_ours():
            raise MachineError(
                f"{self._path.parent} was taken over by {self._who()} while this process slept"
            )
        if not self._is_there():
            raise MachineError(
                f"{self._path} was removed under this process, so nothing keeps others out any more"
            )
        self._write()

    def release(self) -> None:
        # If it fails, the next one takes it anyway, a lease after its time.
        with suppress(OSError, MachineError):
            if self._is_ours():
                self._disk.truncate(self._fd, 0)
        self._close()

    def _close(self) -> None:
        # The kernel's lock ends with the descriptor, which is closed also where this fails.
        with suppress(OSError):
            self._disk.close(self._fd)

    def _is_ours(self) -> bool:
        return not self._leased or self._read() == self._holder

    def _in_use(self) -> InUse:
        return InUse(
            f"{self._path.parent} is in use by {self._who()}: wait for it, or end it and try again"
        )

    def _who(self) -> str:
        holder = self._read()
        if holder is None:
            return "another process"
        return f"process {holder.get('pid')} on {holder.get('host')}"

    def _read(self) -> dict[str, Any] | None:
        with reading(self._path):
            return _holder(self._fd)

    def _write(self) -> None:
        self._holder = {
            "format": 1,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "renewed": self._clock(),
        }
        content = orjson.dumps(self._holder)
        with as_machine_error(f"cannot write {self._path}"):
            # Content first: a death before the cut leaves JSON with a tail, which is nobody's
            # lease.
            if self._disk.write_at(self._fd, content, 0) < len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._disk.truncate(self._fd, len(content))


def held(path: Path, clock: Callable[[], float]) -> bool:
    """Return whether a process holds the lock now; nobody who wants it meanwhile is refused.

    A link is nobody's lock: no process of ours takes one.
    """
    if path.is_symlink():
        return False
    try:
        file = open_regular(path)
    except OSError:
        return False
    with file:
        try:
            # Shared, so that two commands that only look do not see each other as holders.
            fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return _is_current(_holder(file.fileno()), clock())
    return False


def _is_current(holder: dict[str, Any] | None, now: float) -> bool:
    """Return whether a holder has renewed its lease in time."""
    return holder is not None and now - holder["renewed"] <= LEASE


def _holder(fd: int) -> dict[str, Any] | None:
    try:
        holder = orjson.loads(os.pread(fd, 4096, 0))
    except ValueError:
        return None
    if isinstance(holder, dict) and type(holder.get("renewed")) in (int, float):
        return holder
    return None
