"""Which way a connection goes and whom it trusts, from the environment alone, and how long it
holds."""

from __future__ import annotations

import asyncio
import os
import ssl
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import aiohttp
import pytest

from harness.client.address import Address, secrets
from harness.client.connect import CA_VARIABLES, connection
from harness.client.http import Client
from harness.errors import BadInput, TransportFault

ROOT = Path(__file__).parents[2]
PROXY = "http://proxy.example:3128"


def proxy_for(url: str) -> str | None:
    return connection(Address(url), 1).proxy


# Proxies


@pytest.mark.parametrize(
    ("variables", "url", "expected_text"),
    [
        ({}, "http://h.example/v1", "directly"),
        ({"HTTP_PROXY": PROXY}, "http://h.example/v1", f"through {PROXY} (HTTP_PROXY)"),
        ({"http_proxy": PROXY}, "http://h.example/v1", f"through {PROXY} (HTTP_PROXY)"),
        ({"HTTP_PROXY": PROXY}, "https://h.example/v1", "directly"),
        ({"HTTPS_PROXY": PROXY}, "https://h.example/v1", f"through {PROXY} (HTTPS_PROXY)"),
        ({"ALL_PROXY": PROXY}, "https://h.example/v1", f"through {PROXY} (ALL_PROXY)"),
        (
            {"all_proxy": PROXY, "http_proxy": "http://b.example:1"},
            "http://h.example/v1",
            "b.example:1 (HTTP_PROXY)",
        ),
        (
            {"all_proxy": PROXY, "HTTP_PROXY": ""},
            "http://h.example/v1",
            f"through {PROXY} (ALL_PROXY)",
        ),
        (
            {"HTTP_PROXY": "proxy.example:3128"},
            "http://h.example/v1",
            f"through {PROXY} (HTTP_PROXY)",
        ),
        (
            {"HTTP_PROXY": "http://user:hidden@proxy.example:3128"},
            "http://h.example/v1",
            f"through {PROXY} (HTTP",
        ),
    ],
)
def test_proxy_is_the_one_of_the_scheme_or_else_that_of_all(
    variables, url, expected_text, monkeypatch
):
    """The variables in either case, and what may be shown of them says which one it was."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    way = connection(Address(url), 1)
    assert expected_text in way.route
    assert (way.proxy is None) == (expected_text == "directly")
    assert way.proxy == way.via
    assert "hidden" not in repr(way)


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost/v1",
        "http://127.0.0.1:8000/v1",
        "http://127.8.9.10/v1",
        "http://[::1]:8000/v1",
        "http://gpu03:8000/v1",
        "https://GPU03./v1",
    ],
)
def test_this_machine_and_a_clusters_own_names_never_go_through_a_proxy(url, monkeypatch):
    """Loopback in every form, and names without a dot."""
    monkeypatch.setenv("ALL_PROXY", PROXY)
    assert proxy_for(url) is None


@pytest.mark.parametrize(
    ("excluded", "url", "direct"),
    [
        ("h.example", "http://h.example/v1", True),
        ("h.example", "http://a.h.example:1/v1", True),
        (".example", "http://h.example/v1", True),
        ("h.example", "http://oh.example/v1", False),
        ("a.example, h.example:8000", "http://h.example:8000/v1", True),
        ("h.example:8000", "http://h.example:8001/v1", False),
        ("h.example:443", "https://h.example/v1", True),
        ("*", "http://h.example/v1", True),
        ("10.1.2.3", "http://10.1.2.3/v1", True),
        ("10.1.2.3:8000", "http://10.1.2.3:8000/v1", True),
        ("10.1.2.3:8000", "http://10.1.2.3:8001/v1", False),
        ("10.0.0.0/8", "http://10.1.2.3:8000/v1", True),
        ("10.0.0.7/8", "http://10.1.2.3:8000/v1", True),
        ("a.example, 192.168.0.0/16,10.0.0.0/8", "http://10.1.2.3:8000/v1", True),
        ("10.0.0.0/8", "http://11.1.2.3/v1", False),
        ("10.0.0.0/8", "http://ten.example/v1", False),
        ("10.0.0.0/8", "http://[fd00::1]/v1", False),
        ("fd00::/8", "http://[fd12:3456::1]:8000/v1", True),
        ("[fd00::]/8", "http://[fd12:3456::1]:8000/v1", True),
        ("fd00:0:0::1", "http://[fd00::1]/v1", True),
        ("[fd00::1]", "http://[fd00::1]:8000/v1", True),
        ("[fd00::1]:8000", "http://[fd00::1]:8000/v1", True),
        ("fd00::/8", "http://[fe00::1]/v1", False),
        ("10.0.0.0/99,/,[", "http://10.1.2.3/v1", False),
        ("", "http://10.1.2.3/v1", False),
    ],
)
def test_no_proxy_holds_names_domains_ports_addresses_and_blocks(
    excluded, url, direct, monkeypatch
):
    """As urllib reads it, and blocks of addresses besides."""
    monkeypatch.setenv("HTTP_PROXY", PROXY)
    monkeypatch.setenv("HTTPS_PROXY", PROXY)
    monkeypatch.setenv("NO_PROXY", excluded)
    assert (proxy_for(url) is None) == direct


@pytest.mark.parametrize(
    "proxy",
    [
        "http://",
        "http://proxy:port",
        "http://a b:1",
        "ftp://proxy:1",
        "http://us%3Aer:hidden@proxy:1",
        "socks5://",
        "socks5://proxy:port",
        "socks5://user:密码hidden@proxy:1",
        f"socks5://user:hidden{'x' * 256}@proxy:1",
    ],
)
@pytest.mark.parametrize("name", ["HTTP_PROXY", "ALL_PROXY"])
def test_proxy_that_cannot_be_used_is_bad_input_naming_the_variable(name, proxy, monkeypatch):
    """A mistyped one is reported at once, and not as a fault of the endpoint; its password is not
    repeated."""
    monkeypatch.setenv(name, proxy)
    with pytest.raises(BadInput, match=f"the proxy in {name}") as caught:
        Client(Address("http://model.invalid/v1"), timeout=1.0, connections=1)
    assert "hidden" not in str(caught.value)


# SOCKS proxies


class Package(ModuleType):
    """Stands for aiohttp-socks: keeps what its connector would have been made with."""

    ProxyType = SimpleNamespace(SOCKS4="four", SOCKS5="five")
    ProxyError, ProxyConnectionError, ProxyTimeoutError = KeyError, IndexError, EOFError

    class ProxyConnector(aiohttp.TCPConnector):
        _closed, _loop = True, None  # nothing was opened

        def __init__(self, **made: Any) -> None:
            self.made = made


@pytest.mark.parametrize(
    ("proxy", "made"),
    [
        (
            "socks5://p.example:9",
            {"host": "p.example", "port": 9, "proxy_type": "five", "rdns": False},
        ),
        (
            "socks5h://p.example",
            {"host": "p.example", "port": 1080, "proxy_type": "five", "rdns": True},
        ),
        (
            "socks4://p.example",
            {"host": "p.example", "port": 1080, "proxy_type": "four", "rdns": False},
        ),
        (
            "socks4a://p.example",
            {"host": "p.example", "port": 1080, "proxy_type": "four", "rdns": True},
        ),
        (
            "socks5://us%40er:p%2Fass@p.example/",
            {"host": "p.example", "port": 1080, "proxy_type": "five", "rdns": False}
            | {"username": "us@er", "password": "p/ass"},
        ),
        (
            "socks4://user@p.example",
            {"host": "p.example", "port": 1080, "proxy_type": "four", "rdns": False}
            | {"username": "user", "password": ""},
        ),
    ],
)
def test_socks_proxy_is_asked_in_its_version_and_for_names_or_addresses(proxy, made, monkeypatch):
    """`h` and `a` leave the resolving to the proxy; aiohttp itself hears of no proxy."""
    monkeypatch.setitem(sys.modules, "aiohttp_socks", Package("aiohttp_socks"))
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    way = connection(Address("https://h.example/v1", insecure_tls=True), 7)
    connector: Any = way.connector()
    assert connector.made | made | {"limit": 7, "ssl": False} == connector.made
    assert (way.proxy, way.via) == (None, proxy)
    assert way.errors == (KeyError, IndexError, EOFError)
    assert "us@er" not in repr(way) and "p/ass" not in repr(way)


def test_credentials_of_a_socks_proxy_are_secrets(monkeypatch):
    """As those of any proxy: messages are cleaned of them."""
    monkeypatch.setitem(sys.modules, "aiohttp_socks", Package("aiohttp_socks"))
    monkeypatch.setenv("HTTP_PROXY", "socks5://user:hidden@p.example")
    address = Address("http://h.example/v1")
    assert "hidden" in secrets(address, connection(address, 1).via, "http://h.example/v1")


def test_socks_proxy_without_its_package_says_how_to_get_it(
    monkeypatch,
):
    """One sentence with the variable and the command."""
    monkeypatch.setitem(sys.modules, "aiohttp_socks", None)
    monkeypatch.setenv("ALL_PROXY", "socks5://user:hidden@p.example")
    with pytest.raises(
        BadInput, match=r"ALL_PROXY.*-m pip install 'behavior-harness\[socks\]'"
    ) as caught:
        connection(Address("http://h.example/v1"), 1)
    assert "hidden" not in str(caught.value)


# Certificates


def trust(address: Address) -> ssl.SSLContext | bool:
    return connection(address, 1).trust


def test_without_certificates_of_ones_own_the_systems_are_aiohttps_matter():
    """No context is made for each client then; and none where there is nothing to check."""
    assert trust(Address("https://h.example/v1")) is True
    assert trust(Address("https://h.example/v1", insecure_tls=True)) is False
    assert trust(Address("http://h.example/v1", ca_file="/nowhere/ca.pem")) is True


@pytest.mark.parametrize("name", ["--ca-file", *CA_VARIABLES])
def test_file_that_holds_no_certificate_is_bad_input_by_name(name, tmp_path, monkeypatch):
    """Missing, empty, or something else: the sentence has the file and who named it."""
    empty, other = tmp_path / "empty.pem", tmp_path / "other.pem"
    empty.write_bytes(b"")
    other.write_text("标签", encoding="utf-8")
    for path, words in (
        (tmp_path / "no.pem", "No such file"),
        (empty, "no certificate"),
        (other, "no certificate"),
    ):
        if name in CA_VARIABLES:
            monkeypatch.setenv(name, str(path))
        with pytest.raises(BadInput) as caught:
            trust(
                Address("https://h.example/v1", ca_file=None if name in CA_VARIABLES else str(path))
            )
        assert (
            str(path) in str(caught.value)
            and name.removeprefix("--").replace("-", "_") in str(caught.value)
            and words in str(caught.value)
        )


class Recorded(ssl.SSLContext):
    """Keeps what is loaded into it; strict, as Python's default is from 3.13 on."""

    loaded: list[str]

    def load_verify_locations(
        self, cafile: Any = None, capath: Any = None, cadata: Any = None
    ) -> None:
        self.loaded.append(cafile or capath)


