"""What endpoints take differently, learned from what they refuse: a refusal for each, and some that
teach nothing."""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import Callable, Collection, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest

from harness.client import quirks as module
from harness.client.quirks import CHANGES, QUIRKS, Adapted, adapt, learn
from harness.client.replies import refused
from harness.client.request_body import Sampling
from harness.client.transport import Received
from harness.errors import BadInput, EndpointStopped, HarnessError, Rejected, TransportFault
from harness.model import JSON, Completion, Message, Request

NOW = datetime(2025, 3, 1, tzinfo=UTC)
GOOD = Completion("好")
SCHEMA = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}}}


def request(*texts: str, **more: Any) -> bytes:
    """A body with everything that can be asked for; `more` is of --extra-body."""
    messages = (
        Message("system", "你是研究者。"),
        *(Message("user", text) for text in texts or ("请用 JSON 回答。",)),
    )
    sampling = Sampling("qwen", top_p=0.9, seed=7, max_tokens=512, extra_body=more)
    return sampling.encode(Request(messages))


def adapted(*quirks: str, body: bytes = b"", given: Collection[str] = ()) -> JSON:
    found: JSON = orjson.loads(adapt(body or request(), frozenset(quirks), given))
    return found


def refusal(status: int, body: bytes) -> Rejected | TransportFault:
    """The error that an endpoint's refusal becomes, with its words as they are handed on."""
    with pytest.raises((Rejected, TransportFault)) as caught:
        refused(status, {}, body, NOW)
    return caught.value


def openai(message: str, param: str | None = None, code: str = "unsupported_parameter") -> bytes:
    return orjson.dumps(
        {
            "error": {
                "message": message,
                "type": "invalid_request_error",
                "param": param,
                "code": code,
            }
        }
    )


def validator(*place: str, message: str = "Extra inputs are not permitted") -> JSON:
    return {"type": "extra_forbidden", "loc": ["body", *place], "msg": message, "input": "猫"}


# A body


def test_without_quirks_a_body_stays_the_very_same_object():
    """The usual case decodes nothing; a quirk that changes nothing in a body leaves it, too."""
    body = request()
    assert adapt(body, frozenset()) is body
    plain = Sampling("qwen").encode(Request((Message("user", "好"),), json_object=False))
    every = frozenset(QUIRKS) - {"stream", "no_temperature"}
    assert adapt(plain, every) is plain


@pytest.mark.parametrize(
    ("quirk", "gone", "come"),
    [
        ("no_response_format", "response_format", {}),
        ("no_temperature", "temperature", {}),
        ("no_top_p", "top_p", {}),
        ("no_seed", "seed", {}),
        ("max_completion_tokens", "max_tokens", {"max_completion_tokens": 512}),
        ("json_schema", "response_format", {"response_format": SCHEMA}),
        ("stream", "", {"stream": True, "stream_options": {"include_usage": True}}),
    ],
)
def test_each_quirk_changes_its_own_member_alone(quirk, gone, come):
    """Everything else goes out as it was."""
    before = orjson.loads(request())
    before.pop(gone, None)
    assert adapted(quirk) == before | come


def test_json_word_drops_the_format_only_where_the_prompt_does_not_speak_of_json():
    """Decided by each request's own text, so that the same request is always sent the same."""
    assert "response_format" in adapted("json_word", body=request("以 Json 格式作答"))
    assert "response_format" not in adapted("json_word", body=request("请作答"))


def test_a_schema_of_the_users_steps_down_one_step_at_a_time():
    """A schema becomes any object, and any object nothing; ours becomes a schema that fits every
    object."""
    own = request(
        response_format={"type": "json_schema", "json_schema": {"name": "日", "schema": {}}}
    )
    given = ["response_format"]
    assert adapted("json_object", body=own, given=given)["response_format"] == {
        "type": "json_object"
    }
    assert "response_format" not in adapted(
        "json_object", "no_response_format", body=own, given=given
    )
    assert adapted("json_schema", body=own, given=given) == orjson.loads(own)


