"""Files that are replaced whole.

Guarantee: whoever opens the file, at any moment and after any death of this process or of the machine, finds the old
content or the new one, whole. Trade-off: two syncs a file. Not covered: file systems that ignore fsync.
"""

from __future__ import annotations

import errno
import io
import os
import socket
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import BinaryIO

from harness.errors import MachineError
from harness.store.disk import DISK, FRESH, Content, Disk

NO_FOLDER_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EACCES, errno.EPERM})
"""Errors where a folder cannot be synced: on some network and FUSE mounts, and without read access."""


@contextmanager
def replacing(path: Path, *, shared: bool = False, disk: Disk = DISK) -> Iterator[BinaryIO]:
    """Open a file for the new content of `path`; it takes the place when the block ends without error.

    The new content is in `<file>.new` until then, a file of its own: what has that name (from a death, or in a folder
    from somebody else, where it may be a link) is unlinked. `shared` is for files that no lock guards: several
    processes may replace such a file, and each removes what dead ones of its machine have left.
    """
    new = path.with_name(f"{path.name}.{socket.gethostname()}-{os.getpid()}.new" if shared else path.name + ".new")
    if shared:
        _clear(path, disk)
    try:
        _check_place(path)
        with Content(disk, _fresh(new, disk)) as content:
            file = io.BufferedWriter(content, 1 << 20)
            yield file
            file.flush()
            disk.sync(content.fileno())
        disk.replace(new, path)
    except OSError as error:
        raise MachineError(f"cannot write {path}: {error.strerror}; the old one is intact") from error
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


def _clear(path: Path, disk: Disk) -> None:
    """Remove the new contents of a shared file whose writers have died on this machine."""
    before = f"{path.name}.{socket.gethostname()}-"
    for left in path.parent.glob(f"{escape(before)}*.new"):
        pid = left.name.removeprefix(before).removesuffix(".new")
        if not pid.isdecimal():
            continue
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            with suppress(OSError):
                disk.unlink(left)
        except (OSError, OverflowError):
            pass  # the process of another user


def write(path: Path, content: bytes, *, shared: bool = False, disk: Disk = DISK) -> None:
    with replacing(path, shared=shared, disk=disk) as file:
        file.write(content)


def make_folder(folder: Path, disk: Disk = DISK) -> None:
    """Make a folder, and those above it; it survives a power loss, also where a death had left it unsynced."""
    if not folder.parent.exists():
        make_folder(folder.parent, disk)
    try:
        disk.mkdir(folder)
    except FileExistsError:
        if not folder.is_dir():
            raise MachineError(f"cannot make {folder}: a file has this name") from None
    except OSError as error:
        raise MachineError(f"cannot make {folder}: {error.strerror}") from error
    sync_folder(folder.parent, disk)


def remove_folder(folder: Path, names: Collection[str]) -> None:
    """Remove a folder that has only files of these names, as far as it can be; leave one that has others as it is."""
    with suppress(OSError):
        there = os.listdir(folder)
        if set(there) <= set(names):
            for name in there:
                os.unlink(folder / name)
            os.rmdir(folder)


def check_folder(folder: Path) -> None:
    """Raise `MachineError` for a folder that is a symbolic link: the user must name the place that it leads to.

    This is for folders below a results folder. The results folder itself is named by the user, and may be a link.
    """
    if folder.is_symlink():
        place = Path(os.path.realpath(folder))
        raise MachineError(
            f"{folder} is a symbolic link to {place}, and nothing is written through one: name that place itself "
            f"(a run's by --results-dir {place.parent}), or move the folder here"
        )


def sync_folder(folder: Path, disk: Disk = DISK) -> None:
    """Make names that were created or replaced in a folder survive a power loss, if the file system can."""
    try:
        disk.sync_folder(folder)
    except OSError as error:
        if error.errno not in NO_FOLDER_SYNC:
            raise MachineError(f"cannot sync {folder}: {error.strerror}; what the disk holds is unknown") from error
