"""Baseline residents: honest floors for a day of mobility, which read the prompt and nothing else.

They know no file, only text: home as `AOI 1，坐标 (0, 0) 米`, work as the same with `，距家 9 米`
behind it, and places in lines `- AOI 3 ...，距家 4 米，距工作地 5 米` under headings with an intention, as
`### 购物（shopping）`. What they answer depends on model, user messages and seed alone. Source: docs/design.md,
sections 7 (`serve`) and 9.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any

import orjson

from harness.model import Baseline

SLOTS = 48
EATING_OUT = "eating out"
INTENTIONS = ("sleep", "home activity", "other", "work", "shopping", EATING_OUT, "leisure and entertainment")
HOME = "home"

_AT = r"AOI (\d{1,18})，坐标 \([-\d, ]*\) 米"
_HOME, _WORK = re.compile(f"{_AT}(?!，距家)"), re.compile(f"{_AT}，距家")
_HEADING = re.compile(r"#+ .*[（(]([a-z ]+)[）)][ \t]*")
_PLACE = re.compile(r"- AOI (\d{1,18})")
_FROM_WORK = re.compile(r"距工作地 (\d{1,9}) 米")


@dataclass(frozen=True, slots=True)
class Place:
    """A candidate: the intention that it stands under, and metres from work, 0 where the prompt does not tell."""

    aoi: int
    intention: str
    from_work: int


@dataclass(frozen=True, slots=True)
class Reading:
    """What a baseline sees in a prompt. `home` and `work` are AOI ids; without a home the word `home` stands for it."""

    text: str
    home: int | str
    work: int | None
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Segment:
    """Half hours from `start` up to `end`, counted from midnight."""

    start: int
    end: int
    intention: str
    place: int | str


def _answer(baseline: Callable[[Reading, int], list[Segment]], messages: Sequence[Mapping[str, Any]], seed: int) -> str:
    """Return the JSON text of one reply: `segments` from 00:00 to 24:00 with start, end, intention and place."""
    reading = read("\n".join([message["content"] for message in messages if message["role"] == "user"]))
    segments = [
        {
            "start": _clock(segment.start),
            "end": _clock(segment.end),
            "intention": segment.intention,
            "place": segment.place,
        }
        for segment in baseline(reading, seed)
    ]
    return orjson.dumps({"segments": segments}).decode()


def read(text: str) -> Reading:
    """The parts of a prompt; whatever it lacks is absent."""
    home, work = _HOME.search(text), _WORK.search(text)
    return Reading(text, int(home[1]) if home else HOME, int(work[1]) if work else None, _places(text))


def _places(text: str) -> tuple[Place, ...]:
    found, intention = [], ""
    for line in text.split("\n"):
        if line.startswith("#"):
            heading = _HEADING.fullmatch(line)
            intention = heading[1] if heading else ""
        elif intention in INTENTIONS and (place := _PLACE.match(line)):
            distances = _FROM_WORK.findall(line)
            found.append(Place(int(place[1]), intention, int(distances[-1]) if distances else 0))
    return tuple(found)


def _commuter(reading: Reading, seed: int) -> list[Segment]:
    """Sleeps at home, works at work in office hours, eats out at noon where it is nearest to work, is home for the
    evening. When, within an hour or so, depends on the prompt; without a work to go to it is a day at home.
    """
    wake, begin, noon, lunch, leave, sleep = _hours(reading.text)
    home, work = reading.home, reading.work
    if work is None:
        return _cover([(0, "sleep", home), (wake, "home activity", home), (sleep, "sleep", home)])
    day = [
        (0, "sleep", home),
        (wake, "home activity", home),
        (begin, "work", work),
        (leave, "home activity", home),
        (sleep, "sleep", home),
    ]
    eating = [place for place in reading.places if place.intention == EATING_OUT]
    if eating:
        nearest = min(eating, key=lambda place: place.from_work)
        day[3:3] = [(noon, EATING_OUT, nearest.aoi), (noon + lunch, "work", work)]
    return _cover(day)


def _hours(text: str) -> tuple[int, int, int, int, int, int]:
    """Half hours when one wakes, begins to work, goes to eat, for how long, leaves work and goes to sleep."""
    wake, begin, noon, lunch, leave, sleep = blake2b(text.encode(), digest_size=6).digest()
    return 13 + wake % 3, 17 + begin % 3, 23 + noon % 3, 1 + lunch % 2, 35 + leave % 4, 44 + sleep % 4


def _random_day(reading: Reading, seed: int) -> list[Segment]:
    """Random times, intentions and places, by seed and prompt; without places it is at home, whatever it intends."""
    rng = random.Random(f"{seed}\n{reading.text}")  # its `random` alone gives the same numbers in every Python
    places = [reading.home, *([] if reading.work is None else [reading.work]), *(place.aoi for place in reading.places)]
    starts = sorted({0, *(_draw(rng, SLOTS) for _ in range(2 + _draw(rng, 8)))})
    return _cover([(start, INTENTIONS[_draw(rng, 7)], places[_draw(rng, len(places))]) for start in starts])


def _draw(rng: random.Random, count: int) -> int:
    return int(rng.random() * count)


def _cover(day: Sequence[tuple[int, str, int | str]]) -> list[Segment]:
    """Each entry lasts until the next begins."""
    ends = [*(start for start, _, _ in day[1:]), SLOTS]
    return [Segment(start, end, intention, place) for (start, intention, place), end in zip(day, ends, strict=True)]


def _clock(slot: int) -> str:
    return f"{slot // 2:02}:{slot % 2 * 30:02}"


def reader(text: str) -> str | None:
    """Return the baseline that answers a prompt for another model, None where the prompt tells of no home."""
    return "baseline/commuter" if read(text).home != HOME else None


BASELINES: Mapping[str, Baseline] = {
    "baseline/commuter": partial(_answer, _commuter),
    "baseline/random-day": partial(_answer, _random_day),
}
