"""The three protocols of DailyMobility: bins by hand, scipy as the independent computation, what is
undefined."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.spatial.distance import jensenshannon

from harness.benchmarks.dailymobility import groundtruth
from harness.benchmarks.dailymobility.day import SLOTS
from harness.benchmarks.dailymobility.divergence import divergence
from harness.benchmarks.dailymobility.groundtruth import Column, GroundTruth, Lists
from harness.benchmarks.dailymobility.protocols import (
    LOCATIONS,
    METRICS,
    NARROW,
    NOBODY,
    OUTSIDE,
    PROPORTIONS,
    RADIUS,
    SEQUENCES,
    Numbers,
    Outcome,
    Sample,
    Support,
    agentsociety2,
    aligned,
    all_protocols,
    asbench,
)
from tests.support import ROOT

DATA = os.environ.get("HARNESS_DM_DATA")


def some_lists(seed: int, residents: int = 40) -> Lists:
    rng = np.random.default_rng(seed)
    sequences = rng.choice(7, size=(residents, 48), p=rng.dirichlet(np.ones(7))) + 1
    columns: dict[str, Column] = {
        RADIUS: rng.lognormal(7.5, 1.0, residents),
        LOCATIONS: rng.integers(1, 6, residents).astype(np.float64),
        SEQUENCES: sequences.astype(np.uint8),
        PROPORTIONS: np.stack(
            [(sequences == number).mean(axis=1) for number in range(1, 8)], axis=1
        ),
    }
    return Lists(columns)


def with_radii(sample: Sample, *radii: float) -> Sample:
    return {**sample, RADIUS: Numbers.count(np.array(radii, dtype=np.float64))}


def by_scipy(truth: Lists, sample: Lists, *, edges_of_truth: bool) -> list[float]:
    """The root protocols, written again on the plain lists with numpy's own density and scipy's
    distance."""

    def one(metric: str) -> float:
        real, made = truth.columns[metric].ravel(), sample.columns[metric].ravel()
        expected, edges = np.histogram(real, bins=50, density=True)
        found, _ = np.histogram(made, bins=edges if edges_of_truth else 50, density=True)
        return float(jensenshannon(expected + 1e-10, found + 1e-10))

    return [one(metric) for metric in METRICS]


# asbench and agentsociety2


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_asbench_is_the_distance_over_each_sides_own_range(a, b):
    """Two sets of residents; the tallies that are compared lead to what the plain lists do."""
    truth, sample = some_lists(a), some_lists(b)
    found = asbench(truth.sample, sample.sample)
    assert list(found.divergences.values()) == pytest.approx(
        by_scipy(truth, sample, edges_of_truth=False), abs=1e-7
    )


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_agentsociety2_is_the_distance_over_the_ground_truths_range(a, b):
    """As above, with the ground truth's edges for both."""
    truth, sample = some_lists(a), some_lists(b)
    found = agentsociety2(truth.sample, sample.sample)
    assert list(found.divergences.values()) == pytest.approx(
        by_scipy(truth, sample, edges_of_truth=True), abs=1e-7
    )


def test_asbench_is_blind_to_shift_and_unit():
    """Radii in kilometres, and all ten kilometres longer, score (nearly) the same; aligned
    falls."""
    truth = some_lists(1).sample
    radii = some_lists(1).columns[RADIUS]
    other = with_radii(truth, *(radii / 1000 + 10))
    assert asbench(truth, other).final == pytest.approx(100.0, abs=0.1)
    assert (aligned(truth, other).final or 0) < 80


def test_asbench_cannot_fall_below_16_7():
    """Four distances of disjoint histograms are the root of ln 2 each: 100 x (1 - 0.8326) =
    16.74."""
    a = Numbers.count(np.array([0.0, 1.0]))
    b = Numbers(np.array([0.0, 0.5, 1.0]), np.array([1, 10**12, 1]))
    worst = asbench(dict.fromkeys(METRICS, a), dict.fromkeys(METRICS, b)).final
    assert worst == pytest.approx(100 * (1 - math.sqrt(math.log(2))), abs=0.01)


