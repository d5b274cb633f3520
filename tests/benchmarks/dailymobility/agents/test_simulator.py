"""A resident's place in time, and what is measured of a day (harness/benchmarks/dailymobility/)."""

from __future__ import annotations

from math import isclose
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.benchmarks.agents.city import Aoi, City
from harness.benchmarks.agents.resident import Row
from harness.benchmarks.agents.simulator import Walker
from harness.benchmarks.dailymobility.day import (
    gyration_radius,
    intention_sequence,
    proportions,
    visited,
)
from tests.support.agent_town import lanes_of

CENTROIDS = {1: (0.0, 0.0), 2: (3000.0, 4000.0), 3: (3000.0, 0.0), 4: (0.0, 3000.0), 5: (0.0, 0.0)}
AOIS = {number: Aoi(number, x, y, ((x, y),), 0.0, "", ()) for number, (x, y) in CENTROIDS.items()}
CITY = City(AOIS, {}, lanes_of({}), "", "")
STREETS = City(
    AOIS,
    {},
    lanes_of({10: ((0.0, 50.0), (3000.0, 50.0)), 11: ((0.0, -60.0), (3000.0, -60.0))}),
    "",
    "",
)

DRIVE_3000 = 3000 * 1.3 / 8
"""Seconds from 1 to 3 by car: 487.5."""


def test_a_resident_starts_at_home():
    """In the AOI, at its centroid, not moving, and stays there as time passes."""
    walker = Walker(CITY, 2)
    walker.advance(86_400)
    assert (walker.aoi, walker.moving, walker.mode) == (2, False, None)
    assert walker.position == {
        "xy_position": {"x": 3000.0, "y": 4000.0, "z": 0.0},
        "aoi_position": {"aoi_id": 2},
    }


def test_driving_takes_the_line_times_1_3_at_8_metres_a_second():
    """5000 m take 812.5 s: on the way just before, there at that moment."""
    walker = Walker(CITY, 1)
    walker.go_to(2)
    walker.advance(812.4)
    assert (walker.aoi, walker.moving, walker.mode) == (None, True, "driving")
    walker.advance(0.1 + 1e-9)
    assert (walker.aoi, walker.moving, walker.xy) == (2, False, (3000.0, 4000.0))


def test_walking_goes_at_1_34_metres_a_second():
    """3000 m take 2910.4 s."""
    walker = Walker(CITY, 1)
    walker.go_to(3, "walking")
    walker.advance(2910.4)
    assert (walker.aoi, walker.mode) == (None, "walking")
    walker.advance(0.1)
    assert walker.aoi == 3


def test_who_arrives_in_mid_step_stays_for_the_rest():
    """487.5 s of a step of 900 are enough; the rest does not lead beyond."""
    walker = Walker(CITY, 1)
    walker.go_to(3)
    walker.advance(900)
    assert (walker.aoi, walker.xy) == (3, (3000.0, 0.0))


def test_on_the_way_a_resident_is_on_the_straight_line():
    """After half of the time, half of the line."""
    walker = Walker(CITY, 1)
    walker.go_to(3)
    walker.advance(DRIVE_3000 / 2)
    assert walker.xy == pytest.approx((1500.0, 0.0))


def test_going_where_one_is_changes_nothing():
    """Nobody sets out, whatever the mode."""
    walker = Walker(CITY, 3)
    walker.go_to(3)
    walker.go_to(3, "walking")
    assert (walker.aoi, walker.moving) == (3, False)


def test_saying_the_same_destination_again_changes_nothing():
    """Agents say it at every step: to the last bit they are where one is who said it once."""
    once, again = Walker(CITY, 1), Walker(CITY, 1)
    once.go_to(2)
    while once.moving:
        again.go_to(2)
        assert again.xy == once.xy
        for walker in (once, again):
            walker.advance(97.3)
    assert (again.aoi, again.xy) == (2, once.xy)


def test_a_new_destination_on_the_way_starts_from_there():
    """From half-way between 1 and 3, back to 1 takes half of the time again."""
    walker = Walker(CITY, 1)
    walker.go_to(3)
    walker.advance(DRIVE_3000 / 2)
    walker.go_to(1)
    walker.advance(DRIVE_3000 / 2 - 0.01)
    assert walker.aoi is None
    walker.advance(0.02)
    assert walker.aoi == 1


def test_another_mode_on_the_way_takes_over_from_there():
    """Half-way by car, then on foot: 1500 m at 1.34 m/s."""
    walker = Walker(CITY, 1)
    walker.go_to(3)
    walker.advance(DRIVE_3000 / 2)
    walker.go_to(3, "walking")
    walker.advance(1500 * 1.3 / 1.34 - 0.01)
    assert (walker.aoi, walker.mode) == (None, "walking")
    walker.advance(0.02)
    assert walker.aoi == 3


def test_no_distance_takes_no_time():
    """AOIs 1 and 5 have the same centroid; one is in the other at once."""
    walker = Walker(CITY, 1)
    walker.go_to(5)
    assert (walker.aoi, walker.moving) == (5, False)


