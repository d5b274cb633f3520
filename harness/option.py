"""An option is a field of a frozen dataclass: its type, default, unit and one sentence
(docs/design.md, section 7).

    @dataclass(frozen=True)
    class Hedge:
        hedge: float | None = option(None, "send a slow request again after N times ...", unit="N",
        check=positive)

Flags and their help, `harness.toml`, `harness config`, completion, keywords of the Python interface
and the check of values follow from it. A field may be `bool`, `int`, `float`, `str`, `Path`, a
`Literal` of texts, a `Mapping` for JSON, a `Sequence` of these for an option that may be repeated,
or anything that `read` makes of a text; with `| None` where the default is None. A field without
`option()` is no option.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache
from os.path import expanduser
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Any,
    Literal,
    TypeVar,
    Union,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from harness.defaults import BITS_64
from harness.errors import BadInput, in_brief

T = TypeVar("T")
Check = tuple[Callable[[Any], bool], str]
"""Whether a value fits, and what is expected, in words."""
NO_TEXT = "a name, got nothing (a variable that is not set?)"
RUNS = "runs"
"""What completes names of runs."""


def number(fits: Callable[[float], bool], expected: str) -> Check:
    """Return the check of a number that a float can hold; TOML's have no end."""

    def is_such(value: object) -> bool:
        # Not `isinstance`, for which True is a number.
        if type(value) is not int and type(value) is not float:
            return False
        try:
            return math.isfinite(value) and fits(value)
        except OverflowError:
            return False

    return is_such, expected


def whole(low: int, high: int) -> Check:
    up_to = "" if high >= BITS_64 - 1 else f" to {high}"

    def is_within(value: object) -> bool:
        return type(value) is int and low <= value <= high

    return is_within, f"a whole number from {low}{up_to}"


def one_of(texts: Sequence[str]) -> Check:
    return lambda value: type(value) is str and value in texts, f"one of {', '.join(texts)}"


POSITIVE = number(lambda value: value > 0, "a number above 0")
NOT_NEGATIVE = number(lambda value: value >= 0, "a number from 0")
ANY_TEXT: Check = (lambda value: type(value) is str, "text")
CHECKS: Mapping[Any, Check] = {
    str: (lambda value: type(value) is str and bool(value.strip()), NO_TEXT),
    int: (whole(-BITS_64, BITS_64 - 1)[0], "a whole number"),
    float: number(lambda value: True, "a number"),
    bool: (lambda value: type(value) is bool, "true or false"),
    Path: (lambda value: isinstance(value, Path) and "\0" not in str(value), "a path"),
    dict: (lambda value: isinstance(value, dict), "a JSON object"),
    object: (lambda value: True, "a value"),
}
"""What fits a type, where an option has no check of its own."""
UNITS: Mapping[Any, str] = {str: "TEXT", Path: "FILE", int: "N", float: "N", dict: "JSON"}


def option(
    default: object = MISSING,
    help_text: str = "",
    *,
    unit: str = "",
    flags: str = "",
    check: Check | None = None,
    read: Callable[[str], Any] | None = None,
    **members: object,
) -> Any:
    """Return a field that is an option; `flags` are its flags where they do not follow from its
    name, and `unit` names its value in the help. `members` are others of `Option`."""
    members |= {
        "help_text": help_text,
        "unit": unit,
        "flags": tuple(flags.split()),
        "check": check,
        "read": read,
    }
    # A dataclass refuses a default that can change.
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata={"option": members})
    return field(default=default, metadata={"option": members})


@dataclass(frozen=True, slots=True)
class Option:
    """An option as its field declares it.

    `kind` is a key of `CHECKS`, or the texts of a `Literal`; `many` may be repeated. `off` is a
    switch whose flag turns it off, `both` has a flag for each way. `read` makes a value of a text.
    `position` is its name among the arguments without a flag, `remainder` takes all from there.

    `everyday` options are in the first help. Of those with the same `rivals` one is given. `once`
    is a decision for one call, which no settings file has; `per_command` means something else in
    each command, so that a settings file has it in a command's table only. `variable` is one for
    the same, `secret` is not shown, and `completes` is what a shell offers.
    """

    name: str
    kind: object
    default: object
    many: bool
    help_text: str = ""
    unit: str = ""
    flags: tuple[str, ...] = ()
    check: Check | None = None
    read: Callable[[str], Any] | None = None
    group: str = ""
    everyday: bool = False
    position: str = ""
    remainder: bool = False
    rivals: str = ""
    once: bool = False
    per_command: bool = False
    secret: bool = False
    variable: str = ""
    completes: str = ""

    @property
    def off(self) -> bool:
        return self.kind is bool and self.default is True

    @property
    def both(self) -> bool:
        return self.kind is bool and self.default is None

    @property
    def required(self) -> bool:
        return self.default is MISSING

    @property
    def label(self) -> str:
        """Return the name that messages, settings file and `config` have: that of its flag."""
        if self.flags:
            return self.flags[0].removeprefix("--")
        return self.name

    @property
    def choices(self) -> Sequence[str]:
        if isinstance(self.kind, tuple):
            return self.kind
        return ()

    def value(self, raw: object) -> Any:
        """Return a value of the command line, a settings file or Python as commands have it. Raise
        `ValueError` with what is expected."""
        if not self.many:
            return self.parse(raw)
        members = raw if isinstance(raw, (list, tuple, set, frozenset)) else [raw]
        return [self.parse(member) for member in members]

    def parse(self, raw: object) -> Any:
        """Return one value of those that may be repeated. No shell replaces `~` after a flag's
        `=`."""
        if isinstance(raw, (str, Path)):
            if str(raw).partition("/")[0] == "~":
                raw = expanduser(raw)
            if self.read is not None:
                return self._read(self.read, str(raw))
        value = _converted(raw, self.kind)
        fits, expected = self._check
        if fits(value):
            return value
        message = f"expected {expected}"
        if not self.secret and expected is not NO_TEXT:
            message += f", got {in_brief(raw)}"
        raise ValueError(message)

    def _read(self, read: Callable[[str], Any], text: str) -> Any:
        if not text.strip():
            raise ValueError(f"expected {NO_TEXT}")
        try:
            return read(text)
        except BadInput as error:
            raise ValueError(str(error)) from None

    @property
    def _check(self) -> Check:
        """Return the check of this option, else that of its kind."""
        if self.check:
            return self.check
        if self.choices:
            return one_of(self.choices)
        return CHECKS[self.kind]


