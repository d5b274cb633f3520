"""The client over real loopback connections: what arrives, what leaves, and what never leaves."""

from __future__ import annotations

import asyncio
import errno
import gzip
import os
import resource
import shutil
import socket
import ssl
import subprocess
import tracemalloc
import zlib
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import aiohttp
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.client import http as client_module
from harness.client.address import Address, check, public_url
from harness.client.connect import CA_VARIABLES
from harness.client.http import Client
from harness.client.transport import Received
from harness.errors import (
    BadInput,
    EndpointStopped,
    HarnessError,
    MachineError,
    Rejected,
    TransportFault,
)
from harness.model import Completion
from tests.client.test_hostile import serving as staying
from tests.support import BOTH_LOOPS, first_quick, virtual

KEY = "sk-Zq0123456789abcdefWXYZ"
HANGS = 30.0  # seconds; reached only by a test that would wait for ever
GOOD = orjson.dumps({"choices": [{"message": {"content": "好"}, "finish_reason": "stop"}]})
CALL = orjson.dumps(
    {"model": "baseline/recency", "messages": [{"role": "user", "content": '从 ["狗", "猫"] 里选'}]}
)


async def send(address: Address, body: bytes = b"{}", seconds: float = HANGS) -> Completion:
    async with Client(address, timeout=seconds, connections=2) as client:
        return (await client.send(body)).completion


async def fault_of(address: Address, body: bytes = b"{}", seconds: float = HANGS) -> HarnessError:
    with pytest.raises(HarnessError) as caught:
        await send(address, body, seconds)
    return caught.value


class Server:
    """A scripted HTTP server: keeps the head and body of each request, answers each with the same
    bytes, and closes."""

    def __init__(self, reply: bytes) -> None:
        self.url = ""
        self.heads: list[str] = []
        self.bodies: list[bytes] = []
        self._reply = reply

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.heads.append(head)
            self.bodies.append(await reader.readexactly(int(header(head, "Content-Length") or "0")))
            writer.write(self._reply)
            await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            pass  # the client has gone; its own error is what the test looks at
        finally:
            writer.close()


def header(head: str, name: str) -> str | None:
    lines = [line.partition(":") for line in head.splitlines()[1:]]
    return next((value.strip() for found, _, value in lines if found.lower() == name.lower()), None)


def http(status: int, body: bytes, *headers: str) -> bytes:
    lines = [
        f"HTTP/1.1 {status} Status",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *headers,
        "",
        "",
    ]
    return "\r\n".join(lines).encode() + body


@asynccontextmanager
async def serving(
    reply: bytes = http(200, GOOD), tls: ssl.SSLContext | None = None
) -> AsyncIterator[Server]:
    server = Server(reply)
    listener = await asyncio.start_server(server.answer, "127.0.0.1", 0, ssl=tls)
    port = listener.sockets[0].getsockname()[1]
    server.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}/v1"
    try:
        yield server
    finally:
        listener.close()


# The embedded endpoint's faults


KINDS = {
    "429": {"http_429"},
    "429-date": {"http_429"},
    "500": {"http_500"},
    "503-html": {"http_503"},
    "reset": {"connection"},
    "reset-body": {"connection", "truncated"},  # as the reset or the end of the body is seen first
    "stall": {"timeout"},
    "truncated": {"bad_json"},
    "no-choices": {"no_choices"},
}


@BOTH_LOOPS
@pytest.mark.anyio
@pytest.mark.parametrize("kind", KINDS)
async def test_each_transport_fault_becomes_a_fault_of_its_kind(kind):
    """Everything that the embedded endpoint can do wrong on the wire is worth another try and no
    wrong address."""
    from tests.support.endpoint_double import faults
    from tests.support.endpoint_double.app import Options, start
    from tests.support.endpoint_double.faults import FaultPlan

    endpoint = await start(Options(faults=FaultPlan(1.0, (kind,))))
    try:
        fault = await fault_of(Address(endpoint.url, KEY), CALL, 0.5 if kind == "stall" else HANGS)
    finally:
        await endpoint.close()
    assert isinstance(fault, TransportFault)
    assert fault.kind in KINDS[kind]
    assert not fault.unreachable
    assert (fault.retry_after is not None) == kind.startswith("429")
    assert fault.retry_after is None or 0 < fault.retry_after <= faults.RETRY_AFTER + 1


# Addresses


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("form", "path"),
    [
        ("", "/v1/chat/completions"),
        ("/", "/v1/chat/completions"),
        ("/chat/completions", "/v1/chat/completions"),
        ("/chat/completions/", "/v1/chat/completions"),
        ("?api-version=2024-10-21", "/v1/chat/completions?api-version=2024-10-21"),
        ("/proxy/中/v2", "/v1/proxy/%E4%B8%AD/v2/chat/completions"),
    ],
)
async def test_every_form_of_an_address_posts_to_chat_completions(form, path):
    """With or without slash, as base or as the whole path, with a query: the same request, its body
    untouched."""
    body = orjson.dumps({"text": "标签\u2028"})
    async with serving() as server:
        assert await send(Address(server.url + form), body) == Completion("好")
    assert server.heads[0].splitlines()[0] == f"POST {path} HTTP/1.1"
    assert header(server.heads[0], "Content-Type") == "application/json"
    assert server.bodies == [body]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://h.example/v1", "https://h.example/v1"),
        ("https://h.example/v1/", "https://h.example/v1"),
        ("http://h.example:8000", "http://h.example:8000"),
        ("http://user:secret@h.example:8000/v1?key=secret#secret", "http://h.example:8000/v1"),
        ("http://secret@[2001:db8::1]:80/v1", "http://[2001:db8::1]:80/v1"),
        ("secret@h.example/v1", "(not an address)"),
        ("https:/user:secret@h.example/v1", "(not an address)"),
        ("http://user:se/cret@h.example/v1", "(not an address)"),
        ("http://[secret", "(not an address)"),
        ("", "(not an address)"),
    ],
)
def test_public_address_has_no_credentials_and_no_query(url, shown):
    """What files and displays show of an address is scheme, host, port and path; of a mistyped one,
    nothing."""
    assert public_url(url) == shown
    assert repr(Address(url, KEY)) == f"Address({shown!r})"


@given(st.text(max_size=40) | st.from_regex(r"\Ahttps?://[!-~]{0,30}\Z"))
def test_any_address_is_usable_or_bad_input(url):
    """No text given as an address can raise anything but `BadInput`, and none can break its own
    representation."""
    assert KEY not in repr(Address(url, KEY))
    try:
        check(Address(url))
    except BadInput:
        return
    Client(Address(url), timeout=1.0, connections=1)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "relay.example/v1",
        "localhost:8000/v1",
        "ftp://relay.example/v1",
        "http://",
        "http:///v1",
        "http://relay.example:port/v1",
        "http://relay.example:0/v1",
        "http://relay.example:99999/v1",
        "http://relay..example/v1",
        f"http://{'a' * 64}.example/v1",
        "http://[::1/v1",
        "http://re lay.example/v1",
        "http://relay.example/v1 ",
        "http://relay.example/v1\n",
        "http://relay.example/v1/\udce4",
    ],
)
def test_address_that_cannot_be_used_is_bad_input_before_anything_is_sent(url):
    """The sentence says what form an address has."""
    with pytest.raises(BadInput, match=r"http\(s\)://HOST"):
        Client(Address(url), timeout=1.0, connections=1)


