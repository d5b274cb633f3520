"""Read files of the four lists: JSON, or a pickle as `asbench` writes it. Source: docs/design.md,
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
from collections.abc import Callable
from itertools import product
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
"""Radii whose median is below this share of the ground truth's look like kilometres (for the same
lives it would be a thousandth)."""
MAX_STILL_RADIUS = 1e-6
"""Metres up to which a radius is that of somebody who stayed at one place."""


def read(path: Path) -> Lists:
    """Return the four lists of a file. Raise `BadInput` naming field and row (from 1)."""
    items = _four_lists(_decoded(path), path)
    columns = {}
    for name, field in FIELDS.items():
        columns[name] = _column(field, plain(items[name]), f"{path}: {name}")

    if len({*map(len, columns.values())}) > 1:
        counts = [f"{name} {len(values)}" for name, values in columns.items()]
        raise BadInput(f"{path}: expected as many rows in each list, got {', '.join(counts)}")

    if not len(columns[RADIUS]):
        raise BadInput(f"{path}: expected at least one resident, got empty lists")

    return Lists.from_values(columns)


def _decoded(path: Path) -> Any:
    """Decode a file. JSON may have the NaN and Infinity that Python writes, so that an error can
    name their row."""
    data = input_file(path)
    # A JSON object is no pickle, whatever the file is called.
    is_object = data.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"")
    if not is_object and (data.startswith(b"\x80") or path.suffix in PICKLES):
        return unpickled(data, path)

    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path}: expected JSON or a pickle of asbench: {error}") from None


def _four_lists(content: object, path: Path) -> JSON:
    # asbench has the lists under `results`, the harness's own file has them alone.
    if isinstance(content, dict) and isinstance(content.get("results"), dict):
        content = content["results"]

    expected = f"{path}: expected an object with {', '.join(METRICS)}"
    if not isinstance(content, dict):
        raise BadInput(f"{expected}, got {in_brief(content)}")

    missing = [name for name in METRICS if name not in content]
    if missing:
        raise BadInput(f"{expected}: {', '.join(missing)} is missing")

    return content


def _column(field: Field, items: object, where: str) -> Array:
    if not isinstance(items, (list, tuple)):
        raise BadInput(f"{where}: expected a list, got {in_brief(items)}")

    rows = [*map(plain, items)]
    kind: Any = list[float]
    if field.columns is not None:
        kind = list[list[float]]
        for number, row in enumerate(rows, 1):
            _check_row(row, field.columns, f"{where}: row {number}")

    try:
        numbers = msgspec.convert(rows, kind)
    except msgspec.ValidationError as error:
        # Its message ends in "at `$[3][5]`".
        cell = [*map(int, re.findall(r"\[(\d+)\]", str(error)))]
        value: Any = rows
        for index in cell:
            value = value[index]

        raise bad(field, where, cell, value) from None

    values = np.array(numbers, dtype=np.float64).reshape(-1, *field.row_shape)
    check(field, values, where)
    return values


def _check_row(row: object, columns: int, where: str) -> None:
    got = in_brief(row)
    if isinstance(row, (list, tuple)):
        if len(row) == columns:
            return
        got = f"{len(row)} of them"
    raise BadInput(f"{where}: expected a list of {columns} numbers, got {got}")


def warnings(lists: Lists, truth: Lists) -> tuple[str, ...]:
    """Warn of radii in kilometres: over the residents who left their place, the median radius is
    below a hundredth of the ground truth's."""
    moved = _median_moved(lists.columns[RADIUS])
    expected = _median_moved(truth.columns[RADIUS])
    if moved is None or expected is None or moved >= KILOMETRES * expected:
        return ()

    warning = (
        f"{RADIUS} looks like kilometres: half of those who move have less than {moved:.3g},"
        f" where the ground truth has {expected:.4g} metres. The score of asbench is blind to"
        " the unit, those of the other protocols are not."
    )
    return (warning,)


