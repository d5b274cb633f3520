"""The map file as a city, and finding places in it
(harness/benchmarks/dailymobility/{city,spatial}.py)."""

from __future__ import annotations

import hashlib
import pickle
import sys
from dataclasses import FrozenInstanceError
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pycityproto.city.map.v2 import map_pb2
from shapely.geometry import LineString, Point, Polygon

from harness.benchmarks.agents.city import City, Poi, load_city, read_city
from harness.benchmarks.agents.spatial import Points
from harness.errors import BadInput
from tests.support.agent_town import lanes_of

PROJECTION = "+proj=tmerc +lat_0=39.9 +lon_0=116.4"
SQUARE = [(0.0, 0.0), (4.0, 0.0), (4.0, 4.0), (0.0, 4.0)]


def a_map() -> Any:
    """Two polygons, a point, three POIs and two lanes."""
    made = map_pb2.Map()
    made.header.projection = PROJECTION
    an_aoi(made, 500_000_000, SQUARE, area=16.0, use="R2", pois=[700_000_000, 700_000_001])
    an_aoi(made, 500_000_001, [(10.0, 0.0), (14.0, 0.0), (10.0, 3.0)], area=6.0, use="B1")
    an_aoi(made, 500_000_002, [(20.0, 5.0), (22.0, 9.0)])
    a_poi(made, 700_000_000, 1.0, 1.0, "amenity|restaurant", aoi=500_000_000)
    a_poi(made, 700_000_001, 3.0, 1.0, "leisure|park", aoi=500_000_000)
    a_poi(made, 700_000_002, 11.0, 1.0, "retail", aoi=500_000_001)
    a_lane(made, 7, [(0.0, -2.0), (10.0, -2.0)])
    a_lane(made, 3, [(0.0, 8.0), (10.0, 8.0), (10.0, 18.0)])
    made.roads.add(id=200_000_000, name="长安街", lane_ids=[7])
    return made


def an_aoi(
    made: Any,
    number: int,
    outline: list[tuple[float, float]],
    area: float | None = None,
    use: str = "",
    pois: Any = (),
) -> Any:
    aoi = made.aois.add(id=number, area=area, poi_ids=pois)
    if use:
        aoi.urban_land_use = use
    for x, y in outline:
        aoi.positions.add(x=x, y=y)
    return aoi


def a_poi(made: Any, number: int, x: float, y: float, category: str, aoi: int) -> Any:
    poi = made.pois.add(id=number, name=f"店{number}", category=category, aoi_id=aoi)
    poi.position.x, poi.position.y = x, y
    return poi


def a_lane(made: Any, number: int, nodes: list[tuple[float, float]]) -> None:
    lane = made.lanes.add(id=number)
    for x, y in nodes:
        lane.center_line.nodes.add(x=x, y=y)


def city_of(made: Any) -> City:
    return read_city(made.SerializeToString(), "some.pb")


def with_pois(places: list[tuple[float, float, str]]) -> City:
    pois = {
        number: Poi(number, f"店{number}", kind, x, y, 1)
        for number, (x, y, kind) in enumerate(places)
    }
    aois = {1: city_of(a_map()).aois[500_000_000]}
    return City(aois, pois, lanes_of({}), "", "")


def ids(pois: list[Poi]) -> list[int]:
    return [poi.id for poi in pois]


def test_a_city_is_what_its_map_file_says(tmp_path):
    """Areas, points of interest, lanes, projection and the file's own hash are all there; roads are
    not needed."""
    data = a_map().SerializeToString()
    (tmp_path / "beijing.pb").write_bytes(data)
    city = load_city(tmp_path / "beijing.pb")
    home = city.aois[500_000_000]
    assert (home.x, home.y, home.area, home.land_use) == (2.0, 2.0, 16.0, "R2")
    assert (home.outline, home.poi_ids) == (tuple(SQUARE), (700_000_000, 700_000_001))
    assert list(city.aois) == [500_000_000, 500_000_001, 500_000_002]
    assert city.pois[700_000_001] == Poi(
        700_000_001, "店700000001", "leisure|park", 3.0, 1.0, 500_000_000
    )
    assert dict(city.lanes) == {
        7: ((0.0, -2.0), (10.0, -2.0)),
        3: ((0.0, 8.0), (10.0, 8.0), (10.0, 18.0)),
    }
    assert (city.projection, city.sha256) == (PROJECTION, hashlib.sha256(data).hexdigest())


