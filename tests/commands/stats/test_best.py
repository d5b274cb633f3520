"""What is marked best in a column, by a plug-in that draws its chance level, from the command
line."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from tests.support.plugins import Commands

PLUGIN = '''
"""Each user has the values that the baselines have for it, in percent; the chance level is drawn."""

from harness import Benchmark, Means, Metric, Task


def value(place):
    def reply(messages, seed):
        return '{"value": %s}' % messages[-1]["content"].split()[place]
    return reply


class Drawn(Means):
    headline = ("share",)

    def chance(self, scored):
        return {"share": (0.30, CHANCE_ERROR)}


class Values(Benchmark):
    name = "values"
    subsets = {"shop": "shop.jsonl"}
    metrics = (Metric("share"), Metric("errors", better="lower"))
    baselines = {"first": value(0), "second": value(1)}
    scoring = Drawn()

    def parse(self, line, subset):
        return Task(line["user_id"], steps=1, given=line["text"])

    async def play(self, given, chat):
        return {"value": await chat.json(given, read=lambda reply: reply["value"])}

    def measure(self, task, answer):
        share = 0 if answer is None else answer["value"] / 100
        return {"share": share, "errors": share / 2}
'''


def played(root: Path, capsys: pytest.CaptureFixture[str], error: float, *values: int) -> Commands:
    """Runs of fifty users, whose shares are about so many percent each."""
    (root / "values.py").write_text(PLUGIN.replace("CHANCE_ERROR", str(error)))
    texts = [" ".join(str(value + number % 5 - 2) for value in values) for number in range(50)]
    lines = [{"user_id": f"u{number:02}", "text": text} for number, text in enumerate(texts)]
    (root / "shop.jsonl").write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    harness = Commands(root / "results", capsys)
    for name in ("first", "second"):
        harness(
            "run",
            root / "values.py",
            "--model",
            f"baseline/{name}",
            "--tasks-dir",
            root,
            "--no-html",
        )
    return harness


def places(harness: Commands, metric: str) -> list[str | None]:
    figures = harness.json("stats", "--json")[metric]
    return [figures[run]["shop"]["place"] for run in ("first", "second")]


def test_no_other_value_is_best_where_the_best_has_no_place(tmp_path, capsys):
    """The run with the fewest errors is not better than chance in its share: the other's, which are
    worse, are second best, and the note does not contradict the table."""
    harness = played(tmp_path, capsys, 0.001, 20, 60)
    assert places(harness, "share") == [None, "best"]
    assert places(harness, "errors") == [None, "second"]
    assert "first (share)" in harness("stats")


def test_a_drawn_chance_level_is_shown_with_its_error_and_decides_only_beyond_two_of_them(
    tmp_path, capsys
):
    """40.00 is beyond 30 by more than two errors of 4, and not by two of 6, though its interval
    is."""
    harness = played(tmp_path, capsys, 0.04, 40, 20)
    assert places(harness, "share") == ["best", None]
    assert "30.00 ± 4.00" in harness("stats") and "30.00 ± 4.00" in harness.text(
        "first", "eval_report_shop.txt"
    )
    assert harness.report("first", "shop")["chance_error"] == {"share": 0.04}
    (tmp_path / "other").mkdir()
    other = played(tmp_path / "other", capsys, 0.06, 40, 20)
    assert places(other, "share") == [None, None]
