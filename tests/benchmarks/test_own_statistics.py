"""A plug-in with `statistics` of its own, from outside: every user counts, and its figures have
intervals."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import orjson
import pytest

from tests.support.plugins import Commands

USERS = 60
PLUGIN = '''
"""Demand of users, forecast in one request; the true demand of every other user is 0."""

import numpy as np

from harness import Benchmark, Metric, Scoring, Task


def guess(messages, seed):
    return '{"demand": %d}' % (len(messages[-1]["content"]) % 5)


def three(messages, seed):
    return '{"demand": %d}' % (len(messages[-1]["content"]) % 3)


class Forecasts(Scoring):
    def statistics(self, records):
        pairs = [(record["metrics"]["true"], record["metrics"]["given"]) for record in records]
        return [[abs(x - y), 1, x, y, x * x, y * y, x * y] for x, y in pairs]

    def figures(self, totals):
        error, n, x, y, xx, yy, xy = totals.T
        r = (n * xy - x * y) / np.sqrt((n * xx - x * x) * (n * yy - y * y))
        return np.column_stack([error / x, r])


class Demand(Benchmark):
    name = "demand"
    subsets = {"shop": "shop.jsonl"}
    metrics = (Metric("WAPE", better="lower", bounds=(0, None)), Metric("r", bounds=(-1, 1)))
    baselines = {"guess": guess, "three": three}
    scoring = Forecasts()

    def parse(self, line, subset):
        return Task(line["user_id"], steps=1, given=line["text"], truth=line["demand"])

    async def play(self, given, chat):
        return {"demand": await chat.json(given, read=lambda reply: reply["demand"])}

    def measure(self, task, answer):
        return {"true": task.truth, "given": 0 if answer is None else answer["demand"]}
'''


@pytest.fixture
def harness(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Commands:
    (tmp_path / "demand.py").write_text(PLUGIN)
    lines = [
        {
            "user_id": f"u{number:02}",
            "demand": number % 2 * (1 + number % 7),
            "text": "x" * (number * number % 31 + 1),
        }
        for number in range(USERS)
    ]
    (tmp_path / "shop.jsonl").write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    found = Commands(tmp_path / "results", capsys)
    for model in ("guess", "three"):
        found(
            "run",
            tmp_path / "demand.py",
            "--model",
            f"baseline/{model}",
            "--tasks-dir",
            tmp_path,
            "--no-html",
        )
    return found


def test_every_user_counts_where_a_figure_of_one_user_is_undefined(harness):
    """A ratio whose denominator is 0 for half of the users, and a correlation, in the report,
    `compare` and `stats`."""
    report = harness.report("guess", "shop")["metrics"]
    table = harness.json("stats", "--json")
    entries = harness.json("compare", "guess", "three", "--json")["pairs"][0]["figures"]
    for entry in entries:
        name = entry["metric"]
        low, high = report[name]["ci95"]
        assert low < report[name]["value"] < high and report[name]["users"] == USERS
        assert table[name]["guess"]["shop"]["ci95"] == [low, high]
        assert entry["users"] == USERS and entry["ci95"][0] < entry["difference"] < entry["ci95"][1]
        assert entry["outcome"] not in ("too_few", "undefined")
    assert {entry["metric"] for entry in entries} == set(report) == {"WAPE", "r"}


@pytest.mark.slow
def test_p_of_a_ratio_is_that_of_a_studentised_permutation(tmp_path, capsys):
    """Twelve users, all swaps, the jackknife's error of each: written out in loops."""
    (tmp_path / "demand.py").write_text(PLUGIN.replace("% 3)", "% 3 * 9)"))
    true = [user % 4 * (1 + user % 7) for user in range(12)]
    lines = [
        {"user_id": f"u{user:02}", "demand": true[user], "text": "x" * (user * user % 31 + 1)}
        for user in range(12)
    ]
    (tmp_path / "shop.jsonl").write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    harness = Commands(tmp_path / "results", capsys)
    for model in ("guess", "three"):
        harness(
            "run",
            tmp_path / "demand.py",
            "--model",
            f"baseline/{model}",
            "--tasks-dir",
            tmp_path,
            "--no-html",
        )
    figures = harness.json("compare", "guess", "three", "--json")["pairs"][0]["figures"]
    entry = next(figure for figure in figures if figure["metric"] == "WAPE")
    lengths = [len(line["text"]) for line in lines]
    errors = [
        (abs(true[user] - length % 5), abs(true[user] - length % 3 * 9))
        for user, length in enumerate(lengths)
    ]

    def statistic(swapped: tuple[int, ...]) -> float:
        sides = [(errors[user][one], errors[user][1 - one]) for user, one in enumerate(swapped)]
        without = [
            difference(sides[:user] + sides[user + 1 :], true[:user] + true[user + 1 :])
            for user in range(12)
        ]
        mean = sum(without) / 12
        return (
            difference(sides, true) / (sum((one - mean) ** 2 for one in without) * 11 / 12) ** 0.5
        )

    def difference(sides: list[tuple[int, int]], demand: list[int]) -> float:
        return (sum(a for a, _ in sides) - sum(b for _, b in sides)) / sum(demand)

    real = abs(statistic((0,) * 12))
    every = [abs(statistic(swapped)) for swapped in product((0, 1), repeat=12)]
    assert entry["p"] == pytest.approx(sum(one >= real - 1e-9 for one in every) / 4096)
