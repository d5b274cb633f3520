"""What replies mean: every row of docs/design.md, section 6, that the endpoint's words decide."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.client.error_phrases import BASE_RESP, FINISH_REASONS, PHRASES
from harness.client.replies import Denied, UnknownModel, UsedUp, completion, completion_of, refused
from harness.errors import CallError, EndpointStopped, Rejected, TransportFault
from harness.model import Completion, RunUsage, ToolCall
from harness.store.tally import completion_of as saved_completion

NOW = datetime(2025, 3, 1, 12, 0, 0, tzinfo=UTC)


def openai(message: str, code: str | None = None, kind: str = "invalid_request_error") -> bytes:
    return orjson.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}})


def vllm(message: str, kind: str, code: int) -> bytes:
    return orjson.dumps(
        {"object": "error", "message": message, "type": kind, "param": None, "code": code}
    )


def settle(status: int, body: bytes, headers: dict[str, str] | None = None) -> Completion:
    return refused(status, headers or {}, body, NOW)


def reply(message: Any, finish_reason: Any = "stop", **more: Any) -> bytes:
    return orjson.dumps(
        {"choices": [{"index": 0, "message": message, "finish_reason": finish_reason}], **more}
    )


# Whole replies


@pytest.mark.parametrize(
    ("message", "text", "refusal"),
    [
        ({"content": None}, "", None),
        ({}, "", None),
        ({"content": None, "refusal": "抱歉"}, "", "抱歉"),
        ({"content": "好", "refusal": ""}, "好", None),
        (
            {
                "content": [
                    {"type": "text", "text": "一"},
                    {"type": "thinking"},
                    {"type": "text", "text": "二"},
                ]
            },
            "一二",
            None,
        ),
        ({"content": [{"type": "text", "text": None}, 7]}, "", None),
    ],
)
def test_content_that_is_null_or_in_parts_is_still_a_completion(message, text, refusal):
    """An endpoint that answered, but without text or with text in parts, has answered."""
    assert completion(reply(message)) == Completion(text, "stop", refusal=refusal)


@pytest.mark.parametrize(
    "usage",
    [
        None,
        [],
        {"prompt_tokens": -1, "completion_tokens": "5"},
        {"prompt_tokens": True},
        {"prompt_tokens": 2**64 - 1, "completion_tokens": 2**40},
    ],
)
def test_usage_that_is_no_count_is_unknown(usage):
    """Token counts that make no sense are left out and never guessed."""
    found = completion(reply({"content": "好"}, usage=usage, model=7))
    assert (found.prompt_tokens, found.completion_tokens, found.model) == (None, None, None)


@pytest.mark.parametrize(
    ("usage", "cached", "thoughts"),
    [
        ({}, None, None),
        (
            {
                "prompt_tokens_details": {"cached_tokens": 64},
                "completion_tokens_details": {"reasoning_tokens": 9},
            },
            64,
            9,
        ),
        (
            {
                "prompt_tokens_details": None,
                "completion_tokens_details": None,
                "reasoning_tokens": 9,
            },
            None,
            9,
        ),
        ({"prompt_cache_hit_tokens": 64, "prompt_cache_miss_tokens": 36}, 64, None),
        ({"prompt_tokens_details": {"cached_tokens": 0}, "prompt_cache_hit_tokens": 64}, 0, None),
        ({"cached_tokens": 64}, 64, None),
        ({"prompt_tokens_details": {"cached_tokens": "64"}, "reasoning_tokens": -1}, None, None),
    ],
)
def test_cached_and_reasoning_tokens_are_read_by_their_names(usage, cached, thoughts):
    """Of OpenAI, DeepSeek, Moonshot and SGLang."""
    found = completion(
        reply({"content": "好"}, usage={"prompt_tokens": 100, "completion_tokens": 20, **usage})
    )
    assert (found.cached_tokens, found.reasoning_tokens) == (cached, thoughts)
    assert (found.prompt_tokens, found.completion_tokens) == (100, 20)


def test_counts_that_sums_can_hold_are_taken():
    """The largest count that is believed is far above any reply, and millions of it still fit a
    file's 64 bits."""
    found = completion(
        reply({"content": "好"}, usage={"prompt_tokens": 2**40 - 1, "completion_tokens": 1})
    )
    assert (found.prompt_tokens, found.completion_tokens) == (2**40 - 1, 1)


PLAIN = reply({"content": "好"}, model="qwen")


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (PLAIN[:-1] + b',"logprobs":NaN}', Completion("好", model="qwen")),
        (PLAIN[:-1] + b',"created":-Infinity}', Completion("好", model="qwen")),
        (b"\xef\xbb\xbf" + PLAIN, Completion("好", model="qwen")),
        (PLAIN.replace(b"qwen", b"q\xffwen"), Completion("好", model="q\ufffdwen")),
        (
            PLAIN.replace("好".encode(), "第一行\n第二行".encode()),
            Completion("第一行\n第二行", model="qwen"),
        ),
        (
            PLAIN.replace("好".encode(), b"\\ud83d\\ude00, \\ud83d"),
            Completion("\U0001f600, \ufffd", model="qwen"),
        ),
        (PLAIN.replace(b"qwen", b"q\\udc00wen"), Completion("好", model="q\ufffdwen")),
        (
            PLAIN.replace(b'"content":', b'"refusal":"no\\ud83d","content":'),
            Completion("好", model="qwen", refusal="no\ufffd"),
        ),
        (
            PLAIN.replace('"好"'.encode(), b'[{"type":"text","text":"a\\udfffb"}]'),
            Completion("a\ufffdb", model="qwen"),
        ),
    ],
)
def test_whole_reply_in_careless_json_is_not_paid_for_again(body, found):
    """What a strict parser refuses has still arrived whole: it is read and can be saved; half of it
    stays a fault."""
    with pytest.raises(ValueError, match="line 1 column"):
        orjson.loads(body)
    assert completion(body) == found
    assert orjson.loads(orjson.dumps(found.data))["text"] == found.text
    for end in range(len(body)):
        with pytest.raises(TransportFault) as caught:
            completion(body[:end])
        assert caught.value.kind == "bad_json"


def test_reply_nested_too_deep_for_any_parser_is_a_fault_of_ours():
    """Where Python's parser gives up, too, the reply counts as one that did not come whole."""
    try:
        assert completion(PLAIN[:-1] + b',"extra":' + b"[" * 5000 + b"]" * 5000 + b"}").text == "好"
    except TransportFault as fault:
        assert fault.kind == "bad_json"


def choice(text: str, **more: Any) -> dict[str, Any]:
    return {"message": {"content": text}, "finish_reason": "stop", **more}


@pytest.mark.parametrize(
    "choices",
    [
        [choice("a", index=0), choice("b", index=1)],
        [choice("b", index=1), choice("a", index=0)],
        [choice("c", index=2), choice("b", index=1), choice("a", index=0)],
        [choice("b", index=1), choice("a")],
        [choice("b", index=1), choice("a", index=None)],
        [choice("b", index="1"), choice("a", index="0")],
        [choice("b", index="1"), choice("a", index=0)],
        [choice("a", index=1)],
        [choice("", index=0), choice(" ", index=1), choice("a", index=2)],
        [{"index": 1}, choice("a", index=2)],
        [None, 7, choice("a", index=0)],
        [choice("a", index=0), choice("b", index=0)],
        [choice("a"), choice("b")],
        [{"index": 1, "error": {"message": "busy"}}, choice("a", index=0)],
    ],
)
def test_choice_of_index_0_is_the_reply_wherever_it_comes(choices):
    """Of several choices the same one as in a stream; without an index, and of two that have it,
    the first."""
    assert completion(orjson.dumps({"choices": choices})) == Completion("a", "stop")


