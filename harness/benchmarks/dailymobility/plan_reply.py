"""From the text of a completion to a day of 48 half hours (docs/design.md, sections 6 and 9).

A model writes its day as `segments` with start and end, or as `slots`, 48 entries. Everything is decided by the text
and by which places there are, so that the same completion always gives the same day. Nothing is filled in: a day that
leaves a half hour open, or claims one twice, is unreadable.
"""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass
from typing import Any

from harness.benchmarks.dailymobility.day import NUMBERS, SLOTS
from harness.benchmarks.parsing import json_object
from harness.errors import InvalidReply
from harness.model import Completion

INTENTIONS_ZH = {1: "睡眠", 2: "居家活动", 3: "其他", 4: "工作", 5: "购物", 6: "外出就餐", 7: "休闲娱乐"}
"""What the prompt calls the intentions beside their own names; a reply may use either, or the number."""

HOME, WORK = "home", "work"
OFF_CANDIDATE = "off_candidate"

_WORDS = NUMBERS | {name: number for number, name in INTENTIONS_ZH.items()} | {str(n): n for n in INTENTIONS_ZH}
_PLACES = {HOME: HOME, "家": HOME, WORK: WORK, "工作地": WORK}
_TIME = re.compile(r"(\d{1,2})[:：](\d{2})(?:[:：](\d{2}))?")
_ID = re.compile(r"(?:AOI\s*)?(\d{1,18})", re.IGNORECASE)
_ID_AND_NAME = re.compile(r"(?:AOI\s*)?(\d{6,18})[\s(（,，:：].*", re.IGNORECASE | re.DOTALL)
"""As the prompt's own lines have it: the id and behind it the name."""

_HALF_HOUR, _DAY = 1800, 24 * 3600
_SHOWN = 40
"""Characters of a wrong value that are told to the model."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where a resident can go: any of `aois`, of which the prompt offered `candidates`, `home` and `work`."""

    home: int
    work: int
    candidates: frozenset[int]
    aois: Container[int]


@dataclass(frozen=True, slots=True)
class Reading:
    """48 numbers of intentions and 48 AOI ids. `warnings` has `off_candidate: N` where N places were not offered."""

    intentions: tuple[int, ...]
    places: tuple[int, ...]
    repairs: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Segment:
    """Half hours from `start` up to `end`, counted from midnight."""

    start: int
    end: int
    intention: int
    place: int


def read(completion: Completion, places: Places) -> Reading:
    """Return the day in a completion.

    Raise `InvalidReply` of one of the kinds `refusal`, `empty`, `no_json`, `not_object`, `no_day`, `wrong_length`,
    `bad_time`, `gap`, `overlap`, `unknown_intention`, `unknown_place`, or a final one that endpoints report: `length`,
    `only_thinking`, `content_filter`, `context_length`.
    """
    repairs: list[str] = []
    day = _day(json_object(completion, repairs), places, repairs)
    return Reading(
        tuple(intention for intention, _ in day),
        tuple(place for _, place in day),
        tuple(dict.fromkeys(repairs)),
        _warnings({place for _, place in day}, places),
    )


def _day(data: dict[str, Any], places: Places, repairs: list[str]) -> list[tuple[int, int]]:
    """Intention and place of each half hour."""
    for name, reader in (("segments", _from_segments), ("slots", _from_slots)):
        if type(listed := data.get(name)) is list and listed:
            return reader(listed, places, repairs)
    raise InvalidReply("no_day", "缺少 segments，或它不是一个非空数组")


def _from_segments(listed: list[Any], places: Places, repairs: list[str]) -> list[tuple[int, int]]:
    if len(listed) > SLOTS:  # of half an hour at least each
        raise InvalidReply("overlap", f"segments 有 {len(listed)} 段，一天至多 {SLOTS} 段")
    segments = [_segment(item, f"第 {number} 段", places, repairs) for number, item in enumerate(listed, 1)]
    ordered = sorted(segments, key=lambda segment: segment.start)
    if ordered != segments:
        repairs.append("order")
    _check_cover(ordered)
    return [(segment.intention, segment.place) for segment in ordered for _ in range(segment.start, segment.end)]


def _check_cover(ordered: list[_Segment]) -> None:
    covered = 0
    for segment in ordered:
        if segment.start > covered:
            raise InvalidReply("gap", f"{_clock(covered)} 到 {_clock(segment.start)} 没有安排")
        if segment.start < covered:
            raise InvalidReply(
                "overlap", f"{_clock(segment.start)} 到 {_clock(min(covered, segment.end))} 安排了不止一次"
            )
        covered = segment.end
    if covered < SLOTS:
        raise InvalidReply("gap", f"{_clock(covered)} 到 {_clock(SLOTS)} 没有安排")


