"""The way of a connection and the certificates that it trusts: of the environment and of an
address.

Connections serve one request after another. A server may send something unrequested on one, such as
its reply once more, and the next user would get the answer of another; or it may close one that is
idle just when the next request is on its way. `Connector` looks for both before each further
request. An unrequested reply that comes after that look cannot be distinguished from the reply;
after an end, the request is sent once more.

Proxies are read as urllib reads them (HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY, in lower case
too). In addition, NO_PROXY takes blocks of IP addresses, and hosts that no proxy can know never go
through one: loopback, and names without a dot, which belong to a cluster.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_address, ip_network
from types import ModuleType
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass
from weakref import WeakSet

import aiohttp

from harness.client.address import Address, check, public_url
from harness.errors import BadInput, to_install

SOCKS = {
    "socks": ("SOCKS5", True),
    "socks5": ("SOCKS5", False),
    "socks5h": ("SOCKS5", True),
    "socks4": ("SOCKS4", False),
    "socks4a": ("SOCKS4", True),
}
"""Scheme of a proxy: version, and whether the proxy resolves names (curl's manual, CURLOPT_PROXY).
`socks` is what desktops write."""
SOCKS_PORT = 1080
IDLE_SECONDS = 4.0
"""For how long an idle connection may serve again: many servers (uvicorn, Node) close theirs after
5 s, and a request that is on its way then is lost."""
CROSSING_SECONDS = 0.25
"""The longest that a request and the end of its idle connection can cross on their way: a packet's
way, with room."""
PROBE_SECONDS = 60
"""Seconds of silence after which TCP probes a connection, so that no NAT forgets it during a long
reply."""
PROBE_OPTION = getattr(socket, "TCP_KEEPIDLE", getattr(socket, "TCP_KEEPALIVE", None))
"""The name on Linux and Windows, and that on macOS."""
LONGEST_CREDENTIAL = 255
"""Characters of a name or password (RFC 1929)."""
DIRECTLY = "directly"
UNCHECKED = (
    ", without checking its certificate (LLM_INSECURE_TLS=1): anybody on the way can read the key"
)
CA_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""Variables of OpenSSL, requests and curl: certificates that are trusted in addition to the
system's."""
CA_FOLDERS = "SSL_CERT_DIR"
"""OpenSSL reads it itself."""


class Connector(aiohttp.TCPConnector):
    """Gives an idle connection to a request only if nothing came on it and it is still open, and
    once at most."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._served: WeakSet[asyncio.BaseProtocol] = WeakSet()
        self._on_served: set[aiohttp.ClientRequest] = set()

    async def connect(self, req: aiohttp.ClientRequest, *args: Any, **options: Any) -> Any:
        while True:
            connection = await super().connect(req, *args, **options)
            assert connection.transport is not None
            protocol = connection.transport.get_protocol()
            if protocol not in self._served:
                self._served.add(protocol)
                return connection
            is_dirty = getattr(protocol, "should_close", True) or _has_unread(connection.transport)
            if not (is_dirty or req in self._on_served):
                self._on_served.add(req)
                return connection
            connection.close()

    async def send_again(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Send a request whose connection its server may have found idle again, over a new one: a
        middleware.

        Only that: the server hung up at once, without a byte of a reply. What a server has received
        otherwise belongs to the tries that are counted, paced and limited.
        """
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            return await handler(request)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
            has_crossed = loop.time() - begun <= CROSSING_SECONDS
            if not (has_crossed and _found_closed(error) and request in self._on_served):
                raise
            return await handler(request)
        finally:
            self._on_served.discard(request)


def _found_closed(error: aiohttp.ClientError) -> bool:
    """Return whether a connection was closed before the request was written, or without a byte of a
    reply."""
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return isinstance(error.message, str)  # else it is what has come
    return isinstance(error.__cause__, aiohttp.ClientConnectionResetError)


def _has_unread(transport: asyncio.Transport) -> bool:
    """Return whether bytes, or the end of the connection, wait to be read."""
    poll = select.poll()
    poll.register(transport.get_extra_info("socket"), select.POLLIN)
    return bool(poll.poll(0))


def probed_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """Return a new socket for an address, with TCP's probes."""
    family, kind, protocol, *_ = address
    new = socket.socket(family, kind, protocol)
    new.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if PROBE_OPTION is not None:
        new.setsockopt(socket.IPPROTO_TCP, PROBE_OPTION, PROBE_SECONDS)
    return new


@dataclass(frozen=True, slots=True)
class Connection:
    """`connector` makes a session's connector, within the running loop; `route` is for messages;
    `trust` is aiohttp's `ssl`.

    `proxy` is for aiohttp, which speaks to HTTP proxies itself; `via` is any proxy. Connector and
    proxies may hold credentials, hence none is shown. `errors` are those of a SOCKS proxy, which
    are no errors of aiohttp's.
    """

    connector: Callable[[], Connector] = field(repr=False)
    route: str
    trust: ssl.SSLContext | bool = True
    proxy: str | None = field(default=None, repr=False)
    via: str | None = field(default=None, repr=False)
    errors: tuple[type[Exception], ...] = ()


def connection(address: Address, connections: int) -> Connection:
    """Return the connection to an address that has passed `check`. `connections` bounds the
    sockets.

    Raise `BadInput` for a proxy or a file of certificates that cannot be used.
    """
    target = urlsplit(address.url)
    trust = _trust(address, target)
    options: dict[str, Any] = {
        "limit": connections,
        "ssl": trust,
        "keepalive_timeout": IDLE_SECONDS,
        "socket_factory": probed_socket,
    }
    name, proxy = _proxy(target)
    unchecked = ""
    if address.insecure_tls and target.scheme == "https":
        unchecked = UNCHECKED
    if proxy is None:
        return Connection(partial(Connector, **options), DIRECTLY + unchecked, trust)
    route = f"through {public_url(proxy)} ({name}){unchecked}"
    if urlsplit(proxy).scheme not in SOCKS:
        return Connection(partial(Connector, **options), route, trust, proxy=proxy, via=proxy)
    try:
        import aiohttp_socks as socks
    except ImportError:
        raise BadInput(
            f"{name} names a SOCKS proxy, for which a package is missing:"
            f" {to_install('behavior-harness[socks]')}"
        ) from None
    errors = (socks.ProxyError, socks.ProxyConnectionError, socks.ProxyTimeoutError)
    connector = _by_socks(socks, urlsplit(proxy), options)
    return Connection(connector, route, trust, via=proxy, errors=errors)


def usable(address: Address) -> None:
    """Raise `BadInput` for an address, key, proxy or file of certificates that no request could be
    sent with."""
    check(address)
    connection(address, 1)


# Proxies


def _proxy(target: SplitResult) -> tuple[str, str | None]:
    """Return the proxy of the environment for this address, and the variable that names it."""
    proxies = getproxies()
    scheme = target.scheme if proxies.get(target.scheme) else "all"
    if not proxies.get(scheme) or _goes_directly(target, proxies.get("no", "")):
        return "", None
    name = f"{scheme.upper()}_PROXY"
    proxy = proxies[scheme]
    if "://" not in proxy:
        proxy = f"http://{proxy}"
    try:
        url = urlsplit(proxy)
        if url.scheme in SOCKS:
            check(Address(url._replace(scheme="http").geturl()))
            user = unquote(url.username or "")
            password = unquote(url.password or "")
            longest = max(len(user), len(password))
            usable = (user + password).isascii() and longest <= LONGEST_CREDENTIAL
        else:
            check(Address(proxy))
            usable = True
    except (BadInput, ValueError):
        usable = False
    if not usable:
        raise BadInput(
            f"the proxy in {name} is not of the form http://HOST:PORT or socks5h://HOST:PORT"
        )
    return name, proxy


def _goes_directly(target: SplitResult, no_proxy: str) -> bool:
    host = (target.hostname or "").rstrip(".")
    port = target.port or {"http": 80, "https": 443}[target.scheme]
    try:
        address = ip_address(host)
    except ValueError:
        return "." not in host or bool(proxy_bypass(f"{host}:{port}"))
    bracketed = f"[{host}]" if address.version == 6 else host
    if address.is_loopback or proxy_bypass(f"{bracketed}:{port}"):
        return True
    for entry in no_proxy.split(","):
        block = entry.strip().replace("[", "").replace("]", "")
        try:
            if address in ip_network(block, strict=False):
                return True
        except ValueError:
            continue  # the name of a host
    return False


def _by_socks(
    socks: ModuleType, proxy: SplitResult, options: dict[str, Any]
) -> Callable[[], Connector]:
    version, resolves = SOCKS[proxy.scheme]
    if proxy.username is not None:
        options = options | {
            "username": unquote(proxy.username),
            "password": unquote(proxy.password or ""),
        }
    return partial(
        type("SocksConnector", (Connector, socks.ProxyConnector), {}),
        host=proxy.hostname,
        port=proxy.port or SOCKS_PORT,
        proxy_type=getattr(socks.ProxyType, version),
        rdns=resolves,
        **options,
    )


# Certificates


def _trust(address: Address, target: SplitResult) -> ssl.SSLContext | bool:
    """Return what aiohttp takes as `ssl`: True for the system's certificates, False for no check at
    all."""
    if address.insecure_tls:
        return False
    files = {os.environ[name]: name for name in CA_VARIABLES if os.environ.get(name)}
    if address.ca_file is not None:
        files[address.ca_file] = "ca_file"
    if target.scheme != "https" or not (files or os.environ.get(CA_FOLDERS)):
        return True
    # OpenSSL's variables replace the system's certificates; here they are added to them, as all
    # others are.
    context = ssl.create_default_context()
    # As before Python 3.13, whose default refuses many a private authority for a missing extension.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    system = ssl.get_default_verify_paths()
    if os.environ.get("SSL_CERT_FILE") and os.path.isfile(system.openssl_cafile):
        context.load_verify_locations(cafile=system.openssl_cafile)
    if os.environ.get(CA_FOLDERS) and os.path.isdir(system.openssl_capath):
        context.load_verify_locations(capath=system.openssl_capath)
    for path, name in files.items():
        try:
            context.load_verify_locations(**{"capath" if os.path.isdir(path) else "cafile": path})
        except ssl.SSLError:
            raise BadInput(f"{path} ({name}) holds no certificate in PEM form") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise BadInput(f"{path} ({name}) cannot be read: {reason}") from None
    return context
