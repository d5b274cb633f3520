"""Streamed replies from bytes cut at any place to one object; no network."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.client.replies import completion_of
from harness.client.stream import Event, Events, StreamedReply, looks_streamed, whole_stream
from harness.errors import InvalidReply, TransportFault
from harness.model import Completion

LARGEST = 2**20
DONE = b"data: [DONE]\n\n"


def event(data: object) -> bytes:
    return b"data: " + orjson.dumps(data) + b"\n\n"


def chunk(reason: str | None = None, **delta: object) -> bytes:
    return event(
        {"model": "qwen", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
    )


def read(*blocks: bytes, largest: int = LARGEST, ended: bool = False) -> dict[str, Any]:
    reply = StreamedReply(largest)
    for block in blocks:
        reply.feed(block)
    return reply.whole(ended)


def message(*blocks: bytes) -> Any:
    return read(*blocks)["choices"][0]["message"]


def fault_of(*blocks: bytes, largest: int = LARGEST) -> str:
    with pytest.raises(TransportFault) as caught:
        read(*blocks, largest=largest)
    return caught.value.kind


def events(*blocks: bytes) -> list[Event]:
    found = Events()
    return [one for block in blocks for one in found.feed(block)] + found.end()


def cut(body: bytes, places: list[int]) -> list[bytes]:
    return [
        body[start:end]
        for start, end in pairwise([0, *sorted(place % len(body) for place in places), len(body)])
    ]


# Events


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"data: a\n\n", [(b"", b"a")]),
        (b"data:a\n\ndata:  b\n\n", [(b"", b"a"), (b"", b" b")]),
        (b"data: a\ndata: b\ndata:\n\n", [(b"", b"a\nb\n")]),
        (b"event: ping\ndata: a\n\ndata: b\n\n", [(b"ping", b"a"), (b"", b"b")]),
        (b": keep-alive\n\n:\n\n\n\ndata: a\n\n", [(b"", b"a")]),
        (b"id: 7\nretry: 10\nevent: ping\n\ndata: a\nother\n\n", [(b"", b"a")]),
        (b"\xef\xbb\xbfdata: a\n\n", [(b"", b"a")]),
        (b"\xef\xbb\xbf\ndata: \xef\xbb\xbf\n\n", [(b"", b"\xef\xbb\xbf")]),
        (b'error: {"code": 1}\n\n', [(b"error", b' {"code": 1}')]),
        (b"data: a\n\ndata: b\n", [(b"", b"a"), (b"", b"b")]),
        (b"data: a\n\ndata: b", [(b"", b"a"), (b"", b"b")]),
        (b"", []),
    ],
)
def test_events_are_those_of_the_standard_wherever_the_bytes_are_cut(text, found, line_end):
    """With each of the three line ends, in one block, byte by byte, and in two blocks cut at every
    place."""
    body = text.replace(b"\n", line_end)
    assert events(body) == found
    assert events(*[body[place : place + 1] for place in range(len(body))]) == found
    for place in range(len(body)):
        assert events(body[:place], body[place:]) == found


def test_event_is_told_as_soon_as_its_blank_line_is_there():
    """A token is not held back until the next one, even where CR may be half of a line end."""
    found = Events()
    assert found.feed(b"data: a\r\r") == [(b"", b"a")]
    assert found.feed(b"data: b\r\n\r") == [(b"", b"b")]
    assert found.feed(b"\ndata: c\r\n") == []
    assert found.feed(b"\r\n") == [(b"", b"c")]
    assert found.feed(b"data: d\r") == found.feed(b"") == found.feed(b"\n") == []
    assert found.feed(b"\r") == [(b"", b"d")]


LINES = st.sampled_from(
    [b"data: a", b"data:", "data: 标签".encode(), b": c", b"event: e", b"", b"", b"id: 1", b"x"]
)


@given(
    st.lists(st.tuples(LINES, st.sampled_from([b"\n", b"\r\n", b"\r"])), min_size=1),
    st.lists(st.integers(0)),
)
def test_cuts_never_matter(lines, places):
    """Any lines with any mixture of line ends, cut anywhere, are the events that they are in one
    block."""
    body = b"".join(line + end for line, end in lines)
    assert events(*cut(body, places)) == events(body)


# Merging


WHOLE = (
    b": keep-alive\r\n\r\n"
    + chunk(role="assistant", content="")
    + chunk(reasoning_content="想")
    + chunk(content="标")
    + chunk(content="签😀", refusal=None)
    + chunk("stop")
    + event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}})
    + DONE
)
MERGED = {
    "model": "qwen",
    "usage": {"prompt_tokens": 7, "completion_tokens": 3},
    "choices": [
        {
            "index": 0,
            "message": {"reasoning_content": "想", "content": "标签😀"},
            "finish_reason": "stop",
        }
    ],
}


@given(st.lists(st.integers(0), max_size=30))
def test_chunks_become_the_whole_reply_wherever_they_are_cut(places):
    """Text, thoughts, reason, model and usage, as one reply has them; cut within characters, lines
    and objects."""
    assert read(*cut(WHOLE, places)) == MERGED


def test_reply_of_one_byte_a_block_is_the_same():
    """Every boundary at once."""
    assert read(*[WHOLE[place : place + 1] for place in range(len(WHOLE))]) == MERGED


def test_parts_among_the_pieces_make_the_content_a_list_of_parts():
    """As in Mistral's thinking models: parts first, then plain text; the order stays."""
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "想"}]}
    found = message(
        chunk(content=[thought]),
        chunk(content="标"),
        chunk(content=[]),
        chunk("stop", content="签"),
    )
    assert found == {
        "content": [thought, {"type": "text", "text": "标"}, {"type": "text", "text": "签"}]
    }


