"""`status`: the table of runs, in a pipe and on a narrow terminal."""

from __future__ import annotations

from pathlib import Path
from shutil import copytree

import orjson
import pytest
from rich.cells import cell_len
from rich.text import Text

from harness.store.log import objects
from tests.support import DATA, Terminal
from tests.support.commands import execute

NAME = "基线-" + "一个很长的名字" * 8
USAGE = ["requests", "prompt", "completion"]
COLUMNS = [
    "name",
    "subset",
    "model",
    "state",
    "users",
    "done",
    "percent",
    "failed",
    *USAGE,
    "updated",
]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two users, whose name alone is wider than 80 columns."""
    root = tmp_path_factory.mktemp("results")
    words = ["--demo", "--platform", "xiaohongshu", "--ratio", "0.05", "--no-html", "--name", NAME]
    execute(root, "run", "--model", "baseline/recency", *words)
    return root


def test_status_in_a_pipe_has_every_run_on_one_line(results, capsys, monkeypatch):
    """As wide as it needs: no name, platform or time is broken, so that `grep` and `awk` find
    them."""
    monkeypatch.setenv("COLUMNS", "40")
    execute(results, "status")
    head, _, row = capsys.readouterr().out.splitlines()
    assert head.split() == COLUMNS
    assert row.split()[:4] == [NAME, "xiaohongshu", "baseline/recency", "complete"]
    assert row.split()[6] == "100" and row.endswith("Z")  # UTC


@pytest.mark.parametrize("width", [40, 80, 100, 120])
def test_status_on_a_narrow_terminal_breaks_no_number_and_names_the_columns_that_it_leaves_out(
    results, capsys, monkeypatch, width
):
    """It keeps to the width: columns that do not fit follow below, and a long name takes several
    lines."""
    for name, value in {"COLUMNS": str(width), "TERM": "xterm", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout", screen := Terminal())
    execute(results, "status")
    *lines, note = Text.from_ansi(screen.getvalue()).plain.splitlines()
    assert max(map(cell_len, lines)) <= width
    words = {word for line in lines for word in line.split()}
    assert words >= {
        "name",
        "subset",
        "state",
        "users",
        "done",
        "failed",
        "xiaohongshu",
        "complete",
    }
    assert NAME in "".join(
        line[: width // 2].split()[0] for line in lines if "一" in line or "名字" in line
    )
    assert all(name in words or name in note for name in COLUMNS)


def test_status_suggests_the_subset_that_was_meant(results, capsys):
    """A name that no benchmark and no run has is not a table of nothing."""
    execute(results, "status", "--subset", "weibos", code=2)
    assert "no subset 'weibos': did you mean weibo?" in capsys.readouterr().err


EARLIER = DATA / "folder-0.1.0" / "results"
COUNTS = ("requests", "prompt_tokens", "completion_tokens", "requests_without_usage")


def usage(results: Path, name: str, capsys: pytest.CaptureFixture[str]) -> list[int | None]:
    execute(results, "status", "--json", "--name", name)
    (row,) = orjson.loads(capsys.readouterr().out)
    return [row[count] for count in COUNTS]


def test_status_of_a_complete_run_has_the_usage_of_its_report(
    capsys,
):
    """Requests and tokens are those that the report counted."""
    report = orjson.loads((EARLIER / "whole" / "eval_report_weibo.json").read_bytes())["usage"]
    names = "requests", "prompt_tokens", "completion_tokens", "untold"
    assert usage(EARLIER, "whole", capsys) == [report[name] for name in names]


@pytest.mark.parametrize("name", ["killed", "failed"])
def test_status_of_an_unfinished_run_counts_every_saved_reply(name, capsys):
    """Replies of users that are not done, or that failed, count too."""
    saved = [data["completion"] for _, data in objects(EARLIER / name / "responses_weibo.jsonl")]
    tokens = [sum(of[key] or 0 for of in saved) for key in ("prompt_tokens", "completion_tokens")]
    done = {
        data["user_id"] for _, data in objects(EARLIER / name / "inference_results_weibo.jsonl")
    }
    assert any(
        data["user_id"] not in done for _, data in objects(EARLIER / name / "responses_weibo.jsonl")
    )
    assert usage(EARLIER, name, capsys) == [len(saved), *tokens, 0]


def test_status_of_a_complete_run_without_its_report_has_no_usage(tmp_path, capsys):
    """What is unknown is blank, and not 0."""
    copytree(EARLIER / "whole", tmp_path / "whole")
    (tmp_path / "whole" / "eval_report_weibo.json").unlink()
    assert usage(tmp_path, "whole", capsys) == [None, None, None, None]
