"""The embedded endpoint: fault plans as pure functions, the rest over real loopback connections."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import aiohttp
import orjson
import pytest

from harness.benchmark import Benchmark
from harness.client.address import Address
from harness.client.baselines import Baselines
from harness.client.http import Client
from tests.support import BOTH_LOOPS
from tests.support.embedded import session_with
from tests.support.endpoint_double.app import OVER_LIMIT, Embedded, Options, start
from tests.support.endpoint_double.faults import CONTENT, TRANSPORT, FaultPlan
from tests.support.scripted import answer

MESSAGES = [
    {"role": "user", "content": '[1] Content: 早\nTags: 猫\n从 ["狗", "猫", "鸟", "鱼"] 里选'}
]
TEXT = answer("baseline/recency", MESSAGES, 0)
HANGS = 60  # seconds; reached only by a test that would wait for ever


def chat(**changes: Any) -> bytes:
    return orjson.dumps({"model": "baseline/recency", "messages": MESSAGES, **changes})


def always(kind: str) -> Options:
    return Options(faults=FaultPlan(1.0, (kind,)))


async def post(
    endpoint: Embedded, session: aiohttp.ClientSession, body: bytes
) -> tuple[int, bytes, dict[str, str]]:
    async with session.post(f"{endpoint.url}/chat/completions", data=body) as response:
        return response.status, await response.read(), dict(response.headers)


async def stats(endpoint: Embedded, session: aiohttp.ClientSession) -> dict[str, Any]:
    async with session.get(f"{endpoint.url.removesuffix('/v1')}/stats") as response:
        counts: dict[str, Any] = orjson.loads(await response.read())
        return counts


async def until(endpoint: Embedded, session: aiohttp.ClientSession, name: str, count: int) -> None:
    while (await stats(endpoint, session))[name] < count:
        pass


# Fault plans


def test_transport_faults_are_drawn_anew_at_each_try_evenly_at_the_given_rate():
    """Over 4,000 tries of one body 30 % fail, each of nine kinds in its share; the plan repeats
    itself."""
    plan = FaultPlan(0.3, ("transport",), seed=5)
    drawn = [plan.draw(b"body", attempt) for attempt in range(1, 4001)]
    assert drawn == [plan.draw(b"body", attempt) for attempt in range(1, 4001)]
    counts = Counter(kind for kind in drawn if kind)
    assert set(counts) == set(TRANSPORT)
    assert sum(counts.values()) == pytest.approx(
        1200, abs=90
    )  # 3 standard deviations: 3 * sqrt(4000 * .3 * .7) = 87
    assert all(count == pytest.approx(133, abs=45) for count in counts.values())


def test_content_faults_stay_with_the_body_at_every_try():
    """A body's completion is the same however often it is asked for, and other bodies differ."""
    plan = FaultPlan(0.5, ("content",), seed=5)
    first = [plan.draw(bytes([n]), 1) for n in range(200)]
    assert first == [plan.draw(bytes([n]), 7) for n in range(200)]
    assert set(first) == {None, *CONTENT}


# Over HTTP


@pytest.mark.anyio
@pytest.mark.parametrize(
    "members",
    [
        {},
        {"seed": 3, "model": "baseline/random"},
        {"max_tokens": 4},
        {"stop": ["猫", "tags"]},
        {"response_format": {"type": "json_object"}},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": {"type": "object"}},
            }
        },
    ],
)
async def test_reply_is_what_a_run_gets_in_its_own_process(members):
    """A baseline at an address and one that the harness answers itself are the same to a run."""
    body = chat(**members)
    endpoint = await start(Options(strict=False))
    try:
        async with Client(Address(endpoint.url), timeout=HANGS, connections=1) as client:
            served = await client.send(body)
    finally:
        await endpoint.close()
    assert (await Baselines(Benchmark).send(body)).completion == served.completion