@pytest.mark.parametrize(
    "last",
    [
        {"choices": [], "usage": {"prompt_tokens": 1}},
        {"choices": None, "usage": {"prompt_tokens": 1}},
        {"usage": {"prompt_tokens": 1}},
        {"choices": [{"delta": {}, "finish_reason": "stop", "usage": {"prompt_tokens": 1}}]},
    ],
)
def test_usage_is_found_wherever_it_comes(last):
    """With empty choices, none, without the member, or within the choice; the last one counts."""
    early = event({"choices": [{"delta": {"content": "a"}}], "usage": {"prompt_tokens": 0}})
    found = read(early, chunk("stop"), event(last), DONE)
    assert found["usage"] == {"prompt_tokens": 1}
    assert found["choices"][0]["message"] == {"content": "a"}


def test_null_usage_of_every_chunk_does_not_forget_the_one_that_told():
    """`usage: null` says nothing."""
    told = event({"choices": [], "usage": {"prompt_tokens": 1}})
    assert read(chunk("stop", content="a"), told, event({"choices": [], "usage": None}))[
        "usage"
    ] == {"prompt_tokens": 1}


def test_whole_message_at_the_end_stands_for_its_pieces():
    """Servers that repeat the reply as a whole do not double it; one that sends nothing else is
    understood."""
    last = event(
        {
            "choices": [
                {"message": {"role": "assistant", "content": "标签"}, "finish_reason": "stop"}
            ]
        }
    )
    whole = {"role": "assistant", "content": "标签"}
    assert message(chunk(content="标"), chunk(content="签"), last, DONE) == message(last) == whole


def test_who_answers_is_taken_from_the_first_chunk_that_says_it():
    """Some servers name the model in the first chunk alone, or the provider and the fingerprint
    only in later ones."""
    bare = {"choices": [{"index": 0, "delta": {"content": "a"}}]}
    later = {**bare, "model": "m", "provider": "P", "system_fingerprint": None}
    found = read(
        event({**bare, "provider": ""}),
        event(later),
        event({**later, "system_fingerprint": "f"}),
        DONE,
    )
    made = completion_of(found)
    assert (made.text, made.model, made.provider, made.system_fingerprint) == ("aaa", "m", "P", "f")


def test_choices_do_not_mix():
    """What a server says in further choices is apart from the first."""
    other = event({"choices": [{"index": 1, "delta": {"content": "b"}, "finish_reason": "length"}]})
    found = read(chunk(content="a"), other, chunk("stop"))
    assert completion_of(found) == Completion("a", "stop", model="qwen")


@pytest.mark.parametrize(
    ("indices", "text"),
    [
        ((1, 0), "b"),
        ((0, 1), "a"),
        ((None, 1), "a"),
        (("0", 0), "ab"),
        (("1", None), "b"),
        ((0, 0), "ab"),
        ((1, 2), "a"),
    ],
)
def test_choice_of_a_stream_is_that_of_index_0_or_the_first_with_a_text(indices, text):
    """In whatever order a chunk has them; pieces of the same index belong together."""
    both = [
        {"index": index, "delta": {"content": text}}
        for index, text in zip(indices, "ab", strict=True)
    ]
    body = event({"id": "x", "choices": both}) + event(
        {"choices": [{"index": 0, "finish_reason": "stop"}]}
    )
    assert completion_of(read(body, DONE)).text == text


