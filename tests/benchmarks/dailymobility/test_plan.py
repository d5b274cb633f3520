"""Plan mode: the prompt of a resident, played with scripted completions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import orjson
import pytest

from harness.benchmark import Asking
from harness.benchmarks.agents.city import Aoi, City, Poi
from harness.benchmarks.agents.resident import Resident
from harness.benchmarks.dailymobility import plan
from harness.benchmarks.dailymobility.benchmark import DailyMobility
from harness.benchmarks.dailymobility.day import INTENTIONS, OTHER, SLOTS, Day
from harness.benchmarks.dailymobility.plan import (
    NOTHING_NEAR,
    OFFERED,
    Nearby,
    PlanMode,
    prompt_of,
)
from harness.benchmarks.dailymobility.plan_reply import INTENTIONS_ZH, read
from harness.benchmarks.template import Template
from harness.chat import Chat
from harness.errors import BadInput
from harness.model import Completion, Message, Request, Usage

A = 500000000
HOME, WORK = A, A + 1
PROFILE = {
    "age": 23,
    "education": "Bachelor's degree",
    "gender": "Female",
    "consumption": "medium",
    "occupation": "IT Engineer",
    "home": HOME,
    "work": WORK,
    "id": 7,
}
RESIDENT = Resident("7", 7, HOME, WORK, PROFILE)
PROMPT = prompt_of()


def aoi(number: int, x: float, y: float) -> Aoi:
    return Aoi(number, x, y, ((x, y),), 0.0, "", ())


def city(places: Iterable[tuple[float, float, str, str]], ids: Iterable[int] | None = None) -> City:
    """Home at (0, 0), work 5 km away at (3000, 4000), and an AOI from A + 2 on for each x, y, name
    and category."""
    aois = {HOME: aoi(HOME, 0, 0), WORK: aoi(WORK, 3000, 4000)}
    pois = {}
    listed = list(places)
    for number, (x, y, name, category) in zip(
        ids or range(2, 2 + len(listed)), listed, strict=True
    ):
        aois[A + number] = aoi(A + number, x, y)
        pois[700000000 + number] = Poi(700000000 + number, name, category, x, y, A + number)
    return City(aois, pois, {}, "", "")


SMALL = city(
    [
        (300, 400, "小馆", "amenity|restaurant"),
        (3000, 4100, "面馆", "amenity|fast_food"),
        (0, 1000, "", "leisure|park"),
        (60, 80, "超市", "building|supermarket"),
        (100, 0, "长椅", "amenity|bench"),
    ]
)


class Script:
    """Answers from a queue, and keeps what it was asked."""

    def __init__(self, *completions: Completion) -> None:
        self._left = list(completions)
        self.asked: list[Request] = []

    async def ask(self, request: Request) -> Completion:
        self.asked.append(request)
        return self._left.pop(0)


def messages(
    city: City = SMALL, resident: Resident = RESIDENT, prompt: Template = PROMPT
) -> tuple[Message, ...]:
    return plan.messages(prompt, resident, Nearby(city).surroundings(resident))


def text(city: City = SMALL, resident: Resident = RESIDENT) -> str:
    return messages(city, resident)[-1].content


def offered(city: City, intention: int, resident: Resident = RESIDENT) -> list[int]:
    """Numbers of the AOIs offered for an intention, from A."""
    return [
        found.aoi - A
        for found in Nearby(city).surroundings(resident).candidates
        if found.intention == intention
    ]


def reply(place: Any = "home", intention: str = "home activity", **more: Any) -> Completion:
    whole = {"start": "00:00", "end": "24:00", "intention": intention, "place": place}
    return Completion(orjson.dumps({"segments": [whole]}).decode(), **more)


def played_with(script: Script, **asking: Any) -> tuple[Day, Usage]:
    settings = Asking(**asking)
    chat = Chat(script.ask, settings, DailyMobility.about.language)
    return asyncio.run(PlanMode(PROMPT, SMALL, settings).play(RESIDENT, chat)), chat.usage


def played(script: Script, **asking: Any) -> Day:
    return played_with(script, **asking)[0]


# The prompt


def test_the_prompt_tells_profile_home_work_and_places():
    """Fields in their order, coordinates and straight-line distances in metres, places under what
    one goes for."""
    system, user = messages()
    assert (system.role, user.role) == ("system", "user")
    assert (
        "年龄：23\n性别：Female\n学历：Bachelor's degree\n职业：IT Engineer\n消费水平：medium\n"
        in user.content
    )
    assert f"家：AOI {HOME}，坐标 (0, 0) 米\n" in user.content
    assert f"工作地：AOI {WORK}，坐标 (3000, 4000) 米，距家 5000 米\n" in user.content
    assert (
        "### 购物（shopping）\n"
        f"- AOI {A + 5} 超市（building/supermarket），距家 100 米，距工作地 4900 米\n"
        "### 外出就餐（eating out）\n"
        f"- AOI {A + 3} 面馆（amenity/fast_food），距家 5080 米，距工作地 100 米\n"
        f"- AOI {A + 2} 小馆（amenity/restaurant），距家 500 米，距工作地 4500 米\n"
        "### 休闲娱乐（leisure and entertainment）\n"
        f"- AOI {A + 4} leisure/park，距家 1000 米，距工作地 4243 米\n"
        f"### 其他（other）\n{NOTHING_NEAR}\n"
    ) in user.content
    assert "${" not in user.content


def test_the_prompt_names_all_seven_intentions_in_both_languages():
    """The English names are the benchmark's, letter by letter."""
    for number, name in INTENTIONS.items():
        assert f"- {name}：{INTENTIONS_ZH[number]}\n" in text()


