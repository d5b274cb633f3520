"""The settings file: values of options, by the names of their flags (docs/design.md, section 7).

    concurrency = 64                # of every command that has this option

    [run]                           # of one command
    model = "deepseek:deepseek-chat"

    [run."my_benchmark.py"]         # settings of one benchmark, as the command line names it
    history-length = 7

Values become words in front of the command's own, so each is checked as a flag is. An option of the command, or a
variable for the same, takes precedence. The file holds no keys. One in the current folder counts only once it is
allowed (`user_files`). What a file says is not what the user typed: `Namespace.typed` has the latter.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from difflib import get_close_matches
from os.path import expanduser
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from harness.benchmarks import registry, settings
from harness.config import fields, options, secrets
from harness.config.address import Fallback
from harness.config.user_files import Document
from harness.errors import BadInput
from harness.feature import features
from harness.model import JSON

FILE = "harness.toml"
HELP = "your own settings file (default: harness.toml here, or in ~/.config/behavior-harness)"

SECRETS = frozenset({"api-key", "api_key", "extra-header", *fields.KEYS})
DECISIONS = frozenset({"allow", "allow-invalid", "force", "help", "restart", "settings", "trust"})
"""Options that are meant for one call."""
OF_ONE_COMMAND = frozenset({"api-key-file", "model", "name", "platform", "provider", "queue", "subset"})
"""Options that mean something else in another command."""
RUN, RESUME = "run", "resume"
URLS, KEY_FILE = "api_url", "api_key_file"
"""Destinations of the endpoint's options. `resume` takes neither from here: each run has its own."""
TOGETHER = ({"api_url", "provider", "config"}, {"api_key", "api_key_file"}, {"model", "queue"}, {"json", "format"})
"""Destinations of options of which one on the command line replaces the others here, besides argparse's own groups."""
VARIABLES = {"concurrency": "BENCH_MAX_WORKERS", "no_color": "NO_COLOR"}
"""Destination -> the variable for it. Those of addresses and keys are in `address`."""
CODE = ".py"


class FileKey(NamedTuple):
    """Where a value is: file and key."""

    path: Path
    key: str

    def __str__(self) -> str:
        return f"{self.path}: {self.key}"


@dataclass(frozen=True, slots=True)
class Given:
    """What a file gives a command: words, an address with its key, and the place of each value by destination."""

    words: Sequence[str] = ()
    fallback: Fallback | None = None
    places: Mapping[str, FileKey] = field(default_factory=dict)


NOTHING = Given()


class _Value(NamedTuple):
    """Where a value is, the words that the command line would have for it, and the texts that the option takes."""

    place: FileKey
    words: Sequence[str]
    texts: Sequence[str] = ()


class _Level(NamedTuple):
    """A table: what precedes its keys in messages, its entries, and the options that it may set, by name."""

    prefix: str
    entries: JSON
    actions: Mapping[str, argparse.Action]


def named(words: Sequence[str]) -> Path | None:
    """Return the file that a command's words name."""
    return next((Path(value) for name, value in secrets.values(words) if name == "--settings"), None)


@dataclass(frozen=True, slots=True)
class Call:
    """A command's name, parser and words. `others` returns the options of all commands, by name."""

    command: str
    parser: argparse.ArgumentParser
    words: Sequence[str]
    commands: Collection[str]
    others: Callable[[], Collection[str]]


def given(file: Document, call: Call, environment: Mapping[str, str]) -> Given:
    """Return what a file gives a command. Raise `BadInput` with file and key for one that is unknown, or whose value
    the option refuses."""
    found = _values(file, call)
    if KEY_FILE in found and URLS not in found and call.command == RUN:
        raise BadInput(f"{found[KEY_FILE].place}: expected api-url in the same file, the address that the key is for")
    replaced = _with_rivals(call.parser, options.destinations(call.parser, call.words), TOGETHER)
    replaced |= {name for name, variable in VARIABLES.items() if environment.get(variable)}
    left = {name: value for name, value in found.items() if name not in replaced}
    places = {name: value.place for name, value in left.items()}
    endpoint = {name: left.pop(name) for name in (URLS, KEY_FILE) if name in left and call.command == RUN}
    return Given([word for value in left.values() for word in value.words], _fallback(file, endpoint), places)


def _fallback(file: Document, endpoint: Mapping[str, _Value]) -> Fallback | None:
    if URLS not in endpoint:
        return None
    key_file = Path(endpoint[KEY_FILE].texts[0]) if KEY_FILE in endpoint else None
    return Fallback(tuple(endpoint[URLS].texts), key_file, str(file.path))


def _values(file: Document, call: Call) -> dict[str, _Value]:
    """Return the values for a command, by destination: those of a benchmark over the command's, these over all's."""
    found: dict[str, _Value] = {}
    for level in _levels(file, call):
        read: dict[str, _Value] = {}
        for name, value in level.entries.items():
            place = FileKey(file.path, level.prefix + name)
            if action := _action(name, place, level, call):
                if action.dest in _with_rivals(call.parser, set(read)):
                    raise BadInput(f"{place}: another field of this table is for the same: leave one out")
                read[action.dest] = _value(value, f"--{name}", action, place, call.parser)
        found = {name: one for name, one in found.items() if name not in _with_rivals(call.parser, set(read), TOGETHER)}
        found |= read
    return found


