"""Paired comparisons: scipy and brute force as the independent computations, and what small data
must give."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from harness.benchmark import Benchmark, Metric
from harness.benchmarks.dailymobility import scores as mobility
from harness.benchmarks.dailymobility.protocols import METRICS, SIZES, figures
from harness.scoring.bootstrap import Array
from harness.scoring.compared import Figures
from harness.scoring.intervals import Figures as Values
from harness.scoring.intervals import interval, moments
from harness.scoring.paired import (
    RESAMPLES,
    Pair,
    Swapped,
    alike,
    effects,
    max_t,
    p_value,
    simultaneous_level,
    swapped,
    variance,
)
from tests.support import examples, first_quick

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


def swapped_all(
    pairs: Sequence[Pair], values: Values, rng: np.random.Generator, permutations: int
) -> Swapped:
    """Swap the sides of users, of whom no two strata have one in common."""
    among, ends = sum(len(pair.a) for pair in pairs), np.cumsum([len(pair.a) for pair in pairs])
    return swapped(pairs, values, rng, permutations, np.split(np.arange(among), ends[:-1]), among)


# Against scipy


@pytest.mark.parametrize("seed", range(5))
def test_exact_p_value_is_scipys_where_all_swaps_can_be_listed(seed):
    """Eight users have 256 swaps: the same p-value to the last bit, ties included."""
    a, b = users(seed, 8)
    theirs = stats.permutation_test(
        (a, b), mean_difference, permutation_type="samples", n_resamples=256
    )
    swaps = swapped_all([means(a, b)], MEANS, np.random.default_rng(0), 256)
    assert swaps.is_complete and swaps.differences.shape == (1, 256, 1)
    assert (
        p_value(swaps.differences[0, :, 0], float(a.mean() - b.mean()), swaps.is_complete)
        == theirs.pvalue
    )


def test_random_swaps_come_close_to_all_of_them():
    """With 5,000 of the 65,536 swaps of 16 users, p is within four standard errors of the exact
    one."""
    a, b = users(7, 16)
    observed = float(a.mean() - b.mean())
    exact, some = (
        swapped_all([means(a, b)], MEANS, np.random.default_rng(3), number)
        for number in (65_536, 5_000)
    )
    p, estimate = (
        p_value(found.differences[0, :, 0], observed, found.is_complete) for found in (exact, some)
    )
    assert exact.is_complete and not some.is_complete
    assert p is not None and estimate == pytest.approx(p, abs=4 * math.sqrt(p / 5_000))


@pytest.mark.parametrize("whole", [True, False])
def test_max_t_is_the_step_down_rule_written_out(whole):
    """Of each rank: how often the largest of that figure and all smaller ones is as far, never less
    than of a larger one; on data of three figures of unlike units."""
    rng = np.random.default_rng(5)
    swaps = rng.normal(size=(400, 3)) @ np.array([[1, 0.5, 0], [0, 1, 0.2], [0, 0, 3.0]])
    observed = np.array([2.1, -2.6, 4.0])
    scale = np.sqrt((swaps**2).mean(axis=0))
    far, real = np.abs(swaps) / scale, np.abs(observed) / scale
    expected, largest = {}, 0.0
    ranked = sorted(range(3), key=lambda figure: -real[figure])
    for rank, figure in enumerate(ranked):
        times = int((far[:, ranked[rank:]].max(axis=1) >= real[figure]).sum())
        largest = max(largest, times / 400 if whole else (1 + times) / 401)
        expected[figure] = largest
    assert max_t(swaps, observed, whole) == pytest.approx([expected[figure] for figure in range(3)])


def test_max_t_of_one_figure_is_its_p_value_and_no_figure_gains_from_others():
    """Adjusted p-values are at least those alone; a figure without a difference has 1 and costs the
    others nothing."""
    rng = np.random.default_rng(6)
    swaps, observed = rng.normal(size=(300, 2)), np.array([1.5, 2.5])
    alone = [p_value(swaps[:, figure], observed[figure], is_complete=False) for figure in (0, 1)]
    assert [max_t(swaps[:, [figure]], observed[[figure]], False)[0] for figure in (0, 1)] == alone
    both = max_t(swaps, observed, False)
    assert all(p >= (one or 0) for p, one in zip(both, alone, strict=True))
    still = max_t(np.column_stack([swaps, np.full(300, 1e-17)]), np.append(observed, 0.0), False)
    assert still == [*both, 1.0]


def test_users_are_swapped_together_in_all_comparisons():
    """Two comparisons that share users, from one generator: what both have in common is swapped in
    the same draws."""
    one, other = means([1.0, 0.5, 0.25], [0.0, 0.0, 0.0]), means([0.5, 1.0], [0.0, 0.0])
    first, second = (
        swapped([pair], MEANS, np.random.default_rng(0), 200, [np.array(places)], 80).differences[
            0, :, 0
        ]
        for pair, places in ((one, [3, 70, 1]), (other, [70, 3]))
    )
    signs = np.random.default_rng(0).bytes(200 * 10)
    flips = np.unpackbits(np.frombuffer(signs, np.uint8)).reshape(200, 80)
    by_hand = 1 - 2 * flips.astype(float)
    assert first == pytest.approx(by_hand[:, [3, 70, 1]] @ [1.0, 0.5, 0.25] / 3)
    assert second == pytest.approx(by_hand[:, [70, 3]] @ [0.5, 1.0] / 2)


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_max_t_keeps_the_error_of_a_family_and_nears_it(correlation):
    """Eight figures without any difference, 400 data sets of 40 users: one of them is below 5 % in
    about 5 of 100, also where they are correlated, in which Bonferroni's rule rejects far less."""
    rng, some, bonferroni = np.random.default_rng(9), 0, 0
    for _ in range(400):
        shared = rng.standard_normal((40, 1))
        values = correlation**0.5 * shared + (1 - correlation) ** 0.5 * rng.standard_normal((40, 8))
        flips = 1 - 2 * rng.integers(0, 2, (299, 40))
        swaps, observed = flips @ values / 40, values.mean(axis=0)
        some += min(max_t(swaps, observed, False)) <= 0.05
        bonferroni += (
            min(p_value(swaps[:, figure], observed[figure], False) or 1 for figure in range(8))
            <= 0.05 / 8
        )
    assert 0.03 <= some / 400 <= 0.075
    if correlation:
        assert bonferroni < 0.6 * some


