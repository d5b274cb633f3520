"""`completion`: a script by which a shell completes commands, options, values and names of runs."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import shtab

from harness import defaults
from harness.benchmarks import registry
from harness.commands.parser import COMMANDS, Parser, built
from harness.config import options
from harness.ui.streams import show

SHELLS = ("bash", "zsh", "fish")
EXAMPLES = (
    "harness completion bash > ~/.local/share/bash-completion/completions/harness",
    'harness completion zsh > "${fpath[1]}/_harness"',
    "harness completion fish > ~/.config/fish/completions/harness.fish",
)
RUNS = shtab.cmd(f"ls {defaults.RESULTS_FOLDER} 2>/dev/null")
OF_RUNS = frozenset({"name", "names", "parts", "reuse", "runs"})
"""Destinations of arguments that name runs."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="the shell to print it for")


def execute(args: argparse.Namespace) -> int:
    show(shtab.complete(whole(), args.shell))
    return 0


def whole() -> argparse.ArgumentParser:
    """Return one parser with the options of all commands, and of all benchmarks that ship."""
    parser = Parser(prog="harness", allow_abbrev=False)
    commands = parser.add_subparsers()
    for name, does in COMMANDS.items():
        made = built(name, ())[1]
        for action in _of_benchmarks(name, made):
            made._add_action(action)
        for action in made._actions:
            if action.dest == "benchmark" and not action.option_strings:
                action.choices = registry.names()
            if completer := _completer(action):
                action.complete = completer  # type: ignore[attr-defined]  # where shtab looks for it
        commands.add_parser(name, help=does, parents=[made], add_help=False)
    return parser


def _of_benchmarks(command: str, parser: Parser) -> Iterator[argparse.Action]:
    """Yield the options that the command has for other benchmarks than the default."""
    for name in registry.names():
        for action in built(command, (name,))[1]._actions:
            if not parser._option_string_actions.keys() & action.option_strings and action.option_strings:
                yield action


def _completer(action: argparse.Action) -> Any:
    """Return how a value is completed, None where it is neither a run, a folder nor a file."""
    if action.dest in OF_RUNS:
        return RUNS
    if action.type is options.folder:
        return shtab.DIRECTORY
    return shtab.FILE if action.type is Path or str(action.metavar).startswith("FILE") else None
