"""Synthetic DailyMobility data: residents of a synthetic city, and how they live there (docs/design.md, section 9).

The ground truth comes from one simple model of a day. A resident has habits: when to get up and to go to bed, on what
share of days to work, how long, how often to go out, and two favourite places for each thing to go out for, chosen
near home or work. A day is: asleep at home, up, on a working day to work (often with a slot of `other` before it and
a meal out at noon), on any day an outing or two in what is left of it, home, asleep. Half hours are whole, and places
are the AOIs of the city; ways take no time. Of each resident 4 to 8 days are made, of which the sequence is the first
one, locations and radius are means over days, and proportions are over all slots of all days.

Only `Random.random()` is drawn from: it is the one method whose sequence Python keeps across versions.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from math import fsum, hypot
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import numpy as np

from harness.benchmarks.dailymobility.city import Aoi, City, read_city
from harness.benchmarks.dailymobility.day import INTENTIONS, NUMBERS, SLOTS
from harness.benchmarks.dailymobility.measures import gyration_radius
from harness.benchmarks.dailymobility.synth_city import map_bytes
from harness.errors import BadInput, MachineError
from harness.model import JSON

T = TypeVar("T")
Slot = tuple[int, int]
"""What is intended in a half hour, and the AOI in which."""

SLEEP, AT_HOME, OTHER, WORK = (NUMBERS[name] for name in ("sleep", "home activity", "other", "work"))
SHOPPING, EATING, LEISURE = (NUMBERS[name] for name in ("shopping", "eating out", "leisure and entertainment"))

USES_TO_WORK_IN = ("B1", "B2", "A3", "M1")
USE_TO_LIVE_IN = "R2"

PLACES = {
    SHOPPING: ("building|supermarket", "building|retail", "amenity|marketplace"),
    EATING: ("amenity|restaurant", "amenity|cafe", "amenity|fast_food", "amenity|food_court"),
    LEISURE: ("leisure|park", "leisure|fitness_centre", "leisure|sports_centre", "amenity|cinema", "leisure|garden"),
    OTHER: ("amenity|bank", "amenity|pharmacy", "amenity|post_office", "amenity|townhall", "amenity|hospital"),
}
"""Categories of the points of interest that residents go to, by what for."""

REASONS = (SHOPPING, EATING, LEISURE, LEISURE, OTHER)
"""What an outing is for, each as likely as it stands here."""

EDUCATIONS = ("High school diploma", "associate degree", "Bachelor's degree", "Bachelor's degree", "Master's degree")
CONSUMPTIONS = ("low", "slightly low", "medium", "medium", "slightly high")
OCCUPATIONS = ("IT Engineer", "Online Sales", "Training Instructor", "Finance", "Technical Worker", "Copywriting")

NOTE = """# Synthetic DailyMobility data

{residents} invented residents of an invented city with {aois} areas, and a ground truth from a simple random model of
their days. All of it is synthetic: made by `harness/benchmarks/dailymobility/synth.py` with seed {seed}, and nothing
taken from a real city, person or published data set. The same seed makes the same bytes again.

The files are in the form of the published data: `profiles.json` (every entry says `"synthetic": true`), `beijing.pb`
(a `city.map.v2.Map`; its projection puts it where Beijing is, and that is all it has of Beijing) and `groundtruth/`.

