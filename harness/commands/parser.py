"""The command line: what each command takes, and what words and settings file say together.

A command has a static class of options (`harness.commands.table`), and for what extends it classes
of their own: extensions, the settings of a benchmark. argparse splits the words; all it is told
follows from the classes, and what it finds are only the words of the user (docs/design.md, section
7).

Why argparse: `run --help` has to take less than 0.3 s of CPU. With the options of `run`, cyclopts
5.5 and jsonargparse 4.53 added 0.4 and 0.2 s to the harness's own imports, argparse next to
nothing; tyro 1.0 took 0.15 s for twelve options. What else this package needs would be written
again in any case: which values were typed, secrets removed from errors, help in layers, `config`.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from itertools import combinations
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

ALL = "--help-all"


@dataclass(frozen=True, slots=True)
class Interface:
    """What a command takes: its class of options, the classes of its `parts` by their names, and
    the benchmark whose settings are flags of `run`.

    `of_benchmark` are the options that its settings are.
    """

    command: str
    cls: type[options.Options]
    parts: Mapping[str, type[Any]] = field(default_factory=dict)
    benchmark: type[Benchmark] | None = None
    of_benchmark: tuple[Option, ...] = ()

    @property
    def own(self) -> tuple[Option, ...]:
        """Return the options of all classes."""
        return tuple([one for cls in (self.cls, *self.parts.values()) for one in options_of(cls)])

    @property
    def every(self) -> tuple[Option, ...]:
        return (*self.own, *self.of_benchmark)

    def made(self, values: Mapping[str, Any], more: JSON) -> Any:
        """Return the options with these values, by name, and defaults; those of the benchmark
        apart."""
        if self.benchmark is not None:
            given = [one.name for one in self.of_benchmark if one.name in values]
            of_benchmark = {name.removeprefix(settings.DEST): values[name] for name in given}
            more = {**more, "benchmark_class": self.benchmark, "of_benchmark": of_benchmark}
        parts = {name: cls(**_values_of(cls, values)) for name, cls in self.parts.items()}
        return self.cls(**_values_of(self.cls, values), parts=parts, **more)


def _values_of(cls: type[Any], values: Mapping[str, Any]) -> JSON:
    """Return those of the values that are of a class's options, by name."""
    return {option.name: values[option.name] for option in options_of(cls) if option.name in values}


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
    name, *words = arguments
    interface = built(name, words)
    typed = parser(interface, words).values()
    if name == RUN and typed.get("benchmark", defaults.BENCHMARK) != named_benchmark(
        interface.own, words
    ):
        raise BadInput(f"name the benchmark before its settings: run {typed['benchmark']} ...")
    return completed(interface, typed)


def completed(interface: Interface, typed: Mapping[str, Any]) -> Parsed:
    """Return a command with the values that are typed, then those of a settings file, then
    defaults."""
    exclusive = [option for option in interface.own if option.rivals and option.name in typed]
    for option, other in combinations(exclusive, 2):
        if option.rivals == other.rivals:
            raise BadInput(
                f"{option.flags[0]} and {other.flags[0]} are for the same: give one of them"
            )
    given = (
        options.Given()
        if interface.command in ALONE
        else settings_file.of_command(_call(interface), typed, lambda: _call(built(RUN, ())))
    )
    if missing := [
        one for one in interface.own if one.required and one.name not in {*given.values, *typed}
    ]:
        flags = ", ".join([one.flags[0] if one.flags else one.position for one in missing])
        raise BadInput(f"{interface.command} needs {flags}")
    more: JSON = {"typed": frozenset(typed), "places": given.places, "fallback": given.fallback}
    return Parsed(interface, interface.made({**given.values, **typed}, more))


def _call(interface: Interface) -> settings_file.Call:
    return settings_file.Call(
        interface.command, interface.own, interface.of_benchmark, COMMANDS, all_options
    )


