"""JSON schemas of requests: which ones OpenAI refuses.

Source: https://platform.openai.com/docs/guides/structured-outputs, supported schemas.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

KEYWORDS = {
    "type",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "enum",
    "const",
    "anyOf",
}
KEYWORDS |= {"$ref", "$defs", "title", "description", "pattern", "format", "minItems", "maxItems"}
KEYWORDS |= {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
"""What a strict schema may have."""
MOST_VALUES = 1_000
LONG_ENUM, MOST_CHARACTERS = 250, 15_000
"""An enum of more values than the first may have so many characters in all."""


def complaint(schema: Any) -> str | None:
    """Return why OpenAI refuses a strict schema, None if it is well formed."""
    if not isinstance(schema, dict) or schema.get("type") != "object" or "anyOf" in schema:
        return "schema must be a JSON Schema of 'type: \"object\"'"
    values = 0
    for place, part in _parts(schema, ()):
        if words := _wrong(part):
            return f"In context={place}, {words}"
        values += len(part.get("enum", ()))
    if values > MOST_VALUES:
        return (
            f"Expected at most {MOST_VALUES} enum values in total within a schema, but got {values}"
        )
    return None


def _parts(schema: Any, place: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield a schema and those within it, each with its place."""
    yield place, schema
    if isinstance(schema, dict):
        for name in ("properties", "$defs"):
            for key, part in schema[name].items() if isinstance(schema.get(name), dict) else ():
                yield from _parts(part, (*place, name, key))
        for part in schema["anyOf"] if isinstance(schema.get("anyOf"), list) else ():
            yield from _parts(part, (*place, "anyOf"))
        if "items" in schema:
            yield from _parts(schema["items"], (*place, "items"))


def _wrong(part: Any) -> str | None:
    if not isinstance(part, dict):
        return "expected an object"
    if unknown := part.keys() - KEYWORDS:
        return f"'{min(unknown)}' is not permitted"
    if part.get("type") == "object":
        if part.get("additionalProperties") is not False:
            return "'additionalProperties' is required to be supplied and to be false"
        if sorted(map(str, part.get("required") or ())) != sorted(part.get("properties") or ()):
            return (
                "'required' is required to be supplied and to be an array including every key in"
                " properties"
            )
    if part.get("type") == "array" and "items" not in part:
        return "array schema missing items"
    return _wrong_enum(part["enum"]) if "enum" in part else None


def _wrong_enum(values: Any) -> str | None:
    if not (isinstance(values, list) and values):
        return "'enum' is required to have at least one value"
    if len({orjson.dumps(value) for value in values}) < len(values):
        return "'enum' has a value twice"
    characters = sum(len(value) for value in values if isinstance(value, str))
    if len(values) > LONG_ENUM and characters > MOST_CHARACTERS:
        return (
            f"the enum values have {characters} characters, at most {MOST_CHARACTERS} are allowed"
        )
    return None