def _segment(item: Any, which: str, places: Places, repairs: list[str]) -> _Segment:
    if type(item) is not dict:
        raise InvalidReply("no_day", f"{which}不是一个 JSON 对象")
    start = _time(item.get("start"), f"{which}的 start", repairs)
    end = _time(item.get("end"), f"{which}的 end", repairs)
    if end == 0 < start:
        repairs.append("midnight")
        end = SLOTS
    if start >= end:
        raise InvalidReply("bad_time", f"{which}的 end 没有比 start 至少晚半小时")
    intention = _intention(item.get("intention"), which, repairs)
    return _Segment(start, end, intention, _place(item.get("place"), which, places, repairs))


def _from_slots(listed: list[Any], places: Places, repairs: list[str]) -> list[tuple[int, int]]:
    if len(listed) != SLOTS:
        raise InvalidReply("wrong_length", f"slots 有 {len(listed)} 项，应当正好 {SLOTS} 项")
    return [_slot(item, f"第 {number} 项", places, repairs) for number, item in enumerate(listed, 1)]


def _slot(item: Any, which: str, places: Places, repairs: list[str]) -> tuple[int, int]:
    """An object with `intention` and `place`, or both as a pair."""
    if type(item) is list and len(item) == 2:
        item = {"intention": item[0], "place": item[1]}
    if type(item) is not dict:
        raise InvalidReply("no_day", f"{which}不是一个 JSON 对象")
    return _intention(item.get("intention"), which, repairs), _place(item.get("place"), which, places, repairs)


def _time(value: Any, which: str, repairs: list[str]) -> int:
    """Half hours since midnight, 0 to 48. A time between is rounded, a quarter of an hour upwards, and says so.

    An end and the start that follows it are rounded alike, so rounding opens no gap.
    """
    found = _TIME.fullmatch(value.strip()) if type(value) is str else None
    hours, minutes, seconds = (int(part or 0) for part in found.groups()) if found else (99, 0, 0)
    total = hours * 3600 + minutes * 60 + seconds
    if minutes > 59 or seconds > 59 or total > _DAY:
        raise InvalidReply("bad_time", f"{which} 是 {_shown(value)}，应当是 00:00 到 24:00 之间的整点或半点")
    if total % _HALF_HOUR:
        repairs.append("rounded_time")
    return (total + _HALF_HOUR // 2) // _HALF_HOUR


def _intention(value: Any, which: str, repairs: list[str]) -> int:
    number = _word(value, _WORDS, "intention_spelling", repairs) if type(value) is str else value
    if type(number) is not int or number not in INTENTIONS_ZH:
        raise InvalidReply("unknown_intention", f"{which}的 intention 是 {_shown(value)}，不在七种意图之内")
    return number


def _place(value: Any, which: str, places: Places, repairs: list[str]) -> int:
    aoi = value
    if type(value) is str:
        found = _ID.fullmatch(value.strip())
        if not found and (found := _ID_AND_NAME.fullmatch(value.strip())):
            repairs.append("place_spelling")
        aoi = int(found[1]) if found else _word(value, _PLACES, "place_spelling", repairs)
    if type(aoi) is str:
        return places.home if aoi == HOME else places.work
    if type(aoi) is not int or not (aoi in (places.home, places.work) or aoi in places.aois):
        raise InvalidReply(
            "unknown_place", f"{which}的 place 是 {_shown(value)}，既不是 home 或 work，也不是已有的 AOI 编号"
        )
    return aoi


def _word(value: str, words: dict[str, Any], repair: str, repairs: list[str]) -> Any:
    """What a word stands for; else what it does in plain spelling (lower case, blanks for `_`, `-`), which is told."""
    if value in words:
        return words[value]
    if (found := words.get(value.strip().casefold().replace("_", " ").replace("-", " "))) is not None:
        repairs.append(repair)
    return found


def _warnings(visited: set[int], places: Places) -> tuple[str, ...]:
    off = len(visited - places.candidates - {places.home, places.work})
    return (f"{OFF_CANDIDATE}: {off}",) if off else ()


def _clock(slot: int) -> str:
    return f"{slot // 2:02}:{slot % 2 * 30:02}"


def _shown(value: Any) -> str:
    """A value as the model may be told of it: short, and without half surrogate pairs, which no request can hold."""
    if value is None:
        return "空"
    if type(value) not in (str, int, float, bool):
        return "数组或对象"
    return "“" + str(value)[:_SHOWN].encode("utf-8", "replace").decode() + "”"
