"""A resident whose agent is played, and what is seen of it. Source: docs/design.md, section 9."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.benchmarks.tasks import kind_of
from harness.errors import FieldError
from harness.model import JSON

if TYPE_CHECKING:
    from harness.benchmarks.agents.city import City


@dataclass(frozen=True, slots=True)
class Resident:
    """The given part of a task: an entry of `profiles.json`. `profile` is every field; `home`,
    `work` are AOI ids."""

    key: str
    number: int
    home: int
    work: int
    profile: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """A step of the simulated day: the AOI at its start (None on the way), and the intention during
    it."""

    aoi: int | None
    intention: str | None


def resident_of(entry: JSON, city: City) -> Resident:
    """Return the resident of an entry of `profiles.json`. Raise `FieldError`."""
    for name in ("id", "home", "work"):
        if type(entry.get(name)) is not int:
            raise FieldError(name, "a whole number", kind_of(entry.get(name)))

    for name in ("home", "work"):
        if entry[name] not in city.aois:
            raise FieldError(
                name,
                f"an AOI of the map, which has none numbered {entry[name]}",
            )

    profile = entry.copy()
    # A label of the data, not of the resident.
    profile.pop("synthetic", None)
    return Resident(str(entry["id"]), entry["id"], entry["home"], entry["work"], profile)
