"""Files of the four lists: JSON, or a pickle as `asbench` writes it. Source: docs/design.md, section 9.

`asbench` 0.1.4 writes `{"results": the four lists, "metadata": ...}`: plain values and numpy scalars, and in the
metadata a `pathlib` path and a `uuid.UUID`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from harness.benchmarks.dailymobility.divergence import Array
from harness.benchmarks.dailymobility.groundtruth import FIELDS, Column, Field, Lists, bad, check
from harness.benchmarks.dailymobility.pickles import PICKLES, plain, unpickled
from harness.benchmarks.dailymobility.protocols import METRICS, RADIUS
from harness.benchmarks.files import content
from harness.errors import BadInput
from harness.model import JSON

KILOMETRES = 0.01
"""Radii whose median is below this part of the ground truth's look like kilometres (metres have a thousandth)."""
STAYED = 1e-6
"""Metres up to which a radius is that of somebody who stayed at one place."""


def read(path: Path) -> Lists:
    """Return the four lists of a file. Raise `BadInput` naming field and row (from 1)."""
    found = _four_lists(_decoded(path), path)
    columns = {name: _column(field, plain(found[name]), f"{path}: {name}") for name, field in FIELDS.items()}
    rows = {name: len(values) for name, values in columns.items()}
    if len(set(rows.values())) > 1:
        counts = ", ".join(f"{name} {number}" for name, number in rows.items())
        raise BadInput(f"{path}: expected as many rows in each list, got {counts}")
    if not rows[RADIUS]:
        raise BadInput(f"{path}: expected at least one resident, got empty lists")
    return Lists.of(columns)


def _decoded(path: Path) -> Any:
    """Decode a file. JSON may have the NaN and Infinity that Python writes, so that an error can name their row."""
    try:
        data = content(path)
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from None
    is_object = data.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"")
    if not is_object and (data.startswith(b"\x80") or path.suffix in PICKLES):
        return unpickled(data, path)
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path}: expected JSON or a pickle of asbench: {error}") from None


def _four_lists(content: Any, path: Path) -> JSON:
    if isinstance(content, dict) and isinstance(content.get("results"), dict):
        content = content["results"]
    expected = f"{path}: expected an object with {', '.join(METRICS)}"
    if not isinstance(content, dict):
        raise BadInput(f"{expected}, got {_kind(content)}")
    if missing := [name for name in METRICS if name not in content]:
        raise BadInput(f"{expected}: {', '.join(missing)} is missing")
    return content


def _column(field: Field, items: Any, where: str) -> Array:
    if not isinstance(items, (list, tuple)):
        raise BadInput(f"{where}: expected a list, got {_kind(items)}")
    if field.columns is None:
        values = _numbers(items, lambda at, item: bad(field, where, at, None, item))
    else:
        rows = [_row(field, field.columns, row, plain(item), where) for row, item in enumerate(items)]
        values = np.concatenate(rows).reshape(-1, field.columns) if rows else np.empty((0, field.columns))
    check(field, values, where)
    return values


def _row(field: Field, columns: int, row: int, items: Any, where: str) -> Array:
    if not isinstance(items, (list, tuple)) or len(items) != columns:
        got = f"{len(items)} of them" if isinstance(items, (list, tuple)) else _kind(items)
        raise BadInput(f"{where}: row {row + 1}: expected a list of {columns} numbers, got {got}")
    return _numbers(items, lambda at, value: bad(field, where, row, at, value))


def _numbers(items: Sequence[Any], bad: Callable[[int, Any], BadInput]) -> Array:
    """Return ints and floats as an array; `bad` makes the error for anything else (booleans too)."""
    if not {int, float}.issuperset(map(type, items)):
        at, item = next((at, item) for at, item in enumerate(items) if type(item) not in (int, float))
        raise bad(at, item)
    try:
        return np.array(items, dtype=np.float64)
    except OverflowError:
        at, item = max(enumerate(items), key=lambda one: abs(one[1]) if type(one[1]) is int else 0)
        raise bad(at, item) from None


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number" if isinstance(value, (int, float)) else "something else")


def warnings(lists: Lists, truth: Lists) -> tuple[str, ...]:
    """Warn of radii in kilometres: over the residents who left their place, the median radius is below a hundredth of
    the ground truth's."""
    moved, expected = (_median_moved(side.columns[RADIUS]) for side in (lists, truth))
    if moved is None or expected is None or moved >= KILOMETRES * expected:
        return ()
    return (
        f"{RADIUS} looks like kilometres: half of those who move have less than {moved:.3g}, where the ground truth "
        f"has {expected:.4g} metres. The score of asbench is blind to the unit, those of the other protocols are not.",
    )


def _median_moved(radii: Column) -> float | None:
    moved = radii[radii > STAYED]
    return float(np.median(moved)) if len(moved) else None