@pytest.mark.parametrize(
    "first",
    [choice("") | {"finish_reason": "content_filter"}, choice("") | {"finish_reason": "length"}],
)
def test_other_choice_is_no_answer_where_the_first_was_cut_off(first):
    """Also where a user asks for several: what was filtered or had no room stays invalid."""
    found = completion(orjson.dumps({"choices": [first, choice("b", index=1)]}))
    assert (found.text, found.finish_reason) == ("", first["finish_reason"])


@pytest.mark.parametrize("reason", ["length", "content_filter", "tool_calls", "", "odd", None, 3])
def test_finish_reason_is_the_endpoints_own_word(reason):
    """Length and filter are reported by the finish reason, for the benchmark to judge; what is no
    word is unknown."""
    assert completion(reply({"content": "半"}, reason)).finish_reason == (
        reason if type(reason) is str else None
    )


@pytest.mark.parametrize(
    ("reason", "same"),
    [
        ("eos", "stop"),
        ("eos_token", "stop"),
        ("stop_sequence", "stop"),
        ("end_turn", "stop"),
        ("STOP", "stop"),
        ("COMPLETE", "stop"),
        ("max_tokens", "length"),
        ("MAX_TOKENS", "length"),
        ("LENGTH", "length"),
        ("max_output_tokens", "length"),
        ("model_length", "length"),
        ("model_context_window_exceeded", "length"),
        ("repetition", "length"),
        ("repetition_truncation", "length"),
        ("sensitive", "content_filter"),
        ("content-filter", "content_filter"),
        ("refusal", "content_filter"),
        ("guardrail_intervened", "content_filter"),
        ("SAFETY", "content_filter"),
        ("PROHIBITED_CONTENT", "content_filter"),
        ("blocklist", "content_filter"),
        ("recitation", "content_filter"),
        ("spii", "content_filter"),
    ],
)
def test_other_words_for_the_same_end_mean_the_same(reason, same):
    """What was cut off or filtered is so under whatever name, and never scored as an answer."""
    assert completion(reply({"content": "半"}, reason)).finish_reason == same


@pytest.mark.parametrize(
    "reason", ["insufficient_system_resource", "abort", "error", "network_error", "ERROR"]
)
def test_reply_that_the_endpoint_broke_off_is_a_fault_and_no_answer(reason):
    """A reply that the endpoint itself could not finish is tried again; it must not be scored."""
    with pytest.raises(TransportFault) as caught:
        completion(reply({"content": '{"predicted_tags": ['}, reason))
    assert caught.value.kind == "broken_off"


# Thinking models


@pytest.mark.parametrize(
    ("message", "text", "reasoning"),
    [
        ({"content": "好", "reasoning_content": "想"}, "好", "想"),  # DeepSeek, DashScope, SGLang
        (
            {"content": "好", "reasoning": "想", "reasoning_details": [{"text": "别的"}]},
            "好",
            "想",
        ),  # OpenRouter, vLLM
        ({"content": "好", "reasoning_content": None, "reasoning": "想"}, "好", "想"),
        ({"content": "好", "reasoning_content": "", "reasoning": ""}, "好", None),
        ({"content": "好", "reasoning_content": ["想"]}, "好", None),
        ({"content": "好", "reasoning": {"effort": "low"}}, "好", None),
        (  # Mistral's Magistral
            {
                "content": [
                    {
                        "type": "thinking",
                        "thinking": [
                            {"type": "text", "text": "想"},
                            {"type": "text", "text": "想"},
                        ],
                    },
                    {"type": "text", "text": "好"},
                ]
            },
            "好",
            "想想",
        ),
        (
            {"content": [{"type": "thinking", "thinking": "想"}, {"type": "text", "text": "好"}]},
            "好",
            "想",
        ),
        (
            {"content": [{"type": "reasoning", "text": "想"}, {"type": "text", "text": "好"}]},
            "好",
            "想",
        ),
        ({"content": [{"type": "thinking", "thinking": 7}], "reasoning": "想"}, "", "想"),
        ({"content": "<think>想</think>好"}, "<think>想</think>好", None),
    ],
)
def test_thoughts_are_kept_apart_from_the_text(message, text, reasoning):
    """Each provider's place for thoughts is read; what stands in the text itself stays as
    received."""
    assert completion(reply(message)) == Completion(text, "stop", reasoning=reasoning)


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
@pytest.mark.parametrize("content", [None, "", " \n"])
@pytest.mark.parametrize(
    "answer", ['{"标签": []}', ' {"标签": []}\n', '```json\n{"标签": []}\n```']
)
def test_an_object_in_the_place_of_thoughts_is_the_answer(field, content, answer):
    """Servers with a reasoning parser put the answer there when thinking is turned off: it is not
    asked for again."""
    found = completion(reply({"content": content, field: answer}))
    assert found == Completion(answer, "stop")


@pytest.mark.parametrize(
    ("thoughts", "reason"),
    [
        ('先想：{"标签": []}，不对', "stop"),
        ('先想：{"标签": []}，不对：{"标签": [1]}', "stop"),
        ('[{"标签": []}]', "stop"),
        ('["猫"]', "stop"),
        ('"猫"', "stop"),
        ('{"标签": [', "stop"),
        ('{"标签": []}', "content_filter"),
        ('{"标签": []}', "tool_calls"),
    ],
)
def test_thoughts_that_do_not_end_with_their_only_object_stay_thoughts(thoughts, reason):
    """A draft among thoughts is no answer, and neither is what a filter cut."""
    assert completion(reply({"content": "", "reasoning": thoughts}, reason)) == Completion(
        "", reason, reasoning=thoughts
    )


@pytest.mark.parametrize(
    ("thoughts", "text", "before"),
    [
        ('先想：{"标签": []}', '{"标签": []}', "先想："),
        ('先想\n```json\n{"标签": []}\n```', '{"标签": []}', "先想\n```json\n"),
        ('{"草稿": 1}</think>{"标签": []}', '{"标签": []}', '{"草稿": 1}</think>'),
    ],
)
def test_the_only_object_at_the_end_of_thoughts_is_the_answer(thoughts, text, before):
    """A server that missed the end of the thoughts has all of the reply in their place."""
    found = completion(reply({"content": "", "reasoning_content": thoughts}))
    assert found == Completion(text, "stop", reasoning=before)


def test_an_answer_beside_an_object_in_the_thoughts_is_the_answer():
    """Only a reply without text looks elsewhere for it."""
    found = completion(reply({"content": "好", "reasoning": '{"标签": []}'}))
    assert (found.text, found.reasoning) == ("好", '{"标签": []}')


HIDDEN = {"completion_tokens": 512, "completion_tokens_details": {"reasoning_tokens": 512}}


@pytest.mark.parametrize(
    ("message", "usage", "reason", "expected"),
    [
        ({"content": None, "reasoning_content": "想"}, None, "length", "only_thinking"),
        ({"content": "", "reasoning": '{"标签": []}'}, None, "length", "only_thinking"),
        (
            {"content": "\n"},
            HIDDEN,
            "max_tokens",
            "only_thinking",
        ),  # OpenAI hides its models' thoughts
        ({"content": []}, HIDDEN, "length", "only_thinking"),
        (
            {"content": ""},
            {"reasoning_tokens": 512, "completion_tokens_details": None},
            "length",
            "only_thinking",
        ),
        ({"content": "好"}, HIDDEN, "length", "length"),
        ({"content": ""}, HIDDEN, "stop", "stop"),
        ({"content": ""}, None, "length", "length"),
        (
            {"content": ""},
            {"completion_tokens_details": {"reasoning_tokens": 0}},
            "length",
            "length",
        ),
        (
            {"content": ""},
            {"completion_tokens_details": {"reasoning_tokens": "9"}},
            "length",
            "length",
        ),
        ({"content": ""}, {"completion_tokens_details": None}, "length", "length"),
    ],
)
def test_reply_that_ended_before_its_answer_began_has_a_finish_reason_of_its_own(
    message, usage, reason, expected
):
    """All tokens went into thoughts: another kind of invalid answer than one that was cut off
    itself."""
    assert completion(reply(message, reason, usage=usage)).finish_reason == expected


