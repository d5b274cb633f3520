"""The embedded endpoint: fault plans as pure functions, the rest over real loopback connections."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from collections import Counter
from email.utils import parsedate_to_datetime
from statistics import fmean
from typing import Any

import aiohttp
import orjson
import pytest

from harness.benchmark import Benchmark
from harness.benchmarks import registry
from harness.client.address import Address
from harness.client.baselines import Baselines
from harness.client.http import Client
from harness.errors import BadInput
from tests.support import BOTH_LOOPS, ROOT, malformed
from tests.support.embedded import session_with
from tests.support.endpoint_double import faults
from tests.support.endpoint_double.app import MODELS, OVER_LIMIT, Embedded, Options, delay, start
from tests.support.endpoint_double.faults import CONTENT, STREAM, TRANSPORT, FaultPlan, expand
from tests.support.endpoint_double.stream import pauses, pieces, slices
from tests.support.plugins import FLOOR, STARS
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


def test_groups_expand_to_their_kinds_without_repeats() -> None:
    """A group stands for all its kinds, a kind named twice counts once."""
    assert expand(["transport"]) == TRANSPORT
    assert expand(["500", "content", "empty", "500"]) == ("500", *CONTENT)


def test_unknown_fault_is_refused_listing_groups_and_kinds() -> None:
    """The sentence names what was wrong and all that is known."""
    with pytest.raises(BadInput) as caught:
        FaultPlan(0.1, ("fire",))
    for word in ("'fire'", "transport", "content", *TRANSPORT, *CONTENT):
        assert word in str(caught.value)


def test_faults_of_streams_are_drawn_anew_and_have_a_group_of_their_own() -> None:
    """The group `stream` is no part of `transport`, and its faults come and go with the tries of a
    body."""
    plan = FaultPlan(0.5, ("stream",))
    assert plan.kinds == STREAM and not set(STREAM) & set(TRANSPORT)
    assert {plan.draw(b"body", attempt) for attempt in range(100)} == {None, *STREAM}


def test_refusals_need_an_imitated_provider() -> None:
    """What only a provider can say is no fault of the plain endpoint."""
    with pytest.raises(BadInput, match="--imitate"):
        Options(faults=FaultPlan(0.5, ("refusals",)))


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
def test_fault_rate_is_a_fraction(rate: float) -> None:
    """A rate outside 0 to 1 is refused."""
    with pytest.raises(BadInput, match="fraction from 0 to 1"):
        FaultPlan(rate, ("500",))


def test_rate_zero_draws_nothing_and_rate_one_always() -> None:
    """The ends of the scale are exact."""
    bodies = [bytes([n]) for n in range(200)]
    assert not any(FaultPlan(0.0, ("transport", "content")).draw(body, 1) for body in bodies)
    assert all(FaultPlan(1.0, ("transport",)).draw(body, 1) for body in bodies)


def test_transport_faults_are_drawn_anew_at_each_try_evenly_at_the_given_rate() -> None:
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


def test_content_faults_stay_with_the_body_at_every_try() -> None:
    """A body's completion is the same however often it is asked for, and other bodies differ."""
    plan = FaultPlan(0.5, ("content",), seed=5)
    first = [plan.draw(bytes([n]), 1) for n in range(200)]
    assert first == [plan.draw(bytes([n]), 7) for n in range(200)]
    assert set(first) == {None, *CONTENT}


def test_transport_faults_leave_the_content_faults_of_a_plan_where_they_were() -> None:
    """With both groups, each gets its part of the rate, and tries that pass show one completion per
    body."""
    plan = FaultPlan(0.6, ("transport", "content"))
    transport = content = 0
    for n in range(1000):
        drawn = [plan.draw(str(n).encode(), attempt) for attempt in range(1, 5)]
        transport += sum([kind in TRANSPORT for kind in drawn])
        passed = {kind for kind in drawn if kind not in TRANSPORT}
        assert len(passed) <= 1
        content += any(kind in CONTENT for kind in passed)
    assert transport / 4000 == pytest.approx(0.6 * 9 / 15, abs=0.03)
    assert content / 1000 == pytest.approx(0.6 * 6 / 15, abs=0.05)


