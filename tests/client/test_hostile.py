"""Endpoints that do what no server should, byte by byte over loopback, against the real client and
caller.

What is tried here stands beside what other files try: proxies, secrets, certificates of one's own,
redirects to another host, replies beyond the limit, lengths that lie, and each error of aiohttp in
test_client.py; silences in test_client.py; bodies, as such, in test_replies.py and test_stream.py;
what the double does wrong in test_faults.py.
"""

from __future__ import annotations

import asyncio
import gzip
import itertools
import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import anyio
import orjson
import pytest
from anyio.from_thread import start_blocking_portal

from harness.benchmarks import registry
from harness.cli import main
from harness.client import connect
from harness.client.address import Address
from harness.client.caller import Caller, Limits, Reply
from harness.client.connect import DIRECTLY, connection
from harness.client.control import FixedControl
from harness.client.http import Client
from harness.client.limiter import Limiter, Slots
from harness.errors import EndpointStopped, TransportFault
from harness.model import Completion
from tests.support import BOTH_LOOPS, SHIPPED, virtual
from tests.support.processes import wait_for

KEY = "sk-test-0123456789abcdefWXYZ"
HANGS = 30.0  # seconds; reached only by a test that would wait for ever
# seconds until a deadline that a test waits for; half of it for the connection, on a busy machine
# too
SOON = 0.6
PATIENCE = (
    0.1  # seconds for connecting: less than aiohttp waits before it tries the next address beside
)
MEGABYTE = 2**20

Write = Callable[[bytes], Awaitable[None]]
"""Sends bytes; raises `ConnectionError` once the client has gone."""
Script = Callable[[Write], Awaitable[bool]]
"""What a server does with one request; tells whether the connection stays open."""


def body_of(text: str) -> bytes:
    return orjson.dumps({"choices": [{"message": {"content": text}, "finish_reason": "stop"}]})


GOOD = body_of("好")


def http(
    body: bytes,
    *headers: str,
    status: str = "200 OK",
    version: str = "1.1",
    length: int | None = None,
) -> bytes:
    told = len(body) if length is None else length
    return (
        "\r\n".join(
            [f"HTTP/{version} {status}", f"Content-Length: {told}", *headers, "", ""]
        ).encode()
        + body
    )


def says(data: bytes, stays: bool = False) -> Script:
    async def script(write: Write) -> bool:
        await write(data)
        return stays

    return script


def in_turn(*parts: bytes) -> Script:
    """Each once the client has had turns enough of the loop to read the one before; then it
    stays."""

    async def script(write: Write) -> bool:
        for part in parts:
            await write(part)
            for _ in range(10):
                await asyncio.sleep(0)
        return True

    return script


def forever(head: bytes, again: bytes, pause: float = 0.0) -> Script:
    """`again` and again, as fast as it goes or a little every `pause` seconds, until the client has
    had enough."""

    async def script(write: Write) -> bool:
        await write(head)
        while True:
            await write(again)
            await asyncio.sleep(pause)

    return script


class Server:
    """Answers the n-th request by the n-th script, and all after the last with what `answer` makes
    of their bodies."""

    def __init__(
        self, scripts: tuple[Script, ...], greeting: bytes, answer: Callable[[bytes], bytes]
    ) -> None:
        self.url = ""
        self.heads: list[bytes] = []
        self.connections = 0
        self._scripts = scripts
        self._greeting = greeting
        self._answer = answer
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await self._converse(reader, writer)
        writer.close()
        self._tasks.discard(task)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def write(data: bytes) -> None:
            if (
                writer.transport.is_closing()
            ):  # the client has gone, of which uvloop makes another error
                raise ConnectionResetError
            writer.write(data)
            await writer.drain()

        if self._greeting:
            await write(self._greeting)
        stays = True
        while stays:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                line for line in head.lower().splitlines() if line.startswith(b"content-length:")
            )
            body = await reader.readexactly(int(length.partition(b":")[2]))
            self.heads.append(head)
            number = len(self.heads) - 1
            script = (
                self._scripts[number]
                if number < len(self._scripts)
                else says(http(self._answer(body)), stays=True)
            )
            stays = await script(write)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def serving(
    *scripts: Script,
    tls: ssl.SSLContext | None = None,
    greeting: bytes = b"",
    answer: Callable[[bytes], bytes] = lambda body: GOOD,
) -> AsyncIterator[Server]:
    server = Server(scripts, greeting, answer)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=tls)
    server.url = f"http{'s' if tls else ''}://127.0.0.1:{listener.sockets[0].getsockname()[1]}/v1"
    try:
        yield server
    finally:
        listener.close()
        await server.close()


