"""The embedded endpoint: fault plans as pure functions, the rest over real loopback connections."""

from __future__ import annotations

import argparse
import asyncio
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime
from statistics import fmean
from typing import Any

import aiohttp
import orjson
import pytest

from harness.commands import serve
from harness.errors import BadInput, MachineError
from harness.serve import faults
from harness.serve.app import MODELS, OVER_LIMIT, Embedded, Options, delay, start
from harness.serve.baselines import answer
from harness.serve.faults import CONTENT, TRANSPORT, FaultPlan, expand

MESSAGES = [{"role": "user", "content": '[1] Content: 早\nTags: 猫\n从 ["狗", "猫", "鸟", "鱼"] 里选'}]
TEXT = answer("baseline/recency", MESSAGES, 0)
BOTH_LOOPS = pytest.mark.parametrize(
    "anyio_backend", [("asyncio", {"use_uvloop": False}), ("asyncio", {"use_uvloop": True})], ids=["asyncio", "uvloop"]
)
HANGS = 30  # seconds; reached only by a test that would wait for ever


def chat(**changes: Any) -> bytes:
    return orjson.dumps({"model": "baseline/recency", "messages": MESSAGES, **changes})


def always(kind: str) -> Options:
    return Options(faults=FaultPlan(1.0, (kind,)))


@asynccontextmanager
async def serving(options: Options) -> AsyncIterator[tuple[Embedded, aiohttp.ClientSession]]:
    endpoint = await start(options)
    try:
        async with aiohttp.ClientSession() as session:
            yield endpoint, session
    finally:
        await endpoint.close()


async def post(endpoint: Embedded, session: aiohttp.ClientSession, body: bytes) -> tuple[int, bytes, dict[str, str]]:
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
    """Over 4,000 tries of one body 30 % fail, each of nine kinds in its share; the plan repeats itself."""
    plan = FaultPlan(0.3, ("transport",), seed=5)
    drawn = [plan.draw(b"body", attempt) for attempt in range(1, 4001)]
    assert drawn == [plan.draw(b"body", attempt) for attempt in range(1, 4001)]
    counts = Counter(kind for kind in drawn if kind)
    assert set(counts) == set(TRANSPORT)
    assert sum(counts.values()) == pytest.approx(1200, abs=90)  # 3 standard deviations: 3 * sqrt(4000 * .3 * .7) = 87
    assert all(count == pytest.approx(133, abs=45) for count in counts.values())


def test_content_faults_stay_with_the_body_at_every_try() -> None:
    """A body's completion is the same however often it is asked for, and other bodies differ."""
    plan = FaultPlan(0.5, ("content",), seed=5)
    first = [plan.draw(bytes([n]), 1) for n in range(200)]
    assert first == [plan.draw(bytes([n]), 7) for n in range(200)]
    assert set(first) == {None, *CONTENT}


def test_transport_faults_leave_the_content_faults_of_a_plan_where_they_were() -> None:
    """With both groups, each gets its part of the rate, and tries that pass show one completion per body."""
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
    drawn = [[FaultPlan(0.5, ("transport",), seed).draw(bytes([n]), 1) for n in range(100)] for seed in (1, 2)]
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
    "wrong", [{"latency": -1.0}, {"latency": float("inf")}, {"jitter": -1.0}, {"max_concurrency": 0}]
)
def test_impossible_options_are_refused(wrong: dict[str, Any]) -> None:
    """Options that nothing could obey are the user's error."""
    with pytest.raises(BadInput, match=r"expected .*(0 or more|from 1)"):
        Options(**wrong)


# Over HTTP


