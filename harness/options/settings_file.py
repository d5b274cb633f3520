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
from collections import defaultdict
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
from harness.options.options import Fallback, SettingsFileValues
from harness.options.user_files import Document

SECRETS = frozenset({"api-key", "api_key", "extra-header", *fields.KEYS})
FOR_HELP = frozenset({"help", "help-all"})
RUN = "run"
RESUME = "resume"
# Options of an address in this file, and of its key.
URLS = "api_url"
KEY_FILE = "api_key_file"
ENDPOINT = frozenset({URLS, KEY_FILE, "config"})
"""Options that `resume` does not take from here: each run has its own endpoint."""
RIVALS = (
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


class _Table(NamedTuple):
    """A table: what precedes its keys in messages, its entries, and the options that it may set, by
    flag."""

    prefix: str
    entries: JSON
    options: Mapping[str, Option]


def of_command(
    call: CommandCall, typed: Mapping[str, Any], run_call: Callable[[], CommandCall]
) -> SettingsFileValues:
    """Return what a command gets of the file that it names, or finds. `run_call` returns a call of
    `run`: a run whose address this file named goes on where it names it now. Raise `BadInput` for a
    file that cannot be used."""
    file = user_files.read(user_files.SETTINGS, typed.get("settings_file"), os.environ)
    if file is None:
        return SettingsFileValues()
    benchmark = typed.get("benchmark", BENCHMARK if call.command == RUN else "")
    values = values_for(file, call, benchmark, frozenset(typed))
    if call.command == RESUME:
        values_of_run = values_for(file, run_call(), BENCHMARK, frozenset())
        values = replace(values, fallback=values_of_run.fallback)
    return values


@dataclass(frozen=True, slots=True)
class CommandCall:
    """A command's name and options. `options_of_all` returns those of all commands, by their flags
    without dashes."""

    command: str
    options: Sequence[Option]
    settings_options: Sequence[Option]
    commands: Collection[str]
    options_of_all: Callable[[], Mapping[str, Sequence[Option]]]


def values_for(
    file: Document, call: CommandCall, benchmark: str, typed: Set[str]
) -> SettingsFileValues:
    """Return what a file gives a command. Raise `BadInput` with file and key for one that is
    unknown, or whose value the option refuses."""
    values = _values(file, call, benchmark)
    if KEY_FILE in values and URLS not in values and call.command == RUN:
        raise BadInput(
            f"{values[KEY_FILE].place}: expected api-url in the same file, the address that the key"
            " is for"
        )
    replaced = _with_rivals(call, typed, RIVALS)
    for option in call.options:
        if option.variable and os.environ.get(option.variable):
            replaced.add(option.name)
    for name in replaced & values.keys():
        del values[name]
    places = {name: value.place for name, value in values.items()}
    endpoint = dict[str, _Value]()
    if call.command == RUN:
        # An address of the file is no option's value: providers and variables go before it
        # (`Fallback`).
        for name in (URLS, KEY_FILE):
            if name in values:
                endpoint[name] = values.pop(name)
    plain_values = {name: value.value for name, value in values.items()}
    return SettingsFileValues(plain_values, _fallback(file, endpoint), places)


def _fallback(file: Document, endpoint: Mapping[str, _Value]) -> Fallback | None:
    if URLS not in endpoint:
        return None
    key_file = None
    if KEY_FILE in endpoint:
        key_file = endpoint[KEY_FILE].value
    return Fallback(
        tuple(endpoint[URLS].value), key_file, str(file.path), f"--settings {file.path.resolve()}"
    )


def _values(file: Document, call: CommandCall, benchmark: str) -> dict[str, _Value]:
    """Return the values for a command, by option: those of a benchmark over the command's, these
    over all's."""
    values = dict[str, _Value]()
    for table in _tables(file, call, benchmark):
        table_values = dict[str, _Value]()
        for name, value in table.entries.items():
            place = FileKey(file.path, table.prefix + name)
            option = _option(name, place, table, call)
            if option is None:
                continue
            if option.name in _with_rivals(call, set(table_values)):
                raise BadInput(
                    f"{place}: another field of this table is for the same: leave one out"
                )
            table_values[option.name] = _value(value, name, option, place)
        # A `provider` in [run] replaces an `api-url` for all commands, as a typed one would.
        for name in _with_rivals(call, set(table_values), RIVALS) & values.keys():
            del values[name]
        values |= table_values
    return values


def _tables(file: Document, call: CommandCall, benchmark: str) -> Iterator[_Table]:
    """Yield the tables that a command reads: the file's own, the command's, its benchmark's."""
    usable = call.options
    if call.command == RESUME:
        usable = [option for option in call.options if option.name not in ENDPOINT]
    options = _by_flag(usable)
    of_all = dict[str, Any]()
    of_command: JSON = {}
    for name, value in file.content.items():
        if name not in call.commands or type(value) is not dict:
            of_all[name] = value
        elif name == call.command:
            of_command = value
    yield _Table("", of_all, options)

    entries = dict[str, Any]()
    of_benchmarks = dict[str, JSON]()
    for name, value in of_command.items():
        if call.command == RUN and name not in options and _is_of_benchmark(name, value):
            of_benchmarks[name] = value
        else:
            entries[name] = value
    prefix = f"{call.command}."
    yield _Table(prefix, entries, options)
    for name, settings_of_benchmark in of_benchmarks.items():
        is_shipped = registry.is_shipped(name) and name.lower() == benchmark.lower()
        if name == benchmark or is_shipped:
            options = _by_flag(call.settings_options)
            yield _Table(f"{prefix}{name}.", settings_of_benchmark, options)


def _by_flag(options: Sequence[Option]) -> dict[str, Option]:
    """Return options by their flags without dashes."""
    by_flag = dict[str, Option]()
    for option in options:
        for flag in option.flags:
            if flag.startswith("--"):
                by_flag[flag[2:]] = option
    by_flag |= {f"no-{option.label}": option for option in options if option.both}
    return by_flag


def _is_of_benchmark(name: str, value: object) -> bool:
    return type(value) is dict and (registry.is_name(name) or name.endswith(CODE) or ":" in name)


def _option(name: str, place: FileKey, table: _Table, call: CommandCall) -> Option | None:
    """Return the option of a key, None if only other commands have it. Raise `BadInput` if no file
    may have it."""
    if name.lower() in SECRETS:
        raise BadInput(
            f"{place}: keys do not belong in this file: name a variable in the providers file, with"
            " key_env"
        )
    option = table.options.get(name)
    options_of_all: Mapping[str, Sequence[Option]] = {}
    if option is None:
        options_of_all = call.options_of_all()  # imports the modules of all commands
    candidates = [option] if option else options_of_all.get(name, ())
    if name in FOR_HELP or any(candidate.once for candidate in candidates):
        raise BadInput(f"{place}: this is decided for each call: give --{name}")
    if not table.prefix and any(candidate.per_command for candidate in candidates):
        raise BadInput(
            f"{place}: this means something else in each command: put it into one's table, such as"
            " [run]"
        )
    if option is not None:
        return option
    is_of_others = any(not candidate.name.startswith(settings.DEST) for candidate in candidates)
    if is_of_others and not table.prefix:
        return None
    known = [*table.options]
    if not table.prefix:
        known += [*options_of_all, *call.commands]
    raise BadInput(_unknown(name, place, table, known, call))


def _unknown(
    name: str, place: FileKey, table: _Table, known: Sequence[str], call: CommandCall
) -> str:
    """Return the message on a key that is no option's."""
    if not table.prefix and name in call.commands:
        return f"{place}: expected a table, [{name}]"
    owner = owner_of(f"--{name}")
    if owner:
        return f"{place}: this is a setting of {owner}: put it into [{RUN}.{owner}]"
    return f"{place}: unknown field{did_you_mean(name, known)}"


def _value(value: object, name: str, option: Option, place: FileKey) -> _Value:
    """Return a value as the option has it. Raise `BadInput` if it refuses it."""
    if option.kind is bool:
        if type(value) is not bool:
            raise BadInput(f"{place}: expected true or false")
        is_off = option.off or (option.both and name == f"no-{option.label}")
        return _Value(place, value != is_off)
    if isinstance(value, list) and not option.many:
        raise BadInput(f"{place}: expected one value: the flag does not repeat")
    members = value if isinstance(value, list) else [value]
    is_json = option.kind is dict
    try:
        values = [option.parse(_plain(member, place, is_json=is_json)) for member in members]
    except ValueError as error:
        raise BadInput(f"{place}: {error}") from None
    # As in the providers file: an address with user and password is refused.
    fits, expected = fields.PROVIDER["base_url"]
    if option.name == URLS and not (values and fits(values)):
        raise BadInput(f"{place}: expected {expected}")
    return _Value(place, values if option.many else values[0])


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


def _with_rivals(call: CommandCall, names: Set[str], groups: Sequence[Set[str]] = ()) -> set[str]:
    """Return options with those that cannot be combined with them."""
    by_rivals = defaultdict[str, set[str]](set)
    for option in call.options:
        if option.rivals:
            by_rivals[option.rivals].add(option.name)
    excluded = set(names)
    for group in (*by_rivals.values(), *groups):
        if group & names:
            excluded |= group
    return excluded


def owner_of(flag: str) -> str | None:
    """Return the benchmark that ships and has this flag, None if none has it."""
    for name in registry.names():
        if flag in settings.flags(registry.find(name).Settings):
            return name
    return None
