"""Transfer of F1^NS: random answers, which learn nothing, show some as published, and none per
step."""

from __future__ import annotations

import random
from typing import Any

import orjson
import pytest

from harness.benchmark import VALID, Task, metrics_of
from harness.benchmarks.streamprofile.benchmark import StreamProfile
from harness.benchmarks.streamprofile.metrics import F1
from harness.benchmarks.streamprofile.reply import StepAnswer
from harness.benchmarks.streamprofile.scores import PER_STEP
from harness.benchmarks.streamprofile.synth import generate
from harness.cli import main
from harness.model import JSON, Record, RunFacts
from harness.scoring.scorer import Scorer
from harness.store.log import decode_line

BENCHMARK = StreamProfile()
USERS = 500
"""The transfer of random answers, 0.07 to 0.08, is then six standard errors."""


def played(task: Task, rng: random.Random) -> Record:
    """A user whose answers are drawn from each pool."""
    answer = [
        StepAnswer("", tuple(rng.sample(step.pool, step.asked)), "") for step in task.given.steps
    ]
    made = BENCHMARK.records.record(task, answer, BENCHMARK.measure(task, answer), VALID, ())
    return Record(
        task.key, BENCHMARK.scoring.with_task({**made, "usage": {}}, BENCHMARK.scoring.facts(task))
    )


@pytest.fixture(scope="module")
def report() -> JSON:
    """That of random answers to synthetic users."""
    rng = random.Random(1)
    tasks = [
        BENCHMARK.parse(orjson.loads(line), "weibo") for line in generate("weibo", USERS, 3, 6.0)
    ]
    scorer = Scorer(BENCHMARK, "weibo")
    facts = RunFacts(
        subset="weibo",
        model="m",
        name="r",
        prompt="own",
        expected_users=USERS,
        failed_users=0,
        notes=(),
    )
    made, _ = scorer.report(scorer.score([played(task, rng) for task in tasks]), facts)
    values = {name: {"value": of.value, "ci95": of.ci95} for name, of in made.secondary.items()}
    return {**made.details, "secondary": values, "sections": made.sections}


def holds_0(of: Any) -> bool:
    low, high = of["ci95"]
    return bool(low <= 0 <= high)


@pytest.mark.slow
def test_random_answers_have_transfer_as_published_and_none_per_step(report):
    """The harmonic mean of means over many steps is above that of one; the mean of each step's own
    is not."""
    transfer, delta = report["secondary"], report["delta"]
    assert (
        transfer[f"FWT {F1}"]["value"] > 0.04
        and not holds_0(transfer[f"FWT {F1}"])
        and not holds_0(delta[F1])
    )
    assert holds_0(transfer[f"FWT {PER_STEP}"]) and holds_0(delta[PER_STEP])


def test_random_answers_are_shown_what_random_answers_show(report):
    """The value that a report has of a random model without any request is that of a run of one."""
    chance = report["chance"]
    for name in (F1, PER_STEP):
        for run, expected in (
            (report["secondary"][f"FWT {name}"], chance["fwt"][name]),
            (report["delta"][name], chance["delta"][name]),
        ):
            assert run["ci95"][0] < expected["value"] < run["ci95"][1]
            assert expected["ci95"][0] < run["ci95"][1] and run["ci95"][0] < expected["ci95"][1]


def test_metrics_that_grow_with_the_steps_are_not_ranked():
    """FWT F1^NS is declared with a reason; per step it is ranked."""
    published, per_step = (metrics_of(BENCHMARK)[f"FWT {name}"] for name in (F1, PER_STEP))
    assert published and per_step and published.unranked and not per_step.unranked


def test_random_answers_are_in_the_report_of_every_command_and_in_no_record(tmp_path):
    """`run` and `reeval` write the same, and `verify` agrees."""
    tasks, results = tmp_path / "tasks" / "weibo_inference_tasks.jsonl", tmp_path / "results"
    tasks.parent.mkdir()
    tasks.write_bytes(b"".join(generate("weibo", 12, 5, 3.0)))
    where = ["--tasks-dir", str(tasks.parent), "--results-dir", str(results)]
    run = ["run", "--model", "baseline/recency", "--platform", "weibo", "--name", "r", "--no-html"]
    assert main([*run, *where]) == 0
    path, records = (
        results / "r" / "eval_report_weibo.json",
        results / "r" / "inference_results_weibo.jsonl",
    )
    first = path.read_bytes()
    assert orjson.loads(first)["details"]["chance"]["fwt"][PER_STEP]["value"] is not None
    lines = [decode_line(line) for line in records.read_bytes().splitlines()]
    assert all("chance" not in step for line in lines if line for step in line["steps"])
    assert main(["verify", "--name", "r", *where]) == 0
    assert main(["reeval", "--name", "r", "--no-html", *where]) == 0
    assert path.read_bytes() == first
