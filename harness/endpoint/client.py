"""One endpoint over HTTP: the only file that speaks it, and the one place where aiohttp's errors are mapped.

Requests are bytes, replies are read whole before anything is made of them, and redirects are not
followed, so that a key goes only to the address it was given for.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Protocol
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from harness.endpoint import replies
from harness.errors import BadInput, CallError, EndpointStopped, HarnessError, TransportFault
from harness.model import Completion

LOOPBACK = ("localhost", "127.0.0.1", "::1")
CONNECT_SECONDS = 30.0
SHORTEST_SECRET = 6
"""Characters; shorter keys (`EMPTY`, `none`) are placeholders of local servers, and ordinary words."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where requests go. `url` is the base (".../v1"); `key` never appears in a representation."""

    url: str
    key: str | None = None
    insecure_tls: bool = False

    def __repr__(self) -> str:
        return f"Address({public_url(self.url)!r})"


class Sender(Protocol):
    """The seam: what the rest of the harness needs of a client, and what tests put in its place."""

    async def send(self, body: bytes) -> Completion: ...


def public_url(url: str) -> str:
    """The address without credentials, query and fragment."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{host}{f':{parts.port}' if parts.port else ''}{parts.path}".rstrip("/")


def check(address: Address) -> None:
    """Raises `BadInput` for an address or key that no request could be sent with."""
    try:
        parts = urlsplit(address.url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable = False
    if not usable:
        raise BadInput("the endpoint's address is not of the form http(s)://HOST[:PORT]/v1")
    if address.key is not None and not (address.key.isascii() and address.key.isprintable() and " " not in address.key):
        raise BadInput("the key has characters that no key has (spaces, line ends, or non-ASCII): set it again")


class Client:
    """An aiohttp session for one address. `connections` bounds the sockets; `timeout` a request, in seconds."""

    def __init__(self, address: Address, *, timeout: float, connections: int) -> None:
        check(address)
        parts = urlsplit(address.url)
        base = parts._replace(path=parts.path.rstrip("/").removesuffix("/chat/completions"))
        self._url = base._replace(path=base.path + "/chat/completions").geturl()
        self._public = public_url(self._url)
        self._proxy = _proxy(parts.scheme, parts.hostname or "")
        self._address = address
        self._timeout = timeout
        self._connections = connections

    async def __aenter__(self) -> Client:
        headers = {"Content-Type": "application/json"}
        if self._address.key is not None:
            headers["Authorization"] = f"Bearer {self._address.key}"
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._connections, ssl=not self._address.insecure_tls),
            timeout=aiohttp.ClientTimeout(total=self._timeout, sock_connect=min(CONNECT_SECONDS, self._timeout)),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=headers,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def send(self, body: bytes) -> Completion:
        """One try. Raises `TransportFault`, `Rejected` or `EndpointStopped` as the reply's class is."""
        try:
            async with self._session.post(self._url, data=body, proxy=self._proxy, allow_redirects=False) as response:
                content = await response.read()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise self._mapped(error) from error
        try:
            if response.status == 200:
                return replies.completion(content)
            return replies.refused(response.status, response.headers, content, datetime.now(UTC))
        except HarnessError as error:
            raise self._named(error) from None

    def _mapped(self, error: Exception) -> TransportFault | EndpointStopped:
        """An error of the transport in the harness's words."""
        match error:
            case TimeoutError():
                return TransportFault("timeout", f"no whole reply within {self._timeout:g} s")
            case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientConnectorSSLError() | ssl.SSLError():
                return EndpointStopped(
                    f"no trusted TLS connection to {self._public}: {_reason(error)} "
                    "(for a certificate of your own, LLM_INSECURE_TLS=1 turns the check off)"
                )
            case aiohttp.InvalidURL() | aiohttp.NonHttpUrlClientError():
                return EndpointStopped(f"{self._public} is not an address that requests can be sent to")
            case aiohttp.ClientProxyConnectionError() | aiohttp.ClientHttpProxyError():
                return TransportFault("proxy", f"the proxy does not serve: {_reason(error)}", unreachable=True)
            case aiohttp.ClientConnectorDNSError():
                return TransportFault("unknown_host", f"no address for the host of {self._public}", unreachable=True)
            case aiohttp.ClientConnectorError():
                return TransportFault("connect", f"{self._public} does not answer: {_reason(error)}", unreachable=True)
            case aiohttp.ClientPayloadError():
                return TransportFault("truncated", "the reply broke off")
            case _:
                return TransportFault("connection", f"the connection broke: {_reason(error)}")

    def _named(self, error: HarnessError) -> HarnessError:
        """The same error with the address in it where that is what is wrong, and never with the key,
        which some endpoints echo."""
        match error:
            case CallError():
                error.detail = self._without_key(error.detail)
                if isinstance(error, TransportFault) and error.unreachable:
                    error.detail = f"{self._public} answers {error.kind.removeprefix('http_')}: {error.detail}"
                error.args = (f"{error.kind}: {error.detail}",)
            case _:
                error.args = (f"{self._public}: {self._without_key(str(error))}",)
        return error

    def _without_key(self, text: str) -> str:
        key = self._address.key
        return text.replace(key, "***") if key and len(key) >= SHORTEST_SECRET else text


def _reason(error: Exception) -> str:
    cause = getattr(error, "os_error", None) or error
    return getattr(cause, "strerror", None) or str(cause) or type(cause).__name__


def _proxy(scheme: str, host: str) -> str | None:
    """The proxy of the environment for this host; loopback never goes through one."""
    if host in LOOPBACK or host.startswith("127.") or proxy_bypass(host):
        return None
    return getproxies().get(scheme)
