"""A map of a city: what is let in can be searched, and every coordinate in it is finite."""

from __future__ import annotations

from math import isfinite

from harness.benchmarks.agents.city import read_city
from harness.benchmarks.agents.spatial import map_format
from harness.errors import BadInput

EXPECTED = (BadInput,)


def _small(lanes: int) -> bytes:
    made = map_format().Map()
    made.header.projection = "+proj=tmerc"
    for number in (500000000, 500000001, 500000002):
        aoi = made.aois.add(id=number, urban_land_use="R", poi_ids=[700000000])
        for x, y in ((0, 0), (number % 10 + 1, 0), (0, 5)):
            aoi.positions.add(x=x, y=y)
        if number % 10 < 2:
            aoi.area = 3.0
    made.pois.add(
        id=700000000, name="猫", category="leisure|park", aoi_id=500000000
    ).position.x = 1.0
    for _ in range(lanes):
        lane = made.lanes.add(id=1)
        for x in (0, 1, 9):
            lane.center_line.nodes.add(x=x, y=1)
    data: bytes = made.SerializeToString()
    return data


SEEDS = [_small(1), _small(2)]


def run(data: bytes) -> None:
    city = read_city(data, "map")
    for aoi in city.aois.values():
        assert isfinite(aoi.x) and isfinite(aoi.y)
    city.nearby(0.0, 0.0, 3000.0)
    city.nearby(0.0, 0.0, 3000.0, "park")
    city.nearest(0.0, 0.0, ["park", "leisure"], 3)
    nearest = city.lanes.nearest(0.0, 0.0)
    assert nearest is None or isfinite(nearest[1])
