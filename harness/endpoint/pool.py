"""Connections that serve one request after another, and an exchange over one, below aiohttp's session.

A session, its request and its response take a fifth of a request's CPU. Here aiohttp makes and keeps connections and
parses replies. The head of a request is made once. This depends on what aiohttp does not promise: its version has an
upper bound, and tests/endpoint/test_pool.py fails where a version differs.

A server may close an idle connection at any moment, and the next request may be on its way just then. Neither endpoint
nor request is at fault, so that is no failed try, and the request may be sent once more, over a new connection. And a
connection that sends something unrequested, as after two replies to one request, must not serve the next request,
or its user would get the answer of another.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from weakref import WeakKeyDictionary, WeakSet

import aiohttp
from aiohttp.http import HttpProcessingError

Stage = Literal["connecting", "renewing", "new", "used"]
"""The state of a task's connection: waits for any, waits for a new one; has a new one, has one that served before."""


class Reusing(aiohttp.TCPConnector):
    """A pool that drops a connection with unrequested bytes. `stages` are those of tasks that have requested one.

    A client that sets "renewing" gets a new connection next, whichever are idle. Bytes that come unrequested only after
    the next request has been sent cannot be distinguished from its reply.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._known: WeakSet[Any] = WeakSet()
        self.stages: WeakKeyDictionary[Any, Stage] = WeakKeyDictionary()

    async def _get(self, *args: Any) -> Any:
        """Return an idle connection or None, for `connect`."""
        return None if self.stages[asyncio.current_task()] == "renewing" else await super()._get(*args)

    async def connect(self, *args: Any, **options: Any) -> Any:
        """As aiohttp's, which checks only whether a connection is still open."""
        task = asyncio.current_task()
        if self.stages.get(task) != "renewing":
            self.stages[task] = "connecting"
        while True:
            connection = await super().connect(*args, **options)
            protocol = connection.protocol
            assert protocol is not None
            if protocol not in self._known:
                self._known.add(protocol)
                self.stages[task] = "new"
                return connection
            if not protocol.should_close:
                self.stages[task] = "used"
                return connection
            connection.close()


@dataclass(frozen=True, slots=True)
class Response:
    """A reply after its head. `headers` match in any case. On exit its connection can serve again, or is closed for
    unread bytes."""

    connection: Any
    status: int
    headers: Mapping[str, str]
    content: aiohttp.StreamReader

    def __enter__(self) -> Response:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.release()

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


async def exchange(connection: Any, request: aiohttp.ClientRequest, start: bytes, body: bytes) -> Response:
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
        while True:
            message, content = await protocol.read()
            if message.code >= 200 or message.code == 101:  # others announce the reply
                return Response(connection, message.code, message.headers, content)
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