@pytest.mark.anyio
async def test_stats_count_requests_bodies_completions_and_faults():
    """Three requests of two bodies under a plan that always fails: no completion, three faults."""
    async with session_with(always("500")) as (endpoint, session):
        for seed in (1, 1, 2):
            await post(endpoint, session, chat(seed=seed))
        counts = await stats(endpoint, session)
        assert counts.pop("seconds") > 0
        assert counts == {
            "requests": 3,
            "distinct_bodies": 2,
            "most_in_flight": 1,
            "completed": 0,
            "streamed": 0,
            "foreign_keys": 0,
            **dict.fromkeys(("batched", "batches", "batch_inputs", "files"), 0),
            "faults": {"500": 3},
        }


@pytest.mark.anyio
@BOTH_LOOPS
@pytest.mark.parametrize("kind", ["reset", "reset-body"])
async def test_resets_are_true_resets(kind):
    """The socket itself sees ECONNRESET, not an orderly end."""
    body = chat()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    async with session_with(always(kind)) as (endpoint, _):
        port = int(endpoint.url.rpartition(":")[2].removesuffix("/v1"))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head + body)
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()


@pytest.mark.anyio
async def test_stall_never_answers_and_ends_with_its_client():
    """A stalled request holds its slot until its client gives up; then the next one stalls in
    it."""
    options = Options(faults=FaultPlan(1.0, ("stall",)), max_concurrency=1)
    async with asyncio.timeout(HANGS), session_with(options) as (endpoint, session):
        first = asyncio.create_task(post(endpoint, session, chat()))
        await until(endpoint, session, "most_in_flight", 1)
        assert (await post(endpoint, session, chat()))[0] == 429
        assert not first.done()
        first.cancel()
        second = asyncio.create_task(post(endpoint, session, chat()))
        while (await stats(endpoint, session))["faults"]["stall"] < 2:
            if second.done():  # refused, as the endpoint had not yet seen the first one go
                second = asyncio.create_task(post(endpoint, session, chat()))
        second.cancel()


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("kind", "content", "finish_reason"),
    [
        ("empty", "", "stop"),
        ("refusal", None, "stop"),
        ("length", TEXT[: len(TEXT) // 2], "length"),
        ("fenced", f"```json\n{TEXT}\n```", "stop"),
        ("broken", TEXT[:-1] + ",}", "stop"),
    ],
)
async def test_content_faults_are_whole_replies_with_spoilt_content(kind, content, finish_reason):
    """HTTP and envelope are sound, twice the same; they count as completed."""
    async with session_with(always(kind)) as (endpoint, session):
        status, body, _ = await post(endpoint, session, chat())
        assert (await post(endpoint, session, chat()))[1] == body
        counts = await stats(endpoint, session)
    choice = orjson.loads(body)["choices"][0]
    assert (status, choice["message"]["content"], choice["finish_reason"]) == (
        200,
        content,
        finish_reason,
    )
    assert bool(choice["message"]["refusal"]) == (kind == "refusal")
    assert (counts["completed"], counts["faults"]) == (2, {kind: 2})


@pytest.mark.anyio
async def test_requests_beyond_max_concurrency_get_429_at_once_and_are_no_try():
    """Two stall in their slots; the third is refused, counted apart, and does not use up a draw of
    its body."""
    options = Options(faults=FaultPlan(1.0, ("stall",)), max_concurrency=2)
    async with session_with(options) as (endpoint, session):
        held = [asyncio.create_task(post(endpoint, session, chat(seed=n))) for n in range(2)]
        await until(endpoint, session, "most_in_flight", 2)
        status, _, headers = await post(endpoint, session, chat(seed=3))
        counts = await stats(endpoint, session)
        for task in held:
            task.cancel()
    assert (status, headers["Retry-After"]) == (429, "1")
    assert (counts["requests"], counts["distinct_bodies"], counts["most_in_flight"]) == (3, 2, 2)
    assert counts["faults"][OVER_LIMIT] == 1


# Streams


async def events(endpoint: Embedded, session: aiohttp.ClientSession, body: bytes) -> list[Any]:
    """What the data events of a stream hold; the text of one that is not JSON."""
    async with session.post(f"{endpoint.url}/chat/completions", data=body) as response:
        assert (response.status, response.headers["Content-Type"]) == (200, "text/event-stream")
        return data_of(await response.read())


def data_of(stream: bytes) -> list[Any]:
    lines = [
        block.removeprefix(b"data: ")
        for block in stream.split(b"\n\n")
        if block.startswith(b"data: ")
    ]
    return [
        orjson.loads(line) if line.endswith(b"}") else line.decode(errors="replace")
        for line in lines
    ]


def said(chunks: list[Any]) -> str:
    deltas = [
        chunk["choices"][0]["delta"]
        for chunk in chunks
        if type(chunk) is dict and chunk.get("choices")
    ]
    return "".join([delta.get("content") or "" for delta in deltas])


@pytest.mark.anyio
@BOTH_LOOPS
@pytest.mark.parametrize("kind", [None, *CONTENT])
async def test_stream_says_what_the_whole_reply_says(kind):
    """Text, finish reason and usage, also where the content is spoilt; a body that differs in
    `stream` alone has the same prompt, and the stream ends with [DONE]."""
    options = always(kind) if kind else Options()
    async with session_with(options) as (endpoint, session):
        whole = orjson.loads((await post(endpoint, session, chat()))[1])
        chunks = await events(
            endpoint, session, chat(stream=True, stream_options={"include_usage": True})
        )
        counts = await stats(endpoint, session)
    *chunks, finish, usage, done = chunks
    message = whole["choices"][0]["message"]
    assert said(chunks) == (message["content"] or "")
    refused = [chunk["choices"][0]["delta"].get("refusal") or "" for chunk in chunks]
    assert "".join(refused) == (message["refusal"] or "")
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)
    finish_reason = whole["choices"][0]["finish_reason"]
    assert finish["choices"] == [
        {"index": 0, "delta": {}, "logprobs": None, "finish_reason": finish_reason}
    ]
    assert (usage["choices"], usage["usage"], done) == ([], whole["usage"], "[DONE]")
    assert (counts["completed"], counts["streamed"]) == (2, 1)
    assert all(chunk["object"] == "chat.completion.chunk" for chunk in [*chunks, finish, usage])


