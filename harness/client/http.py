"""One endpoint over HTTP: the one place that maps the transport's errors.

Requests are bytes. Replies are read whole before they are judged, streamed or not. Redirects are
not followed, so that a key goes only to the address it was given for.

aiohttp's own session sends them. An HTTP protocol of this package's own saved a fifth of a
request's CPU, but it was the riskiest code of all.
"""

from __future__ import annotations

import asyncio
import errno
import re
import socket
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import orjson
from msgspec import structs

from harness.client import replies
from harness.client.address import Address, check, public_url, secrets
from harness.client.body import ENCODINGS, MAX_ERROR_BODY, Body, TooLarge, whole_body
from harness.client.connect import connection
from harness.client.error_phrases import one_line
from harness.client.requested_wait import exhausted
from harness.client.stream import END_REASONS, StreamedReply, looks_streamed, whole_stream
from harness.client.transport import Received, is_framed
from harness.defaults import STALL_SECONDS
from harness.errors import CallError, EndpointStopped, HarnessError, MachineError, TransportFault
from harness.model import Completion
from harness.scrubber import Scrubber

VERSION = re.compile(r"/v\d")
"""How a part of a path begins that most addresses end in."""
PROXY_ERRORS = (aiohttp.ClientProxyConnectionError, aiohttp.ClientHttpProxyError)
FILES_USED_UP = (errno.EMFILE, errno.ENFILE)
CONNECT_SECONDS = 30.0
STOOD_STILL = 2.0
"""Seconds by which a time-out comes late only if this machine, or its loop, stood still
meanwhile."""
UNSAFE_HEADER = re.compile("invalid .*header|content-length|transfer-encoding", re.IGNORECASE)
"""In aiohttp's words for a reply whose head could be read in two ways. It is unclear where such a
reply ends, and what is left of it would answer the request of another user: so it stops the run."""
LONGEST_STREAM = 10.0
"""Bound of a stream that never pauses for long, in time-outs."""
LINGER_SECONDS = 0.1
"""How long a stream's end is awaited after its [DONE], so that the connection can serve again."""
PROXY_WANTS_CREDENTIALS = 407
ENDS = (
    END_REASONS
    | replies.SETTLED
    | {None, replies.ONLY_THINKING, replies.TOOL_CALL, replies.UNCLOSED}
)
"""Finish reasons that are words of this program, and so no secret, even if a key is one of them."""
LONGEST_PACE = 60.0
"""Seconds, at most, for which the limits in the headers of an answer hold requests back. Some
endpoints say in every answer that nothing of a quota remains."""
LONGEST_HEADER = 2**16
LARGEST_REPLY = 2**23
"""Bytes, decompressed: far above any completion, and small enough for memory to hold some replies
at once."""
LARGEST_STREAM = 2**26
"""Bytes of a stream, in which each token may take some hundreds; its completion is within
`LARGEST_REPLY`."""
MAX_WORDS = MAX_ERROR_BODY
"""Characters of an endpoint's own words in which secrets are looked for; the rest is left out."""


