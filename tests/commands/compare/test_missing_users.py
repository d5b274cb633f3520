"""Users that only one of two runs has: bounds, failures at the worst value, and a verdict with
them."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import orjson
import pytest

from harness.benchmark import Benchmark, Metric
from harness.scoring.bootstrap import Array
from harness.scoring.compared import Figures
from harness.scoring.missing import Absent, IncompleteStratum, sensitivity
from harness.scoring.paired import Pair
from harness.store.log import decode_line, encode_line
from tests.commands.compare.test_compare import call, edit, entry, nothing, results, told
from tests.commands.conftest import PLATFORMS


class Steps(Benchmark):
    name = "steps"
    metrics = (Metric("share"), Metric("delay", better="lower", unit="s", bounds=(0, None)))


FIGURES = Figures(Steps())
SHARE, DELAY = Steps.metrics


def rows(*values: float) -> Array:
    """Contributions of users with the same value of both metrics."""
    return np.array([[value, value, 1.0, 1.0] for value in values]).reshape(-1, 4)


def absent(*values: float, failed: int = 0) -> Absent:
    return Absent(rows(*values), np.arange(len(values)) < failed)


def test_bounds_are_the_means_with_the_worst_and_the_best_values_of_missing_users():
    """Two users that both have, one of B alone, two of A alone: written out, and over two platforms
    their mean."""
    one = IncompleteStratum(Pair(rows(0.5, 0.75), rows(0.25, 0.5)), absent(0.5), absent(0.25, 1.0))
    a, b = 0.5 + 0.75 + 0.25 + 1.0, 0.25 + 0.5 + 0.5
    low, high = (a + 0 - b - 2) / 5, (a + 1 - b - 0) / 5
    found = sensitivity([one], FIGURES, SHARE)
    assert found is not None and (found["a"], found["b"]) == (1, 2)
    assert found["bounds"] == pytest.approx([low, high])
    other = IncompleteStratum(Pair(rows(0.5), rows(0.5)), absent(), absent())
    both = sensitivity([one, other], FIGURES, SHARE)
    assert both is not None and both["bounds"] == pytest.approx([low / 2, high / 2])


def test_failures_take_the_worst_value_of_the_metric():
    """One of A's two missing users failed: 0 of a share, and unknown where the worst value has no
    bound."""
    one = IncompleteStratum(
        Pair(rows(0.5, 0.75), rows(0.25, 0.5)), absent(0.5, 0.25, failed=1), absent()
    )
    found, unbounded = (sensitivity([one], FIGURES, metric) for metric in (SHARE, DELAY))
    assert found is not None and found["failed"]["a"] == 1
    assert found["failed"]["difference"] == pytest.approx((0.5 + 0.75 - 0.25 - 0.5 - 0.5) / 3)
    assert unbounded is not None and unbounded["failed"]["difference"] is None
    assert unbounded["bounds"] == [pytest.approx((0.5 + 0.75 - 1.5) / 4), None]


def worst(root: Path, run: str, other: str, platform: str, number: int) -> set[str]:
    """The users on whom a run does worst in Recall, compared with another."""

    def recall(name: str) -> dict[str, float]:
        found = {}
        for line in results(root, name, platform).read_bytes().splitlines():
            record = decode_line(line)
            values = [step["metrics"]["Recall"] for step in record["steps"] if step["metrics"]]
            found[record["user_id"]] = sum(values) / len(values) if values else 0.0
        return found

    a, b = recall(run), recall(other)
    return set(sorted(a, key=lambda user: a[user] - b[user])[:number])


def leave_out(root: Path, run: str, platform: str, users: set[str]) -> None:
    path = results(root, run, platform)
    kept = [
        line
        for line in path.read_bytes().splitlines(keepends=True)
        if decode_line(line.strip())["user_id"] not in users
    ]
    path.write_bytes(b"".join(kept))


def test_a_run_without_its_worst_users_is_not_simply_better(own, capsys):
    """Two seeds of the same model differ once one lacks the 4 of 40 worst users of each platform;
    the verdict says what these could change."""
    whole = entry(told(own, capsys, "random-2", "random-1")["pairs"][0], "Recall")
    assert whole["outcome"] == "no_difference"
    for platform in PLATFORMS:
        leave_out(own, "random-2", platform, worst(own, "random-2", "random-1", platform, 4))
    pair = told(own, capsys, "random-2", "random-1")["pairs"][0]
    recall = entry(pair, "Recall")
    assert recall["outcome"] == "a_better" and recall["missing"]["a"] == 8
    assert recall["missing_users"] in ("could_reverse", "could_undo")
    sentence = next(words for words in pair["verdicts"] if " in Recall " in words)
    assert (
        not sentence.startswith("random-2 is better")
        and "8 users missing from random-2 could" in sentence
    )


def test_the_truth_lies_within_the_bounds(own, capsys):
    """The difference over all users, once it is known, is between those of the incomplete run."""
    whole = entry(told(own, capsys, "random-1", "random-2")["pairs"][0], "Recall")
    assert whole["missing"] is None and whole["missing_users"] is None
    for platform in PLATFORMS:
        chosen = [
            (a, worst(own, a, b, platform, 4))
            for a, b in (("random-1", "random-2"), ("random-2", "random-1"))
        ]
        for run, users in chosen:
            leave_out(own, run, platform, users)
    low, high = entry(told(own, capsys, "random-1", "random-2")["pairs"][0], "Recall")["missing"][
        "bounds"
    ]
    assert low < whole["difference"] < high


def test_users_outside_of_a_runs_share_are_not_missing(own, capsys):
    """A complete run on a share lacks nobody; what it did not select is left out at random."""
    edit(results(own, "random-1"), nothing, slice(8))
    path = own / "results/random-1/run_weibo.json"
    manifest = orjson.loads(path.read_bytes())
    manifest["counts"]["users"] = 8
    path.write_bytes(orjson.dumps(manifest))
    pair = told(own, capsys, "recency", "random-1", "--platform", "weibo")["pairs"][0]
    assert pair["coverage"][0]["only_a"]["users"] == 40
    assert entry(pair, "Recall", "weibo")["missing"] is None


def test_failed_users_are_counted_as_the_worst_value(own, capsys):
    """A failure of A has a Recall of 0; the figure of the pair itself stays without it."""
    first, *rest = results(own, "random-1").read_bytes().splitlines(keepends=True)
    results(own, "random-1").write_bytes(b"".join(rest))
    record = decode_line(first.strip())
    failure = {
        "user_id": record["user_id"],
        "task": record["task"],
        "boundary": "endpoint",
        "kind": "http",
    }
    (own / "results/random-1/failures_weibo.jsonl").write_bytes(encode_line(failure))
    pair = told(own, capsys, "random-1", "recency", "--platform", "weibo")["pairs"][0]
    recall = entry(pair, "Recall", "weibo")
    failed = recall["missing"]["failed"]
    assert (failed["a"], failed["b"]) == (1, 0)
    assert failed["difference"] == pytest.approx(recall["missing"]["bounds"][0])
    assert "With failed users (1 of random-1) at the worst value" in " ".join(pair["verdicts"])


@pytest.mark.slow
def test_a_figure_that_is_no_mean_has_no_bounds_and_says_so(lived, tmp_path, capsys):
    """Divergences: residents are missing, and what they could change is not known."""
    root = Path(shutil.copytree(lived, tmp_path / "own"))
    edit(root / "results/commuter/inference_results_beijing.jsonl", nothing, slice(4, None))
    pair = told(root, capsys, "commuter", "day-1")["pairs"][0]
    score = entry(pair, "Score", "beijing")
    assert score["missing_users"] == "unknown" and score["missing"]["bounds"] is None
    assert pair["verdicts"][0].startswith("On the 44 users that both have, commuter is better")
    assert "is not known: Score is not a mean over users" in pair["verdicts"][0]
    assert call(root, "commuter", "day-1") == 0