@given(st.lists(st.floats(0.1, 900), min_size=1, max_size=20), st.sampled_from([2, 3, 4]))
def test_how_time_is_cut_does_not_matter(steps, to):
    """Many short steps lead where one long one leads."""
    cut, whole = Walker(CITY, 1), Walker(CITY, 1)
    for walker in (cut, whole):
        walker.go_to(to)
    for seconds in steps:
        cut.advance(seconds)
    whole.advance(sum(steps))
    assert all(
        isclose(one, other, abs_tol=1e-6) for one, other in zip(cut.xy, whole.xy, strict=True)
    )


def on_the_way(city: City) -> dict[str, Any]:
    walker = Walker(city, 1)
    walker.go_to(3)
    walker.advance(DRIVE_3000 / 2)
    return walker.position


def test_on_the_way_the_position_names_the_nearest_lane():
    """And how far along it; there is no AOI then."""
    position = on_the_way(STREETS)
    assert set(position) == {"xy_position", "lane_position"}
    assert position["lane_position"] == {"lane_id": 10, "s": pytest.approx(1500.0)}
    assert position["xy_position"] == {"x": pytest.approx(1500.0), "y": 0.0, "z": 0.0}


def test_a_city_without_lanes_has_lane_0():
    """So that an agent finds the shape that it expects."""
    assert on_the_way(CITY)["lane_position"] == {"lane_id": 0, "s": 0.0}


def test_a_position_is_a_copy():
    """An agent that writes into what it was given moves nobody."""
    walker = Walker(CITY, 1)
    walker.position["xy_position"]["x"] = 77.0
    assert walker.position["xy_position"]["x"] == 0.0


def rows(
    *spans: tuple[int | None, int], intentions: tuple[tuple[str | None, int], ...] = ()
) -> list[Row]:
    places = [place for place, count in spans for _ in range(count)]
    said = [intention for intention, count in intentions for _ in range(count)] or ["sleep"] * len(
        places
    )
    return [Row(place, intention) for place, intention in zip(places, said, strict=True)]


def radius(day: list[Row]) -> float:
    return gyration_radius([CENTROIDS[place] for place in visited(day)])


def test_a_day_at_home_has_one_place_and_no_radius():
    """Exactly 0.0, not nearly."""
    day = rows((1, 100))
    assert (visited(day), radius(day)) == ((1,), 0.0)


def test_a_working_day_has_two_places_half_their_distance_and_its_intentions():
    """AOI 1 for 30 rows, a lane for 5, AOI 2 for 40, AOI 1 for 25."""
    day = rows(
        (1, 30),
        (None, 5),
        (2, 40),
        (1, 25),
        intentions=(("sleep", 30), ("work", 45), ("home activity", 25)),
    )
    assert (visited(day), radius(day)) == ((1, 2), 2500.0)
    assert intention_sequence(day) == (1,) * 15 + (4,) * 23 + (2,) * 10
    assert proportions(intention_sequence(day)) == (15 / 48, 10 / 48, 0.0, 23 / 48, 0.0, 0.0, 0.0)


def test_three_places_have_the_mean_distance_from_their_mean():
    """Not the root of a mean square; by how often or long they were visited nothing is weighted."""
    assert radius(rows((1, 10), (3, 60), (1, 20), (4, 10))) == 1962.1165057908918


def test_places_of_the_next_day_count():
    """AOI 2 only in rows 96 to 99 still makes two places."""
    assert visited(rows((1, 96), (2, 4))) == (1, 2)


def test_intentions_of_the_next_day_do_not_count():
    """48 of them, from rows 0, 2, ..., 94."""
    day = rows(
        (1, 100), intentions=(("sleep", 94), ("work", 1), ("shopping", 1), ("eating out", 4))
    )
    assert intention_sequence(day) == (1,) * 47 + (4,)


@pytest.mark.parametrize("said", ["Planning", None, "Sleep "])
def test_what_is_no_intention_is_other(said):
    """Words are compared exactly."""
    assert intention_sequence(rows((1, 100), intentions=((said, 100),))) == (3,) * 48


def test_proportions_are_counts_of_48():
    """In the order of the intentions' numbers."""
    assert proportions((1, 2, 3, 4, 5, 6, 7) * 6 + (7,) * 6) == (*[6 / 48] * 6, 12 / 48)


points = st.lists(st.tuples(st.floats(-1e5, 1e5), st.floats(4e6, 5e6)), min_size=1, max_size=9)


@given(points, st.randoms())
def test_the_radius_is_the_benchmarks_and_knows_no_order(at, random):
    """Within rounding the mean of distances as numpy has it, and to the last bit the same for any
    order of visits."""
    xy = np.array(at)
    expected = np.mean(np.sqrt(((xy - np.mean(xy, axis=0)) ** 2).sum(axis=1)))
    assert gyration_radius(at) == pytest.approx(float(expected), abs=1e-6)
    shuffled = list(at)
    random.shuffle(shuffled)
    assert gyration_radius(shuffled) == gyration_radius(at)


def test_no_place_has_no_radius():
    """A mean of nothing is not a number; a resident is at home at least."""
    with pytest.raises(ValueError, match="needs a place"):
        gyration_radius([])
