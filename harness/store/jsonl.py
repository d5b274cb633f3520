"""The tasks in a file, one after the other, each with its place: lines, or the elements of a JSON array."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from itertools import chain, repeat
from typing import BinaryIO, Protocol

from harness.benchmarks.files import LINE_MOST
from harness.model import Where

BOM = b"\xef\xbb\xbf"
BLANK = re.compile(r"[ \t\r\n]*")
BLOCK = 1 << 20
"""Bytes read at once."""
ARRAY_MOST = 2**30
"""Bytes of a file with an array, which is held in memory."""


class Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...


def plain_lines(file: BinaryIO, whole: Hash) -> Iterator[tuple[bytes, int, int]]:
    """Lines that are not blank, each with its offset and number, without white space at the ends.

    A byte order mark at the start is left out. `whole` takes up every byte of the file, in large blocks.
    """
    number, offset, rest, end = 0, 0, list[bytes](), False
    while not end:
        block = file.read(BLOCK)
        whole.update(block)
        rest.append(block)
        end = not block
        if not end and b"\n" not in block:
            if sum(map(len, rest)) > LINE_MOST:
                raise Unexpected(f"a line of at most {LINE_MOST >> 20} MB", number + 1)
            continue
        lines = b"".join(rest).split(b"\n")
        rest = [] if end else [lines.pop()]
        for raw in lines:
            number += 1
            line = raw.strip() if number > 1 else raw.removeprefix(BOM).strip()
            if line:
                yield line, offset + (raw.index(line) if len(line) < len(raw) else 0), number
            offset += len(raw) + 1


class Unexpected(Exception):
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
    if file.seek(0, os.SEEK_END) > ARRAY_MOST:
        raise Unexpected(f"an array of at most {ARRAY_MOST >> 20} MB", 1)
    file.seek(0)
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
            raise Unexpected(expected, line)
        skip(_blank(text, at + 1))
        if opening == "[" and text[at : at + 1] == "]":
            break
        try:
            _, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            raise Unexpected("an element that is whole JSON", line) from None
        start, first = offset, line
        element = text[at:end].encode("utf-8", "surrogateescape")
        skip(end)
        yield element, start, first
    if text[at + 1 :].strip():
        raise Unexpected("nothing after the array", line)


def _blank(text: str, at: int) -> int:
    """Where the white space that begins here ends."""
    found = BLANK.match(text, at)
    return found.end() if found else at
