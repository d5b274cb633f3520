"""A run whose answers cannot be used stops before the rest is paid for."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from harness.chat import Chat
from harness.cli import main
from harness.client.request_body import Sampling
from harness.engine.answers import FIRST, MOST_UNUSABLE, Answers
from harness.engine.replay import Conversation, PendingRequest
from harness.errors import AnswersUnusable, InvalidReply
from harness.model import JSON, Completion
from tests.support.scripted import Script, serving

Judged = tuple[Completion, InvalidReply | None]
USABLE: Judged = Completion("{}"), None
USERS = 60
PLUGIN = """
from harness import Benchmark, Metric, Task

class Steps(Benchmark):
    name = "steps"
    subsets = {"all_of_them": "tasks.jsonl"}
    metrics = (Metric("right"),)

    def parse(self, line, subset):
        return Task(line["user"], given=line["user"], truth=1, steps=2)

    async def play(self, given, chat):
        first = await chat.json(f"{given}: one, as JSON")
        return [first["n"], (await chat.json(f"{given}: two, as JSON"))["n"]]

    def measure(self, task, answer):
        return {"right": float(answer is not None)}
"""


# The rule


def unusable(kind: str, finish_reason: str, text: str = "") -> Judged:
    """A reply that gave no answer, by the kind of its mistake."""
    return Completion(text, finish_reason), InvalidReply(kind)


BAD = unusable("length", "length")


def judged(replies: list[Judged], allow_invalid: bool = False) -> bool:
    """Whether answers made a runner stop, with the last of them."""
    answers = Answers(allow_invalid)
    try:
        for completion, error in replies:
            assert answers.read < FIRST
            answers.add("甲", completion, error)
    except AnswersUnusable:
        return True
    return False


@pytest.mark.parametrize("usable", range(4))
def test_nine_of_ten_first_answers_stop_a_run(usable):
    """A model that is only often wrong goes on."""
    assert judged([BAD] * (FIRST - usable) + [USABLE] * usable) == (FIRST - usable >= MOST_UNUSABLE)


def test_fewer_answers_do_not_and_neither_does_a_run_that_allows_it():
    """A short run ends as ever."""
    assert not judged([BAD] * (FIRST - 1))
    assert not judged([BAD] * FIRST, allow_invalid=True)


def test_later_answers_do_not():
    """The first ones have shown that the model can answer."""
    answers = Answers(False)
    for reply, error in [USABLE] * FIRST + [BAD] * 200:
        answers.add("甲", reply, error)
    assert answers.unusable == {"length": 200}


@pytest.mark.parametrize(
    ("kind", "finish_reason", "text", "hint"),
    [
        ("length", "length", "", "--max-tokens"),
        ("empty", "tool_calls", "", "tool calls"),
        ("content_filter", "content_filter", "", "provider"),
        ("no_day", "stop", "{}", "responses_*.jsonl"),
    ],
)
def test_reason_names_an_example_and_what_to_do(kind, finish_reason, text, hint):
    """By the most frequent kind."""
    answers = Answers(False)
    completion, error = unusable(kind, finish_reason, text)
    with pytest.raises(AnswersUnusable) as caught:
        for _ in range(FIRST):
            answers.add("甲", completion, error)
    assert all(words in str(caught.value) for words in (hint, kind, f"'{text}'", "--allow-invalid"))


@pytest.mark.anyio
async def test_only_new_replies_are_judged():
    """A resumed run looks at the first new ones again."""
    found: list[str | None] = []
    saved: dict[tuple[str, int], Completion] = {}

    async def settle(asked: PendingRequest) -> Completion:
        made = saved[asked.digest, asked.nth] = Completion("好")
        return made

    for _ in range(2):
        talk = Conversation(
            Sampling("m"),
            dict(saved),
            1,
            settle,
            lambda reply, error: found.append(error and error.kind),
        )
        with pytest.raises(InvalidReply):
            await Chat(talk.ask, judged=talk.judge).json("?")
    assert found == ["no_json"] * 3


# Whole runs


def scripted(model: str) -> tuple[Script, str | None]:
    """A model, and the kind of its unusable answers."""
    thinking = {"content": "", "reasoning_content": "嗯"}
    arguments = [{"type": "function", "function": {"name": "answer", "arguments": '{"n": 1}'}}]
    scripts: dict[str, tuple[JSON, str]] = {
        "thinks": (thinking, "length"),
        "calls": ({"content": None, "tool_calls": arguments}, "tool_calls"),
        "chats": ({"content": "好的"}, "stop"),
    }
    message, reason = scripts[model]
    choice = {"index": 0, "message": message, "finish_reason": reason}
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 4096,
        "completion_tokens_details": {"reasoning_tokens": 4096},
    }
    return lambda body: (200, orjson.dumps({"choices": [choice], "usage": usage}))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "steps.py").write_text(PLUGIN, encoding="utf-8")
    (tmp_path / "tasks").mkdir()
    tasks = [orjson.dumps({"user": f"u{number}"}) for number in range(USERS)]
    (tmp_path / "tasks" / "tasks.jsonl").write_bytes(b"\n".join(tasks))
    return tmp_path


def call(command: str, url: str, *more: str) -> int:
    words = ["steps.py", "--model", "m", "--name", "m"] if command == "run" else ["--name", "m"]
    return main([command, *words, "--api-url", url, "--no-html", *more])


@pytest.mark.parametrize("model", ["thinks", "chats"])
def test_run_whose_answers_cannot_be_used_stops_and_can_go_on(model, folder, monkeypatch):
    """Exit code 6 after few requests, again by a resume; with --allow-invalid the run goes to its
    end."""
    with serving(scripted(model)) as server:
        assert call("run", server.url) == 6
        sent = len(server.bodies)
        assert FIRST <= sent <= 40
        assert call("resume", server.url) == 6
        assert len(server.bodies) <= 2 * 40
        assert call("resume", server.url, "--allow-invalid") == 0
    report = orjson.loads((folder / "results" / "m" / "eval_report_all_of_them.json").read_bytes())
    assert report["coverage"]["scored_users"] == USERS


def test_settings_file_cannot_allow_it(folder):
    """It is decided for each call."""
    (folder / "mine.toml").write_text("allow-invalid = true\n", encoding="utf-8")
    with serving(scripted("chats")) as server:
        assert call("run", server.url, "--settings", "mine.toml") == 2
        assert server.bodies == []
