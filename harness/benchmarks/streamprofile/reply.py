"""From the text of a completion to an answer, and what had to be done to get it (docs/design.md, sections 6 and 8).

Everything here is decided by the text alone, so that the same completion always gives the same answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import orjson

from harness.benchmarks.parsing import json_object
from harness.errors import InvalidReply
from harness.model import Completion

STRINGS = frozenset({str})
_SEPARATORS = re.compile(r"[,，、;；\n]")
_TAG_NAMES = ("tag", "name", "label", "text")


@dataclass(frozen=True, slots=True)
class Reading:
    """`tags` are as the model gave them, in its order, the first of each; `repairs` names what was done."""

    persona: str
    tags: tuple[str, ...]
    reasoning: str
    repairs: tuple[str, ...] = ()


def read(completion: Completion, pool: tuple[str, ...]) -> Reading:
    """Return the answer in a completion. `pool` only tells a tag that has a comma in it from two tags.

    Raise `InvalidReply`.
    """
    repairs: list[str] = []
    data = json_object(completion, repairs)
    tags = _tags(data.get("predicted_tags"), pool, repairs)
    if tags is None:
        raise InvalidReply("no_tags", "缺少 predicted_tags，或它不是字符串数组")
    persona = _text(data.get("persona_summary"), "persona_type", repairs)
    reasoning = _text(data.get("reasoning"), "reasoning_type", repairs)
    if "syntax" in repairs:  # what orjson reads can be written again, what is repaired perhaps not
        tags = [_encodable(tag, repairs) for tag in tags]
        persona, reasoning = _encodable(persona, repairs), _encodable(reasoning, repairs)
    unique = tuple(dict.fromkeys(tags))
    if len(unique) < len(tags):
        repairs.append("duplicate_tags")
    return Reading(persona, unique, reasoning, tuple(dict.fromkeys(repairs)))


def _tags(value: Any, pool: tuple[str, ...], repairs: list[str]) -> list[str] | None:
    """None where there are no tags to speak of; a list that is empty to begin with is an answer."""
    if type(value) is str:
        repairs.append("tags_string")
        value = _listed(value, pool) or None
    if type(value) is not list:
        return None
    if STRINGS.issuperset(map(type, value)):
        return value
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