def test_stream_has_not_ended_by_the_finish_reason_of_a_further_choice():
    """The first one is still going on."""
    other = event({"choices": [{"index": 1, "delta": {"content": "b"}, "finish_reason": "stop"}]})
    assert fault_of(chunk(content="a"), other) == "truncated"


@pytest.mark.parametrize(
    "odd",
    [
        (
            '{"choices":[{"delta":{"content":"\\ud83d"}}]}\n\ndata:'
            ' {"choices":[{"delta":{"content":"\\ude00"}}]}'
        ),
        '{"choices":[{"delta":{"content":"😀"},"logprobs":NaN}]}',
        '{"choices":[{"delta":{"content":"😀"}}]}\ndata: {"choices":[]}',
    ],
    ids=["halves", "nan", "no blank line"],
)
def test_json_that_does_no_harm_is_taken(odd):
    """Half a surrogate pair in each of two chunks, a bare NaN, events that only a line end
    parts."""
    found = message(chunk(content="a"), f"data: {odd}\n\n".encode(), chunk("stop"))
    assert found == {"content": "a😀"}
    orjson.dumps(found)


def test_half_a_pair_that_stays_alone_can_be_written():
    """It becomes U+FFFD, as in a whole reply."""
    assert message(b'data: {"choices":[{"delta":{"content":"\\ud83d!"}}]}\n\n', chunk("stop")) == {
        "content": "�!"
    }


# Ends


def test_done_ends_the_reply_and_what_follows_is_not_looked_at():
    """The server has said that this is all."""
    reply = StreamedReply(LARGEST)
    reply.feed(chunk("stop", content="a") + DONE + b"data: {oops\n\n")
    assert reply.done
    assert reply.whole(ended=False)["choices"] == [
        {"index": 0, "message": {"content": "a"}, "finish_reason": "stop"}
    ]


@pytest.mark.parametrize("reason", [None, "null", "eos"])
def test_done_or_the_body_s_proper_end_ends_a_reply_without_a_finish_reason(
    reason,
):
    """A connection that merely closes does not, whatever the last chunk says."""
    body = chunk(content="a") + chunk(reason, content="b")
    assert (
        completion_of(read(body, DONE)).text == completion_of(read(body, ended=True)).text == "ab"
    )
    assert fault_of(body) == "truncated"
    with pytest.raises(TransportFault):
        read(body, b'data: {"choices": [{"delta', ended=True)


def test_finish_reason_of_the_protocol_stays():
    """Another word after it changes nothing."""
    found = read(chunk("null", content="a"), chunk("length"), chunk("null"))
    assert found["choices"][0]["finish_reason"] == "length"


def test_error_after_the_finish_reason_takes_nothing_back():
    """The answer was whole, and is paid for."""
    error = b'data: {"error": {"code": 502, "message": "gone"}}\n\n'
    assert read(chunk("stop", content="a"), error)["choices"][0] == {
        "index": 0,
        "message": {"content": "a"},
        "finish_reason": "stop",
    }


@pytest.mark.parametrize(
    "end", [b"data: [DONE]", b"data:[DONE]\n", b"data: [DONE] \n\n", b'data: {"choices":[{"del']
)
def test_reply_with_a_finish_reason_is_whole_however_it_ends(end):
    """Without a last blank line, and even with half an event after the last that matters."""
    assert read(chunk("stop", content="a"), end)["choices"][0]["message"] == {"content": "a"}


def test_last_event_counts_without_its_blank_line():
    """Even where it is the one that makes the reply whole."""
    for left_out in (1, 2):
        found = read(chunk(content="a"), chunk("stop", content="b")[:-left_out])
        assert found["choices"] == [
            {"index": 0, "message": {"content": "ab"}, "finish_reason": "stop"}
        ]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b": keep-alive\n\n",
        chunk(content="a"),
        chunk(content="a") + chunk("stop")[:-9],
        b"no events\n",
    ],
)
def test_end_without_done_or_finish_reason_is_a_reply_that_broke_off(body):
    """Half a text is no answer."""
    assert fault_of(body) == "truncated"


@pytest.mark.parametrize("data", [b"oops", b"{'a': 1}", b'{"a": 1', b"[" * 100_000])
def test_data_that_is_no_json_is_a_fault(data):
    """It is not passed over: a token may have been in it."""
    assert fault_of(chunk(content="a"), b"data: " + data + b"\n\n", chunk("stop")) == "bad_json"