def test_decoded_reply_is_read_like_its_bytes():
    """What a stream was put together to is judged by the same reader."""
    data = orjson.loads(reply({"content": "好", "reasoning_content": "想"}, model="qwen"))
    assert (
        completion_of(data)
        == completion(orjson.dumps(data))
        == Completion("好", model="qwen", reasoning="想")
    )
    with pytest.raises(TransportFault, match="http_503"):
        completion_of(data | {"error": {"code": 503, "message": "overloaded"}})


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", "bad_json"),
        (reply({"content": "好"})[:-9], "bad_json"),
        (b"<html><body>502 Bad Gateway</body></html>", "bad_json"),
        (b"[]", "bad_json"),
        (b'"text"', "bad_json"),
        (b"\xff\xfe", "bad_json"),
        (b"{}", "no_choices"),
        (b'{"choices": []}', "no_choices"),
        (b'{"choices": null, "error": null}', "no_choices"),
        (b'{"choices": ["text"]}', "no_choices"),
        (b'{"choices": {"0": {}}}', "no_choices"),
        (b'{"choices": [{}]}', "no_choices"),
        (b'{"choices": [{"message": "text"}]}', "no_choices"),
    ],
)
def test_reply_without_a_completion_is_a_fault(body, kind):
    """Status 200 with half a body, with something else than JSON, or without a choice is worth
    another try."""
    with pytest.raises(TransportFault) as caught:
        completion(body)
    assert (caught.value.kind, caught.value.unreachable) == (kind, False)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"code": 503, "message": "overloaded"}, "http_503"),
        ({"code": "429", "message": "slow down"}, "http_429"),
        ({"code": "server_error", "message": "try later"}, "http_502"),
        ({"code": 200, "message": "odd"}, "http_502"),
        ({"code": "439", "message": "odd"}, "http_502"),
        ({"code": "9" * 5000, "message": "odd"}, "http_502"),
        ({"code": "４２９", "message": "odd"}, "http_429"),
        ("upstream timed out", "http_502"),
    ],
)
@pytest.mark.parametrize("where", ["top", "beside_empty_choices", "in_the_choice"])
def test_error_in_a_reply_of_status_200_counts_by_its_code(error, kind, where):
    """Relays send errors with status 200, beside or inside the choices: the code decides, a fault
    by default."""
    bodies = {
        "top": {"error": error},
        "beside_empty_choices": {"error": error, "choices": []},
        "in_the_choice": {
            "choices": [{"error": error, "finish_reason": "error", "message": {"content": ""}}]
        },
    }
    with pytest.raises(TransportFault) as caught:
        completion(orjson.dumps(bodies[where]))
    assert caught.value.kind == kind


def test_error_whose_code_is_no_code_is_a_fault():
    """Not even lists in lists, as deep as the parser goes, in the place of a code."""
    with pytest.raises(TransportFault) as caught:
        completion(b'{"error":{"message":"odd","code":' + b"[" * 1010 + b"]" * 1010 + b"}}")
    assert (caught.value.kind, caught.value.detail) == ("http_502", "odd")


def test_error_in_a_reply_of_status_200_is_classed_by_what_it_says():
    """Behind a relay too, a content filter settles the step, and an empty account or unknown model
    ends the run."""
    filtered = completion(
        openai("Input data may contain inappropriate content.", "data_inspection_failed")
    )
    assert filtered == Completion("", "content_filter")
    with pytest.raises(EndpointStopped, match="quota"):
        completion(openai("You exceeded your current quota", "insufficient_quota"))
    with pytest.raises(EndpointStopped, match="--model"):
        completion(openai("The model `x` does not exist", "model_not_found"))


def test_empty_error_beside_choices_is_no_error():
    """Endpoints that always carry the field, empty where all went well, have answered."""
    assert completion(reply({"content": "好"}, error=None)).text == "好"


# Other statuses: what settles the step


@pytest.mark.parametrize(
    "message",
    [
        "max_tokens is too large: 100000. This model supports at most 16384 completion tokens",
        (
            "'max_tokens' or 'max_completion_tokens' is too large: 99999. This model's maximum"
            " context length is 32768"
        ),
        "max_tokens 9999999 exceeds the maximum allowed",
        "Range of max_tokens should be [1, 8192]",
    ],
)
def test_parameter_that_no_model_allows_is_not_taken_for_a_long_prompt(message):
    """A run with a wrong `--max-tokens` must not end as a table of empty predictions."""
    with pytest.raises(Rejected):
        settle(400, openai(message))


# Other statuses: what ends the run


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (402, openai("Insufficient Balance", "invalid_request_error"), "quota"),
        (402, b"", "quota"),
        (
            429,
            openai("You exceeded your current quota, please check your plan", "insufficient_quota"),
            "quota",
        ),
        (
            400,
            openai(
                "Access denied, please make sure your account is in good standing.", "Arrearage"
            ),
            "quota",
        ),
        (400, b'{"code":"Arrearage","message":"Access denied."}', "quota"),
        (
            404,
            openai(
                "The model `x` does not exist or you do not have access to it.", "model_not_found"
            ),
            "--model",
        ),
        (404, vllm("The model `x` does not exist.", "NotFoundError", 404), "--model"),
        (404, openai('model "x" not found, try pulling it first', None, "api_error"), "--model"),
        (400, openai("Model Not Exist", "invalid_request_error"), "--model"),
        (403, openai("no such model for you", "model_not_found"), "--model"),
        (307, b"", "redirects"),
        (302, b"<html></html>", "redirects"),
    ],
)
def test_endpoint_that_will_not_serve_the_run_stops_it(status, body, said):
    """No balance, an unknown model and a moved address are no faults to wait for; the message says
    what to do.

    An empty account and a moved address stop it at once; about an unknown model, and a payment that
    is required without a word of the account, another request decides.
    """
    with pytest.raises(EndpointStopped, match=said) as caught:
        settle(status, body)
    at_once = said == "redirects" or (said == "quota" and body != b"")
    assert at_once == (not isinstance(caught.value, Denied) or isinstance(caught.value, UsedUp))


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (401, openai("Incorrect API key provided: sk-***", "invalid_api_key")),
        (401, b'{"error":"Unauthorized"}'),
        (403, openai("Model access denied.", "access_denied")),
        (403, b"<html>403 Forbidden</html>"),
        (401, b""),
    ],
)
def test_refused_key_is_a_class_of_its_own(status, body):
    """Another request decides whether 401 and 403 are meant for all, so the caller must be able to
    tell them."""
    with pytest.raises(Denied, match=f"status {status}"):
        settle(status, body)


# Other statuses: what is tried again, and what is not


@pytest.mark.parametrize(
    "body",
    [
        b"<html><head><title>404 Not Found</title></head><body>nginx</body></html>",
        b'{"detail":"Not Found"}',
        b'{"error":{"code":404,"message":"File Not Found","type":"not_found_error"}}',
        b"404 page not found",
    ],
)
def test_unknown_path_is_a_fault_that_doubts_the_address(body):
    """404 without a word of a model means the address; before any success the caller stops for
    it."""
    with pytest.raises(TransportFault) as caught:
        settle(404, body)
    assert caught.value.unreachable