def test_what_the_user_gave_stays():
    """Members of --extra-body are never removed, renamed or replaced."""
    own = request(
        temperature=1.0, top_p=0.5, seed=9, max_tokens=9, stream=False, stream_options={"x": 1}
    )
    given = ["temperature", "top_p", "seed", "max_tokens", "stream", "stream_options"]
    every = frozenset(QUIRKS) - {"no_response_format", "json_schema", "json_word", "no_system_role"}
    assert adapt(own, every, given) is own
    assert adapted("stream", body=request(stream=False)) == orjson.loads(request(stream=False))


def test_system_messages_go_in_front_of_the_first_of_the_user():
    """In their order, with a blank line between; where the user says nothing they are the
    user's."""
    messages = [
        {"role": "system", "content": "一"},
        {"role": "user", "content": "二"},
        {"role": "assistant", "content": "三"},
        {"role": "system", "content": "四"},
        {"role": "user", "content": "五"},
    ]
    body = orjson.dumps({"messages": messages})
    assert adapted("no_system_role", body=body)["messages"] == [
        {"role": "user", "content": "一\n\n四\n\n二"},
        {"role": "assistant", "content": "三"},
        {"role": "user", "content": "五"},
    ]
    alone = orjson.dumps({"messages": messages[:1]})
    assert adapted("no_system_role", body=alone)["messages"] == [{"role": "user", "content": "一"}]
    part = {"type": "text", "text": "二"}
    parts = orjson.dumps({"messages": [messages[0], {"role": "user", "content": [part]}]})
    first = {"type": "text", "text": "一"}
    assert adapted("no_system_role", body=parts)["messages"] == [
        {"role": "user", "content": [first, part]}
    ]


def test_rules_in_the_data_file_are_whole():
    """Every rule has the fields of a quirk and no other, names a quirk where it names one, and
    every change a rule."""
    rules = tomllib.loads((Path(module.__file__).with_suffix(".toml")).read_text(encoding="utf-8"))[
        "quirks"
    ]
    for name, rule in rules.items():
        matching = {"refusal"} if "refusal" in rule else {"names", "refused"}
        assert {"member", "sentence", *matching} <= rule.keys(), name
        assert rule.keys() <= {
            "member",
            "sentence",
            *matching,
            "unless",
            "requires",
            "undoes",
            "needed",
        }, name
        assert rule.get("undoes", name) in rules, name
    assert rules.keys() == QUIRKS.keys() > CHANGES.keys()


# A refusal. The bodies are typed anew after the public threads named in the table, and those named
# here.

