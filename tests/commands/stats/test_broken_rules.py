"""Answers against the rules of the task win nowhere: the whole pool, none at all, an empty list,
tags of no pool."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from harness.benchmark import Benchmark, Means, Metric
from harness.benchmarks.streamprofile.baselines import ParsedPrompt, read
from harness.benchmarks.streamprofile.metrics import ERRORS, NAMES
from harness.benchmarks.streamprofile.synth import generate
from harness.cli import main
from harness.errors import BenchmarkError
from harness.model import JSON, Record
from harness.scoring.compared import Figures
from tests.support.scripted import Script, answer, completion, serving

Told = pytest.CaptureFixture[str]
Choice = Callable[[ParsedPrompt], list[str]]

GAINS = [name for name in NAMES if name not in ERRORS]


def choosing(choice: Choice) -> Script:
    """A model that answers with the tags that are chosen of what it reads."""

    def script(body: JSON) -> tuple[int, bytes]:
        tags = choice(read(body["messages"][-1]["content"]))
        return 200, completion(
            orjson.dumps(
                {"persona_summary": "无", "predicted_tags": tags, "reasoning": ""}
            ).decode()
        )

    return script


SCRIPTS: dict[str, Script] = {
    "recency": lambda body: (200, completion(answer("baseline/recency", body["messages"], 0))),
    "random": lambda body: (200, completion(answer("baseline/random", body["messages"], 1))),
    "whole-pool": choosing(lambda reading: list(reading.pool)),
    "refusals": lambda body: (200, completion("抱歉，我无法回答这个问题。")),
    "empty-list": choosing(lambda reading: []),
    "no-pool": choosing(
        lambda reading: [f"不在候选之中{number}" for number in range(reading.asked)]
    ),
    "one-tag": choosing(lambda reading: list(reading.pool[:1])),
    "at-times": choosing(
        lambda reading: list(reading.pool[: reading.asked if ord(reading.pool[0][0]) % 2 else 1])
    ),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of every script on the same forty users."""
    root = tmp_path_factory.mktemp("broken")
    tasks = root / "tasks" / "weibo_inference_tasks.jsonl"
    tasks.parent.mkdir()
    tasks.write_bytes(b"".join(generate("weibo", 40, 5, 3.0)))
    for name, script in SCRIPTS.items():
        words = [
            "--tasks-dir",
            str(tasks.parent),
            "--results-dir",
            str(root / "results"),
            "--name",
            name,
            "--no-html",
        ]
        with serving(script) as server:
            assert (
                main(
                    [
                        "run",
                        "--model",
                        "m",
                        "--platform",
                        "weibo",
                        "--allow-invalid",
                        *words,
                        "--api-url",
                        server.url,
                    ]
                )
                == 0
            )
    return root / "results"


def output(capsys: Told, *words: str) -> str:
    capsys.readouterr()
    assert main([*words]) == 0
    return capsys.readouterr().out


@pytest.fixture(scope="module")
def ranked(results: Path) -> JSON:
    """The figures of `stats`, by metric and run."""
    with redirect_stdout(io.StringIO()) as printed:
        assert main(["stats", "--json", "--results-dir", str(results)]) == 0
    found: JSON = orjson.loads(printed.getvalue())
    return {
        metric: {run: of["weibo"] for run, of in runs.items()} for metric, runs in found.items()
    }


def compared(results: Path, capsys: Told, a: str, b: str) -> dict[str, JSON]:
    words = ("compare", a, b, "--json", "--resamples", "1000", "--results-dir", str(results))
    (pair,) = orjson.loads(output(capsys, *words, "--tasks-dir", str(results.parent / "tasks")))[
        "pairs"
    ]
    return {entry["metric"]: entry for entry in pair["figures"]}


def test_the_whole_pool_is_shown_as_given_and_ranked_by_its_first_tags(ranked):
    """Recall 1 as published, and in no table of hits the best place."""
    assert ranked["Recall"]["whole-pool"]["value"] == ranked["F1^NS"]["whole-pool"]["value"] == 1
    assert ranked["Recall (cut)"]["whole-pool"]["value"] < 0.5
    assert "best" not in {ranked[metric]["whole-pool"]["place"] for metric in GAINS}
    assert ranked["Recall"]["whole-pool"]["rank"] > 1 and ranked["Recall"]["recency"]["rank"] == 1


@pytest.mark.parametrize("run", ["refusals", "empty-list", "no-pool", "one-tag"])
def test_no_answers_against_the_rules_are_best(run, ranked):
    """Neither of hits nor of errors nor of what changes from step to step."""
    first = [
        metric for metric, runs in ranked.items() if runs[run] and runs[run]["place"] == "best"
    ]
    assert first == []


@pytest.mark.slow
@pytest.mark.parametrize("run", ["refusals", "empty-list", "no-pool", "one-tag"])
@pytest.mark.parametrize("metric", ERRORS)
def test_errors_of_no_answer_that_follows_the_rules_are_not_ranked(run, metric, ranked):
    """They have a value as published, and no comparable one."""
    assert ranked[metric][run]["value"] is not None and ranked[metric][run]["place"] is None
    assert ranked[f"{metric} (cut)"].get(run) is None
    assert all(ranked[metric][name]["ranked_value"] is not None for name in ("recency", "random"))