@pytest.mark.parametrize(
    ("status", "words", "billed"),
    [
        (408, "Request timeout", False),
        (409, "Conflict", False),
        (421, "Misdirected request", False),
        (
            424,
            "The system encountered an unexpected error during processing. Try your request again.",
            True,
        ),
        (425, "Too early", False),
        (498, "Flex tier capacity exceeded", False),
        (499, "The operation was cancelled.", True),
        (400, "The engine is currently overloaded, please try again later", False),
        (400, "服务器繁忙，请稍后重试", False),
        (500, "Internal error", True),
        (529, "Overloaded", True),
    ],
)
def test_transient_failures_are_tried_again_and_known_by_whether_they_may_be_billed(
    status, words, billed
):
    """None of them is the request's own fault."""
    with pytest.raises(TransportFault) as caught:
        settle(status, openai(words))
    assert (caught.value.kind, caught.value.may_count, caught.value.billed) == (
        f"http_{status}",
        True,
        billed,
    )


def test_path_that_takes_no_request_is_the_address():
    """405 is what a web page, or the list of models, answers to a POST."""
    with pytest.raises(TransportFault) as caught:
        settle(405, b"Method Not Allowed")
    assert (caught.value.kind, caught.value.unreachable) == ("http_405", True)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, openai("Unsupported parameter: 'response_format'", "unsupported_parameter")),
        (400, vllm("temperature must be at most 2", "BadRequestError", 400)),
        (422, b'{"detail":[{"type":"missing","loc":["body","messages"],"msg":"Field required"}]}'),
        (413, b"<html><head><title>413 Request Entity Too Large</title></head></html>"),
        (413, b"context length"),
        (413, b""),
    ],
)
def test_request_that_the_endpoint_refuses_is_not_tried_again(status, body):
    """Wrong parameters stay wrong: neither a fault nor an answer."""
    with pytest.raises(Rejected) as caught:
        settle(status, body)
    assert caught.value.kind == f"http_{status}"


@pytest.mark.parametrize("status", [413, 429])
def test_request_above_a_limit_of_tokens_a_minute_is_tried_again_and_counted(status):
    """Groq and OpenAI say it under different statuses. If no time is long enough for it, its user
    fails."""
    words = "Request too large for m on tokens per minute (TPM): Limit 6000, Requested 7012"
    with pytest.raises(TransportFault) as caught:
        settle(status, openai(words, "rate_limit_exceeded", "tokens"))
    assert (caught.value.kind, caught.value.asks_to_wait) == ("http_413", False)


@pytest.mark.parametrize("status", [400, 403, 413, 422, 429])
def test_words_of_a_rate_limit_are_one_under_every_status_of_a_refusal(status):
    """The wait in them is obeyed."""
    words = (
        "Rate limit reached on tokens per minute (TPM): Limit 6000, Used 5800. Please try again in"
        " 7.5s"
    )
    with pytest.raises(TransportFault) as caught:
        settle(status, openai(words, "rate_limit_exceeded", "tokens"))
    assert (caught.value.kind, caught.value.asks_to_wait, caught.value.retry_after) == (
        "http_429",
        True,
        7.5,
    )


# The same by provider. The bodies are typed anew after the public pages and threads that are named.

FILTER, LONG = "content_filter", "context_length"
QUOTA, MODEL, KEY = (
    (UsedUp, "quota or balance"),
    (UnknownModel, "--model"),
    (Denied, "refuses the key"),
)
BUSY, REFUSED, PAYMENT = "fault", "rejected", (Denied, "quota or balance")


def ds(message: str, code: str, kind: str = "invalid_request_error") -> bytes:
    error = {"code": code, "param": None, "message": message, "type": kind}
    return orjson.dumps({"error": error, "id": "chatcmpl-7", "request_id": "7"})


def native(code: str, message: str) -> bytes:
    return orjson.dumps({"code": code, "message": message, "request_id": "7"})


def zhipu(code: str, message: str) -> bytes:
    return orjson.dumps({"error": {"code": code, "message": message}})


def flow(code: int, message: str) -> bytes:
    return orjson.dumps({"code": code, "message": message, "data": None})


def router(status: int, message: str, **metadata: Any) -> bytes:
    error = {"message": message, "code": status} | ({"metadata": metadata} if metadata else {})
    return orjson.dumps({"error": error, "user_id": "user_7"})


def minimax(code: int, message: str) -> bytes:
    return orjson.dumps(
        {"id": "7", "choices": None, "base_resp": {"status_code": code, "status_msg": message}}
    )


def moonshot(kind: str, message: str) -> bytes:
    return orjson.dumps({"error": {"type": kind, "message": message}})


def server(message: str, kind: str, code: int) -> bytes:
    return orjson.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}})


def google(message: str, code: int, *quotas: str) -> bytes:
    """Gemini's error: a list of one object, with the quotas that are used up and a time to wait."""
    violations = [
        {"quotaMetric": "requests", "quotaId": quota, "quotaValue": "10"} for quota in quotas
    ]
    failure = {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": violations}
    wait = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "22.5s"}
    error = {
        "code": code,
        "message": message,
        "status": "STATUS",
        "details": [failure, wait] if quotas else [],
    }
    return orjson.dumps([{"error": error}])