@pytest.mark.anyio
@BOTH_LOOPS
@pytest.mark.parametrize("kind", ["stream-cut", "stream-error", "truncated"])
async def test_stream_that_ends_too_soon(kind):
    """Part of the text arrives, no finish reason, no [DONE]; an error is the last event, a cut
    breaks the body off."""
    found, broken = b"", False
    async with session_with(always(kind)) as (endpoint, session):
        async with session.post(
            f"{endpoint.url}/chat/completions", data=chat(stream=True)
        ) as response:
            try:
                while block := await response.content.readany():
                    found += block
            except aiohttp.ClientPayloadError:
                broken = True
        counts = await stats(endpoint, session)
    assert broken == (kind != "stream-error")
    assert b"[DONE]" not in found and b'"stop"' not in found
    *chunks, last = data_of(found)
    assert ("error" in last) == (kind == "stream-error")
    assert TEXT.startswith(said(chunks)) and said(chunks) != TEXT
    assert found.endswith(b"\n\n") == (kind != "truncated")
    assert (counts["completed"], counts["streamed"], counts["faults"]) == (0, 0, {kind: 1})


# Keys


@pytest.mark.anyio
@pytest.mark.parametrize(
    "given", [None, "Bearer sk-test-other", "sk-test-own", "Bearer sk-test-own2", "bearer 钥匙"]
)
async def test_requests_without_the_key_are_refused_and_counted(given):
    """Another key, none, or another form: 401 as OpenAI has it, before the body is looked at."""
    headers = {} if given is None else {"Authorization": given}
    async with session_with(Options(key="sk-test-own")) as (endpoint, session):
        async with session.post(
            f"{endpoint.url}/chat/completions", data=b"{", headers=headers
        ) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (
                401,
                "invalid_api_key",
            )
        async with session.get(f"{endpoint.url}/models", headers=headers) as response:
            assert response.status == 401
        counts = await stats(endpoint, session)
    assert (counts["foreign_keys"], counts["requests"], counts["distinct_bodies"]) == (2, 1, 0)


# The process


"""Requests whose body cannot be read."""
