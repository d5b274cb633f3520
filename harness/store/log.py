"""Append-only logs of JSON lines.

Guarantee: once `append` has returned, its line survives the death of this process, `kill -9`
included, since it is in the kernel by one `write`. After `sync` it survives a power loss too, if
the disk does what it reports. Not covered: what other programs do to the file; a line that they
damage is noticed by its checksum, set aside and requested again (docs/design.md, section 5). A line
of more than `LINE_MOST` bytes is refused: no run writes one, and it would be held in memory. So is
a file of which every line is damaged: something has converted it, and to request all of it again
would be paid for.

A line is a JSON object whose last member is `crc`, the CRC-32 of the line before that member. White
space at its end and blank lines are no damage: version control and editors change line ends.
"""

from __future__ import annotations

import codecs
import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from time import perf_counter
from typing import BinaryIO
from zlib import crc32

import orjson
from msgspec import Struct

from harness.benchmarks.files import LINE_MOST, open_regular
from harness.errors import BadInput, MachineError, as_machine_error, reading
from harness.model import JSON
from harness.store.atomic import replacing, sync_folder
from harness.store.disk import APPEND, DISK, Disk, write_whole

UTF16 = codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE
TAIL = len(b',"crc":"00000000"}')


def encode_line(data: JSON) -> bytes:
    """Return the line for an object of at least one member, with its checksum and line end."""
    payload = orjson.dumps(data)[:-1]
    # The checksum comes last, so that a line without its end cannot have a valid one.
    return b'%b,"crc":"%08x"}\n' % (payload, crc32(payload))


def has_valid_crc(line: bytes) -> bool:
    """Return whether a line (without its end) is as it was written."""
    payload, tail = line[:-TAIL], line[-TAIL:]
    return tail == b',"crc":"%08x"}' % crc32(payload) and payload[:1] == b"{"


def checked(line: bytes, path: Path) -> bytes:
    """Return a line that was sound before. Raise `MachineError` if it no longer is."""
    if not has_valid_crc(line):
        raise MachineError(f"{path} was changed by another program: run again to repair it")
    return line


def decode_line(line: bytes) -> JSON:
    """Return the object of a sound line, without its checksum."""
    data: JSON = orjson.loads(line)
    del data["crc"]
    return data


def decode_or_empty(line: bytes) -> JSON:
    """Return `decode_line`'s object, or an empty one for a line with a correct checksum that is not
    JSON."""
    try:
        return decode_line(line)
    except ValueError:
        return {}


class Line(Struct, frozen=True):
    """`text` is without white space at its end; `offset` and `size` (with it) are in bytes. A line
    that a death has cut off is not `ended`."""

    offset: int
    size: int
    text: bytes
    ended: bool


def lines(path: Path) -> Iterator[Line]:
    """Yield every line of a file that may not exist; the last may lack its end. Raise `BadInput`
    for one too long."""
    with reading(path), suppress(FileNotFoundError), open_regular(path, 1 << 20) as file:
        offset = 0
        while raw := file.readline(LINE_MOST + 1):
            if len(raw) > LINE_MOST:
                raise too_long(path, offset)
            yield Line(offset, len(raw), raw.rstrip(), raw.endswith(b"\n"))
            offset += len(raw)


def too_long(path: Path, offset: int) -> BadInput:
    """Return the error for a line that no run has written."""
    return BadInput(
        f"{path}: the line that begins at byte {offset} is longer than {LINE_MOST >> 20} MB, and no"
        " run writes such a line: put back a copy of the file, or cut it off there (truncate -s"
        f" {offset} FILE)"
    )


def line_at(file: BinaryIO, offset: int) -> bytes:
    """Return the line at an offset that `lines` gave, without white space at its end."""
    file.seek(offset)
    return file.readline(LINE_MOST).rstrip()


def checked_lines(path: Path) -> Iterator[tuple[Line, bool]]:
    """Yield lines that are not blank, each with whether it is sound.

    Raise `BadInput` at the end if none is, and another program has changed them: a death leaves one
    line without its end, and a loss of power zeros.
    """
    is_any_sound = is_changed = False
    for line in lines(path):
        if line.text:
            is_sound = has_valid_crc(line.text)
            if is_sound:
                is_any_sound = True
            # A loss of power leaves zeros where content was not written; only UTF-16 has them too.
            elif line.ended and (b"\0" not in line.text or line.text.startswith(UTF16)):
                is_changed = True
            yield line, is_sound
    if is_changed and not is_any_sound:
        raise BadInput(
            f"{path}: no line of it is as a run wrote it, so another program has changed or"
            " converted the file, and nothing was requested again. Put back a copy of the file; or"
            f" go on without what it holds, and pay for it again: mv {shlex.quote(str(path))}"
            f" {shlex.quote(f'{path}.damaged')}"
        )


def valid_lines(path: Path) -> Iterator[Line]:
    """Yield the lines that are as they were written. Raise as `checked_lines`."""
    return (line for line, is_sound in checked_lines(path) if is_sound)