REFUSALS = [
    ("no_tools", openai("registry.ollama.ai/library/gemma3:4b does not support tools", code="x")),
    ("no_tools", openai('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set', code="x")),
    ("no_tools", openai("No endpoints found that support tool use. To learn more, visit: https://openrouter.ai/docs", code="x")),
    ("no_tools", openai("tools param requires --jinja flag", code="x")),
    ("no_tool_choice", openai("Unsupported value: 'tool_choice' does not support 'required' with this model.")),
    ("no_logprobs", openai("Unable to submit request because Logprobs is not supported for this model.", code="x")),
    ("no_logprobs", openai("Gaudi doesn't support logprobs. Please remove 'logprobs'/'top_logprobs' from your request "
                           "to receive a response.")),
    ("no_top_logprobs", openai("Unsupported parameter: 'top_logprobs' is not supported with this model.")),
    ("max_completion_tokens", openai("Unsupported parameter: 'max_tokens' is not supported with this model. Use "
                                     "'max_completion_tokens' instead.", "max_tokens")),
    ("no_temperature", openai("Unsupported value: 'temperature' does not support 0 with this model. Only the default "
                              "(1) value is supported.", "temperature", "unsupported_value")),
    # Moonshot
    ("no_temperature", openai("invalid temperature: only 1 is allowed for this model", code="x")),
    ("no_temperature", openai("`temperature` is deprecated for this model.", code="x")),
    ("no_top_p", openai("Unsupported parameter: 'top_p' is not supported with this model.", "top_p")),
    ("no_presence_penalty", openai("Unsupported parameter: 'presence_penalty' is not supported with this model.")),
    ("no_frequency_penalty", openai("Argument not supported on this model: frequency_penalty", code="x")),
    ("no_seed", openai("Unrecognized request argument supplied: seed", code="x")),
    ("no_seed", openai('Invalid JSON payload received. Unknown name "seed": Cannot find field.', code="x")),
    # github.com/mistralai/client-python and github.com/nomtek/mistralai_client_dart/issues/44
    ("no_seed", orjson.dumps({"object": "error", "message": {"detail": [validator("seed")]}, "param": None})),
    ("no_seed", orjson.dumps({"detail": [validator("seed")]})),
    # github.com/gpustack/gpustack/issues/429 (vLLM)
    ("no_stream_options", openai("[{'type': 'extra_forbidden', 'loc': ('body', 'stream_options'), 'msg': 'Extra "
                                 "inputs are not permitted', 'input': {'include_usage': True}}]", code="x")),
    # LM Studio
    ("json_schema", orjson.dumps({"error": "'response_format.type' must be 'json_schema' or 'text'"})),
    ("json_schema", openai("At body -> response_format -> ResponseFormatText -> type: Input should be 'text', At body "
                           "-> response_format -> ResponseFormatJSONSchema -> type: Input should be 'json_schema'")),
    ("json_word", openai("'messages' must contain the word 'json' in some form, to use 'response_format' of type "
                         "'json_object'.", code="invalid_parameter_error")),
    ("json_word", openai("Prompt must contain the word 'json' in some form to use 'response_format' of type "
                         "'json_object'.", code="invalid_request_error")),
    ("no_response_format", orjson.dumps({"code": 20024, "message": "Json mode is not supported for this model."})),
    ("no_response_format", openai("Json mode response is not supported when enable_thinking is true", code="x")),
    ("no_response_format", openai("This response_format type is unavailable now", code="x")),
    ("no_response_format", openai("Unknown parameter: 'response_format'.", "response_format", "unknown_parameter")),
    ("no_response_format", orjson.dumps({"detail": [validator("response_format")]})),
    ("stream", openai("This model only support stream mode, please enable the stream parameter to access the model. ",
                      code="invalid_parameter_error")),
    ("stream", openai("parameter.enable_thinking must be set to false for non-streaming calls", code="x")),
    ("stream", openai("parameter.enable_thinking必须设置为false才能进行非流式调用", code="x")),
    ("stream", openai("enable thinking can not be support when `stream=False`.", code="x")),
    ("stream", openai("Stream must be set to true", code="x")),
    ("no_system_role", orjson.dumps({"object": "error", "message": "System role not supported", "code": 400})),
    ("no_system_role", openai("Unsupported value: 'messages[0].role' does not support 'system' with this model.",
                              "messages[0].role", "unsupported_value")),
    ("no_system_role", openai("Developer instruction is not enabled for models/gemma-3", code="x")),
    ("no_system_role", openai("Conversation roles must alternate user/assistant/user/assistant/...", code="x")),
    ("no_top_p", openai("Unsupported parameters: top_p", code="x")),
    ("no_top_p", openai("不支持 top_p 参数", code="x")),
    ("no_response_format", openai("response_format.type: unknown variant `json_object`, expected `text`", code="x")),
    ("no_response_format", openai("JSON mode is only there for other models", code="x")),
    ("no_response_format", openai("Invalid value: 'json_object'. Supported values are: 'text'.", code="x")),
    ("stream", openai("This model only supports streaming", code="x")),
]  # fmt: skip


@pytest.mark.parametrize(("quirk", "body"), REFUSALS)
def test_refusal_that_names_a_parameter_teaches_its_quirk(quirk, body):
    """In each provider's words, through the very reader that makes an error of them."""
    more: JSON = {}
    if quirk.endswith("penalty"):
        more = {"frequency_penalty": 0.1, "presence_penalty": 0.2}
    if QUIRKS[quirk].needed:
        more = {"tools": [{}], "tool_choice": "auto", "logprobs": True, "top_logprobs": 5}
    asked = request("请作答") if quirk == "json_word" else request(**more)
    known = frozenset({"stream"} if quirk == "no_stream_options" else ())
    for status in (400, 422):
        error = refusal(status, body)
        assert learn(known, error.kind, error.detail, asked) == quirk
        assert learn(known | {quirk}, error.kind, error.detail, asked) in (
            None,
            "no_response_format",
        )


