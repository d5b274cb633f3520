"""The city: places of a published map, and where they are. Source: docs/design.md, section 9.

Coordinates are metres in the map's own projection. Only this file reads the format of the map
(`city.map.v2.Map`), and synth_city.py writes it. The cache that other programs leave in the folder
(`beijing.pb.cache`, a pickle) is never read.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from sys import intern
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from harness.benchmarks.agents.spatial import Line, Lines, Points, map_format
from harness.benchmarks.files import input_file
from harness.errors import BadInput
from harness.model import JSON

if TYPE_CHECKING:
    from google.protobuf.message import Message

SEPARATOR = "|"
OPTIONAL = frozenset({"area", "capacity", "land_use", "urban_land_use", "z"})
"""Fields of the messages that may be set to 0; any other is not set then."""
DUPLICATE = "expected a unique id, got that of an earlier entry"

LISTS = {
    "driving_positions": ("lane_id", "s"),
    "walking_positions": ("lane_id", "s"),
    "positions": ("x", "y"),
    "driving_gates": ("x", "y"),
    "walking_gates": ("x", "y"),
}
"""Fields of an AOI by number that are its outline and where it joins the lanes, and the fields of
their entries."""
_JOINS = {name: attrgetter(*fields) for name, fields in LISTS.items() if name != "positions"}

FURTHEST = 1e8
"""Metres; more than twice around the earth, and small enough for squares and sums of
coordinates."""


@dataclass(frozen=True, slots=True)
class Aoi:
    """An area. `outline` is its corners, one for an area that is a point; `x`, `y` is its centroid.

    `joins` is where it joins the lanes, by name of the map's field: pairs of lane and metres along
    it, or of `x`, `y`. `type` and `use` are the map's numbers of `AoiType` and `LandUseType`; None
    where the map has no use.
    """

    id: int
    x: float
    y: float
    outline: Line
    area: float
    land_use: str
    poi_ids: tuple[int, ...]
    joins: Mapping[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    name: str = ""
    type: int = 0
    use: int | None = None


@dataclass(frozen=True, slots=True)
class Poi:
    """A point of interest. `category` is the map's: levels with `|` between them."""

    id: int
    name: str
    category: str
    x: float
    y: float
    aoi_id: int
    functions: tuple[str, ...] = ()
    capacity: int | None = None


_Located = tuple[list[Poi], Points]


@dataclass(frozen=True)
class City:
    """`lanes` are the centre lines of lanes by id; `sha256` is that of the map's file. Indexes are
    made at first use.

    A POI may name an AOI that is not in the city: programs that read published maps do not check
    it.
    """

    aois: Mapping[int, Aoi]
    pois: Mapping[int, Poi]
    lanes: Lines
    projection: str
    sha256: str
    _of_kinds: dict[frozenset[str], _Located] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def nearby(
        self, x: float, y: float, radius: float, category: str | Collection[str] | None = None
    ) -> list[Poi]:
        """Return POIs with |dx| <= radius and |dy| <= radius, a square, in the order of upstream's
        `get_around_poi`.

        `category` is the last level of the category, or several of which one must be it; None is
        any.
        """
        pois, points = self._located
        found = [pois[row] for row in points.in_square(x, y, radius).tolist()]
        if category is None:
            return found
        wanted = (category,) if isinstance(category, str) else category
        return [poi for poi in found if levels(poi.category)[-1] in wanted]

    def nearest(self, x: float, y: float, kinds: Collection[str], count: int) -> list[Poi]:
        """Return the `count` nearest POIs that have one of `kinds` as some level of their category,
        nearest first.

        Only POIs in an AOI of the city, which are the ones one can go to. Of equally near ones the
        map's order decides.
        """
        found = self._of_kinds.get(wanted := frozenset(kinds))
        if found is None:
            reachable = [poi for poi in self.pois.values() if poi.aoi_id in self.aois]
            pois = [poi for poi in reachable if not wanted.isdisjoint(levels(poi.category))]
            found = self._of_kinds[wanted] = (pois, _points(pois))
        return [found[0][row] for row in found[1].nearest(x, y, count).tolist()]

    @cached_property
    def _located(self) -> _Located:
        pois = list(self.pois.values())
        return pois, _points(pois)


def as_message(fields: Mapping[str, Any], declared: Iterable[str] = ()) -> JSON:
    """Return fields in the order of protobuf's JSON writer: agents see it where a prompt holds a
    place.

    Fields that are set come by number, as in `fields`, then the others as `declared`, by default by
    number too.
    """
    is_set = {name: value for name, value in fields.items() if value or name in OPTIONAL}
    return is_set | {name: fields[name] for name in declared or fields if name in fields}


def levels(category: str) -> list[str]:
    """Split `leisure|park` into leisure, park."""
    return category.split(SEPARATOR)


