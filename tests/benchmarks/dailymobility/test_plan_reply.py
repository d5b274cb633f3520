"""From the text of a completion to a day of 48 half hours: repairs, kinds of unreadable days, and
nothing filled in."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness.benchmarks.dailymobility import plan_reply
from harness.benchmarks.dailymobility.day import INTENTIONS, SLOTS
from harness.benchmarks.dailymobility.plan_reply import INTENTIONS_ZH, Places, PlannedDay
from harness.model import Completion
from tests.support import examples
from tests.support.readings import Invalid, reading_of

HOME, WORK, CAFE, PARK, FAR = 500000001, 500000002, 500000003, 500000004, 500000009
PLACES = Places(HOME, WORK, frozenset([CAFE, PARK]), {HOME: 1, WORK: 1, CAFE: 1, PARK: 1, FAR: 1})

SEGMENTS: list[dict[str, Any]] = [
    {"start": "00:00", "end": "08:00", "intention": "sleep", "place": "home"},
    {"start": "08:00", "end": "09:00", "intention": "home activity", "place": "home"},
    {"start": "09:00", "end": "12:30", "intention": "work", "place": "work"},
    {"start": "12:30", "end": "13:00", "intention": "eating out", "place": CAFE},
    {"start": "13:00", "end": "18:00", "intention": "work", "place": WORK},
    {"start": "18:00", "end": "24:00", "intention": "home activity", "place": HOME},
]
INTENDED = (1,) * 16 + (2,) * 2 + (4,) * 7 + (6,) + (4,) * 10 + (2,) * 12
VISITED = (HOME,) * 18 + (WORK,) * 7 + (CAFE,) + (WORK,) * 10 + (HOME,) * 12


def said(data: Any) -> str:
    return orjson.dumps(data).decode()


GOOD = said({"segments": SEGMENTS})


def read(completion: Completion, places: Places) -> PlannedDay | Invalid:
    return reading_of(plan_reply.read, completion, places)


def readable(text: str) -> PlannedDay:
    reading = read(Completion(text), PLACES)
    assert isinstance(reading, PlannedDay), reading
    return reading


def unreadable(text: str, **more: Any) -> Invalid:
    reading = read(Completion(text, **more), PLACES)
    assert isinstance(reading, Invalid), reading
    return reading


def changed(number: int, **fields: Any) -> str:
    """The good day with fields of one segment replaced."""
    segments = [dict(segment) for segment in SEGMENTS]
    segments[number] |= fields
    return said({"segments": segments})


def one_place(intention: Any, place: Any) -> str:
    return said(
        {"segments": [{"start": "00:00", "end": "24:00", "intention": intention, "place": place}]}
    )


# Clean replies


def test_segments_become_48_half_hours():
    """Each half hour has the intention and the AOI of the segment that it lies in."""
    assert len(INTENDED) == len(VISITED) == SLOTS
    assert readable(GOOD) == PlannedDay(INTENDED, VISITED)


@pytest.mark.parametrize("pairs", [False, True], ids=["objects", "pairs"])
def test_slots_are_read_one_by_one(pairs):
    """The same day as 48 entries, objects or pairs of intention and place."""
    slots: list[Any] = [
        [intention, place] if pairs else {"intention": intention, "place": place}
        for intention, place in zip(INTENDED, VISITED, strict=True)
    ]
    assert readable(said({"slots": slots})) == PlannedDay(INTENDED, VISITED)


@pytest.mark.parametrize("number", INTENTIONS)
def test_an_intention_has_three_names(number):
    """English, Chinese or its number, also as text; none of them is a repair."""
    for name in (INTENTIONS[number], INTENTIONS_ZH[number], number, str(number)):
        assert readable(one_place(name, "home")) == PlannedDay((number,) * SLOTS, (HOME,) * SLOTS)


@pytest.mark.parametrize(
    ("place", "aoi"),
    [
        *(
            ("home", HOME),
            ("家", HOME),
            ("work", WORK),
            ("工作地", WORK),
            (HOME, HOME),
            (CAFE, CAFE),
        ),
        *((str(CAFE), CAFE), (f"AOI {PARK}", PARK), (f" aoi{PARK}", PARK)),
    ],
)
def test_a_place_is_a_word_or_an_aoi(place, aoi):
    """As the prompt writes it, with or without `AOI`; none of it is a repair."""
    assert readable(one_place("other", place)) == PlannedDay((3,) * SLOTS, (aoi,) * SLOTS)


def test_places_of_the_city_that_were_not_offered_are_taken_and_told():
    """Each such place counts once, however often it is visited; home, work and candidates are not
    counted."""
    segments = [dict(segment) for segment in SEGMENTS]
    segments[3]["place"] = segments[5]["place"] = FAR
    reading = readable(said({"segments": segments}))
    assert reading.warnings == ("off_candidate: 1",)
    assert reading.places[25] == reading.places[47] == FAR


# Repairs by content


@pytest.mark.parametrize(
    ("text", "repairs"),
    [
        (f"```json\n{GOOD}\n```", ("fence",)),
        (f"安排如下：{GOOD}", ("prose",)),
        (f"先想一想。</think>{GOOD}", ("thinking",)),
        (GOOD.replace("}]}", "},]}"), ("syntax",)),
        (said({"segments": SEGMENTS[::-1]}), ("order",)),
        (changed(5, end="00:00"), ("midnight",)),
        (changed(5, end="23:59"), ("rounded_time",)),
        (changed(0, intention=" Sleep "), ("intention_spelling",)),
        (changed(0, place="HOME"), ("place_spelling",)),
        (f"```\n{said({'segments': SEGMENTS[::-1]})}\n```", ("fence", "order")),
    ],
)
def test_a_repaired_reply_says_how(text, repairs):
    """The day is the same; every kind of repair is named once."""
    assert readable(text) == PlannedDay(INTENDED, VISITED, repairs)


@pytest.mark.parametrize("written", ["8:00", "08：00", "08:00:00", " 08:00 "])
def test_half_hours_are_read_as_people_write_them(written):
    """One digit, seconds, a full-width colon and white space are no repairs."""
    segments = [dict(segment) for segment in SEGMENTS]
    segments[0]["end"] = segments[1]["start"] = written
    assert readable(said({"segments": segments})) == PlannedDay(INTENDED, VISITED)


@pytest.mark.parametrize(
    ("written", "slot"),
    [("07:44", 15), ("07:45", 16), ("08:14", 16), ("08:15", 17), ("08:14:59", 16), ("07:59", 16)],
)
def test_times_between_half_hours_are_rounded_and_told(written, slot):
    """To the nearer half hour, a quarter upwards; an end and the start after it go together, so no
    gap opens."""
    segments = [dict(segment) for segment in SEGMENTS]
    segments[0]["end"] = segments[1]["start"] = written
    reading = readable(said({"segments": segments}))
    assert reading.intentions == (1,) * slot + (2,) * (18 - slot) + INTENDED[18:]
    assert reading.repairs == ("rounded_time",)


# Replies that cannot be used


@pytest.mark.parametrize(
    ("text", "kind", "why"),
    [
        ("", "empty", "空"),
        ("我会在家。", "no_json", "没有可用的 JSON"),
        (said(SEGMENTS), "not_object", "最外层"),
        ("{}", "no_day", "缺少 segments"),
        (said({"segments": []}), "no_day", "缺少 segments"),
        (said({"segments": "全天在家"}), "no_day", "缺少 segments"),
        (said({"segments": [*SEGMENTS[:2], "工作"]}), "no_day", "第 3 段"),
        (said({"slots": [[1, "home"]] * 47}), "wrong_length", "slots 有 47 项"),
        (said({"slots": [[1, "home"]] * 49}), "wrong_length", "slots 有 49 项"),
        (said({"slots": [[1, "home"]] * 47 + [[1]]}), "no_day", "第 48 项"),
        (said({"segments": SEGMENTS[1:]}), "gap", "00:00 到 08:00"),
        (said({"segments": SEGMENTS[:-1]}), "gap", "18:00 到 24:00"),
        (said({"segments": SEGMENTS[:3] + SEGMENTS[4:]}), "gap", "12:30 到 13:00"),
        (changed(3, start="12:00"), "overlap", "12:00 到 12:30"),
        (said({"segments": [*SEGMENTS, SEGMENTS[0]]}), "overlap", "00:00 到 08:00"),
        (
            changed(1, start="08:00", end="08:00"),
            "bad_time",
            "第 2 段的 end 没有比 start 至少晚半小时",
        ),
        (changed(5, start="22:00", end="07:00"), "bad_time", "第 6 段的 end 没有"),
        (changed(5, start="23:50"), "bad_time", "第 6 段的 end 没有"),
        (changed(0, start="00:00", end="00:00"), "bad_time", "第 1 段的 end 没有"),
        (changed(5, end="24:30"), "bad_time", "24:30"),
        (changed(5, end="25:00"), "bad_time", "25:00"),
        (changed(0, end="07:60"), "bad_time", "07:60"),
        (changed(0, end="8点"), "bad_time", "8点"),
        (changed(0, end=8), "bad_time", "8"),
        (changed(0, end=None), "bad_time", "空"),
        (changed(0, end=[8, 0]), "bad_time", "数组或对象"),
        (changed(2, intention="commute"), "unknown_intention", "第 3 段的 intention 是 “commute”"),
        (changed(2, intention=0), "unknown_intention", "0"),
        (changed(2, intention=8), "unknown_intention", "8"),
        (changed(2, intention=True), "unknown_intention", "True"),
        (changed(2, intention=4.0), "unknown_intention", "4.0"),
        (changed(2, intention=None), "unknown_intention", "空"),
        (changed(3, place=500000005), "unknown_place", "第 4 段的 place 是 “500000005”"),
        (changed(3, place="700000001"), "unknown_place", "700000001"),
        (changed(3, place="咖啡馆"), "unknown_place", "咖啡馆"),
        (changed(3, place=None), "unknown_place", "空"),
        (changed(3, place={"aoi": CAFE}), "unknown_place", "数组或对象"),
    ],
)
def test_what_cannot_be_read_has_a_kind_and_a_sentence(text, kind, why):
    """Nothing is padded, cut or guessed; the sentence says where the fault is."""
    reading = unreadable(text)
    assert (reading.kind, reading.final) == (kind, False)
    assert why in reading.why


@pytest.mark.parametrize("reason", ["length", "only_thinking", "content_filter", "context_length"])
def test_a_final_reason_is_not_read(reason):
    """Not even a whole day counts then."""
    assert unreadable(GOOD, finish_reason=reason) == Invalid(reason, "", final=True)


def test_a_wrong_value_is_told_shortly_and_can_be_sent():
    """The sentence goes into the next request: no half surrogate pair, and no page of text."""
    reading = unreadable('{"segments": [{"start": "\\ud83d' + "长" * 500 + '", "end": "24:00"}, ]}')
    assert reading.kind == "bad_time"
    assert len(reading.why) < 120
    reading.why.encode()


# Any text

FRAGMENTS = st.sampled_from(
    [
        *(
            '{"',
            '"}',
            "{",
            "}",
            "[",
            "]",
            '"',
            ":",
            ",",
            "\\",
            "\n",
            "```json\n",
            "\n```",
            "</think>",
        ),
        *(
            '"segments": [',
            '"slots": [',
            '{"start": "00:00", "end": "24:00", ',
            '"intention": "sleep", "place": "home"}',
        ),
        *(
            '"start":',
            '"end":',
            '"08:00"',
            '"8:15"',
            "24:00",
            '"intention":',
            '"place":',
            "家",
            "睡眠",
            str(CAFE),
        ),
        *(
            "\\ud83d",
            "\ud83d",
            "\x00",
            "null",
            "NaN",
            "1e999",
            "9" * 20,
            "9" * 5000,
            GOOD,
            GOOD[:90],
            GOOD[90:],
        ),
    ]
)
TEXTS = st.one_of(
    st.text(max_size=60),
    st.text(st.characters(codec=None), max_size=40),
    st.lists(FRAGMENTS, max_size=12).map("".join),
    st.lists(FRAGMENTS, max_size=8).map(lambda found: '{"segments": [' + "".join(found)),
)
KINDS = {"empty", "no_json", "not_object", "no_day", "wrong_length", "bad_time", "gap", "overlap"}
KINDS |= {"unknown_intention", "unknown_place"}


def check(reading: PlannedDay | Invalid) -> None:
    """A whole day of known intentions at known places, or a kind with a sentence that can be
    sent."""
    if isinstance(reading, PlannedDay):
        assert len(reading.intentions) == len(reading.places) == SLOTS
        assert set(reading.intentions) <= set(INTENTIONS)
        assert set(reading.places) <= {HOME, WORK, CAFE, PARK, FAR}
        assert len(set(reading.repairs)) == len(reading.repairs)
    else:
        assert reading.kind in KINDS and reading.why and not reading.final
        assert len(reading.why.encode()) < 400


@settings(max_examples=examples(150), deadline=None)
@given(text=TEXTS)
@example(text='{"slots": [' + "[1,5]," * 48 + "]}")
@example(text='{"segments": ' + "[" * 900 + "]" * 900 + "}")
@example(
    text='{"segments": [{"start": "00:00", "end": "24:00", "intention": '
    + "9" * 5000
    + ', "place": 1},]}'
)
def test_any_text_is_a_whole_day_or_has_a_kind(text):
    """Whatever a model writes, there is a reading without an error, and always the same."""
    reading = read(Completion(text), PLACES)
    assert read(Completion(text), PLACES) == reading
    check(reading)


ODD = (
    st.none()
    | st.booleans()
    | st.integers(-9, 60)
    | st.floats(allow_nan=False)
    | st.text(max_size=6)
)
TIMES = (
    st.builds(
        "{:02}:{:02}".format, st.integers(0, 25), st.sampled_from([0, 0, 0, 30, 30, 15, 59, 61])
    )
    | ODD
)
NAMES = st.sampled_from([*INTENTIONS.values(), *INTENTIONS_ZH.values(), "Work", "通勤", 4]) | ODD
AOIS = st.sampled_from(["home", "work", "家", HOME, WORK, CAFE, FAR, 500000005, "Home"]) | ODD
ENTRIES = (
    st.fixed_dictionaries({"start": TIMES, "end": TIMES, "intention": NAMES, "place": AOIS}) | ODD
)


@settings(max_examples=examples(150), deadline=None)
@given(listed=st.lists(ENTRIES, max_size=4), name=st.sampled_from(["segments", "slots"]))
def test_any_entries_are_a_whole_day_or_have_a_kind(listed, name):
    """Clean JSON with values of any type and any times."""
    check(read(Completion(said({name: listed})), PLACES))


@settings(max_examples=examples(100), deadline=None)
@given(
    cuts=st.sets(st.integers(1, 47), max_size=12),
    what=st.lists(
        st.tuples(st.sampled_from(list(INTENTIONS)), st.sampled_from([HOME, WORK, CAFE])),
        min_size=13,
    ),
    order=st.randoms(use_true_random=False),
)
def test_every_whole_day_comes_back_as_it_was_written(cuts, what, order):
    """Segments in any order are the day that they cover."""
    bounds = [0, *sorted(cuts), SLOTS]
    clock = [f"{slot // 2:02}:{slot % 2 * 30:02}" for slot in range(SLOTS + 1)]
    segments, intentions, places = [], [], []
    for start, end, (intention, place) in zip(bounds, bounds[1:], what, strict=False):
        segments.append(
            {
                "start": clock[start],
                "end": clock[end],
                "intention": INTENTIONS[intention],
                "place": place,
            }
        )
        intentions += [intention] * (end - start)
        places += [place] * (end - start)
    order.shuffle(segments)
    reading = readable(said({"segments": segments}))
    assert (reading.intentions, reading.places) == (tuple(intentions), tuple(places))


def test_more_segments_than_half_hours_overlap_whatever_they_hold():
    """They are not even looked at: some replies repeat themselves by the thousand."""
    text = orjson.dumps({"segments": [None] * 100_000}).decode()
    reading = read(Completion(text), PLACES)
    assert isinstance(reading, Invalid) and reading.kind == "overlap"


@pytest.mark.parametrize(
    "place", ["AOI 500000003 转角咖啡", "500000003（转角咖啡）", "aoi 500000003, 咖啡"]
)
def test_a_line_of_the_prompt_names_its_place(place):
    """The id in front counts, and that the name was left behind is reported."""
    places = Places(HOME, WORK, frozenset(), {500000003: 1})
    day = {
        "segments": [{"start": "00:00", "end": "24:00", "intention": "eating_out", "place": place}]
    }
    reading = read(Completion(orjson.dumps(day).decode()), places)
    assert isinstance(reading, PlannedDay)
    assert reading.places == (500000003,) * 48 and reading.intentions == (6,) * 48
    assert set(reading.repairs) == {"place_spelling", "intention_spelling"}
