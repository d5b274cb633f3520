"""Imitations of providers: each data file, its replies, streams, refusals and errors, over real
connections."""

from __future__ import annotations

from typing import Any

import aiohttp
import orjson
import pytest

from tests.support.embedded import session_with
from tests.support.endpoint_double import imitate
from tests.support.endpoint_double.app import Embedded, Options
from tests.support.endpoint_double.faults import REFUSALS
from tests.support.endpoint_double.imitate import FIXED, THOUGHTS
from tests.support.scripted import answer

PROMPT = '[1] Content: 早\nTags: 猫\n从 ["狗", "猫", "鸟", "鱼"] 里选，以 JSON 回答'
MESSAGES = [{"role": "user", "content": PROMPT}]
TEXT = answer("baseline/recency", MESSAGES, 0)
PLAIN = dict.fromkeys(imitate.NAMES, "some-model")
THINKER = {
    "openai": "o4-mini",
    "deepseek": "deepseek-reasoner",
    "dashscope": "deepseek-r1",
    "siliconflow": "Qwen/QwQ-32B",
    "openrouter": "deepseek/deepseek-r1:free",
    "vllm": "Qwen/Qwen3-8B",
    "sglang": "Qwen/Qwen3-8B",
    "llamacpp": "qwen3-8b-q4_k_m.gguf",
}
"""A model of each provider that thinks first, and takes both whole replies and streams."""

EACH = pytest.mark.parametrize("name", imitate.NAMES)


def call(model: str = "some-model", **changes: Any) -> dict[str, Any]:
    return {"model": model, "messages": MESSAGES, **changes}


async def post(
    endpoint: Embedded, session: aiohttp.ClientSession, body: dict[str, Any]
) -> tuple[int, bytes, Any]:
    async with session.post(
        f"{endpoint.url}/chat/completions", data=orjson.dumps(body)
    ) as response:
        return response.status, await response.read(), response.headers


def text_of(message: dict[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join([part["text"] for part in content])


def joined(stream: bytes, member: str) -> str:
    """A member of all deltas of a stream, together."""
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks_of(stream) if chunk.get("choices")]
    return "".join([delta.get(member) or "" for delta in deltas])


def chunks_of(stream: bytes) -> list[dict[str, Any]]:
    lines = [line for line in stream.split(b"\n") if line.startswith(b"data: {")]
    return [orjson.loads(line.removeprefix(b"data: ")) for line in lines]


# Data files


@EACH
def test_each_data_file_names_public_sources_and_what_it_has(name: str) -> None:
    """A file that loads is a valid one; its sources are public addresses, its errors JSON with a
    status."""
    imitation = imitate.load(name)
    assert imitation.sources and all(source.startswith("https://") for source in imitation.sources)
    for kind, error in imitation.errors.items():
        assert kind in REFUSALS and error.status >= 400
        orjson.loads(error.reply('模型"x').body)
    assert "bad_key" in imitation.errors and "context_length" in imitation.errors


def test_every_data_file_is_offered() -> None:
    """The names are those of the files."""
    assert {path.stem for path in imitate.FOLDER.glob("*.toml")} == set(imitate.NAMES)


def whole(content: str = "好") -> dict[str, Any]:
    message = {"role": "assistant", "content": content, "refusal": None}
    return {
        "id": "1",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9},
    }


# Replies and streams


