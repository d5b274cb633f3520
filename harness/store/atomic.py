"""Files that are replaced whole, and files that make room for others and stay: nothing is ever
deleted.

Guarantee: whoever opens a file that is replaced, at any moment and after any death of this process
or of the machine, finds the old content or the new one, whole. When a function that makes room
returns, the old content has its other name, also after a power loss; the new file may follow.
Trade-off: two syncs a file. Not covered: file systems that ignore fsync.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import stat
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO

from harness.benchmarks.files import open_regular
from harness.errors import MachineError, as_machine_error
from harness.store.disk import DISK, FRESH, Content, Disk

NO_FOLDER_SYNC = frozenset(
    {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EACCES, errno.EPERM}
)
"""Errors where a folder cannot be synced: on some network and FUSE mounts, and without read
access."""
RANDOM_BYTES = 8
LEFT_BEHIND_SECONDS = 24 * 3600
"""Age from which the new content of a shared file is a dead writer's: a living one changes its file
far more often."""


@contextmanager
def replacing(path: Path, *, shared: bool = False, disk: Disk = DISK) -> Iterator[BinaryIO]:
    """Open a file for the new content of `path`; it takes the place when the block ends without
    error.

    The new content is in `<file>.new` until then, a file of its own: what has that name (from a
    death, or in a folder from somebody else, where it may be a link) is unlinked. `shared` is for
    files that no lock guards: any number of tasks, threads and processes may replace such a file,
    each with a random name for its new content, and whoever ends last has it.
    """
    new = path.with_name(
        f"{path.name}.{token_hex(RANDOM_BYTES)}.new" if shared else f"{path.name}.new"
    )
    if shared:
        clear(path, disk)
    try:
        with as_machine_error(f"cannot write {path}", "; the old one is intact"):
            _check_place(path)
            with Content(disk, _fresh(new, disk)) as content:
                file = io.BufferedWriter(content, 1 << 20)
                yield file
                file.flush()
                # Before the rename: else a loss of power could leave the name with content that was
                # never written.
                disk.sync(content.fileno())
            disk.replace(new, path)
    finally:
        with suppress(OSError):
            disk.unlink(new)  # after an error; it would only fill a full disk
    sync_folder(path.parent, disk)


def _check_place(path: Path) -> None:
    """Raise `OSError` for a device: root could rename a file over `/dev/null`."""
    with suppress(FileNotFoundError, NotADirectoryError):
        mode = os.lstat(path).st_mode
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            raise OSError(errno.EINVAL, "it is a device")


def _fresh(new: Path, disk: Disk) -> int:
    try:
        return disk.open(new, FRESH)
    except FileExistsError:
        if new.is_dir() and not new.is_symlink():
            raise IsADirectoryError(errno.EISDIR, f"{new.name} is a folder") from None
        disk.unlink(new)
        return disk.open(new, FRESH)


def clear(path: Path, disk: Disk = DISK) -> None:
    """Remove new contents of a shared file that dead writers have left, on any machine: those of a
    day ago.

    No number of a process shows that its writer is dead: it may be of another machine, or in use
    again.
    """
    oldest = time.time() - LEFT_BEHIND_SECONDS
    for left in path.parent.glob(f"{escape(path.name)}.{'[0-9a-f]' * 2 * RANDOM_BYTES}.new"):
        with suppress(OSError):
            state = left.lstat()
            if stat.S_ISREG(state.st_mode) and state.st_mtime < oldest:
                disk.unlink(left)


def write(path: Path, content: bytes, *, shared: bool = False, disk: Disk = DISK) -> None:
    with replacing(path, shared=shared, disk=disk) as file:
        file.write(content)


def make_folder(folder: Path, disk: Disk = DISK) -> None:
    """Make a folder, and those above it; it survives a power loss, also where a death had left it
    unsynced."""
    if not folder.parent.exists():
        make_folder(folder.parent, disk)
    with as_machine_error(f"cannot make {folder}"):
        try:
            disk.mkdir(folder)
        except FileExistsError:
            if not folder.is_dir():
                raise MachineError(f"cannot make {folder}: a file has this name") from None
    sync_folder(folder.parent, disk)


def remove_folder(folder: Path, names: Collection[str]) -> None:
    """Remove a folder that has only files of these names, as far as it can be; leave one that has
    others as it is."""
    with suppress(OSError):
        files = list(folder.iterdir())
        if {file.name for file in files} <= set(names):
            for file in files:
                file.unlink()
            folder.rmdir()


def check_folder(folder: Path) -> None:
    """Raise `MachineError` for a folder that is a symbolic link: the user must name the place that
    it leads to.

    This is for folders below a results folder. The results folder itself is named by the user, and
    may be a link.
    """
    if folder.is_symlink():
        place = Path(os.path.realpath(folder))
        raise MachineError(
            f"{folder} is a symbolic link to {place}, and nothing is written through one: name that"
            f" place itself (a run's by --results-dir {place.parent}), or move the folder here"
        )


def sync_folder(folder: Path, disk: Disk = DISK) -> None:
    """Make names that were created or replaced in a folder survive a power loss, if the file system
    can."""
    try:
        disk.sync_folder(folder)
    except OSError as error:
        if error.errno not in NO_FOLDER_SYNC:
            raise MachineError(
                f"cannot sync {folder}: {error.strerror}; what the disk holds is unknown"
            ) from error


def keep_old(path: Path, stamp: str, disk: Disk) -> None:
    """Give a file that is about to be replaced a second name, so that its content stays."""
    second = _free_name(path, stamp)
    try:
        # A link costs nothing, and at no moment is the content without a name.
        disk.link(path, second)
    except FileExistsError:  # another command has taken the name since
        return keep_old(path, stamp, disk)
    except OSError:  # a file system without hard links: a copy costs more, and does the same
        try:
            with open_regular(path) as old, replacing(second, disk=disk) as copy:
                shutil.copyfileobj(old, copy, 1 << 20)
        except (OSError, MachineError) as error:
            raise MachineError(f"cannot keep {path}: {error}") from error
    sync_folder(path.parent, disk)


def drop_second_names(path: Path, disk: Disk) -> None:
    """Remove the second name that a death within `keep_old` has left to a file that is about to be
    appended to.

    The content has not been replaced yet, so it is not lost with the name.
    """
    with as_machine_error(f"cannot open {path} for writing"), suppress(FileNotFoundError):
        state = path.lstat()
        if state.st_nlink == 1:
            return
        for second in path.parent.glob(f"{escape(path.name)}.before-*"):
            if os.path.samestat(second.lstat(), state):
                disk.unlink(second)


def set_aside_any(paths: Iterable[Path], stamp: str, disk: Disk = DISK) -> None:
    """Give those of some files that exist another name; new ones are about to follow."""
    for path in filter(os.path.lexists, paths):
        set_aside = _free_name(path, stamp)
        with as_machine_error(f"cannot rename {path} to {set_aside.name}"):
            disk.replace(path, set_aside)
        sync_folder(path.parent, disk)


def _free_name(path: Path, stamp: str) -> Path:
    """Return `<file>.before-<stamp>`, numbered where that is taken: two commands may share a
    second."""
    first = path.with_name(f"{path.name}.before-{stamp}")
    free = first
    number = 1
    while os.path.lexists(free):
        number += 1
        free = first.with_name(f"{first.name}-{number}")
    return free
