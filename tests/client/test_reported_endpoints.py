"""Endpoints as their users report them, from outside: what they send is an answer, an unusable one,
or a failure.

Each case answers one request in the odd way, and everything else as ever. What is read of it must
be what the plain endpoint's run has, a failure, or an invalid answer of its kind; never another
score. Cases of one outcome share a run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import orjson
import pytest

from bench import limits
from bench.limits import CHAIN
from harness.benchmarks.streamprofile.synth import generate
from harness.cli import main
from tests.commands.test_commands import lines_of
from tests.support.scripted import PromptHandler, answer, listening

Body = dict[str, Any]
Case = TypeVar("Case")
Odd = Callable[[str], bytes]
"""From the text of the true answer to the bytes of a whole reply of HTTP."""

DONE = b"data: [DONE]\n\n"
HARMONY = (
    '<|channel|>analysis<|message|>{"a":'
    ' "draft"}<|end|><|start|>assistant<|channel|>final<|message|>'
)


# What an endpoint sends


def plain(text: str, **more: Any) -> Body:
    message = {"role": "assistant", "content": text}
    return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], **more}


def spoken(message: Body, reason: str | None = "stop", **more: Any) -> Body:
    return {"choices": [{"index": 0, "message": message, "finish_reason": reason}], **more}


def http(status: int, data: Body | bytes) -> bytes:
    body = data if isinstance(data, bytes) else orjson.dumps(data)
    return (
        b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        % (status, len(body))
        + body
    )


def refused(status: int, message: str, **more: Any) -> bytes:
    return http(status, {"error": {"message": message, **more}})


def piece(text: str, reason: str | None = None) -> Body:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": reason}]}


def events(*chunks: Body | bytes) -> bytes:
    return b"".join(
        chunk if isinstance(chunk, bytes) else b"data: " + orjson.dumps(chunk) + b"\n\n"
        for chunk in chunks
    )


def streamed(*chunks: Body | bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    """With an empty `end` the connection closes before the body's own."""
    body = events(*chunks)
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    return head + b"%x\r\n%b\r\n" % (len(body), body) + end


def unframed(*chunks: Body | bytes) -> bytes:
    """A body that ends where the connection does."""
    return (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
        + events(*chunks)
    )


def cut(text: str) -> str:
    """As much of an answer as a repair would score."""
    return text[: text.index('"predicted_tags"') + 30]


