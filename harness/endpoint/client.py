"""One endpoint over HTTP: the only file that speaks it, and the one place where aiohttp's errors are mapped.

Requests are bytes, replies are read whole before anything is made of them, and redirects are not
followed, so that a key goes only to the address it was given for.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from types import TracebackType
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from harness.endpoint import replies
from harness.endpoint.address import Address, check, public_url, secrets
from harness.endpoint.deadlines import Deadlines
from harness.endpoint.sender import Received
from harness.errors import BadInput, CallError, EndpointStopped, HarnessError, MachineError, TransportFault
from harness.model import Completion

LOOPBACK = ("localhost", "127.0.0.1", "::1")
CONNECT_SECONDS = 30.0
LARGEST_REPLY = 2**26
"""Bytes, decompressed: far above any completion, and what memory bears for some replies at once."""


class Client:
    """An aiohttp session for one address. `connections` bounds the sockets; `timeout` a request, in seconds."""

    def __init__(self, address: Address, *, timeout: float, connections: int) -> None:
        check(address)
        parts = urlsplit(address.url)
        base = parts._replace(path=parts.path.rstrip("/").removesuffix("/chat/completions"))
        self._url = base._replace(path=base.path + "/chat/completions").geturl()
        self._public = public_url(self._url)
        self._proxy = _proxy(parts)
        self._address = address
        self._secrets = secrets(address, self._proxy, self._public)
        self._served: str | None = None
        headers = {**address.headers, "Content-Type": "application/json"}
        if address.key is not None:
            headers["Authorization"] = f"Bearer {address.key}"
        # A session's own headers cost less, but aiohttp shows them to a proxy, too: with one they go with each request.
        self._of_session = headers if self._proxy is None else None
        self._of_request = None if self._proxy is None else headers
        self._timeout = timeout
        self._deadlines = Deadlines(timeout, time.monotonic)
        self._patience = min(CONNECT_SECONDS, timeout)
        self.on_exhausted: Callable[[float], None] = lambda seconds: None
        self._connections = connections

    async def __aenter__(self) -> Client:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._connections, ssl=not self._address.insecure_tls),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._patience),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=self._of_session,
        )
        self._sweeper = asyncio.create_task(self._sweep())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sweeper.cancel()
        await self._session.close()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._deadlines.interval)
            self._deadlines.sweep()

    async def send(self, body: bytes, user: str = "") -> Received:
        """One try. Raises `TransportFault`, `Rejected` or `EndpointStopped` as the reply's class is.

        Raises `MachineError` where this machine has no file left for another connection.
        """
        task = self._deadlines.begin()
        try:
            async with self._session.post(
                self._url, data=body, headers=self._of_request, proxy=self._proxy, allow_redirects=False
            ) as response:
                content = await _whole(response)
            headers = response.headers
            if (replies.REQUESTS_LEFT in headers or replies.TOKENS_LEFT in headers) and (
                wait := replies.exhausted(headers)
            ):
                self.on_exhausted(wait)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise self._scrubbed(self._mapped(error)) from None
        except asyncio.CancelledError:
            if self._deadlines.passed(task):
                raise self._mapped(TimeoutError()) from None
            raise
        finally:
            self._deadlines.end(task)
        try:
            if 200 <= response.status < 300:
                completion = replies.completion(content)
            else:
                completion = replies.refused(response.status, response.headers, content, datetime.now(UTC))
        except HarnessError as error:
            raise self._scrubbed(self._named(error)) from None
        return Received(
            completion if completion.model == self._served else self._vetted(completion), self._address.shown
        )

    def _vetted(self, completion: Completion) -> Completion:
        """The same completion without a secret in the served model's name; one that has none is not vetted again."""
        model = completion.model
        if model is None:
            return completion
        shown = self._without_secrets(model)
        if shown != model:
            return replace(completion, model=shown)
        self._served = model
        return completion

    def _mapped(self, error: Exception) -> HarnessError:
        """An error of the transport in the harness's words."""
        match error:
            case OSError(errno=errno.EMFILE | errno.ENFILE):
                return MachineError(
                    f"{_reason(error)}: this machine has no file left for another of up to {self._connections} "
                    "connections: raise its limit (ulimit -n) or take a lower --concurrency"
                )
            case aiohttp.ConnectionTimeoutError():
                return TransportFault(
                    "connect", f"{self._public} takes no connection within {self._patience:g} s", unreachable=True
                )
            case TimeoutError():
                return TransportFault("timeout", f"no whole reply within {self._timeout:g} s")
            case aiohttp.ClientConnectorCertificateError():
                return EndpointStopped(
                    f"no trusted TLS connection to {self._public}: {_reason(error)} "
                    "(for a certificate of your own, LLM_INSECURE_TLS=1 turns the check off)"
                )
            case aiohttp.InvalidURL() | aiohttp.NonHttpUrlClientError():
                return EndpointStopped(f"{self._public} is not an address that requests can be sent to")
            case aiohttp.ClientProxyConnectionError() | aiohttp.ClientHttpProxyError():
                return TransportFault(
                    "proxy", f"the proxy for {self._public} does not serve: {_reason(error)}", unreachable=True
                )
            case aiohttp.ClientConnectorDNSError():
                return TransportFault("unknown_host", f"{self._public}: no address for {error.host}", unreachable=True)
            case aiohttp.ClientConnectorError():
                return TransportFault("connect", f"{self._public} does not answer: {_reason(error)}", unreachable=True)
            case aiohttp.ClientPayloadError():
                return TransportFault("truncated", "the reply broke off")
            case aiohttp.ClientResponseError():
                return TransportFault("bad_http", f"the reply is not HTTP: {_reason(error)}")
            case _:
                return TransportFault("connection", f"the connection broke: {_reason(error)}")

    def _named(self, error: HarnessError) -> HarnessError:
        """The error of a reply, with the address in it where that is what may be wrong."""
        match error:
            case TransportFault(unreachable=True):
                status = error.kind.removeprefix("http_")
                return TransportFault(error.kind, f"{self._public} answers {status}: {error.detail}", unreachable=True)
            case EndpointStopped():
                return type(error)(f"{self._public}: {error}")
            case _:
                return error

    def _scrubbed(self, error: HarnessError) -> HarnessError:
        """The same error without the key and other secrets, which some endpoints echo."""
        if isinstance(error, CallError):
            error.detail = self._without_secrets(error.detail)
        error.args = tuple(map(self._without_secrets, error.args))
        return error

    def _without_secrets(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


async def _whole(response: aiohttp.ClientResponse) -> bytes:
    """The body, as long as memory can be trusted with it; `ClientResponse.read` knows no limit."""
    blocks, size = [], 0
    while block := await response.content.readany():
        size += len(block)
        if size > LARGEST_REPLY:
            raise TransportFault("too_large", f"the reply is longer than {LARGEST_REPLY >> 20} MB")
        blocks.append(block)
    return b"".join(blocks)


def _reason(error: Exception) -> str:
    cause = getattr(error, "os_error", None) or error
    words = getattr(cause, "strerror", None) or getattr(cause, "message", None) or cause
    return replies.one_line(str(words)) or type(cause).__name__


def _proxy(target: SplitResult) -> str | None:
    """The proxy of the environment for this address; loopback never goes through one."""
    host = target.hostname or ""
    port = target.port or {"http": 80, "https": 443}[target.scheme]
    if host in LOOPBACK or host.startswith("127.") or proxy_bypass(f"{host}:{port}"):
        return None
    proxy = getproxies().get(target.scheme)
    if proxy is None:
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    try:
        check(Address(proxy))
    except BadInput:
        raise BadInput(f"the proxy in {target.scheme.upper()}_PROXY is not of the form http://HOST:PORT") from None
    return proxy
