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
        self,
        x: float,
        y: float,
        radius: float,
        category: str | Collection[str] | None = None,
    ) -> list[Poi]:
        """Return POIs with |dx| <= radius and |dy| <= radius, a square, in the order of upstream's
        `get_around_poi`.

        `category` is the last level of the category, or several of which one must be it; None is
        any.
        """
        all_pois, points = self._located
        pois = [all_pois[row] for row in points.in_square(x, y, radius).tolist()]
        if category is None:
            return pois
        if isinstance(category, str):
            category = (category,)
        return [poi for poi in pois if levels(poi.category)[-1] in category]

    def nearest(self, x: float, y: float, kinds: Collection[str], count: int) -> list[Poi]:
        """Return the `count` nearest POIs that have one of `kinds` as some level of their category,
        nearest first.

        Only POIs in an AOI of the city, which are the ones one can go to. Of equally near ones the
        map's order decides.
        """
        key = frozenset(kinds)
        if key not in self._of_kinds:
            pois = [
                poi
                for poi in self.pois.values()
                if poi.aoi_id in self.aois and not key.isdisjoint(levels(poi.category))
            ]
            self._of_kinds[key] = (pois, _points(pois))

        pois, points = self._of_kinds[key]
        return [pois[row] for row in points.nearest(x, y, count).tolist()]

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
        city = map_type.FromString(data)
    except DecodeError:
        raise BadInput(
            f"{where}: expected a map of a city (city.map.v2.Map), got bytes that are none"
        ) from None

    if not city.aois:
        raise BadInput(
            f"{where}: expected a map of a city (city.map.v2.Map), got one without any AOI"
        )

    lanes = ((lane.id, lane.center_line.nodes, 0) for lane in city.lanes)
    return City(
        aois=_aois(city.aois, where),
        pois=_pois(city.pois, where),
        lanes=_lines("Lane", lanes, where),
        projection=city.header.projection,
        sha256=hashlib.sha256(data).hexdigest(),
    )


def _aois(entries: Sequence[Any], where: str) -> dict[int, Aoi]:
    # All at once: centroids of a million corners take one call of shapely.
    outlines = _lines("Aoi", map(_aoi_shape, entries), where)
    aois = {}
    for entry, outline, centroid in zip(
        entries, outlines.values(), outlines.centroids(), strict=True
    ):
        aois[entry.id] = Aoi(
            id=entry.id,
            x=centroid[0],
            y=centroid[1],
            outline=outline,
            area=entry.area,
            # A city has few uses and categories: each is held once.
            land_use=intern(entry.urban_land_use),
            poi_ids=tuple(entry.poi_ids),
            joins=_joins(entry),
            name=entry.name,
            type=entry.type,
            use=_optional(entry, "land_use"),
        )

    return aois


def _aoi_shape(aoi: Any) -> tuple[int, Collection[Any], int]:
    """Return id, corners, and how many are needed: an AOI with an area, also of 0, is a polygon,
    any other is the first of its positions."""
    if aoi.HasField("area"):
        return aoi.id, aoi.positions, 3
    return aoi.id, aoi.positions[:1], 1


def _optional(place: Message, name: str) -> int | None:
    if not place.HasField(name):
        return None
    value: int = getattr(place, name)
    return value


def _joins(aoi: object) -> dict[str, tuple[tuple[float, float], ...]]:
    return {name: tuple(map(pair, getattr(aoi, name))) for name, pair in _JOINS.items()}


def _pois(entries: Iterable[Any], where: str) -> dict[int, Poi]:
    pois: dict[int, Poi] = {}
    for entry in entries:
        x = entry.position.x
        y = entry.position.y
        if entry.id in pois:
            _refuse(where, "Poi", entry.id, DUPLICATE)

        # Fields that are not set read as 0, which is a place, too.
        if not entry.HasField("position"):
            _refuse(where, "Poi", entry.id, "it has no position")

        # Written so that NaN is refused, too.
        if not (abs(x) <= FURTHEST and abs(y) <= FURTHEST):
            _refuse_coordinates(where, "Poi", entry.id, x, y)

        pois[entry.id] = Poi(
            id=entry.id,
            name=entry.name,
            category=intern(entry.category),
            x=x,
            y=y,
            aoi_id=entry.aoi_id,
            functions=tuple(entry.functions),
            capacity=_optional(entry, "capacity"),
        )

    return pois


def _lines(kind: str, shapes: Iterable[tuple[int, Collection[Any], int]], where: str) -> Lines:
    """Return the lines of shapes: id, corners, and how many corners are needed at least."""
    counts: dict[int, int] = {}
    # Far quicker than to make an array of tuples.
    flat = array("d")
    for number, corners, needed in shapes:
        if number in counts:
            _refuse(where, kind, number, DUPLICATE)

        if len(corners) < needed:
            _refuse(
                where,
                kind,
                number,
                f"expected {needed} positions or more, got {len(corners)}",
            )

        counts[number] = len(corners)
        for corner in corners:
            flat.append(corner.x)
            flat.append(corner.y)

    xy = np.array(flat, np.float64).reshape(-1, 2)
    ids = list(counts)
    corner_counts = np.array([*counts.values()], np.intp)
    invalid = np.flatnonzero(~(np.abs(xy) <= FURTHEST).all(axis=1))
    if invalid.size:
        row = int(np.searchsorted(np.cumsum(corner_counts), invalid[0], "right"))
        _refuse_coordinates(where, kind, ids[row], *xy[invalid[0]].tolist())

    return Lines(ids, corner_counts, xy)


def _refuse_coordinates(where: str, kind: str, number: int, x: float, y: float) -> NoReturn:
    _refuse(
        where,
        kind,
        number,
        f"expected coordinates in metres, at most {FURTHEST:g} from 0, got {x}, {y}",
    )


def _refuse(where: str, kind: str, number: int, what: str) -> NoReturn:
    raise BadInput(f"{where}: {kind} {number}: {what}")
