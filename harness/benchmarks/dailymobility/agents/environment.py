"""The environment of one resident's agent: the clock, the map, and a way to move. Names as in `agentsociety` 1.5.7."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import index
from time import gmtime, strftime
from typing import Any

from harness.benchmarks.dailymobility.agents.interface import UPSTREAM, Harness, Incomplete, lacks
from harness.benchmarks.dailymobility.agents.places import Centre, MapData, Place, coordinates
from harness.benchmarks.dailymobility.city import City
from harness.benchmarks.dailymobility.simulator import Stop

DAY_SECONDS = 86400
FIRST_POI = 700_000_000
"""Ids from here on are POIs, below are AOIs."""
WALK, DRIVE = 1, 2
LARGEST_MODE = 8

POI_CATG_DICT: dict[str, list[str]] = {kind: words.split() for kind, words in UPSTREAM["kinds"].items()}


class Environment(Incomplete):
    """Coordinates are metres in the map's projection, times are seconds."""

    LACKS = lacks("Environment")

    def __init__(self, harness: Harness, map: MapData, city: City) -> None:
        self._harness: Harness = harness
        self._city = city
        self.map = map

    def get_tick(self) -> int:
        return self._harness.route.tick

    def get_datetime(self, format_time: bool = False, format: str = "%H:%M:%S") -> tuple[int, int | str]:
        """Return the day, from 0, and the second of it, or that as text."""
        day, second = divmod(self.get_tick(), DAY_SECONDS)
        return day, strftime(format, gmtime(second)) if format_time else second

    def get_aoi_ids(self) -> list[int]:
        return list(self._city.aois)

    def get_poi_cate(self) -> dict[str, list[str]]:
        """Return words of categories by the name of their kind."""
        return {kind: list(words) for kind, words in POI_CATG_DICT.items()}

    def get_around_poi(self, center: Centre, radius: float, poi_type: str | Iterable[str]) -> list[Place]:
        """Return POIs in the square with sides of twice the radius, in map order.

        `poi_type` is the last level of a category, the name of a kind of them, or several of either.
        """
        given = [poi_type] if isinstance(poi_type, str) else poi_type
        wanted = {word for each in given for word in POI_CATG_DICT.get(each, (each,))}
        return [self.map.get_poi(poi.id) for poi in self._city.nearby(*coordinates(center), radius, wanted)]

    async def set_aoi_schedules(
        self,
        person_id: int,
        target_positions: Any,
        departure_times: Sequence[float] | None = None,
        modes: Sequence[int] | None = None,
    ) -> None:
        """Go to an AOI, a POI, a pair (see `_target`), or one after another of a list of such.

        Drop earlier plans. `departure_times` are ticks, by default now; `modes` are `TripMode`s, by default driving.
        An AOI that is not in the city fails the resident.
        """
        harness = self._harness
        if index(person_id) != harness.number:
            harness.refuse("agent_api", f"moving another person ({person_id}) is not available here")
        targets = target_positions if isinstance(target_positions, list) else [target_positions]
        times, ways = list(departure_times or ()), list(modes or ())
        plan: list[Stop] = []
        for number, given in enumerate(targets):
            aoi, mode = self._target(given)
            if mode is None:
                mode = ways[number] if number < len(ways) else DRIVE
            departure = times[number] if number < len(times) else self.get_tick()
            if mode not in (WALK, DRIVE):
                harness.warn_once(f"trip mode {mode} is simulated as driving: there are only driving and walking")
            plan.append((aoi, "walking" if mode == WALK else "driving", float(departure)))
        harness.route.replace(plan)

    def _target(self, given: Any) -> tuple[int, int | None]:
        """Return the AOI, and the mode where one is named.

        The second of a pair is a `TripMode`, a POI in the AOI (which is not simulated) or None: the number decides.
        """
        pair = tuple(given) if isinstance(given, tuple | list) else (given, None)
        if len(pair) != 2:
            raise ValueError(f"expected an AOI or a pair of AOI and mode, got {given!r}")
        place, second = _number(pair[0]), None if pair[1] is None else _number(pair[1])
        if place >= FIRST_POI and place in self._city.pois:
            place = self._city.pois[place].aoi_id
        if place not in self._city.aois:
            self._harness.refuse("unknown_place", f"the city has no AOI {pair[0]!r}")
        return place, second if second is not None and second <= LARGEST_MODE else None


def _number(given: Any) -> int:
    try:
        return int.__int__(index(given))  # no class of the agent's that is a number too
    except TypeError:
        raise TypeError(f"expected the id of an AOI, got {given!r}") from None
