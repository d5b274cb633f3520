"""Which way a connection goes, and whom it trusts: proxies and certificates of the environment and of an address.

Proxies are read as urllib reads them (HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY, in lower case too). Beyond that,
NO_PROXY takes blocks of IP addresses, and what no proxy can know never goes through one: loopback, and names without
a dot, which are a cluster's own.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from ipaddress import ip_address, ip_network
from types import ModuleType
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from harness.endpoint.address import Address, check, public_url
from harness.endpoint.pool import Reusing
from harness.errors import BadInput

SOCKS = {"socks": (5, True), "socks5": (5, False), "socks5h": (5, True), "socks4": (4, False), "socks4a": (4, True)}
"""Scheme of a proxy: version, and whether the proxy resolves names (curl's manual, CURLOPT_PROXY). `socks` is what
desktops write."""
SOCKS_PORT = 1080
LONGEST_CREDENTIAL = 255
"""Characters of a name or password (RFC 1929)."""

DIRECTLY = "directly"
UNCHECKED = ", without checking its certificate (LLM_INSECURE_TLS=1): anybody on the way can read the key"

CA_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""Certificates that are trusted besides the system's: of OpenSSL, requests and curl."""
CA_FOLDERS = "SSL_CERT_DIR"
"""OpenSSL reads it itself."""


@dataclass(frozen=True, slots=True)
class Connection:
    """`connector` makes what a session connects with, within the running loop; `told` says the way.

    `proxy` is for aiohttp, which speaks to HTTP proxies itself; `via` is any proxy. Connector and proxies may hold
    credentials, hence none is shown. `errors` are those of a SOCKS proxy, which are no errors of aiohttp's.
    """

    connector: Callable[[], Reusing] = field(repr=False)
    told: str
    proxy: str | None = field(default=None, repr=False)
    via: str | None = field(default=None, repr=False)
    errors: tuple[type[Exception], ...] = ()


def connection(address: Address, connections: int) -> Connection:
    """The way to an address that has passed `check`. `connections` bounds the sockets.

    Raises `BadInput` for a proxy or a file of certificates that cannot be used.
    """
    target = urlsplit(address.url)
    trust: dict[str, Any] = {"limit": connections, "ssl": _trust(address, target)}
    name, proxy = _proxy(target)
    unchecked = UNCHECKED if address.insecure_tls and target.scheme == "https" else ""
    if proxy is None:
        return Connection(partial(Reusing, **trust), DIRECTLY + unchecked)
    told = f"through {public_url(proxy)} ({name}){unchecked}"
    if urlsplit(proxy).scheme not in SOCKS:
        return Connection(partial(Reusing, **trust), told, proxy=proxy, via=proxy)
    socks = _package(name)
    errors = (socks.ProxyError, socks.ProxyConnectionError, socks.ProxyTimeoutError)
    return Connection(_by_socks(socks, urlsplit(proxy), trust), told, via=proxy, errors=errors)


def usable(address: Address) -> None:
    """Raises `BadInput` for an address, key, proxy or file of certificates that no request could be sent with."""
    check(address)
    connection(address, 1)


# Proxies


def _proxy(target: SplitResult) -> tuple[str, str | None]:
    """The proxy of the environment for this address, and the variable that names it."""
    proxies = getproxies()
    scheme = next((scheme for scheme in (target.scheme, "all") if proxies.get(scheme)), None)
    if scheme is None or _goes_directly(target, proxies.get("no", "")):
        return "", None
    name, proxy = f"{scheme.upper()}_PROXY", proxies[scheme]
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    try:
        parts = urlsplit(proxy)
        check(Address(parts._replace(scheme="http").geturl() if parts.scheme in SOCKS else proxy))
        usable = parts.scheme not in SOCKS or all(map(_fits_socks, (parts.username, parts.password)))
    except (BadInput, ValueError):
        usable = False
    if not usable:
        raise BadInput(f"the proxy in {name} is not of the form http://HOST:PORT or socks5h://HOST:PORT")
    return name, proxy


def _goes_directly(target: SplitResult, no_proxy: str) -> bool:
    host = (target.hostname or "").rstrip(".")
    port = target.port or {"http": 80, "https": 443}[target.scheme]
    try:
        address = ip_address(host)
    except ValueError:
        return "." not in host or bool(proxy_bypass(f"{host}:{port}"))
    if address.is_loopback or proxy_bypass(f"[{host}]:{port}" if address.version == 6 else f"{host}:{port}"):
        return True
    return any(_contains(entry, host) for entry in no_proxy.split(","))


def _contains(entry: str, host: str) -> bool:
    """Whether an entry of NO_PROXY is a block of addresses, or one address, that this host is in."""
    try:
        return ip_address(host) in ip_network(entry.strip().replace("[", "").replace("]", ""), strict=False)
    except ValueError:
        return False


def _fits_socks(credential: str | None) -> bool:
    value = unquote(credential or "")
    return value.isascii() and len(value) <= LONGEST_CREDENTIAL


def _package(name: str) -> ModuleType:
    try:
        return import_module("aiohttp_socks")
    except ImportError:
        raise BadInput(
            f'{name} names a SOCKS proxy, for which a package is missing: pip install "behavior-harness[socks]"'
        ) from None


def _by_socks(socks: Any, proxy: SplitResult, trust: dict[str, Any]) -> Callable[[], Reusing]:
    version, resolves = SOCKS[proxy.scheme]
    credentials = {}
    if proxy.username is not None:
        credentials = {"username": unquote(proxy.username), "password": unquote(proxy.password or "")}
    connector: Callable[..., Reusing] = type("ReusingProxy", (Reusing, socks.ProxyConnector), {})
    return partial(
        connector,
        host=proxy.hostname,
        port=proxy.port or SOCKS_PORT,
        proxy_type=socks.ProxyType.SOCKS5 if version == 5 else socks.ProxyType.SOCKS4,
        rdns=resolves,
        **credentials,
        **trust,
    )


# Certificates


def _trust(address: Address, target: SplitResult) -> ssl.SSLContext | bool:
    """What aiohttp takes as `ssl`: True is the system's certificates, False none at all."""
    if address.insecure_tls:
        return False
    files = {os.environ[name]: name for name in CA_VARIABLES if os.environ.get(name)}
    if address.ca_file is not None:
        files[address.ca_file] = "ca_file"
    if target.scheme != "https" or not (files or os.environ.get(CA_FOLDERS)):
        return True
    context = ssl.create_default_context()
    # As before Python 3.13, whose default refuses many a private authority for a missing extension.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    _add_system(context)
    for path, name in files.items():
        _add(context, path, name)
    return context


def _add_system(context: ssl.SSLContext) -> None:
    """OpenSSL's variables replace the system's certificates; here they come beside them, as all others do."""
    system = ssl.get_default_verify_paths()
    if os.environ.get("SSL_CERT_FILE") and os.path.isfile(system.openssl_cafile):
        context.load_verify_locations(cafile=system.openssl_cafile)
    if os.environ.get(CA_FOLDERS) and os.path.isdir(system.openssl_capath):
        context.load_verify_locations(capath=system.openssl_capath)


def _add(context: ssl.SSLContext, path: str, name: str) -> None:
    try:
        if os.path.isdir(path):
            context.load_verify_locations(capath=path)
        else:
            context.load_verify_locations(cafile=path)
    except ssl.SSLError:
        raise BadInput(f"{path} ({name}) holds no certificate in PEM form") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadInput(f"{path} ({name}) cannot be read: {reason}") from None
