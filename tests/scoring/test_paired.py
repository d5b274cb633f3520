"""Paired comparisons: scipy and brute force as the independent computations, and what small data must give."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from harness.benchmark import Benchmark, Metric
from harness.benchmarks.dailymobility import scores as mobility
from harness.benchmarks.dailymobility.protocols import METRICS, SIZES
from harness.benchmarks.derived import Figures
from harness.scoring.bootstrap import Array
from harness.scoring.paired import (
    Pair,
    alike,
    effects,
    holm,
    interval,
    p_value,
    resampled,
    standard_error,
    swapped,
    users_needed,
)

NAN = math.nan


class OneMean(Benchmark):
    name = "one_mean"
    metrics = (Metric("value"),)


MEANS = Figures(OneMean()).values


def means(a: Array | list[float], b: Array | list[float]) -> Pair:
    """Users' values of one figure on both sides, NaN undefined."""
    sides = [np.asarray(side, dtype=np.float64) for side in (a, b)]
    return Pair(*(np.column_stack([np.nan_to_num(side), ~np.isnan(side)]) for side in sides))


def users(seed: int, number: int) -> tuple[Array, Array]:
    """Values with ties, higher on the first side."""
    rng = np.random.default_rng(seed)
    base = rng.integers(0, 5, number) / 8
    return base + rng.integers(0, 4, number) / 8, base + rng.integers(0, 3, number) / 8


def mean_difference(a: Array, b: Array, axis: int = -1) -> Array:
    difference: Array = np.mean(a, axis=axis) - np.mean(b, axis=axis)
    return difference


# Against scipy


def test_resamples_are_those_of_scipys_paired_bootstrap() -> None:
    """From the same generator, every resampled difference is the one that scipy computes."""
    a, b = users(1, 23)
    theirs = stats.bootstrap(
        (a, b), mean_difference, paired=True, n_resamples=500, rng=np.random.default_rng(4), method="percentile"
    )
    ours = resampled(means(a, b), MEANS, np.random.default_rng(4), 500)[:, 0]
    np.testing.assert_allclose(np.sort(ours), np.sort(theirs.bootstrap_distribution), atol=1e-12)


def test_interval_is_scipys_percentile_interval_as_far_as_students_t_reaches() -> None:
    """About the mean of the resamples, sqrt(n / (n - 1)) t(n - 1) / z as far, and shifted onto the difference."""
    a, b = np.random.default_rng(2).random((2, 12))
    theirs = stats.bootstrap(
        (a, b), mean_difference, paired=True, n_resamples=2000, rng=np.random.default_rng(5), method="percentile"
    )
    observed, mean = float(a.mean() - b.mean()), float(theirs.bootstrap_distribution.mean())
    reach = math.sqrt(12 / 11) * stats.t.ppf(0.975, 11) / stats.norm.ppf(0.975)
    ours = interval(resampled(means(a, b), MEANS, np.random.default_rng(5), 2000).T, observed, [12])
    assert ours == pytest.approx([observed + reach * (bound - mean) for bound in theirs.confidence_interval], abs=1e-9)


def test_interval_over_strata_has_the_width_of_welchs() -> None:
    """Of normal values on 4 and 300 users: within 5 % of the width of scipy's interval for unequal variances."""
    rng = np.random.default_rng(3)
    parts = [rng.normal(0.1, 0.1, 4), rng.normal(0.1, 0.1, 300)]
    pairs = [means(part, np.zeros(len(part))) for part in parts]
    drawn = np.stack([resampled(pair, MEANS, rng, 20_000)[:, 0] for pair in pairs])
    found = interval(drawn, float(np.mean([part.mean() for part in parts])), [4, 300])
    theirs = stats.ttest_ind(parts[0], -parts[1], equal_var=False).confidence_interval()  # of the sum of both means
    assert found is not None
    assert found[1] - found[0] == pytest.approx((theirs.high - theirs.low) / 2, rel=0.05)