def test_agentsociety2_is_undefined_where_everything_lies_outside():
    """No radius within the ground truth's range: that divergence and the score are null, with the
    reason."""
    truth = some_lists(1).sample
    found = agentsociety2(truth, with_radii(truth, 1e7, 2e7))
    data = found.as_json()
    assert (data["jsd_gyration_radius"], data["final_score"]) == (None, None)
    assert data["jsd_intention_sequences"] == 0.0
    assert data["reason"] == f"gyration_radius: {OUTSIDE}"


@pytest.mark.parametrize(
    "radii", [(1e17, 1e17), (1000.0, 1000.0 + 2e-13), (0.0, 5e-324), (0.0, 1e-320)]
)
def test_asbench_is_undefined_where_no_bins_fit(radii):
    """Values so close that 50 bins between them have no width: null with the reason, not NaN and no
    warning."""
    truth = some_lists(1).sample
    found = asbench(truth, with_radii(truth, *radii))
    assert (found.final, found.reasons) == (None, {RADIUS: NARROW})


def test_without_residents_every_protocol_is_undefined():
    """An empty sample has no distribution: one reason for all four."""
    truth = some_lists(1).sample
    nobody = dict.fromkeys(METRICS, Numbers(np.empty(0), np.empty(0, dtype=np.int64)))
    for outcome in all_protocols(truth, nobody).values():
        assert outcome.as_json() == {
            **{f"jsd_{name}": None for name in METRICS},
            "final_score": None,
            "reason": NOBODY,
        }


@given(st.lists(st.floats(0, 1.7e308), min_size=1, max_size=5))
def test_no_protocol_is_ever_nan(radii):
    """Whatever the radii, a final score is a number from 0 to 100 or null with a reason."""
    truth = some_lists(1).sample
    for outcome in all_protocols(truth, with_radii(truth, *radii)).values():
        final = outcome.final
        assert (final is None) == bool(outcome.reasons)
        assert final is None or 0 <= final <= 100


# aligned


def bins(metric: str, *values: float) -> list[int]:
    return [int(place) for place in Support(100.0).place(metric, np.array(values))]


def test_radii_lie_in_50_bins_up_to_the_ground_truths_greatest_and_an_overflow():
    """With 100 as the greatest a bin is 2 wide, closed below; 100 itself is inside, and beyond it
    is bin 50."""
    assert bins(RADIUS, 0.0, 1.999, 2.0, 99.9, 100.0, 100.0001, 1e9) == [0, 0, 1, 49, 49, 50, 50]


def test_locations_lie_in_bins_around_whole_numbers():
    """[k - 0.5, k + 0.5) for 1 to 10, with one below and one above; 2.5 belongs to 3."""
    assert bins(LOCATIONS, 0.4, 0.5, 1.0, 1.499, 1.5, 2.5, 10.49, 10.5, 99.0) == [
        0,
        1,
        1,
        1,
        2,
        3,
        10,
        11,
        11,
    ]


def test_a_value_just_below_a_half_is_not_rounded_up():
    """2.4999999999999996 + 0.5 is 3.0 in floating point, yet it lies below 2.5."""
    assert bins(LOCATIONS, 2.4999999999999996) == [2]


def test_proportions_lie_in_50_bins_from_0_to_1():
    """A bin is 0.02 wide; 1 belongs to the last; 24 of 48 slots are exactly the edge 0.5."""
    assert bins(PROPORTIONS, 0.0, 0.019, 0.02, 24 / 48, 0.98, 1.0) == [0, 0, 1, 25, 49, 49]


