"""Files that a user names, read whole."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def content(path: Path) -> bytes:
    """The bytes of a file. Raises `OSError`, also for a pipe or a device, which could keep a reader waiting for ever.

    A path with a NUL in it, which no system call takes, is one that is not there.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except ValueError:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from None
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        return file.read()
