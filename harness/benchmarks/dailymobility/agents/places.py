"""The city as agents see it: places as dicts with the field names of `agentsociety` 1.5.7.

Residents share the dicts, as upstream; each call that returns a list returns a new one.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from functools import cached_property
from math import hypot
from typing import Any

import numpy as np

from harness.benchmarks.dailymobility.agents.interface import Incomplete, Refuses, lacks
from harness.benchmarks.dailymobility.city import Aoi, City, Poi
from harness.benchmarks.dailymobility.spatial import Floats, optional

Centre = Any
"""A pair of coordinates in metres, or something with `x` and `y`, such as a shapely point."""


class Place(dict[str, Any]):
    """Fields of a place. Large or slow ones are made at their first use, and iteration does not see them before."""

    __slots__ = ("_map",)
    LATE = frozenset(["positions", "shapely_xy"])
    LACKS = lacks("Place")

    def __init__(self, map: MapData, fields: dict[str, Any]) -> None:
        super().__init__(fields)
        self._map = map

    def __missing__(self, name: str) -> Any:
        if name in self.LACKS:
            self._map._harness.refuse("agent_api", f"the field {name} of a place is not available here")
        if name not in self.LATE:
            raise KeyError(name)
        value = self[name] = self._map.late(self, name)
        return value

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return default

    def __contains__(self, name: object) -> bool:
        return dict.__contains__(self, name) or name in self.LATE or name in self.LACKS

    def __deepcopy__(self, memo: dict[int, Any]) -> Place:
        """Copy a place of the same map: agents keep places in their memory, which copies what is read."""
        return Place(self._map, deepcopy(dict(self), memo))


class MapData(Incomplete):
    """The map, one for all residents. `harness` fails the resident that uses a missing name."""

    LACKS = lacks("MapData")

    def __init__(self, city: City, harness: Refuses) -> None:
        self._harness = harness
        self._city = city
        self._pois: dict[int, Place] = {}
        self.aois: dict[int, Place] = {aoi.id: self._aoi(aoi) for aoi in city.aois.values()}

    @cached_property
    def pois(self) -> dict[int, Place]:
        return {number: self.get_poi(number) for number in self._city.pois}

    def get_all_aois(self) -> list[Place]:
        return list(self.aois.values())

    def get_all_pois(self) -> list[Place]:
        return list(self.pois.values())

    def get_aoi(self, aoi_id: int) -> Place:
        """Raise `KeyError` for one that is not on the map."""
        return self.aois[aoi_id]

    def get_poi(self, poi_id: int) -> Place:
        """Raise `KeyError` for one that is not on the map."""
        if poi_id not in self._pois:
            poi = self._city.pois[poi_id]
            fields = {"id": poi.id, "name": poi.name, "category": poi.category, "position": {"x": poi.x, "y": poi.y}}
            self._pois[poi_id] = Place(self, {**fields, "aoi_id": poi.aoi_id})
        return self._pois[poi_id]

    def query_pois(
        self,
        center: Centre,
        radius: float | None = None,
        category_prefix: str | None = None,
        limit: int | None = None,
        return_distance: bool = True,
    ) -> list[Any]:
        """Return pairs of POI and distance in metres, nearest first, or with `return_distance=False` POIs in map order.

        As upstream, `radius` is half the side of a square, and without one the prefix is ignored.
        """
        x, y = coordinates(center)
        if radius is None:
            found: Sequence[Poi] = list(self._city.pois.values())
        else:
            prefix = category_prefix or ""
            found = [poi for poi in self._city.nearby(x, y, radius) if poi.category.startswith(prefix)]
        if not return_distance:
            return [self.get_poi(poi.id) for poi in found[:limit]]
        away = sorted(((hypot(poi.x - x, poi.y - y), row) for row, poi in enumerate(found)))[:limit]
        return [(self.get_poi(found[row].id), distance) for distance, row in away]

    def query_aois(
        self,
        center: Centre,
        radius: float,
        urban_land_uses: Sequence[str] | None = None,
        limit: int | None = None,
    ) -> list[tuple[Place, float]]:
        """Return pairs of AOI and distance in metres, nearest first; the AOIs' bounding boxes touch the square."""
        x, y = coordinates(center)
        low, high = self._boxes
        touching = ((low <= (x + radius, y + radius)) & (high >= (x - radius, y - radius))).all(axis=1)
        aois = list(self._city.aois.values())
        found = [aois[row] for row in np.flatnonzero(touching).tolist()]
        if urban_land_uses is not None:
            found = [aoi for aoi in found if aoi.land_use in urban_land_uses]
        shapely = optional("shapely")
        away = shapely.distance(shapely.points(x, y), [self.aois[aoi.id]["shapely_xy"] for aoi in found]).tolist()
        nearest = sorted((distance, row) for row, distance in enumerate(away))[:limit]
        return [(self.aois[found[row].id], distance) for distance, row in nearest]

    @cached_property
    def _boxes(self) -> tuple[Floats, Floats]:
        """Lower and upper corner of each AOI's bounding box, in map order."""
        corners = [np.array(aoi.outline) for aoi in self._city.aois.values()]
        return np.array([xy.min(axis=0) for xy in corners]), np.array([xy.max(axis=0) for xy in corners])

    def _aoi(self, aoi: Aoi) -> Place:
        area = {"area": aoi.area} if len(aoi.outline) > 1 else {}
        return Place(self, {"id": aoi.id, **area, "urban_land_use": aoi.land_use, "poi_ids": list(aoi.poi_ids)})

    def late(self, place: Place, name: str) -> Any:
        """Return a field that is made at its first use."""
        at = place.get("position")
        outline = self._city.aois[place["id"]].outline if at is None else ((at["x"], at["y"]),)
        if name == "positions":
            return [{"x": x, "y": y} for x, y in outline]
        shapely = optional("shapely")
        return shapely.Point(outline[0]) if len(outline) == 1 else shapely.Polygon(outline)


def coordinates(center: Centre) -> tuple[float, float]:
    if hasattr(center, "x") and hasattr(center, "y"):
        return float(center.x), float(center.y)
    x, y, *_ = center
    return float(x), float(y)