def test_the_aligned_score_by_hand():
    """Truth {0, 100}, sample {0, 200}: half of each side is shared, JSD 0.5; else equal: (3 + 0.5)
    / 4 = 87.5."""
    truth = with_radii(some_lists(1).sample, 0.0, 100.0)
    found = aligned(truth, with_radii(truth, 0.0, 200.0))
    assert found.divergences[RADIUS] == pytest.approx(0.5)
    assert found.final == pytest.approx(87.5)


# All


def test_anything_scores_100_against_itself():
    """Exactly 100, in all three."""
    sample = some_lists(3).sample
    assert [outcome.final for outcome in all_protocols(sample, sample).values()] == [
        100.0,
        100.0,
        100.0,
    ]


def test_only_the_divergence_per_slot_sees_the_order_of_a_day():
    """All days turned by 12 hours: 100 in every protocol, yet at each half hour the intentions
    differ."""
    lists = some_lists(4)
    sequences = np.sort(lists.columns[SEQUENCES], axis=1)
    day, turned = (
        Lists({**lists.columns, SEQUENCES: at})
        for at in (sequences, np.roll(sequences, 24, axis=1))
    )
    assert [outcome.final for outcome in all_protocols(day.sample, turned.sample).values()] == [
        100.0,
        100.0,
        100.0,
    ]
    by_slot = divergence(day.slots, turned.slots)
    assert by_slot.shape == (48,) and by_slot.mean() > 0.2


def test_the_divergence_per_slot_is_that_of_each_slots_intentions():
    """Slot 0: all asleep against half asleep, half at work, 0.31 bits; equal elsewhere."""
    truth = np.ones((2, 48), dtype=np.uint8)
    sample = truth.copy()
    sample[1, 0] = 4
    found = divergence(*(groundtruth.count_slots(days) for days in (truth, sample)))
    assert found.tolist() == pytest.approx([0.31127812445913283, *[0.0] * 47])


# The published ground truth


@pytest.fixture(scope="module")
def real() -> GroundTruth:
    if not DATA:
        pytest.skip("HARNESS_DM_DATA names no folder with the published ground truth")
    return groundtruth.load(Path(DATA))


def test_real_radii_in_kilometres_are_seen_by_aligned_only(real):
    """99.99 under asbench, 76.78 under aligned (and 79.94 under agentsociety2)."""
    radii: NDArray[np.floating | np.integer] = real.lists.columns[RADIUS] / 1000
    found: dict[str, Outcome] = all_protocols(
        real.sample, Lists({**real.lists.columns, RADIUS: radii}).sample
    )
    finals = {name: round(outcome.final or 0, 2) for name, outcome in found.items()}
    assert finals == {"aligned": 76.78, "asbench": 99.99, "agentsociety2": 79.94}


def test_real_residents_may_exchange_their_values_and_still_score_100(real):
    """Each list in an order of its own: no protocol looks at who lives which day."""
    rng = np.random.default_rng(1)
    columns = {name: rng.permutation(column) for name, column in real.lists.columns.items()}
    assert [
        found.final for found in all_protocols(real.sample, Lists(columns).sample).values()
    ] == [100.0] * 3


def test_one_day_for_all_real_residents_scores_what_the_page_says(real):
    """The half hours of each intention, two places, and the quantiles of exponential radii of 3 km
    on average."""
    spent, radii = (
        np.array([20, 10, 2, 15, 0, 0, 1]),
        -3000 * np.log1p(-(np.arange(100) + 0.5) / 100),
    )
    day: dict[str, Column] = {
        LOCATIONS: np.full(100, 2.0),
        SEQUENCES: np.tile(np.repeat(np.arange(1, 8), spent), (100, 1)),
        PROPORTIONS: np.tile(spent / SLOTS, (100, 1)),
    }
    page = (ROOT / "docs" / "dailymobility.md").read_text(encoding="utf-8")
    for of in (radii, np.full(100, 3000.0)):
        found = all_protocols(real.sample, Lists({**day, RADIUS: of}).sample)
        assert f"| {' | '.join(f'{outcome.final:.2f}' for outcome in found.values())} |" in page