@pytest.mark.parametrize("seed", range(5))
def test_exact_p_value_is_scipys_where_all_swaps_can_be_listed(seed: int) -> None:
    """Eight users have 256 swaps: the same p-value to the last bit, ties included."""
    a, b = users(seed, 8)
    theirs = stats.permutation_test((a, b), mean_difference, permutation_type="samples", n_resamples=256)
    swaps = swapped([means(a, b)], MEANS, np.random.default_rng(0), 256)
    assert swaps.whole and swaps.differences.shape == (1, 256, 1)
    assert p_value(swaps.differences[0, :, 0], float(a.mean() - b.mean()), swaps.whole) == theirs.pvalue


def test_random_swaps_come_close_to_all_of_them() -> None:
    """With 5,000 of the 65,536 swaps of 16 users, p is within four standard errors of the exact one."""
    a, b = users(7, 16)
    observed = float(a.mean() - b.mean())
    exact, some = (swapped([means(a, b)], MEANS, np.random.default_rng(3), number) for number in (65_536, 5_000))
    p, estimate = (p_value(found.differences[0, :, 0], observed, found.whole) for found in (exact, some))
    assert exact.whole and not some.whole
    assert p is not None and estimate == pytest.approx(p, abs=4 * math.sqrt(p / 5_000))


@settings(max_examples=50)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_is_the_step_down_rule_written_out(p_values: list[float]) -> None:
    """For each p: the largest of (number of p-values from that rank on) x p over all up to its rank, at most 1."""
    ordered = sorted(p_values)
    number = len(ordered)
    for p, corrected in zip(p_values, holm(p_values), strict=True):
        rank = ordered.index(p)
        expected = min(1.0, max((number - earlier) * ordered[earlier] for earlier in range(rank + 1)))
        assert corrected == pytest.approx(expected)


def test_holm_leaves_undefined_p_values_out_of_the_family() -> None:
    """Two tests, not three: 0.02 is doubled."""
    assert holm([0.02, None, 0.5]) == [0.04, None, 0.5]


# By brute force


def test_resampled_means_are_over_the_users_drawn_that_have_a_value() -> None:
    """Each resample drawn again by hand, user for user."""
    a, b = [0.5, NAN, 0.25, 1.0], [0.0, NAN, 0.5, 0.75]
    ours = resampled(means(a, b), MEANS, np.random.default_rng(8), 40)[:, 0]
    rng = np.random.default_rng(8)
    for found in ours:
        drawn = rng.integers(4, size=4)
        chosen = [(a[user], b[user]) for user in drawn if user != 1]
        expected = sum(x - y for x, y in chosen) / len(chosen) if chosen else NAN
        assert found == pytest.approx(expected, nan_ok=True)


def histograms(rng: np.random.Generator, number: int) -> NDArray[np.uint8]:
    """Rows as the scores of DailyMobility have them: bins of radius and locations, slots by intention."""
    spent = rng.multinomial(48, rng.dirichlet(np.ones(7)), size=number)
    return np.column_stack([rng.integers(51, size=number), rng.integers(12, size=number), spent]).astype(np.uint8)


@pytest.fixture(scope="module")
def truth() -> dict[str, NDArray[np.int64]]:
    rng = np.random.default_rng(0)
    return {metric: rng.integers(0, 9, SIZES[metric]) + (np.arange(SIZES[metric]) == 3) for metric in METRICS}


def jsd_by_hand(p: NDArray[np.int64], q: Array) -> float:
    total = 0.0
    for x, y in zip(p / p.sum(), q / q.sum(), strict=True):
        for part in (x, y):
            total += 0.5 * part * math.log2(2 * part / (x + y)) if part else 0.0
    return total


def by_hand(truth: dict[str, NDArray[np.int64]], rows: NDArray[np.uint8]) -> list[float]:
    """Score and divergences of residents, from loops over them."""
    found = []
    for metric in METRICS:
        counts = np.zeros(SIZES[metric])
        for radius, locations, *spent in rows.tolist():
            if metric == METRICS[0]:
                counts[radius] += 1
            elif metric == METRICS[1]:
                counts[locations] += 1
            elif metric == METRICS[2]:
                counts += spent
            else:
                for slots in spent:
                    counts[min(49, int(np.searchsorted(np.linspace(0, 1, 51), slots / 48, side="right")) - 1)] += 1
        found.append(jsd_by_hand(truth[metric], counts))
    return [1 - sum(found) / 4, *found]