def test_only_known_fields_of_a_profile_are_shown():
    """Absent, empty and odd ones leave no line; unknown ones could give away what is asked for."""
    profile = {
        "age": 40,
        "gender": None,
        "education": "  ",
        "consumption": ["low"],
        "intentions": "1111",
    }
    shown = text(resident=Resident("1", 1, HOME, WORK, profile))
    assert "## 居民\n年龄：40\n家：" in shown
    assert "1111" not in shown
    assert "## 居民\n（没有资料）\n家：" in text(resident=Resident("1", 1, HOME, WORK, {"id": 1}))


# Which places are offered


@pytest.mark.parametrize(
    ("category", "intention"),
    [
        *(
            ("amenity|restaurant", 6),
            ("美食|中餐厅|川菜", 6),
            ("美食:中餐厅:川菜", 6),
            ("101025", 6),
        ),
        *(
            ("building|retail", 5),
            ("retail", 5),
            ("shop|clothes", 5),
            ("购物|超市", 5),
            ("131300", 5),
        ),
        *(
            ("leisure|park", 7),
            ("amenity|cinema", 7),
            ("娱乐休闲|电影院", 7),
            ("160100", 7),
            ("220000", 7),
        ),
        *(("amenity|hospital", 3), ("医疗保健|综合医院", 3), ("200100", 3), ("银行金融:银行", 3)),
        *(
            ("amenity|bench", None),
            ("", None),
            ("residential", None),
            ("280000", None),
            ("房产小区|小区", None),
        ),
    ],
)
def test_a_category_tells_what_one_goes_for(category, intention):
    """OpenStreetMap's words, Chinese first levels and Tencent's codes; what nobody visits is
    offered for nothing."""
    found = {number: offered(city([(10, 0, "某处", category)]), number) for number in OFFERED}
    assert found == {number: [2] if number == intention else [] for number in OFFERED}


def test_places_near_home_and_near_work_are_offered_by_turns():
    """Half and half up to the number for an intention, listed by how near they are to either, then
    by id."""
    home = [(10.0 * n, 0.0, f"家边{n}", "amenity|cafe") for n in range(1, 21)]
    work = [(3000.0, 4000.0 + 10 * n, f"司边{n}", "amenity|cafe") for n in range(1, 21)]
    assert OFFERED[6] == 10
    assert offered(city(home + work), 6) == [2, 22, 3, 23, 4, 24, 5, 25, 6, 26]