def recorded() -> Recorded:
    context = Recorded(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.loaded = []
    return context


@pytest.mark.parametrize(
    ("variables", "loaded"),
    [
        ({}, ["own.pem"]),
        ({"SSL_CERT_FILE": "ssl.pem"}, ["system.pem", "ssl.pem", "own.pem"]),
        ({"SSL_CERT_DIR": "folder"}, ["system", "own.pem"]),
        (
            {"REQUESTS_CA_BUNDLE": "folder", "CURL_CA_BUNDLE": "curl.pem"},
            ["folder", "curl.pem", "own.pem"],
        ),
        ({"REQUESTS_CA_BUNDLE": "own.pem", "CURL_CA_BUNDLE": "own.pem"}, ["own.pem"]),
    ],
)
def test_certificates_come_beside_the_systems_and_are_checked(
    variables, loaded, tmp_path, monkeypatch
):
    """OpenSSL's own variables would replace them. A folder may stand for a file; none is loaded
    twice."""
    for name in ("system", "folder"):
        (tmp_path / name).mkdir()
    (tmp_path / "system.pem").touch()
    system = {
        "openssl_cafile": str(tmp_path / "system.pem"),
        "openssl_capath": str(tmp_path / "system"),
    }
    paths = ssl.get_default_verify_paths()._replace(**system)
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: paths)
    monkeypatch.setattr(ssl, "create_default_context", recorded)
    for name, file in variables.items():
        monkeypatch.setenv(name, str(tmp_path / file))
    context = trust(Address("https://h.example/v1", ca_file=str(tmp_path / "own.pem")))
    assert isinstance(context, Recorded)
    assert [Path(path).name for path in context.loaded] == loaded
    assert context.verify_mode is ssl.CERT_REQUIRED and context.check_hostname
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT


