"""A user who was given up, and a later `resume`, which begins to count again."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from harness.benchmarks.streamprofile.synth import generate
from harness.cli import main
from harness.store.files import RunFiles
from harness.store.log import objects
from tests.support.scripted import baseline, completion, serving

TASKS = "weibo_inference_tasks.jsonl"
RETRIES = 2


def test_tries_before_a_user_was_given_up_are_not_counted_again(tmp_path):
    """Each `resume` tries as often as `--max-retries` says, and numbers its tries from 1. In the
    first session a try may be more, since none counts before the endpoint has served anybody."""
    users = list(generate("weibo", 6, 5, 2.0))
    (tmp_path / TASKS).write_bytes(b"".join(users))
    failing, asked = orjson.loads(users[2])["username"], list[object]()

    def script(request: dict[str, Any]) -> tuple[int, bytes]:
        content = request["messages"][-1]["content"]
        if failing in content:
            asked.append(None)
            return 500, b'{"error": "no"}'
        return baseline(request) if len(content) > 100 else (200, completion("ok"))

    counts, numbers, files = (
        list[int](),
        list[list[int]](),
        RunFiles(tmp_path / "results" / "m", "weibo"),
    )
    with serving(script) as server:
        where = ["--results-dir", str(tmp_path / "results"), "--api-url", server.url]
        where += ["--max-retries", str(RETRIES), "--no-html"]
        begin = ["run", "--model", "m", "--platform", "weibo", "--tasks-dir", str(tmp_path)]
        for words in (begin, ["resume"], ["resume"]):
            asked.clear()
            before = sum(1 for _ in objects(files.events))
            assert main([*words, *where]) == 1
            counts.append(len(asked))
            events = [data for _, data in objects(files.events)][before:]
            numbers.append([data["try_number"] for data in events if data["what"] == "retry"])
    assert counts[1:] == [RETRIES + 1] * 2
    assert numbers[1:] == [[*range(1, RETRIES + 2)]] * 2


@pytest.mark.parametrize("command", ["run", "resume"])
def test_users_whose_prompts_a_firewall_blocks_are_named_once(command, tmp_path, capsys):
    """No command is advised as if another session alone could help."""
    users = list(generate("weibo", 4, 5, 2.0))
    (tmp_path / TASKS).write_bytes(b"".join(users))
    blocked = orjson.loads(users[2])

    def script(request: dict[str, Any]) -> tuple[int, bytes]:
        content = request["messages"][-1]["content"]
        if blocked["username"] in content:
            return 403, b'{"message": "Forbidden"}'
        return baseline(request) if len(content) > 100 else (200, completion("ok"))

    where = ["--results-dir", str(tmp_path / "r"), "--no-html"]
    with serving(script) as server:
        begin = ["run", "--model", "m", "--platform", "weibo", "--tasks-dir", str(tmp_path)]
        assert main([*begin, "--api-url", server.url, *where]) == 1
        if command == "resume":
            capsys.readouterr()
            assert main(["resume", "--api-url", server.url, *where]) == 1
    printed = capsys.readouterr().out
    assert f"refuses what 1 user of these send ({blocked['user_id']})" in printed
    assert "resume with: " not in printed and "1 user failed" in printed
