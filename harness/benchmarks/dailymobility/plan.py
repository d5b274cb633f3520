"""Plan mode: a resident's whole day asked of a plain model at once (docs/design.md, section 9).

The model is given profile, home, work, the clock and the places around, and writes 48 half hours. What it is offered
depends on the resident and the map alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, zip_longest
from math import hypot
from pathlib import Path
from typing import Any

from harness.benchmark import VALID
from harness.benchmarks.dailymobility.city import Aoi, City, Poi, levels
from harness.benchmarks.dailymobility.day import INTENTIONS, NUMBERS, OTHER, SLOTS, Day, Resident
from harness.benchmarks.dailymobility.plan_reply import INTENTIONS_ZH, Places, Reading, read
from harness.benchmarks.template import Template
from harness.chat import Chat
from harness.errors import BadInput, InvalidReply
from harness.model import Message

MODE = "plan"
OWN_PROMPT = Path(__file__).with_name("plan.txt")
PLACES = frozenset(["profile", "home", "work", "intentions", "candidates"])
NEEDED = frozenset(["candidates"])

PROFILE = {"age": "年龄", "gender": "性别", "education": "学历", "occupation": "职业", "consumption": "消费水平"}
"""The fields that are shown, in this order; no other is, since a data set may keep there what is to be found out."""

NO_PROFILE = "（没有资料）"
NOTHING_NEAR = "（附近没有）"
OFFERED = {NUMBERS["shopping"]: 8, NUMBERS["eating out"]: 10, NUMBERS["leisure and entertainment"]: 8, OTHER: 6}
"""Places offered at most, by intention, in the order in which they are listed."""

DEPTH = 8
"""Points of interest looked at for each place that is wanted: many of them share an AOI."""

LONGEST = 40
"""Characters of a name or a category that are shown."""

_WORDS = {
    "shopping": """
        shop mall retail supermarket marketplace department_store convenience kiosk greengrocer bakery
        购物 购物服务 商场 超市 便利店""",
    "eating out": """
        restaurant fast_food food_court cafe bar pub biergarten ice_cream 美食 餐饮 餐饮服务""",
    "leisure and entertainment": """
        amusement_arcade arts_centre attraction beach_resort bowling_alley casino cinema community_centre dance
        escape_game events_venue exhibition_centre fishing fitness_centre fitness_station gallery garden golf_course
        horse_riding ice_rink internet_cafe karaoke_box marina miniature_golf museum music_venue nature_reserve
        nightclub park pitch planetarium playground public_bath resort sauna social_centre sports_centre sports_hall
        stadium swimming_area swimming_pool theatre theme_park track trampoline_park water_park zoo
        娱乐休闲 休闲娱乐 运动健身 体育休闲服务 旅游景点 风景名胜 文化场馆""",
    "other": """
        bank car_rental car_repair car_wash clinic college courthouse dentist doctors fuel hospital hotel kindergarten
        language_school library nursing_home pharmacy place_of_worship police post_office school social_facility
        townhall training university veterinary
        生活服务 医疗保健 医疗保健服务 银行金融 金融保险服务 教育学校 科教文化服务 机构团体 政府机构及社会团体
        酒店宾馆 住宿服务 汽车 汽车服务""",
}
"""Levels of a POI's category, by what one goes there for: OpenStreetMap's values, which maps built with mosstool have
and upstream's agents ask for, and the first levels of Chinese map services. What is not here nobody is sent to."""

_INTENTION_OF = {word: NUMBERS[name] for name, words in _WORDS.items() for word in words.split()}
_CODES = {"10": "eating out", "13": "shopping", "16": "leisure and entertainment", "18": "leisure and entertainment"}
_CODES |= {"22": "leisure and entertainment", "23": "leisure and entertainment"}
_CODES |= dict.fromkeys(["12", "14", "19", "20", "21", "24", "25"], "other")
"""First two of the six digits that Tencent's map has for a category, as in the example in upstream's map reader."""

_CODE = re.compile(r"[0-9]{6}")
_SUBLEVEL = re.compile("[:：;；]")


@dataclass(frozen=True, slots=True)
class Candidate:
    """An AOI to go to with an intention, and the point of interest there. Distances in metres, between centroids."""

    intention: int
    aoi: int
    name: str
    category: str
    from_home: int
    from_work: int


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a resident's prompt says of the map."""

    home: Aoi
    work: Aoi
    candidates: tuple[Candidate, ...]


