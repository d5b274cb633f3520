"""Longitude and latitude: against PROJ, and as agents find them, with all that asbench documents of an AOI."""

from __future__ import annotations

import numpy as np
import pytest
import shapely
from google.protobuf.json_format import MessageToDict
from pycityproto.city.map.v2 import map_pb2

from harness.benchmarks.dailymobility.agents.environment import MapData
from harness.benchmarks.dailymobility.city import read_city
from harness.benchmarks.dailymobility.projection import lnglat
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
        ("+proj=utm +zone=50", (448802.148620172, 4412128.118718166), (116.40145360133278, 39.85763895092657)),
        (SHIFTED, (448802.148620172, 2128.118718166), (115.79205694373796, 39.91472695158099)),
    ],
)
def test_points_are_where_proj_has_them(
    projection: str, xy: tuple[float, float], expected: tuple[float, float]
) -> None:
    """The expected values are those of pyproj 3.7.2; 1e-9 degrees are a tenth of a millimetre."""
    np.testing.assert_allclose(lnglat(projection, np.array([xy])), [expected], rtol=0, atol=1e-9)


@pytest.mark.parametrize("projection", ["", "+proj=merc", "+proj=utm", "EPSG:4326", "+proj=tmerc +lat_0=north"])
def test_another_projection_is_refused(projection: str) -> None:
    with pytest.raises((ValueError, KeyError)):
        lnglat(projection, np.zeros((1, 2)))


def test_an_aoi_has_the_fields_that_asbench_documents() -> None:
    """As upstream's map reader makes them of the same message; a POI has no gates, there as here."""
    data = (SAMPLE_FOLDER / "dailymobility/beijing.pb").read_bytes()
    city, read = read_city(data, "beijing.pb"), map_pb2.Map.FromString(data)
    found = MapData(city, runner("random_walk.py"))
    for message in read.aois:
        aoi = found.get_aoi(message.id)
        upstream = MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
        for name in ("driving_positions", "walking_positions", "driving_gates", "walking_gates"):
            assert name in aoi and aoi[name] == upstream[name] != []
        assert type(aoi["shapely_lnglat"]) is type(aoi["shapely_xy"])
        assert shapely.Point(116.4, 39.9).distance(aoi["shapely_lnglat"]) < 0.1
    poi = found.get_all_pois()[0]
    assert "driving_gates" not in poi and poi.get("walking_gates", 1) == 1
    assert isinstance(poi["shapely_lnglat"], shapely.Point)
