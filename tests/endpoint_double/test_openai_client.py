"""What the `openai` client sends in chat calls, and what its caller gets: as from OpenAI's API.

The requests in `tests/data/openai_calls.jsonl` were captured from that client by
`bench/clients/openai_calls.py`; what its callers got was read and compared with OpenAI's API
reference and with error bodies that its users reported.
"""

from __future__ import annotations

import subprocess
from typing import Any

import aiohttp
import orjson
import pytest
from yarl import URL

from tests.support import ROOT
from tests.support.embedded import served, session_with
from tests.support.endpoint_double import app, imitate
from tests.support.endpoint_double.app import Embedded, Options
from tests.support.endpoint_double.calls import OpenAICall
from tests.support.endpoint_double.faults import FaultPlan

CLIENT = ROOT / ".bench/openai/bin/python"
FILE = ROOT / "tests/data/openai_calls.jsonl"
HEAD, *CALLS = [orjson.loads(line) for line in FILE.read_bytes().splitlines()]
MESSAGES = CALLS[0]["body"]["messages"]
THINKERS = {"vllm": "Qwen/Qwen3-8B", "sglang": "deepseek-ai/DeepSeek-R1", "openai": "o4-mini"}
"""Their thoughts are in a member of the message, in its content, and hidden."""


async def ask(
    endpoint: Embedded,
    session: aiohttp.ClientSession,
    path: str,
    method: str = "GET",
    body: Any = None,
) -> tuple[int, Any]:
    """Return the status, and the JSON of a reply or of each event of a stream."""
    url = URL(endpoint.url.removesuffix("/v1") + path, encoded=True)
    async with session.request(method, url, json=body) as response:
        data = await response.read()
    if response.content_type == "text/event-stream":
        events = [event.removeprefix(b"data: ") for event in data.split(b"\n\n")]
        assert events[-2:] == [b"[DONE]", b""]
        return response.status, [orjson.loads(event) for event in events[:-2]]
    assert response.content_type == "application/json"
    return response.status, orjson.loads(data)


async def chat(endpoint: Embedded, session: aiohttp.ClientSession, **members: Any) -> Any:
    body = {"model": "baseline/recency", "messages": MESSAGES, **members}
    status, reply = await ask(endpoint, session, "/v1/chat/completions", "POST", body)
    assert status == 200, reply
    return reply


def outcome(status: int, reply: Any) -> dict[str, Any]:
    """What a caller of the client sees of a reply, as the file has it."""
    if status != 200:
        return {
            "status": status,
            **{name: reply["error"][name] for name in ("type", "param", "code")},
        }
    if "object" in reply and reply["object"] in ("list", "model"):
        return {"status": 200, "value": reply.get("id") or [model["id"] for model in reply["data"]]}
    chunks = reply if isinstance(reply, list) else [reply]
    texts: dict[int, str] = {}
    reasons: dict[int, str] = {}
    for choice in [choice for chunk in chunks for choice in chunk["choices"]]:
        message = choice["message"] if "message" in choice else choice["delta"]
        texts[choice["index"]] = texts.get(choice["index"], "") + (message.get("content") or "")
        reasons[choice["index"]] = choice["finish_reason"]
    usage = chunks[-1].get("usage")
    tokens = (
        [usage[f"{kind}_tokens"] for kind in ("prompt", "completion", "total")] if usage else None
    )
    return {
        "status": 200,
        "texts": list(texts.values()),
        "reasons": list(reasons.values()),
        "usage": tokens,
    }


@pytest.mark.anyio
@pytest.mark.parametrize("call", CALLS, ids=[call["name"] for call in CALLS])
async def test_captured_request_is_answered_as_openai_would(call: dict[str, Any]) -> None:
    """Texts, finish reasons and usage, or status, type, param and code of the error; every error
    has a message."""
    async with session_with(Options()) as (endpoint, session):
        status, reply = await ask(endpoint, session, call["path"], call["method"], call["body"])
    assert outcome(status, reply) == call["got"]
    assert status == 200 or reply["error"]["message"]


def test_every_member_that_the_client_can_send_is_known() -> None:
    """A new member of the client needs a type here."""
    assert set(OpenAICall.__struct_fields__) == {*HEAD["members"]}
    assert (
        f"openai[aiohttp]=={HEAD['version']}" in (ROOT / "requirements/peer-openai.in").read_text()
    )


@pytest.mark.slow
@pytest.mark.skipif(not CLIENT.exists(), reason="no openai client: make .bench/openai/made")
def test_client_sends_and_gets_what_the_file_has() -> None:
    """The client itself, over a connection of its own."""
    with served(Options()) as endpoint:
        command = [CLIENT, ROOT / "bench/clients/openai_calls.py", endpoint.url]
        output = subprocess.run(command, check=True, capture_output=True).stdout
    assert [orjson.loads(line) for line in output.splitlines()] == [HEAD, *CALLS]


@pytest.mark.anyio
async def test_choices_share_no_more_tokens_than_each_may_have() -> None:
    """The usage counts all choices, each cut at its limit, streamed or not."""
    async with session_with(Options()) as (endpoint, session):
        for limit in (1, 7, 48, 49):
            reply = await chat(endpoint, session, n=3, max_completion_tokens=limit)
            assert reply["usage"]["completion_tokens"] == 3 * limit
            reasons = [choice["finish_reason"] for choice in reply["choices"]]
            assert reasons == ["length" if limit < 49 else "stop"] * 3
            assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2]