@pytest.mark.anyio
async def test_completion_is_openai_shaped_and_byte_identical_each_time() -> None:
    """The reply holds the baseline's text and a usage, and a second asking brings the same bytes."""
    async with serving(Options()) as (endpoint, session):
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
async def test_models_lists_the_baselines() -> None:
    """GET /v1/models names every model that can be asked."""
    async with serving(Options()) as (endpoint, session), session.get(f"{endpoint.url}/models") as response:
        listed = await response.json()
    assert [model["id"] for model in listed["data"]] == list(MODELS)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"{", 400, "not JSON"),
        (b"[]", 400, "JSON object"),
        (chat(messages=[]), 400, "messages"),
        (chat(messages=[{"role": "user"}]), 400, "messages[0]"),
        (chat(stream=True), 400, "stream"),
        (chat(model="gpt-4"), 404, "'gpt-4'"),
        (chat(model=["x"]), 404, "does not exist"),
    ],
)
async def test_malformed_request_gets_an_openai_error(body: bytes, status: int, said: str) -> None:
    """What cannot be answered is refused as OpenAI does, naming the field, and is no body of the count."""
    async with serving(always("500")) as (endpoint, session):
        got, reply, headers = await post(endpoint, session, body)
        counts = await stats(endpoint, session)
    error = orjson.loads(reply)["error"]
    assert (got, headers["Content-Type"].partition(";")[0]) == (status, "application/json")
    assert set(error) == {"message", "type", "code"} and said in error["message"]
    assert (counts["requests"], counts["distinct_bodies"], counts["faults"]) == (1, 0, {})