def test_the_simultaneous_level_of_one_figure_is_that_of_its_own():
    """One figure, or several that are the same one: 95 %; two unrelated ones: that of Sidak's
    rule."""
    rng = np.random.default_rng(11)
    one, other = (rng.standard_normal(1000) for _ in range(2))
    assert simultaneous_level(one[:, None], rng) == 0.95
    assert simultaneous_level(
        np.column_stack([one, 3 * one, np.zeros(1000)]), rng
    ) == pytest.approx(0.95, abs=6e-3)
    two = simultaneous_level(np.column_stack([one, other]), rng)
    assert two == pytest.approx(0.95**0.5, abs=5e-3)


# By brute force


def histograms(rng: np.random.Generator, number: int) -> NDArray[np.uint8]:
    """Rows as the scores of DailyMobility have them: bins of radius and locations, slots by
    intention."""
    spent = rng.multinomial(48, rng.dirichlet(np.ones(7)), size=number)
    return np.column_stack(
        [rng.integers(51, size=number), rng.integers(12, size=number), spent]
    ).astype(np.uint8)


@pytest.fixture(scope="module")
def truth() -> dict[str, NDArray[np.int64]]:
    rng = np.random.default_rng(0)
    return {
        metric: rng.integers(0, 9, SIZES[metric]) + (np.arange(SIZES[metric]) == 3)
        for metric in METRICS
    }


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
                    counts[
                        min(
                            49,
                            int(np.searchsorted(np.linspace(0, 1, 51), slots / 48, side="right"))
                            - 1,
                        )
                    ] += 1
        found.append(jsd_by_hand(truth[metric], counts))
    return [1 - sum(found) / 4, *found]