Scores on these files say whether a set-up works. They are not results: do not publish them, and do not compare them
with published ones.
"""


def synthesise(folder: Path, residents: int, seed: int) -> None:
    """Write `files(residents, seed)` into `folder`. Raises as `files` does, and `MachineError` where writing fails."""
    for name, content in files(residents, seed).items():
        path = folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        except OSError as error:
            raise MachineError(f"cannot write {path}: {error.strerror}") from None


def files(residents: int, seed: int) -> dict[str, bytes]:
    """Contents of a data folder by path in it: profiles, map, the four arrays of the ground truth, and a README.

    The city depends on the seed alone and resident i on (seed, i), so fewer residents are the first of more.
    Raises `BadInput` for less than one resident, or where the extra `mobility` is not installed.
    """
    if residents < 1:
        raise BadInput(f"residents: expected a whole number from 1, got {residents}")
    data = map_bytes(seed)
    city = read_city(data, "the synthetic map")
    people = [_person(city, Random(f"{seed}/resident/{number}"), number) for number in range(1, residents + 1)]
    note = NOTE.format(residents=residents, aois=len(city.aois), seed=seed)
    return {
        "README.md": note.encode(),
        "profiles.json": _json([person.profile for person in people]),
        "beijing.pb": data,
        **_ground_truth(city, [days(person) for person in people]),
    }


@dataclass(frozen=True, slots=True)
class Person:
    """`rng` goes on with every day. Slots are of 48; `work_share`, `lunch_out` and `outing` are chances on a day."""

    profile: JSON
    rng: Random
    wake: int
    bed: int
    work_slots: int
    work_share: float
    lunch_out: float
    outing: float
    favourites: dict[int, tuple[int, ...]]

    @property
    def home(self) -> int:
        home: int = self.profile["home"]
        return home

    @property
    def work(self) -> int:
        work: int = self.profile["work"]
        return work


def _person(city: City, rng: Random, number: int) -> Person:
    home = _pick(rng, [aoi for aoi in city.aois.values() if aoi.land_use == USE_TO_LIVE_IN])
    works = [aoi for aoi in city.aois.values() if aoi.land_use in USES_TO_WORK_IN]
    work = home if rng.random() < 0.05 else _near(rng, home, works)
    profile: JSON = {
        "age": 20 + int(36 * rng.random() ** 2),
        "education": _pick(rng, EDUCATIONS),
        "gender": _pick(rng, ("Male", "Female")),
        "consumption": _pick(rng, CONSUMPTIONS),
        "occupation": _pick(rng, OCCUPATIONS),
        "home": home.id,
        "work": work.id,
        "id": number,
        "synthetic": True,
    }
    return Person(
        profile=profile,
        rng=rng,
        wake=13 + int(5 * rng.random()),
        bed=43 + int(4 * rng.random()),
        work_slots=16 + int(5 * rng.random()),
        work_share=0.6 + 0.4 * rng.random(),
        lunch_out=0.25 * rng.random(),
        outing=0.15 + 0.5 * rng.random(),
        favourites={reason: _favourites(city, rng, reason, (home, work)) for reason in PLACES},
    )


def _favourites(city: City, rng: Random, reason: int, around: tuple[Aoi, Aoi]) -> tuple[int, ...]:
    """Two AOIs to go to, the first near home and the second near work; they may be the same."""
    aois = {poi.aoi_id: city.aois[poi.aoi_id] for poi in city.pois.values() if poi.category in PLACES[reason]}
    return tuple(_near(rng, at, list(aois.values())).id for at in around)


def _near(rng: Random, at: Aoi, aois: Sequence[Aoi]) -> Aoi:
    """One of `aois`, the likelier the nearer: half as likely at 3 km as next door."""
    weights = [1 / (1 + hypot(aoi.x - at.x, aoi.y - at.y) / 3000) for aoi in aois]
    left = rng.random() * fsum(weights)
    for aoi, weight in zip(aois, weights, strict=True):
        left -= weight
        if left < 0:
            return aoi
    return aois[-1]


def days(person: Person) -> list[list[Slot]]:
    """4 to 8 days of 48 slots."""
    return [_day(person) for _ in range(4 + int(5 * person.rng.random()))]


def _day(person: Person) -> list[Slot]:
    rng = person.rng
    wake, bed = person.wake + int(3 * rng.random()) - 1, person.bed + int(3 * rng.random()) - 1
    slots = [(AT_HOME if wake <= slot < bed else SLEEP, person.home) for slot in range(SLOTS)]
    if rng.random() < person.work_share:
        free = _go_to_work(person, slots, wake + 2 + int(2 * rng.random()))
    else:
        free = wake + 4 + int(12 * rng.random())
    while free < bed - 2 and rng.random() < person.outing:
        reason = _pick(rng, REASONS)
        length = 1 + int(4 * rng.random())
        _fill(slots, free, min(free + length, bed - 1), (reason, _pick(rng, person.favourites[reason])))
        free += length
    return slots


def _go_to_work(person: Person, slots: list[Slot], begin: int) -> int:
    """Fill in work, and what goes with it. Returns the slot after it."""
    rng = person.rng
    end = begin + person.work_slots + int(3 * rng.random()) - 1
    _fill(slots, begin, end, (WORK, person.work))
    for edge, chance in ((begin, 0.6), (begin + 1, 0.2), (end - 1, 0.4)):
        if rng.random() < chance:
            slots[edge] = (OTHER, person.work)
    if rng.random() < person.lunch_out:
        slots[24 + int(2 * rng.random())] = (EATING, person.favourites[EATING][1])
    return end


def _fill(slots: list[Slot], begin: int, end: int, with_: Slot) -> None:
    slots[begin:end] = [with_] * (end - begin)


def _ground_truth(city: City, residents: Sequence[Sequence[Sequence[Slot]]]) -> dict[str, bytes]:
    """The four arrays, a row a resident, in the published ones' types; radii to a micrometre, the same everywhere."""
    places = [[dict.fromkeys(place for _, place in day) for day in lived] for lived in residents]
    radii = [
        round(_mean([gyration_radius([(city.aois[place].x, city.aois[place].y) for place in day]) for day in lived]), 6)
        for lived in places
    ]
    intentions = [[[intention for intention, _ in day] for day in lived] for lived in residents]
    shares = [
        [sum(day.count(number) for day in lived) / (SLOTS * len(lived)) for number in INTENTIONS]
        for lived in intentions
    ]
    return {
        "groundtruth/gyration_radius.npy": _npy(radii, "<f8"),
        "groundtruth/daily_location_numbers.npy": _npy([_mean([len(day) for day in lived]) for lived in places], "<f8"),
        "groundtruth/daily_intentions_2d.npy": _npy([lived[0] for lived in intentions], "<i8"),
        "groundtruth/intention_proportions_2d.npy": _npy(shares, "<f8"),
    }


def _mean(values: Sequence[float]) -> float:
    return fsum(values) / len(values)


def _npy(values: Any, dtype: str) -> bytes:
    file = BytesIO()
    np.lib.format.write_array(file, np.array(values, dtype), version=(1, 0), allow_pickle=False)
    return file.getvalue()


def _json(value: Any) -> bytes:
    return (json.dumps(value, ensure_ascii=False, indent=4) + "\n").encode()


def _pick(rng: Random, choices: Sequence[T]) -> T:
    return choices[int(rng.random() * len(choices))]
