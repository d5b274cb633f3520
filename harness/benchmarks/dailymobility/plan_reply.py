"""Read a day of 48 half hours in the text of a completion (docs/design.md, sections 6 and 9).

A model writes its day as `segments` with start and end, or as `slots`, 48 entries. The text and the
places decide everything, so the same completion always gives the same day. Nothing is filled in: a
day that leaves a half hour open, or claims one twice, is unreadable.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from harness.benchmarks.dailymobility.day import (
    INTENTIONS,
    NUMBERS,
    SLOTS,
    clock,
)
from harness.benchmarks.parsing import json_object, strict_object
from harness.errors import InvalidReply
from harness.model import JSON, Completion

INTENTIONS_ZH = {
    1: "睡眠",
    2: "居家活动",
    3: "其他",
    4: "工作",
    5: "购物",
    6: "外出就餐",
    7: "休闲娱乐",
}
"""The prompt's second names of the intentions; a reply may use either, or the number."""

HOME, WORK = "home", "work"
OFF_CANDIDATE = "off_candidate"

_INTENTION_NUMBERS = NUMBERS | dict(zip(INTENTIONS_ZH.values(), INTENTIONS_ZH.keys(), strict=True))
_INTENTION_NUMBERS |= {str(number): number for number in INTENTIONS_ZH}
_PLACES = {HOME: HOME, "家": HOME, WORK: WORK, "工作地": WORK}
_TIME = re.compile(r"(\d{1,2})[:：](\d{2})(?:[:：](\d{2}))?")
_ID = re.compile(r"(?:AOI\s*)?(\d{1,18})", re.IGNORECASE)
_ID_AND_NAME = re.compile(r"(?:AOI\s*)?(\d{6,18})[\s(（,，:：].*", re.IGNORECASE | re.DOTALL)
"""As in the prompt's own lines: the id and behind it the name."""

_HALF_HOUR = 1800
_DAY = 24 * 3600
"""In seconds."""
_SHOWN_CHARACTERS = 40
"""Of a wrong value that the model gets to see."""

_Slot = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Places:
    """AOIs that a resident can go to: any of `aois`; the prompt offered `candidates`, `home` and
    `work`."""

    home: int
    work: int
    candidates: frozenset[int]
    aois: Container[int]


@dataclass(frozen=True, slots=True)
class PlannedDay:
    """48 numbers of intentions and 48 AOI ids. `warnings` has `off_candidate: N` where N places
    were not offered."""

    intentions: tuple[int, ...]
    places: tuple[int, ...]
    repairs: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def schema(places: Places) -> JSON:
    """Return the JSON schema of a day in segments, each at a place that was offered.

    A schema cannot demand that segments follow one another without a gap.
    """
    times = [*map(clock, range(SLOTS + 1))]
    segment = strict_object(
        start=_one_of(times[:-1]),
        end=_one_of(times[1:]),
        intention=_one_of(INTENTIONS.values()),
        place=_one_of([HOME, WORK, *map(str, sorted(places.candidates))]),
    )
    return strict_object(
        segments={
            "type": "array",
            "items": segment,
            "minItems": 1,
            "maxItems": SLOTS,
        }
    )


def _one_of(values: Iterable[str]) -> JSON:
    return {"type": "string", "enum": [*values]}


def read(completion: Completion, places: Places) -> PlannedDay:
    """Return the day in a completion.

    Raise `InvalidReply` of one of the kinds `refusal`, `empty`, `no_json`, `not_object`, `no_day`,
    `wrong_length`, `bad_time`, `gap`, `overlap`, `unknown_intention`, `unknown_place`, or a final
    one that endpoints report: `length`, `only_thinking`, `content_filter`, `context_length`.
    """
    reader = _Reader(places)
    slots = reader.day(json_object(completion, reader.repairs))
    intentions, aois = zip(*slots, strict=True)
    not_offered = len({*aois} - places.candidates - {places.home, places.work})
    warnings: tuple[str, ...] = ()
    if not_offered:
        warnings = (f"{OFF_CANDIDATE}: {not_offered}",)

    return PlannedDay(intentions, aois, tuple(dict.fromkeys(reader.repairs)), warnings)


