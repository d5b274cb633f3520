"""Changed copies of task lines: what `check-benchmark` shows a benchmark besides the lines that are there."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.model import JSON

Path = tuple[str | int, ...]
"""Steps into a decoded line: names of fields and places in lists."""

OTHER_TYPES: tuple[Any, ...] = (None, 7, -1.5, True, "x", "", [], [None], {}, {"x": 1})
OF_A_KIND = 3
VALUES_MOST = 8
"""Values of one field, from all lines, that another one's is replaced by."""


def paths(line: JSON) -> Iterator[Path]:
    """Every field of a line; of those of the same meaning, as the entries of a list, a few."""
    found = Counter[Path]()
    for path in _paths(line, ()):
        found[kinds(path)] += 1
        if found[kinds(path)] <= OF_A_KIND:
            yield path


def _paths(value: Any, above: Path) -> Iterator[Path]:
    if isinstance(value, dict):
        inner: list[tuple[str | int, Any]] = list(value.items())
    else:
        entries = list(enumerate(value)) if isinstance(value, list) else []
        inner = [*entries[:2], *entries[2:][-1:]]
    for step, one in inner:
        yield (*above, step)
        yield from _paths(one, (*above, step))


def shown(path: Path) -> str:
    """A path as error messages have it: `steps[2].pool`."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


def at(line: Any, path: Path) -> Any:
    for step in path:
        line = line[step]
    return line


def without(line: JSON, path: Path) -> JSON:
    """The line without a field or an entry."""
    made = copy.deepcopy(line)
    del at(made, path[:-1])[path[-1]]
    return made


def replaced(line: JSON, path: Path, value: Any) -> JSON:
    made = copy.deepcopy(line)
    at(made, path[:-1])[path[-1]] = value
    return made


def kinds(path: Path) -> Path:
    """A path without places in lists: what fields of the same meaning have in common."""
    return tuple("[]" if isinstance(step, int) else step for step in path)


def pools(lines: Sequence[JSON]) -> Mapping[Path, list[Any]]:
    """Values that fields of the same meaning have in these lines."""
    found: dict[Path, list[Any]] = {}
    for line in lines:
        for path in paths(line):
            values, value = found.setdefault(kinds(path), []), at(line, path)
            if len(values) < VALUES_MOST and value not in values:
                values.append(value)
    return found


def others(line: JSON, pools: Mapping[Path, list[Any]]) -> Iterator[tuple[Path, list[JSON]]]:
    """Each text or number, and copies of the line that have another one there which fits."""
    for path in paths(line):
        now = at(line, path)
        if isinstance(now, list | dict):
            continue
        values = [value for value in pools.get(kinds(path), ()) if value != now]
        values += [now + 1, now - 1] if isinstance(now, int | float) and not isinstance(now, bool) else []
        yield path, [replaced(line, path, value) for value in values]