def test_an_aoi_without_an_area_is_the_first_of_its_positions():
    """As upstream's map reader has it; what has no use says so with an empty text."""
    point = city_of(a_map()).aois[500_000_002]
    assert (point.x, point.y, point.outline) == (20.0, 5.0, ((20.0, 5.0),))
    assert (point.area, point.land_use, point.poi_ids) == (0.0, "", ())


def test_an_area_of_zero_is_an_area():
    """A polygon is recognised by the field being there, not by its value."""
    made = a_map()
    an_aoi(made, 500_000_009, SQUARE, area=0.0)
    assert len(city_of(made).aois[500_000_009].outline) == 4


corners = st.tuples(st.floats(-1e5, 1e5), st.floats(-1e5, 1e5))


@given(st.lists(st.lists(corners, min_size=3, max_size=8), min_size=1, max_size=4))
def test_centroids_are_those_of_shapely_polygons(outlines):
    """To the last bit, for any outline, crossing itself and flat ones too: the benchmark measures
    with those."""
    made = map_pb2.Map()
    for number, outline in enumerate(outlines):
        an_aoi(made, 2 * number, [(1.0, 2.0)])
        an_aoi(made, 2 * number + 1, outline, area=1.0)
    city = city_of(made)
    for number, outline in enumerate(outlines):
        there = city.aois[2 * number + 1]
        centroid = Polygon(outline).centroid
        assert (there.x, there.y) == (centroid.x, centroid.y)


def test_a_poi_may_name_an_aoi_that_is_not_there():
    """As upstream, which never looks; such a POI is found nearby, but is no place to go to."""
    made = a_map()
    a_poi(made, 700_000_003, 1.5, 1.0, "amenity|restaurant", aoi=0)
    city = city_of(made)
    assert ids(city.nearby(1.5, 1.0, 0.1)) == [700_000_003]
    assert ids(city.nearest(1.5, 1.0, ["restaurant"], 5)) == [700_000_000]


def twice(kind: str) -> Any:
    made = a_map()
    entries = getattr(made, kind)
    entries.add().CopyFrom(entries[1])
    return made


def with_aoi(outline: list[tuple[float, float]], area: float | None) -> Any:
    made = a_map()
    an_aoi(made, 500_000_009, outline, area)
    return made


def with_poi(x: float) -> Any:
    made = a_map()
    a_poi(made, 700_000_009, x, 0.0, "park", aoi=500_000_000)
    return made


def without_position() -> Any:
    made = a_map()
    made.pois.add(id=700_000_009)
    return made


def with_lane(x: float) -> Any:
    made = a_map()
    a_lane(made, 9, [(0.0, 0.0), (x, 0.0)])
    return made


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (map_pb2.Map(), "without any AOI"),
        (twice("aois"), "Aoi 500000001: expected a unique id"),
        (twice("pois"), "Poi 700000001: expected a unique id"),
        (twice("lanes"), "Lane 3: expected a unique id"),
        (with_aoi([], None), "Aoi 500000009: expected 1 positions or more, got 0"),
        (with_aoi(SQUARE[:2], 1.0), "Aoi 500000009: expected 3 positions or more, got 2"),
        (
            with_aoi([(0.0, 0.0), (1.0, 0.0), (1.0, float("nan"))], 1.0),
            r"Aoi 500000009: expected coordinates .* got 1.0, nan",
        ),
        (
            with_aoi([(float("inf"), 0.0)], None),
            r"Aoi 500000009: expected coordinates .* got inf, 0.0",
        ),
        (with_poi(float("-inf")), r"Poi 700000009: expected coordinates .* got -inf, 0.0"),
        (without_position(), "Poi 700000009: it has no position"),
        (with_lane(float("nan")), r"Lane 9: expected coordinates .* got nan, 0.0"),
    ],
)
def test_a_map_that_cannot_be_used_is_refused_by_name(made, said):
    """One sentence names the file, the entry and what was expected."""
    with pytest.raises(BadInput, match=rf"^some.pb: .*{said}"):
        city_of(made)


