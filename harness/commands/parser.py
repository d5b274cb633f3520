"""The command line: what each command takes, of arguments and settings file together.

A command has a static class of options (`harness.commands.table`), and for what extends it classes
of their own: extensions, the settings of a benchmark. argparse splits the arguments; its actions
follow from the classes, and its result has only what the user typed (docs/design.md, section 7).

Why argparse: `run --help` has to take less than 0.3 s of CPU. With the options of `run`, cyclopts
5.5 and jsonargparse 4.53 added 0.4 and 0.2 s to the harness's own imports, argparse next to
nothing; tyro 1.0 took 0.15 s for twelve options. What else this package needs would be written
again in any case: which values were typed, secrets removed from errors, help in layers, `config`.
"""

from __future__ import annotations

import argparse
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, NoReturn

from harness import defaults
from harness.benchmark import Benchmark
from harness.benchmarks import registry, settings
from harness.commands.table import ALONE, COMMANDS, RESUME, RUN, module_of, options_class
from harness.errors import BadInput, did_you_mean, in_brief, which_is_known
from harness.model import JSON
from harness.option import Option, options_of
from harness.options import options, secrets, settings_file
from harness.options.extension import extensions
from harness.printable import on_one_line

HELP_ALL = "--help-all"


@dataclass(frozen=True, slots=True)
class Interface:
    """What a command takes: its class of options, the classes of options that
    extensions add, by their names, and the benchmark whose settings are flags of `run`.

    `settings_options` are the options that its settings are.
    """

    command: str
    cls: type[options.Options]
    extensions: Mapping[str, type[Any]] = field(default_factory=dict)
    benchmark: type[Benchmark] | None = None
    settings_options: tuple[Option, ...] = ()

    @property
    def class_options(self) -> tuple[Option, ...]:
        """Return the options of all classes."""
        options_by_class = map(options_of, (self.cls, *self.extensions.values()))
        return tuple(chain.from_iterable(options_by_class))

    @property
    def all_options(self) -> tuple[Option, ...]:
        return (*self.class_options, *self.settings_options)

    def command_options(self, values: Mapping[str, Any], fields_of_command: JSON) -> Any:
        """Return the options with these values, by name, and defaults; those of the benchmark
        apart. `fields_of_command` are no options."""
        fields = fields_of_command | _values_of(options_of(self.cls), values)
        if self.benchmark is not None:
            fields["benchmark_class"] = self.benchmark
            settings_by_option = _values_of(self.settings_options, values)
            fields["benchmark_settings"] = {
                name.removeprefix(settings.DEST): value
                for name, value in settings_by_option.items()
            }
        fields["extension_options"] = {
            name: cls(**_values_of(options_of(cls), values))
            for name, cls in self.extensions.items()
        }
        return self.cls(**fields)


def _values_of(declared: Sequence[Option], values: Mapping[str, Any]) -> JSON:
    """Return the values of these options, by name."""
    return {option.name: values[option.name] for option in declared if option.name in values}


@dataclass(frozen=True, slots=True)
class Parsed:
    """A command with its options."""

    interface: Interface
    args: Any

    def execute(self) -> int:
        try:
            exit_code: int = module_of(self.interface.command).execute(self.args)
        except BadInput as error:
            self.args.name_places(error)
            raise
        return exit_code


def parsed(arguments: Sequence[str]) -> Parsed:
    """Return a command and its options; the first argument is the command's name. Raise `BadInput`
    for a settings file that cannot be used."""
    name, *arguments_of_command = arguments
    interface = built(name, arguments_of_command)
    typed = parser(interface, arguments_of_command).values()
    if name == RUN:
        guessed = named_benchmark(interface.class_options, arguments_of_command)
        # The flags of settings are those of the guessed benchmark: if argparse finds another, they
        # were wrong.
        if typed.get("benchmark", defaults.BENCHMARK) != guessed:
            raise BadInput(f"name the benchmark before its settings: run {typed['benchmark']} ...")
    return completed(interface, typed)


def completed(interface: Interface, typed: Mapping[str, Any]) -> Parsed:
    """Return a command with the values that are typed, then those of a settings file, then
    defaults."""
    # Only typed options exclude each other: one of the settings file gives way to a typed rival.
    first_rivals = dict[str, Option]()
    for option in interface.class_options:
        if not option.rivals or option.name not in typed:
            continue
        first = first_rivals.setdefault(option.rivals, option)
        if first is not option:
            raise BadInput(
                f"{first.flags[0]} and {option.flags[0]} are for the same: give one of them"
            )
    from_file = options.SettingsFileValues()
    if interface.command not in ALONE:
        from_file = settings_file.of_command(_call(interface), typed, lambda: _call(built(RUN, ())))
    # What is typed takes precedence.
    values = {**from_file.values, **typed}
    missing = list[str]()
    for option in interface.class_options:
        if option.required and option.name not in values:
            missing.append(option.flags[0] if option.flags else option.position)
    if missing:
        raise BadInput(f"{interface.command} needs {', '.join(missing)}")
    fields: JSON = {
        "typed": frozenset(typed),
        "places": from_file.places,
        "fallback": from_file.fallback,
    }
    return Parsed(interface, interface.command_options(values, fields))


