"""`config`: the options that a command would have, and where each value comes from. Keys are masked."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import orjson
from rich.table import Table

from harness.commands.parser import COMMANDS, Parsed, parsed
from harness.config import address, config_file, models, options, providers, secrets
from harness.config.providers import Provider
from harness.config.settings_file import VARIABLES
from harness.defaults import AUTO
from harness.endpoint.address import HIDDEN, public_url
from harness.errors import BadInput, in_brief
from harness.ui.console import console
from harness.ui.streams import show_json

FLAG, VARIABLE, FILE, DEFAULT = "flag", "variable", "file", "default"
LEFT_OUT = frozenset({"help", "settings"})
EXAMPLES = ("harness config", "harness config resume", "harness config --json run --concurrency auto")


@dataclass(frozen=True, slots=True)
class Setting:
    """An option's value, the kind of its source, and the source's name: of the variable, or of the file."""

    value: Any
    source: str = DEFAULT
    where: str | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_json(parser)
    words = "a command with its arguments (default: run)"
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND ...", help=words)


def execute(args: argparse.Namespace) -> int:
    words = args.words or ["run"]
    if words[0] not in COMMANDS:
        raise BadInput(f"{in_brief(words[0])} is no command: there are {', '.join(COMMANDS)}")
    command = parsed([*words, f"--settings={args.settings}"] if args.settings else words)
    wrong = None
    try:
        found = values(command)
    except BadInput as error:  # the files contradict each other: what each says shows where
        wrong, found = error, values(command, resolved=False)
    _show(found, words, args.json)
    if wrong:
        raise wrong
    return 0


def _show(found: Mapping[str, Setting], words: Sequence[str], as_json: bool) -> None:
    clean = secrets.scrubber(words, os.environ)
    if as_json:
        show_json({name: _plain(asdict(value), clean) for name, value in found.items()})
        return
    table = Table(box=None, pad_edge=False)
    for title in ("option", "value", "from"):
        table.add_column(title, overflow="fold")
    for name, value in found.items():
        table.add_row(name, _text(_plain(value.value, clean)), value.where or value.source)
    console().print(table)


def _text(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else orjson.dumps(value).decode()


def values(found: Parsed, *, resolved: bool = True) -> dict[str, Setting]:
    """Return the value of each option, by its flag's name, in the order of the help; `resolved` as a run has them.

    Raise `BadInput` if a run would be refused for them.
    """
    chosen = {action.dest: _value(action, found) for action in found.parser._actions if action.option_strings}
    if resolved and hasattr(found.args, "benchmark_class"):  # of `run`; `resume` takes what is not given from each run
        chosen |= _of_run(found, chosen)
    names = {action.dest: _name(action) for action in found.parser._actions if action.option_strings}
    return {names[dest]: value for dest, value in chosen.items() if dest not in LEFT_OUT}


def _name(action: argparse.Action) -> str:
    return next((flag for flag in action.option_strings if flag.startswith("--")), "").removeprefix("--")


def _value(action: argparse.Action, found: Parsed) -> Setting:
    dest, value = action.dest, getattr(found.args, action.dest, None)
    if action.nargs == 0 and action.const is not None:
        value = value == action.const
    if dest == "extra_header":
        value = [f"{name}: {HIDDEN}" for name, _ in value or ()]
    elif dest == "api_key":
        value = value and HIDDEN
    elif dest == "api_url":
        value = value and list(map(public_url, value))
    if dest in found.args.typed:
        return Setting(value, FLAG, f"--{_name(action)}")
    if dest in found.settings:
        return Setting(value, FILE, str(found.settings[dest].path))
    variable = VARIABLES.get(dest)
    return Setting(value, VARIABLE, variable) if variable and os.environ.get(variable) else Setting(value)


def _of_run(found: Parsed, chosen: Mapping[str, Setting]) -> dict[str, Setting]:
    """Return the values of a run that its provider, `--config`, variables and defaults decide."""
    args = found.args
    given = config_file.read(args.config) if args.config else None
    provider = _provider(args)
    pace = models.pace_of(provider) if provider else given.tuning if given else {}
    of_pace = (FILE, provider.source if provider else str(given.path) if given else None)
    made = asdict(options.tuning(args, pace))
    made["concurrency"] = made["concurrency"] or AUTO
    tuning = {}
    for name, value in made.items():
        is_of_pace = name in pace and getattr(args, name) is None
        tuning[name] = Setting(value, *(of_pace if is_of_pace else (chosen[name].source, chosen[name].where)))
    return {**tuning, **(_of_config(given) if given else _endpoint(args, provider, chosen["api_url"]))}


def _provider(args: argparse.Namespace) -> Provider | None:
    """Return the provider of the models, None if they have none or several."""
    book = providers.read(args.providers, os.environ)
    entries = models.entries(args, book, args.model)
    found = {models.named(entry, args, book)[0] for entry in entries} or {args.provider}
    return models.provider_named(found.pop(), book, args) if len(found) == 1 else None


def _of_config(given: config_file.Config) -> dict[str, Setting]:
    where = FILE, str(given.path)
    return {"api_url": Setting([public_url(given.url)], *where), "api_key": Setting(given.key and HIDDEN, *where)}


def _endpoint(args: argparse.Namespace, provider: Provider | None, flag: Setting) -> dict[str, Setting]:
    """Return address and key as a run would find them; neither if something is missing."""
    try:
        found = address.find(args, os.environ, provider)
    except BadInput:
        found = None
    if found is None:
        return {}
    made = {"api_url": Setting([one.shown for one in found.addresses], *_source_of_address(args, provider, flag))}
    if found.key_from is not None:
        of_flag = args.api_key or args.api_key_file
        kind = VARIABLE if found.key_from in os.environ else FLAG if of_flag else FILE
        made["api_key"] = Setting(HIDDEN, kind, found.key_from if kind != FILE else args.fallback.source)
    return made


def _source_of_address(args: argparse.Namespace, provider: Provider | None, flag: Setting) -> tuple[str, str | None]:
    if args.api_url:
        return flag.source, flag.where
    if provider:
        is_set = provider.url_env and os.environ.get(provider.url_env)
        return (VARIABLE, provider.url_env) if is_set else (FILE, provider.source)
    if variable := next(filter(os.environ.get, address.BASES.values()), None):
        return VARIABLE, variable
    return (FILE, args.fallback.source) if args.fallback else (VARIABLE, "OPENAI_API_KEY")


def _plain(value: Any, clean: Callable[[str], str]) -> Any:
    """Return a value as JSON has it, without secrets."""
    match value:
        case dict():
            return {name: _plain(one, clean) for name, one in value.items()}
        case list() | tuple():
            return [_plain(one, clean) for one in value]
        case None | bool() | int() | float():
            return value
    return clean(str(value))