def test_another_seed_draws_other_faults() -> None:
    """The seed is part of every draw."""
    drawn = [
        [FaultPlan(0.5, ("transport",), seed).draw(bytes([n]), 1) for n in range(100)]
        for seed in (1, 2)
    ]
    assert drawn[0] != drawn[1]


def test_retry_date_is_an_http_date_a_second_or_two_ahead() -> None:
    """The date lies in the future even though HTTP dates have no fractions."""
    for now in (1_700_000_000.0, 1_700_000_000.001, 1_700_000_000.999):
        retry_after = faults.replace("429-date", b"{}", now).retry_after
        assert retry_after is not None and retry_after.endswith(" GMT")
        assert 1 <= parsedate_to_datetime(retry_after).timestamp() - now < 2


def test_latency_has_the_given_mean_and_repeats() -> None:
    """Lognormal with mean `latency`; without jitter it is fixed; body and try decide."""
    options = Options(latency=0.2, jitter=0.5, seed=3)
    delays = [delay(options, b"body", attempt) for attempt in range(4000)]
    assert delays == [delay(options, b"body", attempt) for attempt in range(4000)]
    assert fmean(delays) == pytest.approx(0.2, rel=0.03)
    assert delay(Options(latency=0.2), b"body", 1) == 0.2
    assert delay(Options(jitter=1.0), b"body", 1) == 0


@pytest.mark.parametrize(
    "wrong",
    [{"latency": -1.0}, {"latency": float("inf")}, {"jitter": -1.0}, {"max_concurrency": 0}],
)
def test_impossible_options_are_refused(wrong: dict[str, Any]) -> None:
    """Options that nothing could obey are the user's error."""
    with pytest.raises(BadInput, match=r"expected .*(0 or more|from 1)"):
        Options(**wrong)


# Over HTTP


@pytest.mark.anyio
async def test_completion_is_openai_shaped_and_byte_identical_each_time() -> None:
    """The reply holds the baseline's text and a usage, and a second asking brings the same
    bytes."""
    async with session_with(Options()) as (endpoint, session):
        status, body, headers = await post(endpoint, session, chat())
        assert (await post(endpoint, session, chat()))[1] == body
    reply = orjson.loads(body)
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert reply["choices"][0]["message"]["content"] == TEXT
    assert reply["choices"][0]["finish_reason"] == "stop"
    assert reply["model"] == "baseline/recency"
    prompt_tokens, completion_tokens = len(MESSAGES[0]["content"]) // 2, len(TEXT) // 2
    assert reply["usage"] == {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


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
async def test_reply_is_what_a_run_gets_in_its_own_process(members: dict[str, Any]) -> None:
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
async def test_seed_of_a_request_goes_before_that_of_the_endpoint() -> None:
    """So that two seeds of `baseline/random` are two runs of `run --seed` at one endpoint."""
    pool = orjson.dumps([f"标签{n}" for n in range(30)]).decode()
    replies = []
    for own in (1, 2):
        async with session_with(Options(seed=own)) as (endpoint, session):
            for more in ({}, {"seed": 7}):
                body = chat(
                    model="baseline/random", messages=[{"role": "user", "content": pool}], **more
                )
                replies.append(orjson.loads((await post(endpoint, session, body))[1])["choices"])
    assert replies[0] != replies[2] and replies[1] == replies[3] != replies[0]


@pytest.mark.anyio
async def test_models_lists_the_baselines() -> None:
    """GET /v1/models names every model that can be asked."""
    async with (
        session_with(Options()) as (endpoint, session),
        session.get(f"{endpoint.url}/models") as response,
    ):
        listed = await response.json()
    assert [model["id"] for model in listed["data"]] == list(MODELS)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (b"{", 400, None),
        (b"[]", 400, None),
        (b'"\xff"', 400, None),
        (chat(messages=[]), 400, "messages"),
        (chat(messages=[{"role": "user"}]), 400, "messages[0].content"),
        (chat(model="gpt-4"), 404, None),
        (chat(model=["x"]), 400, "model"),
    ],
)
async def test_malformed_request_gets_an_openai_error(
    body: bytes, status: int, param: str | None
) -> None:
    """What cannot be answered is refused as OpenAI does, naming the field, and is no body of the
    count."""
    async with session_with(always("500")) as (endpoint, session):
        got, reply, headers = await post(endpoint, session, body)
        counts = await stats(endpoint, session)
    error = orjson.loads(reply)["error"]
    assert (got, headers["Content-Type"].partition(";")[0]) == (status, "application/json")
    assert set(error) == {"message", "type", "param", "code"} and error["param"] == param
    assert (counts["requests"], counts["distinct_bodies"], counts["faults"]) == (1, 0, {})