@pytest.mark.parametrize("data", [b"", b" ", b"null", b"7", b'{"type": "ping"}'])
def test_data_that_says_nothing_is_passed_over(data):
    """Keep-alives in the form of events."""
    assert message(chunk(content="a"), b"data: " + data + b"\n\n", chunk("stop")) == {
        "content": "a"
    }


def test_reply_beyond_the_largest_is_left():
    """The size counts over all blocks, comments too."""
    body = b": comment\n" * 100
    assert fault_of(body, chunk("stop"), largest=1000) == "too_large"
    assert read(body[:900], chunk("stop")[:99], chunk("stop"), largest=2000)


# Errors


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (event({"error": {"code": 502, "message": "gone"}}), {"code": 502, "message": "gone"}),
        (event({"error": "gone", "choices": [{"delta": {}, "finish_reason": "error"}]}), "gone"),
        (event({"choices": [{"delta": {}, "error": {"message": "gone"}}]}), {"message": "gone"}),
        (b"event: error\n" + event({"error": {"message": "gone"}}), {"message": "gone"}),
        (
            b"event: error\n" + event({"code": 429, "message": "gone"}),
            {"code": 429, "message": "gone"},
        ),
        (b"event: error\ndata: gone\n\n", "gone"),
        (b"event: error\ndata: {}\n\n", "no explanation"),
        (b'error: {"code": 400, "message": "gone"}\n\n', {"code": 400, "message": "gone"}),
        (event({"object": "error", "code": 400}), {"object": "error", "code": 400}),
        (
            event({"code": 20012, "message": "gone", "data": None}),
            {"code": 20012, "message": "gone", "data": None},
        ),
    ],
)
def test_error_in_mid_stream_ends_it_and_is_all_that_is_left(body, error):
    """In each form that servers give it; text before it and the server's own [DONE] do not make it
    an answer."""
    for before in (b"", chunk(content="a")):
        reply = StreamedReply(LARGEST)
        reply.feed(before + body + chunk("stop", content="b") + DONE)
        assert reply.done
        assert reply.whole(ended=False) == {"error": error}


def test_stream_without_any_choice_is_left_to_the_reader_of_whole_replies():
    """What it says instead may be known there."""
    assert read(event({"base_resp": {"status_code": 1002}}))["base_resp"] == {"status_code": 1002}


# Life


def test_reply_speaks_from_its_first_text_or_thought_on():
    """Not with comments, the role, or empty pieces."""
    reply = StreamedReply(LARGEST)
    for block in (
        b": keep-alive\n\n",
        chunk(role="assistant", content=""),
        chunk(reasoning=None),
        event({}),
    ):
        reply.feed(block)
        assert not reply.speaks
    reply.feed(chunk(reasoning="想"))
    assert reply.speaks


# Under another name


@pytest.mark.parametrize("start", [b"", b": keep-alive\n\n", b"\n\n", b"event: message\n"])
def test_stream_is_known_by_its_first_words(start):
    """Whatever its type is called; JSON never begins so."""
    body = start + chunk("stop", content="a")
    assert looks_streamed(body)
    assert whole_stream(body, LARGEST, ended=False)["choices"][0]["message"] == {"content": "a"}
    assert (
        not looks_streamed(b'{"choices": []}')
        and not looks_streamed(b"")
        and not looks_streamed(b"<html>")
    )


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_whole_reply_under_the_name_of_a_stream_is_one(size):
    """However it is cut; and one that is not whole is a fault."""
    body = b'{"choices": [{"message": {"content": "a\\ud83d"}, "finish_reason": "stop"}]}'
    reply = StreamedReply(LARGEST)
    for start in range(0, len(body), size):
        reply.feed(body[start : start + size])
    assert reply.whole(ended=False)["choices"][0] == {
        "message": {"content": "a\ufffd"},
        "finish_reason": "stop",
    }
    assert fault_of(body[:-3]) == "bad_json"


@pytest.mark.slow
def test_stream_of_ever_new_choices_and_members_takes_little_memory():
    """One choice is requested; the answer is that one, whatever comes besides."""
    reply = StreamedReply(10 * LARGEST)
    reply.feed(chunk(content="Hi"))
    tracemalloc.start()
    try:
        for number in range(1, 8_000):
            reply.feed(event({"choices": [{"index": number, "delta": {"content": "x"}}]}))
            reply.feed(event({f"member {number}": number}))
        assert tracemalloc.get_traced_memory()[0] < 500_000
    finally:
        tracemalloc.stop()
    reply.feed(chunk("stop") + DONE)
    assert completion_of(reply.whole(ended=True)).text == "Hi"


# Tool calls and log-probabilities


