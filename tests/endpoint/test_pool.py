"""What the exchange below aiohttp's session assumes of aiohttp: canaries for another version of it."""

from __future__ import annotations

import tomllib
from importlib.metadata import version
from pathlib import Path

import aiohttp
import pytest

from harness.endpoint.address import Address
from harness.errors import EndpointStopped
from tests.endpoint.test_client import GOOD, KEY, fault_of, http, send, serving

ROOT = Path(__file__).parents[2]


def test_aiohttp_is_below_its_upper_bound() -> None:
    """A next minor version may change the connector and the parser, and is admitted once these tests pass with it."""
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    [bound] = [one.partition("<")[2] for one in wanted if one.startswith("aiohttp>")]
    assert [int(part) for part in version("aiohttp").split(".")[:2]] < [int(part) for part in bound.split(".")]


@pytest.mark.anyio
@pytest.mark.parametrize("path", ["", "?key=a%20b&c=%C3%A9"])
async def test_request_is_the_one_of_a_session(path: str) -> None:
    """The same request line, headers and body as `ClientSession.post` sends; the order of headers has no meaning."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}", "X-Own": "é"}
    async with serving() as server, aiohttp.ClientSession() as session:
        await send(Address(server.url + path, KEY, headers={"X-Own": "é"}), "{好}".encode())
        url = f"{server.url}/chat/completions{path}"
        async with session.post(url, data="{好}".encode(), headers=headers) as response:
            assert await response.read() == GOOD
    ours, theirs = (head.splitlines() for head in server.heads)
    assert ours[0] == theirs[0]
    assert sorted(ours) == sorted(theirs)
    assert server.bodies[0] == server.bodies[1]


@pytest.mark.anyio
async def test_request_through_a_proxy_is_the_one_of_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also its credentials for the endpoint and for the proxy: in headers, and not in the request line."""
    async with serving() as server, aiohttp.ClientSession() as session:
        proxy = server.url.removesuffix("/v1").replace("//", "//me:mine@")
        monkeypatch.setenv("HTTP_PROXY", proxy)
        await send(Address("http://you:yours@model.invalid/v1?a=b"), b"{}")
        url, headers = "http://you:yours@model.invalid/v1/chat/completions?a=b", {"Content-Type": "application/json"}
        async with session.post(url, data=b"{}", headers=headers, proxy=proxy) as response:
            assert await response.read() == GOOD
    ours, theirs = (head.splitlines() for head in server.heads)
    assert ours[0] == theirs[0] == "POST http://model.invalid/v1/chat/completions?a=b HTTP/1.1"
    assert sorted(ours) == sorted(theirs)


@pytest.mark.anyio
async def test_reply_that_others_announce_is_read() -> None:
    """A status of 1xx before the reply is passed over."""
    async with serving(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + http(200, GOOD)) as server:
        assert (await send(Address(server.url))).text == "好"


@pytest.mark.anyio
async def test_header_with_a_line_end_is_never_written() -> None:
    """It would make another header of it."""
    async with serving() as server:
        assert type(await fault_of(Address(server.url, headers={"X-Own": "a\r\nX-Other: b"}))) is EndpointStopped
    assert server.heads == []


@pytest.mark.anyio
@pytest.mark.parametrize("cause", [ValueError("odd"), aiohttp.InvalidURL("odd")])
async def test_address_that_aiohttp_refuses_stops_the_run(cause: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sentence with the first request, as for each error of a request, not a traceback when the client opens."""

    def refuses(*ignored: object, **more: object) -> None:
        raise cause

    monkeypatch.setattr(aiohttp, "ClientRequest", refuses)
    assert type(await fault_of(Address("http://model.invalid/v1"))) is EndpointStopped