@pytest.mark.parametrize(
    "message",
    [
        "This response_format type is unavailable now",  # DeepSeek
        (
            "Failed to deserialize: response_format.type `json_schema` is unavailable now at line 1"
            " column 9"
        ),
        'response_format type must be one of "text" or "json_object", but got: json_schema',
    ],
)
def test_a_schema_that_is_refused_gives_way_to_any_object_and_then_to_none(message):
    """So does one that the user gave, and nothing else that the user gave."""
    own, given = request(response_format=SCHEMA), ["response_format"]
    error = refusal(400, openai(message, code="x"))
    assert learn(frozenset(), error.kind, error.detail, own, fixed=given) == "json_object"
    assert (
        learn(frozenset({"json_object"}), error.kind, error.detail, own, fixed=given)
        == "no_response_format"
    )
    assert (
        learn(frozenset({"no_response_format"}), error.kind, error.detail, own, fixed=given) is None
    )


@pytest.mark.parametrize("status", [500, 501])
def test_a_failure_that_plainly_names_the_format_teaches_it_and_nothing_else(status):
    """llama-cpp-python and older llama.cpp servers answer 500; any other failure stays one that is
    tried again."""
    own = request(response_format=SCHEMA)
    message = (
        "[{'type': 'literal_error', 'loc': ('body', 'response_format', 'type'), 'msg': \"Input"
        " should be 'text' "
    )
    plain = refusal(
        status, openai(message + "or 'json_object'\", 'input': 'json_schema'}]", code="x")
    )
    assert learn(frozenset(), plain.kind, plain.detail, own) == "json_object"
    for other in (
        "System role not supported",
        "'temperature' is not supported",
        "unexpected error: json_object grammar",
        "invalid json_object grammar",
        "the model's json_schema output is invalid",
        "The model produced output that does not match the expected peg-native format",
    ):
        error = refusal(status, openai(other, code="x"))
        assert learn(frozenset(), error.kind, error.detail, own) is None
    both = refusal(
        status, openai("response_format is not supported, temperature is not supported", code="x")
    )
    assert learn(frozenset({"no_response_format"}), both.kind, both.detail, own) is None


@pytest.mark.parametrize("status", [400, 422])
@pytest.mark.parametrize(
    "message",
    [
        "temperature must be at most 2",
        "Unsupported value: 'temperature' must be between 0 and 2",
        "temperature 3 is not supported: maximum 2",
        "temperature参数非法。取值范围是(0.0,1.0)",
        "invalid top_p",
        "max_tokens is too large: 100000. This model supports at most 16384 completion tokens",
        (
            "'max_tokens' or 'max_completion_tokens' is too large: 99999. This model's maximum"
            " context length is 32768"
        ),
        "Range of max_tokens should be [1, 8192]",
        "Invalid schema for response_format 'answer': 'required' is missing",
        "Field required",
        "Unsupported parameter: 'frequency_penalty' is not supported with this model.",
        "This model does not support image input",
        "Image input is not supported. Your temperature was 0",
        "temperature 3 is not supported, at most 2 is",
        "temperature 3 is not supported: too high",
        "不支持的 temperature，取值范围是 0 到 1",
        (
            "[{'loc': ('body', 'foo'), 'msg': 'Extra inputs are not permitted', 'input':"
            " {'temperature': 1}}]"
        ),
        "unexpected error in the json_object grammar",
    ],
)
def test_a_value_that_is_wrong_or_a_parameter_that_was_not_sent_teaches_nothing(status, message):
    """What the user asked for is not left out because it was asked for wrongly."""
    error = refusal(status, openai(message, code="x"))
    assert learn(frozenset(), error.kind, error.detail, request()) is None


@pytest.mark.parametrize(
    "kind", ["http_401", "http_404", "http_429", "http_503", "timeout", "http_405"]
)
def test_only_a_refused_request_teaches(kind):
    """Whatever the words: a busy server or a wrong path says nothing of parameters."""
    assert learn(frozenset(), kind, "Unsupported parameter: 'temperature'", request()) is None
    assert learn(frozenset(), kind, "response_format is not supported", request()) is None