@pytest.mark.parametrize(
    "key", ["sk-12 34", "sk-1234\n", "sk-一二三四", "sk-1234\x00", "“sk-1234”"]
)
def test_key_that_no_header_can_carry_is_bad_input_and_not_shown(key):
    """Line ends of a pasted key and typographic quotes are found before they become a strange
    error."""
    with pytest.raises(BadInput, match="the key") as caught:
        Client(Address("http://h.example/v1", key), timeout=1.0, connections=1)
    assert "1234" not in str(caught.value)


def test_key_beside_credentials_in_the_address_is_bad_input():
    """Both would be the Authorization header; which one is meant is not for us to guess."""
    with pytest.raises(BadInput, match="only one of them") as caught:
        Client(Address("http://user:secret@h.example/v1", KEY), timeout=1.0, connections=1)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("credentials", ["us%3Aer:secret7", "user:secret7密码", "%E5:secret7"])
def test_credentials_that_no_header_can_carry_are_bad_input_and_not_shown(credentials):
    """They are found before anything is sent, and the sentence says what is wrong with them."""
    with pytest.raises(BadInput, match="credentials") as caught:
        Client(Address(f"http://{credentials}@h.example/v1"), timeout=1.0, connections=1)
    assert "secret7" not in str(caught.value)
    assert "h.example" in str(caught.value)


@BOTH_LOOPS
@pytest.mark.anyio
async def test_refused_connection_is_an_unreachable_address_by_name():
    """Nobody listens: the fault names the address and doubts it."""
    with socket.socket() as bound:  # bound, not listening: nobody else can take the port meanwhile
        bound.bind(("127.0.0.1", 0))
        fault = await fault_of(Address(f"http://127.0.0.1:{bound.getsockname()[1]}/v1", KEY))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}/v1"
    assert isinstance(fault, TransportFault)
    assert (fault.kind, fault.unreachable) == ("connect", True)
    assert url in fault.detail


@BOTH_LOOPS
@pytest.mark.anyio
async def test_unknown_host_is_an_unreachable_address_by_name():
    """A name that no resolver knows: the fault names the address and doubts it."""
    fault = await fault_of(Address("http://model.invalid/v1?key=secret", KEY))
    assert isinstance(fault, TransportFault)
    assert (fault.kind, fault.unreachable) == ("unknown_host", True)
    assert "http://model.invalid/v1" in fault.detail
    assert "secret" not in fault.detail


@pytest.mark.anyio
@pytest.mark.parametrize("version", ["", "/v1"])
@pytest.mark.parametrize(
    ("status", "body", "foreign"),
    [
        (404, b'{"detail":"Not Found"}', False),
        (405, b"", False),
        (200, b"<html>Hello</html>", True),
    ],
)
async def test_wrong_address_is_named_with_a_hint_that_fits_it(status, body, foreign, version):
    """A path that the server does not have, one that takes no POST, and a web page: an address that
    has a version is not told to end in one."""
    async with serving(http(status, body)) as server:
        address = server.url.removesuffix("/v1") + version
        fault = await fault_of(Address(address, KEY))
    assert isinstance(fault, TransportFault)
    assert (fault.unreachable, fault.foreign) == (not foreign, foreign)
    assert f"{address}/chat/completions" in fault.detail
    assert ("end in /v1" in fault.detail) is not bool(version)


@pytest.mark.anyio
async def test_what_stops_a_run_names_the_address():
    """Wrong key, no balance, unknown model: the sentence begins with where that was said."""
    for status in (401, 402):
        async with serving(http(status, b"")) as server:
            error = await fault_of(Address(server.url, KEY))
        assert isinstance(error, EndpointStopped)
        assert str(error).startswith(f"{server.url}/chat/completions: ")


# The key


@pytest.mark.anyio
async def test_key_is_sent_as_bearer_and_without_key_there_is_no_header():
    """A local server without authentication is not bothered with an empty header."""
    async with serving() as server:
        await send(Address(server.url, KEY))
        await send(Address(server.url))
    assert header(server.heads[0], "Authorization") == f"Bearer {KEY}"
    assert header(server.heads[1], "Authorization") is None


@pytest.mark.anyio
async def test_credentials_in_an_address_are_sent_and_never_shown():
    """`http://user:password@host` is basic authentication; messages show the address without it."""
    async with serving(http(500, b"")) as server:
        url = server.url.replace("http://", "http://user:secret@")
        fault = await fault_of(Address(url))
    assert (header(server.heads[0], "Authorization") or "").startswith("Basic ")
    assert "secret" not in str(fault)


@pytest.mark.anyio
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirect_is_not_followed_and_takes_no_key_along(status):
    """The run stops and names the other address; nothing was sent there."""
    async with serving() as other, serving(http(status, b"", f"Location: {other.url}")) as server:
        error = await fault_of(Address(server.url, KEY))
    assert isinstance(error, EndpointStopped)
    assert other.url in str(error)
    assert other.heads == []
    assert len(server.heads) == 1


ECHO = f"Incorrect API key provided: {KEY}. 密钥{KEY}无效"


@pytest.mark.anyio
@pytest.mark.parametrize(
    "reply",
    [
        *[
            http(status, orjson.dumps({"error": {"message": ECHO}}))
            for status in (400, 401, 402, 404, 429, 500)
        ],
        http(401, ECHO.encode()),
        http(200, orjson.dumps({"error": {"code": KEY, "message": ECHO}})),
        http(307, b"", f"Location: https://h.example/v1?key={KEY}"),
        http(500, ("长" * 270 + KEY).encode()),
        http(500, ("x" * 290 + " " + KEY).encode()),
        f"HTTP/1.1 {KEY} Bad\r\n\r\n".encode(),
        f"HTTP/1.1 200 OK\r\nContent-Length: {KEY}\r\n\r\n".encode(),
        f"{KEY}\r\n\r\n".encode(),
    ],
)
async def test_key_that_an_endpoint_echoes_is_scrubbed(reply):
    """Neither whole nor in part does the key come back in text, representation or details of an
    error."""
    async with serving(reply) as server:
        error = await fault_of(Address(server.url, KEY))
    shown = " ".join([str(error), repr(error), repr(error.args), str(getattr(error, "detail", ""))])
    assert KEY[:6] not in shown
    assert error.__suppress_context__ and error.__cause__ is None


def basic(credentials: str) -> str:
    return b64encode(credentials.encode()).decode()


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("credentials", "query", "echoed", "secret"),
    [
        (
            "",
            "?api_key=QUERYSECRET99",
            "POST /v1/chat/completions?api_key=QUERYSECRET99",
            "QUERYSECRET99",
        ),
        (
            "",
            "?a=1&token=QUERY%2FSECRET%3D9&b=",
            "token QUERY/SECRET=9 and QUERY%2FSECRET%3D9",
            "SECRET",
        ),
        ("", "?key=QUERY+SECRET", "QUERY SECRET, QUERY+SECRET", "SECRET"),
        ("", "?key=密SECRET", "%E5%AF%86SECRET, 密SECRET", "SECRET"),
        ("", "?QUERYSECRET99", "QUERYSECRET99", "QUERYSECRET99"),
        ("", "?a=SECRET&b=SECRET-TAIL99", "SECRET-TAIL99", "TAIL99"),
        ("user:PASS@", "", f"Authorization: Basic {basic('user:PASS')}", basic("user:PASS")[:-2]),
        ("user:PASS@", "", "no such password: PASS", "PASS"),
        ("us%40er:P%2FASS@", "", f"P/ASS, P%2FASS, {basic('us@er:P/ASS')}", "ASS"),
        ("TOKEN99@", "", f"TOKEN99, {basic('TOKEN99:')}", "TOKEN99"),
        ("TOKEN99@", "", f"{basic('TOKEN99:')}", basic("TOKEN99:")[:6]),
    ],
)
async def test_secret_of_an_address_that_an_endpoint_echoes_is_scrubbed(
    credentials, query, echoed, secret
):
    """A key in the query, a password, and what stands for both in a header are as secret as a
    key."""
    for status in (200, 400, 401, 429, 500):
        async with serving(
            http(status, orjson.dumps({"error": {"message": f"refused: {echoed}"}}))
        ) as server:
            error = await fault_of(
                Address(server.url.replace("http://", f"http://{credentials}") + query)
            )
        shown = " ".join(
            [str(error), repr(error), repr(error.args), str(getattr(error, "detail", ""))]
        )
        assert secret not in shown
        assert "refused: " in shown