def all_options() -> dict[str, list[Option]]:
    """Return all options of all commands, by their flags without dashes."""
    found: dict[str, list[Option]] = {}
    for name in COMMANDS:
        for one in built(name, ()).every:
            for flag in one.flags:
                found.setdefault(flag.lstrip("-"), []).append(one)
    return found


KEYWORDS: Mapping[str, str] = {name: name for name in ("settings_file", "html", "roles")}
"""Option -> its keyword in Python, where that does not follow from its flag."""


def keyword(one: Option) -> str:
    """Return the keyword of an option in Python: its flag's name."""
    return KEYWORDS.get(one.name) or one.label.replace("-", "_")


def called(
    name: str,
    given: Mapping[str, Any],
    parts: Sequence[object] = (),
    settings_of: Mapping[str, Any] | None = None,
) -> Parsed:
    """Return a command with options of the Python interface, by keyword: None is what the settings
    file or the default says. `parts` are objects of the classes of extensions' options. Raise
    `BadInput` with the keyword of a value that cannot be used."""
    interface = interface_of(name)
    if name == RUN:
        interface = of_benchmark(
            interface, registry.find(str(given.get("benchmark") or defaults.BENCHMARK))
        )
    values = [(option, keyword(option), given.get(keyword(option))) for option in interface.own]
    for part in parts:
        if not (is_dataclass(part) and type(part) in interface.parts.values()):
            raise BadInput(f"extensions: {in_brief(part)} has no options of `{name}`")
        for option in options_of(type(part)):
            value = getattr(part, option.name)
            values.append(
                (
                    option,
                    f"{type(part).__name__}.{option.name}",
                    None if value == option.default else value,
                )
            )
    known = {option.name.removeprefix(settings.DEST): option for option in interface.of_benchmark}
    for setting, value in (settings_of or {}).items():
        if setting not in known:
            raise BadInput(f"settings: no setting {setting}{which_is_known(setting, known)}")
        values.append((known[setting], f"settings.{setting}", value))
    typed: JSON = {}
    for option, place, value in values:
        try:
            typed |= {option.name: option.value(value)} if value is not None else {}
        except ValueError as error:
            raise BadInput(f"{place}: {error}") from None
    return completed(interface, typed)


def interface_of(name: str) -> Interface:
    """Return what a command takes, whatever its benchmark."""
    if name in registry.COMMANDS:
        return Interface(name, options_class(name), {name: registry.command_module(name).Options})
    parts = (
        {one.name: one.options for one in extensions() if name in one.commands}
        if name in (RUN, RESUME)
        else {}
    )
    return Interface(name, options_class(name), parts)


def built(name: str, words: Sequence[str]) -> Interface:
    """Return what a command takes; some of it depends on other words: no other benchmark than the
    named one has a part in a command line of `run`."""
    interface = interface_of(name)
    if name != RUN:
        return interface
    return of_benchmark(interface, registry.find(named_benchmark(interface.own, words)))


def of_benchmark(interface: Interface, cls: type[Benchmark]) -> Interface:
    """Return what `run` takes for a benchmark. Raise `BadInput` if its settings cannot be flags."""
    try:
        found = settings.options(
            cls.Settings, cls.name, {flag for one in interface.own for flag in one.flags}
        )
    except settings.BadSettings as error:
        raise BadInput(f"{cls.name}: {error}") from None
    return replace(interface, benchmark=cls, of_benchmark=found)


def named_benchmark(known: Sequence[Option], words: Sequence[str]) -> str:
    """Return the benchmark among a command's words, before its own flags are known: the first word
    that is neither an option nor its value. An unknown option may take the next word, unless that
    is a benchmark."""
    switches = {flag: one.kind is bool for one in known for flag in one.flags}
    left = list(words)
    while left:
        flag, _, value = left.pop(0).partition("=")
        if not flag.startswith("-"):
            return flag
        takes_one = not switches.get(flag, bool(left) and registry.is_name(left[0]))
        if takes_one and not value and left and not left[0].startswith("-"):
            left.pop(0)
    return defaults.BENCHMARK