@pytest.mark.anyio
async def test_every_chunk_of_a_stream_with_usage_has_a_usage() -> None:
    """It is null but in the last chunk, which has no choices."""
    async with session_with(Options()) as (endpoint, session):
        *chunks, last = await chat(
            endpoint, session, stream=True, stream_options={"include_usage": True}, n=2
        )
    assert all(chunk["usage"] is None for chunk in chunks) and last["usage"] and not last["choices"]
    ends = [
        choice["index"]
        for chunk in chunks
        for choice in chunk["choices"]
        if choice["finish_reason"]
    ]
    assert ends == [0, 1]


@pytest.mark.anyio
@pytest.mark.parametrize(("name", "model"), THINKERS.items())
@pytest.mark.parametrize("limit", [1, 22, 30, 1000])
async def test_limit_holds_thoughts_and_answer(name: str, model: str, limit: int) -> None:
    """What is left after the thoughts is for the answer; a length that is reached is the usage,
    exactly."""
    async with session_with(Options(imitate=name)) as (endpoint, session):
        members = {"model": model, "max_completion_tokens": limit, "n": 2}
        reply = await chat(endpoint, session, **members)
        streamed = await chat(
            endpoint, session, **members, stream=True, stream_options={"include_usage": True}
        )
    used = reply["usage"]["completion_tokens"]
    cut_off = {choice["finish_reason"] for choice in reply["choices"]} == {"length"}
    assert (used == 2 * limit) if cut_off else (limit == 1000 and used < 2000)
    assert {**outcome(200, streamed), "usage": None} == {**outcome(200, reply), "usage": None}
    assert streamed[-1]["usage"] == reply["usage"]


@pytest.mark.anyio
async def test_content_faults_concern_each_choice() -> None:
    """An empty reply is empty in all of its choices, each of which has a token for its end."""
    async with session_with(Options(faults=FaultPlan(1.0, ("empty",)))) as (endpoint, session):
        reply = await chat(endpoint, session, n=2)
    assert [choice["message"]["content"] for choice in reply["choices"]] == ["", ""]
    assert reply["usage"]["completion_tokens"] == 2


@pytest.mark.anyio
@pytest.mark.parametrize("name", imitate.NAMES)
async def test_other_providers_take_members_that_openai_does_not(name: str) -> None:
    """`top_k`, and no limit as llama.cpp has it; OpenAI refuses both, and so does its imitation."""
    body = {"model": "some-model", "messages": MESSAGES, "top_k": 5, "max_tokens": -1}
    async with session_with(Options(imitate=name)) as (endpoint, session):
        status, _ = await ask(endpoint, session, "/v1/chat/completions", "POST", body)
    assert status == (400 if name == "openai" else 200)


@pytest.mark.anyio
async def test_runs_can_send_baselines_what_their_models_need() -> None:
    """A table's models and baselines share `--extra-body`; a wrong type of what decides an answer
    is refused still."""
    members = {
        "top_k": 5,
        "logprobs": True,
        "response_format": {"type": "json_object"},
        "temperature": -1,
    }
    body = {
        "model": "baseline/recency",
        "messages": [{"role": "user", "content": "你好"}],
        **members,
    }
    async with session_with(Options(strict=False)) as (endpoint, session):
        assert (await ask(endpoint, session, "/v1/chat/completions", "POST", body))[0] == 200
        assert (await ask(endpoint, session, "/v1/chat/completions", "POST", {**body, "n": "2"}))[
            0
        ] == 400
    async with session_with(Options()) as (endpoint, session):
        assert (await ask(endpoint, session, "/v1/chat/completions", "POST", body))[0] == 400


# Paths


@pytest.mark.anyio
@pytest.mark.parametrize("key", [None, "sk-test-own"])
async def test_health_needs_no_key(key: str | None) -> None:
    """It says that the endpoint is there."""
    async with session_with(Options(key=key)) as (endpoint, session):
        assert await ask(endpoint, session, "/health") == (200, {"status": "ok"})


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("POST", "/chat/completions", 404),
        ("POST", "/v1/chat/completions/", 404),
        ("PUT", "/v1/chat/completions", 405),
        ("DELETE", "/v1/models/baseline/recency", 405),
        ("POST", "/stats", 405),
        ("GET", "/v1/models/unknown", 404),
        ("GET", "/v1/models/baseline/recency", 200),
    ],
)
async def test_every_path_is_answered_with_json(method: str, path: str, status: int) -> None:
    """An error has a message, a type, a param and a code, wherever it comes from."""
    async with session_with(Options()) as (endpoint, session):
        got, reply = await ask(endpoint, session, path, method)
    assert got == status
    assert got == 200 or set(reply["error"]) == {"message", "type", "param", "code"}


@pytest.mark.anyio
async def test_body_beyond_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 413, as JSON."""
    monkeypatch.setattr(app, "BODY_LIMIT", 1000)
    async with session_with(Options()) as (endpoint, session):
        status, reply = await ask(
            endpoint, session, "/v1/chat/completions", "POST", {"model": "x" * 1000}
        )
    assert (status, reply["error"]["type"]) == (413, "invalid_request_error")


@pytest.mark.anyio
async def test_imitated_provider_has_every_model_but_one() -> None:
    """Also for a client that asks for the model first."""
    async with session_with(Options(imitate="vllm")) as (endpoint, session):
        assert (await ask(endpoint, session, "/v1/models/any/model"))[0] == 200
        assert (await ask(endpoint, session, f"/v1/models/{imitate.NO_SUCH_MODEL}"))[0] == 404
