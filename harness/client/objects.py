"""Objects in the decoded JSON of an endpoint, in which any member may have any type."""

from __future__ import annotations

from typing import Any


def object_of(value: object) -> dict[str, Any]:
    """Return a value that is an object; an empty one for any other."""
    return value if type(value) is dict else {}


def objects_of(value: object) -> list[dict[str, Any]]:
    """Return the objects in a value that is a list; none for any other."""
    if type(value) is not list:
        return []
    return [item for item in value if type(item) is dict]
