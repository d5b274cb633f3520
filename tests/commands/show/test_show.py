"""`show`: prompts, replies and scores of a user in the terminal."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from rich.cells import cell_len

from harness.benchmarks.streamprofile.synth import generate
from harness.cli import main
from harness.model import JSON
from harness.store.log import decode_line, encode_line
from tests.benchmarks.test_own_statistics import PLUGIN
from tests.support.plugins import FLOOR, STARS, Commands
from tests.support.scripted import answer, completion, serving

USERS = 12
FAILING = "synth-weibo-0000003"
Show = Callable[..., str]


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "weibo_inference_tasks.jsonl").write_bytes(
        b"".join(generate("weibo", USERS, 5, 14.0))
    )
    return folder


@pytest.fixture
def results(tasks: Path, tmp_path: Path) -> Path:
    where = ("--tasks-dir", str(tasks), "--results-dir", str(tmp_path / "results"))
    assert (
        main(["run", "--model", "baseline/recency", "--platform", "weibo", "--no-html", *where])
        == 0
    )
    return tmp_path / "results"


@pytest.fixture
def show(results: Path, capsys: pytest.CaptureFixture[str]) -> Show:
    """Execute the command on the run; return what it prints."""

    def shown(*words: str, code: int = 0) -> str:
        capsys.readouterr()
        assert main(["show", "recency", *words, "--results-dir", str(results)]) == code
        return capsys.readouterr().out

    return shown


@pytest.mark.parametrize("key", [7, 2**63, -1, "7"], ids=repr)
def test_user_whose_key_is_a_whole_number_is_found(key, tasks, tmp_path, capsys):
    """Records keep the number; the command line has text alone. One whose number begins the same is
    another user."""
    task = orjson.loads((tasks / "weibo_inference_tasks.jsonl").read_bytes().splitlines()[0])
    users = [{**task, "user_id": key}, {**task, "user_id": 77}]
    (tmp_path / "weibo_inference_tasks.jsonl").write_bytes(b"\n".join(map(orjson.dumps, users)))
    where = ("--results-dir", str(tmp_path / "results"))
    words = [
        "run",
        "--model",
        "baseline/recency",
        "--platform",
        "weibo",
        "--no-html",
        "--tasks-dir",
        str(tmp_path),
    ]
    assert main([*words, *where]) == 0
    capsys.readouterr()
    assert main(["show", "recency", str(key), *where]) == 0
    shown = capsys.readouterr().out
    assert f"user {key}" in shown and "user 77" not in shown


def lines(path: Path) -> list[JSON]:
    return list(map(decode_line, path.read_bytes().splitlines()))


def longest(tasks: Path) -> JSON:
    """The task of the user with the most steps."""
    found = map(orjson.loads, (tasks / "weibo_inference_tasks.jsonl").read_bytes().splitlines())
    return max(found, key=lambda task: task["total_steps"])


def test_user_is_shown_with_scores_and_replies_and_without_private_texts(show, results, tasks):
    """Neither posts nor the name, which only prompts have."""
    task = longest(tasks)
    [record] = [
        of
        for of in lines(results / "recency/inference_results_weibo.jsonl")
        if of["user_id"] == task["user_id"]
    ]
    said = show(task["user_id"])
    assert record["steps"][0]["persona_summary"] in said and "[Reply]" in said and "F1^NS" in said
    assert task["username"] not in said and "Request 1" not in said
    assert not [line for line in posts(task) if line.startswith("[") and line in said]


def posts(task: JSON) -> list[str]:
    return [line for step in task["prediction_tasks"] for line in step["posts_text"].splitlines()]


@pytest.mark.slow
def test_posts_and_prompts_are_shown_when_they_are_requested(show, tasks):
    """Each request with its reply in their order: ten, all of them only if they are wanted."""
    task = longest(tasks)
    steps = task["total_steps"]
    assert steps > 10
    said = show(task["user_id"], "--with-posts")
    heads = re.findall(r"(?m)^Request (\d+) of (\d+)$", said)
    assert heads == [(str(number), str(steps)) for number in range(1, 11)]
    assert said.count("[reply]") == 10 and task["username"] in said
    whole = show(task["user_id"], "--with-posts", "--full")
    assert whole.count("[reply]") == steps
    assert all(line in whole for line in posts(task))


def test_long_text_is_cut_unless_all_is_wanted(show, results):
    path = results / "recency/inference_results_weibo.jsonl"
    rewrite(path, lambda record: record["steps"][0].update(persona_summary="x" * 5000 + "END"))
    key = lines(path)[0]["user_id"]
    assert "END" not in show(key) and "xxxEND" in show(key, "--full")


def rewrite(path: Path, change: Callable[[JSON], Any]) -> None:
    found = lines(path)
    for line in found:
        change(line)
    path.write_bytes(b"".join(map(encode_line, found)))


def test_text_of_others_does_not_steer_the_terminal(show, results):
    """Control characters and directions are escaped, in what the model wrote and in its raw
    reply."""
    bad = "红\x1b[2J\x07\u202e\x9b31m"

    def spoilt(response: JSON) -> None:
        response["completion"]["text"] += bad

    path = results / "recency/inference_results_weibo.jsonl"
    rewrite(path, lambda record: record["steps"][0].update(persona_summary=bad, prediction=[bad]))
    rewrite(results / "recency/responses_weibo.jsonl", spoilt)
    said = show(lines(path)[0]["user_id"])
    assert said.count("红\\x1b[2J\\x07\\u202e\\x9b31m") >= 3
    assert not set(said) & set("\x1b\x07\u202e\x9b")


def test_wide_characters_take_two_columns(show, monkeypatch):
    """What is not quoted as it came is at most as wide as the terminal."""
    monkeypatch.setenv("COLUMNS", "60")
    said = show("synth-weibo-0000001")
    tags = re.findall(r"(?ms)^(Predicted: .*?)^$", said)
    assert tags and any(cell_len(line) > len(line) for text in tags for line in text.splitlines())
    assert all(cell_len(line) <= 60 for text in tags for line in text.splitlines())


def test_without_a_user_the_first_ones_are_listed(show):
    said = show("--limit", "3")
    assert re.findall(r"(?m)^synth-weibo-\d+", said) == [
        f"synth-weibo-000000{number}" for number in (1, 2, 3)
    ]
    assert len(re.findall(r"(?m)^synth-weibo-\d+", show())) == USERS


def test_unknown_user_and_unknown_run_are_refused(show, results):
    show("nobody", code=2)
    assert main(["show", "nothing", "--results-dir", str(results)]) == 2


def test_user_is_shown_without_tasks(show, tmp_path):
    """With what the run's folder has: replies and scores."""
    said = show("synth-weibo-0000001", "--with-posts", "--tasks-dir", str(tmp_path))
    assert "[Reply]" in said and "F1^NS" in said and "Request 1" not in said