class Client:
    """Connections to one address. `connections` bounds the sockets, `timeout` and `stall` are
    seconds.

    `timeout` bounds a request; if its reply streams, the time until the first byte and from then on
    the time without text or thought, `stall` the time without a single byte, and `LONGEST_STREAM`
    the whole. Comments and empty pieces keep a connection alive, but do not show that an answer is
    coming: so text has a bound of its own. `base` and `headers` are those of its requests, for
    further calls in `sessions`, `errors` what these may raise. `shares_with` is an open client of
    the same server, for its connections. `on_exhausted` is called with the seconds until a used-up
    quota resets.
    """

    _session: aiohttp.ClientSession

    def __init__(
        self,
        address: Address,
        *,
        timeout: float,
        connections: int,
        stall: float = STALL_SECONDS,
        shares_with: Client | None = None,
        on_exhausted: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        check(address)
        url = urlsplit(address.url)
        self.base = url._replace(path=url.path.rstrip("/").removesuffix("/chat/completions"))
        self._url = self.base._replace(path=self.base.path + "/chat/completions").geturl()
        self._public = public_url(self._url)
        self._connection = connection(address, connections)
        self.proxy = self._connection.proxy
        self.errors: tuple[type[Exception], ...] = (
            aiohttp.ClientError,
            OSError,
            *self._connection.errors,
        )
        self._interruptions: tuple[type[Exception], ...] = (TransportFault, *self.errors)
        self.shown = address.shown
        self.hide = Scrubber(secrets(address, self._connection.via, self._public))
        self._served: tuple[str | None, ...] = ()
        headers = {
            "Accept-Encoding": ENCODINGS,
            **address.headers,
            "Content-Type": "application/json",
        }
        if address.key is not None:
            headers["Authorization"] = f"Bearer {address.key}"
        self.headers = headers
        self.timeout = timeout
        self._stall = stall
        self._patience = min(CONNECT_SECONDS, timeout / 2)
        self._on_exhausted = on_exhausted
        self._shares_with = shares_with

    async def __aenter__(self) -> Client:
        if self._shares_with is None:
            # A proxy would get the headers of a session.
            self._session = self.sessions(headers=None if self.proxy else self.headers)
        else:
            self._session = self._shares_with._session
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._shares_with is None:
            await self._session.close()

    def sessions(
        self, read: float | None = None, headers: dict[str, str] | None = None
    ) -> aiohttp.ClientSession:
        """Return a session, which is to be closed; `read` are seconds between two pieces of a
        reply.

        Its replies are for `Body`, which unpacks them.
        """
        connector = self._connection.connector()
        return aiohttp.ClientSession(
            connector=connector,
            headers=headers,
            middlewares=(connector.send_again,),
            proxy=self.proxy,
            # For the lookup and all addresses of a host together; `sock_connect` would be for each
            # in turn.
            timeout=aiohttp.ClientTimeout(total=None, connect=self._patience, sock_read=read),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            max_field_size=LONGEST_HEADER,
        )

    async def send(self, body: bytes, user: str = "") -> Received:
        """Try a request once. Raise `TransportFault`, `Rejected` or `EndpointStopped` by the class
        of the reply.

        Raise `MachineError` if this machine has no file left for another connection.
        """
        loop = asyncio.get_running_loop()
        begun = loop.time()
        streamed, first_token = None, None
        try:
            async with asyncio.timeout_at(begun + self.timeout):
                response = await self._posted(body)
            try:
                if _streams(response):
                    streamed, first_token = await self._streamed(response, begun)
                else:
                    content = await whole_body(
                        response, LARGEST_REPLY, begun + self.timeout, self.errors
                    )
                    if looks_streamed(content) and response.status < 400:
                        streamed = whole_stream(
                            content, LARGEST_STREAM, is_framed(response.headers)
                        )
            finally:
                if not response.closed:  # it is read to its end
                    response.release()  # which closes the connection if it has unread bytes
            wait = exhausted(response.headers, datetime.now(UTC))
            if wait:
                if response.status < 400:
                    wait = min(wait, LONGEST_PACE)
                self._on_exhausted(wait)
        except self.errors as error:
            # aiohttp's reader keeps its error, whose frames would keep the reader.
            error.__traceback__ = None
            stood_still = loop.time() - begun > self._patience + STOOD_STILL
            raise self.scrubbed(self.mapped(error, stood_still)) from None
        try:
            if streamed is not None:
                completion = replies.completion_of(streamed, is_streamed=True, request=body)
            else:
                completion = self._read(response, content, body)
            check_size(completion)
        except HarnessError as error:
            raise self.scrubbed(self.named(error)) from None
        if (
            _answerer(completion) != self._served
            or completion.refusal
            or completion.finish_reason not in ENDS
        ):
            completion = self.vetted(completion)
        return Received(completion, self.shown, first_token)

    def _read(self, response: aiohttp.ClientResponse, content: bytes, body: bytes) -> Completion:
        """Return what a whole reply to `body` settles. Raise the error that it means otherwise."""
        if 200 <= response.status < 300:
            return replies.completion(content, response.headers.get("Content-Type", ""), body)
        if response.status == PROXY_WANTS_CREDENTIALS and self.proxy is not None:
            raise self._proxy_fault(f"status {response.status}")
        return replies.refused(response.status, response.headers, content, datetime.now(UTC), body)

    async def _posted(self, body: bytes) -> aiohttp.ClientResponse:
        """Return a reply after its head."""
        headers = self.headers if self.proxy else None
        try:
            return await self._session.post(
                self._url, data=body, headers=headers, allow_redirects=False
            )
        except aiohttp.ClientError:
            raise
        except ValueError as error:  # a header that would be two
            raise aiohttp.InvalidURL(self._public) from error

    async def _streamed(
        self, response: aiohttp.ClientResponse, begun: float
    ) -> tuple[dict[str, Any], float | None]:
        """Return a streamed reply as if it had come whole, and the seconds until its first piece of
        text or thought."""
        loop = asyncio.get_running_loop()
        body = Body(response, LARGEST_STREAM)
        reply = StreamedReply(LARGEST_STREAM)
        timeout, stall = self.timeout, self._stall
        longest = timeout * LONGEST_STREAM
        first_token = None
        spoken = begun
        limit = (begun + timeout, "timeout", f"no whole reply within {timeout:g} s")
        try:
            while not reply.done:
                block = await body.read(limit[0])
                if block is None:
                    break
                now = loop.time()
                reply.speaks = False
                reply.feed(block)
                if reply.speaks:
                    spoken = now
                    if first_token is None:
                        first_token = now - begun
                limit = min(
                    (now + stall, "stalled", f"the stream stood still for {stall:g} s"),
                    (spoken + timeout, "timeout", f"the stream had no content for {timeout:g} s"),
                    (begun + longest, "timeout", f"the stream has not ended within {longest:g} s"),
                )
        except self._interruptions as error:
            if not reply.finished:
                if type(error) is not TimeoutError:
                    raise error from None
                _, kind, detail = limit
                raise TransportFault(kind, detail) from None
            response.close()  # what is missing is no part of the answer
        data = reply.whole(is_framed(response.headers))
        if not response.content.is_eof() and not response.closed:
            await _linger(response)
        return data, first_token

    def vetted(self, completion: Completion) -> Completion:
        """Remove secrets from the endpoint's own words: who answered, why the reply ended, a
        refusal.

        Who answered is not checked again if it had no secret.
        """
        hide = self._hidden
        reason = completion.finish_reason
        if reason and reason not in ENDS:
            reason = hide(reason)
        refusal = completion.refusal
        answerer = _answerer(completion)
        model, provider, fingerprint = [name and hide(name) for name in answerer]
        if (model, provider, fingerprint) == answerer:
            self._served = answerer
        return structs.replace(
            completion,
            model=model,
            provider=provider,
            system_fingerprint=fingerprint,
            finish_reason=reason,
            refusal=refusal and hide(refusal),
        )

    def mapped(self, error: Exception, stood_still: bool = False) -> HarnessError:
        """Return the harness's error for one of the transport; `stood_still`: this machine did
        meanwhile.

        A connection that timed out then is no evidence against its address.
        """
        if self._connection.errors:
            error = _behind_socks(error)
        match error:
            case OSError(errno=errno.EMFILE | errno.ENFILE):
                return MachineError(
                    f"{_reason(error)}: this machine has no file left for another connection: raise"
                    " its limit (ulimit -n) or take a lower --concurrency"
                )
            case _ if isinstance(error, (*self._connection.errors, *PROXY_ERRORS)):
                return self._proxy_fault(_reason(error))
            case aiohttp.ConnectionTimeoutError():
                route = ", through its proxy" if self._connection.via else ""
                detail = f"{self._public} takes no connection within {self._patience:g} s{route}"
                return TransportFault("connect", detail, unreachable=not stood_still, billed=False)
            case ssl.SSLCertVerificationError():  # aiohttp's is one
                return replies.Denied(
                    f"no trusted TLS connection to {self._public}: {_reason(error)} (--ca-file"
                    " takes a certificate of your own, LLM_INSECURE_TLS=1 turns the check off)"
                )
            case aiohttp.InvalidURL() | aiohttp.NonHttpUrlClientError():
                return EndpointStopped(
                    f"{self._public} is not an address that requests can be sent to"
                )
            case aiohttp.ClientConnectorDNSError() | socket.gaierror():
                host = getattr(error, "host", self.base.hostname)
                return TransportFault(
                    "unknown_host", f"{self._public}: no address for {host}", unreachable=True
                )
            case ssl.SSLError():
                detail = (
                    f"{self._public}: no TLS connection: {_reason(error)}; an address without TLS"
                    " begins with http://"
                )
                return TransportFault("connect", detail, unreachable=True)
            case aiohttp.ClientConnectorError():
                return TransportFault(
                    "connect", f"{self._public} does not answer: {_reason(error)}", unreachable=True
                )
            case _:
                return self._broken(error)

    def _broken(self, error: Exception) -> HarnessError:
        """Return the error of a connection that was there."""
        match error:
            case TimeoutError():
                return TransportFault("timeout", f"no whole reply within {self.timeout:g} s")
            case aiohttp.ServerDisconnectedError():  # its own words may be half a head
                return TransportFault(
                    "connection", "the endpoint closed the connection before its reply"
                )
            case aiohttp.ClientPayloadError():
                return TransportFault("truncated", "the reply broke off")
            case aiohttp.ClientResponseError() if UNSAFE_HEADER.search(error.message):
                header = " ".join(error.message.split()).rstrip(" ^")
                return EndpointStopped(
                    f"{self._public}: the head of a reply is refused, since it can be read in two"
                    f" ways: {one_line(header)}; the server, or a proxy in front of it, has to be"
                    " mended"
                )
            case aiohttp.ClientResponseError():
                return TransportFault("bad_http", f"the reply is not HTTP: {_reason(error)}")
            case _:
                return TransportFault("connection", f"the connection broke: {_reason(error)}")

    def _proxy_fault(self, why: str) -> TransportFault:
        return TransportFault(
            "proxy", f"the proxy for {self._public} does not serve: {why}", unreachable=True
        )

    def named(self, error: HarnessError) -> HarnessError:
        """Return the error of a reply, with the address in it if the address may be wrong."""
        hint = "" if VERSION.search(self._public) else "; most addresses end in /v1"
        match error:
            case TransportFault(foreign=True):
                return TransportFault(
                    error.kind, f"{self._public}: {error.detail}{hint}", foreign=True
                )
            case TransportFault(unreachable=True):
                status = error.kind.removeprefix("http_")
                detail = f"{self._public} answers {status}: {error.detail}{hint}"
                return TransportFault(error.kind, detail, unreachable=True)
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
        """Return the beginning of foreign words without secrets: to look for them takes a second
        for 10 MB."""
        # Twice as many, so that no secret is cut in two before it is looked for.
        return self.hide(text[: 2 * MAX_WORDS])[:MAX_WORDS]


def check_size(completion: Completion) -> None:
    """Raise `TooLarge` for a completion of more characters than `LARGEST_REPLY`, its tool calls and
    log-probabilities counted as JSON."""
    size = len(completion.text) + len(completion.reasoning or "")
    if completion.tool_calls or completion.logprobs:
        calls = [call.wire for call in completion.tool_calls]
        size += len(orjson.dumps([calls, completion.logprobs]))
    if size > LARGEST_REPLY:
        raise TooLarge(LARGEST_REPLY)


def _answerer(completion: Completion) -> tuple[str | None, ...]:
    return completion.model, completion.provider, completion.system_fingerprint  # as in `ANSWERER`


def _streams(response: aiohttp.ClientResponse) -> bool:
    if not 200 <= response.status < 300:
        return False
    kind = response.headers.get("Content-Type", "")
    return kind.partition(";")[0].strip().lower() == "text/event-stream"


async def _linger(response: aiohttp.ClientResponse) -> None:
    """Read to the end of a reply that is whole already: a connection with unread bytes cannot serve
    again.

    A cancellation meanwhile costs the connection, not the reply, which is billed and complete.
    """
    try:
        async with asyncio.timeout(LINGER_SECONDS):
            while await response.content.readany():
                pass
    except (aiohttp.ClientError, OSError, asyncio.CancelledError):
        response.close()


def _behind_socks(error: Exception) -> Exception:
    """Return Python's own error behind that of a SOCKS proxy, if aiohttp has a class for it without
    such a proxy."""
    cause = error.__cause__
    if isinstance(cause, (socket.gaierror, ssl.SSLError)):
        return cause
    if isinstance(cause, OSError) and cause.errno in FILES_USED_UP:
        return cause
    return error


def _reason(error: Exception) -> str:
    cause = getattr(error, "os_error", None) or error
    message = getattr(cause, "strerror", None) or getattr(cause, "message", None) or cause
    return one_line(str(message)) or type(cause).__name__
