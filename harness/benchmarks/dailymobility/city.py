"""The city: places of a published map, and where they are. Source: docs/design.md, section 9.

Coordinates are metres in the map's own projection. Only this file knows the format of the map (`city.map.v2.Map`),
and synth.py, which writes one. What stands there beside the map (`beijing.pb.cache`, a pickle) is never read.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from sys import intern
from typing import Any, NoReturn

import numpy as np

from harness.benchmarks.dailymobility.spatial import Floats, Line, Lines, Points, Rows, optional
from harness.benchmarks.files import content
from harness.errors import BadInput

MAP = "pycityproto.city.map.v2.map_pb2"
SEPARATOR = "|"
TWICE = "expected an id of its own, got one that an earlier entry has"


FURTHEST = 1e8
"""Metres; more than twice around the earth, and what squares and sums of coordinates bear."""


@dataclass(frozen=True, slots=True)
class Aoi:
    """An area. `outline` has its corners, one for an area that is a point; `x`, `y` is its centroid."""

    id: int
    x: float
    y: float
    outline: Line
    area: float
    land_use: str
    poi_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Poi:
    """A point of interest. `category` as the map has it: levels with `|` between them."""

    id: int
    name: str
    category: str
    x: float
    y: float
    aoi_id: int


@dataclass(frozen=True, slots=True)
class City:
    """`lanes` are the centre lines of lanes by id; `sha256` is that of the map's file.

    A POI may name an AOI that the map does not have: published maps are not checked for it by those who read them.
    """

    aois: Mapping[int, Aoi]
    pois: Mapping[int, Poi]
    lanes: Mapping[int, Line]
    projection: str
    sha256: str
    _index: _Index = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_index", _Index(self.aois, self.pois, self.lanes))

    def nearby(self, x: float, y: float, radius: float, category: str | Collection[str] | None = None) -> list[Poi]:
        """POIs with |dx| <= radius and |dy| <= radius, a square as upstream's `get_around_poi` has it; in map order.

        `category` is the last level of the category, or several of which one must be it; None is any.
        """
        wanted = (category,) if isinstance(category, str) else category
        return self._index.in_square(x, y, radius, wanted)

    def nearest(self, x: float, y: float, kinds: Collection[str], count: int) -> list[Poi]:
        """The `count` nearest POIs that have one of `kinds` as some level of their category, nearest first.

        Only POIs in an AOI of the city, which are the ones one can go to. Of equally near ones the map's order decides.
        """
        return self._index.nearest(x, y, frozenset(kinds), count)

    def nearest_lane(self, x: float, y: float) -> tuple[int, float] | None:
        """The lane nearest to (x, y), and how far along it that is; None in a city without lanes."""
        return self._index.lanes.nearest(x, y)


class _Index:
    """What look-ups need. It depends on the city alone, and is made when first asked for."""

    def __init__(self, aois: Mapping[int, Aoi], pois: Mapping[int, Poi], lanes: Mapping[int, Line]) -> None:
        self._aois, self._pois, self._lanes = aois, pois, lanes
        self._of_kinds: dict[frozenset[str], tuple[list[Poi], Points]] = {}

    @cached_property
    def lanes(self) -> Lines:
        return Lines.of(self._lanes)

    @cached_property
    def _all(self) -> tuple[list[Poi], Points]:
        pois = list(self._pois.values())
        return pois, _points(pois)

    @cached_property
    def _last_levels(self) -> tuple[dict[str, int], Rows]:
        """A number for each category's last level, and that of each POI."""
        numbers: dict[str, int] = {}
        of_poi = [numbers.setdefault(levels(poi.category)[-1], len(numbers)) for poi in self._pois.values()]
        return numbers, np.array(of_poi, np.intp)

    def in_square(self, x: float, y: float, radius: float, wanted: Collection[str] | None) -> list[Poi]:
        pois, points = self._all
        rows = points.in_square(x, y, radius)
        if wanted is not None:
            numbers, of_poi = self._last_levels
            chosen = np.zeros(len(numbers), np.bool_)
            chosen[[numbers[kind] for kind in wanted if kind in numbers]] = True
            rows = rows[chosen[of_poi[rows]]]
        return [pois[row] for row in np.sort(rows).tolist()]

    def nearest(self, x: float, y: float, kinds: frozenset[str], count: int) -> list[Poi]:
        found = self._of_kinds.get(kinds)
        if found is None:
            pois = [
                poi
                for poi in self._pois.values()
                if poi.aoi_id in self._aois and not kinds.isdisjoint(levels(poi.category))
            ]
            found = self._of_kinds[kinds] = (pois, _points(pois))
        return [found[0][row] for row in found[1].nearest(x, y, count).tolist()]


def levels(category: str) -> list[str]:
    """`leisure|park` -> leisure, park."""
    return category.split(SEPARATOR)


def _points(pois: Iterable[Poi]) -> Points:
    return Points(np.array([(poi.x, poi.y) for poi in pois], np.float64).reshape(-1, 2))


def load_city(path: Path) -> City:
    """The city of a map file. Raises `BadInput`, naming the file, as `read_city` does or where it cannot be read."""
    try:
        data = content(path)
    except OSError as error:
        raise BadInput(f"{path}: cannot read the map: {error.strerror}") from None
    return read_city(data, str(path))


