"""Longitude and latitude: against PROJ, and as agents find them, with all other fields of
places."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import shapely
from google.protobuf.json_format import MessageToDict
from pycityproto.city.map.v2 import map_pb2

from harness.benchmarks.agents.city import read_city
from harness.benchmarks.agents.environment import MapData
from harness.benchmarks.agents.spatial import lnglat
from harness.defaults import SAMPLE_FOLDER
from tests.support.agent_town import runner

BEIJING = "+proj=tmerc +lat_0=39.9 +lon_0=116.4"
SHIFTED = "+proj=tmerc +lat_0=39.90611 +lon_0=116.3911 +k=0.9996 +x_0=500000 +y_0=1000 +ellps=WGS84"


@pytest.mark.parametrize(
    ("projection", "xy", "expected"),
    [
        (BEIJING, (0, 0), (116.4, 39.9)),
        (BEIJING, (-5447.7, -4976.46), (116.33633931288877, 39.855162593729865)),
        (BEIJING, (60000.0, 80000.0), (117.10906036248882, 40.61828681898434)),
        (BEIJING, (-300000.0, -500000.0), (113.10019588896462, 35.35000900506308)),
        (
            "+proj=utm +zone=50",
            (448802.148620172, 4412128.118718166),
            (116.40145360133278, 39.85763895092657),
        ),
        (SHIFTED, (448802.148620172, 2128.118718166), (115.79205694373796, 39.91472695158099)),
    ],
)
def test_points_are_where_proj_has_them(projection, xy, expected):
    """The expected values are those of pyproj 3.7.2; 1e-9 degrees are a tenth of a millimetre."""
    np.testing.assert_allclose(lnglat(projection, np.array([xy])), [expected], rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    "projection", ["", "+proj=merc", "+proj=utm", "EPSG:4326", "+proj=tmerc +lat_0=north"]
)
def test_another_projection_is_refused(projection):
    with pytest.raises((ValueError, KeyError)):
        lnglat(projection, np.zeros((1, 2)))


def sample() -> bytes:
    return (SAMPLE_FOLDER / "dailymobility/beijing.pb").read_bytes()


def places(data: bytes) -> MapData:
    return MapData(read_city(data, "beijing.pb"), runner("random_walk.py"))


def upstream(message: Any) -> dict[str, Any]:
    """Return the fields of a place as upstream's map reader makes them of the same message."""
    how = {"preserving_proto_field_name": True, "use_integers_for_enums": True}
    return dict(MessageToDict(message, always_print_fields_with_no_presence=True, **how))


def test_a_place_has_all_fields_that_it_has_upstream():
    """Those that asbench documents and those that it does not; whatever an agent reads them
    with."""
    read = map_pb2.Map.FromString(sample())
    read.pois[3].capacity = 7
    read.pois[4].functions.append("eat")
    read.aois[5].ClearField("land_use")
    read.aois[6].ClearField("urban_land_use")
    found = places(read.SerializeToString())
    shapes = {"shapely_xy", "shapely_lnglat"}
    messages, made = [*read.aois, *read.pois], [*found.get_all_aois(), *found.get_all_pois()]
    for message, place in zip(messages, made, strict=True):
        assert {name: value for name, value in place.items() if name not in shapes} == upstream(
            message
        )
        assert set(place) == shapes | set(upstream(message))
        assert type(place["shapely_lnglat"]) is type(place["shapely_xy"])
        assert shapely.Point(116.4, 39.9).distance(place["shapely_lnglat"]) < 0.1


def test_the_fields_of_a_place_depend_on_nobody_who_used_some_before():
    """Residents share places, and one that iterates over fields may write them into a prompt."""
    used, fresh = places(sample()).get_all_aois()[0], places(sample()).get_all_aois()[0]
    for name in ("walking_gates", "positions"):
        assert name in used and used[name] == used.get(name)
    assert used == fresh and used == {**fresh} == dict(fresh.items()) == fresh.copy() == fresh | {}
    assert list(used) == list(fresh) and str(used) == str(fresh) and len(used) == len(fresh)
    kept = deepcopy(places(sample()).get_all_aois()[0])
    assert kept == used and list(kept.values()) == list(used.values())


def test_a_place_has_no_coordinates_on_a_map_of_another_projection():
    """Its other fields can be iterated over all the same."""
    read = map_pb2.Map.FromString(sample())
    read.header.projection = "+proj=merc"
    place = places(read.SerializeToString()).get_all_pois()[0]
    assert "shapely_xy" in dict(place) and "shapely_lnglat" not in dict(place)
    with pytest.raises(AttributeError):  # outside of a slice; an agent fails with `agent_api`
        place.get("shapely_lnglat")