def test_a_metric_without_broken_rules_has_no_second_table(results, capsys):
    """Of runs that keep the rules the figures as given rank."""
    found = orjson.loads(
        output(capsys, "stats", "recency", "random", "--json", "--results-dir", str(results))
    )
    assert not [metric for metric in found if "(cut)" in metric]
    of = [found["Recall"][run]["weibo"] for run in ("recency", "random")]
    assert all(one["ranked_value"] == one["value"] for one in of)
    assert [one["place"] for one in of] == [
        "best",
        None,
    ]  # random answers are not better than chance


def test_metrics_are_printed_with_what_they_are_ranked_by(results, capsys):
    """A figure of the cut predictions has that of the whole ones in brackets after it, where it is
    another."""
    shown = output(
        capsys,
        "stats",
        "recency",
        "whole-pool",
        "--format",
        "markdown",
        "--results-dir",
        str(results),
    )
    titles = [
        line.strip("*").replace("\\", "") for line in shown.splitlines() if line.startswith("**")
    ]
    assert titles == ["Recall, %", "F1^NS, %"]
    assert [
        line.count(" (100.00) ") for line in shown.splitlines() if line.startswith("| whole-pool")
    ] == [1, 1]


def test_compare_is_about_the_first_tags_of_the_whole_pool(results, capsys):
    """A model that answers everything is not better than one that reads, and both sides are shown
    as given."""
    found = compared(results, capsys, "whole-pool", "recency")
    for metric in ("Recall", "F1^NS"):
        of = found[metric]
        assert of["compared"] == f"{metric} (cut)" and of["given"]["a"] == 1
        assert of["a"] < 0.5 and of["difference"] == pytest.approx(of["a"] - of["b"])
        assert of["given"]["b"] == pytest.approx(of["b"])


def test_compare_has_no_errors_of_answers_that_break_the_rules(results, capsys):
    """Nothing is said of the errors of a model that never answers: as given it made none."""
    found = compared(results, capsys, "refusals", "recency")
    for metric in ERRORS:
        assert found[metric]["difference"] is None and found[metric]["users"] == 0


def test_compare_of_runs_that_keep_the_rules_names_the_metrics_themselves(results, capsys):
    """What is compared is what was given."""
    found = compared(results, capsys, "random", "recency")
    assert all(of["compared"] == metric and of["given"] is None for metric, of in found.items())


def test_compare_takes_users_with_comparable_errors_on_both_sides(results, capsys):
    """A model that keeps the rules for some users is compared on these, and the other side's figure
    is theirs."""
    part, whole = (compared(results, capsys, run, "recency") for run in ("at-times", "random"))
    for metric in ("Error_Viral", "Error_Random"):
        of = part[metric]
        assert 0 < of["users"] < whole[metric]["users"] and of["b"] != pytest.approx(
            whole[metric]["b"]
        )
        assert of["users"] == of["a_better"] + of["equal"] + of["b_better"]


def test_tables_say_what_ranks_and_who_has_no_value(results, capsys):
    """Which metric ranks another, and the runs that it leaves out; why a metric is not ranked at
    all."""
    words = (
        "stats",
        "recency",
        "random",
        "refusals",
        "--format",
        "markdown",
        "--results-dir",
        str(results),
    )
    notes = output(capsys, *words, "--metric", "Error_Viral").replace("\\", "")
    assert "refusals (Error_Viral (cut))" in notes and "recency (Error_Viral" not in notes
    assert "is not ranked: F1^NS" in output(capsys, *words, "--metric", "FWT F1^NS").replace(
        "\\", ""
    )


def test_reports_show_what_ranks_only_where_it_differs(results):
    """The table of scores has a row of the cut Recall for a run that breaks the rules, and for no
    other."""
    shown = {
        run: (results / run / "eval_report_weibo.txt").read_text()
        for run in ("whole-pool", "recency")
    }
    assert "Recall (cut)" in shown["whole-pool"] and "(cut)" not in shown["recency"]


class Values(Means):
    secondary = (Metric("fair hits"),)

    def values(self, records: Sequence[JSON]) -> Any:
        return [one["values"] for one in records]


class Ranked(Benchmark):
    name = "ranked"
    metrics = (Metric("hits", ranked_by="fair hits"),)
    scoring = Values()


def records(*values: list[float | None]) -> list[Record]:
    return [Record(str(number), {"values": of}) for number, of in enumerate(values)]


def test_any_benchmark_can_name_what_a_metric_is_ranked_by():
    """The figure that is compared is the named one, and the metric as given is there next to it."""
    figures = Figures(Ranked())
    compared, given = figures.contributions(figures.raw(records([1.0, 0.25], [1.0, 0.5])), [0, 1])
    assert (compared.tolist(), given.tolist()) == (
        [[0.25, 1.0], [0.5, 1.0]],
        [[1.0, 1.0], [1.0, 1.0]],
    )
    assert figures.contributions(figures.raw([]), [])[0].shape == (0, 2)
    with pytest.raises(BenchmarkError, match="fair hits"):
        figures.raw(records([1.0]))


def test_a_value_of_one_side_alone_counts_on_neither():
    """The first user has the figure on both sides, the others on one or none."""
    a, b = (
        np.array([[0.5, 1.0], [0.5, 1.0], [0.0, 0.0]]),
        np.array([[0.25, 1.0], [0.0, 0.0], [0.0, 0.0]]),
    )
    both = Figures(Ranked()).on_both(a, b)
    assert [side.tolist() for side in both] == [
        [[0.5, 1.0], [0, 0], [0, 0]],
        [[0.25, 1.0], [0, 0], [0, 0]],
    ]
