"""What stands in a field where something else is expected."""

from __future__ import annotations

from typing import Any

import orjson

ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    0.5,
    2**63 - 1,
    "",
    "猫",
    [],
    [None],
    [[]],
    {},
    {"": None},
    ["a", 1],
)

RAW: tuple[bytes, ...] = (
    b"NaN",
    b"-Infinity",
    b"1e999",
    b"9" * 400,
    b"-99999999999999999999",
    b'"\\ud800"',
    b'"\xed\xa0\x80"',
    b'"\x00"',
    b"[" * 2000 + b"]" * 2000,
)
"""Values that no JSON library writes."""

MARK = "<here>"


def put(document: Any, path: str, value: Any) -> Any:
    """A copy of a document with one place set; names and numbers in `path` are joined by dots,
    `...` takes it out."""
    copy = orjson.loads(orjson.dumps(document))
    *above, last = (int(name) if name.isdigit() else name for name in path.split("."))
    holder = copy
    for name in above:
        holder = holder[name]
    if value is ...:
        del holder[last]
    else:
        holder[last] = value
    return copy


def put_raw(document: Any, path: str, value: bytes) -> bytes:
    """The bytes of a document with bytes in one place, whatever they are."""
    return orjson.dumps(put(document, path, MARK)).replace(f'"{MARK}"'.encode(), value)