class _Reader:
    """Reads one reply. A slot is an intention and a place; `item_name` names a segment or slot for
    the model."""

    def __init__(self, places: Places) -> None:
        self.repairs: list[str] = []
        self._places = places

    def day(self, data: dict[str, Any]) -> list[_Slot]:
        """Return the 48 slots."""
        for name, read_items in (
            ("segments", self._from_segments),
            ("slots", self._from_slots),
        ):
            items = data.get(name)
            if type(items) is list and items:
                return read_items(items)

        # The model reads this text in the next request, so it is in the language of the prompt.
        raise InvalidReply("no_day", "缺少 segments，或它不是一个非空数组")

    def _from_slots(self, items: list[Any]) -> list[_Slot]:
        """Read objects with `intention` and `place`, or both as a pair."""
        if len(items) != SLOTS:
            raise InvalidReply("wrong_length", f"slots 有 {len(items)} 项，应当正好 {SLOTS} 项")

        slots = []
        for number, item in enumerate(items, 1):
            if type(item) is list and len(item) == 2:
                item = {"intention": item[0], "place": item[1]}

            slots.append(self._slot(item, f"第 {number} 项"))

        return slots

    def _from_segments(self, items: list[Any]) -> list[_Slot]:
        # A segment is half an hour long at least.
        if len(items) > SLOTS:
            raise InvalidReply("overlap", f"segments 有 {len(items)} 段，一天至多 {SLOTS} 段")

        segments = [self._segment(item, f"第 {number} 段") for number, item in enumerate(items, 1)]
        ordered = sorted(segments, key=itemgetter(0))
        if ordered != segments:
            self.repairs.append("order")

        slots: list[_Slot] = []
        for start, end, slot in ordered:
            covered = len(slots)
            if start > covered:
                raise InvalidReply("gap", f"{clock(covered)} 到 {clock(start)} 没有安排")

            if start < covered:
                raise InvalidReply(
                    "overlap",
                    f"{clock(start)} 到 {clock(min(covered, end))} 安排了不止一次",
                )

            slots += [slot] * (end - start)

        if len(slots) < SLOTS:
            raise InvalidReply("gap", f"{clock(len(slots))} 到 {clock(SLOTS)} 没有安排")

        return slots

    def _segment(self, item: object, item_name: str) -> tuple[int, int, _Slot]:
        """Return the half hours from start up to end, counted from midnight, and the slot of
        each."""
        if type(item) is not dict:
            raise InvalidReply("no_day", f"{item_name}不是一个 JSON 对象")

        start = self._time(item.get("start"), f"{item_name}的 start")
        end = self._time(item.get("end"), f"{item_name}的 end")
        # A model may write the end of the day as 00:00.
        if end == 0 < start:
            self.repairs.append("midnight")
            end = SLOTS

        if start >= end:
            raise InvalidReply("bad_time", f"{item_name}的 end 没有比 start 至少晚半小时")

        return start, end, self._slot(item, item_name)

    def _time(self, value: object, field: str) -> int:
        """Return half hours since midnight, 0 to 48. Round a time between, a quarter of an hour
        upwards: a repair.

        An end and the start that follows it are rounded alike, so rounding opens no gap.
        """
        seconds = _seconds(value)
        if seconds is None:
            raise InvalidReply(
                "bad_time",
                f"{field} 是 {_shown(value)}，应当是 00:00 到 24:00 之间的整点或半点",
            )

        if seconds % _HALF_HOUR:
            self.repairs.append("rounded_time")

        return (seconds + _HALF_HOUR // 2) // _HALF_HOUR

    def _slot(self, item: object, item_name: str) -> _Slot:
        if type(item) is not dict:
            raise InvalidReply("no_day", f"{item_name}不是一个 JSON 对象")

        value = item.get("intention")
        intention = value
        if type(value) is str:
            intention = self._look_up(value, _INTENTION_NUMBERS, "intention_spelling")

        # By its exact type: `true` is an int in Python, and would be the intention 1.
        if type(intention) is not int or intention not in INTENTIONS_ZH:
            raise InvalidReply(
                "unknown_intention",
                f"{item_name}的 intention 是 {_shown(value)}，不在七种意图之内",
            )

        return intention, self._place(item.get("place"), item_name)

    def _place(self, value: object, item_name: str) -> int:
        places = self._places
        aoi = value
        if type(value) is str:
            aoi = self._named_place(value)

        if aoi == HOME:
            return places.home

        if aoi == WORK:
            return places.work

        if type(aoi) is int and (aoi in (places.home, places.work) or aoi in places.aois):
            return aoi

        known = "既不是 home 或 work，也不是已有的 AOI 编号"
        raise InvalidReply("unknown_place", f"{item_name}的 place 是 {_shown(value)}，{known}")

    def _named_place(self, text: str) -> Any:
        aoi = _ID.fullmatch(text.strip())
        if aoi:
            return int(aoi[1])

        aoi = _ID_AND_NAME.fullmatch(text.strip())
        if aoi:
            self.repairs.append("place_spelling")
            return int(aoi[1])

        return self._look_up(text, _PLACES, "place_spelling")

    def _look_up(self, name: str, values: dict[str, Any], repair: str) -> Any:
        """Look up a name; else, as a repair, in plain spelling: in lower case, with blanks for `_`
        and `-`."""
        if name in values:
            return values[name]
        value = values.get(name.strip().casefold().replace("_", " ").replace("-", " "))
        if value is not None:
            self.repairs.append(repair)
        return value


def _seconds(value: object) -> int | None:
    """Return seconds since midnight, at most a day; None if a value is no such time."""
    time = None
    if type(value) is str:
        time = _TIME.fullmatch(value.strip())

    if time is None:
        return None

    hours, minutes, seconds = map(int, time.groups("0"))
    total = hours * 3600 + minutes * 60 + seconds
    if minutes > 59 or seconds > 59 or total > _DAY:
        return None

    return total


def _shown(value: object) -> str:
    """Return a value for the model: short, and without half surrogate pairs, which no request can
    hold."""
    if value is None:
        return "空"
    if type(value) not in (str, int, float, bool):
        return "数组或对象"
    return "“" + str(value)[:_SHOWN_CHARACTERS].encode("utf-8", "replace").decode() + "”"