def test_divergences_of_swapped_days_are_those_of_the_days_counted_again(
    truth,
):
    """All eight swaps of three residents: histograms made by loops over the days."""
    rng = np.random.default_rng(1)
    a, b = histograms(rng, 3), histograms(rng, 3)
    pair = Pair(*(mobility.side_by_side(side).astype(np.float64) for side in (a, b)))
    values = partial(figures, np.concatenate([truth[metric] for metric in METRICS]))
    swaps = swapped_all([pair], values, rng, 8)
    for number in range(8):
        flipped = np.array([[number >> user & 1] for user in range(3)], dtype=bool)
        expected = np.array(by_hand(truth, np.where(flipped, b, a))) - by_hand(
            truth, np.where(flipped, a, b)
        )
        assert swaps.differences[0, number] == pytest.approx(expected, abs=1e-12)


def test_effects_on_a_divergence_are_pseudo_values_of_leaving_each_resident_out(
    truth,
):
    """n x all - (n - 1) x all but one, each computed from the days themselves."""
    rng = np.random.default_rng(2)
    a, b = histograms(rng, 5), histograms(rng, 5)
    found = effects(
        Pair(*(mobility.side_by_side(side).astype(np.float64) for side in (a, b))),
        partial(figures, np.concatenate([truth[metric] for metric in METRICS])),
    )
    observed = np.array(by_hand(truth, a)) - by_hand(truth, b)
    for user in range(5):
        others = [by_hand(truth, np.delete(side, user, axis=0)) for side in (a, b)]
        expected = 5 * observed - 4 * (np.array(others[0]) - others[1])
        assert found[user] == pytest.approx(expected, abs=1e-11)


@settings(max_examples=examples(50))
@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=2, max_size=20))
def test_effects_on_a_mean_are_the_users_own_differences(values):
    """Whatever else the mean is made of."""
    a, b = (np.array(side) / 8 for side in zip(*values, strict=True))
    assert effects(means(a, b), MEANS)[:, 0] == pytest.approx(a - b, abs=1e-12)


# What must hold


def test_swaps_of_several_strata_are_drawn_apart_and_shown_apart():
    """Two platforms of two users have sixteen swaps together, each platform's four differences four
    times each."""
    pairs = [means([1.0, 0.5], [0.0, 0.0]), means([0.25, 0.0], [0.0, 0.125])]
    swaps = swapped_all(pairs, MEANS, np.random.default_rng(0), 16)
    assert swaps.is_complete
    first = np.sort(swaps.differences[0, :, 0])
    np.testing.assert_allclose(first, np.repeat([-0.75, -0.25, 0.25, 0.75], 4))
    assert len({tuple(column) for column in swaps.differences[:, :, 0].T.round(9).tolist()}) == 16


def test_identical_sides_differ_nowhere():
    """There is no interval, p is 1, everybody is alike."""
    values, _ = users(3, 30)
    pair = means(values, values)
    swaps = swapped_all([pair], MEANS, np.random.default_rng(0), 100)
    assert interval(0.0, [moments(effects(pair, MEANS)[:, 0])]) is None
    assert p_value(swaps.differences[0, :, 0], 0.0, swaps.is_complete) == 1.0
    assert alike(pair, np.array([[True, True]])).all()


def test_one_user_has_no_interval():
    """One user says nothing of how users differ; swapping it gives p = 1."""
    pair = means([1.0], [0.0])
    swaps = swapped_all([pair], MEANS, np.random.default_rng(0), RESAMPLES)
    assert p_value(swaps.differences[0, :, 0], 1.0, swaps.is_complete) == 1.0
    assert effects(pair, MEANS)[0, 0] == 1.0
    assert interval(1.0, [moments(effects(pair, MEANS)[:, 0])]) is None


def test_a_figure_that_nobody_has_is_undefined_and_never_0():
    """No difference, no p-value, no effect."""
    pair = means([NAN, NAN], [NAN, NAN])
    observed = float(pair.difference(MEANS)[0])
    assert math.isnan(observed)
    swaps = swapped_all([pair], MEANS, np.random.default_rng(0), 50)
    assert p_value(swaps.differences[0, :, 0], observed, swaps.is_complete) is None
    assert np.isnan(effects(pair, MEANS)).all()