# argparse


def parser(interface: Interface, words: Sequence[str]) -> Parser:
    """Return a parser of a command's words; its help has all options with `--help-all`, else those
    of every day."""
    name, every = interface.command, interface.every
    layered = name in (RUN, RESUME)
    whole = ALL in words or not layered
    examples = "".join(f"  {line}\n" for line in interface.cls.examples)
    parts = [f"examples:\n{examples}" if examples else ""]
    more = sum(not one.everyday for one in every)
    parts += [] if whole else [f"`harness {name} {ALL}` lists {more} more options"]
    made = Parser(
        words, f"harness {name}", COMMANDS[name], "\n".join(filter(None, parts)) or None, every
    )
    if layered:
        made.add_argument(
            ALL, action="help", help="show every option" if not whole else "show this"
        )
    groups: dict[str, Any] = {"": made}
    for one in every:
        if one.group not in groups:
            groups[one.group] = made.add_argument_group(one.group)
        add(groups[one.group], one, hidden=not (whole or one.everyday))
    return made


def add(to: Any, one: Option, *, hidden: bool = False) -> list[argparse.Action]:
    """Add an option to a parser or a group, by position and by flags; return argparse's objects for
    both."""
    words = argparse.SUPPRESS if hidden else one.words.replace("%", "%%") or None
    value: dict[str, Any] = {"type": _of_text(one), "metavar": one.unit or None}
    if one.choices:
        value = {"choices": one.choices}
    made = []
    if one.position:
        nargs = (
            argparse.REMAINDER if one.rest else "*" if one.many else None if one.required else "?"
        )
        more = {"action": "extend"} if one.many and not one.rest else {}
        made.append(
            to.add_argument(
                one.name, nargs=nargs, help=words, **value | {"metavar": one.position}, **more
            )
        )
    if one.flags:
        if one.both:
            value = {"action": argparse.BooleanOptionalAction}
        elif one.kind is bool:
            value = {"action": "store_const", "const": not one.off}
        elif one.many:
            value["action"] = "append"
        if one.position:
            words = words if hidden else f"the same as {one.position}; may be repeated"
        made.append(
            to.add_argument(
                *one.flags, dest=one.name, default=argparse.SUPPRESS, help=words, **value
            )
        )
    return made


def _of_text(one: Option) -> Any:
    def read(text: str) -> Any:
        try:
            return one.one(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


class Parser(argparse.ArgumentParser):
    """A parser of these words whose errors show no secret of them."""

    def __init__(
        self,
        words: Sequence[str],
        prog: str,
        description: str,
        epilog: str | None,
        every: Sequence[Option] = (),
    ) -> None:
        formatter = argparse.RawDescriptionHelpFormatter
        super().__init__(
            prog, None, description, epilog, formatter_class=formatter, allow_abbrev=False
        )
        self._words, self._every = words, every

    def values(self) -> JSON:
        """Return what the words give, by the names of options. Print help, or an error, and
        leave."""
        found, unknown = self.parse_known_args(self._words)
        if flags := [word.partition("=")[0] for word in unknown if word.startswith("-")]:
            self.error("; ".join(map(self._unknown, flags)))
        if unknown:
            self.error(f"unexpected argument {unknown[0]}")
        return {
            name: value for name, value in vars(found).items() if value is not None and value != []
        }

    def _unknown(self, flag: str) -> str:
        """Return the message on an unknown option: whose it is, or the nearest known one."""
        owner = settings_file.owner_of(flag)
        if owner:
            return f"{flag} is an option of `run {owner}`"
        known = [name for option in self._every for name in option.flags if name.startswith("--")]
        return f"unknown option {flag}{did_you_mean(flag, ['--help', *known])}"

    def error(self, message: str) -> NoReturn:
        words = on_one_line(secrets.scrubber(self._words, os.environ)(message))
        self.exit(2, f"{self.prog}: error: {words} (`{self.prog} --help` lists the options)\n")
