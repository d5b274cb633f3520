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
LONGEST = 1 << 23
"""Longest line that is decoded, in bytes."""
KEY_MOST = 512
"""Bytes of a line in which its user's key is looked for."""
ABOUT = re.compile(rb'\{"user_id":(?:"((?:[^"\\]|\\.)*)"|([^",][^,]*),)')
"""How lines begin that name a user: by a text as JSON writes it, or by a number."""


class Described(NamedTuple):
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
        self._starts, self._keys = array("q"), list[str]()
        self.generation = object()
        """Another object after the file was replaced."""

    def __len__(self) -> int:
        return len(self._starts)

    def advance(self, seconds: float = math.inf) -> bool:
        """Read what was appended since the last call, for about so many seconds of this thread;
        return whether that was all."""
        with self.lock, opened(self.path) as file:
            state = os.fstat(file.fileno()) if file else None
            identity = (state.st_dev, state.st_ino) if state else None
            if identity != self._identity or (state and state.st_size < self._end):
                self._forget(identity)
            if file and state and self.stopped is None and state.st_size > self._end:
                return self._read(file, thread_time() + seconds)
            return True

    def _read(self, file: BinaryIO, until: float) -> bool:
        file.seek(self._end)
        while block := file.read(BLOCK):
            if thread_time() > until:
                return False
            size = block.rfind(b"\n") + 1
            if size:
                self._add(block[:size])
            elif (rest := _to_line_end(file)) is None:
                return True
            elif rest > LINE_MOST:
                self.stopped = self._end
                return True
            else:
                size = len(block) + rest
                self._add(block[:KEY_MOST] + b"\n")
            self._end += size
            file.seek(self._end)
        return True

    def _add(self, lines: bytes) -> None:
        """Note lines that begin where the last ones ended."""
        start = 0
        while (line_end := lines.find(b"\n", start)) >= 0:
            self._starts.append(self._end + start)
            self._keys.append(_key(ABOUT.match(lines, start, min(start + KEY_MOST, line_end))))
            start = line_end + 1

    def searched(self, text: str) -> Sequence[int]:
        """Return the numbers of the lines whose user's key contains a text; of all lines for an
        empty one."""
        return (
            [number for number, key in enumerate(self._keys) if text in key]
            if text
            else range(len(self))
        )

    def numbers_of(self, key: str) -> list[int]:
        """Return the numbers of the lines about a user."""
        return [number for number, other in enumerate(self._keys) if other == key]

    def key(self, number: int) -> str:
        """Return the key of a line's user; empty without one, or without such a line."""
        return self._keys[number] if 0 <= number < len(self._keys) else ""

    def objects(self, numbers: Iterable[int]) -> Iterator[tuple[int, JSON | None]]:
        """Yield the objects of lines; None for one that is not as it was written, or too long to be
        shown."""
        with opened(self.path) as file:
            for number in numbers:
                yield number, _object(file, self._starts[number]) if file else None


class Facts:
    """What users are selected and sorted by, of each line of an index: read once, in steps."""

    def __init__(self, index: LineIndex) -> None:
        self._index = index
        self._generation = index.generation
        self._lines = list[Described]()

    def now(self, describe: Callable[[JSON | None], Described], seconds: float) -> list[Described]:
        """Read further lines for about so many seconds of this thread; return what all lines so far
        say."""
        with self._index.lock:
            if self._generation is not self._index.generation:
                self._generation, self._lines = self._index.generation, []
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


def last_lines(path: Path, most: int) -> list[bytes]:
    """Return the whole lines within the last so many bytes of a file."""
    with opened(path) as file:
        if file is None:
            return []
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - most))
        lines = file.read(most).split(b"\n")[:-1]
    return lines if size <= most else lines[1:]


def lines_beginning(
    path: Path, start: bytes, most: int, within: float = math.inf
) -> Iterator[bytes]:
    """Yield the lines that begin so, at most so many, without decoding any; they begin `within` the
    first bytes."""
    wanted, tail, base = b"\n" + start, b"\n", 0
    with opened(path) as file:
        while file and most and base < within and (block := file.read(BLOCK)):
            looked, at = tail + block, -1
            places = list[int]()
            while len(places) < most and (at := looked.find(wanted, at + 1)) >= 0:
                places.append(base - len(tail) + at + 1)
            base += len(block)
            tail = looked[-len(wanted) + 1 :]
            for place in places:
                file.seek(max(0, place))
                if len(line := file.readline(LONGEST)) < LONGEST:
                    yield line.rstrip()
            most -= len(places)
            file.seek(base)


def _object(file: BinaryIO, offset: int) -> JSON | None:
    file.seek(offset)
    line = file.readline(LONGEST)
    if len(line) == LONGEST:
        return None
    try:
        data = orjson.loads(line)
    except ValueError:
        return None
    if not isinstance(data, dict) or ("crc" in data and not log.sound(line.rstrip())):
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
        if not (block := file.read(BLOCK)):
            return None
        if (end := block.find(b"\n")) >= 0:
            return size + end + 1
        size += len(block)
    return size
