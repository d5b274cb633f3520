"""Replies that come whole and are no completion, or one in an odd place: other APIs, pages, tool
calls, cut streams."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from harness.benchmarks.parsing import answer_text, json_object
from harness.client.address import Address
from harness.client.http import Client
from harness.client.replies import Denied, completion, completion_of, refused
from harness.client.stream import whole_stream
from harness.errors import EndpointStopped, InvalidReply, TransportFault
from harness.model import Completion
from tests.client.test_caller import GOOD, Stage
from tests.client.test_client import HANGS, http, send, serving

NOW = datetime(2026, 3, 1, tzinfo=UTC)
PAGE = b"<!DOCTYPE html>\n<html><head><title>Welcome</title></head><body>nginx</body></html>"
OTHERS = {
    "page": (PAGE, "bad_json"),
    "anthropic": (
        orjson.dumps(
            {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "content": [{"type": "text", "text": "{}"}],
            }
        ),
        "no_choices",
    ),
    "gemini": (
        orjson.dumps(
            {"candidates": [{"content": {"parts": [{"text": "{}"}]}}], "usageMetadata": {}}
        ),
        "no_choices",
    ),
    "ollama chat": (
        orjson.dumps(
            {"model": "qwen3", "message": {"role": "assistant", "content": "{}"}, "done": True}
        ),
        "no_choices",
    ),
    "ollama stream": (
        b'{"model":"qwen3","message":{"content":"{"},"done":false}\n{"model":"qwen3","message":{"content":"}"},"done":true}\n',
        "bad_json",
    ),
    "ollama generate": (
        orjson.dumps({"model": "qwen3", "response": "{}", "done": True}),
        "no_choices",
    ),
    "responses": (
        orjson.dumps({"object": "response", "output": [{"type": "message"}]}),
        "no_choices",
    ),
}


def fault_of(body: bytes) -> TransportFault:
    with pytest.raises(TransportFault) as caught:
        completion(body)
    return caught.value


# Another API, or a page


@pytest.mark.parametrize("name", OTHERS)
def test_reply_of_something_else_is_a_fault_that_is_known_as_such(name):
    """Its kind stays that of any reply without a choice, or without JSON."""
    body, kind = OTHERS[name]
    fault = fault_of(body)
    assert (fault.kind, fault.foreign) == (kind, True)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"busy", b'{"choices": []}', b'{"done": true}', b'{"type": "message"}']
)
def test_other_replies_without_an_answer_are_not(body):
    """They may be passing faults of the right endpoint."""
    assert not fault_of(body).foreign


def test_stream_of_anthropic_is_known_too():
    """Its events have no choice."""
    events = [{"type": "message_start", "message": {"role": "assistant"}}, {"type": "message_stop"}]
    body = b"".join(
        b"event: %s\ndata: %s\n\n" % (one["type"].encode(), orjson.dumps(one)) for one in events
    )  # type: ignore[attr-defined]
    with pytest.raises(TransportFault) as caught:
        completion_of(whole_stream(body, 2**20, ended=True))
    assert caught.value.foreign


@pytest.mark.anyio
@pytest.mark.parametrize("name", OTHERS)
async def test_first_reply_of_something_else_stops_the_run_at_once(name):
    """One request, no pause."""
    stage = Stage([fault_of(OTHERS[name][0])])
    with pytest.raises(EndpointStopped):
        await stage.call()
    assert (len(stage.sent), stage.pauses) == (1, [])


@pytest.mark.anyio
async def test_after_a_success_it_is_retried():
    """A page of a gateway in mid-run passes."""
    stage = Stage([GOOD, fault_of(PAGE), GOOD])
    await stage.call()
    assert (await stage.call()).tries == 2
    assert stage.warned == [("bad_json", 1)]


@pytest.mark.anyio
async def test_its_message_names_the_address():
    """So that the user sees which one is wrong."""
    async with serving(http(200, PAGE, "Content-Type: text/html")) as server:
        async with Client(Address(server.url), timeout=HANGS, connections=1) as client:
            with pytest.raises(TransportFault) as caught:
                await client.send(b"{}")
        assert caught.value.foreign
        assert server.url in caught.value.detail


# Gateways and Azure


def denied(body: bytes, **headers: str) -> str:
    with pytest.raises(Denied) as caught:
        refused(403, headers, body, NOW)
    return str(caught.value)


def test_page_with_403_is_a_gateway_s_and_not_about_the_key():
    """Cloudflare blocks clients and addresses."""
    page = denied(PAGE.replace(b"nginx", b"Attention Required! | Cloudflare"), Server="cloudflare")
    assert "Cloudflare" in page
    assert "refuses the key" not in page
    assert "Cloudflare" not in denied(PAGE)
    assert "refuses the key" in denied(b'{"error": {"message": "no"}}')


@pytest.mark.parametrize(
    "words",
    [
        "Access denied due to invalid subscription key or wrong API endpoint.",
        (
            "Unauthorized. Access token is missing, invalid, audience is incorrect (there), or have"
            " expired."
        ),
    ],
)
def test_azure_s_refusal_names_its_header(words):
    """Azure takes keys in `api-key`, and not as a bearer's token."""
    assert "--extra-header 'api-key: ...'" in denied(
        orjson.dumps({"error": {"code": "401", "message": words}})
    )


# Answers in tool calls

