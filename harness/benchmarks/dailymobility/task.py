"""One entry of `profiles.json` as a validated resident. Source: docs/design.md, section 9."""

from __future__ import annotations

from typing import Any

import orjson

from harness.benchmarks.dailymobility.city import City
from harness.benchmarks.dailymobility.day import Resident
from harness.errors import BadInput
from harness.model import JSON, Where


def check(entry: bytes, where: Where, city: City) -> str:
    """The resident's key. Raises `BadInput` with file, line, field and what was expected."""
    try:
        data: Any = orjson.loads(entry)
    except orjson.JSONDecodeError as error:
        raise BadInput(f"{where}: expected a JSON object, got what orjson cannot read ({error.msg})") from None
    if type(data) is not dict:
        raise BadInput(f"{where}: expected a JSON object, got {_kind(data)}")
    for name in ("id", "home", "work"):
        if type(data.get(name)) is not int:
            raise BadInput(f"{where}: field {name}: expected a whole number, got {_kind(data.get(name))}")
    for name in ("home", "work"):
        if data[name] not in city.aois:
            raise BadInput(f"{where}: field {name}: expected an AOI of the map, which has none numbered {data[name]}")
    return str(data["id"])


def load(entry: bytes) -> Resident:
    """The resident of an entry that `check` has passed."""
    data: JSON = orjson.loads(entry)
    synthetic = data.pop("synthetic", False) is True  # a label of the data, and nothing that a prompt should show
    return Resident(str(data["id"]), data["id"], data["home"], data["work"], data, synthetic)


def _kind(value: object) -> str:
    if value is None:
        return "nothing (missing or null)"
    text = repr(value)
    return text if len(text) <= 40 else f"a long {type(value).__name__}"