@pytest.mark.anyio
async def test_what_the_public_address_shows_is_no_secret():
    """A query that repeats the host must not take the address out of the message that names it."""
    async with serving(http(404, b'{"detail":"Not Found"}')) as server:
        fault = await fault_of(Address(f"{server.url}?host=127.0.0.1&path=completions"))
    assert f"{server.url}/chat/completions answers 404" in str(fault)


@pytest.mark.anyio
async def test_proxy_that_wants_credentials_is_the_proxy_s_fault(
    monkeypatch,
):
    """On a plain address its 407 comes like a reply of the endpoint's; it refuses no request of a
    user's."""
    async with serving(http(407, b"who are you?")) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url.removesuffix("/v1"))
        fault = await fault_of(Address("http://model.invalid/v1"))
    assert isinstance(fault, TransportFault)
    assert (fault.kind, fault.unreachable) == ("proxy", True)
    assert "the proxy for http://model.invalid/v1" in fault.detail and "407" in fault.detail


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["text/plain", "application/json", "application/octet-stream"])
async def test_stream_under_a_wrong_type_is_one(kind):
    """A whole reply that was paid for is not asked for again because of its label."""
    async with serving(http(200, STREAM, f"Content-Type: {kind}")) as server:
        assert (await send(Address(server.url))).text == "标签好"
    async with serving(http(200, GOOD, "Content-Type: text/event-stream")) as server:
        assert (await send(Address(server.url))).text == "好"


@pytest.mark.anyio
async def test_credentials_of_a_proxy_that_it_echoes_are_scrubbed(
    monkeypatch,
):
    """What the harness tells a proxy about itself is no matter for a log either."""
    echoed = f"user:hidden refused, Basic {basic('user:hidden')}"
    async with serving(http(500, orjson.dumps({"error": echoed}))) as proxy:
        monkeypatch.setenv(
            "HTTP_PROXY", proxy.url.removesuffix("/v1").replace("//", "//user:hidden@")
        )
        fault = await fault_of(Address("http://model.invalid/v1", KEY))
    assert header(proxy.heads[0], "Proxy-Authorization") == f"Basic {basic('user:hidden')}"
    assert str(fault).rstrip("=") == "http_500: user:*** refused, Basic ***"


@pytest.mark.anyio
async def test_key_in_the_served_models_name_is_scrubbed_and_a_text_is_never_touched():
    """The name goes into files and reports; a text is what the model said, whatever that was."""
    content = {
        "choices": [{"message": {"content": KEY}, "finish_reason": "stop"}],
        "model": f"qwen/{KEY}",
    }
    async with (
        serving(http(200, orjson.dumps(content))) as server,
        Client(Address(server.url, KEY), timeout=HANGS, connections=1) as client,
    ):
        for _ in range(2):
            assert (await client.send(b"{}")).completion == Completion(KEY, model="qwen/***")


@pytest.mark.anyio
@pytest.mark.parametrize("streamed", [False, True])
async def test_key_in_finish_reason_or_refusal_is_scrubbed_as_in_the_model(streamed):
    """All three are the endpoint's words and are saved; what the model said, thoughts too,
    stays."""
    message = {"content": KEY, "refusal": f"no: {KEY}", "reasoning": KEY}
    choice = {"index": 0, "message": message, "finish_reason": f"odd {KEY}"}
    body = orjson.dumps({"choices": [choice], "model": "qwen"})
    reply = (
        http(200, b"data: " + body + b"\n\n", "Content-Type: text/event-stream")
        if streamed
        else http(200, body)
    )
    async with (
        serving(reply) as server,
        Client(Address(server.url, KEY), timeout=HANGS, connections=1) as client,
    ):
        for _ in range(2):
            found = (await client.send(b"{}")).completion
            assert found == Completion(
                KEY, "odd ***", model="qwen", refusal="no: ***", reasoning=KEY
            )


@pytest.mark.anyio
@pytest.mark.parametrize("reason", ["length", "content_filter", "tool_calls"])
async def test_key_that_is_a_word_of_the_protocol_takes_no_finish_reason_away(reason):
    """A placeholder may be any word; the known reasons are this program's own by then."""
    content = {"choices": [{"message": {"content": "好"}, "finish_reason": reason}]}
    async with (
        serving(http(200, orjson.dumps(content))) as server,
        Client(Address(server.url, reason), timeout=HANGS, connections=1) as client,
    ):
        assert (await client.send(b"{}")).completion.finish_reason == reason


@pytest.mark.anyio
async def test_placeholder_of_a_local_server_is_not_taken_for_a_secret():
    """`EMPTY` is what people give to servers that want some key; the word stays in messages."""
    async with serving(http(500, b"EMPTY queue")) as server:
        assert "EMPTY queue" in str(await fault_of(Address(server.url, "EMPTY")))


@pytest.mark.anyio
async def test_cookies_of_an_endpoint_are_not_sent_back():
    """Requests are alike, whatever an endpoint or its gateway tries to remember."""
    async with (
        serving(http(200, GOOD, "Set-Cookie: session=7; Path=/")) as server,
        Client(Address(server.url), timeout=HANGS, connections=1) as client,
    ):
        await client.send(b"{}")
        await client.send(b"{}")
    assert [header(head, "Cookie") for head in server.heads] == [None, None]


# Errors as a list


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("status", "message", "expected"),
    [
        (400, "API key not valid. Please pass a valid API key.", EndpointStopped),
        (400, "Invalid value at 'temperature'", Rejected),
        (403, "Permission denied on resource project 7.", EndpointStopped),
        (429, "Resource has been exhausted (e.g. check quota).", TransportFault),
    ],
)
async def test_error_in_a_list_is_the_error(status, message, expected):
    """Gemini's endpoint sends `[{"error": ...}]`: it is judged and shown like the object in it."""
    wait = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "7s"}
    body = orjson.dumps([{"error": {"code": status, "message": message, "details": [wait]}}])
    async with (
        serving(http(status, body)) as server,
        Client(Address(server.url), timeout=HANGS, connections=1) as client,
    ):
        with pytest.raises(expected) as caught:
            await client.send(b"{}")
    assert f"{status}, {message}" in str(caught.value)
    assert not isinstance(caught.value, TransportFault) or caught.value.retry_after == 7.0


# Quotas that are used up for now


