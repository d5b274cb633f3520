"""Read files that a user or a run's folder names: only regular files, up to a size."""

from __future__ import annotations

import errno
import os
import re
import stat
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from contextlib import suppress
from hashlib import file_digest
from io import DEFAULT_BUFFER_SIZE, BufferedReader, FileIO
from pathlib import Path

from harness.errors import BadInput

WHOLE_MOST = 2**32
"""Bytes of a file that is read whole: maps and ground truths are the largest."""
DOCUMENT_MOST = 2**24
"""Bytes of a manifest, a report or a kept prompt of a run: far above any that this harness
writes."""
LINE_MOST = 2**28
"""Bytes of a line, with its end: four of the largest replies that an endpoint can give."""
BLOCK = 2**20
TASK_FORMATS = ".jsonl", ".json", ".csv", ".parquet"

UTF16 = BOM_UTF16_LE, BOM_UTF16_BE, b"{\0", b"\0{", b"[\0", b"\0["
"""How JSON in UTF-16 begins."""
COMPRESSED = {
    b"\x1f\x8b": "gunzip",
    b"BZh": "bunzip2",
    b"\xfd7zXZ": "unxz",
    b"\x28\xb5\x2f\xfd": "unzstd",
    b"PK\x03\x04": "unzip",
}
"""How compressed files begin, and what unpacks them."""

_DESCRIPTOR = re.compile(r"/dev/stdin|/dev/fd/[0-9]+|/proc/self/fd/[0-9]+")


def open_regular(
    path: Path, buffer: int = DEFAULT_BUFFER_SIZE, *, pipe: bool = False
) -> BufferedReader:
    """Open a file for reading, following symbolic links. Raise `OSError`, also for anything but a
    regular file.

    A device, or a pipe unless `pipe` allows one, is not opened: the reader could wait for ever, and
    the other end would notice. A path with a NUL, which no system call takes, does not exist.
    """

    def check(state: os.stat_result) -> None:
        if not (stat.S_ISREG(state.st_mode) or (pipe and stat.S_ISFIFO(state.st_mode))):
            raise OSError(errno.EINVAL, "it is not a regular file")

    try:
        check(path.stat())
        # Without O_NONBLOCK a pipe that replaced the file would block until somebody writes to it.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except ValueError:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from None

    try:
        # The file may have been replaced in between.
        check(os.fstat(fd))
        os.set_blocking(fd, True)
    except OSError:
        os.close(fd)
        raise

    return BufferedReader(FileIO(fd), buffer)


def content(path: Path, max_bytes: int = WHOLE_MOST, *, pipe: bool = False) -> bytes:
    """Return the bytes of a regular file, or (once) of a pipe. Raise `OSError`, `EFBIG` for more
    than `max_bytes`."""
    with open_regular(path, pipe=pipe) as file:
        blocks: list[bytes] = []
        size = 0
        is_large = os.fstat(file.fileno()).st_size > max_bytes
        # A file of the kernel has no size, and some have no end.
        while not is_large:
            block = file.read(BLOCK)
            if not block:
                return b"".join(blocks)

            blocks.append(block)
            size += len(block)
            is_large = size > max_bytes

    raise OSError(errno.EFBIG, f"it is larger than {max_bytes} bytes")


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a regular file. Raise `OSError`."""
    with open_regular(path) as file:
        return file_digest(file, "sha256").hexdigest()


def input_file(path: Path, what: str = "", max_bytes: int = WHOLE_MOST) -> bytes:
    """Return the bytes of a file that the user named. Raise `BadInput`, which calls it `what` ("the
    benchmark ")."""
    try:
        return content(path, max_bytes)
    except OSError as error:
        raise BadInput(f"cannot read {what}{path}: {error.strerror}") from None


def other_format(data: bytes) -> str | None:
    """Return which encoding or format bytes have that are no text in UTF-8, and the remedy."""
    for mark, program in COMPRESSED.items():
        if data.startswith(mark):
            return f"a compressed file: unpack it ({program})"

    if data.startswith(UTF16):
        return "text in UTF-16, not UTF-8: convert it (iconv -f UTF-16 -t UTF-8)"

    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        with suppress(UnicodeDecodeError):
            data.decode("gb18030")
            return "text that is not UTF-8, but may be GBK: convert it (iconv -f GB18030 -t UTF-8)"

        return "bytes that are not UTF-8"

    return None


def in_any_format(path: Path) -> Path:
    """Return the path, or that of the same tasks in another format if only that exists."""
    if path.suffix not in TASK_FORMATS or path.exists():
        return path

    for suffix in TASK_FORMATS:
        for candidate in (
            path.with_suffix(suffix),
            path.with_suffix(f"{suffix}.gz"),
        ):
            if candidate.exists():
                return candidate

    return path


def is_descriptor(path: Path) -> bool:
    """Return whether a path is a descriptor that a shell opened for this process: `<(pass show
    key)`, or standard input."""
    return _DESCRIPTOR.fullmatch(str(path)) is not None


def holds(path: Path, expected: bytes) -> bool:
    """Return whether a regular file has exactly these bytes. Raise `OSError`."""
    try:
        # One byte more than expected is enough to know, so a large file is not read.
        return content(path, len(expected)) == expected
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        return False
