"""Imitations of providers: each data file, its replies, streams, refusals and errors, over real
connections."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from harness.errors import BadInput
from tests.support.embedded import session_with
from tests.support.endpoint_double import imitate
from tests.support.endpoint_double.app import Embedded, Options
from tests.support.endpoint_double.faults import PASSING, REFUSALS, FaultPlan
from tests.support.endpoint_double.imitate import FIXED, NO_SUCH_MODEL, THOUGHTS, Imitation
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
EVERY_ERROR = [(name, kind) for name in imitate.NAMES for kind in imitate.load(name).errors]


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


VALID = 'sources = ["https://example.org"]\n'


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("sources = [", "not TOML"),
        ("", "`sources`"),
        (VALID + "color = 1", "unknown field `color`"),
        (VALID + "reply = '[]'", r"a JSON object as text - at `\$\.reply`"),
        (VALID + "reply = '{'", r"JSON as text .* - at `\$\.reply`"),
        (VALID + "parts = 1", r"`bool`, got `int` - at `\$\.parts`"),
        (VALID + "thinking = 1", r"at `\$\.thinking`"),
        (VALID + "[[thinking]]\nshown = 'loudly'", r"at `\$\.thinking\[0\]\.shown`"),
        (
            VALID + "[[thinking]]\nshown = 'hidden'\nmodels = '('",
            r"regular expression .* at `\$\.thinking\[0\]\.models`",
        ),
        (VALID + "[[refused]]\nstatus = 400", r"`body` - at `\$\.refused\[0\]`"),
        (
            VALID + "[[refused]]\nstatus = 400\nbody = '{'",
            r"JSON as text .* at `\$\.refused\[0\]\.body`",
        ),
        (VALID + "[errors.fire]\nstatus = 400", "errors.fire: expected one of rate_limit"),
        (VALID + "[errors.quota]\nstatus = 200\nbody = '{}'", r"errors.quota: .* at `\$\.status`"),
        (
            VALID + "[errors.quota]\nstatus = 400\nbody = '{}'\nheaders = {x = 1}",
            r"errors.quota: .* at `\$\.headers",
        ),
        (
            VALID + "[errors.quota]\nstatus = 400\nbody = '{}'\nextra = 1",
            "errors.quota: .*unknown field `extra`",
        ),
    ],
)
def test_mistake_in_a_data_file_is_named(tmp_path: Path, content: str, said: str) -> None:
    """File, place and what was expected."""
    (tmp_path / "own.toml").write_text(content, encoding="utf-8")
    with pytest.raises(BadInput, match=said) as caught:
        imitate.load("own", tmp_path)
    assert "own.toml" in str(caught.value)


def test_provider_without_a_data_file_cannot_be_imitated(tmp_path: Path) -> None:
    """The sentence lists those that can."""
    with pytest.raises(BadInput, match="known are openai, deepseek"):
        Options(imitate="nobody")
    with pytest.raises(BadInput, match="cannot read"):
        imitate.load("nobody", tmp_path)


def own(tmp_path: Path, content: str) -> Imitation:
    (tmp_path / "own.toml").write_text(VALID + content, encoding="utf-8")
    return imitate.load("own", tmp_path)


def whole(content: str = "好") -> dict[str, Any]:
    message = {"role": "assistant", "content": content, "refusal": None}
    return {
        "id": "1",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9},
    }


def test_content_can_be_a_list_of_parts_and_usage_missing(tmp_path: Path) -> None:
    """Both are for providers that do so; the text is the same."""
    shaped = own(tmp_path, "parts = true\nusage_missing = true").shape(whole(), call())
    assert shaped["choices"][0]["message"]["content"] == [{"type": "text", "text": "好"}]
    assert "usage" not in shaped


def test_members_of_the_usage_can_name_a_count(tmp_path: Path) -> None:
    """A member that stands for a count takes it, at any depth, and ours win over members of their
    name."""
    usage = '{"miss": "{prompt_tokens}", "details": {"all": "{prompt_tokens}"}, "prompt_tokens": 1}'
    shaped = own(tmp_path, f"usage = '{usage}'").shape(whole(), call())
    assert shaped["usage"] == {**whole()["usage"], "miss": 7, "details": {"all": 7}}


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


@pytest.mark.parametrize(
    ("name", "model", "switch", "thinks"),
    [
        ("deepseek", "deepseek-reasoner", {"thinking": {"type": "disabled"}}, False),
        ("deepseek", "deepseek-chat", {}, False),
        ("deepseek", "deepseek-chat", {"thinking": {"type": "enabled"}}, True),
        ("dashscope", "qwen3-32b", {}, True),
        ("dashscope", "qwen3-32b", {"enable_thinking": False}, False),
        ("dashscope", "qwen-plus", {}, False),
        ("dashscope", "qwen-plus", {"enable_thinking": True}, True),
        ("siliconflow", "Qwen/Qwen3-8B", {"enable_thinking": False}, False),
        ("vllm", "Qwen/Qwen3-8B", {"chat_template_kwargs": {"enable_thinking": False}}, False),
        ("sglang", "Qwen/Qwen3-8B", {"chat_template_kwargs": {"enable_thinking": False}}, False),
        ("llamacpp", "qwen3-8b", {"chat_template_kwargs": {"enable_thinking": False}}, False),
        ("llamacpp", "qwen3-8b", {"chat_template_kwargs": 1}, True),
    ],
)
def test_thinking_switches(name: str, model: str, switch: dict[str, Any], thinks: bool) -> None:
    """Each provider's own way to have models think or not."""
    shaped = imitate.load(name).shape(whole(), call(model, **switch))
    message = shaped["choices"][0]["message"]
    assert bool(message.get("reasoning_content") or message.get("reasoning")) == thinks


