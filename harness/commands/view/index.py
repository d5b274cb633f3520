"""Where the lines of a growing file begin, and whom they are about. New bytes are read once; no
line is kept.

Of each line its place and its user's key are held, so a file of 100,000 users takes some megabytes.
A file that was replaced, or cut off, is read again from its beginning.
"""

from __future__ import annotations

import math
import os
import re
import threading
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import thread_time
from typing import BinaryIO, NamedTuple

import orjson

from harness.benchmarks.files import LINE_MOST, open_regular
from harness.model import JSON
from harness.store import log

BLOCK = 1 << 20
"""Bytes read at once."""
MAX_LINE_BYTES = 1 << 23
"""Longest line that is decoded, in bytes."""
MAX_KEY_BYTES = 512
"""Bytes of a line in which its user's key is looked for."""
LINE_START = re.compile(rb'\{"user_id":(?:"((?:[^"\\]|\\.)*)"|([^",][^,]*),)')
"""How lines begin that name a user: by a text as JSON writes it, or by a number."""


class UserSummary(NamedTuple):
    """What a line says: the outcome (of several the first that is not valid), and figures, NaN for
    none."""

    outcome: str
    is_repaired: bool
    figures: tuple[float, ...]


class LineIndex:
    """The lines of a file that may not exist. Safe for several threads.

    `stopped` is where reading ended before the end of the file: at a line that no run writes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = threading.RLock()
        self._forget(None)

    def _forget(self, identity: tuple[int, int] | None) -> None:
        self._identity = identity
        self._end = 0
        self.stopped: int | None = None
        self._starts = array("q")
        self._keys = list[str]()
        self.generation = object()
        """Another object after the file was replaced."""

    def __len__(self) -> int:
        return len(self._starts)

    def advance(self, seconds: float = math.inf) -> bool:
        """Read what was appended since the last call, for about so many seconds of this thread;
        return whether that was all."""
        with self.lock, opened(self.path) as file:
            identity = None
            size = 0
            if file:
                state = os.fstat(file.fileno())
                identity = (state.st_dev, state.st_ino)
                size = state.st_size
            # Another file, or one that was cut off: what was read of it is void.
            if identity != self._identity or size < self._end:
                self._forget(identity)
            if file and self.stopped is None and size > self._end:
                return self._read(file, thread_time() + seconds)
            return True

    def _read(self, file: BinaryIO, until: float) -> bool:
        """Read lines up to a time of this thread; return whether that was all."""
        file.seek(self._end)
        while block := file.read(BLOCK):
            if thread_time() > until:
                return False
            size = block.rfind(b"\n") + 1
            if size:
                self._add(block[:size])
            else:
                # A line longer than a block: only its beginning is looked at.
                rest_bytes = _to_line_end(file)
                if rest_bytes is None:
                    return True
                if rest_bytes > LINE_MOST:
                    self.stopped = self._end
                    return True
                size = len(block) + rest_bytes
                self._add(block[:MAX_KEY_BYTES] + b"\n")
            self._end += size
            file.seek(self._end)
        return True

    def _add(self, lines: bytes) -> None:
        """Note lines that begin where the last ones ended."""
        start = 0
        while (line_end := lines.find(b"\n", start)) >= 0:
            self._starts.append(self._end + start)
            self._keys.append(
                _key(LINE_START.match(lines, start, min(start + MAX_KEY_BYTES, line_end)))
            )
            start = line_end + 1

    def searched(self, text: str) -> Sequence[int]:
        """Return the numbers of the lines whose user's key contains a text; of all lines for an
        empty one."""
        if not text:
            return range(len(self))
        return [number for number, key in enumerate(self._keys) if text in key]

    def numbers_of(self, key: str) -> list[int]:
        """Return the numbers of the lines about a user."""
        return [number for number, other in enumerate(self._keys) if other == key]

    def key(self, number: int) -> str:
        """Return the key of a line's user; empty without one, or without such a line."""
        if 0 <= number < len(self._keys):
            return self._keys[number]
        return ""

    def objects(self, numbers: Iterable[int]) -> Iterator[tuple[int, JSON | None]]:
        """Yield the objects of lines; None for one that is not as it was written, or too long to be
        shown."""
        with opened(self.path) as file:
            for number in numbers:
                yield number, _object(file, self._starts[number]) if file else None


