"""The command line: which commands there are, what each takes, and what words and settings file say together.

A command has a class of options, with the features' own for it as further bases, and a module with `execute(options)`,
which is imported when it is called, so that help is quick. argparse splits the words; all it is told follows from the
classes, and what it finds are only the words of the user (docs/design.md, section 7).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from itertools import combinations
from typing import Any, NoReturn

from harness import defaults
from harness.benchmark import Benchmark
from harness.benchmarks import registry, settings
from harness.errors import BadInput, in_brief
from harness.feature import EVERY, Command, features, function
from harness.model import JSON
from harness.option import Option, options_of
from harness.options import options, secrets
from harness.printable import on_one_line

RUN = "run"
ALL = "--help-all"
CORE: Mapping[str, str] = {
    RUN: "run a benchmark against a model; continues an unfinished run of the same configuration",
    "resume": "continue unfinished runs, each with its own endpoint",
    "report": "make the pages of a run again, or without a name one page over all runs",
    "status": "show the state of every run",
}
QUICK = {RUN: "harness.options.options:RunOptions", "resume": "harness.options.options:ResumeOptions"}
"""Classes of options apart from the module of their command, which takes a while to import."""


COMMANDS: Mapping[str, Command] = {
    **{name: Command(f"harness.commands.{name}", does, QUICK.get(name, "")) for name, does in CORE.items()},
    **{name: command for feature in features() for name, command in feature.commands.items()},
}


@dataclass(frozen=True, slots=True)
class Interface:
    """What a command takes: its class of options, and the benchmark whose settings are flags of `run`.

    `of_benchmark` are the options that its settings are.
    """

    command: str
    cls: type[Any]
    benchmark: type[Benchmark] | None = None
    of_benchmark: tuple[Option, ...] = ()

    @property
    def own(self) -> tuple[Option, ...]:
        """Return the options of the class."""
        return options_of(self.cls)

    @property
    def every(self) -> tuple[Option, ...]:
        return (*self.own, *self.of_benchmark)

    def made(self, values: Mapping[str, Any], more: JSON) -> Any:
        """Return the options with these values, by name, and defaults; those of the benchmark apart."""
        found: JSON = {one.name: values.get(one.name, one.default) for one in self.own}
        found |= {one.name: list(found[one.name]) for one in self.own if one.many and found[one.name] is not None}
        if self.benchmark is not None:
            given = [one.name for one in self.of_benchmark if one.name in values]
            found["benchmark_class"] = self.benchmark
            found["of_benchmark"] = {name.removeprefix(settings.DEST): values[name] for name in given}
        return self.cls(**found, **more)


@dataclass(frozen=True, slots=True)
class Parsed:
    """A command with its options. `settings` are the names of options that the settings file sets, and where; `words`
    is all that was given: the file's values as words, then the command's own."""

    interface: Interface
    args: Any
    words: Sequence[str]
    settings: Mapping[str, Any]

    def execute(self) -> int:
        code: int = import_module(COMMANDS[self.interface.command].module).execute(self.args)
        return code


def parsed(arguments: Sequence[str]) -> Parsed:
    """Return a command and its options; the first argument is the command's name. Raise `BadInput` for a settings file
    that cannot be used."""
    name, *words = arguments
    interface = built(name, words)
    typed = typed_values(interface, words)
    if name == RUN and typed.get("benchmark", defaults.BENCHMARK) != named_benchmark(interface.own, words):
        raise BadInput(f"name the benchmark before its settings: run {typed['benchmark']} ...")
    return completed(interface, typed, words)


def completed(interface: Interface, typed: Mapping[str, Any], words: Sequence[str] = ()) -> Parsed:
    """Return a command with the values that are typed, then those of a settings file, then defaults."""
    for one, other in _rivals(interface.own, typed):
        raise BadInput(f"{one.flags[0]} and {other.flags[0]} are for the same: give one of them")
    of_file = None if COMMANDS[interface.command].alone else function("settings_of")
    given = of_file(interface, typed) if of_file else options.Given()
    if missing := [one for one in interface.own if one.required and one.name not in {*given.values, *typed}]:
        flags = ", ".join([one.flags[0] if one.flags else one.position for one in missing])
        raise BadInput(f"{interface.command} needs {flags}")
    more: JSON = {"typed": frozenset(typed), "places": given.places, "fallback": given.fallback}
    made = interface.made({**given.values, **typed}, more)
    return Parsed(interface, made, [interface.command, *given.words, *words], given.places)


KEYWORDS: Mapping[str, str] = {"settings_file": "settings_file"}
"""Option -> its keyword in Python, where that does not follow from its flag."""


def keyword(one: Option) -> str:
    """Return the keyword of an option in Python: its flag's name."""
    return KEYWORDS.get(one.name) or one.label.replace("-", "_")


