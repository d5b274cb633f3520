"""`reeval` that is interrupted, and `run --reeval`: `reeval` with the words of a `run`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from harness.analysis import rescoring
from harness.cli import main
from tests.commands.test_commands import run, tasks
from tests.support import SHIPPED
from tests.support.commands import execute
from tests.support.scripted import by_turns, serving

__all__ = ["tasks"]

WORDS = ("run", "--model", "baseline/recency", "--subset", "weibo", *SHIPPED, "--limit", "2")


def test_run_of_these_words_is_scored_again(tmp_path):
    """From the saved answers: of its name, and without a name of its model."""
    where = ("--results-dir", str(tmp_path), "--name", "mine")
    assert main([*WORDS, *where]) == 0
    report, responses = (
        tmp_path / "mine/eval_report_weibo.json",
        tmp_path / "mine/responses_weibo.jsonl",
    )
    replies = responses.read_bytes()
    for named in (where, where[:2]):
        report.unlink()
        assert main([*WORDS, *named, "--reeval"]) == 0
        assert report.exists() and responses.read_bytes() == replies


def test_run_that_is_not_there_is_bad_input(tmp_path, capsys):
    execute(tmp_path, *WORDS, "--reeval", code=2)
    assert "recency" in capsys.readouterr().err and not list(tmp_path.glob("*/responses*"))


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("--reparse",)])
def test_report_made_again_names_those_who_answered(more, tasks, tmp_path):
    """From the saved replies: the same bytes as before the report was deleted. A copy without
    replies has it from the manifest."""
    with serving(by_turns({"model": "a", "system_fingerprint": "f"}, {"model": "b"})) as server:
        assert run(tasks, tmp_path / "out", "--api-url", server.url, "--name", "r", model="a") == 0
    folder = tmp_path / "out/r"
    reports = [folder / f"eval_report_weibo.{kind}" for kind in ("json", "txt")]
    before = [path.read_bytes() for path in reports]
    again = ["reeval", "--results-dir", str(tmp_path / "out"), "--no-html"]
    for path in reports:
        path.unlink()
    assert main([*again, *more]) == 0
    assert [path.read_bytes() for path in reports] == before and b'"answered_by"' in before[0]
    (folder / "responses_weibo.jsonl").unlink()
    assert main(again) == 0
    assert reports[0].read_bytes() == before[0]


@pytest.mark.slow
@pytest.mark.parametrize("last", ["replace_results", "Run.settle", "write_report"])
def test_an_interrupted_reeval_leaves_a_sound_run_that_the_next_one_completes(
    tasks, tmp_path, monkeypatch, last
):
    """Before each of its writes: no hash of other results is left, and a complete run is
    complete."""
    out = tmp_path / "out"
    run(tasks, out)

    def interrupt(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    def manifest() -> dict[str, Any]:
        found: dict[str, Any] = json.loads((out / "recency" / "run_weibo.json").read_bytes())
        return {name: value for name, value in found.items() if name != "times"}

    before = manifest()
    with monkeypatch.context() as patched:
        patched.setattr(f"{rescoring.__name__}.{last}", interrupt)
        execute(out, "reeval", code=130)
    execute(out, "verify")
    execute(out, "reeval")
    assert manifest() == before and main(["verify", "--results-dir", str(out)]) == 0
