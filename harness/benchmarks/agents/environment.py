"""The environment of one resident's agent: the clock, the map, and a way to move.

Names, also the fields of places, are those of `agentsociety` 1.5.7. Coordinates are metres in the
map's projection, times are seconds. Residents share the dicts of places, as upstream; each call
that returns a list returns a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from functools import cached_property
from itertools import repeat
from operator import index
from time import gmtime, strftime
from typing import Any, NoReturn, SupportsIndex

import numpy as np

from harness.benchmarks.agents.city import LISTS, Aoi, City, Poi, as_message
from harness.benchmarks.agents.interface import (
    LACKS,
    UPSTREAM,
    Harness,
    PartialInterface,
    Refuses,
)
from harness.benchmarks.agents.simulator import Mode, Stop
from harness.benchmarks.agents.spatial import geometry, lnglat

DAY_SECONDS = 86400
FIRST_POI = 700_000_000
"""Ids from here on are POIs, below are AOIs."""
WALK, DRIVE = 1, 2
MAX_MODE = 8
"""Largest `TripMode` of upstream."""
UNKNOWN = "Don't know"
"""Upstream's answer for what the environment says nothing of."""

POI_CATG_DICT: dict[str, list[str]] = {
    kind: categories.split() for kind, categories in UPSTREAM["kinds"].items()
}

Centre = Any
"""A pair of coordinates in metres, or something with `x` and `y`, such as a shapely point."""


AOI_DECLARED = (
    "id",
    "name",
    "type",
    *LISTS,
    "area",
    "land_use",
    "urban_land_use",
    "poi_ids",
)
"""Fields of an AOI in the order in which the map's message declares them; their numbers have
another."""


def _of_all(name: str) -> Any:
    """Return a method of `dict` that sees late fields too."""
    method = getattr(dict, name)

    def on_all_fields(self: Place, *arguments: object) -> Any:
        for place in (self, *arguments):
            if isinstance(place, Place):
                place.complete()
        return method(self, *arguments)

    return on_all_fields


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
            # `self[name]` makes the late fields.
            fields = {name: self[name] for name in self._order if name in self}
            fields |= dict(dict.items(self))
            self._late = ()
            self.clear()
            self.update(fields)

    def __missing__(self, name: str) -> Any:
        if name in self._late:
            value = self[name] = self._map.late(self, name)
            return value
        if name in LACKS["Place"]:
            # A field that upstream has and we lack must not look like one that does not exist.
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
        # A copy stays as small as the original until its late fields are used.
        copied._late = self._late
        return copied


class MapData(PartialInterface):
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
            self._shapes = ("shapely_xy",)
            self._unprojected = str(error)

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
            # By the numbers of the message's fields.
            fields = {
                "id": poi.id,
                "name": poi.name,
                "category": poi.category,
                "position": as_message({"x": poi.x, "y": poi.y}),
                "aoi_id": poi.aoi_id,
            }
            if poi.capacity is not None:
                fields["capacity"] = poi.capacity

            fields["functions"] = list(poi.functions)
            self._pois[poi_id] = self._place(as_message(fields))

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
        pois: Sequence[Poi] = list(self._city.pois.values())
        if radius is not None:
            nearby = self._city.nearby(x, y, radius)
            pois = [poi for poi in nearby if poi.category.startswith(category_prefix or "")]

        if not return_distance:
            return [self.get_poi(poi.id) for poi in pois[:limit]]

        points = geometry().points([(poi.x, poi.y) for poi in pois] or np.empty((0, 2)))
        nearest = _nearest((x, y), points)[:limit]
        return [(self.get_poi(pois[row].id), distance) for distance, row in nearest]

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
        all_aois = list(self._city.aois.values())
        rows = self._aoi_tree.query(geometry().Point(x, y).buffer(radius)).tolist()
        aois = [all_aois[row] for row in rows]
        if urban_land_uses is not None:
            aois = [aoi for aoi in aois if aoi.land_use in urban_land_uses]

        places = [self.aois[aoi.id] for aoi in aois]
        nearest = _nearest((x, y), [place["shapely_xy"] for place in places])
        return [(places[row], distance) for distance, row in nearest[:limit]]

    @cached_property
    def _aoi_tree(self) -> Any:
        return geometry().STRtree([aoi["shapely_xy"] for aoi in self.aois.values()])

    def _aoi(self, aoi: Aoi) -> Place:
        # By the numbers of the message's fields.
        fields: dict[str, Any] = {"id": aoi.id, "type": aoi.type}
        for name in LISTS:
            fields[name] = _entries(aoi, name)

        if len(aoi.outline) > 1:
            fields["area"] = aoi.area

        fields["poi_ids"] = list(aoi.poi_ids)
        if aoi.use is not None:
            fields["land_use"] = aoi.use

        fields["name"] = aoi.name
        if aoi.land_use:
            fields["urban_land_use"] = aoi.land_use

        return self._place(as_message(fields, AOI_DECLARED), LISTS)

    def _place(self, fields: Mapping[str, Any], late: Collection[str] = ()) -> Place:
        early = {name: value for name, value in fields.items() if name not in late}
        return Place(self, early, (*fields, *self._shapes))

    def refuse(self, name: str) -> NoReturn:
        """Fail the resident that uses a field which places lack here."""
        where = "here"
        if name == "shapely_lnglat":
            where = f"with this map: {self._unprojected}"
        self._harness.refuse("agent_api", f"the field {name} of a place is not available {where}")

    def late(self, place: Place, name: str) -> Any:
        """Return a field that is made at its first use."""
        if name in LISTS:
            entries = _entries(self._city.aois[place["id"]], name)
            return [as_message(dict(zip(LISTS[name], entry, strict=True))) for entry in entries]

        position = place.get("position")
        if position is None:
            outline: Any = self._city.aois[place["id"]].outline
        else:
            outline = ((position["x"], position["y"]),)

        if name == "shapely_lnglat":
            outline = lnglat(self._city.projection, np.array(outline)).tolist()

        if len(outline) == 1:
            return geometry().Point(outline[0])

        return geometry().Polygon(outline)


