"""Pickles of plain values, read without running what they name. Source: docs/design.md, section 9.

A pickle may name any function of any module and have it called. Here a name either is in `STAND_INS` or the file is
refused; and what stands there is made anew for each mention, holds nothing and calls nothing, so that a file
cannot change anything outside of what it becomes. Nor can a small file ask for more memory than there is.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.errors import BadInput

PICKLES = (".pkl", ".pickle")

NUMERIC = frozenset({"f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1"})
BROKEN = (
    pickle.UnpicklingError,
    EOFError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    ArithmeticError,
    MemoryError,
    RecursionError,
)
"""What reading a pickle that is none, or one made to do harm, ends in."""


def unpickled(data: bytes, path: Path) -> Any:
    """The object in a pickle. Raises `BadInput` for what is no pickle, and for one that names what may not be."""
    try:
        _refuse_wild(data)
        return _Restricted(io.BytesIO(data)).load()
    except BROKEN as error:
        detail = " ".join(str(error).split())[:200]
        raise BadInput(f"{path}: cannot be read as a pickle of plain values: {detail}") from None


def _refuse_wild(data: bytes) -> None:
    """Refuses what a few bytes could ask all memory for: the place of an object among those to be named again.

    Python makes room for all places before it, where a pickle that was written has an object at each.
    """
    argument: Any
    for number, (code, argument, _) in enumerate(pickletools.genops(data)):
        if code.name in PUTS and not 0 <= argument <= number:
            raise pickle.UnpicklingError("it numbers an object beyond those that it has")


def plain(value: Any) -> Any:
    """A numpy array's stand-in as lists of plain numbers, anything else as it is."""
    if not isinstance(value, _Array):
        return value
    return value.items if isinstance(value.items, list) else value.items.tolist()


PUTS = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        made = STAND_INS.get((module, name))
        if made is None:
            raise pickle.UnpicklingError(
                f"it names {module}.{name}, and only plain values, paths and numpy arrays are let in"
            )
        return made()


def _opaque() -> type:
    """Stands for what is not looked at: a path, an id."""

    class Opaque:
        def __new__(cls, *arguments: Any) -> Opaque:
            return super().__new__(cls)

        def __setstate__(self, state: Any) -> None:
            pass

    return Opaque


class _Kind:
    """Stands for a numpy dtype: a number's, or that of arrays of objects."""

    def __init__(self, code: str, *flags: Any) -> None:
        if code not in NUMERIC and code != "O8":
            raise pickle.UnpicklingError(f"it holds a numpy {code!r:.20}, where numbers were expected")
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

    def __init__(self, *ignored: Any) -> None:
        self.items: NDArray[Any] | list[Any] = []

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, by_column, data = state
        if isinstance(data, list):
            self.items = data
        else:
            self.items = kind.numbers(data).reshape(shape, order="F" if by_column else "C")


def _scalar(kind: _Kind, raw: bytes) -> Any:
    return kind.numbers(raw)[0].item()


def _from_buffer(raw: Any, kind: _Kind, shape: tuple[int, ...], order: str, *axes: Any) -> _Array:
    array = _Array()
    array.__setstate__((1, shape, kind, order == "F", raw))
    return array


def _encoded(text: str, encoding: str) -> bytes:
    """Bytes in a pickle of an old protocol."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it names the encoding {encoding!r:.20}")
    return text.encode("latin1")


def _anew(function: Callable[..., Any]) -> Callable[[], Callable[..., Any]]:
    return lambda: lambda *arguments: function(*arguments)


def _subclassed(stand_in: type) -> Callable[[], type]:
    """A class of its own for each mention, since a pickle can set attributes of the classes that it names."""
    return lambda: type(stand_in.__name__, (stand_in,), {})


PATHS = ("Path", "PosixPath", "WindowsPath", "PurePath", "PurePosixPath", "PureWindowsPath")

STAND_INS: Mapping[tuple[str, str], Callable[[], Any]] = {
    **{(module, name): _opaque for module in ("pathlib", "pathlib._local") for name in PATHS},
    ("uuid", "UUID"): _opaque,
    ("numpy", "dtype"): _subclassed(_Kind),
    ("numpy", "ndarray"): _opaque,
    **{
        (f"numpy.{core}.{name}", function): made
        for core in ("core", "_core")
        for name, function, made in (
            ("multiarray", "scalar", _anew(_scalar)),
            ("multiarray", "_reconstruct", _subclassed(_Array)),
            ("numeric", "_frombuffer", _anew(_from_buffer)),
        )
    },
    ("_codecs", "encode"): _anew(_encoded),
    ("__builtin__", "bytes"): _anew(lambda: b""),
}