CURRENT_QUOTA = (
    "You exceeded your current quota, please check your plan and billing details. "
    + "For more, read on. " * 20
)
MINUTE, DAY = (
    f"GenerateRequestsPer{time}PerProjectPerModel-FreeTier" for time in ("Minute", "Day")
)
COUNTRY = (Denied, "does not serve the country")
TOO_LARGE = (
    "'max_tokens' or 'max_completion_tokens' is too large: {}. This model's maximum context length"
    " is 32768"
)
RAW = orjson.dumps(
    {"error": {"message": "maximum context length is 8192 tokens", "code": 400}}
).decode()
PROVIDERS = [
    # platform.openai.com/docs/guides/error-codes
    (
        "openai",
        429,
        openai("Rate limit reached for gpt-4o-mini in organization org-7", "rate_limit_exceeded"),
        BUSY,
    ),
    (
        "openai",
        429,
        openai("You exceeded your current quota, please check", "insufficient_quota"),
        QUOTA,
    ),
    (
        "openai",
        400,
        openai(
            "Invalid prompt: flagged as potentially violating our usage policy", "invalid_prompt"
        ),
        FILTER,
    ),
    (
        "openai",
        400,
        openai("Invalid 'messages[1].content': string too long.", "string_above_max_length"),
        LONG,
    ),
    ("openai", 401, openai("Incorrect API key provided: sk-test-***", "invalid_api_key"), KEY),
    (
        "openai",
        404,
        openai("The model `gpt-9` does not exist or you do not have access", "model_not_found"),
        MODEL,
    ),
    (
        "openai",
        403,
        openai(
            "Country, region, or territory not supported", "unsupported_country_region_territory"
        ),
        (Denied, "does not serve the country"),
    ),
    ("openai", 503, openai("The engine is currently overloaded", "server_error"), BUSY),
    # github.com/BerriAI/litellm/issues/12273 (a wrong key, without a database), 14770, 4880
    ("litellm", 400, server("No connected db.", "no_db_connection", 400), KEY),
    ("litellm", 400, server("Authentication Error, No api key passed in.", "auth_error", 400), KEY),
    (
        "litellm",
        400,
        server("litellm.AuthenticationError: GeminiException - API key not valid.", "", 400),
        KEY,
    ),
    (
        "litellm",
        400,
        server("litellm.BadRequestError: top_k is not supported", "invalid_request_error", 400),
        REFUSED,
    ),
    # api-docs.deepseek.com/quick_start/error_codes; github.com/evalstate/fast-agent/issues/621
    ("deepseek", 401, openai("Authentication Fails (no such user)", "invalid_request_error"), KEY),
    ("deepseek", 402, openai("Insufficient Balance", "invalid_request_error"), QUOTA),
    ("deepseek", 400, openai("Content Exists Risk", "invalid_request_error"), FILTER),
    ("deepseek", 400, openai("Model Not Exist", "invalid_request_error"), MODEL),
    (
        "deepseek",
        400,
        openai("maximum context length is 131072 tokens. However, you requested 131134", "x"),
        LONG,
    ),
    ("deepseek", 429, openai("Rate limit reached", "rate_limit"), BUSY),
    ("deepseek", 503, openai("Service is too busy", "service_unavailable"), BUSY),
    # help.aliyun.com/zh/model-studio/error-code; github.com/anomalyco/opencode/issues/23722
    # (#token-limit)
    (
        "dashscope",
        429,
        ds("You have exceeded your current request limit.", "limit_requests", "limit_requests"),
        BUSY,
    ),
    (
        "dashscope",
        429,
        ds(
            "You exceeded your current quota, please check your plan and billing details. For"
            " details, see: https://help.aliyun.com/zh/model-studio/error-code#token-limit",
            "insufficient_quota",
            "insufficient_quota",
        ),
        BUSY,
    ),
    (
        "dashscope",
        400,
        ds("Access denied, your account is not in good standing.", "Arrearage", "Arrearage"),
        QUOTA,
    ),
    (
        "dashscope",
        403,
        ds("The free tier has been exhausted.", "AllocationQuota.FreeTierOnly"),
        QUOTA,
    ),
    (
        "dashscope",
        400,
        ds(
            "may contain inappropriate content.", "data_inspection_failed", "data_inspection_failed"
        ),
        FILTER,
    ),
    (
        "dashscope",
        400,
        ds("<400> InvalidParameter: Range of input length should be [1, 9]", "invalid_parameter"),
        LONG,
    ),
    (
        "dashscope",
        404,
        ds("The model `qwen-9` does not exist or you do not have access", "model_not_found"),
        MODEL,
    ),
    ("dashscope", 401, ds("Incorrect API key provided.", "invalid_api_key"), KEY),
    (
        "dashscope native",
        429,
        native("Throttling.RateQuota", "Requests rate limit exceeded, try again later."),
        BUSY,
    ),
    (
        "dashscope native",
        429,
        native("Throttling.AllocationQuota", "Allocated quota exceeded, please increase"),
        BUSY,
    ),
    (
        "dashscope native",
        429,
        native("Throttling.AllocationQuota", "Free allocated quota exceeded."),
        QUOTA,
    ),
    ("dashscope native", 429, native("Throttling", "Requests throttling triggered."), BUSY),
    ("dashscope native", 400, native("Arrearage", "Access denied."), QUOTA),
    (
        "dashscope native",
        400,
        native("DataInspectionFailed", "Input data may contain inappropriate content."),
        FILTER,
    ),
    (
        "dashscope native",
        400,
        native("IPInfringementSuspect", "Input data is suspected of infringement"),
        FILTER,
    ),
    (
        "dashscope native",
        400,
        native("FaqRuleBlocked", "Input or output data is blocked by faq rule."),
        FILTER,
    ),
    ("dashscope native", 404, native("ModelNotFound", "Model not exist."), MODEL),
    ("dashscope native", 401, native("InvalidApiKey", "Invalid API-key provided."), KEY),
    # docs.siliconflow.cn/faqs/error-code; github.com/FoundationAgents/OpenManus/issues/438;
    # github.com/Usagi-org/ai-goofish-monitor/issues/253
    ("siliconflow", 400, flow(20012, "Model does not exist. Please check it carefully."), MODEL),
    ("siliconflow", 403, flow(30001, "Sorry, your account balance is insufficient"), QUOTA),
    (
        "siliconflow",
        403,
        flow(30011, "requires paid balance. Your paid balance is insufficient."),
        QUOTA,
    ),
    (
        "siliconflow",
        400,
        flow(20015, "length of prompt_tokens (8192) must be less than max_seq_len (4096)."),
        LONG,
    ),
    (
        "siliconflow",
        429,
        flow(50603, "Request was rejected due to rate limiting. Details: TPM limit reached."),
        BUSY,
    ),
    ("siliconflow", 503, flow(50505, "Model service overloaded. Please try again later."), BUSY),
    ("siliconflow", 401, b'"Invalid token"', KEY),
    ("siliconflow", 400, flow(20024, "Json mode is not supported for this model."), REFUSED),
    # openrouter.ai/docs/api/reference/errors-and-debugging; github.com/truefoundry/models/pull/873
    # (raw)
    (
        "openrouter",
        402,
        router(402, "This request requires more credits, or fewer max_tokens."),
        PAYMENT,
    ),
    (
        "openrouter",
        402,
        router(402, "exceed your credits given your current in-flight requests. Retry"),
        BUSY,
    ),
    (
        "openrouter",
        403,
        router(403, "Blocked", reasons=["violence"], flagged_input="猫", provider_name="X"),
        FILTER,
    ),
    ("openrouter", 403, router(403, "Key limit exceeded"), KEY),
    ("openrouter", 400, router(400, "Provider returned error", raw=RAW, provider_name="X"), LONG),
    ("openrouter", 400, router(400, "foo/bar is not a valid model ID"), MODEL),
    ("openrouter", 404, router(404, "No endpoints found for foo/bar."), MODEL),
    ("openrouter", 408, router(408, "Your request timed out"), BUSY),
    (
        "openrouter",
        429,
        router(429, "Provider returned error", raw="x is temporarily rate-limited upstream."),
        BUSY,
    ),
    ("openrouter", 502, router(502, "Provider returned error", raw="{not json"), BUSY),
    ("openrouter", 503, router(503, "No allowed providers are available"), BUSY),
    ("openrouter", 200, router(429, "Rate limited"), BUSY),
    ("openrouter", 200, router(400, "Provider returned error", raw=RAW), LONG),
    # github.com/vllm-project/vllm/issues/20409 (the old form); docs.vllm.ai (the new one is nested)
    (
        "vllm",
        400,
        vllm("This model's maximum context length is 16384 tokens.", "BadRequestError", 400),
        LONG,
    ),
    (
        "vllm",
        400,
        server("This model's maximum context length is 16384 tokens.", "BadRequestError", 400),
        LONG,
    ),
    ("vllm", 400, server(TOO_LARGE.format(99999), "BadRequestError", 400), REFUSED),
    (
        "vllm",
        400,
        server(TOO_LARGE.format(8192) + " and your request has 30000", "BadRequestError", 400),
        LONG,
    ),
    ("vllm", 400, server("max_tokens must be at least 1, got -186.", "BadRequestError", 400), LONG),
    ("vllm", 400, server("max_tokens must be at least 1, got 0.", "BadRequestError", 400), REFUSED),
    ("vllm", 404, server("The model `qwen` does not exist.", "NotFoundError", 404), MODEL),
    ("vllm", 401, b'{"error":"Unauthorized"}', KEY),
    # github.com/sgl-project/sglang: openai_api/adapter
    (
        "sglang",
        400,
        vllm(
            "The input (9000 tokens) is longer than the model's context length", "BadRequest", 400
        ),
        LONG,
    ),
    (
        "sglang",
        400,
        vllm("Requested token count exceeds the model's maximum context length", "BadRequest", 400),
        LONG,
    ),
    # github.com/ggml-org/llama.cpp/pull/15780; github.com/rllm-team/rllm/issues/55
    # (llama-cpp-python)
    (
        "llama.cpp",
        400,
        server("exceeds the available context size", "exceed_context_size_error", 400),
        LONG,
    ),
    (
        "llama.cpp",
        500,
        server("exceeds the available context size", "exceed_context_size_error", 500),
        LONG,
    ),
    (
        "llama.cpp",
        200,
        server("exceeds the available context size", "exceed_context_size_error", 400),
        LONG,
    ),
    # the cache that all requests of a llama.cpp server share may be full of the others
    ("llama.cpp", 500, server("Context size has been exceeded.", "server_error", 500), BUSY),
    ("llama.cpp", 503, server("Loading model", "unavailable_error", 503), BUSY),
    ("llama.cpp", 401, server("Invalid API Key", "authentication_error", 401), KEY),
    ("llama-cpp-python", 500, openai("Requested tokens (516) exceed context window of 512"), LONG),
    # docs.z.ai/api-reference/api-code; github.com/zhayujie/CowAgent/issues/2910 (1113 in a 429)
    ("zhipu", 429, zhipu("1113", "余额不足或无可用资源包,请充值。"), QUOTA),
    (
        "zhipu",
        429,
        zhipu("1113", "Your account is in arrears, please recharge and try again"),
        QUOTA,
    ),
    ("zhipu", 400, zhipu("1301", "系统检测到输入或生成内容可能包含不安全或敏感内容。"), FILTER),
    (
        "zhipu",
        400,
        zhipu("1301", "System detected potentially unsafe or sensitive content in input"),
        FILTER,
    ),
    ("zhipu", 429, zhipu("1302", "您当前使用该API的并发数过高，请降低并发"), BUSY),
    ("zhipu", 429, zhipu("1303", "您当前使用该API的频率过高，请降低频率"), BUSY),
    ("zhipu", 429, zhipu("1305", "当前API请求过多，请稍后重试"), BUSY),
    ("zhipu", 400, zhipu("1211", "模型不存在，请检查模型代码。"), MODEL),
    ("zhipu", 400, zhipu("1261", "Prompt exceeds max length"), LONG),
    ("zhipu", 401, zhipu("1002", "Authorization Token非法"), KEY),
    # volcengine.com/docs/82379/1299023
    (
        "volcengine",
        403,
        openai("your account has an overdue balance", "AccountOverdueError", "Forbidden"),
        QUOTA,
    ),
    (
        "volcengine",
        429,
        openai("Requests Per Minute (RPM) limit exceeded", "RateLimitExceeded.EndpointRPMExceeded"),
        BUSY,
    ),
    (
        "volcengine",
        429,
        openai("exhausted its free trial quota for the doubao model", "QuotaExceeded"),
        QUOTA,
    ),
    (
        "volcengine",
        400,
        openai("may contain sensitive information", "SensitiveContentDetected"),
        FILTER,
    ),
    (
        "volcengine",
        404,
        openai("The model or endpoint x does not exist", "InvalidEndpointOrModel.NotFound"),
        MODEL,
    ),
    (
        "volcengine",
        404,
        openai("Your account 7 has not activated the model x.", "ModelNotOpen"),
        MODEL,
    ),
    (
        "volcengine",
        401,
        openai("The API key in the request is missing or invalid", "AuthenticationError"),
        KEY,
    ),
    # platform.kimi.ai/docs/api/errors; github.com/anomalyco/opencode/issues/24462 (insufficient
    # balance in a 429)
    (
        "moonshot",
        400,
        moonshot("content_filter", "The request was rejected because it was considered high risk"),
        FILTER,
    ),
    ("moonshot", 400, moonshot("invalid_request_error", "Input token length too long"), LONG),
    (
        "moonshot",
        400,
        moonshot("invalid_request_error", "Your request exceeded model token limit : 8192"),
        LONG,
    ),
    (
        "moonshot",
        400,
        moonshot("invalid_request_error", "total message size 9 exceeds limit 8"),
        LONG,
    ),
    (
        "moonshot",
        429,
        moonshot("exceeded_current_quota_error", "Your account is suspended, please recharge"),
        QUOTA,
    ),
    (
        "moonshot",
        429,
        moonshot("rate_limit_reached_error", "Your account reached max request: 3"),
        BUSY,
    ),
    (
        "moonshot",
        429,
        moonshot("engine_overloaded_error", "The engine is currently overloaded"),
        BUSY,
    ),
    (
        "moonshot",
        404,
        moonshot("resource_not_found_error", "Not found the model kimi-9 or Permission denied"),
        MODEL,
    ),
    ("moonshot", 401, moonshot("invalid_authentication_error", "Invalid Authentication"), KEY),
    # platform.minimax.io/docs/api-reference/errorcode; github.com/modelscope/modelscope/issues/1691
    # (429)
    ("minimax", 200, minimax(1002, "rate limit"), BUSY),
    ("minimax", 200, minimax(1000, "unknown error"), BUSY),
    ("minimax", 200, minimax(1008, "insufficient balance"), QUOTA),
    ("minimax", 200, minimax(1026, "input new_sensitive"), FILTER),
    ("minimax", 200, minimax(1027, "output new_sensitive"), FILTER),
    ("minimax", 200, minimax(1004, "not authorized"), KEY),
    ("minimax", 200, minimax(2013, "invalid params"), REFUSED),
    ("minimax", 429, moonshot("insufficient_balance_error", "insufficient balance (1008)"), QUOTA),
    # docs.mistral.ai, ai.google.dev/gemini-api, docs.x.ai, ollama
    ("mistral", 400, vllm("Invalid model: mistral-9", "invalid_model", 1500), MODEL),
    (
        "gemini",
        400,
        openai("The input token count (9) exceeds the maximum number of tokens allowed (8)."),
        LONG,
    ),
    (
        "gemini",
        403,
        openai("This model is not available in your region."),
        (Denied, "does not serve the country"),
    ),
    # discuss.ai.google.dev, github.com/google-gemini/gemini-cli/issues: its errors are a list of
    # one
    ("gemini", 400, google("API key not valid. Please pass a valid API key.", 400), KEY),
    ("gemini", 400, google("User location is not supported for the API use.", 400), COUNTRY),
    ("gemini", 400, google('Unknown name "top_k": Cannot find field.', 400), REFUSED),
    (
        "gemini",
        400,
        google("The input token count (9) exceeds the maximum number of tokens allowed (8).", 400),
        LONG,
    ),
    (
        "gemini",
        403,
        google("Generative Language API has not been used in project 7 before", 403),
        KEY,
    ),
    ("gemini", 404, google("models/gemini-9 is not found for API version v1main", 404), MODEL),
    ("gemini", 429, google(CURRENT_QUOTA, 429, MINUTE), BUSY),
    ("gemini", 429, google(CURRENT_QUOTA, 429, MINUTE, DAY), QUOTA),
    ("gemini", 429, google(CURRENT_QUOTA, 429), QUOTA),
    ("gemini", 429, google("Resource has been exhausted (e.g. check quota).", 429), BUSY),
    ("gemini", 503, google("The model is overloaded. Please try again later.", 503), BUSY),
    (
        "ollama",
        404,
        openai('model "qwen9" not found, try pulling it first', None, "api_error"),
        MODEL,
    ),
    # docs.aihubmix.com, and others that run new-api
    (
        "a relay",
        403,
        openai("令牌额度不足", "pre_consume_token_quota_failed", "new_api_error"),
        QUOTA,
    ),
    ("a relay", 403, openai("not enough", "insufficient_user_quota", "new_api_error"), QUOTA),
    ("a relay", 429, openai("您的账户已欠费", "x"), QUOTA),
    ("a relay", 429, openai("no more", "insufficient_quota"), QUOTA),
    ("a relay", 429, openai("You exceeded your current quota", "x"), QUOTA),
    (
        "a relay",
        403,
        openai("not here", "unsupported_country_region_territory"),
        (Denied, "does not serve the country"),
    ),
    ("a relay", 400, openai("No such model: x", "x"), MODEL),
    ("a relay", 400, openai("Requested tokens (516) exceed context window of 512", "x"), LONG),
    ("a relay", 400, openai("too many tokens in the prompt", "x"), LONG),
    ("a relay", 400, openai("too long", "context_length_exceeded"), LONG),
    ("a relay", 403, openai("用户额度不足", "insufficient_user_quota", "new_api_error"), QUOTA),
    ("a relay", 400, openai("blocked", "sensitive_words_detected", "new_api_error"), FILTER),
    (
        "a relay",
        503,
        openai("当前分组下对于模型 x 无可用渠道", "model_not_found", "new_api_error"),
        BUSY,
    ),
]


