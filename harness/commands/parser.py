"""The command line: which commands there are, what each takes, and what words and settings file say together.

A command's module is imported when it is called, so that help is quick. It has `add_arguments(parser)` and
`execute(args)`, and may have `add_flags(parser, words)` for options that depend on other words, and `EXAMPLES` for its
help, a command line each.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NoReturn

from harness.benchmarks import registry
from harness.config import options, secrets, settings_file, user_files
from harness.config.settings_file import FileKey
from harness.feature import features
from harness.printable import on_one_line

TRUST = "trust"
"""The command that decides whether a settings file counts: it reads none itself."""
COMMANDS: Mapping[str, str] = {
    "run": "run a benchmark against a model; continues an unfinished run of the same configuration",
    "resume": "continue unfinished runs, each with its own endpoint",
    "reeval": "score saved answers again, without any request",
    "report": "make the pages of a run again, or without a name one page over all runs",
    "sample": "write a nested share of a tasks file",
    "synth": "write synthetic tasks of any size",
    "status": "show the state of every run",
    "remove": "set runs aside, under other names in their folders; nothing is deleted",
    **{name: command.does for name, command in registry.COMMANDS.items()},
    **{name: command.does for feature in features() for name, command in feature.commands.items()},
    TRUST: "allow the settings file and the providers file of this folder, as they are now",
    "config": "show the options that a command would have, and where each value comes from",
    "completion": "print a script that lets a shell complete commands, options and run names",
}


@dataclass(frozen=True, slots=True)
class Parsed:
    """A command with its options. `settings` are the destinations that the settings file sets, `words` all that was
    parsed: the file's, then the command's own. `args.typed` are the destinations that the command's own words set,
    `args.places` is `settings`."""

    command: Any
    parser: argparse.ArgumentParser
    args: argparse.Namespace
    words: Sequence[str]
    settings: Mapping[str, FileKey]


def parsed(arguments: Sequence[str]) -> Parsed:
    """Return a command and its options; the first argument is the command's name. Raise `BadInput` for a settings file
    that cannot be used."""
    name, *words = arguments
    command, parser = built(name, words)
    found = user_files.read(settings_file.FILE, settings_file.named(words), os.environ) if name != TRUST else None
    call = settings_file.Call(name, parser, words, COMMANDS, _known)
    given = settings_file.given(found, call, os.environ) if found else settings_file.NOTHING
    every = [*given.words, *words]
    args = parser.parse_args(every)
    args.fallback, args.typed = given.fallback, frozenset(options.destinations(parser, words))
    args.places = given.places
    return Parsed(command, parser, args, [name, *every], given.places)


def built(name: str, words: Sequence[str]) -> tuple[Any, Parser]:
    """Return a command and the parser of its options; some depend on other words."""
    if name in registry.COMMANDS:
        command: Any = import_module("harness.commands.extra").Extra(name)
    else:
        added = {name: one.module for feature in features() for name, one in feature.commands.items()}
        command = import_module(added.get(name) or f"harness.commands.{name.replace('-', '_')}")
    examples = "".join(f"  {line}\n" for line in getattr(command, "EXAMPLES", ()))
    parser = Parser(
        prog=f"harness {name}",
        description=COMMANDS[name],
        epilog=f"examples:\n{examples}" if examples else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_arguments(parser)
    for feature in features():
        feature.options(name, parser)
    if add_flags := getattr(command, "add_flags", None):
        add_flags(parser, words)
    if name != TRUST:
        options.add(parser, "--settings FILE", settings_file.HELP, type=options.filled)
    return command, parser


def _known() -> set[str]:
    """Return the names of all options of all commands."""
    return {flag.lstrip("-") for name in COMMANDS for flag in built(name, ())[1]._option_string_actions}


class Parser(argparse.ArgumentParser):
    """A parser whose errors show no secret of the command line."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._given = list(args or ())
        return super().parse_known_args(args, namespace)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        parsed, unknown = self.parse_known_args(args, namespace)
        if flags := [word.partition("=")[0] for word in unknown if word.startswith("-")]:
            self.error("; ".join(map(self._unknown, flags)))
        if unknown:
            self.error(f"unexpected argument {unknown[0]}")
        return parsed

    def _unknown(self, flag: str) -> str:
        """Return the message on an unknown option: whose it is, or the nearest known one."""
        if owner := settings_file.settings_of(flag):
            return f"{flag} is an option of `run {owner}`"
        known = [name for name in self._option_string_actions if name.startswith("--")]
        longer = [name for name in known if len(flag) > 3 and name.startswith(flag)]
        words = {name.removeprefix("--"): name for name in known}
        near = longer or [
            words[word] for word in get_close_matches(flag.lstrip("-").lower().replace("_", "-"), words, 1, 0.7)
        ]
        return f"unknown option {flag}{f': did you mean {near[0]}?' if near else ''}"

    def error(self, message: str) -> NoReturn:
        words = on_one_line(secrets.scrubber(self._given, os.environ)(message))
        self.exit(2, f"{self.prog}: error: {words} (`{self.prog} --help` lists the options)\n")
