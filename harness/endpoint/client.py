"""One endpoint over HTTP: the one place that maps the transport's errors.

Without a proxy, requests go over `wire`. With one, and where a call is no request of a run, they go over a session of
aiohttp, each over a connection of its own. Requests are bytes. Replies are read whole before they are judged, streamed
or not. Redirects are not followed, so that a key goes only to the address it was given for.
"""

from __future__ import annotations

import asyncio
import errno
import re
import socket
import ssl
import time
from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cached_property
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from msgspec import structs
from yarl import URL

from harness.defaults import STALL_SECONDS
from harness.endpoint import replies
from harness.endpoint.address import Address, Scrubber, check, public_url, secrets
from harness.endpoint.connect import connection
from harness.endpoint.deadlines import Deadlines
from harness.endpoint.error_phrases import one_line
from harness.endpoint.requested_wait import exhausted
from harness.endpoint.stream import END_REASONS, StreamedReply, looks_streamed, whole_stream
from harness.endpoint.transport import Received, is_framed
from harness.endpoint.wire import MAX_ERROR_BODY, NotConnected, Wire, Wires, head
from harness.errors import CallError, EndpointStopped, HarnessError, MachineError, TransportFault
from harness.model import Completion

VERSION = re.compile(r"/v\d")
"""How a part of a path begins that most addresses end in."""
PROXY_ERRORS = (aiohttp.ClientProxyConnectionError, aiohttp.ClientHttpProxyError)
FILES_USED_UP = (errno.EMFILE, errno.ENFILE)
CONNECT_SECONDS = 30.0
CROSSING_SECONDS = 0.25
"""The longest that a request and the end of its idle connection can cross on their way: a packet's way, with room.
A server that hangs up later has received the request."""
LONGEST_STREAM = 10.0
"""Bound of a stream that never pauses for long, in time-outs."""
LINGER_SECONDS = 0.1
"""How long a stream's end is awaited after its [DONE], so that the connection can serve again."""
PROXY_WANTS_CREDENTIALS = 407
ENDS = END_REASONS | replies.SETTLED | {None, replies.ONLY_THINKING, replies.TOOL_CALL, replies.UNCLOSED}
"""Finish reasons that are words of this program, and so no secret, even if a key is one of them."""
LARGEST_REPLY = 2**23
"""Bytes, decompressed: far above any completion, and small enough for memory to hold some replies at once."""
LARGEST_STREAM = 2**26
"""Bytes of a stream, in which each token may take some hundreds; its completion is within `LARGEST_REPLY`."""
MAX_WORDS = MAX_ERROR_BODY
"""Characters of an endpoint's own words in which secrets are looked for; the rest is left out."""

Response = Wire | aiohttp.ClientResponse
"""A reply after its head."""


