"""Make changed copies of task lines, with which `check-benchmark` tests a benchmark."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import getitem
from typing import Any

from harness.model import JSON

Path = tuple[str | int, ...]
"""Steps into a decoded line: names of fields and places in lists."""

OTHER_TYPES: tuple[Any, ...] = (None, 7, -1.5, True, "x", "", [], [None], {}, {"x": 1})
VALUES_MOST = 8
"""Values of a field, from all lines, that replace that of one line."""


def paths(value: object, above: Path = ()) -> Iterator[Path]:
    """Yield the path of every field of a line; of the entries of a list, the first and the last."""
    entries = list(enumerate(value)) if isinstance(value, list) else []
    for step, member in (
        value.items() if isinstance(value, dict) else [*entries[:1], *entries[1:][-1:]]
    ):
        yield (*above, step)
        yield from paths(member, (*above, step))


def path_text(path: Path) -> str:
    """Return a path in the form of error messages: `steps[2].pool`."""
    return "".join(
        f"[{step}]" if isinstance(step, int) else f".{step}" for step in path
    ).removeprefix(".")


def kinds(path: Path) -> Path:
    """Return a path without places in lists: fields of the same meaning have the same one."""
    return tuple("[]" if isinstance(step, int) else step for step in path)


def at(line: Any, path: Path) -> Any:
    return reduce(getitem, path, line)


def without(line: JSON, path: Path) -> JSON:
    """Return the line without a field or an entry."""
    made = copy.deepcopy(line)
    del at(made, path[:-1])[path[-1]]
    return made


def replaced(line: JSON, path: Path, value: object) -> JSON:
    made = copy.deepcopy(line)
    at(made, path[:-1])[path[-1]] = value
    return made


def pools(lines: Sequence[JSON]) -> Mapping[Path, list[Any]]:
    """Return some values of each field in these lines, by `kinds`."""
    found: dict[Path, list[Any]] = {}
    for line in lines:
        for path in paths(line):
            values, value = found.setdefault(kinds(path), []), at(line, path)
            if len(values) < VALUES_MOST and value not in values:
                values.append(value)
    return found


def others(line: JSON, pools: Mapping[Path, list[Any]]) -> Iterator[tuple[Path, list[JSON]]]:
    """Yield the path of each text or number, with copies of the line that have another fitting
    value there."""
    for path in paths(line):
        now = at(line, path)
        if not isinstance(now, list | dict):
            values = [value for value in pools.get(kinds(path), ()) if value != now]
            values += (
                [now + 1, now - 1]
                if isinstance(now, int | float) and not isinstance(now, bool)
                else []
            )
            yield path, [replaced(line, path, value) for value in values]
