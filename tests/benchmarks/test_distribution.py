"""The distribution of a metric over users, in the report of a plug-in."""

from __future__ import annotations

import re

import orjson

from tests.support.plugins import Commands

PLUGIN = '''
"""Each user's change is that of two shares in tenths, from the first to the second."""

from harness import Benchmark, Metric, Task


def tenths(messages, seed):
    return '{"tenths": %s}' % messages[-1]["content"]


class Changes(Benchmark):
    name = "changes"
    subsets = {"shop": "shop.jsonl"}
    metrics = (Metric("change", unit="of 1", bounds=(-1, 1)),)
    baselines = {"tenths": tenths}

    def parse(self, line, subset):
        return Task(line["user_id"], steps=1, given=line["text"])

    async def play(self, given, chat):
        return {"tenths": await chat.json(given, read=lambda reply: reply["tenths"])}

    def measure(self, task, answer):
        return {"change": 0 if answer is None else answer["tenths"] / 10 - 1}
'''


def test_a_value_on_the_edge_of_two_bins_is_in_the_upper_one(tmp_path, capsys):
    """Of twenty from -1 to 1: tenths are edges, also where floats miss them, as 0.1 - 1 does."""
    (tmp_path / "changes.py").write_text(PLUGIN)
    lines = [{"user_id": f"u{number:02}", "text": str(number)} for number in range(21)]
    (tmp_path / "shop.jsonl").write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    harness = Commands(tmp_path / "results", capsys)
    words = ("--model", "baseline/tenths", "--tasks-dir", tmp_path, "--no-html")
    harness("run", tmp_path / "changes.py", *words)
    assert harness.report("tenths", "shop")["distribution"] == {"change": [*[1] * 19, 2]}


def test_a_share_below_0_reads_the_same_in_every_place(tmp_path, capsys):
    """The table of a report, its headline and `stats`: in percent, without a plus."""
    (tmp_path / "changes.py").write_text(PLUGIN.replace('unit="of 1", ', ""))
    lines = [{"user_id": f"u{number:02}", "text": "19"} for number in range(12)]
    (tmp_path / "shop.jsonl").write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    harness = Commands(tmp_path / "results", capsys)
    said = harness(
        "run",
        tmp_path / "changes.py",
        "--model",
        "baseline/tenths",
        "--tasks-dir",
        tmp_path,
        "--no-html",
    )
    assert "change 90.00%" in said
    assert re.search(r"change +% +90\.00 ", harness.text("tenths", "eval_report_shop.txt"))
    assert re.search(r"tenths +90\.00", harness("stats"))
