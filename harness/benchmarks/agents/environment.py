"""The environment of one resident's agent: the clock, the map, and a way to move.

Names, also the fields of places, are those of `agentsociety` 1.5.7. Coordinates are metres in the
map's projection, times are seconds. Residents share the dicts of places, as upstream; each call
that returns a list returns a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from functools import cached_property
from operator import index
from time import gmtime, strftime
from typing import Any, NoReturn, SupportsIndex

import numpy as np

from harness.benchmarks.agents.city import LISTS, Aoi, City, Poi, as_message
from harness.benchmarks.agents.interface import (
    LACKS,
    UPSTREAM,
    Harness,
    Incomplete,
    Refuses,
)
from harness.benchmarks.agents.simulator import Stop
from harness.benchmarks.agents.spatial import geometry, lnglat

DAY_SECONDS = 86400
FIRST_POI = 700_000_000
"""Ids from here on are POIs, below are AOIs."""
WALK, DRIVE = 1, 2
LARGEST_MODE = 8
UNKNOWN = "Don't know"
"""Upstream's answer for what the environment says nothing of."""

POI_CATG_DICT: dict[str, list[str]] = {
    kind: words.split() for kind, words in UPSTREAM["kinds"].items()
}

Centre = Any
"""A pair of coordinates in metres, or something with `x` and `y`, such as a shapely point."""


AOI_DECLARED = ("id", "name", "type", *LISTS, "area", "land_use", "urban_land_use", "poi_ids")
"""Fields of an AOI in the order in which the map's message declares them; their numbers have
another."""


def _of_all(name: str) -> Any:
    """Return a method of `dict` that sees late fields too."""
    method = getattr(dict, name)

    def seeing(self: Place, *given: object) -> Any:
        for place in (self, *given):
            if isinstance(place, Place):
                place.complete()
        return method(self, *given)

    return seeing


