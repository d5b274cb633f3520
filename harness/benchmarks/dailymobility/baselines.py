"""Baseline residents: honest floors for a day of mobility, which read the prompt and nothing else.

They know no file, only text: home as `AOI 1，坐标 (0, 0) 米`, work as the same with
`，距家 9 米` behind it, and places in lines `- AOI 3 ...，距家 4 米，距工作地 5 米` under headings
with an intention, as `### 购物（shopping）`. What they answer depends on model, user messages and
seed alone. Source: docs/design.md, sections 7 and 9.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from itertools import pairwise
from typing import Any

import orjson

from harness.benchmarks.dailymobility import day
from harness.benchmarks.dailymobility.day import SLOTS
from harness.model import Baseline

EATING_OUT = "eating out"
INTENTIONS = tuple(day.INTENTIONS.values())
HOME = "home"

_AT = r"AOI (\d{1,18})，坐标 \([-\d, ]*\) 米"
_HOME, _WORK = re.compile(f"{_AT}(?!，距家)"), re.compile(f"{_AT}，距家")
_HEADING = re.compile(r"#+ .*[（(]([a-z ]+)[）)][ \t]*")
_PLACE = re.compile(r"- AOI (\d{1,18})")
_FROM_WORK = re.compile(r"距工作地 (\d{1,9}) 米")

Start = tuple[int, str, int | str]
"""A half hour from midnight, and the intention and place from then on."""


@dataclass(frozen=True, slots=True)
class Place:
    """A candidate: the intention of its heading, and metres from work, 0 where the prompt does not
    give them."""

    aoi: int
    intention: str
    from_work: int


@dataclass(frozen=True, slots=True)
class Reading:
    """The parts of a prompt. `home` and `work` are AOI ids; without a home the word `home` stands
    for it."""

    text: str
    home: int | str
    work: int | None
    places: tuple[Place, ...]


def _answer(
    baseline: Callable[[Reading, int], list[Start]],
    messages: Sequence[Mapping[str, Any]],
    seed: int,
) -> str:
    """Return the JSON text of one reply: `segments` from 00:00 to 24:00 with start, end, intention
    and place."""
    reading = read(
        "\n".join([message["content"] for message in messages if message["role"] == "user"])
    )
    starts = [*baseline(reading, seed), (SLOTS, "", HOME)]
    segments = [
        {"start": day.clock(start), "end": day.clock(end), "intention": intention, "place": place}
        for (start, intention, place), (end, *_) in pairwise(starts)
    ]
    return orjson.dumps({"segments": segments}).decode()


def read(text: str) -> Reading:
    """Return the parts of a prompt that are there."""
    home, work = _HOME.search(text), _WORK.search(text)
    places, intention = [], ""
    for line in text.split("\n"):
        if line.startswith("#"):
            heading = _HEADING.fullmatch(line)
            intention = heading[1] if heading else ""
        elif intention in INTENTIONS and (place := _PLACE.match(line)):
            distances = _FROM_WORK.findall(line)
            places.append(Place(int(place[1]), intention, int(distances[-1]) if distances else 0))
    return Reading(
        text, int(home[1]) if home else HOME, int(work[1]) if work else None, tuple(places)
    )


def _commuter(reading: Reading, seed: int) -> list[Start]:
    """Sleep at home, work at work in office hours, eat out at noon nearest to work, be home for the
    evening.

    The hours, within one or so, depend on the prompt. Without a work to go to it is a day at home.
    """
    draws = blake2b(reading.text.encode(), digest_size=6).digest()
    earliest, spans = (13, 17, 23, 1, 35, 44), (3, 3, 3, 2, 4, 4)  # half hours
    wake, begin, noon, lunch, leave, sleep = (
        least + draw % span for least, draw, span in zip(earliest, draws, spans, strict=True)
    )
    home, work = reading.home, reading.work
    night: Start = (0, "sleep", home)
    if work is None:
        return [night, (wake, "home activity", home), (sleep, "sleep", home)]
    eating = [place for place in reading.places if place.intention == EATING_OUT]
    meal: list[Start] = []
    if eating:
        nearest = min(eating, key=lambda place: place.from_work)
        meal = [(noon, EATING_OUT, nearest.aoi), (noon + lunch, "work", work)]
    evening: list[Start] = [(leave, "home activity", home), (sleep, "sleep", home)]
    return [night, (wake, "home activity", home), (begin, "work", work), *meal, *evening]


def _random_day(reading: Reading, seed: int) -> list[Start]:
    """Draw times, intentions and places by seed and prompt; without places, be at home with any
    intention."""
    rng = random.Random(
        f"{seed}\n{reading.text}"
    )  # its `random` alone gives the same numbers in every Python

    def draw(count: int) -> int:
        return int(rng.random() * count)

    places = [
        reading.home,
        *([] if reading.work is None else [reading.work]),
        *(place.aoi for place in reading.places),
    ]
    starts = sorted({0, *(draw(SLOTS) for _ in range(2 + draw(8)))})
    return [(start, INTENTIONS[draw(7)], places[draw(len(places))]) for start in starts]


def reader(text: str) -> str | None:
    """Return the baseline that answers a prompt for another model, None for a prompt without a
    home."""
    return "baseline/commuter" if read(text).home != HOME else None


BASELINES: Mapping[str, Baseline] = {
    "baseline/commuter": partial(_answer, _commuter),
    "baseline/random-day": partial(_answer, _random_day),
}