def _entries(aoi: Aoi, name: str) -> Sequence[tuple[float, float]]:
    if name == "positions":
        return aoi.outline
    return aoi.joins.get(name, ())


def _nearest(center: tuple[float, float], shapes: object) -> list[tuple[float, int]]:
    """Return pairs of distance in metres and row, nearest first."""
    shapely = geometry()
    distances = shapely.distance(shapely.Point(center), shapes).tolist()
    return sorted((distance, row) for row, distance in enumerate(distances))


def coordinates(center: Centre) -> tuple[float, float]:
    if hasattr(center, "x") and hasattr(center, "y"):
        return float(center.x), float(center.y)
    x, y, *_ = center
    return float(x), float(y)


class Environment(PartialInterface):
    def __init__(
        self,
        harness: Harness,
        map: MapData,
        city: City,
        days: Sequence[Mapping[str, str]],
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
        if format_time:
            return day, strftime(format, gmtime(second))
        return day, second

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
        return {kind: list(categories) for kind, categories in POI_CATG_DICT.items()}

    def get_around_poi(
        self, center: Centre, radius: float, poi_type: str | Iterable[str]
    ) -> list[Place]:
        """Return POIs in the square with sides of twice the radius, in the order of upstream's
        tree.

        `poi_type` is the last level of a category, the name of a kind of them, or several of
        either.
        """
        if isinstance(poi_type, str):
            poi_type = [poi_type]
        categories: set[str] = set()
        for name in poi_type:
            categories.update(POI_CATG_DICT.get(name, (name,)))
        pois = self._city.nearby(*coordinates(center), radius, categories)
        return [self.map.get_poi(poi.id) for poi in pois]

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
                "agent_api",
                f"moving another person ({person_id}) is not available here",
            )

        targets = [target_positions]
        if isinstance(target_positions, list):
            targets = target_positions

        # What is not named for a target: now, driving.
        times = [
            *(departure_times or ()),
            *repeat(self.get_tick(), len(targets)),
        ]
        trip_modes = [*(modes or ()), *repeat(DRIVE, len(targets))]
        plan: list[Stop] = []
        for target, time, trip_mode in zip(targets, times, trip_modes, strict=False):
            aoi, mode = self._target(target)
            if mode is None:
                mode = trip_mode
            else:
                harness.warn_once(
                    "the second number of a pair (AOI, 1 to 8) is a trip mode here; upstream takes"
                    " a POI"
                )

            simulated_mode: Mode = "driving"
            if mode == WALK:
                simulated_mode = "walking"
            elif mode != DRIVE:
                harness.warn_once(
                    f"trip mode {mode} is simulated as driving: there are only driving and walking"
                )

            plan.append((aoi, simulated_mode, float(time)))

        harness.route.replace(plan)

    def _target(self, target: object) -> tuple[int, int | None]:
        """Return the AOI, and the mode where one is named.

        The second of a pair is a `TripMode`, a POI in the AOI (which is not simulated) or None: the
        number decides.
        """
        pair: tuple[Any, ...] = (target, None)
        if isinstance(target, tuple | list):
            pair = tuple(target)

        if len(pair) != 2:
            raise ValueError(f"expected an AOI or a pair of AOI and mode, got {target!r}")

        place = _number(pair[0])
        mode = None
        if pair[1] is not None:
            mode = _number(pair[1])
            if mode > MAX_MODE:
                mode = None

        if place >= FIRST_POI and place in self._city.pois:
            # Movements end at AOIs: points of interest have no outline.
            place = self._city.pois[place].aoi_id

        if place not in self._city.aois:
            self._harness.refuse("unknown_place", f"the city has no AOI {pair[0]!r}")

        return place, mode


def _number(value: SupportsIndex) -> int:
    # The agent may have subclasses of int.
    try:
        return int.__int__(index(value))
    except TypeError:
        raise TypeError(f"expected the id of an AOI, got {value!r}") from None