def test_failures_of_a_user_are_shown(tasks, tmp_path, capsys):
    """Also of a user without a record."""
    name = next(
        task["username"]
        for task in map(
            orjson.loads, (tasks / "weibo_inference_tasks.jsonl").read_bytes().splitlines()
        )
        if task["user_id"] == FAILING
    )

    def script(body: dict[str, Any]) -> tuple[int, bytes]:
        if name in str(body["messages"]):
            return 400, b'{"error": {"message": "too rude", "type": "invalid_request_error"}}'
        return 200, completion(answer("baseline/recency", body["messages"], 0))

    where = ("--results-dir", str(tmp_path / "results"))
    with serving(script) as server:
        address = (
            "--api-url",
            server.url,
            "--api-key",
            "sk-test-1",
            "--tasks-dir",
            str(tasks),
            "--no-html",
        )
        assert main(["run", "--model", "some", "--platform", "weibo", *address, *where]) == 1
    capsys.readouterr()
    assert main(["show", "some", FAILING, *where]) == 0
    said = capsys.readouterr().out
    assert "too rude" in said and "[Reply]" not in said


def test_benchmark_without_private_texts_shows_prompts(tmp_path, capsys):
    """Each with its reply, of every repeat."""
    harness = Commands(tmp_path / "results", capsys)
    harness(
        "run",
        STARS,
        "--model",
        FLOOR,
        "--name",
        "four-stars",
        "--tasks-dir",
        STARS.parent,
        "--repeats",
        "2",
        "--no-html",
    )
    [name] = [
        path.name
        for path in (tmp_path / "results").iterdir()
        if path.is_dir() and not path.name.startswith(".")
    ]
    record = lines(tmp_path / "results" / name / "inference_results_yelp.jsonl")[0]
    said = harness("show", name, record["user_id"])
    requests = len(re.findall(r"(?m)^Request \d+ of ", said))
    assert requests == said.count("[user]") == said.count("[reply]") > 2 and "(repeat 2)" in said


def test_figures_that_users_do_not_have_are_left_out(tmp_path, capsys):
    """A figure of all users together, such as a correlation, is none of each."""
    harness = Commands(tmp_path / "results", capsys)
    (tmp_path / "demand.py").write_text(PLUGIN)
    tasks = [
        {"user_id": f"u{number}", "text": "x" * number, "demand": number % 4} for number in range(6)
    ]
    (tmp_path / "shop.jsonl").write_bytes(b"".join(orjson.dumps(task) + b"\n" for task in tasks))
    model = ("--model", "baseline/guess", "--name", "demand", "--no-html")
    harness("run", tmp_path / "demand.py", *model, "--tasks-dir", tmp_path)
    assert "u3" in (listed := harness("show", "demand")) and "n/a" not in listed
    assert "n/a" not in harness("show", "demand", "u3")
    report = (tmp_path / "results/demand/eval_report_shop.txt").read_text()
    assert "Prompt: the benchmark's own" in report