def objects(path: Path) -> Iterator[tuple[Line, JSON]]:
    """Return sound lines with their objects. Raise as `checked_lines`."""
    return ((line, decode_or_empty(line.text)) for line in valid_lines(path))


def repair(path: Path, disk: Disk = DISK) -> int:
    """Move lines that are not sound to `<file>.torn`; return how many. A file without any is not
    touched. Raise as `checked_lines`.

    The torn lines are on disk before the file changes, so that a death in between loses nothing. A
    sound last line that lacks only its end is kept, and ended.
    """
    torn = {line.offset: line.size for line, is_sound in checked_lines(path) if not is_sound}
    with as_machine_error(f"cannot repair {path}"):
        if torn:
            with appending(path, disk) as fd:  # it may be refused, before anything of it is copied
                _keep_torn(path, torn, disk)
                _take_out(path, fd, torn, disk)
        elif not _ended(path):
            with appending(path, disk) as fd:
                write_whole(disk, fd, b"\n")
    return len(torn)


def _keep_torn(path: Path, torn: Mapping[int, int], disk: Disk) -> None:
    """Copy lines, by offset with their sizes, to `<file>.torn`."""
    aside = path.with_name(path.name + ".torn")
    with open_regular(path) as file, appending(aside, disk) as fd:
        if not _ended(aside):  # a death within an earlier repair
            write_whole(disk, fd, b"\n")
        for offset, size in torn.items():
            file.seek(offset)
            write_whole(disk, fd, file.read(size).removesuffix(b"\n") + b"\n")
        disk.sync(fd)
    sync_folder(path.parent, disk)


def _ended(path: Path) -> bool:
    """Return whether a line can be appended: there is no file yet, or its last line has its end."""
    with suppress(FileNotFoundError), open_regular(path) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        return file.read() in (b"", b"\n")
    return True


def _take_out(path: Path, fd: int, torn: Mapping[int, int], disk: Disk) -> None:
    offset, size = next(iter(torn.items()))
    if offset + size >= os.fstat(fd).st_size:
        # The lock keeps other writers out, so the file can be cut in place.
        disk.truncate(fd, offset)  # the usual case: nothing but the last line of a killed writer
        return
    with replacing(path, disk=disk) as repaired:
        for line in lines(path):
            if line.text and line.offset not in torn:
                repaired.write(line.text + b"\n")


@contextmanager
def appending(path: Path, disk: Disk) -> Iterator[int]:
    """Open a descriptor for appending. Raise `OSError`."""
    fd = disk.open(path, APPEND)
    try:
        yield fd
    finally:
        disk.close(fd)


class AppendLog:
    """A log open for appending. Raises `MachineError` when a line cannot be written whole."""

    def __init__(self, path: Path, disk: Disk = DISK) -> None:
        self.path = path
        self.slowest = 0.0
        self._disk = disk
        self._stuck: OSError | None = None  # why nothing more can be appended
        # Why a sync is not tried again: it may succeed without what this one lost.
        self._lost: OSError | None = None
        with as_machine_error(f"cannot open {path} for writing"):
            self._fd = disk.open(path, APPEND)
            self.size = os.fstat(self._fd).st_size
        self.dirty = self.size > 0  # by a process that died before it could sync

    def append(self, data: JSON) -> int:
        """Append the line of an object; return its offset in bytes. Nobody else writes to the file
        meanwhile."""
        return self.append_encoded(encode_line(data))

    def append_encoded(self, content: bytes) -> int:
        """Append one or more lines of `encode_line` by one write; return the offset in bytes."""
        offset, start = self.size, perf_counter()
        if len(content) > LINE_MOST:
            what = f"a line of more than {LINE_MOST >> 20} MB is never read again"
            raise MachineError(f"cannot write {self.path}: {what}")
        try:
            if self._stuck:
                raise self._stuck
            # One `write` for a line: after a death the file has all of it, or a part that the next
            # start cuts.
            written = self._disk.write(self._fd, content)
            self.slowest = max(self.slowest, perf_counter() - start)
        except OSError as error:
            raise MachineError(
                f"cannot write {self.path}: {error.strerror}; everything saved is intact"
            ) from error
        if written != len(content):
            # Else what is appended before the process ends would run into it.
            try:
                self._disk.truncate(self._fd, self.size)
            except OSError as error:  # it would, and the next start would set both aside
                self._stuck = error
            raise MachineError(
                f"cannot write {self.path}: the disk took only a part; everything saved is intact"
            )
        self.size += written
        self.dirty = True
        return offset

    def sync(self) -> None:
        """Wait until what was appended is on the disk."""
        if not self.dirty:
            return
        self.dirty = False  # before the sync: what is appended during it is dirty again
        try:
            if self._lost:
                raise self._lost
            self._disk.sync(self._fd)
        except OSError as error:
            self.dirty, self._lost = True, error
            raise MachineError(
                f"cannot sync {self.path}: {error.strerror}; what the disk holds is unknown"
            ) from error

    def close(self) -> None:
        # Network mounts report here what they could not keep.
        with as_machine_error(f"cannot close {self.path}", "; what the disk holds is unknown"):
            self._disk.close(self._fd)
