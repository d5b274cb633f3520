"""The environment of one resident's agent: the clock, the map, and a way to move. Names as in `agentsociety` 1.5.7."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import index
from time import gmtime, strftime
from typing import Any

from harness.benchmarks.dailymobility.agents.categories import POI_CATG_DICT
from harness.benchmarks.dailymobility.agents.interface import Backstage, Bounded, names
from harness.benchmarks.dailymobility.agents.places import Centre, MapData, Place, coordinates
from harness.benchmarks.dailymobility.city import City
from harness.benchmarks.dailymobility.simulator import Mode

DAY_SECONDS = 86400
FIRST_POI = 700_000_000
"""Ids from here on are POIs, below are AOIs."""

WALK, DRIVE = 1, 2
LARGEST_MODE = 8


class Environment(Bounded):
    """Coordinates are metres in the map's projection, times are seconds."""

    LACKS = names(
        "city_client economy_client projector environment poi_cate poi_id_2_aoi_id get_log_list clear_log_list"
        " register_aoi_message cancel_aoi_message set_environment sense sense_aoi update_environment get_environment"
        " get_poi_categories set_tick get_person add_person reset_person_position init close step get_metrics"
    )

    def __init__(self, backstage: Backstage, map: MapData, city: City) -> None:
        self._backstage = backstage
        self._city = city
        self.map = map

    def get_tick(self) -> int:
        return self._backstage.tick

    def get_datetime(self, format_time: bool = False, format: str = "%H:%M:%S") -> tuple[int, int | str]:
        """The day, from 0, and the second of it, or that as text."""
        day, second = divmod(self._backstage.tick, DAY_SECONDS)
        return day, strftime(format, gmtime(second)) if format_time else second

    def get_aoi_ids(self) -> list[int]:
        return list(self._city.aois)

    def get_poi_cate(self) -> dict[str, list[str]]:
        """Words of categories by the name of their kind."""
        return {kind: list(words) for kind, words in POI_CATG_DICT.items()}

    def get_around_poi(self, center: Centre, radius: float, poi_type: str | Iterable[str]) -> list[Place]:
        """POIs in the square with sides of twice the radius, in map order.

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
        """Where to go: an AOI, a POI, a pair (see `_target`), or a list of such, which are gone to one after another.

        Whatever was planned before is dropped. `departure_times` are ticks, now where there is none; `modes` are
        `TripMode`s, driving where there is none. An AOI that the city does not have fails the resident.
        """
        if index(person_id) != self._backstage.number:
            self._backstage.refuse("agent_api", f"moving another person ({person_id}) is not available here")
        targets = target_positions if isinstance(target_positions, list) else [target_positions]
        times, ways = list(departure_times or ()), list(modes or ())
        plan = []
        for number, given in enumerate(targets):
            aoi, mode = self._target(given)
            if mode is None:
                mode = ways[number] if number < len(ways) else DRIVE
            departure = times[number] if number < len(times) else self._backstage.tick
            plan.append((aoi, self._mode(mode), float(departure)))
        self._backstage.travel(plan)

    def _target(self, given: Any) -> tuple[int, int | None]:
        """The AOI, and the mode where one is named.

        The second of a pair is a `TripMode`, a POI in the AOI (which is not simulated) or None: numbers tell which.
        """
        pair = tuple(given) if isinstance(given, tuple | list) else (given, None)
        if len(pair) != 2:
            raise ValueError(f"expected an AOI or a pair of AOI and mode, got {given!r}")
        place, second = self._number(pair[0]), None if pair[1] is None else self._number(pair[1])
        if place >= FIRST_POI and place in self._city.pois:
            place = self._city.pois[place].aoi_id
        if place not in self._city.aois:
            self._backstage.refuse("unknown_place", f"the city has no AOI {pair[0]!r}")
        return place, second if second is not None and second <= LARGEST_MODE else None

    def _number(self, given: Any) -> int:
        try:
            return int.__int__(index(given))  # no class of the agent's that is a number too
        except TypeError:
            raise TypeError(f"expected the id of an AOI, got {given!r}") from None

    def _mode(self, mode: int) -> Mode:
        if mode not in (WALK, DRIVE):
            self._backstage.warn_once(f"trip mode {mode} is taken as driving: the simulator knows driving and walking")
        return "walking" if mode == WALK else "driving"
