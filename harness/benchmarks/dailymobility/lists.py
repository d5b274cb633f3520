"""Files of the four lists: JSON, or a pickle as `asbench` writes it. Source: docs/design.md,
section 9.

`asbench` 0.1.4 writes `{"results": the four lists, "metadata": ...}`: plain values and numpy
scalars, and in the metadata a `pathlib` path and a `uuid.UUID`. A pickle may name any function of
any module and have it called. Here a name either is in `STAND_INS` or the file is refused; and each
mention gets a new stand-in, which holds nothing and calls nothing, so that a file cannot change
anything outside of its own result. Nor can a small file request more memory than there is.
"""

from __future__ import annotations

import io
import json
import pickle
import pickletools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from harness.benchmarks.dailymobility.groundtruth import (
    FIELDS,
    MALFORMED,
    Column,
    Field,
    Lists,
    bad,
    check,
)
from harness.benchmarks.dailymobility.protocols import METRICS, RADIUS
from harness.benchmarks.files import input_file
from harness.errors import BadInput, in_brief
from harness.model import JSON
from harness.scoring.bootstrap import Array

PICKLES = (".pkl", ".pickle")
PUTS = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})
NUMERIC = frozenset({"f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1"})
KILOMETRES = 0.01
"""Radii whose median is below this part of the ground truth's look like kilometres (metres have a
thousandth)."""
STAYED = 1e-6
"""Metres up to which a radius is that of somebody who stayed at one place."""


def read(path: Path) -> Lists:
    """Return the four lists of a file. Raise `BadInput` naming field and row (from 1)."""
    found = _four_lists(_decoded(path), path)
    columns = {
        name: _column(field, plain(found[name]), f"{path}: {name}")
        for name, field in FIELDS.items()
    }
    rows = {name: len(values) for name, values in columns.items()}
    if len(set(rows.values())) > 1:
        counts = ", ".join(f"{name} {number}" for name, number in rows.items())
        raise BadInput(f"{path}: expected as many rows in each list, got {counts}")
    if not rows[RADIUS]:
        raise BadInput(f"{path}: expected at least one resident, got empty lists")
    return Lists.of(columns)


def _decoded(path: Path) -> Any:
    """Decode a file. JSON may have the NaN and Infinity that Python writes, so that an error can
    name their row."""
    data = input_file(path)
    is_object = data.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"")
    if not is_object and (data.startswith(b"\x80") or path.suffix in PICKLES):
        return unpickled(data, path)
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path}: expected JSON or a pickle of asbench: {error}") from None


def _four_lists(content: object, path: Path) -> JSON:
    if isinstance(content, dict) and isinstance(content.get("results"), dict):
        content = content["results"]
    expected = f"{path}: expected an object with {', '.join(METRICS)}"
    if not isinstance(content, dict):
        raise BadInput(f"{expected}, got {in_brief(content)}")
    if missing := [name for name in METRICS if name not in content]:
        raise BadInput(f"{expected}: {', '.join(missing)} is missing")
    return content


def _column(field: Field, items: object, where: str) -> Array:
    if not isinstance(items, (list, tuple)):
        raise BadInput(f"{where}: expected a list, got {in_brief(items)}")
    kind, rows = (
        list[float] if field.columns is None else list[list[float]],
        [plain(item) for item in items],
    )
    for row, item in enumerate(rows if field.columns is not None else ()):
        if not isinstance(item, (list, tuple)) or len(item) != field.columns:
            got = f"{len(item)} of them" if isinstance(item, (list, tuple)) else in_brief(item)
            raise BadInput(
                f"{where}: row {row + 1}: expected a list of {field.columns} numbers, got {got}"
            )
    try:
        values = np.array(msgspec.convert(rows, kind), dtype=np.float64)
    except msgspec.ValidationError as error:
        row, *column = map(int, re.findall(r"\[(\d+)\]", str(error)))  # "... - at `$[3][5]`"
        raise bad(
            field, where, row, *([column[0], rows[row][column[0]]] if column else [None, rows[row]])
        ) from None
    values = values.reshape(-1, field.columns) if field.columns is not None else values
    check(field, values, where)
    return values


def warnings(lists: Lists, truth: Lists) -> tuple[str, ...]:
    """Warn of radii in kilometres: over the residents who left their place, the median radius is
    below a hundredth of the ground truth's."""
    moved, expected = (_median_moved(side.columns[RADIUS]) for side in (lists, truth))
    if moved is None or expected is None or moved >= KILOMETRES * expected:
        return ()
    return (
        (
            f"{RADIUS} looks like kilometres: half of those who move have less than {moved:.3g},"
            f" where the ground truth has {expected:.4g} metres. The score of asbench is blind to"
            " the unit, those of the other protocols are not."
        ),
    )


