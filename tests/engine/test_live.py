"""Running scores: what the display shows, and what is kept for it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import anyio
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import harness
from harness.benchmark import Benchmark
from harness.defaults import SHARD_USERS
from harness.engine.running_scores import RunningScores
from harness.model import Record
from harness.scoring.scorer import Scorer
from tests.benchmarks.test_repeats import Means, Ratio, of_values, record, reported
from tests.support import examples


def shown(
    benchmark: Benchmark,
    records: Sequence[Record],
    repeats: int,
    sizes: Iterator[int],
    saved: int = 0,
) -> RunningScores:
    """Return running scores of records that end in this order, so many between two looks; the first
    are `saved`."""
    live, left = (
        RunningScores(Scorer(benchmark, "all"), repeats, records[:saved]),
        list(records[saved:]),
    )

    async def scene() -> None:
        while live.is_behind or left:
            number = next(sizes)
            for one in left[:number]:
                live.add(one)
            del left[:number]
            await live.advance()
        await live.advance()

    anyio.run(scene)
    return live


values = st.one_of(st.none(), st.floats(0.0, 1.0))
plays = st.lists(st.tuples(values, values), min_size=1, max_size=3)


@given(st.lists(plays, min_size=1, max_size=12), st.integers(), st.integers(0, 40))
@settings(max_examples=examples(50))
def test_figures_are_those_of_the_report_in_any_order(users, seed, saved):
    """Whatever repeats end together, or in another session, and whichever are missing at the
    end."""
    rng, records = random.Random(seed), of_values(users)
    report = reported(Means(), records, len(users), 3, 3 * len(users))
    mixed = rng.sample(records, len(records))
    live = shown(Means(), mixed, 3, iter(lambda: rng.randint(1, 5), -1), saved)
    assert live.users == report.coverage.scored_users
    for name, figure in live.figures.items():
        value = report.metrics[name].value
        assert figure == (None if value is None else pytest.approx(value, rel=1e-12))


def test_statistics_of_a_user_are_the_mean_of_its_repeats():
    """Of a ratio of sums, in which no user with more repeats done than others weighs more."""
    rng = random.Random(1)
    rows = {
        (user, repeat): [rng.random(), 1 + rng.random()]
        for user in range(30)
        for repeat in range(1, 4)
    }
    records = [
        record(user, repeat, row=row) for (user, repeat), row in rows.items() if (user + repeat) % 4
    ]
    report = reported(Ratio(), records, 30, 3, 90)
    live = shown(Ratio(), rng.sample(records, len(records)), 3, iter(lambda: 7, -1))
    assert live.figures == pytest.approx({"Rate": report.metrics["Rate"].value})


class Kept(harness.Means):
    """Keeps what it was given: the largest tally that was merged with another."""

    largest: ClassVar[list[int]] = []

    def tallied(self, records: Sequence[Any]) -> tuple[Any, Any]:
        return self.values(records), np.ones(len(records))

    def condense(self, tally: Any) -> Any:
        self.largest.append(len(tally))
        return np.array([tally.sum()])

    def further_figures(self, tally: Any) -> Mapping[str, float | None]:
        assert len(tally) == 1
        return {}


class Tallied(Means):
    """Means with a tally."""

    scoring = Kept()


@pytest.mark.parametrize("users", [1, SHARD_USERS, 3 * SHARD_USERS + 1])
def test_nothing_is_kept_of_users_that_are_scored(users):
    """However many users finish between two looks, they are scored and condensed by shards; without
    repeats nothing is kept of one."""
    benchmark, records = Tallied(), of_values([[[0.5, 1.0]]] * users)
    live = shown(benchmark, records, 1, iter(lambda: users, -1))
    assert (live.users, live.figures) == (users, {"First": 0.5, "Second": 1.0})
    assert max(Kept.largest) <= SHARD_USERS
    assert not live._open
