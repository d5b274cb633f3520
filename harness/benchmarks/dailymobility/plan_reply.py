"""From the text of a completion to a day of 48 half hours (docs/design.md, sections 6 and 9).

A model writes its day as `segments` with start and end, or as `slots`, 48 entries. The text and the
places decide everything, so the same completion always gives the same day. Nothing is filled in: a
day that leaves a half hour open, or claims one twice, is unreadable.
"""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from harness.benchmarks.dailymobility.day import INTENTIONS, NUMBERS, SLOTS, clock
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

_WORDS = (
    NUMBERS
    | {name: number for number, name in INTENTIONS_ZH.items()}
    | {str(n): n for n in INTENTIONS_ZH}
)
_PLACES = {HOME: HOME, "家": HOME, WORK: WORK, "工作地": WORK}
_TIME = re.compile(r"(\d{1,2})[:：](\d{2})(?:[:：](\d{2}))?")
_ID = re.compile(r"(?:AOI\s*)?(\d{1,18})", re.IGNORECASE)
_ID_AND_NAME = re.compile(r"(?:AOI\s*)?(\d{6,18})[\s(（,，:：].*", re.IGNORECASE | re.DOTALL)
"""As in the prompt's own lines: the id and behind it the name."""

_HALF_HOUR, _DAY = 1800, 24 * 3600
_SHOWN = 40
"""Characters of a wrong value that the model gets to see."""

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
class Reading:
    """48 numbers of intentions and 48 AOI ids. `warnings` has `off_candidate: N` where N places
    were not offered."""

    intentions: tuple[int, ...]
    places: tuple[int, ...]
    repairs: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def schema(places: Places) -> JSON:
    """Return the JSON schema of a day in segments, each at a place that was offered.

    That segments follow one another without a gap cannot be said.
    """
    times = [clock(slot) for slot in range(SLOTS + 1)]
    offered = [HOME, WORK, *map(str, sorted(places.candidates))]
    values = {
        "start": times[:-1],
        "end": times[1:],
        "intention": list(INTENTIONS.values()),
        "place": offered,
    }
    segment = strict_object(
        **{name: {"type": "string", "enum": allowed} for name, allowed in values.items()}
    )
    return strict_object(
        segments={"type": "array", "items": segment, "minItems": 1, "maxItems": SLOTS}
    )


def read(completion: Completion, places: Places) -> Reading:
    """Return the day in a completion.

    Raise `InvalidReply` of one of the kinds `refusal`, `empty`, `no_json`, `not_object`, `no_day`,
    `wrong_length`, `bad_time`, `gap`, `overlap`, `unknown_intention`, `unknown_place`, or a final
    one that endpoints report: `length`, `only_thinking`, `content_filter`, `context_length`.
    """
    reader = _Reader(places)
    intentions, aois = zip(*reader.day(json_object(completion, reader.repairs)), strict=True)
    off = len({*aois} - places.candidates - {places.home, places.work})
    return Reading(
        intentions,
        aois,
        tuple(dict.fromkeys(reader.repairs)),
        (f"{OFF_CANDIDATE}: {off}",) if off else (),
    )


