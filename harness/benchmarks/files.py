"""Files that a user or a run's folder names: regular files alone, read within a bound."""

from __future__ import annotations

import errno
import os
import re
import stat
from io import DEFAULT_BUFFER_SIZE, BufferedReader, FileIO
from pathlib import Path

from harness.errors import BadInput

WHOLE_MOST = 2**32
"""Bytes of a file that is read whole: maps and ground truths are the largest."""
DOCUMENT_MOST = 2**24
"""Bytes of a manifest, a report or a kept prompt of a run: far above any that this harness writes."""
LINE_MOST = 2**28
"""Bytes of a line, with its end: four of the largest replies that an endpoint can give."""
BLOCK = 2**20

_DESCRIPTOR = re.compile(r"/dev/stdin|/dev/fd/[0-9]+|/proc/self/fd/[0-9]+")


def open_regular(path: Path, buffer: int = DEFAULT_BUFFER_SIZE, *, pipe: bool = False) -> BufferedReader:
    """Open a file for reading, symbolic links followed. Raise `OSError`, also for what is no regular file.

    A pipe (unless `pipe` says that it may be one) or a device is not opened: it could keep the reader waiting for ever,
    and whoever is at its other end would notice. A path with a NUL in it, which no system call takes, is one that is
    not there.
    """
    try:
        _check(os.stat(path), pipe)
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except ValueError:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from None
    try:
        _check(os.fstat(fd), pipe)  # it may have been replaced in between
        os.set_blocking(fd, True)
    except OSError:
        os.close(fd)
        raise
    return BufferedReader(FileIO(fd), buffer)


def _check(state: os.stat_result, pipe: bool) -> None:
    if not (stat.S_ISREG(state.st_mode) or (pipe and stat.S_ISFIFO(state.st_mode))):
        raise OSError(errno.EINVAL, "it is not a regular file")


def content(path: Path, most: int = WHOLE_MOST) -> bytes:
    """Return the bytes of a regular file. Raise `OSError`; with `EFBIG` for a file of more than `most` bytes."""
    with open_regular(path) as file:
        return _within(file, most)


def input_file(path: Path, what: str = "", most: int = WHOLE_MOST) -> bytes:
    """Return the bytes of a file that the user named. Raise `BadInput`, which calls it `what` ("the benchmark ")."""
    try:
        return content(path, most)
    except OSError as error:
        raise BadInput(f"cannot read {what}{path}: {error.strerror}") from None


def is_descriptor(path: Path) -> bool:
    """Return whether a path names what a shell opened for this process: `<(pass show key)`, or standard input."""
    return _DESCRIPTOR.fullmatch(str(path)) is not None


def handed_over(path: Path, most: int) -> bytes:
    """Return the bytes behind a path as `is_descriptor` knows it, which may be a pipe: whoever opened it writes to it.

    A pipe can be read once. Raise `OSError` as `content` does.
    """
    with open_regular(path, pipe=True) as file:
        return _within(file, most)


def holds(path: Path, expected: bytes) -> bool:
    """Return whether a regular file has exactly these bytes. Raise `OSError`."""
    try:
        return content(path, len(expected)) == expected
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        return False


def _within(file: BufferedReader, most: int) -> bytes:
    large = os.fstat(file.fileno()).st_size > most
    blocks, size = list[bytes](), 0
    while not large and (block := file.read(BLOCK)):  # a file of the kernel's has no size, and some have no end
        blocks.append(block)
        size += len(block)
        large = size > most
    if large:
        raise OSError(errno.EFBIG, f"it is larger than {most} bytes")
    return b"".join(blocks)