def _median_moved(radii: Column) -> float | None:
    moved = radii[radii > STAYED]
    return float(np.median(moved)) if len(moved) else None


# Pickles


def unpickled(data: bytes, path: Path) -> Any:
    """Return the object in a pickle. Raise `BadInput` for no pickle, and for one that names
    anything else."""
    try:
        _refuse_wild(data)
        return _Restricted(io.BytesIO(data)).load()
    except (*MALFORMED, AttributeError, pickle.UnpicklingError) as error:
        detail = " ".join(str(error).split())[:200]
        raise BadInput(f"{path}: cannot be read as a pickle of plain values: {detail}") from None


def _refuse_wild(data: bytes) -> None:
    """Refuse a few bytes that would take all memory: a far place among the objects that can be
    named again.

    Python makes room for all places before it, where a pickle that was written has an object at
    each.
    """
    argument: Any
    for number, (code, argument, _) in enumerate(pickletools.genops(data)):
        if code.name in PUTS and not 0 <= argument <= number:
            raise pickle.UnpicklingError("it numbers an object beyond those that it has")


def plain(value: object) -> Any:
    """Return a numpy array's stand-in as lists of plain numbers, anything else as it is."""
    if not isinstance(value, _Array):
        return value
    return value.items if isinstance(value.items, list) else value.items.tolist()


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        make = STAND_INS.get((module, name))
        if make is None:
            what = f"{module}.{name}, and only plain values, paths and numpy arrays are allowed"
            raise pickle.UnpicklingError(f"it names {what}")
        return make()


def _opaque() -> type:
    """Return a stand-in for what is not looked at: a path, an id."""

    class Opaque:
        def __new__(cls, *arguments: object) -> Opaque:
            return super().__new__(cls)

        def __setstate__(self, state: object) -> None:
            pass

    return Opaque


class _Kind:
    """Stands for a numpy dtype: a number's, or that of arrays of objects."""

    def __init__(self, code: str, *flags: object) -> None:
        if code not in NUMERIC and code != "O8":
            raise pickle.UnpicklingError(
                f"it holds a numpy {code!r:.20}, where numbers were expected"
            )
        self.code, self.order = code, "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if state[1] not in ("<", ">", "|", "="):
            raise pickle.UnpicklingError("it holds a numpy dtype of no known byte order")
        self.order = state[1].replace("|", "=")

    def numbers(self, raw: Any) -> NDArray[Any]:
        if self.code not in NUMERIC:
            raise pickle.UnpicklingError("it holds objects where numbers were expected")
        return np.frombuffer(raw, dtype=np.dtype(self.order + self.code))


class _Array:
    """Stands for a numpy array."""

    def __init__(self, *ignored: object) -> None:
        self.items: NDArray[Any] | list[Any] = []

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, by_column, data = state
        order = "F" if by_column else "C"
        self.items = (
            data if isinstance(data, list) else kind.numbers(data).reshape(shape, order=order)
        )


def _from_buffer(
    raw: object, kind: _Kind, shape: tuple[int, ...], order: str, *axes: object
) -> _Array:
    array = _Array()
    array.__setstate__((1, shape, kind, order == "F", raw))
    return array


def _encoded(text: str, encoding: str) -> bytes:
    """Return bytes in a pickle of an old protocol."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it names the encoding {encoding!r:.20}")
    return text.encode("latin1")


def _new_function(function: Callable[..., Any]) -> Callable[[], Callable[..., Any]]:
    return lambda: lambda *arguments: function(*arguments)


def _new_class(stand_in: type) -> Callable[[], type]:
    """Make a class for each mention, since a pickle can set attributes of the classes that it
    names."""
    return lambda: type(stand_in.__name__, (stand_in,), {})


PATHS = ("Path", "PosixPath", "WindowsPath", "PurePath", "PurePosixPath", "PureWindowsPath")
OF_NUMPY = {
    ("multiarray", "scalar"): _new_function(lambda kind, raw: kind.numbers(raw)[0].item()),
    ("multiarray", "_reconstruct"): _new_class(_Array),
    ("numeric", "_frombuffer"): _new_function(_from_buffer),
}
STAND_INS: Mapping[tuple[str, str], Callable[[], Any]] = {
    **{(module, name): _opaque for module in ("pathlib", "pathlib._local") for name in PATHS},
    ("uuid", "UUID"): _opaque,
    ("numpy", "dtype"): _new_class(_Kind),
    ("numpy", "ndarray"): _opaque,
    **{
        (f"numpy.{core}.{part}", name): make
        for core in ("core", "_core")
        for (part, name), make in OF_NUMPY.items()
    },
    ("_codecs", "encode"): _new_function(_encoded),
    ("__builtin__", "bytes"): _new_function(lambda: b""),
}
