"""Files that a user names, read whole."""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path

_DESCRIPTOR = re.compile(r"/dev/stdin|/dev/fd/[0-9]+|/proc/self/fd/[0-9]+")


def content(path: Path, most: int | None = None) -> bytes:
    """The bytes of a file, at most so many. Raises `OSError` for more, and for a pipe or a device, which could keep a
    reader waiting for ever.

    A path with a NUL in it, which no system call takes, is one that is not there.
    """
    return _read(path, most, pipe=False)


def is_descriptor(path: Path) -> bool:
    """Whether a path names what a shell opened for this process: `<(pass show key)`, or standard input."""
    return _DESCRIPTOR.fullmatch(str(path)) is not None


def handed_over(path: Path, most: int) -> bytes:
    """The bytes behind a path as `is_descriptor` knows it, which may be a pipe: whoever opened it writes to it.

    A pipe can be read once. Raises `OSError` as `content` does.
    """
    return _read(path, most, pipe=True)


def _read(path: Path, most: int | None, *, pipe: bool) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except ValueError:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from None
    mode = os.fstat(fd).st_mode
    if not (stat.S_ISREG(mode) or (pipe and stat.S_ISFIFO(mode))):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is not a regular file")
    os.set_blocking(fd, True)
    with open(fd, "rb") as file:
        data = file.read() if most is None else file.read(most + 1)
    if most is not None and len(data) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most} bytes")
    return data