def test_bytes_that_are_no_map_are_refused(tmp_path):
    """A text file in its place, a folder, and no file at all are each said in a sentence with the
    file's name."""
    (tmp_path / "text.pb").write_bytes(b'{"city": "beijing"}')
    (tmp_path / "empty.pb").write_bytes(b"")
    with pytest.raises(BadInput, match=r"text\.pb: expected a map of a city"):
        load_city(tmp_path / "text.pb")
    with pytest.raises(BadInput, match=r"empty\.pb: .*without any AOI"):
        load_city(tmp_path / "empty.pb")
    for name in ("none.pb", "."):
        with pytest.raises(BadInput, match="cannot read the map"):
            load_city(tmp_path / name)


def test_the_pickle_beside_a_map_is_never_read(tmp_path):
    """Upstream leaves `beijing.pb.cache`; one whose unpickling would be noticed changes nothing."""
    path = tmp_path / "beijing.pb"
    path.write_bytes(a_map().SerializeToString())
    plain = load_city(path)
    (tmp_path / "beijing.pb.cache").write_bytes(b"cposix\nabort\n(tR.")
    assert load_city(path) == plain


@pytest.mark.parametrize("missing", ["pycityproto.city.map.v2", "shapely"])
def test_a_missing_package_is_named_with_its_remedy(monkeypatch, missing):
    """Both belong to the extra `mobility`."""
    data = a_map().SerializeToString()
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(
        BadInput, match=rf"{missing.partition('.')[0]}: .* -m pip install .*harness\[mobility\]"
    ):
        read_city(data, "some.pb")


def test_nearby_is_a_square_with_its_edge():
    """|dx| <= radius and |dy| <= radius: a corner counts, whose distance is 1.4 radii, and a step
    further does not."""
    city = with_pois(
        [(100.0, 100.0, "a"), (100.01, 0.0, "a"), (0.0, -100.01, "a"), (-100.0, 0.0, "a")]
    )
    assert sorted(ids(city.nearby(0.0, 0.0, 100.0))) == [0, 3]


def test_nearby_asks_for_the_last_level_of_a_category():
    """A first level alone does not match; a category of one level is its own last; several may be
    asked for."""
    city = with_pois(
        [(0, 0, "amenity|cafe"), (0, 0, "cafe|wifi"), (0, 0, "cafe"), (0, 0, "leisure|park")]
    )
    assert sorted(ids(city.nearby(0, 0, 1, "cafe"))) == [0, 2]
    assert sorted(ids(city.nearby(0, 0, 1, ["park", "cafe", "unheard of"]))) == [0, 2, 3]
    assert ids(city.nearby(0, 0, 1, "amenity")) == []
    assert sorted(ids(city.nearby(0, 0, 1))) == [0, 1, 2, 3]


def test_nearest_asks_for_any_level_and_goes_by_distance():
    """Nearest first, no more than asked for, fewer where there are no more."""
    city = with_pois(
        [(9, 0, "amenity|cafe"), (5, 5, "cafe"), (1, 0, "leisure|park"), (6, 0, "amenity|bank")]
    )
    assert ids(city.nearest(0, 0, ["amenity", "cafe"], 2)) == [3, 1]
    assert ids(city.nearest(0, 0, ["cafe"], 9)) == [1, 0]
    assert city.nearest(0, 0, ["cafe"], 0) == []
    assert city.nearest(0, 0, ["museum"], 3) == []