def test_divergences_of_swapped_and_resampled_days_are_those_of_the_days_counted_anew(
    truth: dict[str, NDArray[np.int64]],
) -> None:
    """All eight swaps of three residents, and resamples of them: histograms made by loops over the days."""
    rng = np.random.default_rng(1)
    a, b = histograms(rng, 3), histograms(rng, 3)
    pair = Pair(mobility.side_by_side(a), mobility.side_by_side(b))
    values = partial(mobility.figures, truth)
    swaps = swapped([pair], values, rng, 8)
    for number in range(8):
        flipped = np.array([[number >> user & 1] for user in range(3)], dtype=bool)
        expected = np.array(by_hand(truth, np.where(flipped, b, a))) - by_hand(truth, np.where(flipped, a, b))
        assert swaps.differences[0, number] == pytest.approx(expected, abs=1e-12)
    drawing = np.random.default_rng(6)
    for found in resampled(pair, values, np.random.default_rng(6), 5):
        drawn = drawing.integers(3, size=3)
        assert found == pytest.approx(np.array(by_hand(truth, a[drawn])) - by_hand(truth, b[drawn]), abs=1e-12)


def test_effects_on_a_divergence_are_pseudo_values_of_leaving_each_resident_out(
    truth: dict[str, NDArray[np.int64]],
) -> None:
    """n x all - (n - 1) x all but one, each computed from the days themselves."""
    rng = np.random.default_rng(2)
    a, b = histograms(rng, 5), histograms(rng, 5)
    found = effects(
        Pair(mobility.side_by_side(a), mobility.side_by_side(b)),
        partial(mobility.figures, truth),
    )
    observed = np.array(by_hand(truth, a)) - by_hand(truth, b)
    for user in range(5):
        others = [by_hand(truth, np.delete(side, user, axis=0)) for side in (a, b)]
        expected = 5 * observed - 4 * (np.array(others[0]) - others[1])
        assert found[user] == pytest.approx(expected, abs=1e-11)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=2, max_size=20))
def test_effects_on_a_mean_are_the_users_own_differences(values: list[tuple[int, int]]) -> None:
    """And their spread gives the standard error of the mean of these, as scipy has it."""
    a, b = (np.array(side) / 8 for side in zip(*values, strict=True))
    parts = effects(means(a, b), MEANS)[:, 0]
    assert parts == pytest.approx(a - b, abs=1e-12)
    assert standard_error([parts]) == pytest.approx(float(stats.sem(a - b)), abs=1e-12)


# What must hold


def test_swaps_of_several_strata_are_drawn_apart_and_shown_apart() -> None:
    """Two platforms of two users have sixteen swaps together, each platform's four differences four times each."""
    pairs = [means([1.0, 0.5], [0.0, 0.0]), means([0.25, 0.0], [0.0, 0.125])]
    swaps = swapped(pairs, MEANS, np.random.default_rng(0), 16)
    assert swaps.whole
    first = np.sort(swaps.differences[0, :, 0])
    np.testing.assert_allclose(first, np.repeat([-0.75, -0.25, 0.25, 0.75], 4))
    assert len({tuple(column) for column in swaps.differences[:, :, 0].T.round(9).tolist()}) == 16


def test_identical_sides_differ_nowhere() -> None:
    """The interval is a point, p is 1, everybody is alike, and no number of users is named."""
    values, _ = users(3, 30)
    pair = means(values, values)
    found = resampled(pair, MEANS, np.random.default_rng(0), 100).T
    swaps = swapped([pair], MEANS, np.random.default_rng(0), 100)
    assert interval(found, 0.0, [30]) == (0.0, 0.0)
    assert p_value(swaps.differences[0, :, 0], 0.0, swaps.whole) == 1.0
    assert alike(pair, np.array([[True, True]])).all()
    assert users_needed(30, standard_error([effects(pair, MEANS)[:, 0]])) is None