def _converted(raw: object, kind: object) -> Any:
    """Return a text as its type, and a number as the wider one; what cannot be converted as it
    is."""
    try:
        if isinstance(raw, str) and kind in (int, float):
            return kind(raw)
        if kind is float and type(raw) is int:
            return float(raw)
    except (ValueError, OverflowError):
        return raw
    if kind is Path and isinstance(raw, str):
        return Path(raw)
    is_text = isinstance(raw, Path) or (type(raw) in (int, float) and CHECKS[float][0](raw))
    if kind is str and is_text:
        return str(raw)
    return raw


@dataclass_transform(
    frozen_default=True, kw_only_default=True, eq_default=False, field_specifiers=(field,)
)
def command_options(cls: type[T]) -> type[T]:
    """Make a class the options of a command, or some that several commands have: a frozen
    dataclass, without a text form, which would show secrets."""
    return dataclass(frozen=True, kw_only=True, eq=False, repr=False)(cls)


def options_of(cls: type[Any]) -> tuple[Option, ...]:
    """Return the options that a dataclass declares, in the order of its fields."""
    return _options_of(cast(Any, cls))


@cache
def _options_of(cls: type[Any]) -> tuple[Option, ...]:
    # With `from __future__ import annotations` a field's own type is a text.
    hints = get_type_hints(cls)
    declared = [member for member in fields(cls) if "option" in member.metadata]
    return tuple([_option(member, hints[member.name]) for member in declared])


def _option(declared: Field[Any], hint: object) -> Option:
    kind, many = kind_of(hint)
    members = dict(declared.metadata["option"])
    members["unit"] = members["unit"] or UNITS.get(kind, "")
    if not members["flags"] and not members.get("position"):
        members["flags"] = (flag_of(declared.name, declared.default),)
    default = declared.default
    if declared.default_factory is not MISSING:
        default = declared.default_factory()
    return Option(declared.name, kind, default, many, **members)


def flag_of(name: str, default: object) -> str:
    """Return the flag of a field; that of a switch that is on turns it off."""
    prefix = "--no-" if default is True else "--"
    return prefix + name.replace("_", "-")


def kind_of(hint: object) -> tuple[Any, bool]:
    """Return the kind of a field's type, and whether it may be repeated."""
    if get_origin(hint) in (Union, UnionType):
        others = [member for member in get_args(hint) if member is not NoneType]
        hint = object
        if len(others) == 1:
            hint = others[0]
    if get_origin(hint) is Sequence:
        return kind_of(get_args(hint)[0])[0], True
    if get_origin(hint) is Literal and all(isinstance(text, str) for text in get_args(hint)):
        return get_args(hint), False
    if get_origin(hint) is Mapping:
        return dict, False
    return (hint if hint in CHECKS else object), False


# Readers of texts


def folder(text: str) -> Path:
    """Return the path of a folder that exists or can be created."""
    try:
        # With the dot, a file at this path is an error, and so is a folder that may not be entered.
        os.stat(os.path.join(text, "."))  # noqa: PTH116, PTH118, a Path leaves out the last dot
    except FileNotFoundError:
        if os.path.islink(text):  # noqa: PTH114, as above
            raise ValueError(f"cannot use {in_brief(text)}: it is a link to nothing") from None
    except (OSError, ValueError) as error:
        raise ValueError(
            f"cannot use {in_brief(text)}: {getattr(error, 'strerror', error)}"
        ) from None
    return Path(text)


def file_of(*endings: str) -> Callable[[str], Path]:
    """Return the reader of a file to write, with the endings that its name may have: none of a
    record, a task or a log, so that a typing error overwrites only what can be made again."""

    def path(text: str) -> Path:
        target = Path(text)
        if target.suffix.lower() not in endings or "\0" in text:
            raise ValueError(
                f"expected the name of an {' or '.join(endings)} file, got {in_brief(text)}"
            )
        return target

    return path
