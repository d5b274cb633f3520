"""`run --reeval`: `reeval` with the words of a `run`."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.cli import main

WORDS = ("run", "--model", "baseline/recency", "--subset", "weibo", "--demo", "--limit", "2")


def test_run_of_these_words_is_scored_again(tmp_path: Path) -> None:
    """From the saved answers: of its name, and without a name of its model."""
    where = ("--results-dir", str(tmp_path), "--name", "mine")
    assert main([*WORDS, *where]) == 0
    report, responses = tmp_path / "mine/eval_report_weibo.json", tmp_path / "mine/responses_weibo.jsonl"
    replies = responses.read_bytes()
    for named in (where, where[:2]):
        report.unlink()
        assert main([*WORDS, *named, "--reeval"]) == 0
        assert report.exists() and responses.read_bytes() == replies


def test_run_that_is_not_there_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS, "--results-dir", str(tmp_path), "--reeval"]) == 2
    assert "recency" in capsys.readouterr().err and not list(tmp_path.glob("*/responses*"))