class _Reader:
    """Reads one reply. A slot is an intention and a place; `which` names a part of the reply for
    the model."""

    def __init__(self, places: Places) -> None:
        self.repairs: list[str] = []
        self._places = places

    def day(self, data: dict[str, Any]) -> list[_Slot]:
        """Return the 48 slots."""
        for name, read_listed in (("segments", self._from_segments), ("slots", self._from_slots)):
            if type(listed := data.get(name)) is list and listed:
                return read_listed(listed)
        raise InvalidReply("no_day", "缺少 segments，或它不是一个非空数组")

    def _from_slots(self, listed: list[Any]) -> list[_Slot]:
        """Read objects with `intention` and `place`, or both as a pair."""
        if len(listed) != SLOTS:
            raise InvalidReply("wrong_length", f"slots 有 {len(listed)} 项，应当正好 {SLOTS} 项")
        slots = []
        for number, item in enumerate(listed, 1):
            is_pair = type(item) is list and len(item) == 2
            slots.append(
                self._slot(
                    {"intention": item[0], "place": item[1]} if is_pair else item, f"第 {number} 项"
                )
            )
        return slots

    def _from_segments(self, listed: list[Any]) -> list[_Slot]:
        if len(listed) > SLOTS:  # of half an hour at least each
            raise InvalidReply("overlap", f"segments 有 {len(listed)} 段，一天至多 {SLOTS} 段")
        segments = [self._segment(item, f"第 {number} 段") for number, item in enumerate(listed, 1)]
        ordered = sorted(segments, key=itemgetter(0))
        if ordered != segments:
            self.repairs.append("order")
        covered = 0
        for start, end, _ in ordered:
            if start > covered:
                raise InvalidReply("gap", f"{clock(covered)} 到 {clock(start)} 没有安排")
            if start < covered:
                raise InvalidReply(
                    "overlap", f"{clock(start)} 到 {clock(min(covered, end))} 安排了不止一次"
                )
            covered = end
        if covered < SLOTS:
            raise InvalidReply("gap", f"{clock(covered)} 到 {clock(SLOTS)} 没有安排")
        return [slot for start, end, slot in ordered for _ in range(start, end)]

    def _segment(self, item: object, which: str) -> tuple[int, int, _Slot]:
        """Return the half hours from start up to end, counted from midnight, and the slot of
        each."""
        if type(item) is not dict:
            raise InvalidReply("no_day", f"{which}不是一个 JSON 对象")
        start, end = (
            self._time(item.get("start"), f"{which}的 start"),
            self._time(item.get("end"), f"{which}的 end"),
        )
        if end == 0 < start:
            self.repairs.append("midnight")
            end = SLOTS
        if start >= end:
            raise InvalidReply("bad_time", f"{which}的 end 没有比 start 至少晚半小时")
        return start, end, self._slot(item, which)

    def _time(self, value: object, which: str) -> int:
        """Return half hours since midnight, 0 to 48. Round a time between, a quarter of an hour
        upwards: a repair.

        An end and the start that follows it are rounded alike, so rounding opens no gap.
        """
        found = _TIME.fullmatch(value.strip()) if type(value) is str else None
        hours, minutes, seconds = (
            (int(part or 0) for part in found.groups()) if found else (99, 0, 0)
        )
        total = hours * 3600 + minutes * 60 + seconds
        if minutes > 59 or seconds > 59 or total > _DAY:
            raise InvalidReply(
                "bad_time", f"{which} 是 {_shown(value)}，应当是 00:00 到 24:00 之间的整点或半点"
            )
        if total % _HALF_HOUR:
            self.repairs.append("rounded_time")
        return (total + _HALF_HOUR // 2) // _HALF_HOUR

    def _slot(self, item: object, which: str) -> _Slot:
        if type(item) is not dict:
            raise InvalidReply("no_day", f"{which}不是一个 JSON 对象")
        given = item.get("intention")
        number = self._word(given, _WORDS, "intention_spelling") if type(given) is str else given
        if type(number) is not int or number not in INTENTIONS_ZH:
            raise InvalidReply(
                "unknown_intention", f"{which}的 intention 是 {_shown(given)}，不在七种意图之内"
            )
        return number, self._place(item.get("place"), which)

    def _place(self, value: object, which: str) -> int:
        aoi, places = value, self._places
        if type(value) is str:
            found = _ID.fullmatch(value.strip())
            if not found and (found := _ID_AND_NAME.fullmatch(value.strip())):
                self.repairs.append("place_spelling")
            aoi = int(found[1]) if found else self._word(value, _PLACES, "place_spelling")
        if type(aoi) is str:
            return places.home if aoi == HOME else places.work
        if type(aoi) is not int or not (aoi in (places.home, places.work) or aoi in places.aois):
            known = "既不是 home 或 work，也不是已有的 AOI 编号"
            raise InvalidReply("unknown_place", f"{which}的 place 是 {_shown(value)}，{known}")
        return aoi

    def _word(self, value: str, words: dict[str, Any], repair: str) -> Any:
        """Look up a word; else, as a repair, in plain spelling: in lower case, with blanks for `_`
        and `-`."""
        if value in words:
            return words[value]
        if (
            found := words.get(value.strip().casefold().replace("_", " ").replace("-", " "))
        ) is not None:
            self.repairs.append(repair)
        return found


def _shown(value: object) -> str:
    """Return a value for the model: short, and without half surrogate pairs, which no request can
    hold."""
    if value is None:
        return "空"
    if type(value) not in (str, int, float, bool):
        return "数组或对象"
    return "“" + str(value)[:_SHOWN].encode("utf-8", "replace").decode() + "”"
