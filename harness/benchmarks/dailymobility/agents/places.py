"""The city as agents see it: places as dicts, with the names that `agentsociety` 1.5.7 gives their fields.

Residents share the dicts, as they do upstream; each call that returns a list returns one of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cached_property
from math import hypot
from typing import Any, NoReturn

import numpy as np

from harness.benchmarks.dailymobility.agents.interface import names
from harness.benchmarks.dailymobility.city import Aoi, City, Poi
from harness.benchmarks.dailymobility.spatial import Floats, optional

Centre = Any
"""A pair of coordinates in metres, or something with `x` and `y`, such as a shapely point."""

Refuse = Callable[[str], NoReturn]


class Place(dict[str, Any]):
    """Fields of a place. What takes much room or time is made when asked for, and is not there to those who iterate."""

    __slots__ = ("_map",)
    LATE = names("positions shapely_xy")
    LACKS = names("shapely_lnglat driving_positions walking_positions driving_gates walking_gates external")

    def __init__(self, map: MapData, fields: dict[str, Any]) -> None:
        super().__init__(fields)
        self._map = map

    def __missing__(self, name: str) -> Any:
        if name in self.LACKS:
            self._map.refuse(f"the field {name} of a place is not available here")
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
        """A place of its own in the same map: agents keep places in their memory, which copies what is read."""
        return Place(self._map, deepcopy(dict(self), memo))


class MapData:
    """The map, one for all residents. `refuse` fails the resident that asked for what is not here."""

    LACKS = names("header poi_cate get_map_header get_projector get_poi_cate")

    def __init__(self, city: City, refuse: Refuse) -> None:
        self._city = city
        self.refuse = refuse
        self._pois: dict[int, Place] = {}
        self.aois: dict[int, Place] = {aoi.id: self._aoi(aoi) for aoi in city.aois.values()}

    def __getattr__(self, name: str) -> NoReturn:
        if name in self.LACKS:
            self.refuse(f"MapData.{name} is not available here")
        raise AttributeError(f"'MapData' object has no attribute {name!r}", name=name, obj=self)

    @cached_property
    def pois(self) -> dict[int, Place]:
        return {number: self.get_poi(number) for number in self._city.pois}

    def get_all_aois(self) -> list[Place]:
        return list(self.aois.values())

    def get_all_pois(self) -> list[Place]:
        return list(self.pois.values())

    def get_aoi(self, aoi_id: int) -> Place:
        """Raises `KeyError` for one that the map does not have."""
        return self.aois[aoi_id]

    def get_poi(self, poi_id: int) -> Place:
        """Raises `KeyError` for one that the map does not have."""
        place = self._pois.get(poi_id)
        if place is None:
            place = self._pois[poi_id] = self._poi(self._city.pois[poi_id])
        return place

    def query_pois(
        self,
        center: Centre,
        radius: float | None = None,
        category_prefix: str | None = None,
        limit: int | None = None,
        return_distance: bool = True,
    ) -> list[Any]:
        """POIs, or pairs of POI and distance in metres, nearest first; in map order where no distance is asked for.

        As upstream has it, `radius` is half the side of a square, and without one the prefix is not looked at.
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
        """Pairs of AOI and distance in metres, nearest first, of those whose bounding box touches the square."""
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

    def _poi(self, poi: Poi) -> Place:
        position = {"x": poi.x, "y": poi.y}
        fields = {"id": poi.id, "name": poi.name, "category": poi.category, "position": position, "aoi_id": poi.aoi_id}
        return Place(self, fields)

    def late(self, place: Place, name: str) -> Any:
        """A field of a place that is made when asked for."""
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
