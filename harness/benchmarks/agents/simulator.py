"""One resident's place in time. Source: docs/design.md, section 9.

An approximation of a traffic simulator: whoever moves goes straight towards the middle of an AOI,
on a way that is `DETOUR` times as long as the line, at one speed a mode; no roads, no traffic, no
queues. Time passes only in `advance`.
"""

from __future__ import annotations

from collections import deque
from math import hypot
from typing import Literal

from harness.benchmarks.agents.city import City, as_message
from harness.model import JSON

Mode = Literal["driving", "walking"]
Stop = tuple[int, Mode, float]
"""An AOI to go to, the mode, and the tick (second of the simulation) to set out at."""
DETOUR = 1.3
SPEEDS: dict[Mode, float] = {"driving": 8.0, "walking": 1.34}
"""Metres a second."""
SETTING_OUT = 2
"""Seconds from an order to the way: upstream's simulator takes it up at its next tick, and moves at
the one after."""


class Walker:
    """A resident who starts at home. All AOIs are of the city: its callers check them."""

    def __init__(self, city: City, home: int) -> None:
        self._city = city
        self._end = city.aois[home]
        self._start = (self._end.x, self._end.y)
        self._mode: Mode = "driving"
        self._seconds = self._left = 0.0

    @property
    def moving(self) -> bool:
        return self._left > 0

    @property
    def mode(self) -> Mode | None:
        """Return how the resident moves; None for one who does not."""
        if not self.moving:
            return None
        return self._mode

    @property
    def aoi(self) -> int | None:
        """Return the AOI of the resident; None on the way."""
        if self.moving:
            return None
        return self._end.id

    @property
    def xy(self) -> tuple[float, float]:
        """Return the point in metres; in an AOI its centroid."""
        if not self.moving:
            return self._end.x, self._end.y
        share = 1 - self._left / self._seconds
        x, y = self._start
        return x + (self._end.x - x) * share, y + (self._end.y - y) * share

    @property
    def position(self) -> JSON:
        """Return the form for agents, in upstream's order: `aoi_position`, or on the way
        `lane_position`, and `xy_position`.

        The lane is the nearest one, and lane 0 in a city without lanes.
        """
        x, y = self.xy
        place: JSON = {"aoi_position": {"aoi_id": self._end.id}}
        if self.moving:
            lane, along = self._city.lanes.nearest(x, y) or (0, 0.0)
            place = {"lane_position": as_message({"lane_id": lane, "s": along})}
        return place | {"xy_position": as_message({"x": x, "y": y, "z": 0.0})}

    def go_to(self, aoi: int, mode: Mode = "driving") -> None:
        """Set out for an AOI from wherever the resident is, on the way too; no change if one is or
        goes there."""
        end = self._city.aois[aoi]
        if end.id == self._end.id and self.mode in (None, mode):
            return

        x, y = self.xy
        self._seconds = hypot(end.x - x, end.y - y) * DETOUR / SPEEDS[mode]
        self._left = self._seconds
        self._start = (x, y)
        self._end = end
        self._mode = mode

    def advance(self, seconds: float) -> None:
        """Let time pass. Who arrives before it is over stays there for the rest."""
        self._left = max(0.0, self._left - seconds)


class Route:
    """The places that a resident goes to one after another; `tick` counts seconds, 0 before the
    first step."""

    def __init__(self, walker: Walker) -> None:
        self.walker = walker
        self.tick = 0
        self._plan: deque[Stop] = deque()
        self._earliest = 0
        self._interrupts = False

    def replace(self, plan: list[Stop]) -> None:
        """Drop earlier stops. Set out for the first once it is due, from the way to somewhere else
        too."""
        self._plan = deque(plan)
        self._earliest = self.tick + SETTING_OUT
        self._interrupts = True

    def advance(self, seconds: int) -> None:
        """Let time pass, second by second only while stops are left."""
        # A stop may be due within a step, and arriving may make room for the next.
        while seconds and self._plan:
            self.walker.advance(1)
            self.tick += 1
            seconds -= 1
            while self._plan and self._is_due(self._plan[0]):
                aoi, mode, _ = self._plan.popleft()
                self.walker.go_to(aoi, mode)
                self._interrupts = False

        self.walker.advance(seconds)
        self.tick += seconds

    def _is_due(self, stop: Stop) -> bool:
        if self.tick < max(stop[2], self._earliest):
            return False
        # A new order may end a way before it is over; a later stop of the plan waits for the
        # arrival.
        return self._interrupts or not self.walker.moving
