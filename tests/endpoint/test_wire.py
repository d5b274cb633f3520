"""Connections of our own: what a request looks like, and a reply in whatever pieces it comes."""

from __future__ import annotations

import asyncio
import gzip
import tomllib
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.endpoint import wire as wire_module
from harness.endpoint.address import Address
from harness.endpoint.wire import MOST_UNREAD, Wire, Wires
from harness.errors import EndpointStopped, TransportFault
from tests.endpoint.test_client import GOOD, KEY, fault_of, http, send, serving

ROOT = Path(__file__).parents[2]
MEGABYTE = 2**20
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_aiohttp_has_no_upper_bound() -> None:
    """Requests use its public parts alone, so that a later version can be installed with this package."""
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert [one for one in wanted if one.startswith("aiohttp") and "<" in one] == []


class Discarding(asyncio.Transport):
    def write(self, data: Any) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.mark.anyio
@pytest.mark.parametrize("more", range(0, 260, 4))
async def test_reply_whose_end_is_decompressed_in_a_step_of_its_own_is_whole(more: int) -> None:
    """zlib may have read all that came and still hold up to 258 bytes of what it is."""
    body = b"x" * (wire_module.STEP + more)
    for bits in (-15, 15, 31):
        packer = zlib.compressobj(wbits=bits)
        packed = packer.compress(body) + packer.flush()
        coding = b"gzip" if bits == 31 else b"deflate"
        wire = Wire(4 * MEGABYTE)
        wire.connection_made(Discarding())
        exchange = asyncio.ensure_future(wire.exchange(b"", b""))
        await asyncio.sleep(0)
        head = b"HTTP/1.1 200 OK\r\nContent-Encoding: %b\r\nContent-Length: %d\r\n\r\n" % (coding, len(packed))
        wire.data_received(head + packed)
        await exchange
        assert await wire.readany() == body


# Requests


@pytest.mark.anyio
@pytest.mark.parametrize("path", ["", "?key=a%20b&c=%C3%A9"])
async def test_request_is_the_one_of_a_session(path: str) -> None:
    """The same request line, headers and body as `ClientSession.post` sends; the order of headers has no meaning."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}", "X-Own": "é"}
    async with serving() as server, aiohttp.ClientSession(headers={"Accept-Encoding": "gzip, deflate"}) as session:
        await send(Address(server.url + path, KEY, headers={"X-Own": "é"}), "{好}".encode())
        url = f"{server.url}/chat/completions{path}"
        async with session.post(url, data="{好}".encode(), headers=headers) as response:
            assert await response.read() == GOOD
    ours, theirs = (head.splitlines() for head in server.heads)
    assert ours[0] == theirs[0]
    assert sorted(ours) == sorted(theirs)
    assert server.bodies[0] == server.bodies[1]


@pytest.mark.anyio
async def test_credentials_of_address_and_proxy_are_in_headers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in the request line that a proxy gets."""
    async with serving() as server:
        proxy = server.url.removesuffix("/v1").replace("//", "//me:mine@")
        monkeypatch.setenv("HTTP_PROXY", proxy)
        await send(Address("http://you:yours@model.invalid/v1?a=b"), b"{}")
    line, *headers = server.heads[0].splitlines()
    assert line == "POST http://model.invalid/v1/chat/completions?a=b HTTP/1.1"
    assert {"Authorization: Basic eW91OnlvdXJz", "Proxy-Authorization: Basic bWU6bWluZQ=="} <= set(headers)


@pytest.mark.anyio
async def test_requests_through_a_proxy_have_a_connection_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session does not see what comes unrequested on an idle one, and the next user would get it."""
    async with serving(http(200, GOOD).replace(b"Connection: close", b"X: y")) as server:
        monkeypatch.setenv("HTTP_PROXY", server.url.removesuffix("/v1"))
        for _ in range(2):
            assert (await send(Address("http://model.invalid/v1"))).text == "好"
    assert all("Connection: close" in head for head in server.heads)


@pytest.mark.anyio
@pytest.mark.parametrize("proxy", [False, True])
async def test_header_with_a_line_end_is_never_written(proxy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would make another header of it."""
    async with serving() as server:
        if proxy:
            monkeypatch.setenv("HTTP_PROXY", server.url.removesuffix("/v1"))
        url = "http://model.invalid/v1" if proxy else server.url
        assert type(await fault_of(Address(url, headers={"X-Own": "a\r\nX-Other: b"}))) is EndpointStopped
    assert server.heads == []