def test_excluded_thoughts_are_counted_though_not_shown() -> None:
    """OpenRouter leaves them out when asked to, and bills them."""
    asked = call("deepseek/deepseek-r1", reasoning={"exclude": True})
    shaped = imitate.load("openrouter").shape(whole(), asked)
    assert shaped["choices"][0]["message"]["reasoning"] is None
    assert shaped["usage"]["completion_tokens_details"]["reasoning_tokens"] == len(THOUGHTS) // 2


def test_thoughts_can_be_left_in_the_content() -> None:
    """Without a reasoning parser the answer comes after `</think>`."""
    shaped = imitate.load("sglang").shape(whole(), call("deepseek-ai/DeepSeek-R1"))
    content = shaped["choices"][0]["message"]["content"]
    assert content == f"<think>\n{THOUGHTS}\n</think>\n\n好"


@pytest.mark.anyio
@EACH
async def test_thinking_model_cut_off_by_its_length_has_thoughts_only(name: str) -> None:
    """All tokens went into thinking: the content is empty, the finish reason length."""
    options = Options(imitate=name, faults=FaultPlan(1.0, ("length",)))
    async with session_with(options) as (endpoint, session):
        reply = orjson.loads((await post(endpoint, session, call(THINKER[name])))[1])
    choice = reply["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("", "length")
    assert reply["usage"]["completion_tokens"] == len(THOUGHTS) // 2


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("name", "comment"), [("deepseek", b": keep-alive"), ("openrouter", b": OPENROUTER PROCESSING")]
)
async def test_streams_are_kept_alive_by_comments(name: str, comment: bytes) -> None:
    """One comes before the first event, one in the middle."""
    async with session_with(Options(imitate=name)) as (endpoint, session):
        _, stream, _ = await post(endpoint, session, call(stream=True))
    blocks = stream.split(b"\n\n")
    assert blocks[0] == comment and 1 < blocks.index(comment, 1) < len(blocks) - 3


@pytest.mark.anyio
async def test_whole_replies_of_deepseek_come_after_empty_lines() -> None:
    """They keep the connection alive and harm no JSON; an error has none."""
    async with session_with(Options(imitate="deepseek")) as (endpoint, session):
        status, body, _ = await post(endpoint, session, call())
    assert (status, body[:4]) == (200, b"\n\n\n\n") and orjson.loads(body)["choices"]


@pytest.mark.anyio
async def test_usage_of_deepseek_comes_with_the_end_of_a_stream() -> None:
    """Asked for or not, it stands in the chunk with the finish reason."""
    async with session_with(Options(imitate="deepseek")) as (endpoint, session):
        _, stream, _ = await post(endpoint, session, call(stream=True))
    last = chunks_of(stream)[-1]
    assert (last["choices"][0]["finish_reason"], last["usage"]["prompt_cache_miss_tokens"]) == (
        "stop",
        len(PROMPT) // 2,
    )


