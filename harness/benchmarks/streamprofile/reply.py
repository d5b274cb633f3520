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
_THINKING = re.compile(r"(?![{\[`]).*?</think>", re.DOTALL)
"""Some servers hand out the end of the thoughts without their beginning, which stood in the prompt."""

_OBJECT = re.compile(r'\{\s*"')
_SEPARATORS = re.compile(r"[,，、;；\n]")
_TAG_NAMES = ("tag", "name", "label", "text")
_MOST_OPENERS = 64
_MOST_WORK = 3_000_000
"""Bounds of what is repaired. Repair recurses with every opener, and its time grows with length times marks: without
bounds, a reply of 30 KB that repeats itself holds up everybody else for minutes, and one that is deep is read or not
depending on who calls."""


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
        bare = _unwrapped(stripped, repairs)
    start, end = _span(bare)
    if (start, end) != (0, len(bare)):
        repairs.append("prose")
    try:
        return orjson.loads(bare[start:end])
    except ValueError:
        pass
    cut_off = '"' in bare[end:]  # what follows the last brace is no prose, but the rest of an object that has no end
    return _repaired(bare[start:] if cut_off else bare[start:end], repairs)


def _unwrapped(text: str, repairs: list[str]) -> str:
    """A text without the thoughts before it, and out of the first fence that holds an object."""
    if thinking := _THINKING.match(text):
        repairs.append("thinking")
        text = text[thinking.end() :].strip()
    fence = next((found for found in _FENCE.finditer(text) if "{" in found[1]), None)
    if fence is None:
        return text
    repairs.append("fence")
    return fence[1].strip()


def _span(text: str) -> tuple[int, int]:
    """Where the outermost braces stand. An array is the answer, whatever it holds."""
    if text.startswith("["):
        return 0, len(text)
    opened = None if text.startswith("{") else _OBJECT.search(text)
    start = opened.start() if opened else max(0, text.find("{"))
    end = text.rfind("}") + 1
    return start, end if end > start else len(text)


def _repaired(text: str, repairs: list[str]) -> Any:
    openers = sum(map(text.count, "{[("))
    work = len(text) * (openers + text.count('"') + 20)
    if not ("{" in text or "[" in text) or openers > _MOST_OPENERS or work > _MOST_WORK:
        return None
    repairs.append("syntax")
    try:
        data = json_repair.loads(text)
    except (ValueError, RecursionError):
        return None
    return None if data in ("", {}) else data


def _tags(value: Any, pool: tuple[str, ...], repairs: list[str]) -> list[str] | None:
    """None where there are no tags to speak of; a list that is empty to begin with is an answer."""
    if type(value) is str:
        repairs.append("tags_string")
        value = _listed(value, pool) or None
    if type(value) is not list:
        return None
    tags = [tag for item in value if (tag := _tag(item, repairs)) is not None]
    return tags if tags or not value else None


def _listed(text: str, pool: tuple[str, ...]) -> list[Any]:
    """The tags in one string: a tag of the pool, an array written out, or names with separators."""
    if text in pool:
        return [text]
    try:
        data = orjson.loads(text)
    except ValueError:
        data = None
    return data if type(data) is list else [tag for part in _SEPARATORS.split(text) if (tag := part.strip())]


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
    """A string as it is; else its JSON; nothing where that cannot be written (too deep, or half a surrogate pair)."""
    if value is None:
        return ""
    if type(value) is str:
        return value
    repairs.append(repair)
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return ""


def _encodable(text: str, repairs: list[str]) -> str:
    """Half surrogate pairs, which no UTF-8 file can hold, become U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        repairs.append("surrogate")
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