@pytest.mark.parametrize("provider", sorted({provider for provider, *_ in PROVIDERS}))
def test_each_providers_errors_are_of_the_right_class(provider):
    """Rate limit, empty account, filter, length, model and key are distinguished in everybody's
    words."""
    for name, status, body, expected in PROVIDERS:
        if name == provider:
            is_of_the_right_class(status, body, expected)


def is_of_the_right_class(status: int, body: bytes, expected: Any) -> None:
    try:
        found = completion(body) if status == 200 else settle(status, body, {"Retry-After": "3"})
    except TransportFault as fault:
        assert expected == BUSY, fault
        assert fault.kind.startswith("http_")
        assert not fault.unreachable
        assert fault.retry_after == (None if status == 200 else 3.0)
    except Rejected as error:
        assert expected == REFUSED, error
    except EndpointStopped as error:
        assert isinstance(expected, tuple), error
        assert type(error) is expected[0]
        assert expected[1] in str(error)
    else:
        assert found == Completion("", expected)


def test_a_rate_limit_under_status_200_counts_as_one():
    """Whoever holds requests back must see it as the 429 that it is."""
    with pytest.raises(TransportFault) as caught:
        completion(minimax(1002, "rate limit"))
    assert caught.value.kind == "http_429"


def test_reply_without_choices_is_shown_in_the_endpoints_words():
    """A relay that answers 200 with a code of its own says something that helps its user."""
    with pytest.raises(TransportFault, match="no choices: 7, 系统繁忙"):
        completion(b'{"code":7,"message":"\xe7\xb3\xbb\xe7\xbb\x9f\xe7\xb9\x81\xe5\xbf\x99"}')
    with pytest.raises(TransportFault, match="no choices"):
        completion(minimax(0, "success"))