@pytest.mark.anyio
async def test_stats_count_requests_bodies_completions_and_faults() -> None:
    """Three requests of two bodies under a plan that always fails: no completion, three faults."""
    async with serving(always("500")) as (endpoint, session):
        for seed in (1, 1, 2):
            await post(endpoint, session, chat(seed=seed))
        assert await stats(endpoint, session) == {
            "requests": 3,
            "distinct_bodies": 2,
            "most_in_flight": 1,
            "completed": 0,
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
    async with serving(always(kind)) as (endpoint, session):
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
    async with serving(always("reset")) as (endpoint, session):
        with pytest.raises((aiohttp.ClientOSError, aiohttp.ServerDisconnectedError)):
            await post(endpoint, session, chat())
        assert (await stats(endpoint, session))["faults"] == {"reset": 1}


@pytest.mark.anyio
@BOTH_LOOPS
async def test_reset_within_the_body_comes_after_part_of_it() -> None:
    """Status and half of the body arrive, then the connection is reset."""
    async with (
        serving(always("reset-body")) as (endpoint, session),
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
    async with serving(always(kind)) as (endpoint, _):
        port = int(endpoint.url.rpartition(":")[2].removesuffix("/v1"))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head + body)
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()


@pytest.mark.anyio
async def test_stall_never_answers_and_ends_with_its_client() -> None:
    """A stalled request holds its slot until its client gives up; then the next one stalls in it."""
    options = Options(faults=FaultPlan(1.0, ("stall",)), max_concurrency=1)
    async with asyncio.timeout(HANGS), serving(options) as (endpoint, session):
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
    async with asyncio.timeout(HANGS), serving(always("stall")) as (endpoint, session):
        stalled = asyncio.create_task(post(endpoint, session, chat()))
        await until(endpoint, session, "most_in_flight", 1)
        await endpoint.close()
        with pytest.raises(aiohttp.ClientError):
            await stalled


@pytest.mark.anyio
async def test_truncated_reply_is_whole_http_and_half_json() -> None:
    """Content-Length matches the cut body, so only the JSON tells that something is missing."""
    async with serving(always("truncated")) as (endpoint, session):
        status, body, headers = await post(endpoint, session, chat())
    assert (status, headers["Content-Length"]) == (200, str(len(body)))
    assert body.startswith(b'{"id":')
    with pytest.raises(orjson.JSONDecodeError):
        orjson.loads(body)


@pytest.mark.anyio
async def test_no_choices_is_a_200_without_choices() -> None:
    """All else is there."""
    async with serving(always("no-choices")) as (endpoint, session):
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
    async with serving(always(kind)) as (endpoint, session):
        status, body, _ = await post(endpoint, session, chat())
        assert (await post(endpoint, session, chat()))[1] == body
        counts = await stats(endpoint, session)
    choice = orjson.loads(body)["choices"][0]
    assert (status, choice["message"]["content"], choice["finish_reason"]) == (200, content, finish_reason)
    assert bool(choice["message"]["refusal"]) == (kind == "refusal")
    assert (counts["completed"], counts["faults"]) == (2, {kind: 2})


@pytest.mark.anyio
async def test_no_json_reply_is_prose_without_braces() -> None:
    """Nothing in it could be repaired into an object."""
    async with serving(always("no-json")) as (endpoint, session):
        content = orjson.loads((await post(endpoint, session, chat()))[1])["choices"][0]["message"]["content"]
    assert content and not set("{}[]") & set(content)


@pytest.mark.anyio
async def test_repeated_tries_come_through_to_the_fault_free_reply() -> None:
    """Under transport faults a body that is sent again and again gets the very bytes of a calm endpoint."""
    async with serving(Options()) as (calm, session):
        expected = (await post(calm, session, chat()))[1]
        plan = FaultPlan(0.6, ("429", "500", "truncated", "reset"), seed=2)
        async with serving(Options(faults=plan)) as (endpoint, other):
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
        async with serving(options) as (endpoint, session):
            statuses = []
            for n in range(12):
                statuses.append((await post(endpoint, session, chat()))[0])
                for other in range(between):
                    await post(endpoint, session, chat(seed=between * n + other))
        seen.append(statuses)
    assert seen[0] == seen[1] and set(seen[0]) == {200, 500}


@pytest.mark.anyio
async def test_requests_beyond_max_concurrency_get_429_at_once_and_are_no_try() -> None:
    """Two stall in their slots; the third is refused, counted apart, and does not use up a draw of its body."""
    options = Options(faults=FaultPlan(1.0, ("stall",)), max_concurrency=2)
    async with serving(options) as (endpoint, session):
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
    async with asyncio.timeout(HANGS), serving(Options(latency=3600)) as (endpoint, session):
        waiting = [asyncio.create_task(post(endpoint, session, chat(seed=n))) for n in range(8)]
        await until(endpoint, session, "most_in_flight", 8)
        for task in waiting:
            task.cancel()


@pytest.mark.anyio
async def test_port_can_be_taken_again_after_close_and_not_while_taken() -> None:
    """A given port is free once closed; while it is taken the error names it."""
    first = await start(Options())
    port = int(first.url.rpartition(":")[2].removesuffix("/v1"))
    with pytest.raises(MachineError, match=f"port {port}: another program has it"):
        await start(Options(), port=port)
    await first.close()
    second = await start(Options(), port=port)
    assert second.url == first.url
    await second.close()


# The command


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    return parser.parse_args(arguments)


def test_arguments_become_options() -> None:
    """A fault rate without kinds means transport faults; the seed goes to everything that draws."""
    assert serve.options(parsed()) == Options()
    assert serve.options(parsed("--fault-rate", "0.3", "--seed", "4")) == Options(
        faults=FaultPlan(0.3, TRANSPORT, 4), seed=4
    )
    wanted = serve.options(parsed("--fault-rate", "0.1", "--faults", "429, content", "--max-concurrency", "8"))
    assert wanted == Options(faults=FaultPlan(0.1, ("429", *CONTENT)), max_concurrency=8)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--faults", "500"], "--fault-rate"),
        (["--fault-rate", "2"], "fraction"),
        (["--fault-rate", "0.1", "--faults", "fire"], "unknown fault"),
        (["--port", "70000"], "--port"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_listens(arguments: list[str], said: str) -> None:
    """One sentence, naming what to change."""
    with pytest.raises(BadInput, match=said):
        serve.execute(parsed(*arguments))


def test_taken_port_is_this_machines_error() -> None:
    """The command ends with the port's name where another program listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(MachineError, match=f"port {port}"):
            serve.execute(parsed("--port", str(port)))


SERVE = """
import argparse
from harness.commands import serve
parser = argparse.ArgumentParser()
serve.add_arguments(parser)
raise SystemExit(serve.execute(parser.parse_args()))
"""


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_command_prints_its_url_and_serves_until_a_signal(stop: signal.Signals) -> None:
    """The one line says where it listens; a signal ends it with exit code 0, quietly."""
    command = [sys.executable, "-c", SERVE, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("listening on http://127.0.0.1:") and line.endswith("/v1\n")
        port = int(line.rpartition(":")[2].removesuffix("/v1\n"))
        socket.create_connection(("127.0.0.1", port)).close()
        process.send_signal(stop)
        output, errors = process.communicate(timeout=20)
    assert (process.returncode, output, errors) == (0, "", "")
