"""Read the answer in a completion, and record the repairs that it needed (docs/design.md, sections
6 and 8).

Only the text decides, so that the same completion always gives the same answer.
"""

from __future__ import annotations

import re

import orjson
from msgspec import Struct

from harness.benchmark import VALID
from harness.benchmarks.parsing import json_object, strict_object
from harness.benchmarks.tasks import is_text
from harness.errors import InvalidReply
from harness.model import JSON, Completion

_SEPARATORS = re.compile(r"[,，、;；\n]")
_TAG_NAMES = ("tag", "name", "label", "text")


class Reading(Struct, frozen=True):
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
    tag = {"type": "string"} | ({"enum": list(dict.fromkeys(pool))} if pool else {})
    return strict_object(
        persona_summary={"type": "string"},
        predicted_tags={"type": "array", "items": tag, "minItems": asked, "maxItems": asked},
        reasoning={"type": "string"},
    )


def read(completion: Completion, pool: tuple[str, ...]) -> Reading:
    """Return the answer in a completion. Raise `InvalidReply`. `pool` only shows which tags have a
    comma in them."""
    repairs: list[str] = []
    data = json_object(completion, repairs)
    tags = _tags(data.get("predicted_tags"), pool, repairs)
    if tags is None:
        raise InvalidReply("no_tags", "缺少 predicted_tags，或它不是字符串数组")
    persona = _text(data.get("persona_summary"), "persona_type", repairs)
    reasoning = _text(data.get("reasoning"), "reasoning_type", repairs)
    if "syntax" in repairs:  # what orjson reads can be written again, what is repaired perhaps not
        persona, reasoning, *tags = (
            _encodable(text, repairs) for text in (persona, reasoning, *tags)
        )
    unique = tuple(dict.fromkeys(tags))
    if len(unique) < len(tags):
        repairs.append("duplicate_tags")
    return Reading(persona, unique, reasoning, tuple(dict.fromkeys(repairs)))


def _tags(value: object, pool: tuple[str, ...], repairs: list[str]) -> list[str] | None:
    """Return the tags of a field, None if it has no usable ones; an empty list is an answer.

    One string is a tag of the pool, an array written out, or names with separators.
    """
    if type(value) is str:
        repairs.append("tags_string")
        try:
            data = [value] if value in pool else orjson.loads(value)
        except ValueError:
            data = None
        listed = (
            data
            if type(data) is list
            else [tag for part in _SEPARATORS.split(value) if (tag := part.strip())]
        )
        value = listed or None
    if type(value) is not list:
        return None
    tags = [tag for item in value if (tag := _tag(item, repairs)) is not None]
    return tags if tags or not value else None


def _tag(item: object, repairs: list[str]) -> str | None:
    """Return a string as it is, a number as text, an object's name; None for anything else."""
    if type(item) is str:
        return item
    texts = (
        [item[name] for name in _TAG_NAMES if type(item.get(name)) is str]
        if type(item) is dict
        else []
    )
    texts += [str(item)] if type(item) in (int, float) else []
    repairs.append("tag_type" if texts else "tag_dropped")
    return texts[0] if texts else None


def _text(value: object, repair: str, repairs: list[str]) -> str:
    """Return a string as it is, else its JSON; nothing if that cannot be written (too deep, half a
    surrogate pair)."""
    if value is None or type(value) is str:
        return value or ""
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
