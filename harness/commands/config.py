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
from harness.model import JSON
from harness.option import Option, command_options, option
from harness.options import address, endpoint_file, models, options, providers, secrets
from harness.options.address import ResolvedEndpoint
from harness.options.providers import Provider
from harness.scrubber import HIDDEN
from harness.ui.console import console
from harness.ui.streams import show_json

# The kinds of sources.
FLAG = "flag"
VARIABLE = "variable"
FILE = "file"
DEFAULT = "default"


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
    command_line: Sequence[str] = option(
        (),
        "a command with its arguments (default: run)",
        position="COMMAND ...",
        remainder=True,
        everyday=True,
    )


def execute(args: Options) -> int:
    command_line = list(args.command_line) or ["run"]
    check_command(command_line[0])
    arguments = command_line
    if args.settings_file:
        arguments = [*command_line, f"--settings={args.settings_file}"]
    command = parsed(arguments)
    try:
        settings_of_command = values(command)
    except BadInput:
        # The files contradict each other: what each says shows where.
        _show(values(command, resolved=False), command_line, args.json)
        raise
    _show(settings_of_command, command_line, args.json)
    return 0


def _show(shown: Mapping[str, Setting], command_line: Sequence[str], as_json: bool) -> None:
    clean = secrets.scrubber(command_line, os.environ)
    if as_json:
        show_json({name: _plain(asdict(setting), clean) for name, setting in shown.items()})
        return
    table = Table(box=None, pad_edge=False)
    for title in ("option", "value", "from"):
        # Paths and addresses are folded: rich would cut them with an ellipsis, and nobody could
        # copy them.
        table.add_column(title, overflow="fold")
    for name, setting in shown.items():
        value = _text(_plain(setting.value, clean))
        table.add_row(name, value, setting.where or setting.source)
    console().print(table)


def _text(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def values(command: Parsed, *, resolved: bool = True) -> dict[str, Setting]:
    """Return the value of each option, by its flag's name, in the order of the help; `resolved` as
    a run has them.

    Raise `BadInput` if a run would be refused for them.
    """
    shown = list[Option]()
    for declared in command.interface.all_options:
        # The settings file has no say in which one it is.
        if declared.flags and declared.name != "settings_file":
            shown.append(declared)
    values_by_name = {declared.name: _value(declared, command) for declared in shown}
    # `resume` takes what is not given from each run.
    if resolved and command.interface.command == RUN:
        values_by_name |= _of_run(command, values_by_name)
    return {declared.label: values_by_name[declared.name] for declared in shown}


def _value(declared: Option, command: Parsed) -> Setting:
    """Return the value of an option without secrets, and where it is from."""
    args = command.args
    name = declared.name
    value = option_value(declared, args)
    if declared.off and value is not None:
        value = not value
    if name == "extra_header":
        value = [f"{header}: {HIDDEN}" for header, _ in value or ()]
    elif declared.secret:
        value = value and HIDDEN
    elif name == "api_url":
        value = value and list(map(public_url, value))
    if name in args.typed:
        return Setting(value, FLAG, declared.flags[0])
    if name in args.places:
        return Setting(value, FILE, str(args.places[name].path))
    if declared.variable and os.environ.get(declared.variable):
        return Setting(value, VARIABLE, declared.variable)
    return Setting(value)


def option_value(declared: Option, args: options.Options) -> Any:
    """Return what a command has for an option, of itself or of its benchmark."""
    if isinstance(args, options.RunOptions) and declared.name.startswith(settings.DEST):
        name = declared.name.removeprefix(settings.DEST)
        return args.benchmark_settings.get(name, declared.default)
    return args.option(declared.name)


def _of_run(command: Parsed, chosen: Mapping[str, Setting]) -> dict[str, Setting]:
    """Return the values of a run that its provider, file of an endpoint, variables and defaults
    decide."""
    args = command.args
    endpoint = endpoint_file.endpoint_of(args)
    provider = _provider(args)
    pace: JSON = {}
    pace_file = None
    if provider:
        pace = models.pace_of(provider)
        pace_file = provider.source
    elif endpoint:
        pace = endpoint.tuning
        pace_file = endpoint.source
    tuning = asdict(options.tuning(args, pace))
    # In the tuning of a run None means `auto`; here it would look as if there were no value.
    tuning["concurrency"] = tuning["concurrency"] or AUTO
    resolved = dict[str, Setting]()
    for name, value in tuning.items():
        if name in pace and getattr(args, name) is None:
            resolved[name] = Setting(value, FILE, pace_file)
        else:
            resolved[name] = Setting(value, chosen[name].source, chosen[name].where)
    if endpoint is None:
        return resolved | _endpoint(args, provider, chosen["api_url"])
    resolved["api_url"] = Setting([public_url(endpoint.url)], FILE, endpoint.source)
    resolved["api_key"] = Setting(endpoint.key and HIDDEN, FILE, endpoint.source)
    return resolved


def _provider(args: options.RunOptions) -> Provider | None:
    """Return the provider of the models, None if they have none or several."""
    book = providers.read(args.providers, os.environ)
    entries = models.entries(args, book, args.model)
    # A model without a provider of its own has that of the command.
    names = {models.named(entry, args, book)[0] for entry in entries} or {args.provider}
    # Several providers have addresses and limits of their own: none of them is that of the command.
    if len(names) > 1:
        return None
    return models.provider_named(names.pop(), book, args)


def _endpoint(
    args: options.RunOptions, provider: Provider | None, flag: Setting
) -> dict[str, Setting]:
    """Return address and key as a run would find them; neither if something is missing."""
    try:
        endpoint = address.find(args, os.environ, provider)
    except BadInput:
        return {}
    if endpoint is None:
        return {}
    addresses = [endpoint_address.shown for endpoint_address in endpoint.addresses]
    source, where = _source_of_address(endpoint, args, flag)
    resolved = {"api_url": Setting(addresses, source, where)}
    key_from = endpoint.key_from
    if key_from is None:
        return resolved
    if key_from in os.environ:
        resolved["api_key"] = Setting(HIDDEN, VARIABLE, key_from)
    elif args.api_key or args.api_key_file:
        resolved["api_key"] = Setting(HIDDEN, FLAG, key_from)
    else:
        file = args.fallback.source if args.fallback else None
        resolved["api_key"] = Setting(HIDDEN, FILE, file)
    return resolved


def _source_of_address(
    endpoint: ResolvedEndpoint, args: options.RunOptions, flag: Setting
) -> tuple[str, str | None]:
    """Return the kind of source of an address, and its name."""
    if endpoint.address_from == address.FLAG:
        return flag.source, flag.where
    if endpoint.address_from in os.environ:
        return VARIABLE, endpoint.address_from
    provider = endpoint.provider
    if provider is None:
        return FILE, args.fallback.source if args.fallback else None
    if provider.url_env and os.environ.get(provider.url_env):
        return VARIABLE, provider.url_env
    return FILE, provider.source


def _plain(value: object, clean: Callable[[str], str]) -> Any:
    """Return a value as JSON has it, without secrets."""
    match value:
        case dict():
            return {name: _plain(member, clean) for name, member in value.items()}
        case list() | tuple():
            return [_plain(member, clean) for member in value]
        case None | bool() | int() | float():
            return value
    return clean(str(value))
