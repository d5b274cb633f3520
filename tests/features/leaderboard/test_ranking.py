"""Ranks of runs: scipy's paired test where there are two, simulated equal models, and what must change nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from harness.features.leaderboard.ranking import Stratum, ranks, stratum
from harness.scoring import bootstrap
from harness.scoring.bootstrap import Array


def means(totals: Array) -> Array:
    half = totals.shape[1] // 2
    found: Array = totals[:, :half] / totals[:, half:]
    return found


def of(values: Sequence[Array], resamples: int = 500) -> Stratum:
    """The stratum of runs with these values of one metric, NaN undefined."""
    rows = [np.column_stack([np.nan_to_num(value), ~np.isnan(value)]) for value in values]
    return stratum(rows, means, np.random.default_rng(len(rows[0])), resamples)


def equal(rng: np.random.Generator, models: int, users: int) -> list[Array]:
    """Shares of hits of models that are all the same, on users who are easy or hard for all."""
    ease = rng.beta(2, 3, users)
    return [rng.binomial(12, ease) / 12 for _ in range(models)]


@pytest.mark.parametrize("seed", [0, 4, 5, 8, 11, 12, 13, 15, 17, 23])
def test_two_runs_are_separated_where_the_paired_test_of_scipy_is_significant(seed: int) -> None:
    """At 5 %; none of these data sets is so near that the draws decide."""
    rng = np.random.default_rng(seed)
    a, b = equal(rng, 2, 60)
    a = a + 0.05
    p = stats.ttest_rel(a, b).pvalue
    higher = ranks([of([a, b])], 0, lower_is_better=False)
    assert higher == ([(1, 1), (2, 2)] if p < 0.05 else [(1, 2), (1, 2)])
    assert ranks([of([a, b])], 0, lower_is_better=True) == higher[::-1]


def test_fourteen_equal_models_are_seldom_separated_from_the_best() -> None:
    """In 40 data sets no more than 4 have a model that is: at 95 % for each pair alone most would."""
    rng = np.random.default_rng(3)
    found = [ranks([of(equal(rng, 14, 60))], 0, lower_is_better=False) for _ in range(40)]
    assert sum(any(best > 1 for best, _ in each) for each in found) <= 4


def test_a_draw_of_users_without_a_value_does_not_weaken_the_joint_level() -> None:
    """It is left out, and no pair of runs with it."""
    made = of(equal(np.random.default_rng(3), 14, 60))
    draws = made.draws.copy()
    draws[0] = np.nan
    expected = ranks([made], 0, lower_is_better=False)
    assert all(best == 1 for best, _ in expected)
    assert ranks([made._replace(draws=draws)], 0, lower_is_better=False) == expected


def test_ranks_hold_the_true_order_and_the_best_is_found_where_steps_are_large() -> None:
    """Five models, ten points apart: every rank is certain."""
    rng = np.random.default_rng(4)
    values = [value - 0.1 * place for place, value in enumerate(equal(rng, 5, 200))]
    assert ranks([of(values)], 0, lower_is_better=False) == [(place, place) for place in range(1, 6)]


def test_equal_runs_and_runs_that_differ_on_few_users_are_never_separated() -> None:
    """The same values twice, and another on six of 200 users, however large the difference."""
    rng = np.random.default_rng(5)
    a, _ = equal(rng, 2, 200)
    few = a.copy()
    few[:6] += 5.0
    assert ranks([of([a, a, few])], 0, lower_is_better=False) == [(1, 3)] * 3
    few[:60] += 5.0
    assert ranks([of([a, a, few])], 0, lower_is_better=False) == [(2, 3), (2, 3), (1, 1)]


def test_platforms_weigh_the_same_however_many_users_they_have() -> None:
    """Ahead by 40 points on a small one and behind by 10 on a large one is ahead."""
    rng = np.random.default_rng(6)
    small, large = equal(rng, 2, 60), equal(rng, 2, 600)
    strata = [of([small[0] + 0.4, small[1]]), of([large[0] - 0.1, large[1]])]
    assert ranks(strata, 0, lower_is_better=False) == [(1, 1), (2, 2)]
    assert ranks(strata[1:], 0, lower_is_better=False) == [(2, 2), (1, 1)]


def test_memory_of_draws_is_bounded_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same draws come out of chunks of one row and of all at once; users without a value are in no mean."""
    rng = np.random.default_rng(7)
    values = equal(rng, 3, 30)
    values[1][:5] = np.nan
    whole = of(values)
    monkeypatch.setattr(bootstrap, "CELLS", 1)
    for mine, other in zip(of(values), whole, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-12)
    assert whole.figures[1, 0] == pytest.approx(values[1][5:].mean())
    assert whole.draws.std(axis=0)[0, 0] == pytest.approx(values[0].std() / math.sqrt(30), rel=0.15)