# Connections


def test_aiohttp_has_no_upper_bound():
    """Requests use its public parts alone, so that a later version can be installed with this
    package."""
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert [package for package in wanted if package.startswith("aiohttp") and "<" in package] == []


ESTABLISHED, KEEPALIVE = "01", "02"
"""The kernel's numbers of a connection's state, and of its timer."""


def timer_of(local: int, remote: int) -> tuple[str, int]:
    """Return the kind of the timer of an open IPv4 connection between two ports, and the seconds
    until it fires."""
    ticks = os.sysconf("SC_CLK_TCK")
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, *ends, state, _, timer, _ = line.split(maxsplit=6)
        if state == ESTABLISHED and [int(end.split(":")[1], 16) for end in ends] == [local, remote]:
            kind, jiffies = timer.split(":")
            return kind, int(jiffies, 16) // ticks
    raise LookupError("no such connection")


@pytest.mark.anyio
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_silent_connection_is_probed_after_a_minute():
    """Or a NAT forgets it during a long reply, which is billed and lost."""
    timers: list[tuple[str, int]] = []

    async def look(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        client, server = (writer.get_extra_info(name)[1] for name in ("peername", "sockname"))
        timers.append(timer_of(client, server))
        writer.close()

    listener = await asyncio.start_server(look, "127.0.0.1", 0)
    address = Address(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/v1")
    async with Client(address, timeout=30.0, connections=1) as client:
        with pytest.raises(TransportFault):
            await client.send(b"{}")
    listener.close()
    [(kind, seconds)] = timers
    assert kind == KEEPALIVE and 30 <= seconds <= 60