@pytest.mark.anyio
async def test_stats_count_requests_bodies_completions_and_faults() -> None:
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
@pytest.mark.parametrize(
    ("kind", "status", "content_type"),
    [
        ("429", 429, "application/json"),
        ("429-date", 429, "application/json"),
        ("500", 500, "application/json"),
        ("503-html", 503, "text/html"),
    ],
)
async def test_error_statuses(kind: str, status: int, content_type: str) -> None:
    """Each status fault comes with its body; 429 says when to come back, in its own form."""
    async with session_with(always(kind)) as (endpoint, session):
        got, body, headers = await post(endpoint, session, chat())
    assert (got, headers["Content-Type"]) == (status, content_type)
    assert (b"<html>" in body) == (kind == "503-html")
    if status == 429:
        retry_after = headers["Retry-After"]
        assert retry_after == "1" if kind == "429" else parsedate_to_datetime(retry_after)
        assert orjson.loads(body)["error"]["code"] == "rate_limit_exceeded"


@pytest.mark.anyio
@BOTH_LOOPS
async def test_reset_comes_before_any_reply() -> None:
    """The connection is reset without a byte of a reply, and the endpoint stays up."""
    async with session_with(always("reset")) as (endpoint, session):
        with pytest.raises((aiohttp.ClientOSError, aiohttp.ServerDisconnectedError)):
            await post(endpoint, session, chat())
        assert (await stats(endpoint, session))["faults"] == {"reset": 1}


@pytest.mark.anyio
@BOTH_LOOPS
async def test_reset_within_the_body_comes_after_part_of_it() -> None:
    """Status and half of the body arrive, then the connection is reset."""
    async with (
        session_with(always("reset-body")) as (endpoint, session),
        session.post(f"{endpoint.url}/chat/completions", data=chat()) as response,
    ):
        assert response.status == 200
        assert (await response.content.readexactly(10)).startswith(b'{"id":')
        with pytest.raises(aiohttp.ClientError):
            await response.content.read()


@pytest.mark.anyio
@BOTH_LOOPS
@pytest.mark.parametrize("kind", ["reset", "reset-body"])
async def test_resets_are_true_resets(kind: str) -> None:
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
async def test_stall_never_answers_and_ends_with_its_client() -> None:
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
async def test_endpoint_closes_with_a_stalled_request_open() -> None:
    """Closing drops what is in flight instead of waiting for it."""
    async with asyncio.timeout(HANGS), session_with(always("stall")) as (endpoint, session):
        stalled = asyncio.create_task(post(endpoint, session, chat()))
        await until(endpoint, session, "most_in_flight", 1)
        await endpoint.close()
        with pytest.raises(aiohttp.ClientError):
            await stalled


@pytest.mark.anyio
async def test_truncated_reply_is_whole_http_and_half_json() -> None:
    """Content-Length matches the cut body, so only the JSON tells that something is missing."""
    async with session_with(always("truncated")) as (endpoint, session):
        status, body, headers = await post(endpoint, session, chat())
    assert (status, headers["Content-Length"]) == (200, str(len(body)))
    assert body.startswith(b'{"id":')
    with pytest.raises(orjson.JSONDecodeError):
        orjson.loads(body)


