"""From the text of a completion to an answer, and what had to be done to get it (docs/design.md, sections 6 and 8).

Everything here is decided by the text alone, so that the same completion always gives the same answer.
A reading is either `Readable` or `Unreadable`; the second has the kind under which it is counted, and
whether asking again could help.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import json_repair
import orjson

from harness.model import Completion

FINAL_REASONS = {"length": "length", "content_filter": "content_filter", "context_length": "context_length"}
"""Finish reasons that make an invalid answer at once: never repaired, never asked again."""

_FENCE = re.compile(r"```[\w-]*[ \t]*\r?\n(.*?)```", re.DOTALL)
_THINKING = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)
_SEPARATORS = re.compile(r"\s*[,，、;；\n]\s*")
_TAG_NAMES = ("tag", "name", "label", "text")


@dataclass(frozen=True, slots=True)
class Readable:
    """`tags` are as the model gave them, in its order, the first of each; `repairs` names what was done."""

    persona: str
    tags: tuple[str, ...]
    reasoning: str
    repairs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Unreadable:
    """`why` is said to the model when it is asked again, in the prompt's language."""

    kind: str
    why: str
    final: bool = False


def read(completion: Completion, pool: tuple[str, ...]) -> Readable | Unreadable:
    """The answer that a completion holds. `pool` only tells a tag that has a comma in it from two tags."""
    if kind := FINAL_REASONS.get(completion.finish_reason or ""):
        return Unreadable(kind, "", final=True)
    if completion.refusal:
        return Unreadable("refusal", "没有给出回答")
    if not completion.text.strip():
        return Unreadable("empty", "回答是空的")
    repairs: list[str] = []
    data = _decode(completion.text, repairs)
    if data is None:
        return Unreadable("no_json", "回答里没有可用的 JSON")
    if type(data) is not dict:
        return Unreadable("not_object", "最外层不是一个 JSON 对象")
    tags = _tags(data.get("predicted_tags"), pool, repairs)
    if tags is None:
        return Unreadable("no_tags", "缺少 predicted_tags，或它不是字符串数组")
    persona = _text(data.get("persona_summary"), "persona_type", repairs)
    reasoning = _text(data.get("reasoning"), "reasoning_type", repairs)
    clean = tuple(_encodable(tag, repairs) for tag in tags)
    unique = tuple(dict.fromkeys(clean))
    if len(unique) < len(clean):
        repairs.append("duplicate_tags")
    return Readable(_encodable(persona, repairs), unique, _encodable(reasoning, repairs), tuple(dict.fromkeys(repairs)))


def _decode(text: str, repairs: list[str]) -> Any:
    """The JSON value in a text, by the mildest means that finds one; None where there is none."""
    stripped = text.strip()
    try:
        return orjson.loads(stripped)
    except ValueError:
        pass
    if thinking := _THINKING.match(stripped):
        repairs.append("thinking")
        stripped = stripped[thinking.end() :].strip()
    if fence := _FENCE.search(stripped):
        repairs.append("fence")
        stripped = fence[1].strip()
    start, end = stripped.find("{"), stripped.rfind("}")
    if start > 0 or (start == 0 and 0 < end < len(stripped) - 1):
        stripped = _without_prose(stripped, start, end, repairs)
    try:
        return orjson.loads(stripped)
    except ValueError:
        pass
    if "{" not in stripped and "[" not in stripped:
        return None
    repairs.append("syntax")
    try:
        data = json_repair.loads(stripped)
    except (ValueError, RecursionError):
        return None
    return None if data in ("", {}) else data


def _without_prose(text: str, start: int, end: int, repairs: list[str]) -> str:
    """The outermost braces, unless the text is an array: then the array is the answer, whatever it holds."""
    if text.startswith("["):
        return text
    repairs.append("prose")
    return text[start : end + 1] if end > start else text[start:]


def _tags(value: Any, pool: tuple[str, ...], repairs: list[str]) -> list[str] | None:
    if type(value) is str:
        repairs.append("tags_string")
        if value in pool:
            return [value]
        return [tag for tag in _SEPARATORS.split(value.strip()) if tag] or None
    if type(value) is not list:
        return None
    return [tag for item in value if (tag := _tag(item, repairs)) is not None]


def _tag(item: Any, repairs: list[str]) -> str | None:
    """A string as it is; a number as text; an object by the name in it; else nothing."""
    if type(item) is str:
        return item
    if type(item) in (int, float):
        repairs.append("tag_type")
        return str(item)
    if type(item) is dict:
        for name in _TAG_NAMES:
            if type(tag := item.get(name)) is str:
                repairs.append("tag_type")
                return str(tag)
    repairs.append("tag_dropped")
    return None


def _text(value: Any, repair: str, repairs: list[str]) -> str:
    if value is None:
        return ""
    if type(value) is str:
        return value
    repairs.append(repair)
    try:
        return orjson.dumps(value).decode()
    except (TypeError, ValueError):  # a number beyond 64 bits or half a surrogate pair inside
        return str(value)


def _encodable(text: str, repairs: list[str]) -> str:
    """Half surrogate pairs, which no UTF-8 file can hold, become U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        repairs.append("surrogate")
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
