"""A benchmark's settings: one dataclass defines flags of `run`, a part of the identity, and what
`resume` reads back.

Fields may be `bool`, `int`, `float`, `str`, a `Literal` of texts, or `Path | None` for a file.
`history_length` becomes `--history-length`, a `bool` that is true by default `--no-NAME`;
`metadata={"help": ...}` explains a flag. With None as its default, a field may be `int | None` and
the like.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from harness.benchmarks.files import input_file
from harness.benchmarks.user_code import MAX_ERROR_CHARACTERS, described
from harness.errors import BadInput, HarnessError, in_brief
from harness.model import JSON
from harness.option import (
    ANY_TEXT,
    CHECKS,
    UNITS,
    Check,
    Option,
    flag_of,
    kind_of,
    one_of,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from harness.benchmark import Benchmark

DEST = "setting "
"""Before the names under which parsed arguments have settings, so that none is taken for one of the
command's own."""


KINDS = (str, int, float, bool, Path)


class BadSettings(TypeError):
    """A settings class that no flags can be made of."""


def kinds(cls: object) -> Mapping[str, Any]:
    """Return the type of each field: one of `KINDS`, or a tuple of a `Literal`'s texts. Raise
    `BadSettings`."""
    if not (isinstance(cls, type) and is_dataclass(cls)):
        raise BadSettings(
            f"{getattr(cls, '__qualname__', cls)} is no dataclass: put @dataclass(frozen=True)"
            " above it"
        )

    hints = get_type_hints(cls)
    field_kinds = {}
    for field in fields(cls):
        place = f"{cls.__qualname__}.{field.name}"
        field_kinds[field.name] = _kind(place, field, hints[field.name])

    return field_kinds


def _kind(place: str, field: Field[Any], hint: object) -> Any:
    if field.default is MISSING:
        raise BadSettings(f"{place} has no default")

    kind, many = kind_of(hint)
    if many or not (isinstance(kind, tuple) or kind in KINDS):
        raise BadSettings(
            f"{place}: a setting is text, a number, true or false, a Literal of texts, or a Path"
        )

    fits, expected = _check(kind)
    if field.default is not None and not fits(field.default):
        raise BadSettings(f"{place}: its default is {in_brief(field.default)}, expected {expected}")

    if field.default is None and kind is bool:
        raise BadSettings(
            f"{place}: a setting that is true or false has one of them as its default"
        )

    return kind


def _check(kind: object) -> Check:
    if isinstance(kind, tuple):
        return one_of(kind)
    if kind is str:
        return ANY_TEXT
    return CHECKS[kind]


def options(cls: type, title: str, taken: Collection[str] = ()) -> tuple[Option, ...]:
    """Return an option for each field. Raise `BadSettings` for one whose flag is `taken` by the
    command itself."""
    field_options = []
    field_kinds = kinds(cls)
    for field in fields(cls):
        # Otherwise one of the two could not be given.
        if flag(field) in taken:
            raise BadSettings(
                f"{cls.__qualname__}.{field.name}: {flag(field)} is an option of the command"
                " itself: rename it"
            )

        kind = field_kinds[field.name]
        help_texts = [str(field.metadata.get("help") or "")]
        if kind is not bool and field.default not in (None, ""):
            help_texts.append(f"default: {field.default}")

        option = Option(
            DEST + field.name,
            kind,
            field.default,
            many=False,
            help_text="; ".join(filter(None, help_texts)),
            unit=UNITS.get(kind, ""),
            flags=(flag(field),),
            check=_check(kind),
            group=f"settings of {title} (part of the run's identity)",
            everyday=True,
        )
        field_options.append(option)

    return tuple(field_options)


def flag(field: Field[Any]) -> str:
    return flag_of(field.name, field.default)


def flags(cls: type) -> list[str]:
    return [flag(field) for field in fields(cls)]