def _call(interface: Interface) -> settings_file.CommandCall:
    return settings_file.CommandCall(
        interface.command,
        interface.class_options,
        interface.settings_options,
        COMMANDS,
        options_by_flag,
    )


def options_by_flag() -> dict[str, list[Option]]:
    """Return all options of all commands, by their flags without dashes."""
    by_flag = defaultdict[str, list[Option]](list)
    for name in COMMANDS:
        for option in built(name, ()).all_options:
            for flag in option.flags:
                by_flag[flag.lstrip("-")].append(option)
    return by_flag


KEYWORDS: Mapping[str, str] = {name: name for name in ("settings_file", "html", "roles")}
"""Option -> its keyword in Python, where that does not follow from its flag."""


def keyword(option: Option) -> str:
    """Return the keyword of an option in Python: its flag's name."""
    return KEYWORDS.get(option.name) or option.label.replace("-", "_")


def called(
    name: str,
    arguments: Mapping[str, Any],
    extension_options: Sequence[object] = (),
    settings_of: Mapping[str, Any] | None = None,
) -> Parsed:
    """Return a command with options of the Python interface, by keyword: None is what the settings
    file or the default says. `extension_options` are objects of the classes of extensions' options.
    Raise `BadInput` with the keyword of a value that cannot be used."""
    interface = interface_of(name)
    if name == RUN:
        benchmark = str(arguments.get("benchmark") or defaults.BENCHMARK)
        interface = with_benchmark(interface, registry.find(benchmark))
    # Options with the place that errors name, and their values.
    values = [
        (option, keyword(option), arguments.get(keyword(option)))
        for option in interface.class_options
    ]
    for options_object in extension_options:
        values += _values_of_extension(interface, options_object)
    known = {
        option.name.removeprefix(settings.DEST): option for option in interface.settings_options
    }
    for setting, value in (settings_of or {}).items():
        if setting not in known:
            raise BadInput(f"settings: no setting {setting}{which_is_known(setting, known)}")
        values.append((known[setting], f"settings.{setting}", value))
    typed: JSON = {}
    for option, place, value in values:
        if value is None:
            continue
        try:
            typed[option.name] = option.value(value)
        except ValueError as error:
            raise BadInput(f"{place}: {error}") from None
    return completed(interface, typed)


def _values_of_extension(
    interface: Interface, options_object: object
) -> Iterator[tuple[Option, str, Any]]:
    """Yield the options that an object of an extension's class sets, as `called` has them."""
    cls = type(options_object)
    if cls not in interface.extensions.values():
        raise BadInput(
            f"extensions: {in_brief(options_object)} has no options of `{interface.command}`"
        )
    for option in options_of(cls):
        value = getattr(options_object, option.name)
        # An object has a value in every field: one at its default leaves it to the settings file.
        if value != option.default:
            yield option, f"{cls.__name__}.{option.name}", value


def interface_of(name: str) -> Interface:
    """Return what a command takes, whatever its benchmark."""
    cls = options_class(name)
    if name in registry.COMMANDS:
        return Interface(name, cls, {name: registry.command_module(name).Options})
    # Most commands start without a look at the installed packages.
    known = extensions() if name in (RUN, RESUME) else ()
    classes = {
        extension.name: extension.options for extension in known if name in extension.commands
    }
    return Interface(name, cls, classes)


def built(name: str, arguments: Sequence[str]) -> Interface:
    """Return what a command takes. That of `run` depends on its arguments: the benchmark that they
    name has settings."""
    interface = interface_of(name)
    if name != RUN:
        return interface
    benchmark = named_benchmark(interface.class_options, arguments)
    return with_benchmark(interface, registry.find(benchmark))


def with_benchmark(interface: Interface, cls: type[Benchmark]) -> Interface:
    """Return what `run` takes for a benchmark. Raise `BadInput` if its settings cannot be flags."""
    flags = set(chain.from_iterable(option.flags for option in interface.class_options))
    try:
        settings_options = settings.options(cls.Settings, cls.name, flags)
    except settings.BadSettings as error:
        raise BadInput(f"{cls.name}: {error}") from None
    return replace(interface, benchmark=cls, settings_options=settings_options)


def named_benchmark(known: Sequence[Option], arguments: Sequence[str]) -> str:
    """Return the benchmark among a command's arguments, before its own flags are known: the first
    argument that is neither an option nor its value. An unknown option may take the next argument,
    unless that is a benchmark."""
    is_switch = dict[str, bool]()
    for option in known:
        is_switch |= dict.fromkeys(option.flags, option.kind is bool)
    flag_without_value = ""
    for argument in arguments:
        name, _, value = argument.partition("=")
        if name.startswith("-"):
            flag_without_value = "" if value else name
        elif flag_without_value and not is_switch.get(
            flag_without_value, registry.is_name(argument)
        ):
            flag_without_value = ""
        else:
            return name
    return defaults.BENCHMARK


# argparse


