"""The one layer through which the store changes what a disk holds: one system call a method.

It is passed in, so that a test can use a disk that fails at its Nth operation, or one that records
what a loss of power may take (docs/design.md, section 5). Guarantees are those of POSIX: what the
kernel has taken survives the death of this process; content survives a loss of power after `sync`,
a name after `sync_folder`, and neither replaces the other. All methods raise `OSError`. Reading is
not part of it: what is read is checked where it is read.

A folder may come from somebody else, with links in it that lead elsewhere. So `open` follows no
symbolic link, and opens nothing but regular files with a single name; this is checked on the open
file, before anything is changed.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path
from typing import Any

APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND
FRESH = os.O_WRONLY | os.O_CREAT | os.O_EXCL
KEEP = os.O_RDWR | os.O_CREAT
"""How a file is opened: each creates a missing one, its mode follows the umask; `FRESH` refuses an
existing one."""

NO_WAITING = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Without them, opening a pipe would wait for a reader."""


class Disk:
    def open(self, path: Path, how: int) -> int:
        """Return a descriptor that spawned processes do not inherit; the file is not changed
        yet."""
        try:
            fd = os.open(path, how | NO_WAITING, 0o666)
        except OSError as error:
            raise _refused(path, error) from None
        try:
            # Checked on the open file: between a look at the path and the opening, another could be
            # put there.
            state = os.fstat(fd)
            if not stat.S_ISREG(state.st_mode):
                raise OSError(errno.EINVAL, f"{path.name} is not a regular file")
            if state.st_nlink > 1:
                raise OSError(
                    errno.EMLINK,
                    f"{path.name} has a second name (a hard link), whose content would change with"
                    " it: `cp -r` makes two files",
                )
        except OSError:
            os.close(fd)
            raise
        return fd

    def close(self, fd: int) -> None:
        os.close(fd)

    def write(self, fd: int, content: bytes) -> int:
        """Return the number of bytes taken, from the first on; fewer than all are no error."""
        return os.write(fd, content)

    def write_at(self, fd: int, content: bytes, offset: int) -> int:
        return os.pwrite(fd, content, offset)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def sync(self, fd: int) -> None:
        """Put the content of a file on the disk; its name need not be."""
        os.fsync(fd)

    def sync_folder(self, folder: Path) -> None:
        """Put the names in a folder on the disk; the content of the files need not be."""
        fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def replace(self, path: Path, taken: Path) -> None:
        """Give a file the name `taken`, in place of another file; at no moment is the name
        missing."""
        path.replace(taken)

    def link(self, path: Path, second: Path) -> None:
        os.link(path, second, follow_symlinks=False)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def mkdir(self, folder: Path) -> None:
        folder.mkdir()


def _refused(path: Path, error: OSError) -> OSError:
    """Return an error of opening in words that name the cause."""
    if error.errno == errno.ELOOP:
        return OSError(
            errno.ELOOP,
            f"{path.name} is a symbolic link, and nothing is written through one: `cp -rL` makes a"
            " folder of files",
        )
    if error.errno in (errno.ENXIO, errno.EISDIR):  # pipes, sockets, folders
        return OSError(error.errno, f"{path.name} is not a regular file")
    return error


DISK = Disk()


def write_whole(disk: Disk, fd: int, content: bytes) -> None:
    """Write until all is taken; on an error a part may have been."""
    while content:
        content = content[disk.write(fd, content) :]


class Content(io.RawIOBase):
    """A descriptor as a file, for a buffered writer; closed with it."""

    def __init__(self, disk: Disk, fd: int) -> None:
        self._disk = disk
        self._fd = fd

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        return self._disk.write(self._fd, content)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return os.lseek(self._fd, offset, whence)

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._disk.close(self._fd)