@pytest.mark.anyio
@pytest.mark.parametrize("status", [200, 429])
@pytest.mark.parametrize("what", ["Requests", "Tokens"])
async def test_used_up_quota_is_told_with_the_time_until_its_reset(status, what):
    """Whether this very request was served or not; the reply itself is what it would have been.

    After an answer it is a minute at most: some endpoints always say that nothing is left.
    """
    headers = f"X-RateLimit-Remaining-{what}: 0", f"X-RateLimit-Reset-{what}: 1m30s"
    told: list[float] = []
    async with (
        serving(http(status, GOOD, *headers)) as server,
        Client(
            Address(server.url), timeout=HANGS, connections=1, on_exhausted=told.append
        ) as client,
    ):
        if status == 200:
            assert (await client.send(b"{}")).completion == Completion("好")
        else:
            with pytest.raises(TransportFault):
                await client.send(b"{}")
    assert told == [60.0 if status == 200 else 90.0]


# Broken transport

CHUNK = orjson.dumps({"choices": [{"delta": {"content": "好"}, "finish_reason": None}]})


@BOTH_LOOPS
@pytest.mark.anyio
@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (b"", "connection"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "bad_http"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000 + b"\r\n\r\n", "bad_http"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n" + GOOD[:-1], "truncated"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n" + GOOD + GOOD, "truncated"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n" + CHUNK, "truncated"),
        (b"HTTP/1.1 500 Error\r\nContent-Length: 900\r\n\r\n" + GOOD, "truncated"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc", "truncated"),
        (http(200, gzip.compress(GOOD) + GOOD, "Content-Encoding: gzip"), "truncated"),
        (http(200, GOOD[:20]), "bad_json"),
        (http(200, b"\xff\xfe"), "bad_json"),
    ],
)
async def test_whatever_comes_over_the_wire_is_a_fault_in_our_words(reply, kind):
    """Closed connections, other protocols, and lies about length or encoding are tried again;
    nothing escapes."""
    async with serving(reply) as server:
        fault = await fault_of(Address(server.url + "?key=secret", KEY))
    assert isinstance(fault, TransportFault)
    assert (fault.kind, fault.unreachable) == (kind, False)
    assert "secret" not in str(fault)
    assert "\n" not in str(fault)


@pytest.mark.anyio
@pytest.mark.parametrize("status", [200, 201, 202, 206, 299])
async def test_whole_completion_under_any_status_of_success_is_one(status):
    """A relay that answers 201 Created has answered; asking again would be paid again."""
    async with serving(http(status, GOOD)) as server:
        assert await send(Address(server.url, KEY)) == Completion("好")
    async with serving(http(status, b"{}")) as server:
        fault = await fault_of(Address(server.url, KEY))
    assert isinstance(fault, TransportFault) and fault.kind == "no_choices"


# More than memory or this process can hold


MEGABYTE = 2**20


def bomb(megabytes: int) -> bytes:
    """A deflate stream of so many megabytes of blanks, a thousand times shorter than they are."""
    packer = zlib.compressobj(wbits=31)
    first, again = [
        packer.compress(b" " * MEGABYTE) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2)
    ]
    return first + again * (megabytes - 1)


@BOTH_LOOPS
@pytest.mark.anyio
@pytest.mark.parametrize("status", [200, 302])
@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (("Content-Encoding: gzip",), bomb(60)),
        ((), b" " * (2 * MEGABYTE)),
        (("Transfer-Encoding: chunked",), b"200000\r\n" + b" " * (2 * MEGABYTE)),
    ],
    ids=["bomb", "long", "endless"],
)
async def test_reply_that_is_too_large_is_left_before_memory_is(status, headers, body, monkeypatch):
    """Past the limit nothing more is read or unpacked, whatever the length was said to be."""
    monkeypatch.setattr(client_module, "LARGEST_REPLY", MEGABYTE)
    head = "\r\n".join([f"HTTP/1.1 {status} Status", *headers, "", ""]).encode()
    async with serving(head + body) as server:
        tracemalloc.start()
        try:
            fault = await fault_of(Address(server.url, KEY))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert isinstance(fault, TransportFault)
    assert (fault.kind, fault.detail) == ("too_large", "the reply is longer than 1 MB")
    assert peak < 20 * MEGABYTE


@pytest.mark.anyio
async def test_of_an_endpoints_own_words_the_beginning_is_kept():
    """Nobody reads megabytes of a model's name or a refusal, in all of which secrets would be
    looked for."""
    message = {"content": "好", "refusal": f"{KEY} {'no' * MEGABYTE}"}
    choice = {"message": message, "finish_reason": "r" * MEGABYTE}
    reply = orjson.dumps({"model": "m" * MEGABYTE, "choices": [choice]})
    async with serving(http(200, reply)) as server:
        completion = await send(Address(server.url, KEY))
    assert completion.model == "m" * 100_000 and completion.finish_reason == "r" * 100_000
    assert (
        completion.refusal and KEY not in completion.refusal and len(completion.refusal) <= 100_000
    )


@pytest.mark.anyio
async def test_reply_up_to_the_limit_is_read_whole(monkeypatch):
    """In as many pieces as it may come, with and without its length."""
    monkeypatch.setattr(client_module, "LARGEST_REPLY", MEGABYTE)
    body = GOOD + b" " * (MEGABYTE - len(GOOD))
    for reply in (http(200, body), b"HTTP/1.1 200 OK\r\n\r\n" + body):
        async with serving(reply) as server:
            assert await send(Address(server.url, KEY)) == Completion("好")


@contextmanager
def no_file_left() -> Iterator[None]:
    """This process may open no further file meanwhile."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@BOTH_LOOPS
@pytest.mark.anyio
async def test_process_without_a_file_for_a_socket_stops_as_this_machines_fault():
    """The endpoint is not to blame and tries would not help; the sentence says what would."""
    async with (
        serving() as server,
        Client(Address(server.url, KEY), timeout=HANGS, connections=7) as client,
    ):
        with no_file_left(), pytest.raises(MachineError, match=r"ulimit -n.*--concurrency"):
            await client.send(b"{}")
        assert (await client.send(b"{}")).completion == Completion("好")


@pytest.mark.anyio
@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
@pytest.mark.parametrize(
    "kind", [None, aiohttp.ClientConnectorError, aiohttp.ClientConnectorDNSError]
)
async def test_full_table_of_files_is_this_machines_fault_wherever_it_shows(
    number, kind, monkeypatch
):
    """In the resolver as at the socket, for this process as for the whole system."""
    cause = OSError(number, os.strerror(number))

    def broken(*ignored: object, **more: object) -> None:
        raise cause if kind is None else kind(PEER, cause)  # type: ignore[arg-type]

    monkeypatch.setattr(Client, "_posted", broken)
    error = await fault_of(Address("http://model.invalid/v1", KEY))
    assert type(error) is MachineError
    assert os.strerror(number) in str(error)


@pytest.mark.anyio
async def test_cancelled_request_stays_cancelled():
    """A run that stops cancels what is on the wire; that is nobody's fault."""
    from tests.support.endpoint_double.app import Options, start
    from tests.support.endpoint_double.faults import FaultPlan

    endpoint = await start(Options(faults=FaultPlan(1.0, ("stall",))))
    try:
        sending = asyncio.create_task(send(Address(endpoint.url), CALL))
        await asyncio.sleep(0)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
    finally:
        await endpoint.close()