async def no_pause(seconds: float) -> None:
    pass


class Call(NamedTuple):
    reply: Reply
    faults: list[TransportFault]


async def call(client: Client, max_retries: int = 3) -> Call:
    """A request through a caller of its own, whose pauses take no time."""
    faults: list[TransportFault] = []
    limiter = Limiter(Slots(FixedControl(1), asyncio.get_running_loop().time))
    clock = asyncio.get_running_loop().time
    caller = Caller(
        client,
        limiter,
        Limits(max_retries, 900.0),
        probe=b"?",
        clock=clock,
        sleep=no_pause,
        rng=random.Random(1),
    )
    with anyio.fail_after(HANGS):
        reply = await caller.complete(b"{}", 1, "user", lambda fault, number: faults.append(fault))
    assert limiter.in_flight == 0
    return Call(reply, faults)


async def called(server: Server, seconds: float = HANGS) -> Call:
    async with Client(Address(server.url, KEY), timeout=seconds, connections=1) as client:
        return await call(client)


# Replies that are worth another try


HEAD = b"HTTP/1.1 200 OK\r\n"
ERROR = b"HTTP/1.1 500 Internal Server Error\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
EVENTS = HEAD + b"Content-Type: text/event-stream\r\n\r\n"


def packed(wbits: int) -> bytes:
    """The beginning, a hundred megabytes of blanks, of something a thousand times shorter."""
    packer = zlib.compressobj(9, wbits=wbits)
    first, other = (
        packer.compress(b" " * MEGABYTE) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2)
    )
    return first + 99 * other