class Nearby:
    """Offers the residents of a city places to go to. Made once for a city, as it reads all of its categories."""

    def __init__(self, city: City) -> None:
        self._city = city
        found: dict[int, set[str]] = {intention: set() for intention in OFFERED}
        for category in {poi.category for poi in city.pois.values()}:
            for level in levels(category):
                if intention := _intention_of(level):
                    found[intention].add(level)
        self._levels = {intention: frozenset(names) for intention, names in found.items()}

    def of(self, resident: Resident) -> Surroundings:
        """The same for the same resident. Raises `BadInput` for a home or work that is not on the map."""
        home, work = self._aoi(resident, "home", resident.home), self._aoi(resident, "work", resident.work)
        listed = chain.from_iterable(self._candidates(home, work, intention) for intention in OFFERED)
        return Surroundings(home, work, tuple(listed))

    def places(self, around: Surroundings) -> Places:
        """What a reply of the resident may name."""
        offered = frozenset(candidate.aoi for candidate in around.candidates)
        return Places(around.home.id, around.work.id, offered, self._city.aois)

    def _aoi(self, resident: Resident, which: str, number: int) -> Aoi:
        aoi = self._city.aois.get(number)
        if aoi is None:
            raise BadInput(f"resident {resident.key}: {which} is AOI {number}, and the map has no such AOI")
        return aoi

    def _candidates(self, home: Aoi, work: Aoi, intention: int) -> list[Candidate]:
        """Nearest first; half of them near home and half near work, as far as these differ."""
        count = OFFERED[intention]
        names = self._levels[intention]
        near_home, near_work = [self._near(at, names, count * DEPTH) for at in (home, work)]
        by_aoi: dict[int, Poi] = {}
        for poi in chain.from_iterable(zip_longest(near_home, near_work)):
            if poi is not None and len(by_aoi) < count:
                by_aoi.setdefault(poi.aoi_id, poi)
        found = [self._candidate(poi, home, work, intention) for poi in by_aoi.values()]
        return sorted(found, key=lambda candidate: (min(candidate.from_home, candidate.from_work), candidate.aoi))

    def _near(self, at: Aoi, names: frozenset[str], count: int) -> list[Poi]:
        """Nearest first, of equally near ones the lower id."""
        found = self._city.nearest(at.x, at.y, names, count)
        return sorted(found, key=lambda poi: ((poi.x - at.x) ** 2 + (poi.y - at.y) ** 2, poi.id))

    def _candidate(self, poi: Poi, home: Aoi, work: Aoi, intention: int) -> Candidate:
        aoi = self._city.aois[poi.aoi_id]
        category = "" if _CODE.fullmatch(poi.category) else poi.category.replace("|", "/")
        return Candidate(intention, aoi.id, poi.name, category, _metres(aoi, home), _metres(aoi, work))


class PlanPrompt:
    """A template with the places above. `source` tells whose it is; `files` are the bytes that define it, by name."""

    def __init__(self, path: Path | None = None) -> None:
        self._template = Template(path, OWN_PROMPT, PLACES, NEEDED)
        self.path = path
        self.source = self._template.source
        self.files = self._template.files

    def messages(self, resident: Resident, around: Surroundings) -> tuple[Message, ...]:
        return self._template.messages(
            {
                "profile": _profile(resident.profile),
                "home": _where(around.home),
                "work": f"{_where(around.work)}，距家 {_metres(around.home, around.work)} 米",
                "intentions": "\n".join([f"- {name}：{INTENTIONS_ZH[number]}" for number, name in INTENTIONS.items()]),
                "candidates": "\n".join([_listed(intention, around.candidates) for intention in OFFERED]),
            }
        )


async def play(resident: Resident, nearby: Nearby, chat: Chat, prompt: PlanPrompt) -> Day:
    """Return the day of one resident: asked again, saying what was wrong, while the reply cannot be read."""
    around = nearby.of(resident)
    places = nearby.places(around)
    try:
        reading = await chat.read(prompt.messages(resident, around), lambda completion: read(completion, places))
    except InvalidReply as error:
        return stayed_home(resident, MODE, error.kind)
    return _valid(reading)


def stayed_home(resident: Resident, mode: str, outcome: str) -> Day:
    """What an invalid answer counts as: at home all day, with the intention `other`."""
    return Day(mode, (OTHER,) * SLOTS, (resident.home,) * SLOTS, (resident.home,), outcome)


def _valid(reading: Reading) -> Day:
    visited = tuple(dict.fromkeys(reading.places))
    return Day(MODE, reading.intentions, reading.places, visited, VALID, reading.repairs, reading.warnings)


def _intention_of(level: str) -> int | None:
    """What one goes for to a place whose category has this level; a map service may write several levels as one."""
    if _CODE.fullmatch(level):
        return NUMBERS.get(_CODES.get(level[:2], ""))
    return _INTENTION_OF.get(_SUBLEVEL.split(level)[0].strip())


def _metres(one: Aoi, other: Aoi) -> int:
    return round(hypot(one.x - other.x, one.y - other.y))


def _where(aoi: Aoi) -> str:
    return f"AOI {aoi.id}，坐标 ({round(aoi.x)}, {round(aoi.y)}) 米"


def _profile(profile: Mapping[str, Any]) -> str:
    """A line for each field that says something, in the data's own words."""
    lines = {label: _short(profile.get(name)) for name, label in PROFILE.items()}
    return "\n".join([f"{label}：{value}" for label, value in lines.items() if value]) or NO_PROFILE


def _short(value: Any) -> str:
    """Text or a number on one line, empty for anything else."""
    return " ".join(str(value).split())[:LONGEST] if type(value) in (str, int, float) else ""


def _listed(intention: int, candidates: Iterable[Candidate]) -> str:
    lines = [_line(candidate) for candidate in candidates if candidate.intention == intention]
    return "\n".join([f"### {INTENTIONS_ZH[intention]}（{INTENTIONS[intention]}）", *(lines or [NOTHING_NEAR])])


def _line(candidate: Candidate) -> str:
    name, category = _short(candidate.name), _short(candidate.category)
    what = f"{name}（{category}）" if name and category else name or category
    distances = f"距家 {candidate.from_home} 米，距工作地 {candidate.from_work} 米"
    return f"- AOI {candidate.aoi} {what}，{distances}" if what else f"- AOI {candidate.aoi}，{distances}"
