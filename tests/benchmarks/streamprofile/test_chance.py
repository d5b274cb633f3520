"""The chance level: its expected values by the hypergeometric distribution, and that nothing but
content decides it."""

from __future__ import annotations

import random

import numpy as np
import orjson
import pytest

from harness.benchmark import VALID, Benchmark, Means, Metric
from harness.benchmarks.streamprofile.benchmark import StreamProfile
from harness.benchmarks.streamprofile.chance import DRAWS, drawn, expected, urn
from harness.benchmarks.streamprofile.reply import StepAnswer
from harness.benchmarks.streamprofile.synth import generate
from harness.benchmarks.streamprofile.task import StepInput, Truth
from harness.cli import main
from harness.engine import finish
from harness.errors import BenchmarkError
from harness.model import JSON, Record, RunFacts
from harness.scoring.reports import Report
from harness.scoring.rows import raw_rows
from harness.scoring.scorer import Scorer

BENCHMARK = StreamProfile()
FACTS = RunFacts(
    subset="weibo", model="m", name="r", prompt="own", expected_users=40, failed_users=0, notes=()
)


def records() -> list[Record]:
    """Forty users that answer with the first tags of each pool."""
    made = []
    for line in generate("weibo", 40, 3, 3.0):
        task = BENCHMARK.parse(orjson.loads(line), "weibo")
        answer = [StepAnswer("", step.pool[: step.asked], "") for step in task.given.steps]
        record = BENCHMARK.records.record(task, answer, BENCHMARK.measure(task, answer), VALID, ())
        made.append(
            Record(
                task.key,
                BENCHMARK.scoring.with_task({**record, "usage": {}}, BENCHMARK.scoring.facts(task)),
            )
        )
    return made


def report(shards: list[list[Record]]) -> Report:
    scorer = Scorer(BENCHMARK, "weibo")
    first, *others = map(scorer.score, shards)
    for other in others:
        first = scorer.merge(first, other)
    return scorer.report(first, FACTS)[0]


def test_random_answers_have_their_expected_values():
    """Of the tags of the truth as large a share is drawn as of the pool, which lacks one; two are
    new and kept."""
    pool = tuple(f"t{number}" for number in range(40))
    truth, step = Truth([*pool[:6], "elsewhere"], pool[4:9], {}), StepInput(1, 1, "", pool)
    values = drawn([urn(f"user {number}", truth, step) for number in range(4000)]).reshape(-1, 4)
    means = [9 / 40, 0.25 * 9 / 10, 0.25, 0.25 * 6 / 7]
    assert values.mean(axis=0) == pytest.approx(means, abs=0.001)
    assert expected([urn("user", truth, step)])[0] == pytest.approx(means, rel=1e-12)
    # the variance of hits without replacement
    assert values[:, 0].var() == pytest.approx(
        10 * (9 / 40) * (31 / 40) * (30 / 39) / 100, rel=0.03
    )


def test_a_pool_smaller_than_what_is_asked_for_is_drawn_whole():
    """Its tags may be repeated: two differ, and three are asked for. Without a truth nothing is
    defined."""
    step = StepInput(1, 1, "", ("a", "b") * 6)
    values = drawn(
        [urn("u", Truth(["a"], ["b", "c"], {}), step), urn("u", Truth([], [], {}), step)]
    )
    assert values[:, 0].tolist() == [[2 / 3, 2 / 3, 0.5, 1.0]] * DRAWS
    assert np.isnan(values[:, 1, 1:]).all()


@pytest.mark.slow
def test_the_chance_level_of_shares_is_exact_and_that_of_f1_has_its_error():
    """Recall as added up over the users' steps by hand; the mean of 20 other sets of draws is
    within two errors."""
    users, found = records(), report([records()])
    shares = []
    for line in generate("weibo", 40, 3, 3.0):
        task = BENCHMARK.parse(orjson.loads(line), "weibo")
        of_steps = [
            min(1, step.asked / len(step.tags))
            * len(step.tags & truth.sets.all_tags)
            / len(truth.sets.all_tags)
            for step, truth in zip(task.given.steps, task.truth, strict=True)
            if truth.sets.all_tags
        ]
        shares += [sum(of_steps) / len(of_steps)] if of_steps else []
    assert len(users) == 40 and found.chance["Recall"] == pytest.approx(
        sum(shares) / len(shares), rel=1e-12
    )
    assert set(found.chance_error) == {"F1^NS", "FWT F1^NS", "FWT F1^NS (per step)"}
    others = []
    for number in range(20):
        changed = [
            Record(user.key, {**user.data, "steps": reseeded(user.data["steps"], number)})
            for user in users
        ]
        others.append(report([changed]).chance["F1^NS"])
    assert np.std(others) == pytest.approx(found.chance_error["F1^NS"], rel=0.4)
    assert found.chance["F1^NS"] == pytest.approx(
        np.mean(others), abs=2.5 * found.chance_error["F1^NS"]
    )