def called(
    name: str, given: Mapping[str, Any], features: Sequence[object] = (), settings_of: Mapping[str, Any] | None = None
) -> Parsed:
    """Return a command with options of the Python interface, by keyword: None is what the settings file or the default
    says. `features` are objects of their classes of options. Raise `BadInput` with the keyword of a value that cannot
    be used."""
    if name not in COMMANDS:
        raise BadInput(f"`{name}` is of a feature that is not there")
    interface = Interface(name, shape(name))
    if name == RUN:
        interface = of_benchmark(interface, registry.find(str(given.get("benchmark") or defaults.BENCHMARK)))
    named = {one.name: keyword(one) for one in interface.own}
    values = {name: given.get(place) for name, place in named.items()}
    for feature in features:
        if not (is_dataclass(feature) and issubclass(interface.cls, type(feature))):
            raise BadInput(f"features: {in_brief(feature)} has no options of `{name}`")
        differing = [one for one in options_of(type(feature)) if getattr(feature, one.name) != one.default]
        named |= {one.name: f"{type(feature).__name__}.{one.name}" for one in differing}
        values |= {one.name: getattr(feature, one.name) for one in differing}
    named |= {one.name: f"settings.{one.name.removeprefix(settings.DEST)}" for one in interface.of_benchmark}
    values |= {f"{settings.DEST}{name}": value for name, value in (settings_of or {}).items()}
    if unknown := [name for name in values if name not in named]:
        known = ", ".join(one.name.removeprefix(settings.DEST) for one in interface.of_benchmark)
        raise BadInput(f"settings: unknown setting {unknown[0].removeprefix(settings.DEST)}: there are {known}")
    typed: JSON = {}
    for one in interface.every:
        try:
            typed |= {one.name: one.value(values[one.name])} if values.get(one.name) is not None else {}
        except ValueError as error:
            raise BadInput(f"{named[one.name]}: {error}") from None
    return completed(interface, typed)


@cache
def shape(name: str) -> type[options.Options]:
    """Return the class of a command's options: its own and those that features add."""
    command = COMMANDS[name]
    module, _, attribute = (command.options or f"{command.module}:Options").partition(":")
    own = getattr(import_module(module), attribute)
    wanted = {name} if command.alone else {name, *EVERY}
    added = [cls for one in features() for cls, names in one.options.items() if not wanted.isdisjoint(names)]
    made: type[options.Options] = dataclass(frozen=True, eq=False, repr=False)(
        type(own.__name__, (*reversed(added), own), {"__doc__": f"Options of `{name}`."})
    )
    return made


def built(name: str, words: Sequence[str]) -> Interface:
    """Return what a command takes; some of it depends on other words: no other benchmark than the named one has a part
    in a command line of `run`."""
    interface = Interface(name, shape(name))
    if name != RUN:
        return interface
    return of_benchmark(interface, registry.find(named_benchmark(interface.own, words)))


def of_benchmark(interface: Interface, cls: type[Benchmark]) -> Interface:
    """Return what `run` takes for a benchmark. Raise `BadInput` if its settings cannot be flags."""
    try:
        found = settings.options(cls.Settings, cls.name, {flag for one in interface.own for flag in one.flags})
    except settings.BadSettings as error:
        raise BadInput(f"{cls.name}: {error}") from None
    return Interface(interface.command, interface.cls, cls, found)


def named_benchmark(known: Sequence[Option], words: Sequence[str]) -> str:
    """Return the benchmark among a command's words, before its own flags are known: the first word that is neither an
    option nor its value. An unknown option may take the next word, unless that is a benchmark."""
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


def settings_of(flag: str) -> str | None:
    """Return the benchmark that ships and has this flag, None if none has it."""
    return next((name for name in registry.names() if flag in settings.flags(registry.find(name).Settings)), None)


# argparse