def test_an_area_is_offered_once_for_an_intention():
    """Of many restaurants in one AOI the nearest stands for it; another intention may offer the
    same AOI."""
    mall = A + 2
    listed = [
        ("远店", "amenity|restaurant", 20.0),
        ("近店", "amenity|restaurant", 10.0),
        ("商场", "shop|mall", 15.0),
    ]
    pois = {
        number: Poi(number, name, what, x, 0.0, mall)
        for number, (name, what, x) in enumerate(listed)
    }
    found = City(
        {HOME: aoi(HOME, 0, 0), WORK: aoi(WORK, 12, 0), mall: aoi(mall, 15, 0)}, pois, {}, "", ""
    )
    candidates = Nearby(found).surroundings(RESIDENT).candidates
    assert [(candidate.intention, candidate.aoi, candidate.name) for candidate in candidates] == [
        (5, mall, "商场"),
        (6, mall, "近店"),
    ]


def test_a_rich_city_offers_between_20_and_40_places():
    """The same for the same resident, and not more however many there are."""
    kinds = ["amenity|cafe", "leisure|park", "building|retail", "amenity|bank"]
    rich = city([(7.0 * n, 5.0 * n, f"处{n}", kinds[n % 4]) for n in range(400)])
    places = Nearby(rich).surroundings(RESIDENT).places
    assert 20 <= len(places.candidates) <= 40
    assert text(rich) == text(rich)


def test_a_point_outside_every_area_is_not_offered():
    """One goes to AOIs; a point of interest whose AOI the map lacks cannot be gone to."""
    pois = {1: Poi(1, "店", "amenity|cafe", 1.0, 1.0, 0)}
    lost = City({HOME: aoi(HOME, 0, 0), WORK: aoi(WORK, 9, 9)}, pois, {}, "", "")
    assert Nearby(lost).surroundings(RESIDENT).candidates == ()


# Other templates


def test_a_template_of_the_users_replaces_ours(tmp_path):
    """Named places are filled in, `source` is the file's name, and its bytes are kept."""
    file = tmp_path / "mine.txt"
    file.write_text("${candidates} 家=${home}", encoding="utf-8")
    prompt = prompt_of(file)
    (user,) = messages(prompt=prompt)
    assert user.content.startswith("### 购物（shopping）\n") and user.content.endswith(
        f"家=AOI {HOME}，坐标 (0, 0) 米"
    )
    assert (prompt.source, prompt.path) == ("mine.txt", file)
    assert prompt.files == {"prompt_mine.txt": file.read_bytes()}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"${candidates} ${adress}",
            r"unknown place \$\{adress\}; known are candidates, home, intentions, ",
        ),
        (b"${home} ${work}", r"has no place \$\{candidates\}"),
        (b"[system]\n${candidates}", "one part \\[user\\]"),
        (b"\xff", "must be UTF-8"),
    ],
)
def test_a_template_that_cannot_be_used_is_refused(content, message, tmp_path):
    """The file and what is wrong with it, before anything is sent."""
    file = tmp_path / "bad.txt"
    file.write_bytes(content)
    with pytest.raises(BadInput, match=f"bad.txt: .*{message}"):
        prompt_of(file)


# Played


