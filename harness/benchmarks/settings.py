"""A benchmark's settings: one dataclass defines flags of `run`, a part of the identity, and what `resume` reads back.

Fields may be `bool`, `int`, `float`, `str`, a `Literal` of texts, or `Path | None` for a file. `history_length` becomes
`--history-length`, a `bool` that is true by default `--no-NAME`; `metadata={"help": ...}` explains a flag. With None as
its default, a field may be `int | None` and the like.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from harness.benchmarks.files import input_file
from harness.benchmarks.user_code import LONGEST, described
from harness.defaults import BITS_64
from harness.errors import BadInput, HarnessError, in_brief
from harness.model import JSON

DEST = "setting "
"""Before the names under which parsed arguments have settings, so that none is taken for one of the command's own."""


class BadSettings(TypeError):
    """A settings class that no flags can be made of."""


def _whole(text: str) -> int:
    number = int(text)
    if not -BITS_64 <= number < BITS_64:
        raise ValueError
    return number


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError
    return number


_whole.__name__, _finite.__name__ = "whole number", "number"  # in argparse's messages
PARSERS: Mapping[Any, Any] = {str: str, int: _whole, float: _finite, Path: Path}
WORDS: Mapping[Any, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    Path: "a Path",
}


@cache
def kinds(cls: Any) -> Mapping[str, Any]:
    """Return the type of each field: a key of `WORDS`, or a tuple of a `Literal`'s texts. Raise `BadSettings`."""
    if not (isinstance(cls, type) and is_dataclass(cls)):
        raise BadSettings(f"{getattr(cls, '__qualname__', cls)} is no dataclass: put @dataclass(frozen=True) above it")
    hints = get_type_hints(cls)
    return {field.name: _kind(f"{cls.__qualname__}.{field.name}", field, hints[field.name]) for field in fields(cls)}


def _kind(place: str, field: Field[Any], hint: Any) -> Any:
    if field.default is MISSING:
        raise BadSettings(f"{place} has no default")
    if get_origin(hint) in (Union, UnionType):
        others = [one for one in get_args(hint) if one is not NoneType]
        hint = others[0] if len(others) == 1 else hint
    if get_origin(hint) is Literal and all(isinstance(text, str) for text in get_args(hint)):
        hint = get_args(hint)
    elif not any(hint is kind for kind in WORDS):
        raise BadSettings(f"{place}: a setting is text, a number, true or false, a Literal of texts, or a Path")
    if field.default is not None and not _fits(field.default, hint):
        raise BadSettings(f"{place}: its default is {in_brief(field.default)}, expected {_wanted(hint)}")
    if field.default is None and hint is bool:
        raise BadSettings(f"{place}: a setting that is true or false has one of them as its default")
    return hint


def _fits(value: Any, kind: Any) -> bool:
    if isinstance(kind, tuple):
        return value in kind
    if kind is Path:
        return isinstance(value, Path)
    return type(value) is kind or (kind is float and type(value) is int)


def _wanted(kind: Any) -> str:
    return f"one of {', '.join(kind)}" if isinstance(kind, tuple) else WORDS[kind]


def add_flags(parser: argparse.ArgumentParser, cls: type, title: str) -> None:
    """Add a flag for each field. Raise `BadSettings` for one that is an option of the command itself."""
    group = parser.add_argument_group(title)
    for field in fields(cls):
        kind, default = kinds(cls)[field.name], field.default
        shape: JSON = {"dest": DEST + field.name, "default": default}
        words = [str(field.metadata.get("help") or "")]
        if kind is bool:
            shape["action"] = "store_false" if default is True else "store_true"
        else:
            words += [f"default: {default}"] if default not in (None, "") else []
            names = {str: "TEXT", Path: "FILE"}
            typed = {"type": PARSERS.get(kind), "metavar": names.get(kind, "N")}
            shape |= {"choices": kind} if isinstance(kind, tuple) else typed
        try:
            group.add_argument(flag(field), help="; ".join(filter(None, words)).replace("%", "%%") or None, **shape)
        except argparse.ArgumentError:
            raise BadSettings(
                f"{cls.__qualname__}.{field.name}: {flag(field)} is an option of the command itself: rename it"
            ) from None


