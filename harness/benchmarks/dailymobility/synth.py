"""Make synthetic DailyMobility data: a city, residents, and how they live there. Source:
docs/design.md, section 9.

The ground truth comes from one simple model of a day. A resident has habits: when to get up and to
go to bed, on what share of days to work, how long, how often to go out, and two favourite places
for each thing to go out for, chosen near home or work. A day is: asleep at home, up, on a working
day to work (often with a slot of `other` before it and a meal out at noon), on any day an outing or
two in what is left of it, home, asleep. Half hours are whole, and places are the AOIs of the city;
ways take no time. Of each resident 4 to 8 days are made, of which the sequence is the first one,
locations and radius are means over days, and proportions are over all slots of all days. Words are
in synth.toml.

Only `Random.random()` is drawn from: it is the one method whose sequence Python keeps across
versions.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from io import BytesIO
from math import fsum, hypot
from random import Random
from statistics import fmean

import numpy as np

from harness.benchmarks.agents.city import Aoi, City, read_city
from harness.benchmarks.dailymobility.day import (
    INTENTIONS,
    NUMBERS,
    SLOTS,
    gyration_radius,
)
from harness.benchmarks.dailymobility.synth_city import SYNTH, map_bytes, pick
from harness.model import JSON

Slot = tuple[int, int]
"""The intention of a half hour, and the AOI."""

SLEEP = NUMBERS["sleep"]
AT_HOME = NUMBERS["home activity"]
OTHER = NUMBERS["other"]
WORK = NUMBERS["work"]
EATING = NUMBERS["eating out"]

RESIDENTS = SYNTH["residents"]
PLACES: dict[int, list[str]] = {
    NUMBERS[name]: categories for name, categories in RESIDENTS["places"].items()
}
"""Categories of the points of interest that residents go to, by intention."""
NOTE = """# Synthetic DailyMobility data

{residents} invented residents of an invented city with {aois} areas, and a ground truth from a
simple random model of their days. All of it is synthetic: made by
`harness/benchmarks/dailymobility/synth.py` with seed {seed}, and nothing taken from a real city,
person or published data set. The same seed makes the same bytes again.

The files are in the form of the published data: `profiles.json` (every entry says
`"synthetic": true`), `beijing.pb` (a `city.map.v2.Map`; its projection puts it where Beijing is,
and that is all it has of Beijing) and `groundtruth/`.