def test_equally_near_places_come_in_map_order():
    """Else which of many POIs of one building are offered would be the tree's whim."""
    city = with_pois([(3, 4, "a"), (0, 5, "a"), (-4, 3, "a"), (5, 0, "a"), (1, 1, "a")])
    assert ids(city.nearest(0, 0, ["a"], 4)) == [4, 0, 1, 2]


places = st.lists(st.tuples(st.integers(-20, 20), st.integers(-20, 20)), min_size=1, max_size=30)


@given(places, st.integers(-25, 25), st.integers(-25, 25), st.integers(1, 30))
def test_indexed_searches_find_what_a_plain_search_finds(xy, x, y, far):
    """Against comparing every point; whole numbers make many equal distances."""
    points = Points(np.array(xy, np.float64))
    inside = [row for row, (px, py) in enumerate(xy) if abs(px - x) <= far and abs(py - y) <= far]
    by_distance = sorted(
        range(len(xy)), key=lambda row: ((xy[row][0] - x) ** 2 + (xy[row][1] - y) ** 2, row)
    )
    assert sorted(points.in_square(x, y, far).tolist()) == inside
    assert points.nearest(x, y, far).tolist() == by_distance[:far]


def test_the_nearest_lane_comes_with_how_far_along_it_is():
    """The foot of the perpendicular, round a bend too; before a lane begins it is at 0."""
    city = city_of(a_map())
    assert city.lanes.nearest(4.0, -1.0) == (7, 4.0)
    assert city.lanes.nearest(11.0, 12.0) == (3, 14.0)
    assert city.lanes.nearest(-5.0, -2.0) == (7, 0.0)


def test_of_equally_near_lanes_the_lowest_number_is_taken():
    """Both lanes are 5 m away; 3 stands second in the map."""
    assert city_of(a_map()).lanes.nearest(5.0, 3.0) == (3, 5.0)


def test_a_city_without_usable_lanes_has_no_nearest_lane():
    """No lane at all, and lanes that are a point or nothing."""
    made = a_map()
    del made.lanes[:]
    assert city_of(made).lanes.nearest(0, 0) is None
    a_lane(made, 1, [(0.0, 0.0)])
    a_lane(made, 2, [])
    assert dict(city_of(made).lanes) == {1: ((0.0, 0.0),), 2: ()}
    assert city_of(made).lanes.nearest(0, 0) is None


def test_nearest_lanes_agree_with_measuring_every_lane():
    """200 places among 40 crooked lanes, against shapely's distance to each."""
    rng = Random(1)
    lines = {
        number: tuple(
            (rng.uniform(0, 100), rng.uniform(0, 100)) for _ in range(rng.randrange(2, 5))
        )
        for number in range(40)
    }
    city = City({}, {}, lanes_of(lines), "", "")
    shapes = {number: LineString(line) for number, line in lines.items()}
    for _ in range(200):
        point = Point(rng.uniform(0, 100), rng.uniform(0, 100))
        number = min(shapes, key=lambda line: shapes[line].distance(point))
        assert city.lanes.nearest(point.x, point.y) == (number, shapes[number].project(point))


def test_lines_are_a_mapping_like_a_dict():
    """Kept as one array, they still are equal to a dict of tuples, and know what they do not
    have."""
    plain = {5: ((0.0, 1.0), (2.0, 3.0)), 2: (), 9: ((4.0, 5.0),)}
    lines = lanes_of(plain)
    assert (lines == plain, list(lines), len(lines), 7 in lines) == (True, [5, 2, 9], 3, False)


def test_a_city_is_frozen_and_equal_by_its_contents():
    """What look-ups keep is no part of it, and goes with it to another process."""
    city, same = city_of(a_map()), city_of(a_map())
    city.nearby(0, 0, 100)
    city.lanes.nearest(0, 0)
    assert city == same
    moved = pickle.loads(pickle.dumps(city))
    assert moved == city
    assert ids(moved.nearest(0, 0, ["park"], 1)) == [700_000_001]
    assert moved.lanes.nearest(4.0, -1.0) == (7, 4.0)
    with pytest.raises(FrozenInstanceError):
        city.projection = "other"  # type: ignore[misc]