PEER = SimpleNamespace(host="model.invalid", port=443, ssl=True, is_ssl=True)
REFUSAL = OSError(111, "Connection refused")
ASKED = SimpleNamespace(real_url="http://model.invalid/v1?key=secret")
STOPS = "stops the run"

DECISIONS: dict[type[aiohttp.ClientError], str] = {
    aiohttp.ClientError: "connection",
    aiohttp.ClientConnectionError: "connection",
    aiohttp.ClientConnectionResetError: "connection",
    aiohttp.ClientOSError: "connection",
    aiohttp.ServerConnectionError: "connection",
    aiohttp.ServerDisconnectedError: "connection",
    aiohttp.ServerFingerprintMismatch: "connection",  # fingerprints are not used
    aiohttp.client_exceptions.UploadAbortedError: "connection",
    aiohttp.client_exceptions.RedirectClientError: "connection",  # redirects are not followed
    aiohttp.ClientConnectorError: "connect",
    aiohttp.client_exceptions.UnixClientConnectorError: "connect",
    aiohttp.ClientSSLError: "connect",
    aiohttp.ClientConnectorSSLError: "connect",  # a server that restarts fails a handshake too
    aiohttp.ConnectionTimeoutError: "connect",
    aiohttp.ClientConnectorDNSError: "unknown_host",
    aiohttp.ServerTimeoutError: "timeout",
    aiohttp.SocketTimeoutError: "timeout",
    aiohttp.ClientPayloadError: "truncated",
    aiohttp.ClientProxyConnectionError: "proxy",
    aiohttp.ClientHttpProxyError: "proxy",
    aiohttp.ClientResponseError: "bad_http",
    aiohttp.ContentTypeError: "bad_http",
    aiohttp.TooManyRedirects: "bad_http",
    aiohttp.WSServerHandshakeError: "bad_http",
    aiohttp.ClientConnectorCertificateError: STOPS,
    aiohttp.InvalidURL: STOPS,
    aiohttp.InvalidUrlClientError: STOPS,
    aiohttp.InvalidUrlRedirectClientError: STOPS,
    aiohttp.NonHttpUrlClientError: STOPS,
    aiohttp.NonHttpUrlRedirectClientError: STOPS,
}
UNREACHABLE = {"connect", "unknown_host", "proxy"}


def descendants(kind: type[aiohttp.ClientError]) -> set[type[aiohttp.ClientError]]:
    return {kind}.union(*(descendants(child) for child in kind.__subclasses__()))


def specimen(kind: Any) -> aiohttp.ClientError:
    made: aiohttp.ClientError
    if issubclass(kind, aiohttp.client_exceptions.UnixClientConnectorError):
        made = kind("/run/socket", PEER, REFUSAL)
    elif issubclass(kind, aiohttp.ClientConnectorError):
        made = kind(PEER, REFUSAL)
    elif issubclass(kind, aiohttp.ClientResponseError):
        made = kind(ASKED, (), status=400, message="odd")
    elif issubclass(kind, aiohttp.ServerFingerprintMismatch):
        made = kind(b"a", b"b", "model.invalid", 443)
    elif issubclass(kind, aiohttp.ServerDisconnectedError):
        made = kind()
    else:
        made = kind("odd")
    return made


def test_every_error_of_aiohttp_is_decided_upon():
    """A release of aiohttp with a new error fails here, until somebody has decided what it
    becomes."""
    known = {
        kind for kind in descendants(aiohttp.ClientError) if kind.__module__.startswith("aiohttp")
    }
    assert {kind.__name__ for kind in known ^ set(DECISIONS)} == set()


@pytest.mark.anyio
@pytest.mark.parametrize("kind", DECISIONS, ids=lambda kind: kind.__name__)
async def test_each_error_of_aiohttp_becomes_what_was_decided(kind, monkeypatch):
    """One table says for each foreign error its class, and whether it doubts the address."""

    def broken(*ignored: object, **more: object) -> None:
        raise specimen(kind)

    monkeypatch.setattr(Client, "_posted", broken)
    error = await fault_of(Address("http://model.invalid/v1?key=secret", KEY))
    assert (error.kind if isinstance(error, TransportFault) else STOPS) == DECISIONS[kind]
    assert getattr(error, "unreachable", False) == (DECISIONS[kind] in UNREACHABLE)
    assert "secret" not in str(error)


# Requests


@pytest.mark.anyio
async def test_credentials_of_address_and_proxy_are_in_headers_alone(
    monkeypatch,
):
    """Not in the request line that a proxy gets."""
    async with serving() as server:
        proxy = server.url.removesuffix("/v1").replace("//", "//me:mine@")
        monkeypatch.setenv("HTTP_PROXY", proxy)
        await send(Address("http://you:yours@model.invalid/v1?a=b"), b"{}")
    line, *headers = server.heads[0].splitlines()
    assert line == "POST http://model.invalid/v1/chat/completions?a=b HTTP/1.1"
    assert {"Authorization: Basic eW91OnlvdXJz", "Proxy-Authorization: Basic bWU6bWluZQ=="} <= set(
        headers
    )


@pytest.mark.anyio
@pytest.mark.parametrize("proxy", [False, True])
@pytest.mark.parametrize("value", ["a\r\nX-Other: b", "a\nX-Other: b", "a\0b"])
async def test_header_with_a_line_end_is_never_written(value, proxy, monkeypatch):
    """It would make another header of it."""
    async with serving() as server:
        if proxy:
            monkeypatch.setenv("HTTP_PROXY", server.url.removesuffix("/v1"))
        url = "http://model.invalid/v1" if proxy else server.url
        assert type(await fault_of(Address(url, headers={"X-Own": value}))) is EndpointStopped
    assert server.heads == []


# Proxies


@pytest.mark.anyio
@pytest.mark.parametrize("form", ["http://127.0.0.1:{}", "127.0.0.1:{}", "http://127.0.0.1:{}/"])
async def test_proxy_of_the_environment_is_asked_for_the_whole_address(form, monkeypatch):
    """An HTTP endpoint behind `HTTP_PROXY`, with or without its scheme: the proxy gets the absolute
    address."""
    async with serving() as proxy:
        monkeypatch.setenv(
            "HTTP_PROXY", form.format(proxy.url.rpartition(":")[2].removesuffix("/v1"))
        )
        assert await send(Address("http://model.invalid/v1", KEY)) == Completion("好")
    assert (
        proxy.heads[0].splitlines()[0] == "POST http://model.invalid/v1/chat/completions HTTP/1.1"
    )
    assert header(proxy.heads[0], "Proxy-Authorization") is None


@pytest.mark.anyio
async def test_proxy_that_does_not_answer_is_named_as_the_cause(
    monkeypatch,
):
    """Who reads the message must look at the proxy, and never sees its password."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HTTP_PROXY", f"http://user:secret@127.0.0.1:{bound.getsockname()[1]}")
        fault = await fault_of(Address("http://model.invalid/v1", KEY))
    assert isinstance(fault, TransportFault)
    assert (fault.kind, fault.unreachable) == ("proxy", True)
    assert "http://model.invalid/v1" in fault.detail
    assert "secret" not in fault.detail


@pytest.mark.anyio
@pytest.mark.parametrize("credentials", ["", "user:hidden@"])
async def test_proxy_that_refuses_a_tunnel_gets_no_key(credentials, monkeypatch):
    """For HTTPS the proxy is asked for a tunnel only: what it refuses is a fault, what it saw held
    no key."""
    async with serving(http(407, b"", 'Proxy-Authenticate: Basic realm="secret"')) as proxy:
        monkeypatch.setenv(
            "HTTPS_PROXY", proxy.url.removesuffix("/v1").replace("//", f"//{credentials}")
        )
        fault = await fault_of(Address("https://model.invalid/v1", KEY))
    assert isinstance(fault, TransportFault)
    assert (fault.kind, fault.unreachable) == ("proxy", True)
    assert "hidden" not in str(fault)
    assert proxy.heads[0].splitlines()[0] == "CONNECT model.invalid:443 HTTP/1.1"
    assert KEY not in proxy.heads[0]
    assert (header(proxy.heads[0], "Proxy-Authorization") or "").startswith("Basic ") == bool(
        credentials
    )


# TLS


class SelfSigned(NamedTuple):
    """A server's context, and the file of its certificate."""

    server: ssl.SSLContext
    file: Path


