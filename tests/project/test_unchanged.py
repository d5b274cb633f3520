"""Whole runs of the benchmarks that ship give the results of version 0.1.0, and the kept reports
and tables."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from harness.scoring.intervals import FEWEST
from tests.support import before
from tests.support.sameness import differences

Contents = dict[str, bytes]


@pytest.fixture(scope="module")
def golden() -> Contents:
    return before.kept()


@pytest.fixture(scope="module")
def today(tmp_path_factory: pytest.TempPathFactory) -> Contents:
    """The same files, made by the code as it is."""
    return before.made(tmp_path_factory.mktemp("today"))


def changed(golden: Contents, today: Contents, kind: str, suffix: str = "") -> list[str]:
    """Differences in all files of a kind. Raises where there is none: the comparison would be of
    nothing."""
    names = [name for name in golden if kind in name and name.endswith(suffix)]
    assert names
    return [
        f"{name}: {difference}"
        for name in names
        for difference in (
            differences(name, golden[name], today[name]) if name in today else ["not made"]
        )
    ]


@pytest.mark.slow
def test_results_have_the_same_bytes(golden, today):
    """Every user's record, and the lists that DailyMobility's scores compare, byte for byte."""
    assert changed(golden, today, "inference_results") == []
    assert changed(golden, today, "generated") == []


@pytest.mark.slow
def test_reports_have_the_same_values(golden, today):
    """Every number of the JSON reports is there, at its path."""
    assert changed(golden, today, "eval_report", ".json") == []


@pytest.mark.slow
def test_failures_are_of_the_same_users(golden, today):
    """The users that the endpoint refuses, with boundary and kind."""
    assert changed(golden, today, "failures") == []


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".csv", ".md", ".tex", ".txt", "stats.json", ".xlsx.json"])
def test_tables_of_runs_have_the_same_figures(golden, today, suffix):
    """`stats` in each of its formats, with ranks and marks. The note on `~` comes with intervals
    alone."""
    note = f"no sentence has the number {FEWEST} any more"
    assert [
        difference
        for difference in changed(golden, today, "stats", suffix)
        if not difference.endswith(note)
    ] == []


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".json", ".txt", ".xlsx.json"])
def test_comparisons_have_the_same_figures(golden, today, suffix):
    """`compare` of two and of three runs, on one platform and on five: differences, intervals,
    corrected p-values."""
    assert changed(golden, today, "compare", suffix) == []


@pytest.mark.slow
def test_commands_end_with_the_same_exit_codes(golden, today):
    """0 for complete runs, 1 for runs with failed users."""
    assert orjson.loads(today["exit_codes.json"]) == orjson.loads(golden["exit_codes.json"])


# The comparison itself


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ({"a": 0.5}, {"a": 0.5, "b": 1}, []),
        ({"a": 0.5}, {"a": 0.5 + 1e-15}, []),
        ({"a": 0.5}, {"a": 0.5000001}, ["a: 0.5 is now 0.5000001"]),
        ({"a": 3}, {"a": None}, ["a: 3 is now None"]),
        ({"a": True}, {"a": 1}, ["a: True is now 1"]),
        ({"a": {"b": 3}}, {}, ["a/b: 3 is missing"]),
        ({"a": "yes", "n": None}, {}, []),
        ({"a": "yes"}, {"a": "no"}, ["a: 'yes' is now 'no'"]),
        ({"a": [1, 2]}, {"a": [1, 2, 3]}, ["a/length: 2 is now 3"]),
        ({"a": ["38 of 40 users"]}, {"a": ["users: 38 (all: 40)", "more"]}, []),
        (
            {"a": ["38 of 40 users"]},
            {"a": ["37 of 40 users"]},
            ["a: '38 of 40 users' is now '37 of 40 users'"],
        ),
        ({"moved": {"x": {"n": 1}}}, {"to": {"x": {"here": 1}}}, []),
        ({"moved": {"x": {"n": 1}}}, {"to": {"x": {"here": 2}}}, ["moved/x/n: 1 is now 2"]),
        ({"format": 1}, {"format": 2}, []),
    ],
)
def test_documents_differ_by_their_values(old, new, found):
    """A number may neither change nor vanish; what is new, and words, may be anything."""
    renamed = {"moved/*/n": "to/*/here"}
    assert differences("a.json", orjson.dumps(old), orjson.dumps(new), renamed) == found


@pytest.mark.parametrize(
    ("name", "old", "new", "same"),
    [
        ("a.txt", "Recall   50.88  40", "recall   95 %  50.88  40", True),
        ("a.txt", "Recall   50.88  40", "Recall   40  50.88", False),
        ("a.txt", "In 38 of 40 cases (step 1).", "Of 40 in all: 38.", True),
        ("a.txt", "In 38 of 40 cases.", "In 39 of 40 cases.", False),
        ("a.md", "| a | **1.50** |", "| b | **1.50** |", True),
        ("a.md", "| a | **1.50** |", "| a | <ins>1.50</ins> |", False),
        ("a.md", "| a | 1.50\\* |", "| a | 1.50 |", False),
        ("a.tex", r"a & \textbf{1.50} \\", r"a & 1.50 \\", False),
        ("a.jsonl", '{"a":1}\n', '{"a":1}', False),
        (
            "a.csv",
            "benchmark,metric,run,platform,percent\na,b,c,d,1\n",
            "platform,run,metric,benchmark,percent\n",
            False,
        ),
    ],
)
def test_texts_differ_by_their_numbers(name, old, new, same):
    """Wording and order of sentences may change; numbers of tables, their order and marks may
    not."""
    assert (differences(name, old.encode(), new.encode()) == []) is same


def test_kept_files_are_small(golden):
    """All of them take less than 1.5 MB of the repository."""
    assert (
        golden
        and sum(path.stat().st_size for path in Path(before.KEPT).rglob("*.*") if path.is_file())
        < 1_500_000
    )
