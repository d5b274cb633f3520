"""The terms of DailyMobility: a resident, a day, and its metrics. Source: docs/design.md, section 9."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SLOTS = 48
"""Half hours of a day."""

ROWS, ROW_SECONDS = 100, 900
"""Steps of a simulated day, 96 of the day and 4 of the next, and the seconds that each takes."""

_NAMES = ("sleep", "home activity", "other", "work", "shopping", "eating out", "leisure and entertainment")
INTENTIONS = dict(enumerate(_NAMES, 1))
NUMBERS = {name: number for number, name in INTENTIONS.items()}
OTHER = 3


def intention_number(intention: str | None) -> int:
    """Return the number of an intention that an agent names exactly; whatever is unknown is `other`."""
    return NUMBERS.get(intention or "", OTHER)


def clock(slot: int) -> str:
    """Return when a slot begins: 15 -> `07:30`."""
    return f"{slot // 2:02}:{slot % 2 * 30:02}"


@dataclass(frozen=True, slots=True)
class Resident:
    """The given part of a task: an entry of `profiles.json`. `profile` is every field; `home`, `work` are AOI ids."""

    key: str
    number: int
    home: int
    work: int
    profile: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """A step of the simulated day: the AOI at its start (None on the way), and the intention during it."""

    aoi: int | None
    intention: str | None


@dataclass(frozen=True, slots=True)
class Day:
    """An answer. `intentions` and `places` have 48 entries; `visited` are the distinct AOIs in order of first visit.

    `outcome` is `valid` or the kind of an invalid answer, whose day is that of somebody who stayed home with the
    intention `other`. `repairs` names what reading the answer took, `warnings` what is odd about the day.
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