def call(index: object, **members: object) -> bytes:
    return chunk(tool_calls=[{"index": index, **members}])


def function(arguments: object, name: str | None = None) -> dict[str, object]:
    return {"function": {"name": name, "arguments": arguments}}


OFFERED = orjson.dumps({"tools": [{"type": "function"}]})


def called(*blocks: bytes) -> list[tuple[str, str, str]]:
    data = read(*blocks, chunk("tool_calls"), DONE)
    found = completion_of(data, is_streamed=True, request=OFFERED)
    assert found.finish_reason == "tool_calls" and found.text == ""
    return [(one.id, one.name, one.arguments) for one in found.tool_calls]


def test_pieces_of_several_calls_are_joined_by_index():
    """In the order in which the calls begin, whatever their indexes are."""
    blocks = (
        call(7, id="b", **function("", "second")),
        call(2, id="a", **function('{"x"', "first")),
        call(7, **function('{"y": 2}')),
        call(2, **function(": 1}")),
    )
    assert called(*blocks) == [("b", "second", '{"y": 2}'), ("a", "first", '{"x": 1}')]


def test_calls_with_one_index_and_ids_of_their_own_are_several():
    """Gemini sends each whole, with index 0."""
    blocks = call(0, id="a", **function("{}", "f")), call(0, id="b", **function("{}", "g"))
    assert called(*blocks) == [("a", "f", "{}"), ("b", "g", "{}")]


def test_name_or_id_that_is_sent_with_each_piece_counts_once():
    """So do a name that is repeated and an id that is another one each time."""
    repeated = call(0, id="a", **function('{"x"', "f")), call(0, id="a", **function(": 1}", "f"))
    assert called(*repeated) == [("a", "f", '{"x": 1}')]
    renamed = call(0, id="a", **function('{"x"', "f")), call(0, id="b", **function(": 1}"))
    assert called(*renamed) == [("a", "f", '{"x": 1}')]


def test_call_without_an_id_or_arguments_is_still_usable():
    """Its number stands for the id, and no arguments are an empty object."""
    blocks = call(None, **function(None, "f")), call(1, **function("[1]", "g"))
    assert called(*blocks) == [("call_1", "f", ""), ("call_2", "g", "[1]")]
    data = read(*blocks, chunk("tool_calls"), DONE)
    first, second = completion_of(data, is_streamed=True, request=OFFERED).tool_calls
    assert first.json() == {}
    with pytest.raises(InvalidReply) as caught:
        second.json()
    assert caught.value.kind == "tool_arguments"


@pytest.mark.parametrize("calls", ["x", {"index": 0}, [None, 3, []], [{"function": "f"}], 7])
def test_calls_of_another_shape_are_none(calls):
    data = read(chunk(tool_calls=calls), chunk("stop", content="ja"), DONE)
    found = completion_of(data, is_streamed=True, request=OFFERED)
    assert (found.text, found.tool_calls) == ("ja", ())


def test_piece_of_a_call_is_content_of_the_stream():
    """The wait for content begins again with it."""
    reply = StreamedReply(LARGEST)
    reply.feed(call(0, id="a", **function("", "f")))
    assert reply.speaks


def test_endless_calls_are_left():
    """Each takes more memory than its bytes."""
    pieces = [call(number, **function("", "f")) for number in range(1001)]
    assert fault_of(*pieces) == "too_large"


def token(text: str) -> dict[str, object]:
    return {"token": text, "logprob": -0.5, "bytes": None, "top_logprobs": []}


def told(content: object, reason: str | None = None, **more: object) -> bytes:
    delta = {"content": "x"}
    choice = {"index": 0, "delta": delta, "logprobs": content, "finish_reason": reason, **more}
    return event({"choices": [choice]})


def test_log_probabilities_of_all_chunks_are_joined():
    """Chunks without any, and members of other shapes, do no harm."""
    blocks = (
        told({"content": [token("a")], "refusal": None}),
        told(None),
        told({"content": [token("b"), token("c")]}),
        told({"content": None}),
        told("x", "stop"),
    )
    data = read(*blocks, DONE)
    tokens = [token(text) for text in "abc"]
    assert completion_of(data).logprobs == {"content": tokens, "refusal": None}


def test_log_probabilities_of_a_whole_message_at_the_end_replace_those_before():
    whole = {"index": 0, "message": {"content": "ab"}, "logprobs": {"content": [token("ab")]}}
    data = read(told({"content": [token("a")]}), event({"choices": [whole]}), DONE)
    assert completion_of(data).logprobs == {"content": [token("ab")]}
