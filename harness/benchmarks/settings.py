"""A benchmark's settings: one dataclass is the flags of `run`, a part of what a run is, and what `resume` reads back.

Fields may be `bool`, `int`, `float`, `str`, a `Literal` of texts, or `Path | None` for a file. `history_length` becomes
`--history-length`, a `bool` that is true by default `--no-NAME`; `metadata={"help": ...}` explains a flag. A field
whose default is None may be `int | None` and the like.
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

from harness.benchmarks.files import content
from harness.benchmarks.user_code import LONGEST, described
from harness.defaults import BITS_64
from harness.errors import BadInput, HarnessError, shown
from harness.model import JSON

KINDS: Mapping[type, str] = {
    str: "text",
    int: "a whole number",
    bool: "true or false",
    float: "a number",
}


DEST = "setting "
"""Before the names under which parsed arguments have settings, so that none is taken for one of the command's own."""


class BadSettings(TypeError):
    """A settings class that no flags can be made of."""


@cache
def kinds(cls: Any) -> Mapping[str, Any]:
    """The type of each field: one of `KINDS`, `Path`, or the tuple of a `Literal`'s texts. Raise `BadSettings`."""
    if not (isinstance(cls, type) and is_dataclass(cls)):
        raise BadSettings(f"{getattr(cls, '__qualname__', cls)} is no dataclass: put @dataclass(frozen=True) above it")
    hints = get_type_hints(cls)
    return {field.name: _kind(cls, field, hints[field.name]) for field in fields(cls)}


def _kind(cls: Any, field: Field[Any], hint: Any) -> Any:
    place = f"{cls.__qualname__}.{field.name}"
    if field.default is MISSING:
        raise BadSettings(f"{place} has no default")
    if get_origin(hint) in (Union, UnionType):
        others = [one for one in get_args(hint) if one is not NoneType]
        hint = others[0] if len(others) == 1 else hint
    if get_origin(hint) is Literal and all(isinstance(text, str) for text in get_args(hint)):
        hint = get_args(hint)
    elif not any(hint is kind for kind in (*KINDS, Path)):
        raise BadSettings(f"{place}: a setting is text, a number, true or false, a Literal of texts, or a Path")
    if field.default is not None and not _fits(field.default, hint):
        raise BadSettings(f"{place}: its default is {shown(field.default)}, expected {_wanted(hint)}")
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
    return f"one of {', '.join(kind)}" if isinstance(kind, tuple) else KINDS.get(kind, "a Path")


def add_flags(parser: argparse.ArgumentParser, cls: type, title: str) -> None:
    """Add a flag for each field. Raise `BadSettings` for one that is an option of the command itself."""
    group = parser.add_argument_group(title)
    for field in fields(cls):
        try:
            _add_flag(group, field, kinds(cls)[field.name])
        except argparse.ArgumentError:
            raise BadSettings(
                f"{cls.__qualname__}.{field.name}: {flag(field)} is an option of the command itself: call it otherwise"
            ) from None


def flag(field: Field[Any]) -> str:
    return f"--{'no-' if field.default is True else ''}{field.name.replace('_', '-')}"


def _add_flag(group: Any, field: Field[Any], kind: Any) -> None:
    explanation = field.metadata.get("help")
    explanation = _escaped(str(explanation)) if explanation else None
    if kind is bool:
        action = "store_false" if field.default is True else "store_true"
        group.add_argument(flag(field), dest=DEST + field.name, action=action, default=field.default, help=explanation)
        return
    if kind is Path:
        shape: JSON = {"type": Path, "metavar": "FILE"}
    elif isinstance(kind, tuple):
        shape = {"choices": kind}
    else:
        shape = {"type": PARSERS[kind], "metavar": "TEXT" if kind is str else "N"}
    default = _escaped(f"default: {field.default}") if field.default not in (None, "") else None
    words = "; ".join(filter(None, (explanation, default))) or None
    group.add_argument(flag(field), dest=DEST + field.name, default=field.default, help=words, **shape)


def _escaped(words: str) -> str:
    return words.replace("%", "%%")


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


_whole.__name__, _finite.__name__ = "whole number", "number"  # as argparse calls them
PARSERS: Mapping[Any, Any] = {str: str, int: _whole, float: _finite}


def given(cls: type, args: argparse.Namespace) -> Any:
    """The settings that a command's flags make. Raise `BadInput` with the flags if the class refuses their values."""
    values = {field.name: getattr(args, DEST + field.name) for field in fields(cls)}
    flags = [flag(field) for field in fields(cls) if values[field.name] != field.default]
    return _made(cls, values, ", ".join(flags) or "settings")


def _made(cls: type, values: JSON, where: str) -> Any:
    """The settings of these values. Raise `BadInput` if the class refuses them with `ValueError`, or fails."""
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
    """Each setting as a run's identity has it: a file by its name, since its bytes are kept apart."""
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    return {name: file_name(name, value) if isinstance(value, Path) else value for name, value in values.items()}


def restored(cls: type, identity: JSON, found: Mapping[str, Path]) -> Any:
    """The settings of an earlier run: files from `found`, other fields from its identity, or their default where it
    has none. Raise `BadInput` naming a field of another type."""
    made: JSON = {}
    empty = defaults(cls)
    for name, kind in kinds(cls).items():
        if kind is Path:
            made[name] = found.get(name)
        elif name in identity and (identity[name] is not None or empty[name] is not None):
            made[name] = checked(identity, name, kind)
    return _made(cls, made, "the run's manifest: field identity.settings")


def checked(identity: JSON, name: str, kind: Any) -> Any:
    """A setting of an identity. Raise `BadInput` where it has another type than `kind`."""
    value = identity.get(name)
    if not _fits(value, kind):
        raise BadInput(
            f"the run's manifest: field identity.settings.{name}: expected {_wanted(kind)}, got {shown(value)}"
        )
    return value


def defaults(cls: Any) -> JSON:
    """Each setting that is no file, and its default. Raise `BadSettings` if the class refuses its own defaults."""
    try:
        made = cls()
    except Exception as error:  # of the author's code, not ours
        raise BadSettings(f"{cls.__qualname__}: its defaults are refused: {_sentence(error)}") from None
    return {name: getattr(made, name) for name, kind in kinds(cls).items() if kind is not Path}


def file_fields(cls: Any) -> list[str]:
    return [name for name, kind in kinds(cls).items() if kind is Path]


def files(settings: Any) -> dict[str, Path]:
    """Fields that name a file, and the file."""
    found = {name: getattr(settings, name) for name in file_fields(type(settings))}
    return {name: path for name, path in found.items() if path is not None}


def contents(settings: Any) -> dict[str, bytes]:
    """The bytes of files that settings name, by the names under which a run's folder keeps them."""
    found: dict[str, bytes] = {}
    for field, path in files(settings).items():
        if (name := kept_name(field, path)) in found:
            raise BadInput(f"{path}: the run's folder has another setting's file as {name}: give one another name")
        found[name] = _content(path)
    return found


def kept_name(field: str, path: Path) -> str:
    """The name of a file's copy, which the copy itself has, too."""
    return f"{field}_{file_name(field, path)}"


def file_name(field: str, path: Path) -> str:
    """The name of a file as identity and reports have it: one for the original and its copy."""
    return path.name.removeprefix(f"{field}_")


def _content(path: Path) -> bytes:
    try:
        return content(path)
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from None
