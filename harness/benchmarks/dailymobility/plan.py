"""Plan mode: request a resident's whole day from a plain model at once (docs/design.md, section 9).

The model gets profile, home, work and the places around, and writes 48 half hours. What it is
offered depends on the resident and the map alone.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, zip_longest
from math import hypot
from pathlib import Path

from harness.benchmark import VALID, Configuration
from harness.benchmarks.agents.city import Aoi, City, Poi, levels
from harness.benchmarks.agents.resident import Resident
from harness.benchmarks.dailymobility.day import (
    INTENTIONS,
    NUMBERS,
    OTHER,
    SLOTS,
    Day,
)
from harness.benchmarks.dailymobility.plan_reply import (
    INTENTIONS_ZH,
    Places,
    read,
    schema,
)
from harness.benchmarks.template import Template
from harness.chat import Asking, Chat
from harness.errors import InvalidReply
from harness.model import Message

OWN_PROMPT = Path(__file__).with_name("plan.txt")
PLACES = frozenset(["profile", "home", "work", "intentions", "candidates"])
NEEDED = frozenset(["candidates"])

PROFILE = {
    "age": "年龄",
    "gender": "性别",
    "education": "学历",
    "occupation": "职业",
    "consumption": "消费水平",
}
"""The fields that are shown, in this order. Others are not: a data set may keep there what the
model has to find out."""
NO_PROFILE = "（没有资料）"
NOTHING_NEAR = "（附近没有）"
OFFERED = {
    NUMBERS["shopping"]: 8,
    NUMBERS["eating out"]: 10,
    NUMBERS["leisure and entertainment"]: 8,
    OTHER: 6,
}
"""Places offered at most, by intention, in the order in which they are listed."""
DEPTH = 8
"""Points of interest to look at for each place that is wanted: many of them share an AOI."""
MAX_NAME_CHARACTERS = 40
"""Characters of a name or a category that are shown."""
_KINDS = tomllib.loads(Path(__file__).with_name("plan.toml").read_text(encoding="utf-8"))


def _intentions(section: str) -> dict[str, int]:
    intentions: dict[str, int] = {}
    for name, keys in _KINDS[section].items():
        intentions |= dict.fromkeys(keys.split(), NUMBERS[name])
    return intentions


_INTENTION_OF_LEVEL = _intentions("levels")
_INTENTION_OF_CODE = _intentions("codes")
_CODE = re.compile(r"[0-9]{6}")
_SUBLEVEL = re.compile("[:：;；]")


@dataclass(frozen=True, slots=True)
class Candidate:
    """An AOI to go to with an intention, and the point of interest there. Distances in metres,
    between centroids."""

    intention: int
    aoi: int
    name: str
    category: str
    from_home: int
    from_work: int


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The part of the map that a resident's prompt shows, and the `places` that a reply may
    name."""

    home: Aoi
    work: Aoi
    candidates: tuple[Candidate, ...]
    places: Places


class Nearby:
    """Offers the residents of a city places to go to. Made once for a city, as it reads all of its
    categories."""

    def __init__(self, city: City) -> None:
        self._city = city
        self._levels: dict[int, set[str]] = {intention: set() for intention in OFFERED}
        categories = {poi.category for poi in city.pois.values()}
        for level in chain.from_iterable(map(levels, categories)):
            intention = _intention_of(level)
            if intention:
                self._levels[intention].add(level)

    def surroundings(self, resident: Resident) -> Surroundings:
        """Return the same for the same resident."""
        home = self._city.aois[resident.home]
        work = self._city.aois[resident.work]
        candidates: list[Candidate] = []
        for intention in OFFERED:
            candidates += self._candidates(home, work, intention)

        # A reply may name other AOIs of the map, which is noted as a warning.
        offered = frozenset([candidate.aoi for candidate in candidates])
        places = Places(home.id, work.id, offered, self._city.aois)
        return Surroundings(home, work, tuple(candidates), places)

    def _candidates(self, home: Aoi, work: Aoi, intention: int) -> list[Candidate]:
        """Return the nearest first; half of them near home and half near work, as far as these
        differ."""
        count = OFFERED[intention]
        near_home = self._near(home, self._levels[intention], count * DEPTH)
        near_work = self._near(work, self._levels[intention], count * DEPTH)
        by_aoi: dict[int, Poi] = {}
        for poi in chain.from_iterable(zip_longest(near_home, near_work)):
            if poi is not None and len(by_aoi) < count:
                # The nearest point of interest names the AOI.
                by_aoi.setdefault(poi.aoi_id, poi)

        candidates = []
        for number, poi in by_aoi.items():
            aoi = self._city.aois[number]
            category = ""
            # A code of six digits says nothing to a model.
            if not _CODE.fullmatch(poi.category):
                category = poi.category.replace("|", "/")

            candidate = Candidate(
                intention,
                number,
                poi.name,
                category,
                _metres(aoi, home),
                _metres(aoi, work),
            )
            candidates.append(candidate)

        candidates.sort(key=lambda place: (min(place.from_home, place.from_work), place.aoi))
        return candidates

    def _near(self, centre: Aoi, names: set[str], count: int) -> list[Poi]:
        """Return the nearest first, of equally near ones the lower id."""

        def rank(poi: Poi) -> tuple[float, int]:
            return (poi.x - centre.x) ** 2 + (poi.y - centre.y) ** 2, poi.id

        return sorted(self._city.nearest(centre.x, centre.y, names, count), key=rank)