Scores on these files say whether a set-up works. They are not results: do not publish them, and do
not compare them with published ones.
"""


def files(residents: int, seed: int) -> dict[str, bytes]:
    """Return the contents of a data folder by path: profiles, map, the four arrays of the ground
    truth, and a README.

    The city depends on the seed alone and resident i on (seed, i), so fewer residents are the first
    of more. There is one at least. Raise `BadInput` where the extra `mobility` is not installed.
    """
    data = map_bytes(seed)
    city = read_city(data, "the synthetic map")
    profiles = []
    lives = []
    for number in range(1, residents + 1):
        person = _person(city, Random(f"{seed}/resident/{number}"), number)
        profiles.append(person.profile)
        days = 4 + int(5 * person.rng.random())
        lives.append([_day(person) for _ in range(days)])

    profiles_text = json.dumps(profiles, ensure_ascii=False, indent=4) + "\n"
    return {
        "README.md": NOTE.format(residents=residents, aois=len(city.aois), seed=seed).encode(),
        "profiles.json": profiles_text.encode(),
        "beijing.pb": data,
        **_ground_truth(city, lives),
    }


@dataclass(frozen=True, slots=True)
class Person:
    """Slots are of 48; `work_share`, `lunch_out` and `outing` are chances on a day. Each day draws
    on from `rng`."""

    profile: JSON
    rng: Random
    wake: int
    bed: int
    work_slots: int
    work_share: float
    lunch_out: float
    outing: float
    favourites: dict[int, tuple[int, ...]]


def _person(city: City, rng: Random, number: int) -> Person:
    home = pick(rng, _with_land_use(city, RESIDENTS["live_in"]))
    work = home
    if rng.random() >= 0.05:
        work = _near(rng, home, _with_land_use(city, RESIDENTS["work_in"]))

    profile: JSON = {"age": 20 + int(36 * rng.random() ** 2)}
    for name in ("education", "gender", "consumption", "occupation"):
        profile[name] = pick(rng, RESIDENTS[name])

    profile |= {
        "home": home.id,
        "work": work.id,
        "id": number,
        "synthetic": True,
    }
    # In this order: each takes the next random numbers.
    return Person(
        profile=profile,
        rng=rng,
        wake=13 + int(5 * rng.random()),
        bed=43 + int(4 * rng.random()),
        work_slots=16 + int(5 * rng.random()),
        work_share=0.6 + 0.4 * rng.random(),
        lunch_out=0.25 * rng.random(),
        outing=0.15 + 0.5 * rng.random(),
        favourites={
            intention: _favourites(city, rng, intention, (home, work)) for intention in PLACES
        },
    )


def _with_land_use(city: City, land_uses: Collection[str]) -> list[Aoi]:
    return [aoi for aoi in city.aois.values() if aoi.land_use in land_uses]


def _favourites(
    city: City, rng: Random, intention: int, centres: tuple[Aoi, Aoi]
) -> tuple[int, ...]:
    """Return two AOIs to go to, the first near home and the second near work; they may be the
    same."""
    pois = [poi for poi in city.pois.values() if poi.category in PLACES[intention]]
    # An AOI with two such points is one place.
    aoi_ids = dict.fromkeys([poi.aoi_id for poi in pois])
    aois = [*map(city.aois.__getitem__, aoi_ids)]
    return tuple([_near(rng, centre, aois).id for centre in centres])


def _near(rng: Random, centre: Aoi, aois: Sequence[Aoi]) -> Aoi:
    """Draw one of `aois`, with more weight to near ones: half as likely at 3 km as next door."""
    weights = []
    for aoi in aois:
        metres = hypot(aoi.x - centre.x, aoi.y - centre.y)
        weights.append(1 / (1 + metres / 3000))

    # Not `sum`, which adds floats in another way since Python 3.12: the draw could differ.
    left = rng.random() * fsum(weights)
    for aoi, weight in zip(aois, weights, strict=True):
        left -= weight
        if left < 0:
            return aoi

    # Rounding may leave a little of the draw after the last weight.
    return aois[-1]


def _day(person: Person) -> list[Slot]:
    rng = person.rng
    home = person.profile["home"]
    wake = person.wake + int(3 * rng.random()) - 1
    bed = person.bed + int(3 * rng.random()) - 1
    slots = [(SLEEP, home)] * SLOTS
    _fill(slots, wake, bed, (AT_HOME, home))
    if rng.random() < person.work_share:
        free = _go_to_work(person, slots, wake + 2 + int(2 * rng.random()))
    else:
        free = wake + 4 + int(12 * rng.random())

    # No outing begins in the last hour before bed.
    while free < bed - 2 and rng.random() < person.outing:
        intention = NUMBERS[pick(rng, RESIDENTS["outings"])]
        length = 1 + int(4 * rng.random())
        end = min(free + length, bed - 1)
        _fill(slots, free, end, (intention, pick(rng, person.favourites[intention])))
        free += length

    return slots


def _fill(slots: list[Slot], start: int, end: int, slot: Slot) -> None:
    slots[start:end] = [slot] * (end - start)


def _go_to_work(person: Person, slots: list[Slot], begin: int) -> int:
    """Fill in the slots from leaving for work to leaving work. Return the slot after them."""
    rng = person.rng
    work = person.profile["work"]
    end = begin + person.work_slots + int(3 * rng.random()) - 1
    _fill(slots, begin, end, (WORK, work))
    for edge, chance in ((begin, 0.6), (begin + 1, 0.2), (end - 1, 0.4)):
        if rng.random() < chance:
            slots[edge] = (OTHER, work)

    if rng.random() < person.lunch_out:
        noon = 24 + int(2 * rng.random())
        near_work = person.favourites[EATING][1]
        slots[noon] = (EATING, near_work)

    return end


def _ground_truth(city: City, lives: Sequence[Sequence[Sequence[Slot]]]) -> dict[str, bytes]:
    """Return the four arrays in the published ones' types; radii rounded to a micrometre are the
    same everywhere."""
    radii = []
    locations = []
    first_days = []
    shares = []
    for life in lives:
        day_radii = []
        day_locations = []
        intentions: list[int] = []
        for day in life:
            day_intentions, places = zip(*day, strict=True)
            visited = [*map(city.aois.__getitem__, dict.fromkeys(places))]
            day_radii.append(gyration_radius([(aoi.x, aoi.y) for aoi in visited]))
            day_locations.append(len(visited))
            intentions += day_intentions

        # Machines differ in the last digits of a root.
        radii.append(round(fmean(day_radii), 6))
        locations.append(fmean(day_locations))
        first_days.append(intentions[:SLOTS])
        shares.append([intentions.count(number) / len(intentions) for number in INTENTIONS])

    return {
        "groundtruth/gyration_radius.npy": _npy(radii, "<f8"),
        "groundtruth/daily_location_numbers.npy": _npy(locations, "<f8"),
        "groundtruth/daily_intentions_2d.npy": _npy(first_days, "<i8"),
        "groundtruth/intention_proportions_2d.npy": _npy(shares, "<f8"),
    }


def _npy(values: object, dtype: str) -> bytes:
    file = BytesIO()
    # The version of the header is fixed, so that another numpy makes the same bytes.
    np.lib.format.write_array(file, np.array(values, dtype), version=(1, 0), allow_pickle=False)
    return file.getvalue()