def parser(interface: Interface, arguments: Sequence[str]) -> Parser:
    """Return a parser of a command's arguments; its help has all options with `--help-all`, else
    those of every day."""
    name = interface.command
    has_layers = name in (RUN, RESUME)
    shows_all = HELP_ALL in arguments or not has_layers
    epilog = list[str]()
    if interface.cls.examples:
        epilog.append("examples:\n" + "".join([f"  {line}\n" for line in interface.cls.examples]))
    if not shows_all:
        hidden = sum(not option.everyday for option in interface.all_options)
        epilog.append(f"`harness {name} {HELP_ALL}` lists {hidden} more options")
    command_parser = Parser(
        arguments,
        f"harness {name}",
        COMMANDS[name].does,
        "\n".join(epilog) or None,
        interface.all_options,
    )
    if has_layers:
        help_text = "show this" if shows_all else "show every option"
        command_parser.add_argument(HELP_ALL, action="help", help=help_text)
    groups: dict[str, Any] = {"": command_parser}
    for option in interface.all_options:
        if option.group not in groups:
            groups[option.group] = command_parser.add_argument_group(option.group)
        add(groups[option.group], option, hidden=not (shows_all or option.everyday))
    return command_parser


def add(to: Any, option: Option, *, hidden: bool = False) -> list[argparse.Action]:
    """Add an option to a parser or a group, by position and by flags; return argparse's objects for
    both."""
    # argparse formats help with `%`, so a percent sign is doubled.
    help_text = argparse.SUPPRESS if hidden else option.help_text.replace("%", "%%") or None
    value: JSON = {"type": _of_text(option), "metavar": option.unit or None}
    if option.choices:
        value = {"choices": option.choices}
    actions = list[argparse.Action]()
    if option.position:
        by_position = {**value, "metavar": option.position, "nargs": _nargs(option)}
        # Values by position are added to those by flag, which have the same name in argparse's
        # result.
        if option.many and not option.remainder:
            by_position["action"] = "extend"
        actions.append(to.add_argument(option.name, help=help_text, **by_position))
        if not hidden:
            help_text = f"the same as {option.position}; may be repeated"
    if option.flags:
        # Without a default argparse's result has what was typed and no more.
        by_flag = {**_flag_action(option, value), "dest": option.name, "default": argparse.SUPPRESS}
        actions.append(to.add_argument(*option.flags, help=help_text, **by_flag))
    return actions


def _flag_action(option: Option, value: JSON) -> JSON:
    """Return what the flags of an option do, in argparse's terms; `value` is how it reads a
    value."""
    if option.both:
        return {"action": argparse.BooleanOptionalAction}
    if option.kind is bool:
        return {"action": "store_const", "const": not option.off}
    if option.many:
        return {**value, "action": "append"}
    return value


def _nargs(option: Option) -> str | None:
    """Return how many arguments an option takes by position, in argparse's terms."""
    if option.remainder:
        return argparse.REMAINDER
    if option.many:
        return "*"
    return None if option.required else "?"


def _of_text(option: Option) -> Any:
    def read(text: str) -> Any:
        try:
            return option.parse(text)
        except ValueError as error:
            # argparse shows the text of this error; of a ValueError it shows the value, which may
            # be a key.
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


class Parser(argparse.ArgumentParser):
    """A parser of these arguments whose errors show no secret of them."""

    def __init__(
        self,
        arguments: Sequence[str],
        prog: str,
        description: str,
        epilog: str | None,
        shown_options: Sequence[Option] = (),
    ) -> None:
        formatter = argparse.RawDescriptionHelpFormatter
        # An abbreviation in somebody's script would become ambiguous with the next option that
        # begins alike.
        super().__init__(
            prog, None, description, epilog, formatter_class=formatter, allow_abbrev=False
        )
        self._arguments = arguments
        self._options = shown_options

    def values(self) -> JSON:
        """Return the values of the arguments, by the names of options. Print help, or an error, and
        leave."""
        # `parse_args` would list unknown arguments; here each is answered with the nearest known
        # option.
        namespace, unknown = self.parse_known_args(self._arguments)
        flags = [word.partition("=")[0] for word in unknown if word.startswith("-")]
        if flags:
            self.error("; ".join(map(self._unknown, flags)))
        if unknown:
            self.error(f"unexpected argument {unknown[0]}")
        # argparse's result has None or [] for arguments by position that were left out.
        return {name: value for name, value in vars(namespace).items() if value not in (None, [])}

    def _unknown(self, flag: str) -> str:
        """Return the message on an unknown option: whose it is, or the nearest known one."""
        owner = settings_file.owner_of(flag)
        if owner:
            return f"{flag} is an option of `run {owner}`"
        known = ["--help", *chain.from_iterable(option.flags for option in self._options)]
        return f"unknown option {flag}{did_you_mean(flag, known)}"

    def error(self, message: str) -> NoReturn:
        # argparse quotes what it refuses.
        clean = on_one_line(secrets.scrubber(self._arguments, os.environ)(message))
        self.exit(2, f"{self.prog}: error: {clean} (`{self.prog} --help` lists the options)\n")
