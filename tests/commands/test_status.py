"""`status`: the table of runs, in a pipe and on a narrow terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.cli import main
from tests.support import Terminal

NAME = "基线-" + "一个很长的名字" * 8
COLUMNS = ["name", "subset", "model", "state", "users", "done", "percent", "failed", "updated"]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two users, whose name alone is wider than 80 columns."""
    root = tmp_path_factory.mktemp("results")
    words = ["--demo", "--platform", "xiaohongshu", "--ratio", "0.05", "--no-html", "--name", NAME]
    assert main(["run", "--model", "baseline/recency", *words, "--results-dir", str(root)]) == 0
    return root


def test_status_in_a_pipe_has_every_run_on_one_line(
    results: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As wide as it needs: no name, platform or time is broken, so that `grep` and `awk` find them."""
    monkeypatch.setenv("COLUMNS", "40")
    assert main(["status", "--results-dir", str(results)]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == COLUMNS
    assert row.split()[:4] == [NAME, "xiaohongshu", "baseline/recency", "complete"]
    assert row.split()[6] == "100" and row.endswith("Z")  # UTC


def test_status_on_a_narrow_terminal_folds(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There it keeps to the width."""
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout", screen := Terminal())
    assert main(["status", "--results-dir", str(results)]) == 0
    assert len(screen.getvalue().splitlines()) > 2
