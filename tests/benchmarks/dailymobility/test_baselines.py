"""Baseline residents read prompts as text: pure tests, with our own prompt and with others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.benchmarks.agents.city import Aoi, City, Poi
from harness.benchmarks.agents.resident import Resident
from harness.benchmarks.dailymobility import baselines
from harness.benchmarks.dailymobility.baselines import BASELINES, INTENTIONS, PlaceToGo
from harness.benchmarks.dailymobility.day import INTENTIONS as NAMES
from harness.benchmarks.dailymobility.plan import Nearby, messages, prompt_of
from harness.benchmarks.dailymobility.plan_reply import PlannedDay, read
from harness.model import Completion
from tests.support import examples
from tests.support.scripted import answer

HOME, WORK, PARK, NEAR_HOME, NEAR_WORK, SHOP = range(500000001, 500000007)
AT = {HOME: 0, WORK: 5000, PARK: 100, NEAR_HOME: 50, NEAR_WORK: 4900, SHOP: 5300}
KINDS = {
    PARK: "leisure|park",
    NEAR_HOME: "amenity|restaurant",
    NEAR_WORK: "amenity|cafe",
    SHOP: "building|retail",
}
CITY = City(
    {number: Aoi(number, x, 0, ((x, 0),), 0.0, "", ()) for number, x in AT.items()},
    {
        number: Poi(number, "某（处）", kind, AT[number], 0, number)
        for number, kind in KINDS.items()
    },
    {},
    "",
    "",
)
NEARBY = Nearby(CITY)
MODELS = list(BASELINES)


def prompt(age: int = 30, template: Path | None = None, work: int = WORK) -> list[dict[str, Any]]:
    """Messages as plan mode makes them."""
    resident = Resident("1", 1, HOME, work, {"age": age})
    made = messages(prompt_of(template), resident, NEARBY.surroundings(resident))
    return [{"role": message.role, "content": message.content} for message in made]


def day(model: str, messages: list[dict[str, Any]], seed: int = 0) -> PlannedDay:
    """The reply as plan mode reads it."""
    return read(
        Completion(answer(model, messages, seed)),
        NEARBY.surroundings(Resident("1", 1, HOME, WORK, {})).places,
    )


@pytest.mark.parametrize("model", MODELS)
def test_a_reply_is_a_whole_day_that_needs_no_repair(model):
    """Segments from 00:00 to 24:00 at places that the prompt offered."""
    for age in range(20, 60):
        reading = day(model, prompt(age))
        assert (reading.repairs, reading.warnings) == ((), ())


def test_our_prompt_is_read_for_home_work_and_places():
    """Ids, intentions and distances from work, in the prompt's order; the example of a reply is no
    place."""
    reading = baselines.read(prompt()[-1]["content"])
    assert (reading.home, reading.work) == (HOME, WORK)
    assert reading.places == (
        PlaceToGo(SHOP, "shopping", 300),
        PlaceToGo(NEAR_HOME, "eating out", 4950),
        PlaceToGo(NEAR_WORK, "eating out", 100),
        PlaceToGo(PARK, "leisure and entertainment", 4900),
    )


def test_the_intentions_are_those_of_the_benchmark():
    """In the order of their numbers."""
    assert tuple(NAMES.values()) == INTENTIONS


def test_a_commuter_works_eats_near_work_and_sleeps_at_home():
    """Whatever the hour of its habits: night and evening at home, office hours at work, noon where
    it is nearest."""
    for age in range(20, 60):
        reading = day("baseline/commuter", prompt(age))
        slots = list(zip(reading.intentions, reading.places, strict=True))
        assert slots[:13] == [(1, HOME)] * 13 and slots[47] == (1, HOME)
        assert slots[39:44] == [(2, HOME)] * 5
        assert slots[19:23] == [(4, WORK)] * 4 and slots[27:35] == [(4, WORK)] * 8
        assert set(slots) == {(1, HOME), (2, HOME), (4, WORK), (6, NEAR_WORK)}


def test_commuters_differ_by_prompt_and_not_by_seed():
    """The same prompt gives the same day under any seed; among forty prompts there are many
    days."""
    messages = prompt()
    assert answer("baseline/commuter", messages, 1) == answer("baseline/commuter", messages, 2)
    assert len({answer("baseline/commuter", prompt(age), 0) for age in range(20, 60)}) > 20


def test_a_random_day_depends_on_seed_and_prompt():
    """The same for the same, another for another; over many, every intention and place occurs."""
    messages = prompt()
    assert answer("baseline/random-day", messages, 1) == answer("baseline/random-day", messages, 1)
    assert answer("baseline/random-day", messages, 1) != answer("baseline/random-day", messages, 2)
    assert answer("baseline/random-day", messages, 1) != answer(
        "baseline/random-day", prompt(31), 1
    )
    days = [day("baseline/random-day", messages, seed) for seed in range(60)]
    assert {intention for found in days for intention in found.intentions} == set(range(1, 8))
    assert {place for found in days for place in found.places} == set(AT)


def test_a_template_of_another_wording_is_read_too(tmp_path):
    """Home, work and places are known by what fills the named places, not by the words around."""
    file = tmp_path / "english.txt"
    file.write_text(
        "Work: ${work}\nHome is ${home}.\nGo to:\n${candidates}\nAnswer in JSON.", encoding="utf-8"
    )
    assert set(day("baseline/commuter", prompt(template=file)).places) == {HOME, WORK, NEAR_WORK}


@pytest.mark.parametrize("model", MODELS)
def test_a_prompt_without_places_is_a_day_at_home(model):
    """No home, no work, no place: the word `home` is always understood."""
    reading = day(
        model,
        [{"role": "user", "content": "你好，请安排一天。\n### 购物（shopping）\n（附近没有）"}],
    )
    assert set(reading.places) == {HOME}


LINES = st.sampled_from(
    [
        *(
            "### 购物（shopping）",
            "### x（y）",
            "#",
            "- AOI",
            "AOI 5，坐标 (0, 0) 米",
            "AOI 6，坐标 (1, -1) 米，距家 1 米",
        ),
        *(
            "- AOI 1 甲，距家 2 米，距工作地 3 米",
            "- AOI 2，距家 2 米",
            "### 外出就餐（eating out）",
        ),
    ]
)


@settings(max_examples=examples(100), deadline=None)
@given(model=st.sampled_from(MODELS), lines=st.lists(LINES | st.text(max_size=20), max_size=8))
def test_any_prompt_is_answered(model, lines):
    """With JSON that covers the day, whatever stands in the prompt."""
    segments = orjson.loads(answer(model, [{"role": "user", "content": "\n".join(lines)}], 0))[
        "segments"
    ]
    assert segments[0]["start"] == "00:00" and segments[-1]["end"] == "24:00"
    assert [one["end"] for one in segments[:-1]] == [one["start"] for one in segments[1:]]