def test_words_of_the_request_itself_teach_nothing():
    """Endpoints quote what they refuse, in the places of a validator and elsewhere: a user's post
    is no refusal."""
    post = "我的 temperature is not supported 了"
    body = request(post)
    quoted = [
        openai(f"bad content: {post}", code="x"),
        orjson.dumps(
            {
                "detail": [
                    {
                        "type": "missing",
                        "loc": ["body", "x"],
                        "msg": "Field required",
                        "input": post,
                    }
                ]
            }
        ),
        f"<html>{post}</html>".encode(),
        orjson.dumps({"errors": [{"input": post}]}),
    ]
    for each in quoted:
        error = refusal(400, each)
        assert learn(frozenset(), error.kind, error.detail, body) is None
    error = refusal(400, openai("'temperature' is not supported", code="x"))
    assert learn(frozenset(), error.kind, error.detail, body) == "no_temperature"


@pytest.mark.parametrize("member", ["temperature", "top_p", "seed", "max_tokens"])
def test_a_member_that_the_user_gave_is_never_learned_away(member):
    """The refusal then is what the user has to know."""
    error = refusal(
        400, openai(f"Unsupported parameter: '{member}' is not supported with this model.", member)
    )
    own = request(**{member: 1})
    assert learn(frozenset(), error.kind, error.detail, own) is not None
    assert learn(frozenset(), error.kind, error.detail, own, fixed=[member]) is None


# A sender that learns

Answer = Completion | HarnessError


class Endpoint:
    """Answers by what a body holds: the first rule whose test fits. Keeps what it was sent."""

    def __init__(
        self, *rules: tuple[Callable[[JSON], bool], Answer], otherwise: Answer = GOOD
    ) -> None:
        self.bodies: list[JSON] = []
        self.rules = rules
        self.otherwise = otherwise

    async def send(self, body: bytes, user: str = "") -> Received:
        self.bodies.append(orjson.loads(body))
        for fits, answer in self.rules:
            if fits(self.bodies[-1]):
                return self.answered(answer)
        return self.answered(self.otherwise)

    def answered(self, answer: Answer) -> Received:
        if isinstance(answer, Completion):
            return Received(answer, "http://127.0.0.1:9/v1")
        raise answer


class Hearing(list[tuple[str, str]]):
    def __call__(self, name: str, words: str) -> None:
        self.append((name, words))


def has(member: str) -> Callable[[JSON], bool]:
    return lambda body: member in body


def unsupported(member: str) -> Rejected:
    return Rejected(
        "http_400", f"Unsupported parameter: '{member}' is not supported with this model."
    )


def form(*types: str) -> Callable[[JSON], bool]:
    return lambda body: body.get("response_format", {}).get("type") in types


