"""Scores of users that were played several times: means over repeats, whole users in shards, and
variances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.benchmark import Benchmark, Metric, Scoring, Task
from harness.benchmarks.dailymobility.protocols import figures
from harness.benchmarks.dailymobility.scores import tallied
from harness.benchmarks.dailymobility.spread import SampleSide
from harness.benchmarks.streamprofile.benchmark import StreamProfile
from harness.benchmarks.streamprofile.scores import NAMES
from harness.document import Table
from harness.engine.finish import ReportScores
from harness.model import JSON, Record, RunFacts
from harness.reporting.report import blocks
from harness.scoring.components import components
from harness.scoring.reports import Repeats, Report
from harness.scoring.scorer import Scorer
from harness.store.tasks import ROW, TaskIndex, key_hash
from tests.benchmarks.dailymobility.test_scorer import TRUTH, some_days
from tests.benchmarks.streamprofile.test_scorer import a_step


class Means(Benchmark):
    """A value and one that may be undefined."""

    name = "means"
    subsets: ClassVar[Mapping[str, str]] = {"all": "tasks.jsonl"}
    metrics = (Metric("First"), Metric("Second"))

    def measure(self, task: Task, answer: Any) -> Mapping[str, float | None]:
        raise NotImplementedError


class HitsOfTries(Scoring):
    def statistics(self, records: Sequence[JSON]) -> Any:
        return [record["row"] for record in records]

    def figures(self, totals: Any) -> Any:
        return totals[:, :1] / totals[:, 1:]


class Ratio(Means):
    """The hits of all over the tries of all, as a benchmark with statistics of its own."""

    name = "ratio"
    metrics = (Metric("Rate"),)
    scoring = HitsOfTries()


def record(user: int, repeat: int, **more: Any) -> Record:
    number = {"repeat": repeat} if repeat > 1 else {}
    data = {"user_id": f"u{user}", **number, "outcome": "valid", "repairs": [], "usage": USAGE}
    return Record(f"u{user}", {**data, **more})


USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "requests": 1}


def of_values(values: Sequence[Sequence[Sequence[float | None]]]) -> list[Record]:
    """Records of users x repeats x metrics."""
    return [
        record(user, repeat, metrics=dict(zip(("First", "Second"), metrics, strict=True)))
        for user, plays in enumerate(values)
        for repeat, metrics in enumerate(plays, 1)
    ]


def reported(
    benchmark: Benchmark, records: Sequence[Record], users: int, repeats: int, plays: int
) -> Report:
    rows = np.zeros(users, ROW)
    rows["key"] = [key_hash(f"u{user}") for user in range(users)]
    with closing(TaskIndex(Path("/dev/null"), rows, "", Path("/dev/null"), 3)) as index:
        return _reported(ReportScores(benchmark, "all", index), records, users, repeats, plays)


def _reported(
    scores: ReportScores, records: Sequence[Record], users: int, repeats: int, plays: int
) -> Report:
    for one in records:
        scores.add(one)
    return scores.report(
        RunFacts("all", "m", "m", "own", users, 0, repeats=repeats, expected_plays=plays)
    )[0]


def parts(report: Report) -> Repeats:
    assert isinstance(report.repeats, Repeats)
    return report.repeats


def test_value_of_a_user_is_the_mean_of_its_defined_values():
    """By hand: users of 0, 1 | 1 | and of none, 0.5 | none; a user without any value is in no
    mean."""
    made = reported(Means(), of_values([[[0.0, None], [1.0, 0.5]], [[1.0, None]]]), 2, 2, 4)
    assert (made.metrics["First"].value, made.metrics["First"].users) == (0.75, 2)
    assert (made.metrics["Second"].value, made.metrics["Second"].users) == (0.5, 1)
    assert sum(made.distribution["First"]) == 2
    assert (made.coverage.scored_users, made.coverage.complete) == (2, False)
    assert (parts(made).scored, parts(made).expected, made.diagnostics.answers) == (3, 4, 3)
    assert made.bounds == {"First": (2 / 4, 3 / 4), "Second": (0.5 / 2, 1.5 / 2)}


def test_shards_never_divide_a_user():
    """Records of 200 users with 3 repeats are more than a shard, and score as all at once."""
    values = np.random.default_rng(1).random((200, 3, 2))
    made = reported(Means(), of_values(values.tolist()), 200, 3, 600)
    assert made.coverage.scored_users == 200 and made.coverage.complete
    assert made.metrics["First"].value == pytest.approx(values[:, :, 0].mean())
    found = parts(made).components["First"]
    within, among = (
        values[:, :, 0].var(axis=1, ddof=1).mean(),
        3 * values[:, :, 0].mean(axis=1).var(ddof=1),
    )
    assert (found.within, found.between) == pytest.approx((within, max(0.0, (among - within) / 3)))


def test_answers_of_other_figures_count_by_their_linear_part():
    """Of a ratio a/b: the variances of n (a - R b) / B, the delta method's, up to 1 part in the
    number of users."""
    rng = np.random.default_rng(2)
    users, repeats = 100, 4
    tries = rng.integers(5, 15, (users, 1)).astype(float) + rng.integers(0, 3, (users, repeats))
    hits = rng.binomial(
        tries.astype(int), np.clip(rng.normal(0.6, 0.15, (users, 1)), 0.05, 0.95)
    ).astype(float)
    records = [
        record(user, repeat + 1, row=[hits[user, repeat], tries[user, repeat]])
        for user in range(users)
        for repeat in range(repeats)
    ]
    found = parts(reported(Ratio(), records, users, repeats, users * repeats)).components["Rate"]
    ratio = hits.sum() / tries.sum()
    linear = (hits - ratio * tries) / tries.mean()
    expected = components(linear.ravel(), np.repeat(np.arange(users), repeats))
    assert expected is not None
    assert (found.between, found.within) == pytest.approx(
        (expected.between, expected.within), rel=0.05
    )
    assert found.error == pytest.approx(expected.error(), rel=0.03)


def test_variances_that_come_of_rounding_are_shown_as_none():
    """Users who all answer 0.1, 0.1 and 0.1: their means miss it by rounding, which is no
    difference between them."""
    made = reported(
        Means(), of_values([[[0.1, float(user % 2)]] * 3 for user in range(10)]), 10, 3, 30
    )
    assert (
        0 < parts(made).components["First"].between + parts(made).components["First"].within < 1e-30
    )
    table = next(
        block
        for block in blocks(made)
        if isinstance(block, Table) and "shrinks at most" in block.columns
    )
    assert table.rows[0] == ("First", "0", "0", "n/a", "n/a")
    assert table.rows[1] == ("Second", "0.278", "0", "0.0 %", "100.0 %")


def test_components_are_dropped_with_the_rows_of_too_many_answers():
    """So that memory is bounded; figures and coverage stay."""
    scorer = Scorer(Means(), "all", rows_limit=5)
    made, _ = scorer.report(
        scorer.score(of_values([[[0.0, 1.0]] * 3] * 2)),
        RunFacts("all", "m", "m", "own", 2, 0, repeats=3, expected_plays=6),
    )
    assert parts(made).components == {} and made.coverage.complete


def of_residents(days: Sequence[JSON], each: int) -> list[JSON]:
    """Days as the repeats of residents, so many each."""
    numbered = (
        {**day, "user_id": at // each, "repeat": at % each + 1} for at, day in enumerate(days)
    )
    return [
        {name: of for name, of in day.items() if (name, of) != ("repeat", 1)} for day in numbered
    ]


@pytest.mark.parametrize("missing", [0, 1])
def test_jackknife_of_divergences_leaves_out_residents_with_all_their_days(missing):
    """Parts of 10 residents of 3 days each, or one of fewer: as by scoring all other days from
    scratch."""
    days = of_residents([one.data for one in some_days(30)], 3)[: 30 - missing]

    def value(some: Sequence[JSON]) -> NDArray[np.float64]:
        return figures(TRUTH.totals, tallied(some, TRUTH)[1].all_days[None])[0]

    whole, tally = value(days), tallied(days, TRUTH)[1]
    found = SampleSide.from_counts(
        tally._chunks(), tally.all_days.astype(np.int64), TRUTH.totals, whole, 10
    ).parts
    others = ([day for day in days if day["user_id"] != resident] for resident in range(10))
    assert found == pytest.approx(np.stack([10 * whole - 9 * value(rest) for rest in others]))


def test_days_that_are_all_alike_add_nothing_to_intervals_of_divergences():
    """120 residents with the same day twice: the figures and intervals of one day each."""
    once = [one.data for one in some_days(120)]
    twice = of_residents([day for day in once for _ in range(2)], 2)
    expected, found = (tallied(days, TRUTH)[1].estimates for days in (of_residents(once, 1), twice))
    for name, of in expected.items():
        assert found[name].interval == (of.interval and pytest.approx(of.interval))
        assert found[name].with_truth == (of.with_truth and pytest.approx(of.with_truth))
    assert expected["final_score"].interval is not None


def test_learning_curve_is_of_users_and_not_of_their_repeats():
    """A step's values are means over repeats, so its interval has as many users as there are."""

    def points(values: Sequence[Sequence[float]]) -> JSON:
        records = [
            record(user, repeat, platform="weibo", steps=[a_step(1, Recall=value)])
            for user, plays in enumerate(values)
            for repeat, value in enumerate(plays, 1)
        ]
        scorer = Scorer(StreamProfile(), "weibo")
        made, _ = scorer.report(
            scorer.score(records), RunFacts("weibo", "m", "m", "own", len(values), 0)
        )
        curve: JSON = made.details["learning_curve"][0]
        return curve

    assert "Recall" in NAMES
    assert points([[0.25, 0.75], [1.0, 0.5], [0.0, 0.5]]) == points([[0.5], [0.75], [0.25]])