def test_rounding_makes_nobody_unlike():
    """Values that differ by the order of their sum are the same; a thousandth of a point is not."""
    pair = means([0.1 + 0.2 + 0.3, 0.5], [0.3 + 0.2 + 0.1, 0.50001])
    assert pair.a[0, 0] != pair.b[0, 0]
    assert alike(pair, np.array([[True, True]])).tolist() == [[True], [False]]


# Ratios of sums


def ratio(totals: Array) -> Array:
    """Hits by answers."""
    with np.errstate(invalid="ignore", divide="ignore"):
        found: Array = totals[:, :1] / totals[:, 1:]
    return found


def unlike(rng: np.random.Generator, users: int) -> Pair:
    """Two runs that are right in half of their answers: one of a user for A, seven for B."""
    sides = (
        np.column_stack([rng.binomial(answers, 0.5, users), np.full(users, answers)])
        for answers in (1, 7)
    )
    return Pair(*(side.astype(np.float64) for side in sides))


def test_a_ratio_of_runs_that_err_differently_is_rejected_in_5_of_100():
    """Of 60 users and 300 data sets; a permutation of the plain difference rejects some 20 in
    100."""
    users, rejected = 60, {"plain": 0, "studentised": 0}
    drawn = np.random.default_rng(3)
    for seed in range(300):
        pair = unlike(drawn, users)
        rng, columns = np.random.default_rng(seed), [np.arange(users)]
        swaps = swapped([pair], ratio, rng, 200, columns, users, studentised=True)
        assert swaps.variances is not None
        real, error = (
            pair.difference(ratio)[0],
            variance(pair, np.zeros((1, users)), ratio)[0, 0] ** 0.5,
        )
        under, errors = swaps.differences[0, :, 0], swaps.variances[0, :, 0] ** 0.5
        rejected["plain"] += (p_value(under, real, swaps.is_complete) or 0) < 0.05
        rejected["studentised"] += (
            p_value(under / errors, real / error, swaps.is_complete) or 0
        ) < 0.05
    assert rejected["plain"] > 45
    assert 6 <= rejected["studentised"] <= 26


@pytest.mark.parametrize("gain", first_quick([0.0, 0.3]))
def test_all_pairs_of_runs_are_one_family(gain):
    """Four runs of 30 users, 300 data sets of all six pairs: two equal ones are found to differ in
    about 5 of 100 data sets or fewer, whether the first run is better than the others or not."""
    rng, wrong = np.random.default_rng(12), 0
    pairs = list(combinations(range(4), 2))
    for _ in range(300):
        runs = rng.beta(2, 5, (4, 30)) + gain * (np.arange(4) == 0)[:, None]
        both = [means(runs[a], runs[b]) for a, b in pairs]
        seed = int(rng.integers(2**32))
        found = [swapped_all([pair], MEANS, np.random.default_rng(seed), 199) for pair in both]
        observed = np.array([pair.difference(MEANS)[0] for pair in both])
        adjusted = max_t(
            np.column_stack([swaps.differences[0, :, 0] for swaps in found]), observed, False
        )
        wrong += any(p <= 0.05 for p, (a, _) in zip(adjusted, pairs, strict=True) if a or not gain)
    assert (0.02 if not gain else 0) <= wrong / 300 <= 0.075


@pytest.mark.parametrize("correlation", first_quick([0.9, 0.0]))
def test_simultaneous_intervals_hold_all_at_once(correlation):
    """Ten means of 60 users, 200 data sets: all are inside of their intervals in about 95 of 100,
    or in far fewer."""
    rng, together, each = np.random.default_rng(10), 0, 0
    for _ in range(200):
        shared = rng.standard_normal((60, 1))
        values = correlation**0.5 * shared + (1 - correlation) ** 0.5 * rng.standard_normal(
            (60, 10)
        )
        level = simultaneous_level((values - values.mean(axis=0)) / 60, rng, 1000)
        for name, chosen in (("together", level), ("each", 0.95)):
            spans = [interval(float(one.mean()), [moments(one)], level=chosen) for one in values.T]
            inside = all(span and span[0] <= 0 <= span[1] for span in spans)
            together, each = (
                together + (inside and name == "together"),
                each + (inside and name == "each"),
            )
    assert 0.91 <= together / 200 <= 0.99
    assert each < together - 5