class Place(dict[str, Any]):
    """Fields of a place, in `order`. Large or slow ones, those without a value in `fields`, are
    made at first use."""

    __slots__ = ("_late", "_map", "_order")
    __iter__, __len__, __repr__ = map(_of_all, ("__iter__", "__len__", "__repr__"))
    __eq__, __ne__, __or__ = map(_of_all, ("__eq__", "__ne__", "__or__"))
    keys, values, items, copy = map(_of_all, ("keys", "values", "items", "copy"))

    def __init__(self, map: MapData, fields: dict[str, Any], order: Sequence[str]) -> None:
        super().__init__(fields)
        self._map = map
        self._order = order
        self._late = tuple(name for name in order if name not in fields)

    def complete(self) -> None:
        """Make all fields. Their order depends on nobody who used some of them before: residents
        share places."""
        if self._late:
            made = {name: self[name] for name in self._order if name in self}
            made |= dict(dict.items(self))
            self._late = ()
            self.clear()
            self.update(made)

    def __missing__(self, name: str) -> Any:
        if name in self._late:
            value = self[name] = self._map.late(self, name)
            return value
        if name in LACKS["Place"]:
            self._map.refuse(name)
        raise KeyError(name)

    def get(self, name: str, default: object = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return default

    def __contains__(self, name: object) -> bool:
        return dict.__contains__(self, name) or name in self._late or name in LACKS["Place"]

    def __deepcopy__(self, memo: dict[int, Any]) -> Place:
        """Copy a place of the same map: agents keep places in their memory, which copies what is
        read."""
        copied = Place(self._map, deepcopy(dict(dict.items(self)), memo), self._order)
        copied._late = self._late
        return copied


class MapData(Incomplete):
    """The map, one for all residents. `harness` fails the resident that uses a missing name."""

    def __init__(self, city: City, harness: Refuses) -> None:
        self._harness = harness
        self._city = city
        self._pois: dict[int, Place] = {}
        self._shapes: tuple[str, ...] = ("shapely_xy", "shapely_lnglat")
        self._unprojected = ""
        try:
            lnglat(city.projection, np.zeros((1, 2)))
        except (ValueError, KeyError) as error:
            self._shapes, self._unprojected = ("shapely_xy",), str(error)
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
            at = as_message({"x": poi.x, "y": poi.y})
            fields = {
                "id": poi.id,
                "name": poi.name,
                "category": poi.category,
                "position": at,
                "aoi_id": poi.aoi_id,
            }
            fields |= {} if poi.capacity is None else {"capacity": poi.capacity}
            self._pois[poi_id] = self._place(
                as_message(fields | {"functions": list(poi.functions)})
            )
        return self._pois[poi_id]

    def query_pois(
        self,
        center: Centre,
        radius: float | None = None,
        category_prefix: str | None = None,
        limit: int | None = None,
        return_distance: bool = True,
    ) -> list[Any]:
        """Return pairs of POI and distance in metres, nearest first, or with
        `return_distance=False` POIs.

        As upstream, `radius` is half the side of a square, and without one the prefix is ignored.
        POIs are in the order of upstream's tree, which also decides between equally near ones;
        without `radius` in map order.
        """
        x, y = coordinates(center)
        if radius is None:
            found: Sequence[Poi] = list(self._city.pois.values())
        else:
            prefix = category_prefix or ""
            found = [
                poi for poi in self._city.nearby(x, y, radius) if poi.category.startswith(prefix)
            ]
        if not return_distance:
            return [self.get_poi(poi.id) for poi in found[:limit]]
        at = geometry().points([(poi.x, poi.y) for poi in found] or np.empty((0, 2)))
        return [
            (self.get_poi(found[row].id), distance)
            for distance, row in _nearest((x, y), at)[:limit]
        ]

    def query_aois(
        self,
        center: Centre,
        radius: float,
        urban_land_uses: Sequence[str] | None = None,
        limit: int | None = None,
    ) -> list[tuple[Place, float]]:
        """Return pairs of AOI and distance in metres, nearest first; the AOIs' bounding boxes touch
        the square."""
        x, y = coordinates(center)
        aois = list(self._city.aois.values())
        found = [
            aois[row]
            for row in self._aoi_tree.query(geometry().Point(x, y).buffer(radius)).tolist()
        ]
        if urban_land_uses is not None:
            found = [aoi for aoi in found if aoi.land_use in urban_land_uses]
        nearest = _nearest((x, y), [self.aois[aoi.id]["shapely_xy"] for aoi in found])
        return [(self.aois[found[row].id], distance) for distance, row in nearest[:limit]]

    @cached_property
    def _aoi_tree(self) -> Any:
        return geometry().STRtree([aoi["shapely_xy"] for aoi in self.aois.values()])

    def _aoi(self, aoi: Aoi) -> Place:
        fields: dict[str, Any] = {
            "id": aoi.id,
            "type": aoi.type,
            **{name: _entries(aoi, name) for name in LISTS},
        }
        fields |= {"area": aoi.area} if len(aoi.outline) > 1 else {}
        fields |= {"poi_ids": list(aoi.poi_ids)} | (
            {} if aoi.use is None else {"land_use": aoi.use}
        )
        fields |= {"name": aoi.name} | ({"urban_land_use": aoi.land_use} if aoi.land_use else {})
        return self._place(as_message(fields, AOI_DECLARED), LISTS)

    def _place(self, fields: Mapping[str, Any], late: Collection[str] = ()) -> Place:
        own = {name: value for name, value in fields.items() if name not in late}
        return Place(self, own, (*fields, *self._shapes))

    def refuse(self, name: str) -> NoReturn:
        """Fail the resident that uses a field which places lack here."""
        where = "here" if name != "shapely_lnglat" else f"with this map: {self._unprojected}"
        self._harness.refuse("agent_api", f"the field {name} of a place is not available {where}")

    def late(self, place: Place, name: str) -> Any:
        """Return a field that is made at its first use."""
        if name in LISTS:
            entries = _entries(self._city.aois[place["id"]], name)
            return [as_message(dict(zip(LISTS[name], entry, strict=True))) for entry in entries]
        at = place.get("position")
        outline = self._city.aois[place["id"]].outline if at is None else ((at["x"], at["y"]),)
        shapely = geometry()
        if name == "shapely_lnglat":
            outline = lnglat(self._city.projection, np.array(outline)).tolist()
        return shapely.Point(outline[0]) if len(outline) == 1 else shapely.Polygon(outline)


def _entries(aoi: Aoi, name: str) -> Sequence[tuple[float, float]]:
    return aoi.outline if name == "positions" else aoi.joins.get(name, ())


def _nearest(center: tuple[float, float], shapes: object) -> list[tuple[float, int]]:
    """Return pairs of distance in metres and row, nearest first."""
    shapely = geometry()
    away = shapely.distance(shapely.Point(center), shapes).tolist()
    return sorted((distance, row) for row, distance in enumerate(away))


def coordinates(center: Centre) -> tuple[float, float]:
    if hasattr(center, "x") and hasattr(center, "y"):
        return float(center.x), float(center.y)
    x, y, *_ = center
    return float(x), float(y)


class Environment(Incomplete):
    def __init__(
        self, harness: Harness, map: MapData, city: City, days: Sequence[Mapping[str, str]]
    ) -> None:
        """`days` is what can be sensed on each day, by name."""
        self._harness: Harness = harness
        self._city = city
        self._days = days
        self.map = map

    def get_tick(self) -> int:
        return self._harness.route.tick

    def get_datetime(
        self, format_time: bool = False, format: str = "%H:%M:%S"
    ) -> tuple[int, int | str]:
        """Return the day, from 0, and the second of it, or that as text."""
        day, second = divmod(self.get_tick(), DAY_SECONDS)
        return day, strftime(format, gmtime(second)) if format_time else second

    @property
    def sense(self) -> Callable[[str], str]:
        """Return what the environment is like today, by name: `sense("weather")`. A benchmark that
        says nothing of it fails the resident."""
        if not self._days:
            self._harness.refuse("agent_api", "Environment.sense is not available here")
        today = self._days[self.get_tick() // DAY_SECONDS]
        return lambda key: today.get(key, UNKNOWN)

    def get_aoi_ids(self) -> list[int]:
        return list(self._city.aois)

    def get_poi_cate(self) -> dict[str, list[str]]:
        """Return words of categories by the name of their kind."""
        return {kind: list(words) for kind, words in POI_CATG_DICT.items()}

    def get_around_poi(
        self, center: Centre, radius: float, poi_type: str | Iterable[str]
    ) -> list[Place]:
        """Return POIs in the square with sides of twice the radius, in the order of upstream's
        tree.

        `poi_type` is the last level of a category, the name of a kind of them, or several of
        either.
        """
        given = [poi_type] if isinstance(poi_type, str) else poi_type
        wanted = {word for each in given for word in POI_CATG_DICT.get(each, (each,))}
        return [
            self.map.get_poi(poi.id)
            for poi in self._city.nearby(*coordinates(center), radius, wanted)
        ]

    async def set_aoi_schedules(
        self,
        person_id: int,
        target_positions: object,
        departure_times: Sequence[float] | None = None,
        modes: Sequence[int] | None = None,
    ) -> None:
        """Go to an AOI, a POI, a pair (see `_target`), or one after another of a list of such.

        Drop earlier plans. `departure_times` are ticks, by default now; `modes` are `TripMode`s, by
        default driving. An AOI that is not in the city fails the resident.
        """
        harness = self._harness
        if index(person_id) != harness.number:
            harness.refuse(
                "agent_api", f"moving another person ({person_id}) is not available here"
            )
        targets = target_positions if isinstance(target_positions, list) else [target_positions]
        times, ways = list(departure_times or ()), list(modes or ())
        plan: list[Stop] = []
        for number, given in enumerate(targets):
            aoi, mode = self._target(given)
            if mode is not None:
                harness.warn_once(
                    "the second number of a pair (AOI, 1 to 8) is a trip mode here; upstream takes"
                    " a POI"
                )
            else:
                mode = ways[number] if number < len(ways) else DRIVE
            departure = times[number] if number < len(times) else self.get_tick()
            if mode not in (WALK, DRIVE):
                harness.warn_once(
                    f"trip mode {mode} is simulated as driving: there are only driving and walking"
                )
            plan.append((aoi, "walking" if mode == WALK else "driving", float(departure)))
        harness.route.replace(plan)

    def _target(self, given: object) -> tuple[int, int | None]:
        """Return the AOI, and the mode where one is named.

        The second of a pair is a `TripMode`, a POI in the AOI (which is not simulated) or None: the
        number decides.
        """
        pair: tuple[Any, ...] = tuple(given) if isinstance(given, tuple | list) else (given, None)
        if len(pair) != 2:
            raise ValueError(f"expected an AOI or a pair of AOI and mode, got {given!r}")
        place, second = _number(pair[0]), None if pair[1] is None else _number(pair[1])
        if place >= FIRST_POI and place in self._city.pois:
            place = self._city.pois[place].aoi_id
        if place not in self._city.aois:
            self._harness.refuse("unknown_place", f"the city has no AOI {pair[0]!r}")
        return place, second if second is not None and second <= LARGEST_MODE else None


def _number(given: SupportsIndex) -> int:
    try:
        return int.__int__(index(given))  # no class of the agent's that is a number too
    except TypeError:
        raise TypeError(f"expected the id of an AOI, got {given!r}") from None
