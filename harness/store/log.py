"""Append-only logs of JSON lines.

Guarantee: a line that `append` has returned for survives the death of this process, `kill -9`
included, since it is in the kernel by one `write`. After `sync` it survives a power loss too, as far
as the disk keeps its word. Not covered: what other programs do to the file; a line that they damage
is noticed by its checksum, set aside and owed again (docs/design.md, section 5).

A line is a JSON object whose last member is `crc`, the CRC-32 of the line before that member.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from zlib import crc32

import orjson

from harness.errors import MachineError
from harness.model import JSON
from harness.store.atomic import replacing, sync_folder

TAIL = len(b',"crc":"00000000"}')


def seal(data: JSON) -> bytes:
    """The line for an object of at least one member, with its checksum and line end."""
    payload = orjson.dumps(data)[:-1]
    return b'%b,"crc":"%08x"}\n' % (payload, crc32(payload))


def sound(line: bytes) -> bool:
    """Whether a line (without its end) is as it was written."""
    payload, tail = line[:-TAIL], line[-TAIL:]
    return tail == b',"crc":"%08x"}' % crc32(payload) and payload[:1] == b"{"


def unseal(line: bytes) -> JSON:
    """The object of a sound line, without its checksum."""
    data: JSON = orjson.loads(line)
    del data["crc"]
    return data


@dataclass(frozen=True, slots=True)
class Line:
    """`text` is without the line end; `offset` and `size` (with the end) are in bytes."""

    offset: int
    size: int
    text: bytes


def lines(path: Path) -> Iterator[Line]:
    """Every line of a file that may not exist; the last may lack its end."""
    try:
        with path.open("rb", buffering=1 << 20) as file:
            offset = 0
            for raw in file:
                yield Line(offset, len(raw), raw.rstrip(b"\n"))
                offset += len(raw)
    except FileNotFoundError:
        return
    except OSError as error:
        raise MachineError(f"cannot read {path}: {error.strerror}") from error


def sound_lines(path: Path) -> Iterator[Line]:
    return (line for line in lines(path) if sound(line.text))


def repair(path: Path) -> int:
    """Moves lines that are not sound to `<file>.torn`; returns how many. A file without any is not touched.

    The torn lines are on disk before the file changes, so that a death in between loses nothing. A sound last
    line that lacks only its end is kept, and ended.
    """
    bad, ended = [], True
    for line in lines(path):
        ended = line.size > len(line.text)
        if not sound(line.text):
            bad.append(line)
    try:
        if bad:
            _keep_torn(path, bad)
            _take_out(path, bad)
        elif not ended:
            with path.open("ab") as file:
                file.write(b"\n")
    except OSError as error:
        raise MachineError(f"cannot repair {path}: {error.strerror}") from error
    return len(bad)


def _keep_torn(path: Path, bad: list[Line]) -> None:
    with path.with_name(path.name + ".torn").open("ab") as aside:
        for line in bad:
            aside.write(line.text + b"\n")
        aside.flush()
        os.fsync(aside.fileno())
    sync_folder(path.parent)


def _take_out(path: Path, bad: list[Line]) -> None:
    first = bad[0]
    if first.offset + first.size == path.stat().st_size:
        os.truncate(path, first.offset)  # the usual case: nothing but the last line of a killed writer
        return
    skip = {line.offset for line in bad}
    with replacing(path) as whole:
        for line in lines(path):
            if line.offset not in skip:
                whole.write(line.text + b"\n")


class AppendLog:
    """A log open for appending. Raises `MachineError` when a line cannot be written whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.dirty = False
        self.slowest = 0.0
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            self._size = os.fstat(self._fd).st_size
        except OSError as error:
            raise MachineError(f"cannot open {path} for writing: {error.strerror}") from error

    def append(self, data: JSON) -> int:
        """Appends the line of an object; returns its offset in bytes. Nobody else writes to the file meanwhile."""
        line, offset, start = seal(data), self._size, perf_counter()
        try:
            written = os.write(self._fd, line)
            self.slowest = max(self.slowest, perf_counter() - start)
        except OSError as error:
            raise MachineError(f"cannot write {self.path}: {error.strerror}; everything saved is intact") from error
        if written != len(line):
            self._take_back()
            raise MachineError(f"cannot write {self.path}: the disk took only a part; everything saved is intact")
        self._size += written
        self.dirty = True
        return offset

    def _take_back(self) -> None:
        """Cuts off a part of a line, so that whatever is appended before the process ends does not run into it."""
        with suppress(OSError):  # then the next start sets the part aside
            os.ftruncate(self._fd, self._size)

    def sync(self) -> None:
        """Waits until what was appended is on the disk."""
        if not self.dirty:
            return
        self.dirty = False  # before the sync: what is appended during it is dirty again
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise MachineError(f"cannot sync {self.path}: {error.strerror}; what the disk holds is unknown") from error

    def close(self) -> None:
        os.close(self._fd)
