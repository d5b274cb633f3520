"""One resident's place in time. Source: docs/design.md, section 9.

An approximation of a traffic simulator: whoever moves goes straight towards the middle of an AOI, on a way that is
`DETOUR` times as long as the line, at one speed a mode; no roads, no traffic, no queues. Time passes only in `advance`.
"""

from __future__ import annotations

from math import hypot
from typing import Literal

from harness.benchmarks.dailymobility.city import Aoi, City
from harness.errors import HarnessError
from harness.model import JSON

Mode = Literal["driving", "walking"]

DETOUR = 1.3
SPEEDS: dict[Mode, float] = {"driving": 8.0, "walking": 1.34}
"""Metres a second."""


class UnknownPlace(HarnessError):
    """A destination that the city does not have: whose resident it is, is for the caller to say."""


class Walker:
    """A resident who starts at home. Raises `UnknownPlace` for an AOI that the city does not have."""

    def __init__(self, city: City, home: int) -> None:
        self._city = city
        self._end = _aoi(city, home)
        self._start = (self._end.x, self._end.y)
        self._mode: Mode = "driving"
        self._seconds = self._left = 0.0

    @property
    def moving(self) -> bool:
        return self._left > 0

    @property
    def mode(self) -> Mode | None:
        """How the resident moves; None for one who does not."""
        return self._mode if self.moving else None

    @property
    def aoi(self) -> int | None:
        """Where the resident is; None on the way."""
        return None if self.moving else self._end.id

    @property
    def destination(self) -> int | None:
        """Where the resident is going; None for one who is not."""
        return self._end.id if self.moving else None

    @property
    def xy(self) -> tuple[float, float]:
        """Metres; in an AOI its centroid."""
        if not self.moving:
            return self._end.x, self._end.y
        gone = 1 - self._left / self._seconds
        x, y = self._start
        return x + (self._end.x - x) * gone, y + (self._end.y - y) * gone

    @property
    def position(self) -> JSON:
        """As agents know it: `xy_position`, and `aoi_position`, or on the way `lane_position`.

        The lane is the nearest one, and lane 0 in a city without lanes.
        """
        x, y = self.xy
        position: JSON = {"xy_position": {"x": x, "y": y, "z": 0.0}}
        if self.moving:
            lane, along = self._city.nearest_lane(x, y) or (0, 0.0)
            return position | {"lane_position": {"lane_id": lane, "s": along}}
        return position | {"aoi_position": {"aoi_id": self._end.id}}

    def go_to(self, aoi: int, mode: Mode = "driving") -> None:
        """Set out for an AOI from wherever the resident is, on the way too; no change for where one is or already goes.

        Raises `UnknownPlace` for an AOI that the city does not have, and changes nothing then.
        """
        end = _aoi(self._city, aoi)
        if end.id == self._end.id and self.mode in (None, mode):
            return
        x, y = self.xy
        self._seconds = self._left = hypot(end.x - x, end.y - y) * DETOUR / SPEEDS[mode]
        self._start, self._end, self._mode = (x, y), end, mode

    def advance(self, seconds: float) -> None:
        """Let time pass. Who arrives before it is over stays there for the rest."""
        self._left = max(0.0, self._left - seconds)


def _aoi(city: City, number: int) -> Aoi:
    found = city.aois.get(number)
    if found is None:
        raise UnknownPlace(f"the city has no AOI {number!r}")
    return found