class Client:
    """Connections to one address. `connections` bounds the sockets, `timeout` and `stall` are seconds.

    `timeout` bounds a request; if its reply streams, the time until the first byte. From then on only `stall` counts,
    the time without a single byte, since a long thought that streams is not dead; `LONGEST_STREAM` bounds the whole.
    `base`, `headers` and `proxy` are those of its requests, for further calls, `errors` what these may raise.
    `shares_with` is an open client of the same server, for its connections. `on_exhausted` is called with
    the seconds until a used-up quota resets.
    """

    _wires: Wires
    _session: aiohttp.ClientSession | None = None

    def __init__(
        self,
        address: Address,
        *,
        timeout: float,
        connections: int,
        stall: float = STALL_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        shares_with: Client | None = None,
        on_exhausted: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        check(address)
        parts = urlsplit(address.url)
        base = parts._replace(path=parts.path.rstrip("/").removesuffix("/chat/completions"))
        self.base = base
        self._url = base._replace(path=base.path + "/chat/completions").geturl()
        self._public = public_url(self._url)
        self._way = connection(address, connections)
        self.proxy = self._way.proxy
        self.errors: tuple[type[Exception], ...] = (TimeoutError, aiohttp.ClientError, OSError, *self._way.errors)
        self._interruptions: tuple[type[BaseException], ...] = (TransportFault, asyncio.CancelledError, *self.errors)
        self.shown = address.shown
        self.hide = Scrubber(secrets(address, self._way.via, self._public), self._public)
        self._served: str | None = None
        headers = {**address.headers, "Content-Type": "application/json"}
        if address.key is not None:
            headers["Authorization"] = f"Bearer {address.key}"
        self.headers = headers
        self.timeout = timeout
        self._stall = stall
        self._clock = clock
        self._deadlines = Deadlines(timeout, clock, stall)
        self._patience = min(CONNECT_SECONDS, timeout)
        self._on_exhausted = on_exhausted
        self._connections = connections
        self._shares_with = shares_with

    async def __aenter__(self) -> Client:
        if self._shares_with:
            self._wires, self._session = self._shares_with._wires, self._shares_with._session
        else:
            self._wires = Wires(self._way.trust, self._connections, LARGEST_REPLY)
            self._session = self.sessions() if self._way.via else None
        self._sweeper = asyncio.create_task(self._sweep())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sweeper.cancel()
        if self._shares_with is None:
            self._wires.close()
            if self._session is not None:
                await self._session.close()

    def sessions(self, read: float | None = None) -> aiohttp.ClientSession:
        """Return a session, which is to be closed; `read` are seconds between two pieces of a reply."""
        return aiohttp.ClientSession(
            connector=self._way.connector(),
            # For the lookup and all addresses of a host together; `sock_connect` would be for each in turn.
            timeout=aiohttp.ClientTimeout(total=None, connect=self._patience, sock_read=read),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    @cached_property
    def _target(self) -> tuple[URL, dict[str, str], bytes]:
        """Return the address and the headers of every request, and its head. Raise `aiohttp.InvalidURL`."""
        try:
            url, headers = URL(self._url), self.headers
            if url.user is not None:
                basic = b64encode(f"{url.user}:{url.password or ''}".encode("latin-1")).decode()
                url, headers = url.with_user(None), {**headers, "Authorization": f"Basic {basic}"}
            return url, headers, head(url, headers)
        except ValueError as error:
            raise aiohttp.InvalidURL(self._url) from error

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._deadlines.interval)
            self._deadlines.sweep()
            self._wires.sweep()

    async def send(self, body: bytes, user: str = "") -> Received:
        """Try a request once. Raise `TransportFault`, `Rejected` or `EndpointStopped` by the class of the reply.

        Raise `MachineError` if this machine has no file left for another connection.
        """
        task = self._deadlines.begin()
        begun = self._deadlines.began(task)
        streamed, first_token = None, None
        try:
            response = await self._posted(body, task, begun)
            try:
                if _streams(response):
                    streamed, first_token = await self._streamed(response, task)
                else:
                    content = await whole_body(response)
                    if looks_streamed(content) and response.status < 400:
                        streamed = whole_stream(content, LARGEST_STREAM, is_framed(response.headers))
            finally:
                self._release(response)
            headers = response.headers
            if wait := exhausted(headers, datetime.now(UTC)):
                self._on_exhausted(wait)
        except self.errors as error:
            error.__traceback__ = None  # aiohttp's reader keeps its error, whose frames would keep the reader
            unwatched = self._deadlines.stood_still(begun)
            raise self.scrubbed(self.mapped(error, unwatched)) from None
        except asyncio.CancelledError:
            passed = self._deadlines.passed(task)
            if passed is None:
                raise
            stalled = TransportFault("stalled", f"the stream stood still for {self._stall:g} s")
            raise stalled if passed == "stalled" else self._broken(TimeoutError()) from None
        finally:
            self._deadlines.end(task)
        try:
            if streamed is not None:
                completion = replies.without_end(replies.completion_of(streamed))
            else:
                completion = self._read(response, content, body)
            _check_size(completion)
        except HarnessError as error:
            raise self.scrubbed(self.named(error)) from None
        if completion.model != self._served or completion.refusal or completion.finish_reason not in ENDS:
            completion = self.vetted(completion)
        return Received(completion, self.shown, first_token)

    def _read(self, response: Response, content: bytes, body: bytes) -> Completion:
        """Return what a whole reply to `body` settles. Raise the error that it means otherwise."""
        if 200 <= response.status < 300:
            return replies.completion(content, response.headers.get("Content-Type", ""))
        if response.status == PROXY_WANTS_CREDENTIALS and self.proxy is not None:
            raise self._proxy_fault(f"status {response.status}")
        return replies.refused(response.status, response.headers, content, datetime.now(UTC), body)

    async def _posted(self, body: bytes, task: asyncio.Task[object], begun: float) -> Response:
        """Return a reply to its head. Send once more if the server closed a connection that it may have found idle.

        Only then: what a server has received belongs to the tries that are counted, paced and limited.
        """
        url, headers, start = self._target
        if self._session is not None:
            return await self._session.post(url, data=body, headers=headers, proxy=self.proxy, allow_redirects=False)
        await self._wires.places.acquire()
        try:
            if wire := self._wires.idle():
                try:
                    await wire.exchange(start, body)
                    return wire
                except aiohttp.ServerDisconnectedError as error:
                    crossed = self._clock() - begun <= CROSSING_SECONDS
                    if not (crossed and wire.hung_up):
                        raise
                    error.__traceback__ = None  # as above
            wire = await self._connected(url, task)  # a new one, which no server finds idle
            await wire.exchange(start, body)
            return wire
        except BaseException:
            self._wires.places.release()
            raise

    def _release(self, response: Response) -> None:
        """Let a connection serve again, or close it for unread bytes."""
        if isinstance(response, Wire):
            self._wires.keep(response)
        else:
            response.release()

    async def _connected(self, url: URL, task: asyncio.Task[object]) -> Wire:
        """Return a new connection. Raise `aiohttp.ConnectionTimeoutError`, also at the request's own deadline."""
        try:
            async with asyncio.timeout(self._patience):
                return await self._wires.connect(url)
        except TimeoutError as error:
            raise aiohttp.ConnectionTimeoutError from error
        except asyncio.CancelledError as error:
            if self._deadlines.passed(task) is None:
                raise
            raise aiohttp.ConnectionTimeoutError from error

    async def _streamed(self, response: Response, task: asyncio.Task[object]) -> tuple[dict[str, Any], float | None]:
        """Return a streamed reply as if it had come whole, and the seconds until its first piece of text or thought."""
        begun, first_token = self._deadlines.began(task), None
        content, reply, longest = response.content, StreamedReply(LARGEST_STREAM), self.timeout * LONGEST_STREAM
        try:
            while not reply.done and (block := await content.readany()):
                lasted = self._deadlines.touch(task) - begun
                reply.feed(block)
                if reply.speaks and first_token is None:
                    first_token = lasted
                if lasted > longest:
                    raise TransportFault("timeout", f"the stream has not ended within {longest:g} s")
        except self._interruptions as error:
            foreign = isinstance(error, asyncio.CancelledError) and self._deadlines.passed(task) is None
            if foreign or not reply.finished:
                raise
            response.close()  # the missing rest is no part of the answer
        whole = reply.whole(is_framed(response.headers))
        if not content.is_eof() and not response.closed:
            self._deadlines.end(task)
            await _linger(response)
        return whole, first_token

    def vetted(self, completion: Completion) -> Completion:
        """Remove secrets from the endpoint's own words: the served model, why the reply ended, a refusal.

        A model's name without any is not checked again.
        """
        hide, reason, refusal = self._hidden, completion.finish_reason, completion.refusal
        model = completion.model and hide(completion.model)
        if model == completion.model:
            self._served = model
        reason = reason if reason is None or reason in ENDS else hide(reason)
        return structs.replace(completion, model=model, finish_reason=reason, refusal=refusal and hide(refusal))

    def mapped(self, error: Exception, unwatched: bool = False) -> HarnessError:
        """Return the harness's error for one of the transport; `unwatched`: this machine stood still meanwhile.

        A connection that timed out then is no evidence against its address.
        """
        if self._way.errors:
            error = _behind_socks(error)
        match error:
            case OSError(errno=errno.EMFILE | errno.ENFILE):
                return MachineError(
                    f"{_reason(error)}: this machine has no file left for another connection: raise its limit "
                    "(ulimit -n) or take a lower --concurrency"
                )
            case _ if isinstance(error, (*self._way.errors, *PROXY_ERRORS)):
                return self._proxy_fault(_reason(error))
            case aiohttp.ConnectionTimeoutError():
                way = ", through its proxy" if self._way.via else ""
                detail = f"{self._public} takes no connection within {self._patience:g} s{way}"
                return TransportFault("connect", detail, unreachable=not unwatched)
            case ssl.SSLCertVerificationError():  # aiohttp's is one
                return EndpointStopped(
                    f"no trusted TLS connection to {self._public}: {_reason(error)} "
                    "(--ca-file takes a certificate of your own, LLM_INSECURE_TLS=1 turns the check off)"
                )
            case aiohttp.InvalidURL() | aiohttp.NonHttpUrlClientError():
                return EndpointStopped(f"{self._public} is not an address that requests can be sent to")
            case aiohttp.ClientConnectorDNSError() | socket.gaierror():
                host = getattr(error, "host", self.base.hostname)
                return TransportFault("unknown_host", f"{self._public}: no address for {host}", unreachable=True)
            case ssl.SSLError():
                detail = (
                    f"{self._public}: no TLS connection: {_reason(error)}; an address without TLS begins with http://"
                )
                return TransportFault("connect", detail, unreachable=True)
            case aiohttp.ClientConnectorError() | NotConnected():
                return TransportFault("connect", f"{self._public} does not answer: {_reason(error)}", unreachable=True)
            case _:
                return self._broken(error)

    def _broken(self, error: Exception) -> TransportFault:
        """Return the fault of a connection that was there."""
        match error:
            case TimeoutError():
                return TransportFault("timeout", f"no whole reply within {self.timeout:g} s")
            case aiohttp.ServerDisconnectedError():  # its own words may be half a head
                return TransportFault("connection", "the endpoint closed the connection before its reply")
            case aiohttp.ClientPayloadError():
                return TransportFault("truncated", "the reply broke off")
            case aiohttp.ClientResponseError():
                return TransportFault("bad_http", f"the reply is not HTTP: {_reason(error)}")
            case _:
                return TransportFault("connection", f"the connection broke: {_reason(error)}")

    def _proxy_fault(self, why: str) -> TransportFault:
        return TransportFault("proxy", f"the proxy for {self._public} does not serve: {why}", unreachable=True)

    def named(self, error: HarnessError) -> HarnessError:
        """Return the error of a reply, with the address in it if the address may be wrong."""
        hint = "" if VERSION.search(self._public) else "; most addresses end in /v1"
        match error:
            case TransportFault(foreign=True):
                return TransportFault(error.kind, f"{self._public}: {error.detail}{hint}", foreign=True)
            case TransportFault(unreachable=True):
                words = f"{self._public} answers {error.kind.removeprefix('http_')}: {error.detail}{hint}"
                return TransportFault(error.kind, words, unreachable=True)
            case EndpointStopped():
                return type(error)(f"{self._public}: {error}")
            case _:
                return error

    def scrubbed(self, error: HarnessError) -> HarnessError:
        """Remove the key and other secrets, which some endpoints echo, from an error."""
        if isinstance(error, CallError):
            error.detail = self._hidden(error.detail)
        error.args = tuple(map(self._hidden, error.args))
        return error

    def _hidden(self, text: str) -> str:
        """Return the beginning of foreign words without secrets: to look for them takes a second for 10 MB."""
        return self.hide(text[: 2 * MAX_WORDS])[:MAX_WORDS]  # no secret is cut in two before it is looked for


def _streams(response: Response) -> bool:
    kind = response.headers.get("Content-Type", "")
    return kind.partition(";")[0].strip().lower() == "text/event-stream" and 200 <= response.status < 300


async def _linger(response: Response) -> None:
    """Read to the end of a reply that is whole already: a connection with unread bytes cannot serve again.

    A cancellation meanwhile costs the connection, not the reply, which is billed and complete.
    """
    try:
        async with asyncio.timeout(LINGER_SECONDS):
            while await response.content.readany():
                pass
    except (TimeoutError, aiohttp.ClientError, OSError, asyncio.CancelledError):
        response.close()


def _check_size(completion: Completion) -> None:
    if len(completion.text) + len(completion.reasoning or "") > LARGEST_REPLY:
        raise _too_large()


async def whole_body(response: Response) -> bytes:
    """Read the body up to `LARGEST_REPLY`, of an error the first bytes; `StreamReader.read` has no limit."""
    content, blocks, size = response.content, list[bytes](), 0
    while size <= LARGEST_REPLY:
        if content.is_eof():  # then all that is left is there
            return b"".join([*blocks, content.read_nowait()])
        blocks.append(await content.readany())
        size += len(blocks[-1])
        if response.status >= 400 and size >= MAX_ERROR_BODY:
            return b"".join(blocks)[:MAX_ERROR_BODY]
    raise _too_large()


def _too_large() -> TransportFault:
    return TransportFault("too_large", f"the reply is longer than {LARGEST_REPLY >> 20} MB")


def _behind_socks(error: Exception) -> Exception:
    """Return Python's own error behind that of a SOCKS proxy, if aiohttp has a class for it without such a proxy."""
    cause = error.__cause__
    known = isinstance(cause, (socket.gaierror, ssl.SSLError))
    return cause if isinstance(cause, OSError) and (known or cause.errno in FILES_USED_UP) else error


def _reason(error: Exception) -> str:
    cause = getattr(error, "os_error", None) or error
    words = getattr(cause, "strerror", None) or getattr(cause, "message", None) or cause
    return one_line(str(words)) or type(cause).__name__