def typed_values(interface: Interface, words: Sequence[str]) -> dict[str, Any]:
    """Return the values of a command's words, by the names of options. Print help, or an error, and leave."""
    found = vars(parser(interface, words).parse_args(list(words)))
    return {name: value for name, value in found.items() if value is not None and value != []}


def parser(interface: Interface, words: Sequence[str] = (), *, whole: bool | None = None) -> Parser:
    """Return a parser of a command's words; its help has all options if `whole`, else those of every day."""
    name, every = interface.command, interface.every
    layered = name in ("run", "resume")
    whole = (ALL in words if whole is None else whole) or not layered
    examples = "".join(f"  {line}\n" for line in interface.cls.examples)
    parts = [f"examples:\n{examples}" if examples else ""]
    more = sum(not one.everyday for one in every)
    parts += [] if whole else [f"`harness {name} {ALL}` lists {more} more options"]
    made = Parser(
        words,
        every,
        prog=f"harness {name}",
        description=COMMANDS[name].does,
        epilog="\n".join(filter(None, parts)) or None,
    )
    if layered:
        made.add_argument(ALL, action="help", help="show every option" if not whole else "show this")
    groups: dict[str, Any] = {"": made}
    for one in every:
        within = groups.setdefault(one.group, None) or made.add_argument_group(one.group)
        groups[one.group] = within
        add(within, one, hidden=not (whole or one.everyday))
    return made


def add(to: Any, one: Option, *, hidden: bool = False) -> list[argparse.Action]:
    """Add an option to a parser or a group, by position and by flags; return argparse's objects for both."""
    words = argparse.SUPPRESS if hidden else one.words.replace("%", "%%") or None
    value: dict[str, Any] = {"type": _of_text(one), "metavar": one.unit or None}
    if one.choices:
        value = {"choices": one.choices}
    made = []
    if one.position:
        nargs = argparse.REMAINDER if one.rest else "*" if one.many else None if one.required else "?"
        more = {"action": "extend"} if one.many and not one.rest else {}
        made.append(to.add_argument(one.name, nargs=nargs, help=words, **value | {"metavar": one.position}, **more))
    if one.flags:
        if one.both:
            value = {"action": argparse.BooleanOptionalAction}
        elif one.kind is bool:
            value = {"action": "store_const", "const": not one.off}
        elif one.many:
            value["action"] = "append"
        if one.position:
            words = words if hidden else f"the same as {one.position}; may be repeated"
        if one.required:
            value["required"] = False  # a settings file may have it
        made.append(to.add_argument(*one.flags, dest=one.name, default=argparse.SUPPRESS, help=words, **value))
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

    def __init__(self, words: Sequence[str] = (), every: Sequence[Option] = (), **more: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **more)
        self._words, self._every = words, every

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, unknown = self.parse_known_args(args, namespace)
        if flags := [word.partition("=")[0] for word in unknown if word.startswith("-")]:
            self.error("; ".join(map(self._unknown, flags)))
        if unknown:
            self.error(f"unexpected argument {unknown[0]}")
        return found

    def _unknown(self, flag: str) -> str:
        """Return the message on an unknown option: whose it is, or the nearest known one."""
        owner = settings_of(flag)
        return f"{flag} is an option of `run {owner}`" if owner else f"unknown option {flag}{near(flag, self._every)}"

    def error(self, message: str) -> NoReturn:
        words = on_one_line(secrets.scrubber(self._words, os.environ)(message))
        self.exit(2, f"{self.prog}: error: {words} (`{self.prog} --help` lists the options)\n")


def _rivals(every: Sequence[Option], typed: Mapping[str, Any]) -> Iterator[tuple[Option, Option]]:
    """Yield options that are both given, and exclude each other."""
    given = [one for one in every if one.rivals and one.name in typed]
    yield from (pair for pair in combinations(given, 2) if pair[0].rivals == pair[1].rivals)


def near(flag: str, every: Sequence[Option]) -> str:
    """Return a question with the option that was meant, as the end of a message; empty if none is near."""
    known = ["--help", *(name for one in every for name in one.flags if name.startswith("--"))]
    longer = [name for name in known if len(flag) > 3 and name.startswith(flag)]
    words = {name.removeprefix("--"): name for name in known}
    close = get_close_matches(flag.lstrip("-").lower().replace("_", "-"), words, 1, 0.7)
    found = longer or [words[word] for word in close]
    return f": did you mean {found[0]}?" if found else ""