def _median_moved(radii: Column) -> float | None:
    moved = radii[radii > MAX_STILL_RADIUS]
    if not len(moved):
        return None
    return float(np.median(moved))


# Pickles


def unpickled(data: bytes, path: Path) -> Any:
    """Return the object in a pickle. Raise `BadInput` for no pickle, and for one that names
    anything else."""
    try:
        # Before the first object is made.
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
    if isinstance(value.items, list):
        return value.items
    return value.items.tolist()


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        # Anything else could be a function that the pickle has called.
        make = STAND_INS.get((module, name))
        if make is None:
            raise pickle.UnpicklingError(
                f"it names {module}.{name}, and only plain values, paths and numpy arrays are"
                " allowed"
            )
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
    """The stand-in of a numpy dtype: a number's, or that of arrays of objects."""

    def __init__(self, code: str, *flags: object) -> None:
        if code not in NUMERIC and code != "O8":
            raise pickle.UnpicklingError(
                f"it holds a numpy {code!r:.20}, where numbers were expected"
            )
        self.code = code
        self.order = "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if state[1] not in ("<", ">", "|", "="):
            raise pickle.UnpicklingError("it holds a numpy dtype of no known byte order")
        self.order = state[1].replace("|", "=")

    def numbers(self, raw: Any) -> NDArray[Any]:
        if self.code not in NUMERIC:
            raise pickle.UnpicklingError("it holds objects where numbers were expected")
        return np.frombuffer(raw, dtype=np.dtype(self.order + self.code))


class _Array:
    """The stand-in of a numpy array."""

    def __init__(self, *ignored: object) -> None:
        self.items: NDArray[Any] | list[Any] = []

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, is_by_column, data = state
        if isinstance(data, list):  # an array of objects has them as a list
            self.items = data
            return
        order = "F" if is_by_column else "C"
        self.items = kind.numbers(data).reshape(shape, order=order)


def _from_buffer(
    raw: object, kind: _Kind, shape: tuple[int, ...], order: str, *axes: object
) -> _Array:
    array = _Array()
    array.__setstate__((1, shape, kind, order == "F", raw))
    return array


def _encoded(text: str, encoding: str) -> bytes:
    """Return bytes in a pickle of an old protocol."""
    # Pickles below protocol 3 have bytes as text in latin-1, a character for each byte.
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it names the encoding {encoding!r:.20}")
    return text.encode("latin1")


def _new_function(
    function: Callable[..., Any],
) -> Callable[[], Callable[..., Any]]:
    return lambda: lambda *arguments: function(*arguments)


def _new_class(stand_in: type) -> Callable[[], type]:
    """Make a class for each mention, since a pickle can set attributes of the classes that it
    names."""
    return lambda: type(stand_in.__name__, (stand_in,), {})


PATHS = (
    "Path",
    "PosixPath",
    "WindowsPath",
    "PurePath",
    "PurePosixPath",
    "PureWindowsPath",
)
STAND_INS: dict[tuple[str, str], Callable[[], Any]] = {
    ("uuid", "UUID"): _opaque,
    ("numpy", "dtype"): _new_class(_Kind),
    ("numpy", "ndarray"): _opaque,
    ("_codecs", "encode"): _new_function(_encoded),
    ("__builtin__", "bytes"): _new_function(lambda: b""),
}
"""Name in a pickle -> what makes its stand-in. Modules differ between versions of Python and
numpy."""
# Python 3.13 has the classes of paths in the second module.
for _module, _name in product(("pathlib", "pathlib._local"), PATHS):
    STAND_INS[_module, _name] = _opaque
# numpy 2 calls the module by its second name, and so do the pickles that it writes.
for _core in ("numpy.core", "numpy._core"):
    STAND_INS[f"{_core}.multiarray", "scalar"] = _new_function(
        lambda kind, raw: kind.numbers(raw)[0].item()
    )
    STAND_INS[f"{_core}.multiarray", "_reconstruct"] = _new_class(_Array)
    STAND_INS[f"{_core}.numeric", "_frombuffer"] = _new_function(_from_buffer)
