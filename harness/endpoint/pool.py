"""Connections that serve one request after another, and an exchange over one, below aiohttp's session.

A session, its request and its response take a fifth of a request's CPU. Here aiohttp makes connections and parses
replies. Idle connections are kept here, and the head of a request is made once. This depends on what aiohttp does not
promise: its version has an upper bound, and tests/endpoint/test_pool.py fails where a version differs.

A server may close an idle connection at any moment, and the next request may be on its way just then. Neither endpoint
nor request is at fault, so that is no failed try, and the request may be sent once more, over a new connection. And a
connection that sends something unrequested, as after two replies to one request, must not serve the next request,
or its user would get the answer of another.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import HttpProcessingError

KEPT_SECONDS = 15.0
"""For how long an idle connection may serve again; servers close theirs after some time, too."""

MOST_INTERIM = 100
"""Of one reply. aiohttp parses all that comes, so without end they would take memory until the time-out."""


class _Protocol(ResponseHandler):
    """aiohttp's, which resumes reading, and parses nothing once more, after every read from a reply."""

    def resume_reading(self, resume_parser: bool = True) -> None:
        if self._reading_paused or self._buffer_paused:
            super().resume_reading(resume_parser)


class Reusing(aiohttp.TCPConnector):
    """aiohttp makes the connections and bounds their number; idle ones are kept here, where taking one is one call.

    One that has received unrequested bytes is not used again. Bytes that come unrequested only after the next request
    has been sent cannot be distinguished from its reply.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._factory: Any = partial(_Protocol, loop=self._loop)
        self._idle: deque[tuple[Any, float]] = deque()

    def idle(self) -> Any:
        """Return the connection that served last, of those that can serve again; None if there is none."""
        oldest = monotonic() - KEPT_SECONDS
        while self._idle:
            connection, since = self._idle.pop()
            if since >= oldest and not connection.protocol.should_close:
                return connection
            connection.close()
        return None

    def keep(self, connection: Any) -> None:
        """Take back a connection after a reply; close it if it has unread bytes, or a request waits for its place."""
        protocol = connection.protocol
        if protocol is None or protocol.should_close or self._waiters:
            connection.close()
        else:
            self._idle.append((connection, monotonic()))

    def sweep(self) -> None:
        """Close the connections that were idle for too long."""
        oldest = monotonic() - KEPT_SECONDS
        while self._idle and self._idle[0][1] < oldest:
            self._idle.popleft()[0].close()

    async def close(self, *, abort_ssl: bool = False) -> None:
        while self._idle:
            self._idle.pop()[0].close()
        await super().close(abort_ssl=abort_ssl)


@dataclass(slots=True)
class Response:
    """A reply after its head. `headers` match in any case. On exit its connection can serve again, or is closed for
    unread bytes."""

    connector: Reusing
    connection: Any
    status: int
    headers: Mapping[str, str]
    content: aiohttp.StreamReader

    def __enter__(self) -> Response:
        return self

    def __exit__(self, *_: object) -> None:
        self.connector.keep(self.connection)

    @property
    def closed(self) -> bool:
        return bool(self.connection.closed)

    def close(self) -> None:
        self.connection.close()


def head(request: aiohttp.ClientRequest) -> bytes:
    """Return the head of a request without a body, up to the number of its length. Raise `aiohttp.InvalidURL`."""
    through_proxy = request.proxy is not None and not request.is_ssl()
    target = str(request.url.with_user(None)) if through_proxy else request.url.raw_path_qs
    headers = [f"{name}: {value}" for name, value in request.headers.items() if name != "Content-Length"]
    lines = [f"{request.method} {target} HTTP/1.1", *headers, "Content-Length: "]
    if any(character in line for line in lines for character in "\r\n\0"):
        raise aiohttp.InvalidURL(request.url)
    return "\r\n".join(lines).encode()


async def exchange(
    connector: Reusing, connection: Any, request: aiohttp.ClientRequest, start: bytes, body: bytes
) -> Response:
    """Write a request, which starts with `head`, and return the reply after its head. Close the connection on errors.

    Raise aiohttp's errors of a session.
    """
    protocol = connection.protocol
    try:
        if not protocol.is_connected():
            lost = aiohttp.ClientConnectionResetError("closed before the request")
            raise aiohttp.ClientOSError(errno.ECONNRESET, "the connection was closed") from lost
        protocol.set_response_params(read_until_eof=True)
        protocol.transport.write(b"%b%d\r\n\r\n%b" % (start, len(body), body))
        for _ in range(MOST_INTERIM):
            message, content = await protocol.read()
            if message.code >= 200 or message.code == 101:  # others announce the reply
                return Response(connector, connection, message.code, message.headers, content)
        raise HttpProcessingError(message=f"{MOST_INTERIM} interim replies and no other")
    except HttpProcessingError as error:
        connection.close()
        raise aiohttp.ClientResponseError(request.request_info, (), status=error.code, message=error.message) from error
    except BaseException:
        connection.close()
        raise


def hung_up(error: Exception) -> bool:
    """Return whether the server closed the connection without a byte, as one does that finds it idle.

    If that came to light before the request was written, aiohttp names the write as the failure.
    """
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return type(error.message) is str  # else it is the half of a head that came
    return isinstance(error.__cause__, aiohttp.ClientConnectionResetError)
