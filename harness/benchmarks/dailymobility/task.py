"""One entry of `profiles.json` as a validated task. Source: docs/design.md, section 9."""

from __future__ import annotations

from harness.agents.city import City
from harness.agents.day import Resident
from harness.benchmark import Task
from harness.benchmarks.tasks import kind_of
from harness.errors import FieldError
from harness.model import JSON


def parse(entry: JSON, city: City, steps: int) -> Task:
    """Return the task of an entry; `given` is a `Resident`. Raise `FieldError`."""
    check(entry, city)
    profile = {name: value for name, value in entry.items() if name != "synthetic"}  # a label of the data, no profile
    resident = Resident(str(entry["id"]), entry["id"], entry["home"], entry["work"], profile)
    return Task(resident.key, given=resident, steps=steps)


def check(entry: JSON, city: City) -> None:
    """Validate every field of an entry that is used. Raise `FieldError`."""
    for name in ("id", "home", "work"):
        if type(entry.get(name)) is not int:
            raise FieldError(name, "a whole number", kind_of(entry.get(name)))
    for name in ("home", "work"):
        if entry[name] not in city.aois:
            raise FieldError(name, f"an AOI of the map, which has none numbered {entry[name]}")