def run(main: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(main)


def test_what_is_refused_is_sent_again_at_once_and_learned_for_everybody():
    """Two sends for the first request, one for each later; the quirk is reported with the
    endpoint's own words."""
    heard, endpoint = Hearing(), Endpoint((has("temperature"), unsupported("temperature")))
    sender = Adapted(endpoint, on_learned=heard)

    async def main() -> None:
        for _ in range(3):
            assert (await sender.send(request())).completion == GOOD

    run(main())
    assert ["temperature" in body for body in endpoint.bodies] == [True, False, False, False]
    assert heard == [("no_temperature", unsupported("temperature").detail)]
    assert sender.quirks == {"no_temperature"}


def test_quirks_stack_within_one_request():
    """A reasoning model that refuses one parameter after another is learned by its first
    request."""
    members = ("temperature", "top_p", "max_tokens")
    heard, endpoint = (
        Hearing(),
        Endpoint(*((has(member), unsupported(member)) for member in members)),
    )
    sender = Adapted(endpoint, on_learned=heard)
    run(sender.send(request()))
    assert len(endpoint.bodies) == 4
    assert endpoint.bodies[-1]["max_completion_tokens"] == 512
    assert sender.quirks == {"no_temperature", "no_top_p", "max_completion_tokens"}
    assert [name for name, _ in heard] == ["no_temperature", "no_top_p", "max_completion_tokens"]


def test_format_steps_down_to_what_is_taken_and_only_that_is_told():
    """A form that was tried in vain on the way is no quirk of the endpoint."""
    heard = Hearing()
    first = Rejected("http_400", "'response_format.type' must be 'json_schema' or 'text'")
    second = Rejected("http_400", "json_schema is not supported by this model")
    endpoint = Endpoint((form("json_object"), first), (form("json_schema"), second))
    sender = Adapted(endpoint, on_learned=heard)
    run(sender.send(request()))
    assert [body.get("response_format", {}).get("type") for body in endpoint.bodies] == [
        "json_object",
        "json_schema",
        None,
    ]
    assert sender.quirks == {"no_response_format"}
    assert heard == [("no_response_format", second.detail)]


@pytest.mark.parametrize(
    "last",
    [
        Rejected("http_400", "messages are malformed"),
        TransportFault("http_503", "busy"),
        EndpointStopped("key"),
    ],
)
def test_nothing_is_adopted_where_the_changed_request_does_not_get_through(
    last,
):
    """The last error is what the request ends in, and the next request is sent as if nothing had
    been tried."""
    heard, endpoint = (
        Hearing(),
        Endpoint((has("temperature"), unsupported("temperature")), otherwise=last),
    )
    sender = Adapted(endpoint, on_learned=heard)
    with pytest.raises(type(last)) as caught:
        run(sender.send(request()))
    assert caught.value is last
    assert (sender.quirks, heard) == (frozenset(), [])
    assert "temperature" not in endpoint.bodies[-1]
    with pytest.raises(type(last)):
        run(sender.send(request()))
    assert "temperature" in endpoint.bodies[2]


@pytest.mark.parametrize("settled", ["content_filter", "context_length"])
def test_a_completion_that_no_model_wrote_proves_nothing(settled):
    """An input filter may come before the parameters are looked at: the request is settled, the
    quirk is not."""
    found = Completion("", settled)
    sender = Adapted(Endpoint((has("temperature"), unsupported("temperature")), otherwise=found))
    assert run(sender.send(request())).completion == found
    assert sender.quirks == frozenset()
    written = Completion("半", settled)
    sender = Adapted(Endpoint((has("temperature"), unsupported("temperature")), otherwise=written))
    run(sender.send(request()))
    assert sender.quirks == {"no_temperature"}


def test_a_failure_that_plainly_names_the_format_is_sent_otherwise():
    """The 500 of a server that does not know JSON schemas costs no retry and no user."""
    failure = TransportFault(
        "http_500", "response_format type must be one of 'text' or 'json_object'"
    )
    endpoint = Endpoint((form("json_schema"), failure))
    sender = Adapted(endpoint, fixed=["response_format"])
    run(sender.send(request(response_format=SCHEMA)))
    assert sender.quirks == {"json_object"}


class Gate(Endpoint):
    """Holds every request that is not refused: `held` has an event for each, which lets it go."""

    def __init__(self, refused: int) -> None:
        super().__init__((has("temperature"), unsupported("temperature")))
        self.all_refused, self.left = asyncio.Event(), refused
        self.held: asyncio.Queue[asyncio.Event] = asyncio.Queue()

    async def send(self, body: bytes, user: str = "") -> Received:
        try:
            answer = await super().send(body, user)
        except Rejected:
            self.left -= 1
            if not self.left:
                self.all_refused.set()
            raise
        self.held.put_nowait(go := asyncio.Event())
        await go.wait()
        return answer


def test_hundreds_that_are_refused_at_once_learn_side_by_side():
    """Nobody waits for another's reply, each is sent once more, and what all have learned is
    reported once."""
    heard, requests = Hearing(), 200

    async def main() -> Gate:
        gate = Gate(requests)
        sender = Adapted(gate, on_learned=heard)
        sends = [asyncio.create_task(sender.send(request())) for _ in range(requests)]
        await gate.all_refused.wait()
        together = [await gate.held.get() for _ in range(requests)]
        assert not heard
        for go in together:
            go.set()
        await asyncio.gather(*sends)
        return gate

    gate = run(asyncio.wait_for(main(), 20))
    assert len(gate.bodies) == 2 * requests
    assert sum("temperature" in body for body in gate.bodies) == requests
    assert len(heard) == 1


def test_what_others_have_learned_meanwhile_is_tried_before_giving_up():
    """Refused for a second parameter, a request finds that known already: it goes out with both,
    and is no failure."""
    refusals = (
        (has("temperature"), unsupported("temperature")),
        (has("seed"), unsupported("seed")),
    )

    async def main() -> list[Received]:
        endpoint = Endpoint(*refusals)
        sender = Adapted(endpoint)
        plain = endpoint.send

        async def slow(body: bytes, user: str = "") -> Received:
            if user == "slow" and "temperature" not in orjson.loads(body):
                await learned.wait()  # the other one has learned both by then
            return await plain(body, user)

        endpoint.send = slow  # type: ignore[method-assign]
        learned = asyncio.Event()
        first = asyncio.create_task(sender.send(request(), "slow"))
        await asyncio.sleep(0)
        other = await sender.send(request(), "quick")
        assert sender.quirks == {"no_temperature", "no_seed"}
        learned.set()
        return [other, await first]

    assert [received.completion for received in run(asyncio.wait_for(main(), 5))] == [GOOD, GOOD]


def test_a_learner_that_is_cancelled_keeps_nobody_from_learning():
    """Nothing was learned by halves."""

    async def main() -> Adapted:
        gate = Gate(2)
        sender = Adapted(gate)
        first, second = (asyncio.create_task(sender.send(request())) for _ in range(2))
        await gate.all_refused.wait()
        held = [await gate.held.get() for _ in range(2)]
        first.cancel()
        await asyncio.sleep(0)
        assert sender.quirks == frozenset()
        for go in held:
            go.set()
        assert (await second).completion == GOOD
        assert first.cancelled()
        return sender

    assert run(asyncio.wait_for(main(), 5)).quirks == {"no_temperature"}


def test_what_is_known_beforehand_costs_no_refusal():
    """A manifest or a providers file tells it; only what is still unknown is learned."""
    heard = Hearing()
    endpoint = Endpoint(
        (has("temperature"), unsupported("temperature")), (has("seed"), unsupported("seed"))
    )
    sender = Adapted(endpoint, known=["no_temperature"], on_learned=heard)
    run(sender.send(request()))
    assert len(endpoint.bodies) == 2
    assert [name for name, _ in heard] == ["no_seed"]
    with pytest.raises(BadInput):
        Adapted(endpoint, known=["no_such_habit"])


ONLY_STREAMS = Rejected(
    "http_400", "This model only support stream mode, please enable the stream parameter"
)


def whole(body: JSON) -> bool:
    return not body.get("stream")


def test_auto_streams_only_where_the_endpoint_answers_no_other_way():
    """The first refusal turns it on for good."""
    endpoint = Endpoint((whole, ONLY_STREAMS))
    sender = Adapted(endpoint, stream="auto")
    run(sender.send(request()))
    run(sender.send(request()))
    assert [body.get("stream") for body in endpoint.bodies] == [None, True, True]
    assert endpoint.bodies[-1]["stream_options"] == {"include_usage": True}
    assert sender.quirks == {"stream"}


def test_on_streams_always_and_learns_what_goes_with_it():
    """No refusal is needed for it, and the usage that a server will not tell is done without."""
    endpoint = Endpoint(
        (has("stream_options"), Rejected("http_400", "Unknown parameter: 'stream_options'."))
    )
    sender = Adapted(endpoint, stream="on")
    run(sender.send(request()))
    assert [body["stream"] for body in endpoint.bodies] == [True, True]
    assert sender.quirks == {"stream", "no_stream_options"}


@pytest.mark.parametrize("known", [(), ("stream",)])
def test_off_never_streams_and_says_what_would_help(known):
    """The run stops with the endpoint's own words, whatever was known of it before."""
    endpoint = Endpoint((whole, ONLY_STREAMS))
    with pytest.raises(
        EndpointStopped, match=r"streams only \(This model only support.*--stream auto"
    ):
        run(Adapted(endpoint, known=known, stream="off").send(request()))
    assert len(endpoint.bodies) == 1
    late = Endpoint((has("seed"), unsupported("seed")), (whole, ONLY_STREAMS))
    with pytest.raises(EndpointStopped):
        run(Adapted(late, stream="off").send(request()))
    assert len(late.bodies) == 2
