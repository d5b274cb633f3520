"""Baseline residents: honest floors for a day of mobility, which read the prompt and nothing else.

They read no file, only text: home as `AOI 1，坐标 (0, 0) 米`, work as the same with
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

# The forms in which `plan.py` writes them, wherever they are in the prompt.
_AT = r"AOI (\d{1,18})，坐标 \([-\d, ]*\) 米"
_HOME, _WORK = re.compile(f"{_AT}(?!，距家)"), re.compile(f"{_AT}，距家")
_HEADING = re.compile(r"#+ .*[（(]([a-z ]+)[）)][ \t]*")
_PLACE = re.compile(r"- AOI (\d{1,18})")
_FROM_WORK = re.compile(r"距工作地 (\d{1,9}) 米")

Start = tuple[int, str, int | str]
"""A half hour from midnight, and the intention and place from then on."""


@dataclass(frozen=True, slots=True)
class PlaceToGo:
    """A candidate: the intention of its heading, and metres from work, 0 where the prompt does not
    give them."""

    aoi: int
    intention: str
    from_work: int


@dataclass(frozen=True, slots=True)
class ResidentPrompt:
    """What a baseline reads in a prompt. `home` and `work` are AOI ids, and `home` is the word
    `home` where the prompt has none."""

    text: str
    home: int | str
    work: int | None
    places: tuple[PlaceToGo, ...]


def _answer(
    baseline: Callable[[ResidentPrompt, int], list[Start]],
    messages: Sequence[Mapping[str, Any]],
    seed: int,
) -> str:
    """Return the JSON text of one reply: `segments` from 00:00 to 24:00 with start, end, intention
    and place."""
    texts = [message["content"] for message in messages if message["role"] == "user"]
    starts = baseline(read("\n".join(texts)), seed)
    starts.append((SLOTS, "", HOME))
    segments = []
    for (start, intention, place), (end, *_) in pairwise(starts):
        segment = {
            "start": day.clock(start),
            "end": day.clock(end),
            "intention": intention,
            "place": place,
        }
        segments.append(segment)

    return orjson.dumps({"segments": segments}).decode()


def read(text: str) -> ResidentPrompt:
    """Return what a prompt has of home, work and places."""
    places = []
    intention = ""
    for line in text.split("\n"):
        if line.startswith("#"):
            heading = _HEADING.fullmatch(line)
            intention = ""
            if heading and heading[1] in INTENTIONS:
                intention = heading[1]

            continue

        # Places are listed below the heading of their intention.
        aoi = _PLACE.match(line)
        if aoi and intention:
            distances = ["0", *_FROM_WORK.findall(line)]
            places.append(PlaceToGo(int(aoi[1]), intention, int(distances[-1])))

    home: int | str = HOME
    work = None
    home_match = _HOME.search(text)
    if home_match:
        home = int(home_match[1])

    work_match = _WORK.search(text)
    if work_match:
        work = int(work_match[1])

    return ResidentPrompt(text, home, work, tuple(places))


def _commuter(prompt: ResidentPrompt, seed: int) -> list[Start]:
    """Sleep at home, work at work in office hours, eat out at noon nearest to work, be home for the
    evening.

    The hours, within one or so, depend on the prompt. Without a work to go to it is a day at home.
    """
    # Not `hash`, which differs from process to process for the same text.
    draws = blake2b(prompt.text.encode(), digest_size=6).digest()
    # Half hours from midnight.
    wake = 13 + draws[0] % 3
    begin = 17 + draws[1] % 3
    noon = 23 + draws[2] % 3
    lunch = 1 + draws[3] % 2
    leave = 35 + draws[4] % 4
    sleep = 44 + draws[5] % 4
    starts: list[Start] = [
        (0, "sleep", prompt.home),
        (wake, "home activity", prompt.home),
    ]
    if prompt.work is not None:
        starts.append((begin, "work", prompt.work))
        eating = [place for place in prompt.places if place.intention == EATING_OUT]
        if eating:
            nearest = min(eating, key=lambda place: place.from_work)
            starts.append((noon, EATING_OUT, nearest.aoi))
            starts.append((noon + lunch, "work", prompt.work))

        starts.append((leave, "home activity", prompt.home))

    starts.append((sleep, "sleep", prompt.home))
    return starts


def _random_day(prompt: ResidentPrompt, seed: int) -> list[Start]:
    """Draw times, intentions and places by seed and prompt; without places, be at home with any
    intention."""
    # Only `random` gives the same numbers in every Python.
    rng = random.Random(f"{seed}\n{prompt.text}")

    def draw(count: int) -> int:
        return int(rng.random() * count)

    places = [prompt.home, *(place.aoi for place in prompt.places)]
    if prompt.work is not None:
        places.insert(1, prompt.work)

    starts = sorted({0, *(draw(SLOTS) for _ in range(2 + draw(8)))})
    return [(start, INTENTIONS[draw(7)], places[draw(len(places))]) for start in starts]


def reader(text: str) -> str | None:
    """Return the baseline that answers a prompt for another model, None for a prompt without a
    home."""
    if read(text).home == HOME:
        return None
    return "baseline/commuter"


BASELINES: Mapping[str, Baseline] = {
    "baseline/commuter": partial(_answer, _commuter),
    "baseline/random-day": partial(_answer, _random_day),
}