class SummaryCache:
    """What users are selected and sorted by, of each line of an index: read once, in steps."""

    def __init__(self, index: LineIndex) -> None:
        self._index = index
        self._generation = index.generation
        self._lines = list[UserSummary]()

    def current(
        self, describe: Callable[[JSON | None], UserSummary], seconds: float
    ) -> list[UserSummary]:
        """Read further lines for about so many seconds of this thread; return what all lines so far
        say."""
        with self._index.lock:
            if self._generation is not self._index.generation:
                self._generation = self._index.generation
                self._lines = []
            until = thread_time() + seconds
            for _, data in self._index.objects(range(len(self._lines), len(self._index))):
                self._lines.append(describe(data))
                if thread_time() > until:
                    break
            return self._lines


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO | None]:
    """Open a regular file; None if there is none that can be read."""
    try:
        file = open_regular(path, BLOCK)
    except OSError:
        yield None
        return
    with file:
        yield file


def last_lines(path: Path, max_bytes: int) -> list[bytes]:
    """Return the whole lines within the last so many bytes of a file."""
    with opened(path) as file:
        if file is None:
            return []
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - max_bytes))
        lines = file.read(max_bytes).split(b"\n")[:-1]
    if size > max_bytes:
        del lines[:1]  # its beginning is not there
    return lines


def lines_beginning(
    path: Path, start: bytes, max_lines: int, within: float = math.inf
) -> Iterator[bytes]:
    """Yield the lines that begin so, at most so many, without decoding any; they begin `within` the
    first bytes."""
    wanted = b"\n" + start
    # The end of the block before, as `wanted` may begin there; the file's first line has no newline
    # before it.
    tail = b"\n"
    base = 0
    with opened(path) as file:
        while file and max_lines and base < within:
            block = file.read(BLOCK)
            if not block:
                return
            searched = tail + block
            offsets = list[int]()
            position = searched.find(wanted)
            while len(offsets) < max_lines and position >= 0:
                offsets.append(base - len(tail) + position + 1)
                position = searched.find(wanted, position + 1)
            base += len(block)
            tail = searched[-len(wanted) + 1 :]
            for offset in offsets:
                file.seek(max(0, offset))
                line = file.readline(MAX_LINE_BYTES)
                if len(line) < MAX_LINE_BYTES:
                    yield line.rstrip()
            max_lines -= len(offsets)
            file.seek(base)


def _object(file: BinaryIO, offset: int) -> JSON | None:
    file.seek(offset)
    line = file.readline(MAX_LINE_BYTES)
    if len(line) == MAX_LINE_BYTES:
        return None
    try:
        data = orjson.loads(line)
    except ValueError:
        return None
    if not isinstance(data, dict) or ("crc" in data and not log.has_valid_crc(line.rstrip())):
        return None
    data.pop("crc", None)
    return data


def _key(about: re.Match[bytes] | None) -> str:
    """Return the user that a line begins with, empty for none."""
    if about is None:
        return ""
    text, number = about.groups()
    try:
        return str(orjson.loads(number if text is None else b'"%b"' % text))
    except ValueError:
        return ""


def _to_line_end(file: BinaryIO) -> int | None:
    """Return how many bytes follow up to the end of a line, more than `LINE_MOST` for one too long;
    None if the file ends before it does."""
    size = 0
    while size <= LINE_MOST:
        block = file.read(BLOCK)
        if not block:
            return None
        line_end = block.find(b"\n")
        if line_end >= 0:
            return size + line_end + 1
        size += len(block)
    return size