def test_a_readable_reply_is_the_day():
    """48 entries each; visited are the distinct AOIs in order of first visit; usage is that of one
    request."""
    data = [
        {"start": "00:00", "end": "12:00", "intention": "睡眠", "place": "home"},
        {"start": "12:00", "end": "14:00", "intention": "eating out", "place": A + 3},
        {"start": "14:00", "end": "24:00", "intention": "home activity", "place": "家"},
    ]
    script = Script(
        Completion(
            orjson.dumps({"segments": data}).decode(), prompt_tokens=900, completion_tokens=80
        )
    )
    day = Day(
        mode="plan",
        intentions=(1,) * 24 + (6,) * 4 + (2,) * 20,
        places=(HOME,) * 24 + (A + 3,) * 4 + (HOME,) * 20,
        visited=(HOME, A + 3),
        outcome="valid",
    )
    assert played_with(script) == (day, Usage(900, 80, 1))
    assert script.asked == [Request(messages(), True)]


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (Completion("没有"), "回答里没有可用的 JSON"),
        (Completion(""), "回答是空的"),
        (Completion("", refusal="不"), "没有给出回答"),
        (reply(A + 99), f"place 是 “{A + 99}”"),
        (Completion(reply().text.replace("24:00", "23:00")), "23:00 到 24:00 没有安排"),
    ],
)
def test_a_second_try_says_what_was_wrong(bad, why):
    """The same messages, and after the last one the reason; the day then counts as any other."""
    script = Script(bad, reply("work", "work"))
    day, usage = played_with(script)
    first, second = script.asked
    assert second.messages[:-1] == first.messages[:-1]
    added = second.messages[-1].content.removeprefix(first.messages[-1].content)
    assert added.startswith("\n\n注意：") and why in added
    assert (day.outcome, day.places, usage.requests) == ("valid", (WORK,) * SLOTS, 2)


@pytest.mark.parametrize("retries", [0, 1, 2, 5])
def test_after_the_last_try_the_day_is_spent_at_home(retries):
    """Under the kind of the last reply; every request is in the usage."""
    tries = [Completion("没有", prompt_tokens=10, completion_tokens=1)] * retries
    script = Script(*tries, Completion("[]", prompt_tokens=10, completion_tokens=1))
    day = Day(
        mode="plan",
        intentions=(OTHER,) * SLOTS,
        places=(HOME,) * SLOTS,
        visited=(HOME,),
        outcome="not_object",
    )
    usage = Usage(10 * (retries + 1), retries + 1, retries + 1)
    assert played_with(script, parse_retries=retries) == (day, usage)
    assert len(script.asked) == retries + 1


@pytest.mark.parametrize("reason", ["length", "content_filter", "context_length"])
def test_a_final_reason_is_asked_once(reason):
    """Not even a reply that could be read is taken, also when it comes on a second try."""
    assert played(Script(reply(finish_reason=reason))).outcome == reason
    later, usage = played_with(Script(Completion("没有"), reply("work", finish_reason=reason)))
    assert (later.outcome, later.visited, usage.requests) == (reason, (HOME,), 2)


@pytest.mark.parametrize("structured", ["json_object", "none"])
def test_json_mode_is_asked_for_in_every_request_or_in_none(structured):
    """First and further tries alike."""
    script = Script(Completion("没有"), reply())
    played(script, structured=structured)
    assert [request.json_object for request in script.asked] == [structured == "json_object"] * 2


def test_day_that_fits_the_schema_is_read_without_repairs():
    """Every time, intention and place that the schema has: its AOIs are those that the prompt
    shows, as text."""
    script, places = Script(reply()), Nearby(SMALL).surroundings(RESIDENT).places
    played(script, structured="json_schema")
    segments = (script.asked[0].schema or {})["properties"]["segments"]
    values = {name: part["enum"] for name, part in segments["items"]["properties"].items()}
    assert (segments["minItems"], segments["maxItems"]) == (1, 48)
    assert {int(place) for place in values["place"][2:]} == places.candidates
    assert [len(values[name]) for name in ("start", "end", "intention")] == [48, 48, 7]
    for number, place in enumerate(values["place"]):
        parts = zip(values["start"], values["end"], strict=True)
        intention = values["intention"][number % 7]
        day = [
            {"start": start, "end": end, "intention": intention, "place": place}
            for start, end in parts
        ]
        found = read(Completion(orjson.dumps({"segments": day}).decode()), places)
        assert (found.repairs, found.warnings) == ((), ())


def test_what_the_prompt_shows_as_places_can_be_answered():
    """Each AOI that it lists is accepted without a warning."""
    places = Nearby(SMALL).surroundings(RESIDENT).places
    for number in (HOME, WORK, A + 2, A + 3, A + 4, A + 5):
        assert f"AOI {number}" in text()
        assert read(reply(number), places).warnings == ()
