"""What `compare` and `stats` conclude of two runs of a plug-in: the paired test decides, in
both."""

from __future__ import annotations

from math import comb
from pathlib import Path

import orjson
import pytest

from tests.support.plugins import Commands

PLUGIN = '''
"""Each user has a list of the values that the baselines have for it, as shares in percent."""

from harness import Benchmark, Metric, Task


def value(place):
    def reply(messages, seed):
        return '{"value": %s}' % messages[-1]["content"].split()[place]
    return reply


class Values(Benchmark):
    name = "values"
    subsets = {"shop": "shop.jsonl"}
    metrics = (Metric("share"), Metric("level", unit="points", bounds=(-100, 100), unranked="neither way is better"))
    baselines = {"first": value(0), "second": value(1), "third": value(2)}

    def parse(self, line, subset):
        return Task(line["user_id"], steps=1, given=line["text"])

    async def play(self, given, chat):
        return {"value": await chat.json(given, read=lambda reply: reply["value"])}

    def measure(self, task, answer):
        share = 0 if answer is None else answer["value"] / 100
        return {"share": share, "level": 100 * share}
'''


class Harness(Commands):
    """Play the plug-in's baselines on users whose values are given."""

    def play(self, *users: tuple[int, ...]) -> None:
        root = self.results.parent
        (root / "values.py").write_text(PLUGIN)
        lines = [
            {"user_id": f"u{number:03}", "text": " ".join(map(str, values))}
            for number, values in enumerate(users)
        ]
        (root / "shop.jsonl").write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
        for name in ("first", "second", "third")[: len(users[0])]:
            words = (
                "run",
                root / "values.py",
                "--model",
                f"baseline/{name}",
                "--tasks-dir",
                root,
                "--no-html",
            )
            self(*words)

    def entries(self, *runs: str) -> dict[str, dict[str, object]]:
        """The entries of a comparison by metric."""
        figures = self.json("compare", *(runs or ("first", "second")), "--json")["pairs"][0][
            "figures"
        ]
        return {figure["metric"]: figure for figure in figures}

    def separable(self, metric: str, run: str) -> bool | None:
        """Whether `stats` shows a run to be worse than the best."""
        found: bool | None = self.json("stats", "--json")[metric][run]["shop"]["separable"]
        return found


@pytest.fixture
def harness(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Harness:
    return Harness(tmp_path / "results", capsys)


def test_the_largest_effect_is_concluded(harness):
    """98.33 against 2.50 on 120 users, nearly all of whom differ by the same: the test decides, the
    interval is shown with its mark, and `stats` says the same."""
    harness.play(*[(100, 0)] * 115, *[(100, 100)] * 3, *[(0, 0)] * 2)
    share = harness.entries()["share"]
    assert (share["a"], share["b"]) == (pytest.approx(118 / 120), pytest.approx(3 / 120))
    assert share["outcome"] == "a_better" and share["approximate"]
    words = " ".join(harness("compare", "first", "second").split())
    assert "first is better than second in share by 95.83 points (95 % ~9" in words
    assert "Nothing can be concluded" not in words
    assert harness.separable("share", "second") is True


def test_equal_differences_of_all_users_are_concluded_without_an_interval(harness):
    """Every user has the same difference: no interval would be honest, and the test has no
    doubt."""
    harness.play(*[(60, 50)] * 30)
    share = harness.entries()["share"]
    assert (share["outcome"], share["ci95_simultaneous"]) == ("a_better", None)
    assert "by 10.00 points (no interval), 60.00 vs 50.00 %, p < 0.001, n 30." in " ".join(
        harness("compare", "first", "second").split()
    )


@pytest.mark.parametrize(
    ("differing", "outcome"), [(5, "too_few"), (6, "a_better"), (7, "a_better")]
)
def test_too_few_is_where_no_p_below_5_percent_is_possible(differing, outcome, harness):
    """Of users that differ alike the smallest p is 2^(1-n), of both metrics, which are one: 0.0625
    of five."""
    harness.play(*[(60, 50)] * differing, *[(50, 50)] * 4)
    share = harness.entries()["share"]
    assert share["p"] == pytest.approx(2.0 ** (1 - differing), rel=0.05)
    assert share["outcome"] == outcome
    assert harness.separable("share", "second") is (outcome == "a_better")


def test_few_users_that_contradict_each_other_show_no_difference(harness):
    """Of ten users that differ seven are for one side: p is that of the binomial distribution."""
    harness.play(*[(60, 50)] * 7, *[(50, 60)] * 3)
    share = harness.entries()["share"]
    assert share["p"] == pytest.approx(2 * sum(comb(10, wins) for wins in range(7, 11)) / 2**10)
    assert share["outcome"] == "no_difference"
    assert harness.separable("share", "second") is False
    assert " 2 =" in harness("stats") and "=: not separable from the best" in harness.out


def test_a_metric_without_a_better_direction_differs(harness):
    """It is said which is higher, and not that one is better."""
    harness.play(*[(60, 50)] * 30)
    level = harness.entries()["level"]
    assert level["outcome"] == "differs"
    words = " ".join(harness("compare", "first", "second").split())
    assert (
        "first minus second is +10.000 points (no interval)" in words
        and "in level, where neither way is better" in words
        and "better than second in level" not in words
    )


def test_stats_adjusts_for_the_runs_that_are_compared_with_the_best(harness):
    """Six users make p = 0.03 against one run, and not against two that differ from the best by
    other users."""
    six = [(60, 50, 60), (60, 51, 60), (60, 52, 60), (60, 53, 60), (60, 54, 60), (60, 55, 60)]
    others = [(60, 60, 50), (60, 60, 51), (60, 60, 52), (60, 60, 53), (60, 60, 54), (60, 60, 55)]
    harness.play(*six, *others)
    assert (
        harness.json("stats", "--json", "first", "second")["share"]["second"]["shop"]["separable"]
        is True
    )
    assert harness.separable("share", "second") is False
    assert harness.separable("share", "third") is False
