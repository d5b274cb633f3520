"""The tasks in a file, one after the other, each with its place: lines, or the elements of a JSON
array."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import BinaryIO, Protocol

import msgspec

from harness.benchmarks.files import LINE_MOST, other_format

BOM = b"\xef\xbb\xbf"
ARRAY_MOST = 2**30
"""Bytes of a file with an array, which is held in memory."""


class Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...


class Unexpected(Exception):
    """What was expected in line number `line`."""

    def __init__(self, expected: str, line: int) -> None:
        super().__init__(expected)
        self.line = line


def plain_lines(file: BinaryIO, hasher: Hash) -> Iterator[tuple[bytes, int, int]]:
    """Yield lines that are not blank, each with its offset and number, without white space at the
    ends.

    Byte order marks before a line are left out: there is one where files were joined. `hasher` gets
    every byte.
    """
    number = offset = 0
    while raw := file.readline(LINE_MOST + 1):
        number += 1
        if len(raw) > LINE_MOST:
            raise Unexpected(f"a line of at most {LINE_MOST >> 20} MB", number)
        hasher.update(raw)
        line = raw.removeprefix(BOM)
        text = line.strip()
        if text:
            yield text, offset + len(raw) - len(line.lstrip()), number
        offset += len(raw)


def elements(file: BinaryIO, hasher: Hash) -> Iterator[tuple[bytes, int, int]]:
    """Yield the elements of a JSON array, each with its offset and the number of the line that it
    begins in.

    The file is held in memory: files of this kind list thousands of entries, not millions.
    """
    if file.seek(0, os.SEEK_END) > ARRAY_MOST:
        raise Unexpected(f"an array of at most {ARRAY_MOST >> 20} MB", 1)
    file.seek(0)
    content = file.read()
    hasher.update(content)
    offset = len(content) - len(content.removeprefix(BOM))
    line = 1
    try:
        items = msgspec.json.decode(memoryview(content)[offset:], type=list[msgspec.Raw])
    except RecursionError:
        raise Unexpected("a JSON array (nested too deep)", line) from None
    except msgspec.ValidationError:
        raise Unexpected("a JSON array", line) from None
    except msgspec.DecodeError as error:
        reason, _, byte = str(error).removeprefix("JSON is malformed: ").partition(" (byte ")
        end = offset + int(byte.rstrip(")")) if byte else len(content)
        format_name = other_format(content)
        note = f", got {format_name}" if format_name else f" ({reason})"
        raise Unexpected(f"a JSON array{note}", 1 + content.count(b"\n", 0, end)) from None
    for element in map(bytes, items):
        start = content.index(element, offset)  # nothing but a comma and white space is in between
        line += content.count(b"\n", offset, start)
        yield element, start, line
        offset = start + len(element)
        line += element.count(b"\n")