def event(text: str, reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": reason}
    return b"data: " + orjson.dumps({"choices": [choice]}) + b"\n\n"


DEEP = b'{"choices":' + b"[" * 100_000 + b"]" * 100_000 + b"}"

SLOW = {
    "a byte of a body now and then": (forever(http(b"", length=1000), b" ", 0.01), "timeout"),
    "a byte of a body without end now and then": (forever(HEAD + b"\r\n", b" ", 0.01), "timeout"),
    "a chunk now and then": (forever(CHUNKED, b"1\r\n \r\n", 0.01), "timeout"),
    "a byte of a header now and then": (forever(HEAD + b"X: ", b"a", 0.01), "timeout"),
    "a header now and then": (forever(HEAD, b"X: a\r\n", 0.01), ("timeout", "bad_http")),
    "a byte of the status line now and then": (forever(b"HTTP/1.1 200 ", b"a", 0.01), "timeout"),
    "100 Continue now and then": (forever(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.01), "timeout"),
    "100 Continue as fast as it goes": (
        forever(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000),
        "timeout",
    ),
    "chunks of a byte as fast as it goes": (
        forever(CHUNKED, b"1\r\n \r\n" * 1000),
        ("timeout", "too_large"),
    ),
    "a comment of a stream now and then": (forever(EVENTS, b": a\n\n", 0.01), "timeout"),
    "the trailer of a chunked body now and then": (
        forever(CHUNKED + b"0\r\n", b"X: a\r\n", 0.01),
        "timeout",
    ),
}

HUGE = {
    "100 MB": (forever(http(b"", length=100 * MEGABYTE), b" " * MEGABYTE), "too_large"),
    "100 MB announced": (says(http(b" ", length=100 * MEGABYTE)), "truncated"),
    "a body without end": (forever(HEAD + b"\r\n", b" " * MEGABYTE), "too_large"),
    "chunks without end": (forever(CHUNKED, b"10000\r\n" + b" " * 65536 + b"\r\n"), "too_large"),
    "a stream without end": (forever(EVENTS, b": " + b"a" * MEGABYTE + b"\n"), "too_large"),
    "one event without end": (forever(EVENTS + b"data: ", b"a" * MEGABYTE), "too_large"),
    "gzip, a thousandfold": (says(http(packed(31), "Content-Encoding: gzip")), "too_large"),
    "deflate, a thousandfold": (says(http(packed(15), "Content-Encoding: deflate")), "too_large"),
    "gzip of empty members without end": (
        forever(HEAD + b"Content-Encoding: gzip\r\n\r\n", gzip.compress(b"") * 1000),
        "bad_http",
    ),
    "gzip of empty blocks without end": (
        forever(HEAD + b"Content-Encoding: deflate\r\n\r\n\x78\x9c", b"\0\0\0\xff\xff" * 100_000),
        "too_large",
    ),
    "an error without end": (forever(ERROR + b"\r\n", b" " * MEGABYTE), "http_500"),
    "an error without end, as a stream": (
        forever(ERROR + b"Content-Type: text/event-stream\r\n\r\ndata: ", b"a" * MEGABYTE),
        "http_500",
    ),
    "an error in gzip, a thousandfold": (
        says(http(packed(31), "Content-Encoding: gzip", status="500 Internal Server Error")),
        "http_500",
    ),
    "a text of 9 MB in a stream": (
        says(EVENTS + event("a" * MEGABYTE) * 9 + event("", "stop") + b"data: [DONE]\n\n"),
        "too_large",
    ),
    "headers without end": (forever(HEAD, b"X-Many: aaaaaaaaaa\r\n" * 1000), "bad_http"),
    "a header without end": (forever(HEAD + b"X-Long: ", b"a" * MEGABYTE), "bad_http"),
    "a status line without end": (forever(b"HTTP/1.1 200 ", b"a" * MEGABYTE), "bad_http"),
    "a trailer without end": (forever(CHUNKED + b"0\r\nX-Long: ", b"a" * MEGABYTE), "bad_http"),
}

WRONG = {
    "brotli, for which nobody asked": (
        says(http(b"\x8b\x02\x80", "Content-Encoding: br")),
        "bad_json",
    ),
    "an unknown encoding of the content": (says(http(b"?", "Content-Encoding: rot13")), "bad_json"),
    "gzip that is cut": (
        says(http(gzip.compress(GOOD)[:-20], "Content-Encoding: gzip")),
        ("truncated", "bad_json"),
    ),
    "an unknown charset that hides the text": (
        says(
            http(GOOD.decode().encode("gb18030"), "Content-Type: application/json; charset=x-none")
        ),
        "bad_json",
    ),
    "nothing but invalid UTF-8": (says(http(b"\x80\x81\xff")), "bad_json"),
    "nothing at all": (says(b""), "connection"),
    "a head without a body": (says(http(b"", length=100)), "truncated"),
    "half a head": (says(HEAD + b"Content-Len"), ("connection", "bad_http")),
    "a length beyond two bodies": (says(http(GOOD + GOOD, length=2 * len(GOOD) + 1)), "truncated"),
    "chunks without an end around half a body": (
        says(CHUNKED + b"9\r\n" + GOOD[:9] + b"\r\n"),
        "truncated",
    ),
    "a chunk whose length is no number, after the head": (
        in_turn(CHUNKED + b"9\r\n" + GOOD[:9], b"\r\nnine"),
        "truncated",
    ),
    "a length below the body": (says(http(GOOD, length=len(GOOD) - 1)), ("bad_http", "bad_json")),
    "half of a body of HTTP/1.0": (says(b"HTTP/1.0 200 OK\r\n\r\n" + GOOD[:-5]), "bad_json"),
    "HTTP/0.9": (says(GOOD), "bad_http"),
    "HTTP/2 without being asked": (says(b"\0\0\x12\4\0\0\0\0\0"), "bad_http"),
    "a body after 204": (says(http(GOOD, status="204 No Content")), ("bad_http", "bad_json")),
    "an empty body": (says(http(b"")), "bad_json"),
    "JSON that is no object": (says(http(b'["choices"]')), "bad_json"),
    "JSON of depth 100,000": (says(http(DEEP)), "bad_json"),
    "JSON of depth 100,000 in a stream": (says(EVENTS + b"data: " + DEEP + b"\n\n"), "bad_json"),
    "a number of a million digits": (
        says(http(b'{"choices":' + b"9" * MEGABYTE + b"}")),
        "bad_json",
    ),
    "switching protocols": (
        says(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\n\r\n"),
        "http_101",
    ),
}

RETRIED = {**SLOW, **HUGE, **WRONG}


@BOTH_LOOPS
@pytest.mark.anyio
@pytest.mark.parametrize("name", RETRIED)
async def test_each_hostile_reply_is_tried_again_and_harms_nobody(name):
    """A fault of its kind in one sentence, memory bounded, the connection left, and the next try is
    answered."""
    script, kinds = RETRIED[name]
    async with serving(script) as server:
        tracemalloc.start()
        try:
            reply, faults = await called(server, SOON if name in SLOW else HANGS)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert (reply.completion, reply.tries) == (Completion("好"), len(faults) + 1), faults
    assert len(faults) == 1 or name in SLOW, (
        faults
    )  # a busy machine may be late with the good reply, too
    assert faults[0].kind == kinds or faults[0].kind in kinds, faults
    assert faults[0].detail and "\n" not in faults[0].detail and len(faults[0].detail) < 400
    assert KEY not in faults[0].detail and "RawResponse" not in faults[0].detail
    assert peak < 100 * MEGABYTE


UNSAFE = {
    "Content-Length: 3": http(GOOD, "Content-Length: 3"),
    "Transfer-Encoding: chunked": http(b"0\r\n\r\n", "Transfer-Encoding: chunked"),
    f"Content-Length: {10**30}": http(b" ", length=10**30),
    "X Request Id: 5": http(GOOD, "X Request Id: 5"),
}


@BOTH_LOOPS
@pytest.mark.anyio
@pytest.mark.parametrize("header", UNSAFE)
async def test_head_that_can_be_read_in_two_ways_is_refused_at_once_by_its_header(
    header,
):
    """A server that writes it does so in each reply: further tries would be paid, and none would
    help."""
    async with serving(*[says(UNSAFE[header])] * 9) as server:
        with pytest.raises(EndpointStopped) as caught:
            await called(server)
    assert header in str(caught.value) and "\n" not in str(caught.value)
    assert len(server.heads) == 1


FLOOD = b"1\r\n \r\n" * 10_000
"""Chunks of a byte, which cost the reader most."""


def flood(listener: socket.socket, enough: threading.Event) -> None:
    """Send chunks without end on every connection; `enough` is set once one of them has had
    many."""

    def send(connection: socket.socket) -> None:
        with suppress(OSError), connection:
            connection.sendall(CHUNKED)
            for number in itertools.count():
                connection.sendall(FLOOD)
                if number == 50:
                    enough.set()

    with suppress(OSError):
        while True:
            threading.Thread(target=send, args=(listener.accept()[0],), daemon=True).start()


@pytest.mark.slow
def test_second_ctrl_c_ends_a_run_whose_endpoint_floods_it(tmp_path):
    """Cancelled requests end although their next block is there whenever they are looked at."""
    enough = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=flood, args=(listener, enough), daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        words = [
            *SHIPPED,
            "--model",
            "m",
            "--subset",
            "weibo",
            "--concurrency",
            "16",
            "--api-url",
            url,
        ]
        with subprocess.Popen(
            [sys.executable, "-P", "-m", "harness", "run", *words, "--results-dir", "results"],
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            try:
                assert enough.wait(HANGS)
                process.send_signal(signal.SIGINT)
                log = tmp_path / "results/m/run_weibo.log"
                wait_for(lambda: b'"stopping"' in log.read_bytes() or process.poll() is not None)
                process.send_signal(signal.SIGINT)
                assert process.wait(HANGS) == 130
            finally:
                process.kill()


# Odd replies that are whole: whoever asks for them again pays twice


EARLY = b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n"
GO_ON = b"HTTP/1.1 100 Continue\r\n\r\n"
JSON = "Content-Type: application/json; charset="

WHOLE = {
    "HTTP/1.0 with a length": http(GOOD, version="1.0"),
    "HTTP/1.0 without a length": b"HTTP/1.0 200 OK\r\n\r\n" + GOOD,
    "no length and no chunks": HEAD + b"Connection: close\r\n\r\n" + GOOD,
    "100 Continue before it": GO_ON + http(GOOD),
    "100 Continue and 103 Early Hints before it": GO_ON + EARLY + EARLY + http(GOOD),
    "chunks with extensions and a trailer": (
        CHUNKED + b'%x;a="b"\r\n%s\r\n0\r\nX: y\r\n\r\n' % (len(GOOD), GOOD)
    ),
    "line ends without CR in the body": http(b"\n\n" + GOOD + b"\n"),
    "gzip": http(gzip.compress(GOOD), "Content-Encoding: gzip"),
    "gzip in two members": http(
        gzip.compress(GOOD[:9]) + gzip.compress(GOOD[9:]), "Content-Encoding: gzip"
    ),
    "deflate": http(zlib.compress(GOOD), "Content-Encoding: deflate"),
    "deflate without its head": http(zlib.compress(GOOD)[2:-4], "Content-Encoding: deflate"),
    "plain text that is said to be gzip": http(GOOD, "Content-Encoding: gzip"),
    "plain text that is said to be deflate": http(GOOD, "Content-Encoding: deflate"),
    "plain text that is said to be brotli": http(GOOD, "Content-Encoding: br"),
    "chunks without an end": CHUNKED + b"%x\r\n%s\r\n" % (len(GOOD), GOOD),
    "a length beyond the body": http(GOOD, length=len(GOOD) + 1),
    "a comment before and the end of a stream after it": http(
        b": wait\n\n" + GOOD + b"\n\ndata: [DONE]\n\n"
    ),
    "the same, with a length beyond it": http(
        b": wait\n\n" + GOOD + b"\r\ndata: [DONE]\n", length=999
    ),
    "a header of 8,000 bytes": http(GOOD, f"X-Padding: {'a' * 8000}"),
    "an unknown charset": http(GOOD, JSON + "x-none"),
    "a charset that is not true": http(GOOD, JSON + "gbk"),
    "a type that is not true": http(GOOD, "Content-Type: text/html; charset=iso-8859-1"),
    "a mark of UTF-8": http(b"\xef\xbb\xbf" + GOOD),
    "GBK": http(GOOD.decode().encode("gbk"), JSON + "GBK"),
    "GB2312, in quotes": http(GOOD.decode().encode("gbk"), JSON + '"gb2312"'),
    "Big5": http(GOOD.decode().encode("big5"), JSON + "big5"),
    "UTF-16 with its mark": http(GOOD.decode().encode("utf-16")),
    "UTF-16 without a mark": http(GOOD.decode().encode("utf-16-le")),
    "UTF-16 of the other order": http(b"\xfe\xff" + GOOD.decode().encode("utf-16-be")),
    "UTF-32 with its mark": http(GOOD.decode().encode("utf-32")),
}


@BOTH_LOOPS
@pytest.mark.anyio
@pytest.mark.parametrize("name", WHOLE)
async def test_odd_reply_that_is_whole_is_taken_at_once(name):
    """Old HTTP, hints before it, any encoding and charset that says what it is: the text is the one
    that was sent."""
    async with serving(says(WHOLE[name])) as server:
        reply, faults = await called(server)
    assert (reply.completion, reply.tries, faults) == (Completion("好"), 1, [])


@pytest.mark.anyio
@pytest.mark.parametrize("status", [200, 400])
async def test_words_in_the_charset_of_their_type_are_understood(status):
    """A filter's words in GBK settle the step, whatever the status; as gibberish they would be a
    fault for ever."""
    body = '{"error":{"code":"1301","message":"系统检测到输入或生成内容可能包含不安全或敏感内容"}}'.encode(
        "gbk"
    )
    async with serving(says(http(body, JSON + "gbk", status=f"{status} Status"))) as server:
        assert (await called(server)).reply.completion.finish_reason == "content_filter"


# Connections that serve again


@BOTH_LOOPS
@pytest.mark.anyio
async def test_server_that_closes_idle_connections_costs_no_try():
    """Whether the next request finds the connection closed or crosses its end: it is sent anew, and
    nothing failed."""
    async with (
        serving(*[says(http(GOOD)) for _ in range(20)]) as server,
        Client(Address(server.url, KEY), timeout=HANGS, connections=1) as client,
    ):
        calls = [await call(client, max_retries=0) for _ in range(20)]
    assert [(reply.tries, faults) for reply, faults in calls] == [(1, [])] * 20
    assert server.connections == 20


@BOTH_LOOPS
@pytest.mark.anyio
async def test_request_that_makes_a_server_hang_up_is_a_failed_try():
    """It is sent anew only where the connection had served before; on one of its own the server
    meant the request."""
    async with (
        serving(says(http(GOOD), stays=True), says(b""), says(b"")) as server,
        Client(Address(server.url, KEY), timeout=HANGS, connections=1) as client,
    ):
        await call(client)
        reply, faults = await call(client)
    assert (reply.tries, [fault.kind for fault in faults]) == (2, ["connection"])
    assert faults[0].detail == "the endpoint closed the connection before its reply"
    assert len(server.heads) == 4


@pytest.mark.anyio
async def test_half_a_head_on_a_connection_that_served_before_is_a_failed_try():
    """Something was received, so the request is not sent again unseen."""
    async with (
        serving(says(http(GOOD), stays=True), says(b"HTTP/1.1 2")) as server,
        Client(Address(server.url, KEY), timeout=HANGS, connections=1) as client,
    ):
        await call(client)
        reply, faults = await call(client)
    assert (reply.tries, [fault.kind for fault in faults], len(server.heads)) == (
        2,
        ["connection"],
        3,
    )


def together(number: int) -> Script:
    """A reply once so many requests are there, so that each has a connection of its own, which
    stays."""
    here, all_here = 0, asyncio.Event()

    async def script(write: Write) -> bool:
        nonlocal here
        here += 1
        if here == number:
            all_here.set()
        await all_here.wait()
        await write(http(GOOD))
        return True

    return script


@BOTH_LOOPS
@pytest.mark.anyio
@pytest.mark.parametrize(("crossing", "arrivals"), [(HANGS, 2), (-1.0, 1)], ids=["soon", "late"])
async def test_server_that_hangs_up_gets_a_request_once_more_at_most_however_many_connections_idle(
    crossing, arrivals, monkeypatch
):
    """Once more, over a new connection, where it hangs up at once; not at all where it first worked
    on the request."""
    monkeypatch.setattr(connect, "CROSSING_SECONDS", crossing)
    warm = 16
    async with (
        serving(*[together(warm)] * warm, *[says(b"")] * 2 * warm) as server,
        Client(Address(server.url, KEY), timeout=HANGS, connections=warm) as client,
    ):
        with anyio.fail_after(HANGS):
            await asyncio.gather(*[client.send(b"{}") for _ in range(warm)])
            with pytest.raises(TransportFault) as caught:
                await client.send(b"{}")
    assert (caught.value.kind, caught.value.unreachable) == ("connection", False)
    assert len(server.heads) == warm + arrivals
    assert server.connections == warm + arrivals - 1


@pytest.mark.anyio
@pytest.mark.parametrize(("seconds", "connections"), [(0.0, 3), (HANGS, 1)])
async def test_connection_that_was_idle_for_long_serves_no_more(seconds, connections, monkeypatch):
    """Its server may be about to close it; the request gets a new one."""
    monkeypatch.setattr(connect, "IDLE_SECONDS", seconds)
    async with (
        serving() as server,
        Client(Address(server.url, KEY), timeout=HANGS, connections=1) as client,
    ):
        for _ in range(3):
            await client.send(b"{}")
    assert (len(server.heads), server.connections) == (3, connections)


@pytest.mark.anyio
async def test_request_that_waits_for_a_connection_gets_the_next_place():
    """A connection that is kept for a later request keeps none waiting."""
    async with (
        serving() as server,
        Client(Address(server.url, KEY), timeout=HANGS, connections=1) as client,
    ):
        with anyio.fail_after(HANGS / 2):
            await asyncio.gather(*[client.send(b"{}") for _ in range(3)])
    assert len(server.heads) == 3


FOREIGN = http(body_of("别人的回答"))
TWICE = {
    "with the first": (http(GOOD) + FOREIGN,),
    "with the end of the first": (http(GOOD)[:-5], GOOD[-5:] + FOREIGN),
    "with the body of the first": (http(GOOD).removesuffix(GOOD), GOOD + FOREIGN),
    "half of it with the first": (http(GOOD) + FOREIGN[:-9], FOREIGN[-9:]),
    "half of its head with the first": (http(GOOD) + FOREIGN[:9], FOREIGN[9:]),
    "while the connection is idle": (http(GOOD), FOREIGN),
}


@BOTH_LOOPS
@pytest.mark.anyio
@pytest.mark.parametrize("proxy", [False, True], ids=["directly", "through a proxy"])
@pytest.mark.parametrize("when", TWICE)
async def test_second_reply_to_one_request_never_answers_the_next(when, proxy, monkeypatch):
    """A user must not get another's answer: the connection is left, and the next request gets its
    own."""
    written = asyncio.Event()

    async def twice(write: Write) -> bool:
        await in_turn(*TWICE[when])(write)
        written.set()
        return True

    async with serving(twice) as server:
        url = server.url
        if proxy:
            monkeypatch.setenv("HTTP_PROXY", url.removesuffix("/v1"))
            url = "http://model.invalid/v1"
        async with Client(Address(url, KEY), timeout=HANGS, connections=1) as client:
            await call(client)
            await written.wait()
            reply, faults = await call(client)
    assert (reply.completion, faults, server.connections) == (Completion("好"), [], 2)


@pytest.mark.anyio
@pytest.mark.parametrize("end", [False, True], ids=["a repeat", "the end"])
async def test_what_nobody_has_read_yet_is_seen_before_the_next_request(end):
    """The next request follows at once: what the system has of a connection counts, not what the
    loop has read."""
    connections: list[socket.socket] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer.get_extra_info("socket"))
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"{}"):
                writer.write(http(GOOD))
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/v1"
    async with Client(Address(url, KEY), timeout=HANGS, connections=1) as client:
        await client.send(b"{}")
        if end:
            connections[0].shutdown(socket.SHUT_WR)
        else:
            os.write(connections[0].fileno(), FOREIGN)
        assert (await client.send(b"{}")).completion == Completion("好")
    listener.close()
    assert len(connections) == 2


@pytest.mark.anyio
async def test_rest_of_a_reply_never_answers_the_next_request():
    """What a body has beyond its length is left with its connection, even where it looks like a
    reply."""
    foreign = http(body_of("别人的回答"))
    async with (
        serving(says(http(GOOD + foreign, length=len(GOOD)), stays=True)) as server,
        Client(Address(server.url, KEY), timeout=HANGS, connections=1) as client,
    ):
        texts = [(await call(client)).reply.completion.text for _ in range(2)]
    assert (texts, server.connections) == (["好", "好"], 2)


# Endpoints that will never serve


@BOTH_LOOPS
@pytest.mark.anyio
@pytest.mark.parametrize(
    "greeting", [b"SSH-2.0-OpenSSH_9.6\r\n", b"220 mail.example ESMTP\r\n", b"\x16\x03\x01\0\0"]
)
async def test_server_of_another_protocol_that_speaks_first_is_a_fault(greeting):
    """Its greeting is no reply, and does not hang the connection."""
    async with (
        serving(*[says(b"")] * 9, greeting=greeting) as server,
        Client(Address(server.url, KEY), timeout=HANGS, connections=1) as client,
    ):
        with pytest.raises(TransportFault) as caught, anyio.fail_after(HANGS):
            await client.send(b"{}")
    assert caught.value.kind in ("bad_http", "connection")


class Certificate(NamedTuple):
    file: Path
    context: ssl.SSLContext


def certificate(folder: Path, name: str, days: str) -> Certificate:
    """Signed by itself, for one name or address."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl command to make a certificate with")
    file, key = folder / "certificate.pem", folder / "key.pem"
    asked = folder / "asked.csr"
    kind = [
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-subj",
        "/CN=test",
    ]
    made = [
        openssl,
        "req",
        "-new",
        *kind,
        "-addext",
        f"subjectAltName={name}",
        "-keyout",
        str(key),
        "-out",
        str(asked),
    ]
    subprocess.run(made, check=True, capture_output=True)
    how = ["-signkey", str(key), "-days", days, "-copy_extensions", "copy"]
    subprocess.run(
        [openssl, "x509", "-req", "-in", str(asked), *how, "-out", str(file)],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file, key)
    return Certificate(file, context)


@BOTH_LOOPS
@pytest.mark.anyio
@pytest.mark.parametrize(
    ("name", "days", "why"),
    [
        ("IP:127.0.0.1", "0", "certificate has expired"),
        ("DNS:other.example", "2", "not valid for '127.0.0.1'"),
    ],
    ids=["expired", "of another host"],
)
async def test_bad_certificate_is_refused_with_its_remedy_and_taken_where_told_so(
    name, days, why, tmp_path
):
    """Trusted as an authority, but out of date or another's: nothing is sent; `LLM_INSECURE_TLS=1`
    takes it."""
    file, context = certificate(tmp_path, name, days)
    async with serving(tls=context) as server:
        with pytest.raises(EndpointStopped) as caught:
            async with Client(
                Address(server.url, KEY, ca_file=str(file)), timeout=HANGS, connections=1
            ) as client:
                await call(client)
        assert server.heads == []
        async with Client(
            Address(server.url, KEY, insecure_tls=True), timeout=HANGS, connections=1
        ) as client:
            assert (await call(client)).reply.completion == Completion("好")
    assert (
        why in str(caught.value)
        and "LLM_INSECURE_TLS=1" in str(caught.value)
        and "\n" not in str(caught.value)
    )


@pytest.mark.parametrize("proxy", [None, "http://proxy.example:3128"])
def test_run_is_told_that_certificates_are_not_checked(proxy, monkeypatch):
    """With or without a proxy, at https alone: `run` shows the way of an address wherever it is not
    the plain one."""
    if proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy)
    told = connection(Address("https://h.example/v1", insecure_tls=True), 1).route
    assert "without checking its certificate" in told and told != DIRECTLY
    assert "certificate" not in connection(Address("https://h.example/v1"), 1).route
    assert connection(Address("http://h.example/v1", insecure_tls=True), 1).route == DIRECTLY


@pytest.mark.parametrize(("seconds", "doubted"), [(30.0, True), (31.0, True), (39.0, False)])
def test_time_out_of_a_machine_that_stood_still_condemns_no_address(seconds, doubted, monkeypatch):
    """A time-out that comes late for seconds says nothing of its address: it is tried again, no run
    stops."""

    async def runs_out(*asked: object, **more: object) -> None:
        await asyncio.sleep(seconds)
        raise aiohttp.ConnectionTimeoutError("too late")

    async def sent() -> TransportFault:
        monkeypatch.setattr(Client, "_posted", runs_out)
        async with Client(
            Address("http://model.example/v1", KEY), timeout=600.0, connections=1
        ) as client:
            with pytest.raises(TransportFault) as caught:
                await client.send(b"{}")
        return caught.value

    fault = virtual.run(sent)
    assert (fault.kind, fault.unreachable) == ("connect", doubted)


@contextmanager
def taking_no_connections(*hosts: str) -> Iterator[int]:
    """One port of several addresses of this machine, whose queues of connections are full: it drops
    what knocks."""
    port = 0
    with ExitStack() as held:
        for host in hosts:
            full = held.enter_context(socket.socket())
            full.bind((host, port))
            full.listen(0)
            port = full.getsockname()[1]
            for _ in range(2):
                waiting = held.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex((host, port))
        yield port


@pytest.mark.anyio
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a full queue refuses")
@pytest.mark.parametrize("seconds", [PATIENCE, HANGS], ids=["all the time", "a part of it"])
async def test_host_of_several_dead_addresses_is_unreachable_after_the_time_of_one(
    seconds, monkeypatch
):
    """They share the time, so that the run learns of its wrong address, before the request's own
    deadline passes."""
    hosts, asked = ("127.0.0.1", "127.0.0.2", "127.0.0.3"), 0
    loop = asyncio.get_running_loop()

    async def resolved(name: str, port: int, **more: object) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port)) for host in hosts]

    async def knock(*args: Any) -> None:
        nonlocal asked
        asked += 1
        await connects(*args)

    connects = loop.sock_connect
    monkeypatch.setattr(loop, "sock_connect", knock)
    monkeypatch.setattr(loop, "getaddrinfo", resolved)
    monkeypatch.setattr("harness.client.http.CONNECT_SECONDS", PATIENCE)
    with taking_no_connections(*hosts) as port:
        async with Client(
            Address(f"http://model.example:{port}/v1", KEY), timeout=seconds, connections=1
        ) as client:
            with pytest.raises(TransportFault) as caught, anyio.fail_after(HANGS):
                await client.send(b"{}")
    assert (caught.value.kind, caught.value.unreachable) == ("connect", True)
    patience = min(PATIENCE, seconds / 2)
    assert caught.value.detail.endswith(
        f"/v1/chat/completions takes no connection within {patience:g} s"
    )
    assert asked == 1


# The command line


def baseline(body: bytes) -> bytes:
    """What the embedded endpoint would answer."""
    call = orjson.loads(body)
    return body_of(registry.baselines()[call["model"]](call["messages"], 0))


@contextmanager
def in_a_thread(*scripts: Script) -> Iterator[Server]:
    """A baseline model behind the scripts, for commands that have a loop of their own."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(serving(*scripts, answer=baseline)) as server,
    ):
        yield server


