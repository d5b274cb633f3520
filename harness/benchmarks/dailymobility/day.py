"""The words of DailyMobility: a resident, a day, and what is measured of it. Source: docs/design.md, section 9."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SLOTS = 48
"""Half hours of a day."""

ROWS, ROW_SECONDS = 100, 900
"""Steps of a simulated day, 96 of the day and 4 of the next, and the seconds that each takes."""

INTENTIONS = {
    1: "sleep",
    2: "home activity",
    3: "other",
    4: "work",
    5: "shopping",
    6: "eating out",
    7: "leisure and entertainment",
}
NUMBERS = {name: number for number, name in INTENTIONS.items()}
OTHER = 3


def intention_number(intention: str | None) -> int:
    """The number of an intention in an agent's words, compared exactly; whatever is unknown is `other`."""
    return NUMBERS.get(intention, OTHER) if intention is not None else OTHER


@dataclass(frozen=True, slots=True)
class Resident:
    """The given part of a task: an entry of `profiles.json`. `profile` has every field; `home`, `work` are AOI ids."""

    key: str
    number: int
    home: int
    work: int
    profile: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """A step of the simulated day: where the resident is as it starts (None on the way), what is intended during it."""

    aoi: int | None
    intention: str | None


@dataclass(frozen=True, slots=True)
class Day:
    """An answer. `intentions` and `places` have 48 entries; `visited` are the distinct AOIs in order of first visit.

    `outcome` is `valid` or the kind of an invalid answer, whose day is that of somebody who stayed home with the
    intention `other`. `repairs` names what had to be done to read the answer, `warnings` what is odd about the day.
    """

    mode: str
    intentions: tuple[int, ...]
    places: tuple[int | None, ...]
    visited: tuple[int, ...]
    outcome: str
    repairs: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DayMetrics:
    """`locations` distinct AOIs; `radius` of gyration in metres; `proportions` of the 7 intentions, summing to 1."""

    locations: int
    radius: float
    proportions: tuple[float, ...]
