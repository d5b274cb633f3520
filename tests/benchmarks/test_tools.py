"""A benchmark that calls tools and reads log-probabilities (`tests/data/weather`): both survive
wherever a reply goes."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from harness.cli import main
from harness.store.log import valid_lines
from tests.extensions.ray.conftest import Place, cluster  # noqa: F401
from tests.support import DATA, ROOT
from tests.support.billing import PRICES, Account, Act, account
from tests.support.plugins import Commands
from tests.support.processes import wait_for_responses
from tests.support.scripted import Server, serving

WEATHER = DATA / "weather" / "weather.py"
RESULTS, RESPONSES = "inference_results_pairs.jsonl", "responses_pairs.jsonl"
USERS = [("Oslo", "Rome"), ("Rome", "北京"), ("北京", "Oslo"), ("Rome", "Oslo")]
FIRST_TOKEN = {
    "token": "A",
    "logprob": -0.125,
    "bytes": [65],
    "top_logprobs": [{"token": "A", "logprob": -0.125}, {"token": "B", "logprob": -2.5}],
}
USAGE = {"prompt_tokens": 10, "completion_tokens": 5}


def message_for(body: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The message and the tokens of the reply: two calls, then the warmer city."""
    asked, *rest = body["messages"]
    assert body["tools"][0]["function"]["name"] == "temperature" and body["top_logprobs"] == 2
    cities = asked["content"].removesuffix("?").split(" or ")
    if not rest:
        calls = [
            {
                "id": f"call-{city}",
                "type": "function",
                "function": {"name": "temperature", "arguments": json.dumps({"city": city})},
                "extra_content": {"google": {"thought_signature": "c2ln"}},
            }
            for city in cities
        ]
        return {"role": "assistant", "content": None, "tool_calls": calls}, [FIRST_TOKEN]
    replied, *results = rest
    assert replied["role"] == "assistant" and replied["content"] is None
    assert [call["id"] for call in replied["tool_calls"]] == [f"call-{city}" for city in cities]
    assert replied["tool_calls"][0]["extra_content"] == {"google": {"thought_signature": "c2ln"}}
    assert [message["role"] for message in results] == ["tool", "tool"]
    by_id = {message["tool_call_id"]: int(message["content"]) for message in results}
    warmest = max(by_id, key=lambda name: by_id[name]).removeprefix("call-")
    return {"role": "assistant", "content": warmest}, [{**FIRST_TOKEN, "token": warmest}]


def whole(body: dict[str, Any]) -> tuple[int, bytes]:
    """Reply whole, or in pieces where a stream is requested."""
    choice = choice_for(body)
    if body.get("stream"):
        tokens = choice["logprobs"]["content"]
        return 200, streamed(choice["message"], tokens, choice["finish_reason"])
    return 200, orjson.dumps({"model": "m", "choices": [choice], "usage": USAGE})


def choice_for(body: dict[str, Any]) -> dict[str, Any]:
    message, tokens = message_for(body)
    reason = "tool_calls" if "tool_calls" in message else "stop"
    return {"message": message, "finish_reason": reason, "logprobs": {"content": tokens}}


def streamed(message: dict[str, Any], tokens: list[dict[str, Any]], reason: str) -> bytes:
    """Events in which the arguments of both calls alternate, a piece each."""
    pieces: list[list[dict[str, Any]]] = []
    for index, call in enumerate(message.get("tool_calls", ())):
        function = {"name": call["function"]["name"], "arguments": ""}
        head = {**call, "index": index, "function": function}
        halves = call["function"]["arguments"][:5], call["function"]["arguments"][5:]
        tail = [{"index": index, "function": {"arguments": half}} for half in halves]
        pieces.append([head, *tail])
    deltas: list[dict[str, Any]] = [
        {"tool_calls": [piece]} for group in zip(*pieces, strict=True) for piece in group
    ]
    deltas += [{"content": letter} for letter in message["content"] or ""]
    choices: list[dict[str, Any]] = [{"index": 0, "delta": delta} for delta in deltas]
    choices[0]["logprobs"] = {"content": tokens[:1], "refusal": None}
    choices.append({"index": 0, "delta": {}, "finish_reason": reason})
    chunks: list[dict[str, Any]] = [{"model": "m", "choices": [choice]} for choice in choices]
    chunks.append({"model": "m", "choices": [], "usage": USAGE})
    events = b"".join(b"data: %b\n\n" % orjson.dumps(chunk) for chunk in chunks)
    return events + b"data: [DONE]\n\n"