@pytest.fixture(scope="module")
def self_signed(tmp_path_factory: pytest.TempPathFactory) -> SelfSigned:
    """A certificate for 127.0.0.1 and model.invalid that nobody has signed but itself."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl command to make a certificate with")
    folder: Path = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    made = [
        openssl,
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1,DNS:model.invalid"]
    subprocess.run(
        [*made, *names, "-keyout", key, "-out", certificate], check=True, capture_output=True
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return SelfSigned(context, certificate)


@BOTH_LOOPS
@pytest.mark.anyio
async def test_self_signed_certificate_is_refused_saying_how_to_accept_it(
    self_signed,
):
    """Nothing is sent, the run stops, and the message has cause, address and remedy."""
    async with serving(tls=self_signed.server) as server:
        error = await fault_of(Address(server.url, KEY))
    assert isinstance(error, EndpointStopped)
    assert server.url in str(error)
    assert "self-signed certificate" in str(error).replace("self signed", "self-signed")
    assert "LLM_INSECURE_TLS=1" in str(error) and "--ca-file" in str(error)
    assert server.heads == []


@BOTH_LOOPS
@pytest.mark.anyio
async def test_self_signed_certificate_is_accepted_when_told_so(self_signed):
    """`LLM_INSECURE_TLS=1` turns the check off, and everything else is as before."""
    async with serving(tls=self_signed.server) as server:
        assert await send(Address(server.url, KEY, insecure_tls=True)) == Completion("好")
    assert header(server.heads[0], "Authorization") == f"Bearer {KEY}"


@BOTH_LOOPS
@pytest.mark.anyio
@pytest.mark.parametrize("name", ["ca_file", *first_quick(CA_VARIABLES)])
async def test_certificate_of_ones_own_is_trusted_where_it_is_named(name, self_signed, monkeypatch):
    """By the address or by a variable; the check stays on, so a name that it does not hold is
    refused."""
    named = str(self_signed.file) if name == "ca_file" else None
    if named is None:
        monkeypatch.setenv(name, str(self_signed.file))
    async with serving(tls=self_signed.server) as server:
        assert await send(Address(server.url, KEY, ca_file=named)) == Completion("好")
        error = await fault_of(
            Address(server.url.replace("127.0.0.1", "localhost"), KEY, ca_file=named)
        )
    assert isinstance(error, EndpointStopped)
    assert len(server.heads) == 1


@asynccontextmanager
async def speaking_http_at_once() -> AsyncIterator[str]:
    """The address, with https, of a server that does not wait to be spoken to."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(http(400, b""))
        await reader.read()
        writer.close()

    listener = await asyncio.start_server(talk, "127.0.0.1", 0)
    try:
        yield f"https://127.0.0.1:{listener.sockets[0].getsockname()[1]}/v1"
    finally:
        listener.close()


@pytest.mark.anyio
async def test_https_to_a_server_that_speaks_http_doubts_the_address():
    """A failed handshake is no matter of trust; before any success it means a wrong address."""
    async with speaking_http_at_once() as url:
        fault = await fault_of(Address(url, KEY))
    assert isinstance(fault, TransportFault)
    assert (fault.kind, fault.unreachable) == ("connect", True)
    assert "https://127.0.0.1" in fault.detail


@pytest.mark.anyio
async def test_key_passes_a_proxy_inside_the_tunnel_only(self_signed, monkeypatch):
    """What the proxy can read of an HTTPS request is the name of the host."""
    read_by_proxy: list[bytes] = []
    async with (
        serving(tls=self_signed.server) as server,
        tunnelling(server.url, read_by_proxy) as proxy,
    ):
        monkeypatch.setenv("HTTPS_PROXY", proxy)
        found = await send(Address("https://model.invalid/v1", KEY, insecure_tls=True))
    assert found == Completion("好")
    assert header(server.heads[0], "Authorization") == f"Bearer {KEY}"
    assert read_by_proxy[0].startswith(b"CONNECT model.invalid:443 ")
    assert KEY.encode() not in b"".join(read_by_proxy)