@pytest.mark.slow
def test_run_through_hostile_replies_scores_nobody_on_a_failure(tmp_path, monkeypatch):
    """Every second one after another comes in place of a reply; no user fails, and the results file
    is that of a calm run."""
    half = [script for script, _ in RETRIED.values()][::2]
    monkeypatch.setenv("LLM_API_KEY", KEY)
    tasks = str(tmp_path / "tasks")
    assert main(["synth", "--out", tasks, "--users", "12", "--platform", "zhihu"]) == 0
    options = [
        "--platform",
        "zhihu",
        "--name",
        "run",
        "--tasks-dir",
        tasks,
        "--timeout",
        "0.5",
        "--max-retries",
        "60",
    ]
    found = {}
    for label, scripts in (("calm", []), ("hostile", half)):
        with in_a_thread(*scripts) as server:
            run = [
                "run",
                "--model",
                "baseline/recency",
                "--api-url",
                server.url,
                "--results-dir",
                str(tmp_path / label),
            ]
            assert main([*run, *options]) == 0
        found[label] = (tmp_path / label / "run/inference_results_zhihu.jsonl").read_bytes()
        assert not (tmp_path / label / "run/failures_zhihu.jsonl").read_bytes()
    log = (tmp_path / "hostile/run/run_zhihu.log").read_text()
    events = list(map(orjson.loads, log.splitlines()))
    of_probes = [event["detail"].split(": ")[0] for event in events if event["what"] == "outage"]
    kinds = {event["kind"] for event in events if event["what"] == "retry"} | {*of_probes}
    assert found["hostile"] == found["calm"]
    assert kinds >= {"timeout", "too_large", "bad_http", "bad_json", "truncated", "http_101"}
    assert log.count('"what":"retry"') + len(of_probes) >= len(half)
    assert KEY not in log
