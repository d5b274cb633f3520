"""HTTP/1.1 over connections that serve one request after another: an asyncio.Protocol over llhttp (`httptools`).

A session of aiohttp, its request and its response take a fifth of a request's CPU. Here a reply wakes its request once,
when it is whole; one that streams wakes it for its head and for each block.

A server may close an idle connection at any moment, and the next request may be on its way just then. Neither endpoint
nor request is at fault, so that is no failed try, and the request may be sent once more, over a new connection. And a
connection that sends something unrequested, as after two replies to one request, must not serve the next request,
or its user would get the answer of another. Bytes that come unrequested only after the next request has been sent
cannot be distinguished from its reply.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import zlib
from collections import deque
from collections.abc import Mapping
from functools import cache
from time import monotonic
from typing import Any

import aiohttp
from aiohappyeyeballs import start_connection
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser
from multidict import CIMultiDict
from yarl import URL

from harness.endpoint.transport import is_framed
from harness.errors import TransportFault

KEPT_SECONDS = 15.0
"""For how long an idle connection may serve again; servers close theirs after some time, too."""
KNOWN_SECONDS = 10.0
"""For how long the addresses of a host are not looked up again."""
NEXT_ADDRESS_SECONDS = 0.25
"""After this time the next address of a host is tried besides (RFC 8305)."""
MOST_INTERIM = 100
"""Replies that announce the reply, of one request."""
MOST_HEAD = 2**16
"""Bytes in a row that are no body: of a head, of what announces it, of a trailer."""
STEP = 2**20
"""Bytes that are decompressed at once."""
MAX_MEMBERS = 1000
"""Members of gzip in a reply: each takes time to begin, and may hold nothing."""
MAX_ERROR_BODY = 100_000
"""Bytes of a reply of status 400 or above that are read: its words are searched, and cleaned of secrets."""
MOST_UNREAD = 2**20
"""Bytes of a stream that wait to be read, before its connection pauses."""
WINDOW_BITS = {"gzip": 31, "x-gzip": 31, "deflate": 15}
UNASKED = frozenset({"br", "zstd", "compress"})


class Wire(asyncio.Protocol):
    """One connection, and the reply on it while there is one: status, headers in any case, and a body of at most
    `most` bytes, decompressed, that are not read. The body of an error ends after `MAX_ERROR_BODY`.

    `hung_up` tells of a request that failed that the server closed the connection without a byte of a reply.
    """

    def __init__(self, most: int) -> None:
        self.closed = True
        self.hung_up = self._busy = self.paused = False
        self._most = most
        self._transport: Any = None
        self._parser = HttpResponseParser(self)
        # What servers send and aiohttp reads, too.
        self._parser.set_dangerous_leniencies(
            lenient_headers=True, lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )
        self._waiter: asyncio.Future[None] | None = None

    # The request's side

    async def exchange(self, head: bytes, body: bytes) -> None:
        """Write a request. Return once the reply is whole, or the head of a stream is there; close it on errors.

        Raise aiohttp's errors of a session, or `TransportFault`.
        """
        self.status = self._unread = self._outside = self._interim = self._packed = self._members = 0
        self._ended = self._streams = self._framed = False
        self._error: Exception | None = None
        self.headers: CIMultiDict[str] = CIMultiDict()
        self._blocks: list[bytes] = []
        self._bits = 0
        self._inflate: Any = None
        if self.closed:
            self.hung_up = True
            raise aiohttp.ServerDisconnectedError
        self._busy = True
        self._transport.write(b"%b%d\r\n\r\n%b" % (head, len(body), body))
        await self._woken()

    @property
    def content(self) -> Wire:
        return self

    async def readany(self) -> bytes:
        """Return what is there of the body, after waiting for some; nothing at its end."""
        while not (self._blocks or self._ended):
            if self._error is not None:
                raise self._error
            await self._woken()
        return self.read_nowait()

    def read_nowait(self) -> bytes:
        blocks, self._blocks, self._unread = self._blocks, [], 0
        if self.paused:
            self.paused = False
            self._transport.resume_reading()
        return blocks[0] if len(blocks) == 1 else b"".join(blocks)

    def is_eof(self) -> bool:
        return self._ended

    def close(self) -> None:
        self.closed, self._busy = True, False
        if self._transport is not None:
            self._transport.close()

    async def _woken(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        except BaseException:
            self.close()
            raise

    # The transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self.closed = False

    def data_received(self, data: bytes) -> None:
        if not self._busy:
            return self.close()  # unrequested
        self._outside += len(data)
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            self.closed = True
            self._end()
        except HttpParserError as error:
            self.closed = True
            cause = error.__context__  # what a callback has raised
            self._fail(cause if isinstance(cause, TransportFault) else _not_http(str(error)))
        else:
            if self._busy and self._outside > MOST_HEAD:
                self._fail(_not_http("too long a head"))
        if self.closed:
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        if not self._busy:
            return
        if self.status and not self._framed and error is None:
            return self._end()
        self.hung_up = not (self.status or self._outside or error)
        if self.status:
            self._fail(aiohttp.ClientPayloadError("the reply broke off"))
        else:
            self._fail(error if isinstance(error, OSError) else aiohttp.ServerDisconnectedError())

    # The parser's side

    def on_message_begin(self) -> None:
        if not self._busy:
            self.closed = True  # more than the reply

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._busy and not self.status:  # else of a trailer
            self.headers.add(name.decode("latin1"), value.decode("utf-8", "surrogateescape"))

    def on_headers_complete(self) -> None:
        status, headers = self._parser.get_status_code(), self.headers
        if not self._busy:
            return
        if 100 <= status < 200 and status != 101:  # it announces the reply
            self._interim += 1
            if self._interim > MOST_INTERIM:
                raise TransportFault("bad_http", f"the reply is not HTTP: {MOST_INTERIM} interim replies and no other")
            return headers.clear()
        self.status = status
        self._framed = is_framed(headers)
        if coding := headers.get("Content-Encoding", "").strip().lower():
            if coding in UNASKED:
                raise TransportFault("bad_http", "the reply is compressed in a way that was not asked for")
            self._bits = WINDOW_BITS.get(coding, 0)
        if status < 400 and headers.get("Content-Type", "")[:17].lower() == "text/event-stream":
            self._streams = True
            self._wake()

    def on_body(self, block: bytes) -> None:
        self._outside = 0
        if not self._busy:
            return
        if not self._bits:
            return self._add(block)
        more = False
        self._packed += len(block)
        if self._packed > self._most:  # which may unpack to nothing
            raise self._too_large()
        try:
            while self._busy and (block or more):
                if self._inflate is None or self._inflate.eof:  # the first, or another member
                    self._members += 1
                    if self._members > MAX_MEMBERS:
                        raise TransportFault("bad_http", "the reply is compressed in too many members")
                    raw = self._bits == 15 and block[0] & 15 != 8  # some servers leave out the head of zlib
                    self._inflate = zlib.decompressobj(-15 if raw else self._bits)
                piece = self._inflate.decompress(block, STEP)
                self._add(piece)
                block = self._inflate.unconsumed_tail or self._inflate.unused_data
                more = len(piece) == STEP and not self._inflate.eof  # it may hold some of what it has read
        except zlib.error:
            raise TransportFault("truncated", "the reply broke off") from None

    def on_message_complete(self) -> None:
        if self._busy and self.status:
            self.closed |= not self._parser.should_keep_alive()
            self._end()

    def _add(self, block: bytes) -> None:
        is_error = self.status >= 400
        if is_error:
            block = block[: MAX_ERROR_BODY - self._unread]
        self._unread += len(block)
        if self._unread > self._most:
            self._blocks.clear()
            raise self._too_large()
        if block:
            self._blocks.append(block)
        if is_error and self._unread == MAX_ERROR_BODY:
            self.closed = True  # the rest is not read
            return self._end()
        if self._streams:
            self._wake()
            if self._unread > MOST_UNREAD and not self.paused:
                self.paused = True
                self._transport.pause_reading()

    def _too_large(self) -> TransportFault:
        return TransportFault("too_large", f"the reply is longer than {self._most >> 20} MB")

    def _end(self) -> None:
        self._ended, self._busy = True, False
        self._wake()

    def _fail(self, error: Exception) -> None:
        self._error, self._busy, self.closed = error, False, True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Wires:
    """The connections to one address, and those that are idle. `at_most` bounds the requests on them, and so them."""

    def __init__(self, trust: ssl.SSLContext | bool, at_most: int, longest: int) -> None:
        self.places = asyncio.Semaphore(at_most)
        self._trust = trust
        self._longest = longest
        self._idle: deque[tuple[Wire, float]] = deque()
        self._looking = asyncio.Lock()
        self._addresses: tuple[float, list[Any]] = (0.0, [])

    async def connect(self, url: URL) -> Wire:
        """Return a new connection. Raise `OSError`: of the lookup or TLS, else `NotConnected`."""
        loop, host = asyncio.get_running_loop(), str(url.raw_host).rstrip(".")
        tls: dict[str, Any] = {}
        if url.scheme == "https":
            context = self._trust if isinstance(self._trust, ssl.SSLContext) else _context(self._trust)
            tls = {"ssl": context, "server_hostname": host}
        async with self._looking:
            until, found = self._addresses
            if monotonic() > until:
                found = await loop.getaddrinfo(host, url.port, type=socket.SOCK_STREAM)
                self._addresses = monotonic() + KNOWN_SECONDS, found
        try:
            made = await start_connection(found, happy_eyeballs_delay=NEXT_ADDRESS_SECONDS, interleave=1, loop=loop)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            _, wire = await loop.create_connection(lambda: Wire(self._longest), sock=made, **tls)
        except ssl.SSLError:
            raise
        except OSError as error:
            raise NotConnected(error.errno, error.strerror or str(error)) from error
        return wire

    def idle(self) -> Wire | None:
        """Return the connection that served last, of those that can serve again; None if there is none."""
        oldest = monotonic() - KEPT_SECONDS
        while self._idle:
            wire, since = self._idle.pop()
            if since >= oldest and not wire.closed:
                return wire
            wire.close()
        return None

    def keep(self, wire: Wire) -> None:
        """Take back a connection after a reply; close it if it has unread bytes."""
        self.places.release()
        if wire.closed or wire.paused or not wire.is_eof():
            wire.close()
        else:
            self._idle.append((wire, monotonic()))

    def sweep(self) -> None:
        """Close the connections that were idle for too long."""
        oldest = monotonic() - KEPT_SECONDS
        while self._idle and self._idle[0][1] < oldest:
            self._idle.popleft()[0].close()

    def close(self) -> None:
        while self._idle:
            self._idle.pop()[0].close()


class NotConnected(OSError):
    """No connection was made."""


def head(url: URL, headers: Mapping[str, str]) -> bytes:
    """Return the head of a POST, up to the number of its length. Raise `aiohttp.InvalidURL` if it would be another."""
    if url.host is None:
        raise aiohttp.InvalidURL(url)
    every = CIMultiDict({"Host": str(url.host_port_subcomponent), "Accept": "*/*", "Accept-Encoding": "gzip, deflate"})
    every["User-Agent"] = aiohttp.http.SERVER_SOFTWARE
    every.update(headers)
    every.pop("Content-Length", None)
    lines = [f"POST {url.raw_path_qs} HTTP/1.1", *(f"{name}: {value}" for name, value in every.items())]
    if any(character in line for line in lines for character in "\r\n\0"):
        raise aiohttp.InvalidURL(url)
    return "\r\n".join([*lines, "Content-Length: "]).encode()


@cache
def _context(checked: bool) -> ssl.SSLContext:
    """Return the context with the system's certificates, which take 20 ms to load, or the one without any check."""
    context = ssl.create_default_context()
    if not checked:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _not_http(why: str) -> aiohttp.ClientResponseError:
    return aiohttp.ClientResponseError(None, (), status=400, message=why)  # type: ignore[arg-type]
