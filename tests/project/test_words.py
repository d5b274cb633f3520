"""What one benchmark calls its own stays in `harness/benchmarks/`, and in its sample tasks: the
rest names none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import ROOT

PACKAGE = ROOT / "harness"
WORDS = re.compile(
    r"streamprofile|mobility|asbench|weibo|xiaohongshu|toutiao|zhihu|douban|beijing|persona|(?-i:\bJSD|\bRecall\b|\bF1\b)"
    "|画像|居民|北京",
    re.IGNORECASE,
)
"""Benchmarks, subsets, metrics, and what tasks are about."""

ALLOWED = {
    "defaults.py": 'BENCHMARK = "streamprofile"',  # what `run` plays where none is named
    "options/providers.toml": "ark.cn-beijing.volces.com",  # the data centre of a provider
}
"""The only lines with such a word, by file."""

DATA = ("agents/", "benchmarks/", "sample/")
"""What belongs to benchmarks: their code, agents written for one, and synthetic tasks."""


def named(root: Path) -> Iterator[str]:
    """Lines outside of `benchmarks/` that have one of the words, as `file:line: ...`."""
    for file in sorted(root.rglob("*")):
        path = file.relative_to(root).as_posix()
        if not file.is_file() or path.startswith(DATA) or "__pycache__" in path:
            continue
        allowed = ALLOWED.get(path)
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            if WORDS.search(f"{path} {line}" if number == 1 else line) and not (
                allowed and allowed in line
            ):
                yield f"{path}:{number}: {line.strip()}"


def test_nothing_outside_of_benchmarks_names_one():
    assert list(named(PACKAGE)) == []


@pytest.mark.parametrize("path", ALLOWED)
def test_every_exception_is_needed(path):
    (line,) = (
        line
        for line in (PACKAGE / path).read_text(encoding="utf-8").splitlines()
        if ALLOWED[path] in line
    )
    assert WORDS.search(line)


@pytest.mark.parametrize(
    "line",
    [
        "import harness.benchmarks.streamprofile",
        "# as Weibo has it",
        "persona_summary",
        'if name == "F1":',
    ],
)
def test_a_word_is_found_wherever_it_is(tmp_path, line):
    """In code, comments and strings; not in the folder of benchmarks."""
    for folder in ("engine", "benchmarks"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "module.py").write_text(f'"""A module."""\n{line}\n', encoding="utf-8")
    (tmp_path / "defaults.py").write_text('BENCHMARK = "streamprofile"\n', encoding="utf-8")
    assert list(named(tmp_path)) == [f"engine/module.py:2: {line}"]
