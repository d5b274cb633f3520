"""Mutations of JSON that stay JSON, so that a fuzzer gets past the decoder and to the checks behind
it.

What stands behind a ` = ` counts too: the values of TOML are all but JSON's.
"""

from __future__ import annotations

import json
from copy import deepcopy
from random import Random
from typing import Any

ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 7, 2**31, 2**63, 2**64, -(2**63) - 1, 10**400, 0.5, -0.0, 1e308,
    float("nan"), float("inf"), "", "0", "NaN", "\x00", "\n", "../x", "\ud800", "猫",
    "a" * 300, [], [[]], {}, [None], {"": None}, [0] * 60, ["猫", "猫"], "{", "24:00", "home",
)  # fmt: skip
"""Values that stand where others are expected."""

EQUALS = b" = "

DEPTHS = (2, 60, 300)
"""How deep a value is wrapped; the last is more than what orjson writes."""


def mutated(data: bytes, rng: Random) -> bytes | None:
    """One JSON document, or one of several lines, with one to three changes; None where that is no
    JSON."""
    lines = data.split(b"\n")
    at = rng.randrange(len(lines))
    name, equals, told = (
        lines[at].partition(EQUALS) if lines[at][:1].isalpha() else (b"", b"", lines[at])
    )
    try:
        value = json.loads(told.replace(b'" = ', b'": ') if equals else told)
    except (ValueError, RecursionError):
        return None
    try:
        for _ in range(rng.randint(1, 3)):
            value = _changed(value, rng)
        separators = (", ", " = ") if equals else (", ", ": ")
        text = json.dumps(value, ensure_ascii=rng.random() < 0.3, separators=separators)
    except (ValueError, RecursionError):
        return None
    lines[at] = name + equals + text.encode("utf-8", "surrogatepass")
    return b"\n".join(lines)


def _changed(value: Any, rng: Random) -> Any:
    """Return the value with one place in it changed."""
    places = _places(value)
    if not places or rng.random() < 0.03:
        return _wrapped(value, rng)
    holder, name = rng.choice(places)
    match rng.randrange(6):
        case 0:
            del holder[name]
        case 1:
            holder[name] = _wrapped(holder[name], rng)
        case 2:
            other, there = rng.choice(places)
            holder[name] = deepcopy(other[there])
        case 3 if type(holder) is list:
            holder.insert(name, deepcopy(holder[name]))
        case 3:
            holder[rng.choice(("", "x", name + "_", name[:-1]))] = holder.pop(name)
        case _:
            holder[name] = deepcopy(rng.choice(ODD))
    return value


def _wrapped(value: Any, rng: Random) -> Any:
    for _ in range(rng.choice(DEPTHS)):
        value = [value] if rng.random() < 0.5 else {"a": value}
    return value


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every place in a value, as its holder and the name or number there."""
    found, left = [], [value]
    while left:
        holder = left.pop()
        if type(holder) is dict or type(holder) is list:
            for name in list(holder) if type(holder) is dict else range(len(holder)):
                found.append((holder, name))
                left.append(holder[name])
    return found