def test_one_user_has_no_interval_and_no_error() -> None:
    """One user says nothing of how users differ; swapping it gives p = 1."""
    pair = means([1.0], [0.0])
    swaps = swapped([pair], MEANS, np.random.default_rng(0))
    assert interval(np.ones((1, 100)), 1.0, [1]) is None
    assert p_value(swaps.differences[0, :, 0], 1.0, swaps.whole) == 1.0
    assert standard_error([effects(pair, MEANS)[:, 0]]) is None
    assert effects(pair, MEANS)[0, 0] == 1.0


def test_a_figure_that_nobody_has_is_undefined_and_never_0() -> None:
    """No difference, no interval, no p-value, no effect."""
    pair = means([NAN, NAN], [NAN, NAN])
    observed = float(pair.difference(MEANS)[0])
    assert math.isnan(observed)
    assert interval(resampled(pair, MEANS, np.random.default_rng(0), 50).T, observed, [0]) is None
    swaps = swapped([pair], MEANS, np.random.default_rng(0), 50)
    assert p_value(swaps.differences[0, :, 0], observed, swaps.whole) is None
    assert np.isnan(effects(pair, MEANS)).all()


def test_users_needed_is_the_number_that_has_the_power() -> None:
    """For the number named, a normal difference of one point is found in 80 % of data sets at 5 %."""
    spread, asked = 0.2, users_needed(50, 0.2 / math.sqrt(50))
    assert asked == math.ceil(((1.959964 + 0.841621) * spread / 0.01) ** 2)
    shift = 0.01 / (spread / math.sqrt(asked))
    power = stats.norm.sf(1.959964 - shift) + stats.norm.cdf(-1.959964 - shift)
    assert power == pytest.approx(0.8, abs=1e-3)


def test_standard_error_of_a_mean_of_platforms_weighs_each_the_same() -> None:
    """The root of the sum of squared errors, by the number of platforms."""
    rng = np.random.default_rng(0)
    parts = [rng.random(9), rng.random(25)]
    expected = math.hypot(*(float(stats.sem(part)) for part in parts)) / 2
    assert standard_error(parts) == pytest.approx(expected)


@settings(max_examples=20)
@given(st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_chunks_change_nothing(number: int, seed: int) -> None:
    """However few weights are held at once, the resamples are the same numbers."""
    a, b = users(seed, number)
    whole = resampled(means(a, b), MEANS, np.random.default_rng(seed), 30)
    parts = np.random.default_rng(seed)
    one_by_one = np.concatenate([resampled(means(a, b), MEANS, parts, 1) for _ in range(30)])
    np.testing.assert_allclose(whole, one_by_one, atol=1e-12)


def test_one_user_of_a_stratum_leaves_no_interval() -> None:
    """Nothing is known of how users of that stratum differ, however many the other has."""
    drawn = np.stack([np.zeros(50), np.random.default_rng(0).normal(size=50)])
    assert interval(drawn, 0.0, [1, 200]) is None
    assert interval(drawn, 0.0, [2, 200]) is not None


def test_rounding_makes_nobody_unlike() -> None:
    """Values that differ by the order of their sum are the same; a thousandth of a point is not."""
    pair = means([0.1 + 0.2 + 0.3, 0.5], [0.3 + 0.2 + 0.1, 0.50001])
    assert pair.a[0, 0] != pair.b[0, 0]
    assert alike(pair, np.array([[True, True]])).tolist() == [[True], [False]]


@pytest.mark.parametrize("sizes", [(60,), (5, 200), (5, 100, 100)])
def test_interval_covers_the_true_difference_as_often_as_it_says(sizes: tuple[int, ...]) -> None:
    """Over 200 data sets, the true difference 0.05 lies inside about 95 times in 100, of few users on a platform too
    (bench/coverage.py has the whole study)."""
    rng, inside = np.random.default_rng(11), 0
    for _ in range(200):
        bases = [rng.beta(2, 5, users) for users in sizes]
        pairs = [means(base + rng.normal(0.05, 0.1, len(base)), base) for base in bases]
        observed = float(np.mean([pair.difference(MEANS)[0] for pair in pairs]))
        drawn = np.stack([resampled(pair, MEANS, rng, 200)[:, 0] for pair in pairs])
        found = interval(drawn, observed, sizes)
        assert found is not None
        inside += found[0] <= 0.05 <= found[1]
    assert 0.91 <= inside / 200 <= 0.985
