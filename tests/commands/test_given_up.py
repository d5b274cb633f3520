"""A user who was given up, and a later `resume`, which begins to count again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from harness.benchmarks.streamprofile.synth import generate
from harness.cli import main
from harness.store.files import RunFiles
from harness.store.log import objects
from tests.support.scripted import baseline, completion, serving

TASKS = "weibo_inference_tasks.jsonl"
RETRIES = 2


def test_tries_before_a_user_was_given_up_are_not_counted_again(tmp_path: Path) -> None:
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
