"""The settings file: values of options, by the names of their flags (docs/design.md, section 7).

    concurrency = 64                # of every command that has this option

    [run]                           # of one command
    model = "deepseek:deepseek-chat"

    [run."my_benchmark.py"]         # settings of one benchmark, as the command line names it
    history-length = 7

Each value is checked as a flag's is. An option of the command, or a variable for the same, takes
precedence. The file holds no keys. One in the current folder counts only once it is allowed
(`user_files`). What a file says is not what the user typed: `Options.typed` has the latter.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from harness.benchmarks import registry, settings
from harness.defaults import BENCHMARK
from harness.errors import BadInput, did_you_mean
from harness.model import JSON
from harness.option import Option, number
from harness.options import fields, user_files
from harness.options.options import Fallback, Given
from harness.options.user_files import Document

SECRETS = frozenset({"api-key", "api_key", "extra-header", *fields.KEYS})
FOR_HELP = frozenset({"help", "help-all"})
RUN, RESUME = "run", "resume"
URLS, KEY_FILE = "api_url", "api_key_file"
"""Options of an address in this file, and of its key."""
ENDPOINT = frozenset({URLS, KEY_FILE, "config"})
"""Options that `resume` does not take from here: each run has its own endpoint."""
TOGETHER = (
    {"api_url", "provider", "config"},
    {"api_key", "api_key_file"},
    {"model", "queue"},
    {"json", "format"},
)
"""Options of which one on the command line replaces the others here, in addition to rivals."""
CODE = ".py"


class FileKey(NamedTuple):
    """Where a value is: file and key."""

    path: Path
    key: str

    def __str__(self) -> str:
        return f"{self.path}: {self.key}"


class _Value(NamedTuple):
    place: FileKey
    value: Any


class _Level(NamedTuple):
    """A table: what precedes its keys in messages, its entries, and the options that it may set, by
    flag."""

    prefix: str
    entries: JSON
    options: Mapping[str, Option]


def of_command(call: Call, typed: Mapping[str, Any], run_call: Callable[[], Call]) -> Given:
    """Return what a command gets of the file that it names, or finds. `run_call` returns a call of
    `run`: a run whose address this file named goes on where it names it now. Raise `BadInput` for a
    file that cannot be used."""
    if (
        found := user_files.read(user_files.SETTINGS, typed.get("settings_file"), os.environ)
    ) is None:
        return Given()
    named = typed.get("benchmark", BENCHMARK if call.command == RUN else "")
    of_file = given(found, call, named, frozenset(typed))
    if call.command != RESUME:
        return of_file
    of_run = given(found, run_call(), BENCHMARK, frozenset())
    return replace(of_file, fallback=of_run.fallback)


@dataclass(frozen=True, slots=True)
class Call:
    """A command's name and options. `others` returns the options of all commands, by their flags
    without dashes."""

    command: str
    own: Sequence[Option]
    of_benchmark: Sequence[Option]
    commands: Collection[str]
    others: Callable[[], Mapping[str, Sequence[Option]]]


def given(file: Document, call: Call, benchmark: str, typed: Set[str]) -> Given:
    """Return what a file gives a command. Raise `BadInput` with file and key for one that is
    unknown, or whose value the option refuses."""
    found = _values(file, call, benchmark)
    if KEY_FILE in found and URLS not in found and call.command == RUN:
        raise BadInput(
            f"{found[KEY_FILE].place}: expected api-url in the same file, the address that the key"
            " is for"
        )
    replaced = _with_rivals(call, typed, TOGETHER)
    replaced |= {one.name for one in call.own if one.variable and os.environ.get(one.variable)}
    left = {name: value for name, value in found.items() if name not in replaced}
    places = {name: value.place for name, value in left.items()}
    endpoint = {
        name: left.pop(name) for name in (URLS, KEY_FILE) if name in left and call.command == RUN
    }
    return Given(
        {name: value.value for name, value in left.items()}, _fallback(file, endpoint), places
    )


def _fallback(file: Document, endpoint: Mapping[str, _Value]) -> Fallback | None:
    if URLS not in endpoint:
        return None
    key_file = endpoint[KEY_FILE].value if KEY_FILE in endpoint else None
    return Fallback(
        tuple(endpoint[URLS].value), key_file, str(file.path), f"--settings {file.path.resolve()}"
    )


def _values(file: Document, call: Call, benchmark: str) -> dict[str, _Value]:
    """Return the values for a command, by option: those of a benchmark over the command's, these
    over all's."""
    found: dict[str, _Value] = {}
    for level in _levels(file, call, benchmark):
        read: dict[str, _Value] = {}
        for name, value in level.entries.items():
            place = FileKey(file.path, level.prefix + name)
            if one := _option(name, place, level, call):
                if one.name in _with_rivals(call, set(read)):
                    raise BadInput(
                        f"{place}: another field of this table is for the same: leave one out"
                    )
                read[one.name] = _value(value, name, one, place)
        found = {
            name: one
            for name, one in found.items()
            if name not in _with_rivals(call, set(read), TOGETHER)
        }
        found |= read
    return found


