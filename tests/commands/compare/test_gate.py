"""`compare --not-worse-than`: an exit code that a pipeline can act on."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from harness.cli import main
from tests.support import SHIPPED

SUBSETS = ("--subset", "weibo", "--subset", "douban", "--subset", "zhihu")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two baselines on 120 users, and one of them on five; the other's F1^NS is better by
    3.6 points."""
    folder = tmp_path_factory.mktemp("results")
    where = (*SHIPPED, "--no-html", "--results-dir", str(folder))
    for model in ("recency", "random"):
        assert main(["run", "--model", f"baseline/{model}", *SUBSETS, *where]) == 0
        few = ("--subset", "weibo", "--limit", "5", "--name", f"few-{model}")
        assert main(["run", "--model", f"baseline/{model}", *few, *where]) == 0
    return folder


@pytest.mark.parametrize(
    ("runs", "points", "code", "said"),
    [
        (("random", "recency"), "0", 0, "random is not worse than recency"),
        (("recency", "random"), "40", 0, "recency is not worse than random"),
        (("recency", "random"), "0", 7, "recency is worse than random"),
        (("recency", "random"), "2", 8, "These users cannot say"),
        (("few-recency", "few-random"), "2", 8, "These users cannot say"),
        (("random", "few-random"), "0", 8, "These users cannot say"),
    ],
)
def test_exit_code_says_whether_a_run_is_worse(
    runs,
    points,
    code,
    said,
    results,
    capsys,
):
    """By one-sided 95 % bounds; between them, and with too few users, nothing is claimed."""
    words = ("--subset", "weibo") if "few-random" in runs and "random" in runs else ()
    assert (
        main(["compare", *runs, *words, "--not-worse-than", points, "--results-dir", str(results)])
        == code
    )
    assert said in capsys.readouterr().err


def test_json_has_the_bounds_of_the_gate(results, capsys):
    """And what decided, in the metric's own unit; without the option there is no such key."""
    words = ["compare", "recency", "random", "--json", "--results-dir", str(results)]
    assert main([*words, "--not-worse-than", "2"]) == 8
    [pair] = orjson.loads(capsys.readouterr().out)["pairs"]
    gate = pair["non_inferiority"]
    assert (gate["metric"], gate["answer"], gate["margin"]) == ("F1^NS", "unknown", 0.02)
    low, high = gate["bounds"]
    assert low < -0.02 < high
    assert main(words) == 0
    [pair] = orjson.loads(capsys.readouterr().out)["pairs"]
    assert "non_inferiority" not in pair


@pytest.mark.parametrize(("metric", "code"), [("Recall", 0), ("F1^NS", 7), (None, 7)])
def test_gate_is_about_the_metric_that_is_named(metric, code, results, capsys):
    """By default the last primary one; what is printed names it."""
    words = ["compare", "recency", "random", "--not-worse-than", "0"]
    words += ["--metric", metric] if metric else []
    assert main([*words, "--results-dir", str(results)]) == code
    assert f" in {metric or 'F1^NS'} by more than" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--metric", "Recall"), "--metric is for --not-worse-than"),
        (("--metric", "Recal", "--not-worse-than", "1"), "did you mean Recall?"),
        (("--metric", "Error_Peer", "--not-worse-than", "1"), "there are Recall, F1^NS"),
    ],
)
def test_gate_refuses_a_metric_that_it_cannot_judge(words, said, results, capsys):
    """Alone it would be without effect, and only primary metrics are tested."""
    assert main(["compare", "recency", "random", *words, "--results-dir", str(results)]) == 2
    assert said in capsys.readouterr().err


def test_gate_is_for_two_runs(results, capsys):
    """More runs have no first and second."""
    runs = ("recency", "random", "few-random")
    assert main(["compare", *runs, "--not-worse-than", "2", "--results-dir", str(results)]) == 2
    assert "for two runs" in capsys.readouterr().err