@pytest.mark.anyio
@pytest.mark.parametrize("cause", [ValueError("odd"), aiohttp.InvalidURL("odd")])
async def test_address_that_makes_no_request_stops_the_run(cause: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sentence with the first request, as for each error of a request, not a traceback when the client opens."""

    def refuses(*ignored: object, **more: object) -> None:
        raise cause

    monkeypatch.setattr("harness.endpoint.client.head", refuses)
    assert type(await fault_of(Address("http://model.invalid/v1"))) is EndpointStopped


# Replies


class Transport:
    """The end of a connection that sends nothing anywhere."""

    def __init__(self) -> None:
        self.reading, self.closed = True, False

    def write(self, data: bytes) -> None:
        pass

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.closed = True


def connected(most: int = MEGABYTE) -> tuple[Wire, Transport]:
    wire, transport = Wire(most), Transport()
    wire.connection_made(cast(Any, transport))
    return wire, transport


def read(pieces: list[bytes]) -> tuple[bytes, dict[str, str], bool]:
    """Return the body and the headers of a reply in these pieces, and whether the connection can serve again."""

    async def exchanged() -> tuple[bytes, dict[str, str], bool]:
        wire, _ = connected()
        exchange = asyncio.create_task(wire.exchange(b"", b""))
        await asyncio.sleep(0)
        for piece in pieces:
            wire.data_received(piece)
        await exchange
        return await wire.readany(), dict(wire.headers), not wire.closed

    return asyncio.run(exchanged())


REPLIES = [
    b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + http(200, GOOD, "X-One: a", "X-One: b"),
    CHUNKED + b"3\r\n" + GOOD[:3] + b"\r\n%x;a=b\r\n%b\r\n0\r\nX: y\r\n\r\n" % (len(GOOD) - 3, GOOD[3:]),
    http(200, gzip.compress(GOOD[:9]) + gzip.compress(GOOD[9:]), "Content-Encoding: gzip"),
]


@given(st.sampled_from(REPLIES), st.sets(st.integers(1, 200)))
def test_reply_is_the_same_in_whatever_pieces_it_comes(reply: bytes, cuts: set[int]) -> None:
    """Cut anywhere, in the middle of a line end, of a character or of what is compressed."""
    places = [0, *sorted(cut for cut in cuts if cut < len(reply)), len(reply)]
    pieces = [reply[start:end] for start, end in pairwise(places)]
    assert read(pieces) == read([reply])
    assert read(pieces)[0] == GOOD


@pytest.mark.anyio
async def test_stream_that_nobody_reads_pauses_its_connection() -> None:
    """What has come is bounded; reading it goes on with the rest."""
    wire, transport = connected(4 * MOST_UNREAD)
    exchange = asyncio.create_task(wire.exchange(b"", b""))
    await asyncio.sleep(0)
    block = b"%x\r\n%b\r\n" % (MOST_UNREAD + 1, b":" * (MOST_UNREAD + 1))
    wire.data_received(EVENTS + block)
    await exchange
    assert not transport.reading
    assert len(await wire.readany()) == MOST_UNREAD + 1
    assert transport.reading


@pytest.mark.anyio
async def test_connection_that_pauses_at_the_end_of_a_reply_serves_no_more() -> None:
    """It would not see the next reply, nor that the server has closed it."""
    wires = Wires(True, 2, 4 * MOST_UNREAD)
    for size, serves in ((10, True), (MOST_UNREAD + 1, False)):
        await wires.places.acquire()
        wire, transport = connected(4 * MOST_UNREAD)
        exchange = asyncio.create_task(wire.exchange(b"", b""))
        await asyncio.sleep(0)
        wire.data_received(EVENTS + b"%x\r\n%b\r\n0\r\n\r\n" % (size, b":" * size))
        await exchange
        wires.keep(wire)
        assert (wires.idle() is wire, transport.closed) == (serves, not serves)


@pytest.mark.anyio
async def test_stream_that_unpacks_to_more_than_a_reply_may_have_is_left() -> None:
    """Also where all of it comes at once."""
    wire, transport = connected(2 * MEGABYTE)
    exchange = asyncio.create_task(wire.exchange(b"", b""))
    await asyncio.sleep(0)
    bomb = gzip.compress(b" " * (16 * MEGABYTE))
    wire.data_received(
        EVENTS.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n") + b"%x\r\n" % len(bomb) + bomb
    )
    await exchange
    with pytest.raises(TransportFault) as caught:
        while await wire.readany():
            pass
    assert (caught.value.kind, wire.closed, transport.closed) == ("too_large", True, True)


@pytest.mark.anyio
async def test_chunks_whose_lengths_come_apart_are_no_head_however_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some servers write the length of a chunk by itself; a long stream has more of them than a head may have bytes."""
    monkeypatch.setattr(wire_module, "MOST_HEAD", 100)
    wire, _ = connected()
    exchange = asyncio.create_task(wire.exchange(b"", b""))
    await asyncio.sleep(0)
    wire.data_received(EVENTS)
    for _ in range(100):
        wire.data_received(b"2\r\n")
        wire.data_received(b":\n\r\n")
    wire.data_received(b"0\r\n\r\n")
    await exchange
    assert await wire.readany() == b":\n" * 100


def test_deflate_is_read_with_and_without_its_head() -> None:
    """Servers send both under that name."""
    bare = zlib.compressobj(wbits=-15)
    for body in (zlib.compress(GOOD), bare.compress(GOOD) + bare.flush()):
        assert read([http(200, body, "Content-Encoding: deflate")])[0] == GOOD