def _points(pois: Iterable[Poi]) -> Points:
    return Points(np.array([(poi.x, poi.y) for poi in pois], np.float64).reshape(-1, 2))


def load_city(path: Path) -> City:
    """Return the city of a map file. Raise `BadInput` as `read_city`, and for a file that cannot be
    read."""
    return read_city(input_file(path, "the map "), str(path))


def read_city(data: bytes, where: str) -> City:
    """Return the city of a serialized `city.map.v2.Map`; `where` names it in errors.

    Raise `BadInput` for bytes that are not such a map, a map without AOIs, a duplicate id, a place
    without position and a coordinate that is not finite.
    """
    map_type = map_format().Map
    from google.protobuf.message import DecodeError  # comes with the format

    try:
        found = map_type.FromString(data)
    except DecodeError:
        raise BadInput(
            f"{where}: expected a map of a city (city.map.v2.Map), got bytes that are none"
        ) from None
    if not found.aois:
        raise BadInput(
            f"{where}: expected a map of a city (city.map.v2.Map), got one without any AOI"
        )
    return City(
        aois=_aois(found.aois, where),
        pois=_pois(found.pois, where),
        lanes=_lines("Lane", ((lane.id, lane.center_line.nodes, 0) for lane in found.lanes), where),
        projection=found.header.projection,
        sha256=hashlib.sha256(data).hexdigest(),
    )


def _aois(given: Sequence[Any], where: str) -> dict[int, Aoi]:
    """AOIs with an area are polygons, also with an area of 0; the others are the first of their
    positions."""
    shapes = (
        (a.id, a.positions, 3) if a.HasField("area") else (a.id, a.positions[:1], 1) for a in given
    )
    outlines = _lines("Aoi", shapes, where)
    found = {}
    for aoi, outline, (x, y) in zip(given, outlines.values(), outlines.centroids(), strict=True):
        land_use, poi_ids, use = (
            intern(aoi.urban_land_use),
            tuple(aoi.poi_ids),
            _optional(aoi, "land_use"),
        )
        found[aoi.id] = Aoi(
            aoi.id, x, y, outline, aoi.area, land_use, poi_ids, _joins(aoi), aoi.name, aoi.type, use
        )
    return found


def _optional(place: Message, name: str) -> int | None:
    return getattr(place, name) if place.HasField(name) else None


def _joins(aoi: object) -> dict[str, tuple[tuple[float, float], ...]]:
    return {name: tuple(map(of, getattr(aoi, name))) for name, of in _JOINS.items()}


def _pois(given: Iterable[Any], where: str) -> dict[int, Poi]:
    found: dict[int, Poi] = {}
    for poi in given:
        number, x, y = poi.id, poi.position.x, poi.position.y
        if number in found:
            _refuse(where, "Poi", number, DUPLICATE)
        if not poi.HasField("position"):
            _refuse(where, "Poi", number, "it has no position")
        if not (abs(x) <= FURTHEST and abs(y) <= FURTHEST):
            _refuse_coordinates(where, "Poi", number, x, y)
        functions, capacity = tuple(poi.functions), _optional(poi, "capacity")
        found[number] = Poi(
            number, poi.name, intern(poi.category), x, y, poi.aoi_id, functions, capacity
        )
    return found


def _lines(kind: str, shapes: Iterable[tuple[int, Collection[Any], int]], where: str) -> Lines:
    """Return the lines of shapes: id, corners, and how many corners are needed at least."""
    counts: dict[int, int] = {}
    flat = array("d")  # far quicker than to make an array of tuples
    for number, corners, needed in shapes:
        if number in counts:
            _refuse(where, kind, number, DUPLICATE)
        if len(corners) < needed:
            _refuse(where, kind, number, f"expected {needed} positions or more, got {len(corners)}")
        counts[number] = len(corners)
        for corner in corners:
            flat.append(corner.x)
            flat.append(corner.y)
    xy, ids, corners_of = (
        np.array(flat, np.float64).reshape(-1, 2),
        list(counts),
        np.array([*counts.values()], np.intp),
    )
    odd = np.flatnonzero(~(np.abs(xy) <= FURTHEST).all(axis=1))
    if odd.size:
        row = int(np.searchsorted(np.cumsum(corners_of), odd[0], "right"))
        _refuse_coordinates(where, kind, ids[row], *xy[odd[0]].tolist())
    return Lines(ids, corners_of, xy)


def _refuse_coordinates(where: str, kind: str, number: int, x: float, y: float) -> NoReturn:
    _refuse(
        where,
        kind,
        number,
        f"expected coordinates in metres, at most {FURTHEST:g} from 0, got {x}, {y}",
    )


def _refuse(where: str, kind: str, number: int, what: str) -> NoReturn:
    raise BadInput(f"{where}: {kind} {number}: {what}")