def halves(text: str) -> tuple[str, str]:
    return text[: len(text) // 2], text[len(text) // 2 :]


def call(arguments: Any) -> Body:
    return {"name": "answer", "arguments": arguments}


# A run


USERS, STEPS = 12, CHAIN


@contextmanager
def serving(odd: Sequence[Odd], every: int) -> Iterator[tuple[str, list[Body]]]:
    """Answer as the baseline; the first of every so many requests in the next of the odd ways."""
    requests: list[Body] = []

    class Handler(PromptHandler):
        def do_POST(self) -> None:
            body = orjson.loads(self.rfile.read(int(self.headers["Content-Length"])))
            requests.append(body)
            text = answer("baseline/recency", body["messages"], 0)
            number, rest = divmod(len(requests) - 1, every)
            if rest == 0 and number < len(odd):
                self.wfile.write(odd[number](text))
                self.close_connection = True
            else:
                self.wfile.write(http(200, plain(text)))

    with listening(Handler) as port:
        yield f"http://127.0.0.1:{port}/v1", requests


class Outcome:
    """What one run came to: its exit code, requests, predictions by step, kinds of invalid answers,
    and failures."""

    def __init__(
        self, folder: Path, odd: Sequence[Odd], *options: str, every: int = 1, users: int = 2
    ) -> None:
        (folder / "tasks").mkdir(parents=True)
        chains = filter(None, map(limits.cut, generate("weibo", 100, 5, 6.0)))
        (folder / "tasks/weibo_inference_tasks.jsonl").write_bytes(b"".join(islice(chains, users)))
        where = [
            "--tasks-dir",
            str(folder / "tasks"),
            "--results-dir",
            str(folder / "out"),
            "--no-html",
        ]
        model = ["--model", "m", "--platform", "weibo", "--concurrency", "1", *options]
        with serving(odd, every) as (url, self.requests):
            self.code = main(["run", "--api-url", url, *model, *where])
        run = folder / "out/m"
        steps = [
            (line["user_id"], step)
            for line in _lines(run / "inference_results_weibo.jsonl")
            for step in line["steps"]
        ]
        self.scores = {
            (user, step["step_id"]): (step["prediction"], step["metrics"]) for user, step in steps
        }
        self.invalid = [step["outcome"] for _, step in steps if step["outcome"] != "valid"]
        self.failures = [line["detail"] for line in _lines(run / "failures_weibo.jsonl")]
        self.retries = [
            line["kind"] for line in _lines(run / "run_weibo.log") if line["what"] == "retry"
        ]


def _lines(path: Path) -> list[Body]:
    return lines_of(path) if path.exists() else []


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The run at an endpoint without any oddity."""
    return Outcome(tmp_path_factory.mktemp("truth"), [])


@pytest.fixture(scope="module")
def truths(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Of more users."""
    return Outcome(tmp_path_factory.mktemp("truths"), [], users=USERS)


STREAMS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


def of_mode(cases: Mapping[str, Case], stream: bool) -> tuple[list[Case], tuple[str, ...]]:
    """The cases that are streams, or that are none, and the options for them."""
    return [case for name, case in cases.items() if ("stream" in name) == stream], (
        "--stream",
        "on",
    ) * stream


# Cases

ANSWERED: dict[str, Odd] = {
    # An error that is none
    "error: empty members": lambda text: http(
        200, plain(text, error={"message": "", "type": "", "code": None})
    ),
    "error: code 0": lambda text: http(200, plain(text, error={"code": 0, "message": "success"})),
    "error: code as text": lambda text: http(
        200, plain(text, error={"code": "200", "message": "OK"})
    ),
    "error: none in words": lambda text: http(200, plain(text, error="none")),
    "error: in the choice": lambda text: http(
        200, {"choices": [{"message": {"content": text}, "error": {"code": 0, "message": ""}}]}
    ),
    # Other places of the answer
    "content: object": lambda text: http(200, spoken({"content": json.loads(text)})),
    "content: part": lambda text: http(200, spoken({"content": {"type": "text", "text": text}})),
    "content: list of texts": lambda text: http(200, spoken({"content": list(halves(text))})),
    "content: output_text": lambda text: http(
        200, spoken({"content": [{"type": "output_text", "text": text}]})
    ),
    "content: mixed list": lambda text: http(
        200,
        spoken(
            {
                "content": [
                    {"type": "thinking", "thinking": "{"},
                    {"type": "image_url", "image_url": {"url": "x"}},
                    halves(text)[0],
                    {"text": {"value": halves(text)[1]}},
                ]
            }
        ),
    ),
    "function_call": lambda text: http(
        200, spoken({"content": None, "function_call": call(text)}, "function_call")
    ),
    "function_call: object": lambda text: http(
        200, spoken({"function_call": call(json.loads(text))}, "stop")
    ),
    "tool call: object": lambda text: http(
        200,
        spoken({"content": "", "tool_calls": [{"function": call(json.loads(text))}]}, "tool_calls"),
    ),
    "parsed": lambda text: http(200, spoken({"content": None, "parsed": json.loads(text)})),
    "choice: text": lambda text: http(200, {"choices": [{"text": text, "finish_reason": "stop"}]}),
    "choice: delta": lambda text: http(
        200, {"choices": [{"delta": {"content": text}, "finish_reason": "stop"}]}
    ),
    "choice: index 1": lambda text: http(
        200, {"choices": [{"index": 1, "message": {"content": text}}]}
    ),
    "choice: index as text": lambda text: http(
        200, {"choices": [{"index": "0", "message": {"content": text}}]}
    ),
    "choice: thoughts apart": lambda text: http(
        200,
        {
            "choices": [
                {"index": 0, "message": {"content": "", "reasoning_content": "想"}},
                {"index": 1, "message": {"content": text}},
            ]
        },
    ),
    "envelope": lambda text: http(200, {"code": 0, "message": "success", "data": plain(text)}),
    "thoughts: an object alone": lambda text: http(
        200, spoken({"content": None, "reasoning": text})
    ),
    "thoughts: an object at the end": lambda text: http(
        200, spoken({"content": "", "reasoning_content": f"好。{text}"})
    ),
    # Marks of thoughts
    "harmony": lambda text: http(200, plain(HARMONY + text)),
    "harmony: to its end": lambda text: http(200, plain(f"{HARMONY}{text}<|return|>")),
    "harmony: json": lambda text: http(
        200, plain(HARMONY.replace("final<|message|>", "final <|constrain|>json<|message|>") + text)
    ),
    "harmony: without special tokens": lambda text: http(
        200, plain(f'analysis{{"a": "draft"}}assistantfinal{text}')
    ),
    "[THINK]": lambda text: http(200, plain('[THINK]{"a": "draft"}[/THINK]' + text)),
    "<seed:think>": lambda text: http(200, plain('<seed:think>{"a": "draft"}</seed:think>' + text)),
    # Streams
    "stream: no finish_reason": lambda text: streamed(*map(piece, halves(text)), DONE),
    "stream: no [DONE]": lambda text: streamed(*map(piece, halves(text))),
    "stream: reason null": lambda text: streamed(*[piece(half, "null") for half in halves(text)]),
    "stream: reason, then cut": lambda text: streamed(piece(text), piece("", "stop"), end=b""),
    "stream: unframed": lambda text: unframed(piece(text), DONE),
    "stream: comment as data": lambda text: streamed(b"data: : PROCESSING\n\n", piece(text), DONE),
    "stream: cumulative": lambda text: streamed(
        *[piece(text[:end]) for end in (9, 20, 40, len(text))], DONE
    ),
    "stream: empty error": lambda text: streamed(
        piece(text) | {"error": {"message": ""}},
        {"code": 0, "message": "success"},
        piece("", "stop"),
        DONE,
    ),
    "stream: envelope": lambda text: streamed(
        {"data": piece(text)}, {"data": piece("", "stop")}, DONE
    ),
    "stream: index 1": lambda text: streamed(
        {"choices": [{"index": 1, "delta": {"content": text}}]}, DONE
    ),
    "stream: text": lambda text: streamed({"choices": [{"text": text}]}, DONE),
    "stream: function_call": lambda text: streamed(
        *[
            {"choices": [{"delta": {"function_call": {"arguments": half}}}]}
            for half in halves(text)
        ],
        DONE,
    ),
}
"""Replies that hold the true answer."""


@STREAMS
def test_paid_answer_is_read_at_once(stream, tmp_path, truths):
    """Wherever it is, and whatever is beside it: every score is that of a plain endpoint, with no
    further request."""
    odd, options = of_mode(ANSWERED, stream)
    outcome = Outcome(tmp_path, odd, *options, users=USERS)
    assert (outcome.code, outcome.scores, outcome.retries) == (0, truths.scores, [])
    assert len(outcome.requests) == len(truths.requests) == USERS * STEPS >= len(odd)


ASKED_AGAIN: dict[str, Odd] = {
    "json_validate_failed": lambda text: refused(
        400, "Failed to generate JSON. Please adjust your prompt.", code="json_validate_failed"
    ),
    "json_validate_failed in a 200": lambda text: refused(
        200, "Failed to validate JSON.", code="json_validate_failed"
    ),
    "json_validate_failed in a stream": lambda text: streamed(
        piece(cut(text)), {"error": {"message": "x", "code": "json_validate_failed"}}, DONE
    ),
    "stream: open JSON": lambda text: streamed(piece(cut(text)), piece("", "stop"), DONE),
    "stream: open JSON without a reason": lambda text: streamed(piece(cut(text)), DONE),
    "stream: open JSON and the body's end": lambda text: streamed(piece(cut(text), "null")),
    "open JSON without a reason": lambda text: http(200, spoken({"content": cut(text)}, None)),
    "open JSON with reason null": lambda text: http(200, spoken({"content": cut(text)}, "null")),
    "harmony: open JSON": lambda text: streamed(
        piece(HARMONY + cut(text)), piece("", "stop"), DONE
    ),
}
"""Replies that are the model's own failure, or may be."""


@STREAMS
def test_unusable_reply_is_asked_for_again_and_then_invalid(stream, tmp_path, truths):
    """With a note, which is no failed try; without another request the answer is invalid, and
    nothing is made up."""
    odd, options = of_mode(ASKED_AGAIN, stream)
    outcome = Outcome(tmp_path / "again", odd, *options, every=2, users=USERS)
    assert (outcome.code, outcome.scores, outcome.retries) == (0, truths.scores, [])
    assert len(outcome.requests) == len(truths.requests) + len(odd)
    messages = [request["messages"] for request in outcome.requests]
    assert all(messages[2 * number] != messages[2 * number + 1] for number in range(len(odd)))
    once = Outcome(tmp_path / "once", odd, "--parse-retries", "0", *options, every=2, users=USERS)
    assert (once.code, once.invalid) == (0, ["no_json"] * len(odd))
    assert len(once.requests) == len(truths.requests)


FAILED: dict[str, tuple[str, Odd]] = {
    "stream: cut after an odd reason": (
        "truncated",
        lambda text: streamed(piece(cut(text), "null"), end=b""),
    ),
    "stream: cut after another word": (
        "truncated",
        lambda text: streamed(piece(cut(text), "eos_token"), end=b""),
    ),
    "stream: unframed": ("truncated", lambda text: unframed(piece(cut(text), "null"))),
    "stream: unframed and whole": ("truncated", lambda text: unframed(piece(text))),
    "stream: half an event": (
        "truncated",
        lambda text: streamed(piece(cut(text)), b'data: {"choices": [{"del'),
    ),
    "stream: error": (
        "http_502",
        lambda text: streamed(piece(cut(text)), {"code": 7, "msg": "overheated"}, DONE),
    ),
    "error with words": (
        "http_502",
        lambda text: http(200, plain(text, error={"code": 0, "message": "overheated"})),
    ),
    "no token": (
        "no_completion",
        lambda text: http(200, plain("", usage={"prompt_tokens": 800, "completion_tokens": 0})),
    ),
    "stream: no token": (
        "no_completion",
        lambda text: streamed(
            piece("", "stop") | {"usage": {"prompt_tokens": 8, "completion_tokens": 0}}, DONE
        ),
    ),
    "413: tokens a minute": (
        "http_413",
        lambda text: refused(
            413,
            "Request too large on tokens per minute (TPM): Limit 6, Requested 7",
            code="rate_limit_exceeded",
        ),
    ),
    "429: tokens a minute": (
        "http_413",
        lambda text: refused(
            429, "Request too large for m on tokens per min (TPM): Limit 6, Requested 7"
        ),
    ),
}
"""Replies that are the endpoint's failure, and its kind."""


@pytest.mark.slow
@STREAMS
def test_failure_of_the_endpoint_is_tried_again_and_no_score(stream, tmp_path, truths):
    """A later try scores as ever; without one that user fails, and the others' scores are
    theirs."""
    cases, options = of_mode(FAILED, stream)
    kinds, odd = [kind for kind, _ in cases], [reply for _, reply in cases]
    outcome = Outcome(tmp_path / "again", odd, *options, every=2, users=USERS)
    assert (outcome.code, outcome.scores, outcome.retries) == (0, truths.scores, kinds)
    # Each user who fails is followed by one who does not.
    once = Outcome(
        tmp_path / "once", odd, "--max-retries", "0", *options, every=1 + STEPS, users=USERS
    )
    assert (once.code, once.invalid) == (1, [])
    assert (
        len(once.scores) == STEPS * (USERS - len(odd))
        and once.scores.items() < truths.scores.items()
    )
    assert [detail.partition(":")[0] for detail in once.failures] == kinds


RATES: tuple[Body, ...] = (
    {"error": {"message": "Rate limit reached for requests"}},
    {"code": 50603, "msg": "Too many requests, slow down"},
    {"status": "449", "error_msg": "You exceeded your current rate limit"},
    {"detail": "请求过于频繁", "choices": []},
)


def test_words_of_a_rate_limit_in_a_200_are_a_rate_limit(tmp_path, truth):
    """Which is waited for, and counts as no failed try."""
    odd = [partial(whatever, data) for data in RATES]
    outcome = Outcome(tmp_path, odd, "--max-retries", "0", every=2)
    assert (outcome.code, outcome.scores, outcome.retries) == (
        0,
        truth.scores,
        ["http_429"] * len(odd),
    )


def whatever(data: Body, text: str) -> bytes:
    return http(200, data)


def test_endpoint_s_own_words_are_shown_whatever_they_are_called(tmp_path):
    """In the failure of the user whom they met."""
    names = ("msg", "error_msg", "errmsg", "message", "detail", "note")
    odd = [partial(whatever, {name: f"the hamster {name} sleeps", "body": None}) for name in names]
    outcome = Outcome(tmp_path, odd, "--max-retries", "0", every=1 + STEPS, users=2 * len(names))
    assert outcome.code == 1 and len(outcome.failures) == len(names)
    for name, detail in zip(names, outcome.failures, strict=True):
        assert f"the hamster {name} sleeps" in detail


def test_expired_token_in_a_200_is_a_refusal_in_the_endpoint_s_words(tmp_path):
    """It is tried again, and passes here."""
    outcome = Outcome(
        tmp_path, [lambda text: http(200, {"status": "439", "msg": "Your API Token has expired."})]
    )
    assert (outcome.code, len(outcome.requests)) == (0, 1 + 2 * STEPS)
    assert "Your API Token has expired." in (tmp_path / "out/m/run_weibo.log").read_text()