def given(cls: type, values: Mapping[str, Any]) -> Any:
    """Return the settings of a command, of which some have values. Raise `BadInput` with the flags
    if the class refuses them."""
    changed = [
        flag(field)
        for field in fields(cls)
        if values.get(field.name, field.default) != field.default
    ]
    return _construct(cls, values, ", ".join(changed) or "settings")


def _construct(cls: type, values: Mapping[str, Any], where: str) -> Any:
    """Return the settings of these values. Raise `BadInput` if the class refuses them with
    `ValueError`, or fails."""
    try:
        return cls(**values)
    except HarnessError:
        raise
    except Exception as error:  # the author's code may raise anything
        raise BadInput(f"{where}: {_sentence(error)}") from error


def _sentence(error: Exception) -> str:
    message = " ".join(str(error).split())[:MAX_ERROR_CHARACTERS]
    if message and isinstance(error, ValueError):
        return message
    return described(error)


def identity(settings: DataclassInstance) -> JSON:
    """Return each setting as it is in a run's identity: a file by its name, since its bytes are
    kept apart."""
    values = {}
    for field in fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, Path):
            # Paths differ between machines; the file's bytes are compared by their hash.
            value = file_name(field.name, value)
        values[field.name] = value
    return values


def of_run(
    benchmark: type[Benchmark] | Benchmark,
    identity: JSON,
    paths: Mapping[str, Path],
) -> Any:
    """Return the settings of a benchmark's class that an earlier run's identity was made from.

    Files are from `paths` (field -> current path; empty if no user is played), other fields from
    the identity, or their default where it has none. Raise `BadInput` with the name of a field of
    another type.
    """
    if benchmark.imports.settings is not None:
        return benchmark.imports.settings(identity, paths)

    cls = benchmark.Settings
    values: JSON = {}
    default_values = defaults(cls)
    for name, kind in kinds(cls).items():
        # The folder keeps a copy, whose path is known only now.
        if kind is Path:
            values[name] = paths.get(name)
        elif identity.get(name, default_values[name]) is not default_values[name]:
            values[name] = checked(identity, name, kind)

    return _construct(cls, values, "the run's manifest: field identity.settings")


def checked(identity: JSON, name: str, kind: object) -> Any:
    """Return a setting of an identity. Raise `BadInput` if it is not of this kind."""
    fits, expected = _check(kind)
    value = identity.get(name)
    if not fits(value):
        place = f"the run's manifest: field identity.settings.{name}"
        raise BadInput(f"{place}: expected {expected}, got {in_brief(value)}")
    return value


def defaults(cls: type) -> JSON:
    """Return each setting that is no file, and its default. Raise `BadSettings` if the class
    refuses its defaults."""
    try:
        settings = cls()
    except Exception as error:  # the author's code may raise anything
        raise BadSettings(
            f"{cls.__qualname__}: its defaults are refused: {_sentence(error)}"
        ) from None
    return {name: getattr(settings, name) for name, kind in kinds(cls).items() if kind is not Path}


def file_fields(cls: object) -> list[str]:
    return [name for name, kind in kinds(cls).items() if kind is Path]


def files(settings: object) -> dict[str, Path]:
    """Return each field that names a file, and the file."""
    paths = {}
    for name in file_fields(type(settings)):
        path = getattr(settings, name)
        if path is not None:
            paths[name] = path
    return paths


def contents(settings: object) -> dict[str, bytes]:
    """Return the bytes of files that settings name, by the names under which a run's folder keeps
    them."""
    data: dict[str, bytes] = {}
    for field, path in files(settings).items():
        name = kept_name(field, path)
        if name in data:
            raise BadInput(
                f"{path}: the run's folder has another setting's file as {name}: give one another"
                " name"
            )

        data[name] = input_file(path)

    return data


def kept_name(field: str, path: Path) -> str:
    """Return the name of a file's copy in a run's folder; the copy itself has the same one."""
    return f"{field}_{file_name(field, path)}"


def file_name(field: str, path: Path) -> str:
    """Return the name of a file in identity and reports: the same for the original and its copy."""
    return path.name.removeprefix(f"{field}_")