def prompt_of(path: Path | None = None) -> Template:
    """Return a file's template with the places above, or the one that ships."""
    return Template(path, OWN_PROMPT, PLACES, NEEDED)


def messages(prompt: Template, resident: Resident, around: Surroundings) -> tuple[Message, ...]:
    profile = []
    for name, label in PROFILE.items():
        value = _short(resident.profile.get(name))
        if value:
            profile.append(f"{label}：{value}")

    intentions = [f"- {name}：{INTENTIONS_ZH[number]}" for number, name in INTENTIONS.items()]
    candidates = [_listed(intention, around.candidates) for intention in OFFERED]
    values = {
        "profile": "\n".join(profile) or NO_PROFILE,
        "home": _where(around.home),
        "work": f"{_where(around.work)}，距家 {_metres(around.home, around.work)} 米",
        "intentions": "\n".join(intentions),
        "candidates": "\n".join(candidates),
    }
    return prompt.messages(values)


class PlanMode:
    """A plain model writes the whole day at once. `asks_with` has the identity of the mode
    alone."""

    name = "plan"
    steps = 1

    def __init__(self, prompt: Template, city: City, asking: Asking) -> None:
        self.asks_with = Configuration(prompt.source, prompt.path, prompt.files, asking.identity)
        self._prompt = prompt
        self._nearby = Nearby(city)

    async def play(self, resident: Resident, chat: Chat) -> Day:
        """Return the day of one resident. While the reply cannot be read, ask again and name the
        mistake."""
        around = self._nearby.surroundings(resident)
        places = around.places
        try:
            plan = await chat.read(
                messages(self._prompt, resident, around),
                lambda completion: read(completion, places),
                schema=schema(places),
            )
        except InvalidReply as error:
            return stayed_home(resident, self.name, error.kind)

        return Day(
            mode=self.name,
            intentions=plan.intentions,
            places=plan.places,
            visited=tuple(dict.fromkeys(plan.places)),
            outcome=VALID,
            repairs=plan.repairs,
            warnings=plan.warnings,
        )


def stayed_home(resident: Resident, mode: str, outcome: str) -> Day:
    """Return the day that an invalid answer counts as: at home all day, with the intention
    `other`."""
    return Day(
        mode,
        (OTHER,) * SLOTS,
        (resident.home,) * SLOTS,
        (resident.home,),
        outcome,
    )


def _intention_of(level: str) -> int | None:
    """Return the intention that a level of a category is for; a map service may write several
    levels as one."""
    if _CODE.fullmatch(level):
        return _INTENTION_OF_CODE.get(level[:2])
    return _INTENTION_OF_LEVEL.get(_SUBLEVEL.split(level)[0].strip())


def _metres(start: Aoi, end: Aoi) -> int:
    return round(hypot(start.x - end.x, start.y - end.y))


def _where(aoi: Aoi) -> str:
    return f"AOI {aoi.id}，坐标 ({round(aoi.x)}, {round(aoi.y)}) 米"


def _short(value: object) -> str:
    """Return text or a number on one line, empty for anything else."""
    if type(value) not in (str, int, float):
        return ""
    return " ".join(str(value).split())[:MAX_NAME_CHARACTERS]


def _listed(intention: int, candidates: Iterable[Candidate]) -> str:
    lines = []
    for candidate in candidates:
        if candidate.intention != intention:
            continue

        name = _short(candidate.name)
        category = _short(candidate.category)
        label = name or category
        if name and category:
            label = f"{name}（{category}）"

        place = f"- AOI {candidate.aoi} {label}".rstrip()
        lines.append(f"{place}，距家 {candidate.from_home} 米，距工作地 {candidate.from_work} 米")

    heading = f"### {INTENTIONS_ZH[intention]}（{INTENTIONS[intention]}）"
    return "\n".join([heading, *(lines or [NOTHING_NEAR])])
