"""Make changed copies of task lines, with which `check-benchmark` tests a benchmark."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from operator import getitem
from typing import Any

from harness.model import JSON

Path = tuple[str | int, ...]
"""Steps into a decoded line: names of fields and places in lists."""

OTHER_TYPES: tuple[Any, ...] = (None, 7, -1.5, True, "x", "", [], [None], {}, {"x": 1})
MAX_VALUES = 8
"""Values of a field, from all lines, that replace that of one line."""


def paths(value: object, above: Path = ()) -> Iterator[Path]:
    """Yield the path of every field of a line; of the entries of a list, the first and the last."""
    members: Iterable[tuple[str | int, object]] = ()
    if isinstance(value, dict):
        members = value.items()
    elif isinstance(value, list):
        entries = list(enumerate(value))
        members = entries[:1] + entries[1:][-1:]
    for step, member in members:
        yield (*above, step)
        yield from paths(member, (*above, step))


def path_text(path: Path) -> str:
    """Return a path in the form of error messages: `steps[2].pool`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
    return text.removeprefix(".")


def kinds(path: Path) -> Path:
    """Return a path without places in lists: fields of the same meaning have the same one."""
    return tuple("[]" if isinstance(step, int) else step for step in path)


def at(line: Any, path: Path) -> Any:
    return reduce(getitem, path, line)


def without(line: JSON, path: Path) -> JSON:
    """Return the line without a field or an entry."""
    changed = copy.deepcopy(line)
    del at(changed, path[:-1])[path[-1]]
    return changed


def replaced(line: JSON, path: Path, value: object) -> JSON:
    changed = copy.deepcopy(line)
    at(changed, path[:-1])[path[-1]] = value
    return changed


def pools(lines: Sequence[JSON]) -> Mapping[Path, list[Any]]:
    """Return some values of each field in these lines, by `kinds`."""
    values_by_kind: dict[Path, list[Any]] = {}
    for line in lines:
        for path in paths(line):
            values = values_by_kind.setdefault(kinds(path), [])
            value = at(line, path)
            if len(values) < MAX_VALUES and value not in values:
                values.append(value)
    return values_by_kind


def other_values(line: JSON, pools: Mapping[Path, list[Any]]) -> Iterator[tuple[Path, list[JSON]]]:
    """Yield the path of each text or number, with copies of the line that have another fitting
    value there."""
    for path in paths(line):
        value = at(line, path)
        if isinstance(value, list | dict):
            continue
        substitutes = [entry for entry in pools.get(kinds(path), ()) if entry != value]
        if isinstance(value, int | float) and not isinstance(value, bool):
            substitutes += [value + 1, value - 1]
        yield path, [replaced(line, path, substitute) for substitute in substitutes]