def _levels(file: Document, call: Call) -> Iterator[_Level]:
    every = {name[2:]: action for name, action in call.parser._option_string_actions.items() if name[:2] == "--"}
    own = {name: action for name, action in every.items() if not action.dest.startswith(settings.DEST)}
    if call.command == RESUME:
        own = {name: action for name, action in own.items() if action.dest not in (URLS, KEY_FILE)}
    tables = {name: value for name, value in file.content.items() if name in call.commands and type(value) is dict}
    yield _Level("", {name: value for name, value in file.content.items() if name not in tables}, own)
    table, of_benchmarks = tables.get(call.command, {}), JSON()
    if call.command == RUN:
        of_benchmarks = {name: table[name] for name in table.keys() - own.keys() if _is_of_benchmark(name, table[name])}
    prefix = f"{call.command}."
    yield _Level(prefix, {name: value for name, value in table.items() if name not in of_benchmarks}, own)
    benchmark = options.benchmark_named(call.parser, call.words) if of_benchmarks else ""
    for name, entries in of_benchmarks.items():
        if name == benchmark or (registry.is_shipped(name) and name.lower() == benchmark.lower()):
            yield _Level(f"{prefix}{name}.", entries, {name: every[name] for name in every.keys() - own.keys()})


def _is_of_benchmark(name: str, value: Any) -> bool:
    return type(value) is dict and (registry.is_name(name) or name.endswith(CODE) or ":" in name)


def _action(name: str, place: FileKey, level: _Level, call: Call) -> argparse.Action | None:
    """Return the option of a key, None if only other commands have it. Raise `BadInput` if no file may have it."""
    if name.lower() in SECRETS:
        raise BadInput(f"{place}: keys do not belong in this file: name a variable in the providers file, with key_env")
    if name in DECISIONS.union(*[feature.decisions for feature in features()]):
        raise BadInput(f"{place}: this is decided for each call: give --{name}")
    if not level.prefix and name in OF_ONE_COMMAND.union(*[feature.per_call for feature in features()]):
        raise BadInput(f"{place}: this means something else in each command: put it into one's table, such as [run]")
    if name in level.actions:
        return level.actions[name]
    others = () if level.prefix else call.others()
    if name in others:
        return None
    if not level.prefix and name in call.commands:
        raise BadInput(f"{place}: expected a table, [{name}]")
    if owner := settings_of(f"--{name}"):
        raise BadInput(f"{place}: this is a setting of {owner}: put it into [{RUN}.{owner}]")
    near = get_close_matches(name.lower().replace("_", "-"), [*level.actions, *others, *call.commands], 1, 0.6)
    raise BadInput(f"{place}: unknown field{f': did you mean {near[0]}?' if near else ''}")


def settings_of(flag: str) -> str | None:
    """Return the benchmark that ships and has this flag, None if none has it."""
    return next((name for name in registry.names() if flag in settings.flags(registry.find(name).Settings)), None)


def _value(value: Any, flag: str, action: argparse.Action, place: FileKey, parser: argparse.ArgumentParser) -> _Value:
    """Return a value as the command line has it. Raise `BadInput` if the option refuses it."""
    if action.nargs == 0:
        if type(value) is not bool:
            raise BadInput(f"{place}: expected true or false")
        opposite = [name for name in action.option_strings if name == flag.replace("--", "--no-", 1)]
        return _Value(place, [flag] if value else opposite)
    texts = _texts(value, action, place, parser)
    return _Value(place, [f"{flag}={text}" for text in texts], texts)


def _texts(value: Any, action: argparse.Action, place: FileKey, parser: argparse.ArgumentParser) -> list[str]:
    is_list = isinstance(action, argparse._AppendAction) and type(value) is list
    texts = [_text(one, place, is_json=action.metavar == "JSON") for one in (value if is_list else [value])]
    for text in texts:
        try:
            parser._get_values(action, [text])
        except argparse.ArgumentError as error:
            raise BadInput(f"{place}: {error.message}") from None
    fits, expected = fields.PROVIDER["base_url"]
    if action.dest == URLS and not (texts and fits(texts)):
        raise BadInput(f"{place}: expected {expected}")
    return texts


def _text(value: Any, place: FileKey, *, is_json: bool) -> str:
    match value:
        case str() if value.isprintable():
            return expanduser(value) if value.startswith("~/") else value
        case bool():
            pass
        case int() | float() if fields.number(lambda number: True, "")[0](value):
            return str(value)
        case dict() if is_json and fields.BODY[0](value):
            return orjson.dumps(value).decode()
    raise BadInput(f"{place}: expected what the flag takes: text, a number, a table for JSON, or a list if it repeats")


def _with_rivals(parser: argparse.ArgumentParser, names: Set[str], groups: Sequence[Set[str]] = ()) -> set[str]:
    """Return destinations with those that cannot be combined with them."""
    exclusive = [{action.dest for action in group._group_actions} for group in parser._mutually_exclusive_groups]
    return {*names, *(name for group in (*exclusive, *groups) if group & names for name in group)}