def reseeded(steps: list[JSON], number: int) -> list[JSON]:
    """The steps with the seeds of other draws."""
    return [
        {**step, "urn": ((step["urn"][0] + number + 1) * 7919 % 2**64, *step["urn"][1:])}
        for step in steps
    ]


def test_neither_order_nor_grouping_of_users_matters():
    """Each user has its own draws; sums may be rounded in another way."""
    users = records()
    whole = report([users]).chance
    assert 0.1 < whole["Recall"] < 0.4 and whole == report([users]).chance
    assert report([users[:7], users[7:30], users[30:]]).chance == pytest.approx(whole, rel=1e-12)
    mixed = random.Random(1).sample(users, len(users))
    assert report([mixed]).chance == pytest.approx(whole, rel=1e-12)


class Flips(Means):
    def breaches(self, record: dict[str, object]) -> tuple[str, ...]:
        return ("edge",) if record["answer"] == "edge" else ()

    def chance(self, scored: object) -> dict[str, float]:
        return {"heads": 0.5}


class Coin(Benchmark):
    name = "coin"
    subsets = {"all": "coin.jsonl"}  # noqa: RUF012
    metrics = (Metric("heads", leaves_out=("edge",)),)
    scoring = Flips()


def flipped(benchmark: Benchmark) -> Report:
    """A report of three answers, one of them against the rules."""
    answers = [("head", 1.0), ("tail", 0.0), ("edge", None)]
    made = [
        {
            "user_id": answer,
            "answer": answer,
            "outcome": VALID,
            "repairs": (),
            "metrics": {"heads": value},
            "usage": {},
        }
        for answer, value in answers
    ]
    scorer = Scorer(benchmark, "all")
    return scorer.report(scorer.score([Record(str(one["user_id"]), one) for one in made]), FACTS)[0]


def test_any_benchmark_may_declare_a_chance_level_and_count_breaches(
    monkeypatch,
):
    """None by default; a level of no declared metric, or that is no finite number, is refused."""
    found = flipped(Coin())
    assert (found.chance, found.diagnostics.breaches) == ({"heads": 0.5}, {"edge": 1})
    assert found.diagnostics.following(found.units["heads"]) == pytest.approx(2 / 3)
    for wrong in ({"tails": 0.5}, {"heads": float("nan")}):
        with pytest.raises(BenchmarkError, match="chance"):
            monkeypatch.setattr(Flips, "chance", lambda self, scored, wrong=wrong: wrong)
            flipped(Coin())


def test_report_of_a_run_reads_no_task_again_and_is_that_of_its_tasks(tmp_path, monkeypatch):
    """What random answers need of a task is kept when its user is played; `verify` reads the
    tasks."""
    folders = ["--tasks-dir", str(tmp_path), "--results-dir", str(tmp_path / "results")]
    assert main(["synth", "--out", str(tmp_path), "--users", "12", "--platform", "zhihu"]) == 0
    with monkeypatch.context() as played:
        played.setattr(finish.ReportScores, "_task_facts", None)
        assert (
            main(
                [
                    "run",
                    "--model",
                    "baseline/random",
                    "--platform",
                    "zhihu",
                    "--name",
                    "run",
                    *folders,
                ]
            )
            == 0
        )
    assert main(["verify", "--name", "run", *folders]) == 0


def test_live_rows_are_those_of_the_report_without_a_tally():
    """No curve is made for the display."""
    rows, tally = raw_rows(BENCHMARK, records())
    live, untallied = raw_rows(BENCHMARK, records(), live=True)
    assert (live.tobytes(), untallied) == (rows.tobytes(), None)
    assert tally.curves
