"""The one layer through which the store changes what a disk holds, one call of the system a method.

It is passed in, so that a test can put in a disk that fails at its Nth operation, or one that remembers what
a loss of power may take (docs/design.md, section 5). Guarantees are those of POSIX: what the kernel has taken
survives the death of this process; content survives the loss of power after `sync`, a name after `sync_folder`,
and neither stands for the other. All methods raise `OSError`. Reading is not in it: what is read is checked
where it is read.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND
ANEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
KEEP = os.O_RDWR | os.O_CREAT
"""How a file is opened: each creates one that is not there, with a mode that follows the umask."""


class Disk:
    def open(self, path: Path, how: int) -> int:
        """A descriptor that spawned processes do not inherit."""
        return os.open(path, how | os.O_CLOEXEC, 0o666)

    def close(self, fd: int) -> None:
        os.close(fd)

    def write(self, fd: int, content: bytes) -> int:
        """Bytes taken, from the first on; fewer than all are no error."""
        return os.write(fd, content)

    def write_at(self, fd: int, content: bytes, offset: int) -> int:
        return os.pwrite(fd, content, offset)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def sync(self, fd: int) -> None:
        """The content of a file is on the disk; its name need not be."""
        os.fsync(fd)

    def sync_folder(self, folder: Path) -> None:
        """The names in a folder are on the disk; the content of the files need not be."""
        fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def replace(self, path: Path, taken: Path) -> None:
        """Gives a file the name `taken`, whoever had it; nobody sees a moment without."""
        os.replace(path, taken)

    def link(self, path: Path, second: Path) -> None:
        os.link(path, second)

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def mkdir(self, folder: Path) -> None:
        os.mkdir(folder)


DISK = Disk()


def write_whole(disk: Disk, fd: int, content: bytes) -> None:
    """Writes on until all is taken; on an error a part may have been."""
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