def read_city(data: bytes, where: str) -> City:
    """The city of a serialized `city.map.v2.Map`; `where` names it in errors.

    Raises `BadInput` for bytes that are not such a map, a map without AOIs, an id that stands there twice, a place
    without position and a coordinate that is not finite.
    """
    from_map = _parse(data, where)
    if not from_map.aois:
        raise BadInput(f"{where}: expected a map of a city (city.map.v2.Map), got one without any AOI")
    return City(
        aois=_aois(from_map.aois, where),
        pois=_pois(from_map.pois, where),
        lanes=_lanes(from_map.lanes, where),
        projection=from_map.header.projection,
        sha256=hashlib.sha256(data).hexdigest(),
    )


def _parse(data: bytes, where: str) -> Any:
    map_type = optional(MAP).Map
    not_a_map: type[Exception] = optional("google.protobuf.message").DecodeError
    try:
        return map_type.FromString(data)
    except not_a_map:
        raise BadInput(f"{where}: expected a map of a city (city.map.v2.Map), got bytes that are none") from None


def _aois(given: Iterable[Any], where: str) -> dict[int, Aoi]:
    """AOIs with an area are polygons, be it an area of 0; the others are the first of their positions."""
    kept: dict[int, tuple[float, str, tuple[int, ...]]] = {}
    counts, flat = array("q"), array("d")
    for aoi in given:
        number, corners = aoi.id, aoi.positions
        if number in kept:
            _bad(where, "Aoi", number, TWICE)
        needed = 3 if aoi.HasField("area") else 1
        if len(corners) < needed:
            _bad(where, "Aoi", number, f"expected {needed} positions or more, got {len(corners)}")
        kept[number] = aoi.area, intern(aoi.urban_land_use), tuple(aoi.poi_ids)
        counts.append(_append(flat, corners if needed > 1 else corners[:1]))
    xy, corners_of = _checked(flat, counts, "Aoi", list(kept), where)
    outlines = Lines(list(kept), corners_of, xy).values()
    return {
        number: Aoi(number, x, y, outline, *rest)
        for (number, rest), outline, (x, y) in zip(kept.items(), outlines, _centroids(xy, corners_of), strict=True)
    }


def _centroids(xy: Floats, corners: Rows) -> list[list[float]]:
    """As shapely's `Polygon.centroid` has them, with which upstream measures; a point is its own."""
    centroids = xy[np.cumsum(corners) - corners]
    polygons = np.flatnonzero(corners > 1)
    if polygons.size:
        shapely = optional("shapely")
        rows = np.repeat(np.arange(polygons.size), corners[polygons])
        rings = shapely.linearrings(xy[np.repeat(corners > 1, corners)], indices=rows)
        centroids[polygons] = shapely.get_coordinates(shapely.centroid(shapely.polygons(rings)))
    found: list[list[float]] = centroids.tolist()
    return found


def _pois(given: Iterable[Any], where: str) -> dict[int, Poi]:
    found: dict[int, Poi] = {}
    for poi in given:
        number, at = poi.id, poi.position
        x, y = at.x, at.y
        if number in found:
            _bad(where, "Poi", number, TWICE)
        if not poi.HasField("position"):
            _bad(where, "Poi", number, "it has no position")
        if not (abs(x) <= FURTHEST and abs(y) <= FURTHEST):
            _bad(where, "Poi", number, f"expected coordinates in metres, at most {FURTHEST:g} from 0, got {x}, {y}")
        found[number] = Poi(number, poi.name, intern(poi.category), x, y, poi.aoi_id)
    return found


def _lanes(given: Iterable[Any], where: str) -> Lines:
    counts: dict[int, int] = {}
    flat = array("d")
    for lane in given:
        if lane.id in counts:
            _bad(where, "Lane", lane.id, TWICE)
        counts[lane.id] = _append(flat, lane.center_line.nodes)
    xy, corners = _checked(flat, counts.values(), "Lane", list(counts), where)
    return Lines(list(counts), corners, xy)


def _append(flat: array[float], corners: Collection[Any]) -> int:
    """Coordinates go on one after another, which is far quicker than to make an array of tuples. Returns how many."""
    for corner in corners:
        flat.append(corner.x)
        flat.append(corner.y)
    return len(corners)


def _checked(
    flat: array[float], counts: Iterable[int], kind: str, ids: Sequence[int], where: str
) -> tuple[Floats, Rows]:
    """Coordinates as (n, 2), known to be finite, and how many corners each of `ids` has of them."""
    xy, corners = np.array(flat, np.float64).reshape(-1, 2), np.array([*counts], np.intp)
    odd = np.flatnonzero(~(np.abs(xy) <= FURTHEST).all(axis=1))
    if odd.size:
        x, y = xy[odd[0]].tolist()
        whose = int(np.searchsorted(np.cumsum(corners), odd[0], "right"))
        _bad(where, kind, ids[whose], f"expected coordinates in metres, at most {FURTHEST:g} from 0, got {x}, {y}")
    return xy, corners


def _bad(where: str, kind: str, number: int, what: str) -> NoReturn:
    raise BadInput(f"{where}: {kind} {number}: {what}")
