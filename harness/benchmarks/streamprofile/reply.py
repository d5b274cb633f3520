"""Read the answer in a completion, and record the repairs that it needed (docs/design.md, sections
6 and 8).

Only the text decides, so that the same completion always gives the same answer.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import orjson
from msgspec import Struct

from harness.benchmark import VALID
from harness.benchmarks.parsing import json_object, strict_object
from harness.benchmarks.tasks import is_text
from harness.errors import InvalidReply
from harness.model import JSON, Completion

_SEPARATORS = re.compile(r"[,，、;；\n]")
_TAG_NAMES = ("tag", "name", "label", "text")


class StepAnswer(Struct, frozen=True):
    """The answer of a step: `tags` are in the model's order, without repeats; `repairs` are the
    kinds of repairs.

    `outcome` is `valid` or the kind of an invalid answer, which has no tags. `persona` goes into
    the next step: the new summary, or the previous one where there was none.
    """

    persona: str
    tags: tuple[str, ...]
    reasoning: str
    repairs: tuple[str, ...] = ()
    outcome: str = VALID


def schema(pool: tuple[str, ...], asked: int) -> JSON:
    """Return the JSON schema of an answer: `asked` tags, each exactly as in the pool.

    That they differ cannot be said: strict dialects have no `uniqueItems`. Repeated tags are
    dropped when read.
    """
    tag: JSON = {"type": "string"}
    if pool:
        tag["enum"] = list(dict.fromkeys(pool))

    return strict_object(
        persona_summary={"type": "string"},
        predicted_tags={
            "type": "array",
            "items": tag,
            "minItems": asked,
            "maxItems": asked,
        },
        reasoning={"type": "string"},
    )


def read(completion: Completion, pool: tuple[str, ...]) -> StepAnswer:
    """Return the answer in a completion. Raise `InvalidReply`. `pool` only shows which tags have a
    comma in them."""
    repairs: list[str] = []
    data = json_object(completion, repairs)
    tags = _tags(data.get("predicted_tags"), pool, repairs)
    if tags is None:
        raise InvalidReply("no_tags", "缺少 predicted_tags，或它不是字符串数组")

    persona = _text(data.get("persona_summary"), "persona_type", repairs)
    reasoning = _text(data.get("reasoning"), "reasoning_type", repairs)
    # What orjson reads can be written again. Repaired JSON may have half surrogate pairs.
    if "syntax" in repairs:
        persona = _encodable(persona, repairs)
        reasoning = _encodable(reasoning, repairs)
        tags = [_encodable(tag, repairs) for tag in tags]

    # Metrics use sets: a repeated tag must not count twice in Precision.
    unique = tuple(dict.fromkeys(tags))
    if len(unique) < len(tags):
        repairs.append("duplicate_tags")

    return StepAnswer(persona, unique, reasoning, tuple(dict.fromkeys(repairs)))


def _tags(value: object, pool: tuple[str, ...], repairs: list[str]) -> list[str] | None:
    """Return the tags of a field, None if it has no usable ones; an empty list is an answer.

    One string is a tag of the pool, an array written out, or names with separators.
    """
    if type(value) is str:
        repairs.append("tags_string")
        value = _split_tags(value, pool) or None

    if type(value) is not list:
        return None

    tags: list[str] = []
    for item in value:
        if type(item) is str:
            tags.append(item)
            continue

        names = _names(item)
        tags += names
        repairs.append("tag_type" if names else "tag_dropped")

    # A list of things that are no tags is no answer; an empty list is one.
    if value and not tags:
        return None

    return tags


def _split_tags(text: str, pool: tuple[str, ...]) -> list[Any]:
    if text in pool:
        return [text]

    with suppress(ValueError):
        data = orjson.loads(text)
        if type(data) is list:
            return data

    return [*filter(None, map(str.strip, _SEPARATORS.split(text)))]


def _names(item: object) -> list[str]:
    """Return a number as text, or an object's name, as a list; empty for anything else."""
    if type(item) in (int, float):
        return [str(item)]
    if type(item) is dict:
        for name in _TAG_NAMES:
            if type(item.get(name)) is str:
                return [item[name]]
    return []


def _text(value: object, repair: str, repairs: list[str]) -> str:
    """Return a string as it is, else its JSON; nothing if that cannot be written (too deep, half a
    surrogate pair)."""
    if value is None:
        return ""

    if isinstance(value, str):
        return value

    repairs.append(repair)
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return ""


def _encodable(text: str, repairs: list[str]) -> str:
    """Return a text that UTF-8 can hold: halves of surrogate pairs become U+FFFD."""
    if is_text(text):
        return text
    repairs.append("surrogate")
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