@pytest.mark.anyio
async def test_no_choices_is_a_200_without_choices() -> None:
    """All else is there."""
    async with session_with(always("no-choices")) as (endpoint, session):
        status, body, _ = await post(endpoint, session, chat())
    assert (status, orjson.loads(body)["choices"]) == (200, [])
    assert "usage" in orjson.loads(body)


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
async def test_content_faults_are_whole_replies_with_spoilt_content(
    kind: str, content: str | None, finish_reason: str
) -> None:
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
async def test_no_json_reply_is_prose_without_braces() -> None:
    """Nothing in it could be repaired into an object."""
    async with session_with(always("no-json")) as (endpoint, session):
        content = orjson.loads((await post(endpoint, session, chat()))[1])["choices"][0]["message"][
            "content"
        ]
    assert content and not set("{}[]") & set(content)


@pytest.mark.anyio
async def test_repeated_tries_come_through_to_the_fault_free_reply() -> None:
    """Under transport faults a body that is sent again and again gets the very bytes of a calm
    endpoint."""
    async with session_with(Options()) as (calm, session):
        expected = (await post(calm, session, chat()))[1]
        plan = FaultPlan(0.6, ("429", "500", "truncated", "reset"), seed=2)
        async with session_with(Options(faults=plan)) as (endpoint, other):
            wholes = []
            for _ in range(40):
                try:
                    status, body, _headers = await post(endpoint, other, chat())
                except aiohttp.ClientError:
                    continue
                if status == 200 and body.endswith(b"}"):
                    wholes.append(body)
            counts = await stats(endpoint, other)
    assert set(wholes) == {expected}
    assert counts["completed"] == len(wholes) == 40 - sum(counts["faults"].values())
    assert counts["distinct_bodies"] == 1


@pytest.mark.anyio
async def test_faults_of_a_body_do_not_depend_on_what_else_is_asked() -> None:
    """The n-th try is the n-th of that body: other bodies in between change nothing."""
    options = Options(faults=FaultPlan(0.5, ("500",), seed=1))
    seen = []
    for between in (0, 3):
        async with session_with(options) as (endpoint, session):
            statuses = []
            for n in range(12):
                statuses.append((await post(endpoint, session, chat()))[0])
                for other in range(between):
                    await post(endpoint, session, chat(seed=between * n + other))
        seen.append(statuses)
    assert seen[0] == seen[1] and set(seen[0]) == {200, 500}


@pytest.mark.anyio
async def test_requests_beyond_max_concurrency_get_429_at_once_and_are_no_try() -> None:
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


@pytest.mark.anyio
async def test_latency_holds_requests_in_flight_together() -> None:
    """A reply waits for its latency while others are taken on."""
    async with asyncio.timeout(HANGS), session_with(Options(latency=3600)) as (endpoint, session):
        waiting = [asyncio.create_task(post(endpoint, session, chat(seed=n))) for n in range(8)]
        await until(endpoint, session, "most_in_flight", 8)
        for task in waiting:
            task.cancel()


@pytest.mark.anyio
async def test_port_can_be_taken_again_after_close_and_not_while_taken() -> None:
    """A given port is free once closed; while it is taken the error names it."""
    first = await start(Options())
    port = int(first.url.rpartition(":")[2].removesuffix("/v1"))
    with pytest.raises(OSError, match="in use"):
        await start(Options(), port=port)
    await first.close()
    second = await start(Options(), port=port)
    assert second.url == first.url
    await second.close()


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
async def test_stream_says_what_the_whole_reply_says(kind: str | None) -> None:
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
async def test_usage_comes_only_where_it_is_asked_for() -> None:
    """Without include_usage the last chunk is the one with the finish reason."""
    async with session_with(Options()) as (endpoint, session):
        *_, finish, done = await events(endpoint, session, chat(stream=True))
    assert (finish["choices"][0]["finish_reason"], done) == ("stop", "[DONE]")


def test_text_is_cut_into_several_pieces_anywhere_between_characters() -> None:
    """The pieces are several, uneven, and together the text; another body is cut elsewhere."""
    text = "她昨天发了三条动态，都在说猫。" * 20
    first, other = list(pieces(text, b"\x01\x90\x33")), list(pieces(text, b"\x77\x02"))
    assert "".join(first) == "".join(other) == text and first != other
    assert len(first) > 4 and len({len(piece) for piece in first}) > 1
    assert list(pieces("", b"x")) == []


