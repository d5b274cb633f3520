"""`run --structured`: which form of JSON a run asks for, and what its report says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from harness.cli import main
from harness.client.quirks import QUIRKS
from tests.commands.test_commands import report, write_tasks
from tests.support.embedded import served
from tests.support.scripted import baseline, serving


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """A folder with two users of weibo."""
    write_tasks(tmp_path / "tasks", 2)
    return tmp_path / "tasks"


def run(tasks: Path, url: str, structured: str, *options: str) -> int:
    where = [
        "--tasks-dir",
        str(tasks),
        "--results-dir",
        str(tasks.parent / "out"),
        "--platform",
        "weibo",
    ]
    endpoint = ["--model", "m", "--no-html", *(["--api-url", url] if url else [])]
    return main(["run", *where, *endpoint, "--structured", structured, *options])


def manifest(tasks: Path) -> dict[str, Any]:
    return dict(orjson.loads((tasks.parent / "out/m/run_weibo.json").read_bytes()))


def sentence(quirk: str) -> str:
    words = QUIRKS[quirk].sentence
    return f"{words[0].upper()}{words[1:]}."


def test_every_request_has_the_pool_of_its_step(tasks):
    """The run is complete and verifies, and its identity names the form."""
    with serving(baseline) as server:
        assert run(tasks, server.url, "json_schema") == 0
    pools = {
        tuple(sorted(step["candidate_pool"]))
        for line in (tasks / "weibo_inference_tasks.jsonl").read_bytes().splitlines()
        for step in orjson.loads(line)["prediction_tasks"]
    }
    forms = [orjson.loads(body)["response_format"]["json_schema"] for body in server.bodies]
    tags = [form["schema"]["properties"]["predicted_tags"] for form in forms]
    assert {tuple(sorted(each["items"]["enum"])) for each in tags} == pools
    assert all(
        each["minItems"] == each["maxItems"] == round(len(each["items"]["enum"]) / 4)
        for each in tags
    )
    assert manifest(tasks)["identity"]["settings"]["structured"] == "json_schema"
    where = ["--tasks-dir", str(tasks), "--results-dir", str(tasks.parent / "out")]
    assert main(["verify", *where]) == 0
    assert main(["reeval", "--reparse", "--no-html", *where]) == 0


def test_report_says_which_form_was_in_force(tasks):
    """`auto` with an endpoint that takes schemas, and with one that takes any object only."""
    from tests.support.endpoint_double.app import Options

    with served(Options(imitate="vllm")) as server:
        assert run(tasks, server.url, "auto") == 0
    (note,) = [note for note in report(tasks.parent / "out", "m")["notes"] if "JSON schema" in note]
    assert manifest(tasks)["provenance"]["quirks_used"] == []
    with served(Options(imitate="deepseek")) as server:
        assert run(tasks, server.url, "auto", "--restart") == 0
    notes = report(tasks.parent / "out", "m")["notes"]
    assert (note in notes, sentence("json_object") in notes) == (False, True)
    assert manifest(tasks)["provenance"]["quirks_used"] == ["json_object"]


def test_endpoint_that_refuses_a_required_schema_leaves_no_run(tasks):
    """Exit code 3 at once: another configuration is another run."""
    from tests.support.endpoint_double.app import Options

    with served(Options(imitate="deepseek")) as server:
        assert run(tasks, server.url, "json_schema") == 3
        assert server.stats()["completed"] == 0
    assert not (tasks.parent / "out/m/run_weibo.json").exists()


def test_required_schema_is_sent_whatever_the_providers_file_says(tasks, tmp_path):
    """`adapt` would leave it out, and so the report does not say that it was."""
    file = tmp_path / "providers.toml"
    with serving(baseline) as server:
        own = f'[providers.own]\nbase_url = "{server.url}"\nadapt = ["json_object"]\n'
        file.write_text(own, encoding="utf-8")
        assert run(tasks, "", "json_schema", "--providers", str(file), "--provider", "own") == 0
    assert {orjson.loads(body)["response_format"]["type"] for body in server.bodies} == {
        "json_schema"
    }
    assert manifest(tasks)["provenance"]["quirks_used"] == []


def test_benchmark_without_a_schema_cannot_be_asked_for_one(tasks, capsys):
    """A plug-in that asks for any object stops the run before anything is sent; `auto` takes it."""
    plug_in = tasks.parent / "plain.py"
    plug_in.write_text(PLAIN, encoding="utf-8")
    (tasks / "one.jsonl").write_text('{"user_id": "甲"}\n', encoding="utf-8")
    where = [
        "--tasks-dir",
        str(tasks),
        "--results-dir",
        str(tasks.parent / "out"),
        "--model",
        "m",
        "--no-html",
    ]
    with serving(baseline_of_ones) as server:
        common = [str(plug_in), *where, "--api-url", server.url, "--structured"]
        assert main(["run", *common, "json_schema"]) == 2
        assert "--structured auto" in capsys.readouterr().out
        assert server.bodies == []
        assert main(["run", *common, "auto"]) == 0
    assert [orjson.loads(body)["response_format"] for body in server.bodies] == [
        {"type": "json_object"}
    ]


def test_format_of_the_extra_body_and_a_schema_exclude_each_other(tasks):
    """The report would name a form that no request had."""
    assert (
        run(
            tasks,
            "http://127.0.0.1:9/v1",
            "auto",
            "--extra-body",
            '{"response_format": {"type": "text"}}',
        )
        == 2
    )


PLAIN = """
from harness import Benchmark, Metric, Task


class Plain(Benchmark):
    name = "plain"
    subsets = {"one": "one.jsonl"}
    metrics = (Metric("One"),)

    def parse(self, line, subset):
        return Task(key=line["user_id"], given=line["user_id"])

    async def play(self, given, chat):
        return await chat.json(given)

    def measure(self, task, answer):
        return {"One": 1.0}
"""


def baseline_of_ones(body: dict[str, Any]) -> tuple[int, bytes]:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "{}"},
        "finish_reason": "stop",
    }
    return 200, orjson.dumps({"choices": [choice]})