ARGUMENTS = '{"标签": ["猫"]}'


def call(arguments: Any = ARGUMENTS, **more: Any) -> dict[str, Any]:
    return {
        "id": "call_1",
        "type": "function",
        "function": {"name": "answer", "arguments": arguments},
        **more,
    }


def replied(message: dict[str, Any], reason: str | None = "tool_calls") -> Completion:
    return completion(
        orjson.dumps({"choices": [{"index": 0, "message": message, "finish_reason": reason}]})
    )


@pytest.mark.parametrize("content", [None, "", "\n"])
@pytest.mark.parametrize("reason", ["tool_calls", "stop", None])
def test_object_in_the_only_tool_call_is_the_answer(content, reason):
    """No tools are offered, so the call is what a model that answers by tool calls has to say."""
    found = replied({"content": content, "tool_calls": [call()]}, reason)
    assert found == Completion(ARGUMENTS, "tool_call")
    repairs: list[str] = []
    assert json_object(found, repairs) == {"标签": ["猫"]}
    assert repairs == ["tool_call"]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"content": None, "tool_calls": [call(), call()]}, "tool_calls"),
        ({"content": None, "tool_calls": [call('["猫"]')]}, "tool_calls"),
        ({"content": None, "tool_calls": [call('{"标签": [')]}, "tool_calls"),
        ({"content": None, "tool_calls": [call(None)]}, "tool_calls"),
        ({"content": None, "tool_calls": "odd"}, "tool_calls"),
        ({"content": None, "tool_calls": [call()]}, "length"),
        ({"content": None, "tool_calls": [call()]}, "content_filter"),
    ],
)
def test_other_tool_calls_are_no_answer(message, reason):
    """Two calls, arguments that are no object, and what was cut off."""
    assert replied(message, reason) == Completion("", reason)


def test_text_beside_a_tool_call_is_the_answer():
    """As it always was."""
    assert replied({"content": "好", "tool_calls": [call()]}) == Completion("好", "tool_calls")


def test_tool_call_is_no_answer_where_a_text_is_asked_for():
    """It is asked for again."""
    with pytest.raises(InvalidReply):
        answer_text(Completion(ARGUMENTS, "tool_call"), [])


def stream(*deltas: dict[str, Any], reason: str = "stop") -> bytes:
    chunks = [
        {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
    ]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    return (
        b"".join(b"data: " + orjson.dumps(chunk) + b"\n\n" for chunk in chunks)
        + b"data: [DONE]\n\n"
    )


def streamed(body: bytes) -> Completion:
    return completion_of(whole_stream(body, 2**20, ended=True), is_streamed=True)


def test_arguments_that_stream_in_pieces_are_joined():
    """The pieces of each call by its index."""
    pieces = [
        {"tool_calls": [call(ARGUMENTS[at : at + 3], index=0)]}
        for at in range(0, len(ARGUMENTS), 3)
    ]
    assert streamed(stream(*pieces, reason="tool_calls")) == Completion(ARGUMENTS, "tool_call")
    two = [{"tool_calls": [call(index=0)]}, {"tool_calls": [call(index=1)]}]
    assert streamed(stream(*two, reason="tool_calls")) == Completion("", "tool_calls")


# Streams that end like whole ones

WHOLE = '{"persona_summary": "爱猫", "predicted_tags": ["猫", "a}b"], "reasoning": "{好}"}'


@pytest.mark.parametrize("cut", [cut for cut in range(1, len(WHOLE)) if WHOLE[cut - 1] != "}"])
def test_streamed_object_without_an_end_is_no_answer(cut):
    """Wherever a relay's source broke off: nothing is made up for what is missing."""
    found = streamed(stream({"content": WHOLE[:cut]}))
    assert found == Completion(WHOLE[:cut], "unclosed")
    with pytest.raises(InvalidReply) as caught:
        json_object(found, [])
    assert (caught.value.kind, caught.value.final) == ("no_json", False)


@pytest.mark.parametrize(
    "text",
    [
        WHOLE,
        f"```json\n{WHOLE}\n```",
        f"<think>{{</think>{WHOLE}",
        f"好：{WHOLE} 以上",
        '{"a": "他说"好"了",}',
        '{"a": "一个"引号"}',
        "没有 JSON",
        "",
        "}",
    ],
)
def test_streamed_text_with_an_end_is_read_as_ever(text):
    """Broken JSON that has an end is repaired, as in a reply that does not stream."""
    assert streamed(stream({"content": text})) == Completion(text)


def test_stream_that_was_cut_at_its_length_keeps_its_reason():
    """That is no break, and final."""
    assert streamed(stream({"content": WHOLE[:9]}, reason="length")).finish_reason == "length"


@pytest.mark.anyio
async def test_client_marks_only_replies_that_stream():
    """The same text in a reply that came whole is repaired as ever."""
    kinds = {"text/event-stream": stream({"content": WHOLE[:9]})}
    kinds["application/json"] = orjson.dumps(
        {"choices": [{"message": {"content": WHOLE[:9]}, "finish_reason": "stop"}]}
    )
    reasons = []
    for kind, body in kinds.items():
        async with serving(http(200, body, f"Content-Type: {kind}")) as server:
            reasons.append((await send(Address(server.url))).finish_reason)
    assert reasons == ["unclosed", "stop"]
