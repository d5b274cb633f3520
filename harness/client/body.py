"""The body of a reply as it comes: bounded, and unpacked here, where a header may be wrong about
it.

aiohttp loses what has come of a body that it cannot unpack, and refuses plain text that is said to
be packed.
"""

from __future__ import annotations

import asyncio
import math
import zlib
from itertools import dropwhile

import aiohttp
from aiohttp import hdrs

from harness.client.objects import object_of
from harness.client.replies import decoded
from harness.errors import TransportFault

ENCODINGS = "gzip, deflate"
"""What requests accept, as a header."""
PACKED = frozenset({"gzip", "x-gzip", "deflate"})
HEADED, BARE = 47, -15
"""The formats, as zlib numbers them: its own or that of gzip, which it finds out, and the former
without its head."""
STEP = 2**20
"""Bytes that are unpacked at once."""
MAX_MEMBERS = 1000
"""Members of gzip in a reply: each takes time to begin, and may hold nothing."""
MAX_ERROR_BODY = 100_000
"""Bytes of a reply of status 400 or above that are read: its words are searched, and cleaned of
secrets."""
LOOK_SECONDS = 1.0
"""How often a reader that waits looks whether its connection is still open."""
DONE = b"data: [DONE]"


class TooLarge(TransportFault):
    """`last` are the last bytes that were unpacked of a body that is longer than `largest`."""

    def __init__(self, largest: float, last: bytes = b"") -> None:
        super().__init__("too_large", f"the reply is longer than {int(largest) >> 20} MB")
        self.last = last


class Unpacker:
    """Undoes the content encoding `coding`. What is not packed, whatever its header says, passes as
    it is.

    Raise `TooLarge` beyond `largest` bytes, before or after unpacking.
    """

    def __init__(self, coding: str, largest: float) -> None:
        coding = coding.strip().lower()
        self._is_packed = coding in PACKED
        self._may_be_bare = coding == "deflate"  # some servers leave out the head of zlib
        self._largest = largest
        self._read = self._size = self._members = 0
        self._member: zlib._Decompress | None = None

    def unpack(self, block: bytes) -> bytes:
        self._read += len(block)
        if self._read > self._largest:
            raise TooLarge(self._largest, b"" if self._is_packed else block)
        if not self._is_packed:
            return block
        try:
            return self._unpacked(block)
        except zlib.error:
            if self._size or self._read > len(block):
                raise TransportFault("truncated", "the reply broke off") from None
            self._is_packed = False
            return block

    def _unpacked(self, block: bytes) -> bytes:
        pieces: list[bytes] = []
        has_more = False
        while block or has_more:
            member = self._member
            if member is None or member.eof:
                member = self._member = self._next_member(block[0])
            piece = member.decompress(block, STEP)
            pieces.append(piece)
            self._size += len(piece)
            if self._size > self._largest:
                raise TooLarge(self._largest, b"".join(pieces))
            block = member.unconsumed_tail or member.unused_data
            has_more = len(piece) == STEP and not member.eof  # it may hold some of what it has read
        return b"".join(pieces)

    def _next_member(self, first: int) -> zlib._Decompress:
        """Return what unpacks a member, by its first byte. Raise `zlib.error` if that begins
        none."""
        self._members += 1
        if self._members > MAX_MEMBERS:
            raise TransportFault("bad_http", "the reply is compressed in too many members")
        if first == 0x1F or first & 15 == 8:
            return zlib.decompressobj(HEADED)
        if self._may_be_bare:
            return zlib.decompressobj(BARE)
        raise zlib.error


class Body:
    """A reply's body, of at most `largest` bytes. Raise aiohttp's errors, or `TransportFault`."""

    def __init__(self, response: aiohttp.ClientResponse, largest: float = math.inf) -> None:
        self._response = response
        self._unpacker = Unpacker(response.headers.get(hdrs.CONTENT_ENCODING, ""), largest)

    async def read(self, until: float) -> bytes | None:
        """Return what has come, after waiting for some; None at the end. Raise `TimeoutError` at a
        time of the loop."""
        content = self._response.content
        if content.at_eof():
            return None
        if content.is_eof():  # then all that is left is there
            block = content.read_nowait()
        else:
            block = await self._wait(until)
        return self._unpacker.unpack(block) if block else None

    async def _wait(self, until: float) -> bytes:
        """Wait for a block, also for that of a connection which aiohttp has closed for a fault
        within the body: it leaves the reader waiting."""
        loop, response = asyncio.get_running_loop(), self._response
        while True:
            try:
                async with asyncio.timeout_at(min(until, loop.time() + LOOK_SECONDS)) as look:
                    # Else a flood, whose next block is always there, is read without a break for
                    # anything else: a second signal did not end its run.
                    await asyncio.sleep(0)
                    return await response.content.readany()
            except RuntimeError as error:
                # How aiohttp says that the connection was closed before it was read.
                raise aiohttp.ClientPayloadError(str(error)) from None
            except TimeoutError:
                if not look.expired():
                    raise
                if response.connection is None or response.connection.closed:
                    raise aiohttp.ClientPayloadError from None
                if loop.time() >= until:
                    raise


async def whole_body(
    response: aiohttp.ClientResponse,
    largest: int,
    until: float,
    errors: tuple[type[Exception], ...],
) -> bytes:
    """Return a body to its end, of a whole answer the JSON object alone, and of an error the
    beginning.

    One that ends in one of `errors` counts if a whole answer is there, which is paid for.
    """
    is_error = response.status >= 400
    body = Body(response, MAX_ERROR_BODY if is_error else largest)
    blocks: list[bytes] = []
    try:
        while (block := await body.read(until)) is not None:
            blocks.append(block)
    except TooLarge as fault:
        if not is_error:
            raise
        return b"".join([*blocks, fault.last])[:MAX_ERROR_BODY]
    except errors:
        answer = whole_answer(b"".join(blocks)) if 200 <= response.status < 300 else None
        if answer is None:
            raise
        return answer
    content = b"".join(blocks)
    text = content.strip()
    if text[:1] == b"{" and text[-1:] == b"}":
        return content
    return whole_answer(text) or content


def whole_answer(body: bytes) -> bytes | None:
    """Return the JSON object of a body that holds a whole completion, with nothing around it but
    white space, comments of a stream and its end; None for any other body, as two objects or a
    chunk of a stream."""
    lines = list(dropwhile(_is_around, body.split(b"\n")))
    text = b"\n".join([*dropwhile(_is_around, reversed(lines))][::-1])
    data = decoded(text) if text.lstrip().startswith(b"{") else None
    choices = object_of(data).get("choices")
    if type(choices) is not list or not choices:
        return None
    is_chunk = any(type(choice) is not dict or "delta" in choice for choice in choices)
    return None if is_chunk else text


def _is_around(line: bytes) -> bool:
    return line.startswith(b":") or line.strip() in (b"", DONE)