@pytest.fixture
def harness(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(tmp_path / "results", capsys)


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    folder = tmp_path / "tasks"
    folder.mkdir()
    degrees = {"Oslo": 3, "Rome": 19, "北京": 11}
    lines = (
        {
            "user_id": f"u{number}",
            "cities": cities,
            "warmer": max(cities, key=lambda city: degrees[city]),
        }
        for number, cities in enumerate(USERS, 1)
    )
    (folder / "pairs.jsonl").write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    return folder


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(whole) as server:
        yield server


def command(server: Server, tasks: Path, name: str, *words: object) -> tuple[object, ...]:
    at = ("--api-url", server.url, "--model", "m", "--tasks-dir", tasks, "--name", name)
    return ("run", WEATHER, *at, "--no-html", *words)


def completions(folder: Path) -> dict[tuple[str, str], Any]:
    lines = (orjson.loads(line.text) for line in valid_lines(folder / RESPONSES))
    return {(line["user_id"], line["request"]): line["completion"] for line in lines}


@pytest.fixture
def played(harness: Commands, server: Server, tasks: Path) -> Path:
    """The folder of a run over an endpoint that does not stream."""
    harness(*command(server, tasks, "plain"))
    return harness.results / "plain"


def test_reply_is_saved_with_calls_and_log_probabilities(harness, played):
    """Both calls with id, name, arguments and what the provider needs back."""
    saved = completions(played)
    assert len(saved) == 8
    called = [completion for completion in saved.values() if "tool_calls" in completion]
    assert len(called) == 4
    for completion in called:
        first, second = completion["tool_calls"]
        assert first["id"].startswith("call-") and first["id"] != second["id"]
        assert first["name"] == "temperature" and "city" in json.loads(first["arguments"])
        assert first["extra_content"] == {"google": {"thought_signature": "c2ln"}}
        assert completion["text"] == "" and completion["finish_reason"] == "tool_calls"
        assert completion["logprobs"] == {"content": [FIRST_TOKEN]}
    report = harness.report("plain", "pairs")
    assert report["metrics"]["Right"]["value"] == 1.0
    assert report["metrics"]["Certainty"]["value"] == pytest.approx(0.8824969)
    assert report["usage"]["completion_tokens"] == 40


def test_stream_gives_the_same_replies(harness, played, server, tasks):
    """Pieces of both calls that alternate are joined by index, log-probabilities in order."""
    harness(*command(server, tasks, "streamed", "--stream", "on"))
    found = completions(harness.results / "streamed")
    assert found.keys() == completions(played).keys()
    for key, completion in completions(played).items():
        assert found[key] == {
            **completion,
            "logprobs": {"content": completion["logprobs"]["content"], "refusal": None},
        }
    records = [(harness.results / name / RESULTS).read_bytes() for name in ("plain", "streamed")]
    assert records[0] == records[1]


def test_saved_replies_alone_give_the_same_records(harness, played):
    """`verify` and `reeval --reparse` play every user again from them."""
    before = (played / RESULTS).read_bytes()
    harness("verify", "plain")
    harness("reeval", "plain", "--reparse")
    assert (played / RESULTS).read_bytes() == before
    assert "diverged" not in harness.out + harness.err


def test_parts_are_merged_with_them(harness, played, server, tasks):
    for number in ("1/2", "2/2"):
        harness(*command(server, tasks, "parts", "--part", number))
    harness("merge", "parts", "--tasks-dir", tasks)
    assert completions(harness.results / "parts") == completions(played)


class ToolAccount(Account):
    def choice(self, body: dict[str, Any]) -> dict[str, Any]:
        return choice_for(body)


def test_batches_carry_them(harness, played, tasks):
    """Two batches, one for the calls and one for what follows them."""

    def script(body: dict[str, Any], attempt: int) -> Act:
        return Act((10, 0, 5), USAGE)

    with account(script, {"m": PRICES["a"]}, ToolAccount) as endpoint:
        where = ("--api-url", endpoint.url, "--tasks-dir", tasks, "--name", "batches")
        harness("run", WEATHER, "--model", "m", *where, "--batch", "--no-html")
    assert endpoint.batch_requests == [4, 4]
    assert completions(harness.results / "batches") == completions(played)
    records = [(harness.results / name / RESULTS).read_bytes() for name in ("plain", "batches")]
    assert records[0] == records[1]
    harness("verify", "batches")


def test_another_run_reuses_them(harness, played, server, tasks):
    """No request goes out."""
    sent = len(server.bodies)
    harness(*command(server, tasks, "again", "--reuse", "plain"))
    assert len(server.bodies) == sent
    assert completions(harness.results / "again") == completions(played)


def test_workers_save_the_same(
    harness,
    played,
    server,
    tasks,
    cluster,  # noqa: F811
):
    """With `--engine ray`."""
    harness(*command(server, tasks, "ray", "--engine", "ray", "--workers", "2"))
    assert completions(harness.results / "ray") == completions(played)
    assert (harness.results / "ray" / RESULTS).read_bytes() == (played / RESULTS).read_bytes()


def test_rows_of_replies_have_them_as_json(harness, played, tmp_path):
    out = tmp_path / "rows.jsonl"
    harness("export", "plain", "--rows", "responses", "--out", out)
    rows = [orjson.loads(line) for line in out.read_bytes().splitlines()]
    called = [row for row in rows if row["tool_calls"]]
    assert len(called) == 4 and len(rows) == 8
    assert [call["name"] for call in json.loads(called[0]["tool_calls"])] == ["temperature"] * 2
    assert all(json.loads(row["logprobs"])["content"] for row in rows)


def test_logs_of_inspect_have_calls_results_and_log_probabilities(harness, played, tmp_path):
    """By the names that its schema has."""
    from zipfile import ZipFile

    out = tmp_path / "plain.eval"
    harness("export", "plain", "--format", "inspect", "--out", out)
    with ZipFile(out) as archive:
        sample = orjson.loads(archive.read("samples/u1_epoch_1.json"))
    called = next(message for message in sample["messages"] if message["role"] == "assistant")
    assert called["tool_calls"][1] == {
        "id": "call-Rome",
        "function": "temperature",
        "type": "function",
        "arguments": {"city": "Rome"},
    }
    results = [message for message in sample["messages"] if message["role"] == "tool"]
    assert [(one["tool_call_id"], one["content"]) for one in results] == [
        ("call-Oslo", "3"),
        ("call-Rome", "19"),
    ]
    assert sample["output"]["choices"][0]["logprobs"]["content"][0]["token"] == "Rome"


def test_every_eval_ever_has_calls_and_results(harness, played, tmp_path):
    harness("export", "plain", "--format", "every-eval-ever", "--out", tmp_path / "e.json")
    line = (tmp_path / "e_samples.jsonl").read_bytes().splitlines()[0]
    messages = orjson.loads(line)["messages"]
    assert messages[1]["tool_calls"][0] == {
        "id": "call-Oslo",
        "name": "temperature",
        "arguments": {"city": "Oslo"},
    }
    assert [one.get("tool_call_id") for one in messages if one["role"] == "tool"] == [
        ["call-Oslo"],
        ["call-Rome"],
    ]


def test_show_prints_calls_and_log_probabilities(harness, played, tasks):
    """The conversation has each message once."""
    shown = harness("show", "plain", "u1", "--tasks-dir", tasks)
    assert 'temperature({"city": "Oslo"})\ntemperature({"city": "Rome"})' in shown
    assert '"A" -0.125 (of "A" -0.125, "B" -2.5)' in shown
    assert shown.count("Oslo or Rome?") == 1


def test_baseline_calls_tools_without_an_endpoint(harness, tasks):
    """And the benchmark keeps its contract with it."""
    words = ("--model", "baseline/thermometer", "--tasks-dir", tasks, "--name", "floor")
    harness("run", WEATHER, *words, "--no-html")
    assert harness.report("floor", "pairs")["metrics"]["Right"]["value"] == 1.0
    harness("verify", "floor")
    harness("run", WEATHER, *words[:-2], "--name", "dry", "--dry-run")
    assert main(["check-benchmark", str(WEATHER), "--tasks-dir", str(tasks)]) == 0


REFUSALS = [
    (400, "registry.ollama.ai/library/gemma3:4b does not support tools", "takes no tools"),
    (
        400,
        '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
        "takes no tools",
    ),
    (404, "No endpoints found that support tool use. To learn more", "takes no tools"),
    (400, "Unsupported parameter: 'logprobs' is not supported with this model.", "no logprobs"),
    (403, "You are not allowed to request logprobs from this model.", "no logprobs"),
    (400, "Unknown parameter: 'top_logprobs'", "no top_logprobs"),
]


@pytest.mark.parametrize(("status", "words", "said"), REFUSALS)
def test_refused_member_ends_the_run_in_one_sentence(harness, tasks, status, words, said):
    """It names the member and what to do, and no request goes out without the member."""

    def refuse(body: dict[str, Any]) -> tuple[int, bytes]:
        assert body["tools"] and body["logprobs"] and body["top_logprobs"]
        return status, orjson.dumps({"error": {"message": words, "code": status}})

    with serving(refuse) as server:
        harness(*command(server, tasks, "refused"), code=3)
    assert f"the endpoint {'takes ' if said.startswith('no') else ''}{said} (" in harness.out
    assert "the benchmark needs" in harness.out


@pytest.mark.slow
def test_killed_run_goes_on_with_saved_calls(harness, played, server, tasks):
    """SIGKILL after some replies: none of them is requested again, and the records are the same."""
    answered = itertools.count(1)

    def slow_after_five(body: dict[str, Any]) -> tuple[int, bytes]:
        return whole(body) if next(answered) <= 5 else (503, b"{}")

    sent = len(server.bodies)
    server.script = slow_after_five
    words = map(str, command(server, tasks, "killed", "--concurrency", "1"))
    folder = harness.results / "killed"
    line = [sys.executable, "-m", "harness", *words, "--results-dir", str(harness.results)]
    with subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        wait_for_responses(folder / RESPONSES, 5)
        run.send_signal(signal.SIGKILL)
        run.communicate()
    kept = completions(folder)
    server.script = whole
    harness("resume", "killed", "--tasks-dir", tasks, "--no-html")
    assert completions(folder) == completions(played) and len(kept) == 5
    assert (folder / RESULTS).read_bytes() == (played / RESULTS).read_bytes()
    answered_twice = [body for body in server.bodies[sent:] if server.bodies[sent:].count(body) > 1]
    assert len(set(answered_twice)) <= 1