@pytest.mark.anyio
async def test_error_in_mid_stream_has_the_providers_form() -> None:
    """OpenRouter sends a chunk with `error` and finish_reason error, vLLM an error alone."""
    plan = FaultPlan(1.0, ("stream-error",))
    async with session_with(Options(imitate="openrouter", faults=plan)) as (endpoint, session):
        last = chunks_of((await post(endpoint, session, call(stream=True)))[1])[-1]
        assert (last["error"]["code"], last["choices"][0]["finish_reason"]) == (502, "error")
    async with session_with(Options(imitate="vllm", faults=plan)) as (endpoint, session):
        last = chunks_of((await post(endpoint, session, call(stream=True)))[1])[-1]
        assert (set(last), last["error"]["code"]) == ({"error"}, 500)


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

JSON_OBJECT: dict[str, Any] = {"response_format": {"type": "json_object"}}
NO_JSON: dict[str, Any] = {**JSON_OBJECT, "messages": [{"role": "user", "content": "你好"}]}
SCHEMA: dict[str, Any] = {
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}
}


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("name", "wanted", "said"),
    [
        ("openai", call("gpt-5-mini", temperature=0), "does not support 0 with this model"),
        ("openai", call("o3", temperature=0.2), "does not support 0.2 with this model"),
        ("openai", call("o3-mini", temperature=1), "Unsupported parameter: 'temperature'"),
        ("openai", call("o1", max_tokens=5), "max_completion_tokens"),
        ("openai", call(**NO_JSON), "must contain the word 'json'"),
        ("deepseek", call(**SCHEMA), "response_format type is unavailable"),
        ("deepseek", call(**NO_JSON), "must contain the word 'json'"),
        ("dashscope", call("qwq-plus"), "only support stream mode"),
        (
            "dashscope",
            call("qwen3-235b-a22b-thinking-2507", stream=False),
            "only support stream mode",
        ),
        ("dashscope", call("qwen3-32b"), "enable_thinking must be set to false"),
        (
            "dashscope",
            call("qwen3-30b-a3b", enable_thinking=True),
            "enable_thinking must be set to false",
        ),
        ("dashscope", call("qwen-plus", **NO_JSON), "must contain the word 'json'"),
        (
            "siliconflow",
            call("Qwen/Qwen2.5-7B-Instruct", enable_thinking=False),
            "does not support parameter",
        ),
        ("llamacpp", call(response_format={"type": "grammar"}), "but got: grammar"),
    ],
)
async def test_refused_parameters_are_refused(name: str, wanted: dict[str, Any], said: str) -> None:
    """Each with status 400 in the provider's words; it is no body of the count and no try."""
    async with session_with(Options(imitate=name)) as (endpoint, session):
        status, body, _ = await post(endpoint, session, wanted)
        async with session.get(f"{endpoint.url.removesuffix('/v1')}/stats") as response:
            counts = await response.json()
    assert (status, said in body.decode()) == (400, True)
    orjson.loads(body)
    assert (counts["requests"], counts["distinct_bodies"], counts["completed"]) == (1, 0, 0)


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("openai", call("gpt-5-mini", temperature=1)),
        ("openai", call("gpt-5-mini", temperature=1.0, max_completion_tokens=5)),
        ("openai", call("gpt-4o-mini", temperature=0, max_tokens=5, seed=1, top_p=0.5, **SCHEMA)),
        ("openai", call(**JSON_OBJECT)),
        ("deepseek", call("deepseek-reasoner", temperature=0, max_tokens=5, **JSON_OBJECT)),
        ("dashscope", call("qwq-plus", stream=True)),
        ("dashscope", call("qwen3-32b", stream=True)),
        ("dashscope", call("qwen3-32b", enable_thinking=False)),
        ("dashscope", call("qwen3-235b-a22b-instruct-2507")),
        ("dashscope", call("qwen-plus", temperature=0, max_tokens=5, **JSON_OBJECT)),
        ("siliconflow", call("Qwen/Qwen3-8B", enable_thinking=False)),
        ("siliconflow", call("Qwen/Qwen2.5-7B-Instruct", **JSON_OBJECT)),
        ("openrouter", call("openai/gpt-5", temperature=0, max_tokens=5, **SCHEMA)),
        ("vllm", call("Qwen/Qwen3-8B", temperature=0, max_tokens=5, **SCHEMA)),
        ("sglang", call(NO_SUCH_MODEL, temperature=0, **JSON_OBJECT)),
        ("llamacpp", call(NO_SUCH_MODEL, **SCHEMA)),
        ("llamacpp", call(**JSON_OBJECT)),
    ],
)
def test_nothing_else_is_refused(name: str, taken: dict[str, Any]) -> None:
    """Beside each refused parameter stands a call that is taken."""
    assert imitate.load(name).refusal(taken) is None


