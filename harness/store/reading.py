"""The tasks in a file, one after the other, each with where it stands: lines, or the elements of a JSON array."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import chain, repeat
from typing import BinaryIO, Protocol

from harness.model import Where

BOM = b"\xef\xbb\xbf"
BLANK = re.compile(r"[ \t\r\n]*")
BLOCK = 1 << 20
"""Bytes read at once."""


class Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...


def plain_lines(file: BinaryIO, whole: Hash) -> Iterator[tuple[bytes, int, int]]:
    """Lines that are not blank, each with its offset and number, without white space at the ends.

    A byte order mark at the start is left out. `whole` takes up every byte of the file, in large blocks.
    """
    number, offset, rest, end = 0, 0, b"", False
    while not end:
        block = file.read(BLOCK)
        whole.update(block)
        end = not block
        lines = (rest + block).split(b"\n")
        rest = b"" if end else lines.pop()
        for raw in lines:
            number += 1
            line = raw.strip() if number > 1 else raw.removeprefix(BOM).strip()
            if line:
                yield line, offset + (raw.index(line) if len(line) < len(raw) else 0), number
            offset += len(raw) + 1


class NotAnArray(Exception):
    """`line` is where something else stands than was expected."""

    def __init__(self, expected: str, line: int) -> None:
        super().__init__(expected)
        self.line = line

    def where(self, file: str) -> Where:
        return Where(file, self.line)


def elements(file: BinaryIO, whole: Hash) -> Iterator[tuple[bytes, int, int]]:
    """Elements of a JSON array, each with its offset and the number of the line that it begins in.

    The file is held in memory: files of this kind list thousands of entries, not millions.
    """
    content = file.read()
    whole.update(content)
    text = content.removeprefix(BOM).decode("utf-8", "surrogateescape")
    decoder, at, offset, line = json.JSONDecoder(), 0, len(content) - len(content.removeprefix(BOM)), 1

    def skip(to: int) -> None:
        nonlocal at, offset, line
        passed = text[at:to]
        offset += len(passed.encode("utf-8", "surrogateescape"))
        line += passed.count("\n")
        at = to

    for opening, expected in chain((("[", "a JSON array"),), repeat((",", "a comma or the end of the array"))):
        skip(_blank(text, at))
        if opening == "," and text[at : at + 1] == "]":
            break
        if text[at : at + 1] != opening:
            raise NotAnArray(expected, line)
        skip(_blank(text, at + 1))
        if opening == "[" and text[at : at + 1] == "]":
            break
        try:
            _, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            raise NotAnArray("an element that is whole JSON", line) from None
        start, first = offset, line
        element = text[at:end].encode("utf-8", "surrogateescape")
        skip(end)
        yield element, start, first
    if text[at + 1 :].strip():
        raise NotAnArray("nothing after the array", line)


def _blank(text: str, at: int) -> int:
    """Where the white space that begins here ends."""
    found = BLANK.match(text, at)
    return found.end() if found else at