def _levels(file: Document, call: Call, benchmark: str) -> Iterator[_Level]:
    own = _by_flag([one for one in call.own if call.command != RESUME or one.name not in ENDPOINT])
    tables = {
        name: value
        for name, value in file.content.items()
        if name in call.commands and type(value) is dict
    }
    yield _Level(
        "", {name: value for name, value in file.content.items() if name not in tables}, own
    )
    table, of_benchmarks = tables.get(call.command, {}), JSON()
    if call.command == RUN:
        of_benchmarks = {
            name: table[name]
            for name in table.keys() - own.keys()
            if _is_of_benchmark(name, table[name])
        }
    prefix = f"{call.command}."
    yield _Level(
        prefix, {name: value for name, value in table.items() if name not in of_benchmarks}, own
    )
    for name, entries in of_benchmarks.items():
        if name == benchmark or (registry.is_shipped(name) and name.lower() == benchmark.lower()):
            yield _Level(f"{prefix}{name}.", entries, _by_flag(call.of_benchmark))


def _by_flag(every: Sequence[Option]) -> dict[str, Option]:
    found = {flag[2:]: one for one in every for flag in one.flags if flag[:2] == "--"}
    return found | {f"no-{one.label}": one for one in every if one.both}


def _is_of_benchmark(name: str, value: object) -> bool:
    return type(value) is dict and (registry.is_name(name) or name.endswith(CODE) or ":" in name)


def _option(name: str, place: FileKey, level: _Level, call: Call) -> Option | None:
    """Return the option of a key, None if only other commands have it. Raise `BadInput` if no file
    may have it."""
    if name.lower() in SECRETS:
        raise BadInput(
            f"{place}: keys do not belong in this file: name a variable in the providers file, with"
            " key_env"
        )
    found = level.options.get(name)
    others = call.others() if found is None else {}  # imports the modules of all commands
    every = [found] if found else others.get(name, ())
    if name in FOR_HELP or any(one.once for one in every):
        raise BadInput(f"{place}: this is decided for each call: give --{name}")
    if not level.prefix and any(one.own for one in every):
        raise BadInput(
            f"{place}: this means something else in each command: put it into one's table, such as"
            " [run]"
        )
    if found is not None:
        return found
    if not level.prefix and any(not one.name.startswith(settings.DEST) for one in every):
        return None
    if not level.prefix and name in call.commands:
        raise BadInput(f"{place}: expected a table, [{name}]")
    if owner := owner_of(f"--{name}"):
        raise BadInput(f"{place}: this is a setting of {owner}: put it into [{RUN}.{owner}]")
    known = [*level.options, *(() if level.prefix else (*others, *call.commands))]
    raise BadInput(f"{place}: unknown field{did_you_mean(name, known)}")


def _value(value: object, name: str, one: Option, place: FileKey) -> _Value:
    """Return a value as the option has it. Raise `BadInput` if it refuses it."""
    if one.kind is bool:
        if type(value) is not bool:
            raise BadInput(f"{place}: expected true or false")
        is_off = one.off or (one.both and name == f"no-{one.label}")
        return _Value(place, value != is_off)
    if isinstance(value, list) and not one.many:
        raise BadInput(f"{place}: expected one value: the flag does not repeat")
    each = value if isinstance(value, list) else [value]
    try:
        made = [one.one(_plain(every, place, is_json=one.kind is dict)) for every in each]
    except ValueError as error:
        raise BadInput(f"{place}: {error}") from None
    fits, expected = fields.PROVIDER["base_url"]
    if one.name == URLS and not (made and fits(made)):
        raise BadInput(f"{place}: expected {expected}")
    return _Value(place, made if one.many else made[0])


def _plain(value: object, place: FileKey, *, is_json: bool) -> Any:
    """Return a value of TOML that a flag can have: not a date, nor text with control characters."""
    match value:
        case str() if value.isprintable():
            return value
        case bool():
            pass
        case int() | float() if number(lambda value: True, "")[0](value):
            return value
        case dict() if is_json and fields.BODY[0](value):
            return value
    raise BadInput(
        f"{place}: expected what the flag takes: text, a number, a table for JSON, or a list if it"
        " repeats"
    )


def _with_rivals(call: Call, names: Set[str], groups: Sequence[Set[str]] = ()) -> set[str]:
    """Return options with those that cannot be combined with them."""
    exclusive = [
        {one.name for one in call.own if one.rivals == two.rivals} for two in call.own if two.rivals
    ]
    return {*names, *(name for group in (*exclusive, *groups) if group & names for name in group)}


def owner_of(flag: str) -> str | None:
    """Return the benchmark that ships and has this flag, None if none has it."""
    return next(
        (name for name in registry.names() if flag in settings.flags(registry.find(name).Settings)),
        None,
    )