@pytest.mark.anyio
@EACH
@pytest.mark.parametrize("models", [PLAIN, THINKER], ids=["plain", "thinking"])
async def test_reply_is_the_baselines_under_the_name_asked_for(
    name: str, models: dict[str, str]
) -> None:
    """Any model is answered, the same bytes each time; the content is the answer, wherever the
    thoughts are."""
    async with session_with(Options(imitate=name)) as (endpoint, session):
        status, body, headers = await post(endpoint, session, call(models[name]))
        assert (await post(endpoint, session, call(models[name])))[1] == body
    reply = orjson.loads(body)
    choice = reply["choices"][0]
    assert (status, headers["Content-Type"], reply["model"]) == (
        200,
        "application/json",
        models[name],
    )
    assert (text_of(choice["message"]), choice["finish_reason"]) == (TEXT, "stop")
    usage = reply["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert (usage["completion_tokens"] > len(TEXT) // 2) == (models is THINKER)
    assert set(imitate.load(name).reply) <= set(reply)


@pytest.mark.anyio
@EACH
@pytest.mark.parametrize("models", [PLAIN, THINKER], ids=["plain", "thinking"])
async def test_stream_joined_is_the_whole_reply(name: str, models: dict[str, str]) -> None:
    """Content, thoughts, finish reason and usage are those of the reply without streaming."""
    async with session_with(Options(imitate=name)) as (endpoint, session):
        reply = orjson.loads((await post(endpoint, session, call(models[name])))[1])
        wanted = call(models[name], stream=True, stream_options={"include_usage": True})
        _, stream, headers = await post(endpoint, session, wanted)
    choice, chunks = reply["choices"][0], chunks_of(stream)
    assert headers["Content-Type"] == "text/event-stream" and stream.endswith(b"data: [DONE]\n\n")
    assert joined(stream, "content") == text_of(choice["message"])
    for member in ("reasoning_content", "reasoning"):
        assert joined(stream, member) == (choice["message"].get(member) or "")
    ends = [chunk["choices"][0]["finish_reason"] for chunk in chunks if chunk["choices"]]
    assert (set(ends[:-1]), ends[-1]) == ({None}, choice["finish_reason"])
    assert [chunk["usage"] for chunk in chunks if chunk.get("usage")] == [reply["usage"]]
    assert {chunk["model"] for chunk in chunks} == {models[name]}


WHERE = {
    "openai": None,
    "deepseek": "reasoning_content",
    "dashscope": "reasoning_content",
    "siliconflow": "reasoning_content",
    "openrouter": "reasoning",
    "vllm": "reasoning",
    "sglang": "reasoning_content",
    "llamacpp": "reasoning_content",
}


@EACH
def test_thoughts_stand_where_the_provider_has_them(name: str) -> None:
    """Beside the content, or nowhere, and then the usage alone tells of them; other models have
    none."""
    imitation = imitate.load(name)
    thinking, plain = (
        imitation.shape(whole(), call(THINKER[name])),
        imitation.shape(whole(), call()),
    )
    message = thinking["choices"][0]["message"]
    assert [member for member in ("reasoning_content", "reasoning") if message.get(member)] == (
        [WHERE[name]] if WHERE[name] else []
    )
    assert message["content"] == plain["choices"][0]["message"]["content"] == "好"
    assert thinking["usage"]["completion_tokens"] - 2 == len(THOUGHTS) // 2
    assert plain["usage"]["completion_tokens"] == 2
    if name not in ("vllm", "sglang", "llamacpp"):
        assert (
            thinking["usage"]["completion_tokens_details"]["reasoning_tokens"] == len(THOUGHTS) // 2
        )
    assert not plain["choices"][0]["message"].get("reasoning_content")


def test_prompts_are_answered_by_the_baseline_that_reads_them() -> None:
    """Tags by recency, days by the commuter, baselines by their name, anything else by a fixed JSON
    object."""
    day = [{"role": "user", "content": "家在 AOI 7，坐标 (0, 0) 米"}]
    greeting = [{"role": "user", "content": "你好"}]
    assert imitate.answer(call(), 0) == TEXT
    assert imitate.answer(call("baseline/frequency"), 0) == answer(
        "baseline/frequency", MESSAGES, 0
    )
    assert orjson.loads(imitate.answer(call(messages=day), 0))["segments"][0]["place"] == 7
    assert imitate.answer(call(messages=greeting), 0) == FIXED and orjson.loads(FIXED)
    assert "segments" in imitate.answer(call("baseline/random-day", messages=greeting), 0)


# Refused parameters


# Errors
