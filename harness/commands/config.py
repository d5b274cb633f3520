"""`config`: the options that a command would have, and where each value comes from. Keys are
masked."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import orjson
from rich.table import Table

from harness.benchmarks import settings
from harness.client.address import public_url
from harness.commands.parser import Parsed, parsed
from harness.commands.table import RUN, check_command
from harness.defaults import AUTO
from harness.errors import BadInput
from harness.option import Option, command_options, option
from harness.options import address, endpoint_file, models, options, providers, secrets
from harness.options.address import Found
from harness.options.providers import Provider
from harness.scrubber import HIDDEN
from harness.ui.console import console
from harness.ui.streams import show_json

FLAG, VARIABLE, FILE, DEFAULT = "flag", "variable", "file", "default"


@dataclass(frozen=True, slots=True)
class Setting:
    """An option's value, the kind of its source, and the source's name: of the variable, or of the
    file."""

    value: object
    source: str = DEFAULT
    where: str | None = None


@command_options
class Options(options.AsJson):
    examples: ClassVar[Sequence[str]] = (
        "harness config",
        "harness config resume",
        "harness config --json run --concurrency auto",
    )
    words: Sequence[str] = option(
        (),
        "a command with its arguments (default: run)",
        position="COMMAND ...",
        rest=True,
        everyday=True,
    )


def execute(args: Options) -> int:
    words = list(args.words) or ["run"]
    check_command(words[0])
    command = parsed([*words, f"--settings={args.settings_file}"] if args.settings_file else words)
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


def _text(value: object) -> str:
    return (
        "" if value is None else value if isinstance(value, str) else orjson.dumps(value).decode()
    )


def values(found: Parsed, *, resolved: bool = True) -> dict[str, Setting]:
    """Return the value of each option, by its flag's name, in the order of the help; `resolved` as
    a run has them.

    Raise `BadInput` if a run would be refused for them.
    """
    every = [one for one in found.interface.every if one.flags and one.name != "settings_file"]
    chosen = {one.name: _value(one, found) for one in every}
    if (
        resolved and found.interface.command == RUN
    ):  # `resume` takes what is not given from each run
        chosen |= _of_run(found, chosen)
    return {one.label: chosen[one.name] for one in every}


def _value(one: Option, found: Parsed) -> Setting:
    name, value = one.name, given(one, found.args)
    if one.off and value is not None:
        value = not value
    if name == "extra_header":
        value = [f"{header}: {HIDDEN}" for header, _ in value or ()]
    elif one.secret:
        value = value and HIDDEN
    elif name == "api_url":
        value = value and list(map(public_url, value))
    if name in found.args.typed:
        return Setting(value, FLAG, one.flags[0])
    if name in found.args.places:
        return Setting(value, FILE, str(found.args.places[name].path))
    is_set = one.variable and os.environ.get(one.variable)
    return Setting(value, VARIABLE, one.variable) if is_set else Setting(value)


def given(one: Option, args: options.Options) -> Any:
    """Return what a command has for an option, of itself or of its benchmark."""
    if not one.name.startswith(settings.DEST):
        return args.option(one.name)
    of_benchmark = args.of_benchmark if isinstance(args, options.RunOptions) else None
    return (of_benchmark or {}).get(one.name.removeprefix(settings.DEST), one.default)


def _of_run(found: Parsed, chosen: Mapping[str, Setting]) -> dict[str, Setting]:
    """Return the values of a run that its provider, file of an endpoint, variables and defaults
    decide."""
    args = found.args
    given = endpoint_file.endpoint_of(args)
    provider = _provider(args)
    pace = models.pace_of(provider) if provider else given.tuning if given else {}
    of_pace = (FILE, provider.source if provider else given.source if given else None)
    made = asdict(options.tuning(args, pace))
    made["concurrency"] = made["concurrency"] or AUTO
    tuning = {}
    for name, value in made.items():
        is_of_pace = name in pace and getattr(args, name) is None
        tuning[name] = Setting(
            value, *(of_pace if is_of_pace else (chosen[name].source, chosen[name].where))
        )
    if given is None:
        return {**tuning, **_endpoint(args, provider, chosen["api_url"])}
    url = Setting([public_url(given.url)], FILE, given.source)
    return {**tuning, "api_url": url, "api_key": Setting(given.key and HIDDEN, FILE, given.source)}


def _provider(args: options.RunOptions) -> Provider | None:
    """Return the provider of the models, None if they have none or several."""
    book = providers.read(args.providers, os.environ)
    entries = models.entries(args, book, args.model)
    found = {models.named(entry, args, book)[0] for entry in entries} or {args.provider}
    return models.provider_named(found.pop(), book, args) if len(found) == 1 else None


def _endpoint(
    args: options.RunOptions, provider: Provider | None, flag: Setting
) -> dict[str, Setting]:
    """Return address and key as a run would find them; neither if something is missing."""
    try:
        found = address.find(args, os.environ, provider)
    except BadInput:
        found = None
    if found is None:
        return {}
    made = {
        "api_url": Setting(
            [one.shown for one in found.addresses], *_source_of_address(found, args, flag)
        )
    }
    if found.key_from is not None:
        of_flag = args.api_key or args.api_key_file
        kind = VARIABLE if found.key_from in os.environ else FLAG if of_flag else FILE
        of_file = args.fallback.source if args.fallback else None
        made["api_key"] = Setting(HIDDEN, kind, found.key_from if kind != FILE else of_file)
    return made


def _source_of_address(
    found: Found, args: options.RunOptions, flag: Setting
) -> tuple[str, str | None]:
    if found.address_from == address.FLAG:
        return flag.source, flag.where
    if found.address_from in os.environ:
        return VARIABLE, found.address_from
    if provider := found.provider:
        is_set = provider.url_env and os.environ.get(provider.url_env)
        return (VARIABLE, provider.url_env) if is_set else (FILE, provider.source)
    return FILE, args.fallback.source if args.fallback else None


def _plain(value: object, clean: Callable[[str], str]) -> Any:
    """Return a value as JSON has it, without secrets."""
    match value:
        case dict():
            return {name: _plain(one, clean) for name, one in value.items()}
        case list() | tuple():
            return [_plain(one, clean) for one in value]
        case None | bool() | int() | float():
            return value
    return clean(str(value))