@asynccontextmanager
async def tunnelling(target: str, read: list[bytes]) -> AsyncIterator[str]:
    """A proxy whose every tunnel ends at the server of `target`; it keeps what it could read."""
    port = int(target.rpartition(":")[2].removesuffix("/v1"))

    async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        read.append(await reader.readuntil(b"\r\n\r\n"))
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(_pass(reader, far_writer, read), _pass(far_reader, writer, []))

    listener = await asyncio.start_server(tunnel, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    finally:
        listener.close()


async def _pass(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: list[bytes]
) -> None:
    try:
        while chunk := await reader.read(65536):
            seen.append(chunk)
            writer.write(chunk)
            await writer.drain()
    except OSError:
        pass  # either side has gone, which is how tunnels end
    finally:
        writer.close()


# SOCKS proxies


@asynccontextmanager
async def socks_proxy(target: str, asked: list[bytes], refuses: bool = False) -> AsyncIterator[str]:
    """A SOCKS5 server (RFC 1928, 1929) whose every way ends at the server of `target`; keeps what
    it was asked."""
    port = int(target.rpartition(":")[2].removesuffix("/v1"))

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        methods = await reader.readexactly((await reader.readexactly(2))[1])
        writer.write(b"\x05\x02" if 2 in methods else b"\x05\x00")
        if 2 in methods:
            name = await reader.readexactly((await reader.readexactly(2))[1])
            asked.append(name + b":" + await reader.readexactly((await reader.readexactly(1))[0]))
            writer.write(b"\x01\x00")
        kind = (await reader.readexactly(4))[3]
        asked.append(
            await reader.readexactly({1: 4, 4: 16}.get(kind) or (await reader.readexactly(1))[0])
        )
        await reader.readexactly(2)
        writer.write(b"\x05" + bytes([5 if refuses else 0]) + b"\x00\x01" + bytes(6))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await greet(reader, writer)
            if not refuses:
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
                await asyncio.gather(_pass(reader, far_writer, []), _pass(far_reader, writer, []))
        except (asyncio.IncompleteReadError, OSError):
            pass  # the client has gone; its own error is what the test looks at
        finally:
            writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    finally:
        listener.close()


@pytest.fixture
def socks() -> Any:
    return pytest.importorskip("aiohttp_socks", reason="needs the extra `socks`")


@BOTH_LOOPS
@pytest.mark.anyio
@pytest.mark.parametrize("secure", [False, True], ids=["http", "https"])
async def test_socks_proxy_gets_the_name_and_the_credentials_and_no_key(
    secure, socks, self_signed, monkeypatch
):
    """`socks5h` leaves the name to the proxy, and the certificate is still that of the name."""
    asked: list[bytes] = []
    tls = self_signed.server if secure else None
    async with serving(tls=tls) as server, socks_proxy(server.url, asked) as proxy:
        monkeypatch.setenv("ALL_PROXY", f"socks5h://user:hid%20den@{proxy}")
        address = Address(
            f"http{'s' if secure else ''}://model.invalid/v1", KEY, ca_file=str(self_signed.file)
        )
        assert await send(address) == Completion("好")
    assert asked == [b"user:hid den", b"model.invalid"]
    assert header(server.heads[0], "Authorization") == f"Bearer {KEY}"
    assert header(server.heads[0], "Host") == "model.invalid"


@BOTH_LOOPS
@pytest.mark.anyio
async def test_what_a_socks_proxy_cannot_do_is_a_fault_of_its_own_kind(
    socks, self_signed, monkeypatch
):
    """Refused ways, proxies that are not there, names that nobody knows, and certificates that
    nobody trusts."""

    async def found(url: str) -> tuple[str, bool]:
        error = await fault_of(Address(url, KEY))
        assert "hidden" not in str(error)
        return (
            (error.kind, error.unreachable) if isinstance(error, TransportFault) else (STOPS, False)
        )

    async with serving(tls=self_signed.server) as server:
        async with socks_proxy(server.url, [], refuses=True) as proxy:
            monkeypatch.setenv("HTTP_PROXY", f"socks5h://user:hidden@{proxy}")
            assert await found("http://model.invalid/v1") == ("proxy", True)
        async with socks_proxy(server.url, []) as proxy:
            monkeypatch.setenv("HTTP_PROXY", f"socks5://user:hidden@{proxy}")
            assert await found("http://model.invalid/v1") == ("unknown_host", True)
            monkeypatch.setenv("HTTPS_PROXY", f"socks5h://{proxy}")
            assert await found("https://model.invalid/v1") == (STOPS, False)
        async with speaking_http_at_once() as plain, socks_proxy(plain, []) as proxy:
            monkeypatch.setenv("HTTPS_PROXY", f"socks5h://{proxy}")
            assert await found("https://model.invalid/v1") == ("connect", True)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HTTP_PROXY", f"socks5://user:hidden@127.0.0.1:{bound.getsockname()[1]}")
        assert await found("http://model.invalid/v1") == ("proxy", True)


@pytest.mark.anyio
async def test_every_error_of_a_socks_proxy_is_caught(socks, monkeypatch):
    """They are no errors of aiohttp's; a release of aiohttp-socks with a new one fails here."""
    monkeypatch.setenv("HTTP_PROXY", "socks5://127.0.0.1:1")
    exported = [getattr(socks, name) for name in socks.__all__]
    errors = [kind for kind in exported if isinstance(kind, type) and issubclass(kind, Exception)]
    known = {"ProxyError", "ProxyConnectionError", "ProxyTimeoutError"}
    assert {
        kind.__name__ for kind in errors if kind.__module__.startswith("aiohttp_socks")
    } == known
    for name in known:

        def broken(*ignored: object, name: str = name, **more: object) -> None:
            raise getattr(socks, name)("odd")

        monkeypatch.setattr(Client, "_posted", broken)
        fault = await fault_of(Address("http://model.invalid/v1", KEY))
        assert isinstance(fault, TransportFault)
        assert (fault.kind, fault.unreachable) == ("proxy", True)


@BOTH_LOOPS
@pytest.mark.anyio
@pytest.mark.parametrize("secure", [False, True], ids=["http", "https"])
@pytest.mark.parametrize("way", ["directly", "HTTP", "SOCKS"])
async def test_connection_serves_again_whatever_its_way(
    way, secure, socks, self_signed, monkeypatch
):
    """Through either proxy and inside a tunnel, too: a handshake for each request would take longer
    than it."""
    read: list[bytes] = []
    async with AsyncExitStack() as held:
        server = await held.enter_async_context(staying(tls=self_signed.server if secure else None))
        url = server.url
        if way == "HTTP" and secure:
            monkeypatch.setenv("ALL_PROXY", await held.enter_async_context(tunnelling(url, read)))
        elif way == "HTTP":
            monkeypatch.setenv("ALL_PROXY", url.removesuffix("/v1"))
        elif way == "SOCKS":
            monkeypatch.setenv(
                "ALL_PROXY", f"socks5h://{await held.enter_async_context(socks_proxy(url, read))}"
            )
        if way != "directly":
            url = f"http{'s' if secure else ''}://model.invalid/v1"
        async with Client(
            Address(url, KEY, insecure_tls=True), timeout=HANGS, connections=1
        ) as client:
            for _ in range(3):
                assert (await client.send(b"{}")).completion == Completion("好")
    assert (len(server.heads), server.connections) == (3, 1)


# Streams


Write = Callable[[bytes], None]
Script = Callable[[Write], Awaitable[None]]
"""Writes the body of a reply, in HTTP chunks. A moment of virtual time is enough for the client to
read a block."""
MOMENT = 0.001


class Stage:
    """A server of streams, in virtual time."""

    def __init__(self, script: Script, *headers: str) -> None:
        self.connections = 0
        self._script = script
        self._headers = headers or ("Content-Type: text/event-stream; charset=utf-8",)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode():
                await reader.readexactly(int(header(head, "Content-Length") or "0"))
                lines = ["HTTP/1.1 200 OK", *self._headers, "Transfer-Encoding: chunked", "", ""]
                writer.write("\r\n".join(lines).encode())
                await self._script(
                    lambda block: writer.write(b"%x\r\n%s\r\n" % (len(block), block))
                )
                writer.write(b"0\r\n\r\n")
        except (asyncio.IncompleteReadError, OSError):
            pass  # the client has gone; its own error is what the test looks at
        finally:
            writer.close()


@asynccontextmanager
async def on_stage(
    stage: Stage, seconds: float = HANGS, stall: float = HANGS
) -> AsyncIterator[Client]:
    listener = await asyncio.start_server(stage.serve, "127.0.0.1", 0)
    address = Address(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/v1", KEY)
    try:
        async with Client(address, timeout=seconds, connections=1, stall=stall) as client:
            yield client
    finally:
        listener.close()


def staged(script: Script, *headers: str, seconds: float = HANGS, stall: float = HANGS) -> Received:
    """What a client gets of a script."""

    async def sent() -> Received:
        async with on_stage(Stage(script, *headers), seconds, stall) as client:
            return await client.send(b"{}")

    return virtual.run(sent)


def fault_on_stage(script: Script, seconds: float, stall: float) -> tuple[str, str]:
    with pytest.raises(TransportFault) as caught:
        staged(script, seconds=seconds, stall=stall)
    assert not caught.value.unreachable
    return caught.value.kind, caught.value.detail


async def for_ever() -> None:
    await asyncio.Event().wait()


def piece(content: str | None = None, reason: str | None = None, **more: object) -> bytes:
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": reason}
    return b"data: " + orjson.dumps({"model": "qwen", "choices": [choice], **more}) + b"\n\n"


USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"
STREAM = piece("") + piece("标签") + piece("好") + piece(reason="stop") + USAGE + DONE
STREAMED = Completion("标签好", "stop", 7, 2, "qwen")
EVENTS = "Content-Type: text/event-stream"


@BOTH_LOOPS
@pytest.mark.anyio
async def test_streamed_reply_is_the_completion_whatever_was_asked_for():
    """Whether the request wanted a stream is not looked at: the reply says what it is. Bytes come
    one by one."""

    async def script(write: Write) -> None:
        for place in range(len(STREAM)):
            write(STREAM[place : place + 1])

    async with on_stage(Stage(script)) as client:
        for body in (b"{}", b'{"stream":true}'):
            received = await client.send(body)
            assert received.completion == STREAMED
            assert received.first_token is not None


@pytest.mark.parametrize(("encoding", "wbits"), [("gzip", 31), ("deflate", 15), ("deflate", -15)])
def test_compressed_stream_is_read_as_it_comes(encoding, wbits):
    """What a gateway compresses and flushes is there before the end."""
    packer = zlib.compressobj(wbits=wbits)

    async def script(write: Write) -> None:
        write(packer.compress(STREAM[:-60]) + packer.flush(zlib.Z_SYNC_FLUSH))
        await asyncio.sleep(5.0)
        write(packer.compress(STREAM[-60:]) + packer.flush())

    received = staged(script, EVENTS, f"Content-Encoding: {encoding}")
    assert received.completion == STREAMED
    assert received.first_token is not None and received.first_token < 1.0


@pytest.mark.parametrize("late", [0.0, MOMENT])
def test_connection_of_a_stream_serves_again(late):
    """Whether the body's end comes with its last words or after them."""

    async def script(write: Write) -> None:
        write(STREAM)
        await asyncio.sleep(late)

    stage = Stage(script)

    async def sent() -> None:
        async with on_stage(stage) as client:
            for _ in range(3):
                assert (await client.send(b"{}")).completion == STREAMED

    virtual.run(sent)
    assert stage.connections == 1


def test_stream_that_says_done_and_never_ends_has_answered():
    """What comes after [DONE], or does not, is no part of the reply."""

    async def script(write: Write) -> None:
        write(STREAM + b"data: not JSON\n\n")
        await for_ever()

    assert staged(script).completion == STREAMED


def test_silence_within_a_stream_is_a_stall():
    """Once something came, the time without another byte counts, and it is a fault of its own
    kind."""

    async def script(write: Write) -> None:
        write(piece("好"))
        await for_ever()

    assert fault_on_stage(script, 60.0, 5.0) == ("stalled", "the stream stood still for 5 s")


def test_comments_and_empty_pieces_hold_a_stream_open_for_the_time_out_only():
    """They show that the connection is alive, and not that an answer is coming; thoughts do."""

    async def script(write: Write) -> None:
        thought = b'data: {"choices":[{"delta":{"reasoning":"x"}}]}\n\n'
        for block in [thought] * 3 + [b": wait\n\n", piece("")] * 30:
            await asyncio.sleep(10.0)
            write(block)

    assert fault_on_stage(script, 60.0, 20.0) == ("timeout", "the stream had no content for 60 s")


@pytest.mark.parametrize("end", ["stall", "cut", "garbage"])
def test_reply_whose_finish_reason_came_is_whole_whatever_becomes_of_its_stream(end):
    """It is paid for: what is missing is no part of the answer."""

    async def script(write: Write) -> None:
        write(piece("好") + piece(reason="stop"))
        await asyncio.sleep(MOMENT)
        if end == "cut":
            raise OSError  # the connection closes in the middle of the chunks
        if end == "garbage":
            write(b"data: {oops\n\n")
        await for_ever()

    assert staged(script, stall=5.0).completion.text == "好"


@pytest.mark.anyio
async def test_cancellation_after_the_last_word_loses_no_reply():
    """Whoever stops the run while the connection is being tidied up still gets what was paid
    for."""
    spoken = asyncio.Event()

    async def script(write: Write) -> None:
        write(STREAM)
        spoken.set()
        await for_ever()

    async with on_stage(Stage(script)) as client:
        sending = asyncio.create_task(client.send(b"{}"))
        await spoken.wait()
        for _ in range(10):
            await asyncio.sleep(0)
        sending.cancel()
        assert (await sending).completion == STREAMED


def test_silence_before_a_stream_is_a_time_out():
    """Until the first byte of the body the time-out counts as for any reply, however short a stall
    may be."""

    async def script(write: Write) -> None:
        await for_ever()

    assert fault_on_stage(script, 1.0, 0.5) == ("timeout", "no whole reply within 1 s")


@pytest.mark.parametrize("seconds", [9.9, 10.1])
def test_stream_that_keeps_on_coming_may_take_ten_times_the_time_out(seconds):
    """A long thought that streams is not dead; one without end is."""

    async def script(write: Write) -> None:
        end = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < end - 0.5:
            write(piece("标"))
            await asyncio.sleep(0.5)
        await asyncio.sleep(end - asyncio.get_running_loop().time())
        write(STREAM)

    if seconds < 10:
        assert staged(script, seconds=1.0).completion.text.endswith("标标签好")
    else:
        assert fault_on_stage(script, 1.0, HANGS) == (
            "timeout",
            "the stream has not ended within 10 s",
        )


@pytest.mark.anyio
async def test_stream_that_is_too_large_is_left(monkeypatch):
    """A stream has a limit of its own, since each token takes many bytes."""
    monkeypatch.setattr(client_module, "LARGEST_STREAM", MEGABYTE)
    async with serving(http(200, piece("好") + b": blank\n" * (MEGABYTE // 8), EVENTS)) as server:
        fault = await fault_of(Address(server.url))
    assert isinstance(fault, TransportFault)
    assert (fault.kind, fault.detail) == ("too_large", "the reply is longer than 1 MB")


@pytest.mark.anyio
@pytest.mark.parametrize("grows", ["content", "logprobs", "tool_calls"])
async def test_completion_of_a_stream_has_the_limit_of_one_that_comes_whole(grows, monkeypatch):
    """All that is kept of it counts: text, log-probabilities and the arguments of tools."""
    monkeypatch.setattr(client_module, "LARGEST_REPLY", MEGABYTE)
    long = "x" * (MEGABYTE // 2 + 1)
    delta: dict[str, Any] = {"content": "ja"}
    logprobs = None
    match grows:
        case "content":
            delta = {"content": long}
        case "logprobs":
            logprobs = {"content": [{"token": long, "logprob": 0.0}]}
        case "tool_calls":
            delta = {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": long}}]}
    choice = {"index": 0, "delta": delta, "logprobs": logprobs}
    event = b"data: " + orjson.dumps({"choices": [choice]}) + b"\n\n"
    request = orjson.dumps({"messages": [], "tools": [{}]})
    for pieces, kind in ((1, None), (2, "too_large")):
        async with (
            serving(http(200, event * pieces + DONE, EVENTS)) as server,
            Client(Address(server.url), timeout=9.0, connections=1) as client,
        ):
            found = None
            try:
                await client.send(request)
            except TransportFault as fault:
                found = fault.kind
        assert found == kind


@BOTH_LOOPS
@pytest.mark.anyio
async def test_cancelled_stream_stays_cancelled():
    """A run that stops in the middle of a reply is nobody's fault."""
    begun = asyncio.Event()

    async def script(write: Write) -> None:
        write(piece("好"))
        begun.set()
        await for_ever()

    async with on_stage(Stage(script)) as client:
        sending = asyncio.create_task(client.send(b"{}"))
        await begun.wait()
        for _ in range(10):
            await asyncio.sleep(0)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