def test_what_is_written_at_once_ends_anywhere() -> None:
    """Writes do not keep to events or characters, and none is empty."""
    data = "数据".encode() * 7
    assert b"".join(slices(data)) == data and any(
        b"\xef\xbf\xbd" in part.decode(errors="replace").encode() for part in slices(data)
    )
    assert slices(b"ab") == [b"a", b"b"]


@pytest.mark.anyio
@BOTH_LOOPS
@pytest.mark.parametrize("kind", ["stream-cut", "stream-error", "truncated"])
async def test_stream_that_ends_too_soon(kind: str) -> None:
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


@pytest.mark.anyio
@BOTH_LOOPS
async def test_stream_can_be_reset_in_its_middle() -> None:
    """Part of the events arrives, then the connection is reset."""
    async with (
        session_with(always("reset-body")) as (endpoint, session),
        session.post(f"{endpoint.url}/chat/completions", data=chat(stream=True)) as response,
    ):
        assert (await response.content.readexactly(6)) == b"data: "
        with pytest.raises(aiohttp.ClientError):
            await response.content.read()


@pytest.mark.anyio
async def test_stalled_stream_stops_between_its_chunks() -> None:
    """Whole events arrive, and then nothing until the client goes away."""
    async with (
        asyncio.timeout(HANGS),
        session_with(always("stream-stall")) as (endpoint, session),
        session.post(f"{endpoint.url}/chat/completions", data=chat(stream=True)) as response,
    ):
        assert (await response.content.readuntil(b"\n\n")).startswith(b"data: ")
        assert (await stats(endpoint, session))["completed"] == 0
        assert not response.content.at_eof()


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["429", "500", "503-html"])
async def test_transport_faults_come_before_a_stream(kind: str) -> None:
    """They are what they are without streaming, to the byte."""
    async with session_with(always(kind)) as (endpoint, session):
        streamed, whole = [
            (await post(endpoint, session, chat(stream=flag)))[:2] for flag in (True, False)
        ]
        assert streamed == whole
        assert (await stats(endpoint, session))["faults"] == {kind: 2}


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("kind", "nearest"), [("stream-cut", "truncated"), ("stream-error", "500")]
)
async def test_whole_replies_get_the_fault_nearest_to_that_of_a_stream(
    kind: str, nearest: str
) -> None:
    """A fault that only streams can have does not spare those who ask for none; it is counted as
    what it became."""
    async with (
        session_with(always(kind)) as (endpoint, session),
        session_with(always(nearest)) as (other, _),
    ):
        assert (await post(endpoint, session, chat()))[:2] == (await post(other, session, chat()))[
            :2
        ]
        assert (await stats(endpoint, session))["faults"] == {nearest: 1}


@pytest.mark.anyio
async def test_whole_reply_stalls_where_a_stream_would() -> None:
    """Nothing comes at all."""
    async with asyncio.timeout(HANGS), session_with(always("stream-stall")) as (endpoint, session):
        waiting = asyncio.create_task(post(endpoint, session, chat()))
        while not (await stats(endpoint, session))["faults"]:
            assert not waiting.done()
        waiting.cancel()


def test_latency_of_a_stream_is_spread() -> None:
    """Half of it passes before the first part, the other half in equal pauses between the parts."""
    assert pauses(8.0, 5) == [4.0, 1.0, 1.0, 1.0, 1.0]
    assert pauses(8.0, 1) == [4.0]
    assert not any(pauses(0.0, 5))


@pytest.mark.anyio
async def test_stream_waits_for_its_latency() -> None:
    """Headers come at once, and no event before the first pause is over."""
    async with (
        asyncio.timeout(HANGS),
        session_with(Options(latency=3600)) as (endpoint, session),
        session.post(f"{endpoint.url}/chat/completions", data=chat(stream=True)) as response,
    ):
        assert response.status == 200
        assert (await stats(endpoint, session))["streamed"] == 0


