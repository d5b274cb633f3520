"""The benchmark that docs/benchmarks.md builds: it keeps its contract after each block, and runs as
written."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from harness.benchmarks import registry
from harness.cli import main
from tests.support import ROOT

PAGE = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
(REPLIES,) = re.findall(r"^echo '(.*)' > replies\.jsonl$", PAGE, re.MULTILINE)
(TASKS,) = re.findall(r"book_ratings\.jsonl <<'END'\n(.*?)END\n", PAGE, re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the tasks and the replies of the page."""
    (tmp_path / "book_ratings.jsonl").write_text(TASKS, encoding="utf-8")
    (tmp_path / "replies.jsonl").write_text(REPLIES, encoding="utf-8")
    return tmp_path


def written(folder: Path, blocks: int) -> str:
    file = folder / "next_stars.py"
    file.write_text("\n\n".join(BLOCKS[:blocks]), encoding="utf-8")
    return str(file)


@pytest.mark.parametrize("blocks", range(1, len(BLOCKS) + 1))
def test_benchmark_keeps_the_contract_after_each_block(folder, blocks):
    """`check-benchmark` finds nothing, with replies that make valid answers."""
    words = ["--tasks-dir", str(folder), "--replies", str(folder / "replies.jsonl")]
    assert main(["check-benchmark", written(folder, blocks), *words]) == 0


def test_whole_benchmark_runs_and_verifies(folder, capsys):
    """With its baseline, its setting and its synthetic tasks."""
    file, results = written(folder, len(BLOCKS)), ["--results-dir", str(folder / "r")]
    assert main(["synth", file, "--users", "20", "--out", str(folder / "s")]) == 0
    words = [
        "--tasks-dir",
        str(folder / "s"),
        "--model",
        "baseline/four-stars",
        "--name",
        "four-stars",
        "--review-length",
        "9",
    ]
    assert main(["run", file, *words, *results]) == 0
    assert main(["verify", *results]) == 0
    assert "RMSE" in (folder / "r" / "four-stars" / "eval_report_books.txt").read_text(
        encoding="utf-8"
    )
    capsys.readouterr()


def test_page_lists_every_check():
    from harness.commands.check.checking import CHECKS

    table = PAGE.partition("| check | promise |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `([a-z ]+)` \|", table, re.MULTILINE) == list(CHECKS)


def test_package_of_the_page_names_the_class_of_the_page(folder):
    (project,) = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    [(name, value)] = tomllib.loads(project)["project"]["entry-points"][registry.GROUP].items()
    assert (name, value) == ("next_stars", "next_stars:NextStars")
    assert registry.find(written(folder, 1)).__name__ == "NextStars"