# What is not the endpoint's own word

QUOTED = (
    "username 敏感内容 content_filter context_length insufficient_quota model_not_found max_tokens"
)
FIELD = {"type": "missing", "loc": ["body", "x"], "msg": "Field required", "input": QUOTED}


STATUSES = (400, 401, 403, 404, 422, 429, 500)


@pytest.mark.parametrize(
    "body",
    [
        orjson.dumps({"detail": [FIELD]}),
        orjson.dumps({"detail": {"input": QUOTED}}),
        orjson.dumps({"errors": [FIELD], "input": QUOTED}),
        orjson.dumps(
            {
                "error": {
                    "message": "Field required",
                    "input": QUOTED,
                    "details": [FIELD],
                    "param": QUOTED,
                }
            }
        ),
        orjson.dumps([QUOTED]),
        vllm(f"[{FIELD}]", "BadRequestError", 400),
        vllm(orjson.dumps([FIELD]).decode(), "BadRequestError", 400),
        openai(
            f"1 validation error: x Field required [type=missing, input_value='{QUOTED}',"
            " input_type=str]"
        ),
        f"<html><body>{QUOTED}</body></html>".encode(),
        QUOTED.encode(),
        orjson.dumps({"error": {"message": QUOTED}})[:-1],
    ],
)
def test_input_that_an_error_quotes_does_not_decide_what_it_means(body):
    """A user's post may hold any of the words that are looked for: only the endpoint's own may
    settle or stop."""
    expected = {400: Rejected, 422: Rejected, 401: Denied, 403: Denied}
    for status in STATUSES:
        with pytest.raises((CallError, EndpointStopped)) as caught:
            settle(status, body)
        assert type(caught.value) is expected.get(status, TransportFault), status
        assert type(caught.value) is not Denied or f"with status {status}" in str(caught.value)


# The endpoint's own words


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (openai("慢一点", "rate_limit"), "rate_limit, invalid_request_error, 慢一点"),
        (vllm("no", "BadRequestError", 400), "400, BadRequestError, no"),
        (b'{"detail":"Not\\n  ready"}', "Not ready"),
        (b'{"error":"overloaded"}', "overloaded"),
        (
            b'{"status":500,"error":"Server Error","message":"out of memory"}',
            "Server Error, out of memory",
        ),
        (b'{"error":{"message":"same","code":"same","type":null}}', "same"),
        (
            b'{"error":{"message":"no","param":"messages[0].role","code":null}}',
            "messages[0].role, no",
        ),
        (b'{"error":{"message":"no","param":"two words"}}', "no"),
        (b'{"error":{"message":"no","param":{"error":"inner"}}}', "no"),
        (
            orjson.dumps({"detail": [FIELD, FIELD | {"loc": ["body", "m", 0]}]}),
            "body.x: Field required, body.m.0: Field required",
        ),
        (
            orjson.dumps({"object": "error", "message": {"detail": [FIELD]}, "code": None}),
            "body.x: Field required",
        ),
        (b'{"errors":["odd shape"]}', '{"errors":["odd shape"]}'),
        (b"<h1>\n503</h1>", "<h1> 503</h1>"),
        (b" \n ", "no explanation"),
        (b"\x1b[2Jcleared\x07", "[2Jcleared"),
    ],
)
def test_endpoints_words_are_shown_on_one_printable_line(body, shown):
    """Each known shape of an error is reported with its code first; any other body as it is, and no
    terminal codes."""
    with pytest.raises(TransportFault) as caught:
        settle(500, body)
    assert caught.value.detail == shown


def test_long_words_are_cut_before_a_word_and_never_inside_one():
    """Half of an echoed key could not be recognised as the key any more, so a cut word goes as a
    whole."""
    for filler in range(280, 300):
        with pytest.raises(TransportFault) as caught:
            settle(500, openai("长" * filler + "sk-0123456789abcdef" * 3, "x"))
        assert "sk-0" not in caught.value.detail
        assert caught.value.detail.endswith("长…")


@pytest.mark.parametrize(
    ("headers", "delay", "seconds"),
    [
        ({}, "22.5s", 22.5),
        ({"Retry-After": "3"}, "22.5s", 3.0),
        ({}, "86400s", 3600.0),
        ({}, "soon", None),
        ({}, 7, None),
    ],
)
def test_retry_info_of_google_counts_where_no_header_says_more(headers, delay, seconds):
    """A duration in the body is obeyed as Retry-After is."""
    error = {"code": 429, "message": "slow down", "details": [{"retryDelay": delay}]}
    with pytest.raises(TransportFault) as caught:
        settle(429, orjson.dumps([{"error": error}]), headers)
    assert caught.value.retry_after == seconds