def flag(field: Field[Any]) -> str:
    return f"--{'no-' if field.default is True else ''}{field.name.replace('_', '-')}"


def flags(cls: type) -> list[str]:
    return [flag(field) for field in fields(cls)]


def given(cls: type, args: argparse.Namespace) -> Any:
    """Return the settings of a command's flags. Raise `BadInput` with the flags if the class refuses their values."""
    values = {field.name: getattr(args, DEST + field.name) for field in fields(cls)}
    flags = [flag(field) for field in fields(cls) if values[field.name] != field.default]
    return _made(cls, values, ", ".join(flags) or "settings")


def _made(cls: type, values: JSON, where: str) -> Any:
    """Return the settings of these values. Raise `BadInput` if the class refuses them with `ValueError`, or fails."""
    try:
        return cls(**values)
    except HarnessError:
        raise
    except Exception as error:  # of the author's code, not ours
        raise BadInput(f"{where}: {_sentence(error)}") from error


def _sentence(error: Exception) -> str:
    words = " ".join(str(error).split())[:LONGEST]
    return words if words and isinstance(error, ValueError) else described(error)


def identity(settings: Any) -> JSON:
    """Return each setting as it is in a run's identity: a file by its name, since its bytes are kept apart."""
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    return {name: file_name(name, value) if isinstance(value, Path) else value for name, value in values.items()}


def of_run(benchmark: Any, identity: JSON, found: Mapping[str, Path]) -> Any:
    """Return the settings of a benchmark's class that an earlier run's identity was made from.

    Files are from `found` (field -> current path; empty if no user is played), other fields from the identity, or their
    default where it has none. Raise `BadInput` with the name of a field of another type.
    """
    if (own := benchmark.imports.settings) is not None:
        return own(identity, found)
    cls = benchmark.Settings
    made: JSON = {}
    empty = defaults(cls)
    for name, kind in kinds(cls).items():
        if kind is Path:
            made[name] = found.get(name)
        elif name in identity and (identity[name] is not None or empty[name] is not None):
            made[name] = checked(identity, name, kind)
    return _made(cls, made, "the run's manifest: field identity.settings")


def checked(identity: JSON, name: str, kind: Any) -> Any:
    """Return a setting of an identity. Raise `BadInput` if it is not of this kind."""
    if not _fits(value := identity.get(name), kind):
        place = f"the run's manifest: field identity.settings.{name}"
        raise BadInput(f"{place}: expected {_wanted(kind)}, got {in_brief(value)}")
    return value


def defaults(cls: Any) -> JSON:
    """Return each setting that is no file, and its default. Raise `BadSettings` if the class refuses its defaults."""
    try:
        made = cls()
    except Exception as error:  # of the author's code, not ours
        raise BadSettings(f"{cls.__qualname__}: its defaults are refused: {_sentence(error)}") from None
    return {name: getattr(made, name) for name, kind in kinds(cls).items() if kind is not Path}


def file_fields(cls: Any) -> list[str]:
    return [name for name, kind in kinds(cls).items() if kind is Path]


def files(settings: Any) -> dict[str, Path]:
    """Return each field that names a file, and the file."""
    found = {name: getattr(settings, name) for name in file_fields(type(settings))}
    return {name: path for name, path in found.items() if path is not None}


def contents(settings: Any) -> dict[str, bytes]:
    """Return the bytes of files that settings name, by the names under which a run's folder keeps them."""
    found: dict[str, bytes] = {}
    for field, path in files(settings).items():
        if (name := kept_name(field, path)) in found:
            raise BadInput(f"{path}: the run's folder has another setting's file as {name}: give one another name")
        found[name] = input_file(path)
    return found


def kept_name(field: str, path: Path) -> str:
    """Return the name of a file's copy in a run's folder; the copy itself has the same one."""
    return f"{field}_{file_name(field, path)}"


def file_name(field: str, path: Path) -> str:
    """Return the name of a file in identity and reports: the same for the original and its copy."""
    return path.name.removeprefix(f"{field}_")