@pytest.mark.anyio
async def test_stream_with_latency_comes_whole() -> None:
    """A short latency takes nothing away."""
    async with session_with(Options(latency=0.01)) as (endpoint, session):
        *chunks, done = await events(endpoint, session, chat(stream=True))
    assert (said(chunks), done) == (TEXT, "[DONE]")


# Keys


@pytest.mark.anyio
@pytest.mark.parametrize(
    "given", [None, "Bearer sk-test-other", "sk-test-own", "Bearer sk-test-own2", "bearer 钥匙"]
)
async def test_requests_without_the_key_are_refused_and_counted(given: str | None) -> None:
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


@pytest.mark.anyio
async def test_requests_with_the_key_are_answered() -> None:
    """The key opens the endpoint and is not shown."""
    options = Options(key="sk-test-own")
    assert "sk-test-own" not in repr(options)
    async with session_with(options) as (endpoint, session):
        session.headers["Authorization"] = "Bearer sk-test-own"
        assert (await post(endpoint, session, chat()))[0] == 200
        assert (await stats(endpoint, session))["foreign_keys"] == 0


# The process


@pytest.mark.anyio
async def test_baselines_of_a_benchmark_are_served_too() -> None:
    """Next to those that ship."""
    async with session_with(Options(baselines=registry.served(registry.find(str(STARS))))) as (
        endpoint,
        session,
    ):
        status, reply, _ = await post(endpoint, session, chat(model=FLOOR))
        assert status == 200 and orjson.loads(reply)["model"] == FLOOR
        assert (await post(endpoint, session, chat()))[0] == 200


def posted(path: str, headers: str, body: bytes) -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n{headers}\r\n\r\n".encode()
        + body
    )


BROKEN = {
    "gzip": posted("/v1/chat/completions", "Content-Encoding: gzip", b"abcd"),
    "no form": posted("/v1/files", "Content-Type: text/plain", b"ab"),
    "no boundary": posted("/v1/files", "Content-Type: multipart/form-data", b"ab"),
    "long boundary": posted(
        "/v1/files", f"Content-Type: multipart/form-data; boundary={'y' * 100}", b"ab"
    ),
    "no parts": posted("/v1/files", "Content-Type: multipart/form-data; boundary=x", b"abcd"),
    "half a part": posted(
        "/v1/files", "Content-Type: multipart/form-data; boundary=x", b"--x\r\nabcd"
    ),
    "charset": posted(
        "/v1/files",
        "Content-Type: multipart/form-data; boundary=x",
        b'--x\r\nContent-Disposition: form-data; name="purpose"\r\nContent-Type: text/plain;'
        b" charset=z\r\n\r\na\r\n--x--\r\n",
    ),
}
"""Requests whose body cannot be read."""


@pytest.mark.anyio
async def test_malformed_requests_are_refused_and_print_nothing(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """No traceback of the web server's; the endpoint goes on."""
    endpoint = await start(Options())
    port = int(endpoint.url.rpartition(":")[2].removesuffix("/v1"))
    await asyncio.to_thread(malformed.send_all, port)
    for name, data in BROKEN.items():
        async with asyncio.timeout(HANGS):
            assert (await answered(port, data)).startswith(b"HTTP/1.1 400"), name
    async with aiohttp.ClientSession() as session:
        assert (await post(endpoint, session, chat()))[0] == 200
    await endpoint.close()
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []


async def answered(port: int, data: bytes) -> bytes:
    """Return the first line of the answer to a client that stays connected."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    line = await reader.readline()
    writer.close()
    return line


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_process_prints_its_url_and_serves_until_a_signal(stop: signal.Signals) -> None:
    """The one line says where it listens; a signal ends it with exit code 0, quietly."""
    command = [sys.executable, "-m", "tests.support.endpoint_double", "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("listening on http://127.0.0.1:") and line.endswith("/v1\n")
        port = int(line.rpartition(":")[2].removesuffix("/v1\n"))
        socket.create_connection(("127.0.0.1", port)).close()
        process.send_signal(stop)
        output, errors = process.communicate(timeout=HANGS)
    assert (process.returncode, output, errors) == (0, "", "")