def test_values_are_quoted_as_they_stand_in_json() -> None:
    """A model or value with quotation marks breaks no body."""
    error = imitate.Error(400, imitate.Body('{"m": "$model", "v": "$value"}'))
    body = orjson.loads(error.reply('a"b\n', {"x": '"是"'}).body)
    assert body == {"m": 'a"b\n', "v": '{"x":"\\"是\\""}'}


# Errors


@pytest.mark.anyio
@pytest.mark.parametrize(("name", "kind"), EVERY_ERROR)
async def test_each_error_comes_with_its_status_and_body(name: str, kind: str) -> None:
    """As a fault it comes in place of the completion, streamed or not, with the provider's
    headers."""
    error = imitate.load(name).errors[kind]
    async with session_with(Options(imitate=name, faults=FaultPlan(1.0, (kind,)))) as (
        endpoint,
        session,
    ):
        for streamed in (False, True):
            status, body, headers = await post(endpoint, session, call(stream=streamed))
            assert (status, body) == (error.status, error.reply("some-model").body)
            assert orjson.loads(body) and headers["Content-Type"] == "application/json"
            assert all(headers[header] == value for header, value in error.headers.items())


@pytest.mark.anyio
@EACH
async def test_unknown_model_is_not_answered(name: str) -> None:
    """One name gets the error of an unknown model, where the provider has one; the others take any
    name."""
    error = imitate.load(name).errors.get("unknown_model")
    async with session_with(Options(imitate=name)) as (endpoint, session):
        status, body, _ = await post(endpoint, session, call(NO_SUCH_MODEL))
    assert (
        (status, body) == (error.status, error.reply(NO_SUCH_MODEL).body)
        if error
        else status == 200
    )


@pytest.mark.anyio
@EACH
async def test_wrong_key_is_refused_in_the_providers_form(name: str) -> None:
    """401 with the provider's own body, for streams too."""
    async with session_with(Options(imitate=name, key="sk-test-own")) as (endpoint, session):
        status, body, _ = await post(endpoint, session, call(stream=True))
    assert (status, body) == (401, imitate.load(name).errors["bad_key"].reply("").body)


def test_refusals_of_a_plan_are_those_of_the_provider() -> None:
    """The group stands for what the provider has; a kind that it lacks is refused, naming those."""
    options = Options(imitate="vllm", faults=FaultPlan(0.5, ("refusals", "500")))
    assert options.faults and options.faults.kinds == (
        "context_length",
        "unknown_model",
        "bad_key",
        "bad_parameter",
        "500",
    )
    with pytest.raises(
        BadInput,
        match="the imitated vllm has context_length, unknown_model, bad_key, bad_parameter",
    ):
        Options(imitate="vllm", faults=FaultPlan(0.5, ("rate_limit",)))


def test_refusals_that_pass_are_drawn_anew_the_others_stay_with_the_body() -> None:
    """A busy provider takes the request later; a filter never."""
    passing, lasting = FaultPlan(0.5, PASSING), FaultPlan(0.5, ("input_filter", "quota"))
    assert {passing.draw(b"body", attempt) for attempt in range(50)} == {None, *PASSING}
    for body in (b"a", b"b", b"c", b"d"):
        assert len({lasting.draw(body, attempt) for attempt in range(50)}) == 1


@pytest.mark.anyio
async def test_model_that_is_no_text_is_malformed() -> None:
    """Even where any model is answered."""
    async with session_with(Options(imitate="vllm")) as (endpoint, session):
        status, body, _ = await post(endpoint, session, {"model": None, "messages": MESSAGES})
    error = orjson.loads(body)["error"]
    assert (status, error["param"], error["code"]) == (400, "model", "invalid_type")