# Anything at all

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False)
    | st.text(max_size=12)
)
NAMES = st.sampled_from(
    [
        "choices",
        "error",
        "message",
        "content",
        "finish_reason",
        "usage",
        "prompt_tokens",
        "refusal",
        "code",
        "type",
        "text",
        "reasoning",
        "thinking",
        "detail",
        "loc",
        "msg",
        "param",
        "base_resp",
        "status_code",
        "metadata",
        "raw",
        "completion_tokens_details",
        "reasoning_tokens",
    ]
)
WORDS = st.sampled_from(
    ["", "404", "503", "content_filter", "context_length", "insufficient_quota", "model_not_found"]
)
VALUES = st.recursive(
    LEAVES | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
DEEP = st.builds(
    lambda name, depth: b'{"error":{"%s":' % name + b"[" * depth + b"]" * depth + b"}}",
    st.sampled_from([b"message", b"code"]),
    st.integers(1, 1100),
)
BODIES = (
    st.binary(max_size=60)
    | VALUES.map(orjson.dumps)
    | st.dictionaries(NAMES, VALUES).map(orjson.dumps)
    | DEEP
)


@given(BODIES)
def test_any_body_of_status_200_is_a_completion_or_an_error_of_ours(body):
    """Whatever an endpoint sends, nothing but the two kinds of error that the engine knows comes
    out."""
    try:
        assert type(completion(body)) is Completion
    except (CallError, EndpointStopped) as error:
        assert str(error)


@given(st.integers(100, 999), BODIES, st.text(max_size=30), st.text(max_size=30))
def test_any_other_reply_is_settled_or_an_error_of_ours(status, body, after, where):
    """The same for every other status, with any headers; only filter and length settle a step."""
    try:
        found = refused(status, {"Retry-After": after, "Location": where}, body, NOW)
    except (CallError, EndpointStopped) as error:
        assert str(error)
    else:
        assert found.finish_reason in ("content_filter", "context_length")
        assert found.text == ""


def test_words_that_an_error_quotes_of_the_request_say_nothing_of_the_account():
    """A post that speaks of an empty account must not stop the run as one; the same words unquoted
    do."""
    asked = orjson.dumps(
        {"messages": [{"role": "user", "content": "他说余额不足了，insufficient balance"}]}
    )
    for quoted in (
        "prompt rejected: '余额不足'",
        'prompt rejected: "insufficient balance"',
        "拒绝：“insufficient balance”",
    ):
        body = orjson.dumps({"error": {"message": quoted}})
        with pytest.raises(Rejected):
            refused(400, {}, body, datetime.now(UTC), asked)
    with pytest.raises(UsedUp):
        refused(400, {}, b'{"error":{"message":"insufficient balance"}}', datetime.now(UTC), asked)
    with pytest.raises(Denied):
        refused(
            400, {}, b'{"error":{"message":"\'insufficient balance\'"}}', datetime.now(UTC), b"{}"
        )


# The lists of phrases


@pytest.mark.parametrize(
    "topic", [topic for topic, phrases in PHRASES.items() if type(phrases) is list]
)
def test_phrases_are_as_they_are_looked_up(topic):
    """A phrase is text in lower case, once; an empty one would be found in every error."""
    assert all(
        type(phrase) is str and phrase == phrase.lower().strip() != "" for phrase in PHRASES[topic]
    )
    assert len(set(PHRASES[topic])) == len(PHRASES[topic])


def test_a_providers_word_has_one_meaning():
    """Finish reasons mean a word of OpenAI's, and codes of MiniMax a status; none is in two
    lists."""
    reasons, codes = PHRASES["finish_reasons"], PHRASES["base_resp"]
    assert reasons.keys() == {"stop", "length", "content_filter"}
    assert len(FINISH_REASONS) == sum(map(len, reasons.values()))
    assert all(reason == reason.lower() for reason in FINISH_REASONS)
    assert FINISH_REASONS.keys().isdisjoint(PHRASES["broken_off"])
    assert len(BASE_RESP) == sum(map(len, codes.values()))
    assert all(type(code) is int and 400 <= status <= 599 for code, status in BASE_RESP.items())


# Tool calls and log-probabilities

OFFERED = orjson.dumps({"tools": [{"type": "function"}]})
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}


def test_call_answers_a_request_with_tools_and_is_the_text_of_one_without():
    """Only the body of the request decides; a prompt that names tools does not."""
    body = reply({"content": None, "tool_calls": [CALL]}, "tool_calls")
    found = completion(body, request=OFFERED)
    assert (found.text, found.finish_reason) == ("", "tool_calls")
    assert found.tool_calls == (ToolCall("a", "f", '{"x": 1}'),)
    for request in (b"{}", orjson.dumps({"messages": [{"content": '"tools":[1]'}], "tools": []})):
        found = completion(body, request=request)
        assert (found.text, found.finish_reason, found.tool_calls) == (
            '{"x": 1}',
            "tool_call",
            (),
        )


def test_calls_next_to_a_text_are_kept_with_it():
    """So is the older form of a call; no usage then is no empty reply."""
    body = reply({"content": "I look {", "tool_calls": [CALL, CALL]}, "tool_calls")
    found = completion(body, request=OFFERED)
    assert (found.text, len(found.tool_calls)) == ("I look {", 2)
    usage = {"prompt_tokens": 3, "completion_tokens": 0}
    older = reply({"function_call": {"name": "f", "arguments": {"x": 1}}}, usage=usage)
    assert completion(older, request=OFFERED).tool_calls == (ToolCall("call_1", "f", '{"x": 1}'),)


@pytest.mark.parametrize(
    "calls", ["x", {"function": {}}, [None, 3], [{"function": []}], [{"custom": {"name": "f"}}], 7]
)
def test_calls_that_are_none_leave_the_rest(calls):
    found = completion(reply({"content": "ja", "tool_calls": calls}), request=OFFERED)
    assert (found.text, found.tool_calls) == ("ja", ())


@pytest.mark.parametrize("members", [{}, {"id": 7}, {"id": ""}, {"id": None}, {"id": ["a"]}])
def test_call_without_a_usable_id_gets_its_number(members):
    """And one without a name has none."""
    calls = [CALL, {"function": {"arguments": None, "name": 3}, **members}]
    found = completion(reply({"tool_calls": calls}), request=OFFERED)
    assert found.tool_calls[1] == ToolCall("call_2", "", "")


def choice_with(logprobs: bytes) -> bytes:
    return b'{"choices": [{"message": {"content": "ja"}, "logprobs": %b}]}' % logprobs


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (b"null", None),
        (b"{}", None),
        (b'"x"', None),
        (b"[1]", None),
        (b'{"content": []}', {"content": []}),
        (b'{"content": [{"logprob": -Infinity}]}', {"content": [{"logprob": None}]}),
        (b'{"tokens": ["a"]}', {"tokens": ["a"]}),
    ],
)
def test_log_probabilities_are_kept_as_a_file_holds_them(sent, kept):
    """So that a reply is the same now and when it is read again."""
    found = completion(choice_with(sent))
    assert found.logprobs == kept
    line = orjson.loads(orjson.dumps({"request": "d", "nth": 0, "completion": found.data}))
    assert saved_completion(line) == found


def test_log_probabilities_that_no_file_holds_are_a_fault():
    """A half of a surrogate pair in a list; not a defect when the line is written."""
    with pytest.raises(TransportFault) as caught:
        completion(choice_with(b'{"tokens": ["\\ud83d"]}'))
    assert caught.value.kind == "bad_json"


def test_calls_count_where_an_endpoint_counts_no_tokens():
    """Their bytes are those that a model wrote."""
    found = completion(reply({"tool_calls": [CALL]}), request=OFFERED)
    usage = RunUsage()
    usage.add(found, 100)
    assert usage.unknown_completion == found.size == len('f{"x": 1}')
