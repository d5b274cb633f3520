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
from harness.feature import features
from harness.ui.streams import show

SHELLS = ("bash", "zsh", "fish")
EXAMPLES = (
    "harness completion bash > ~/.local/share/bash-completion/completions/harness",
    'harness completion zsh > "${fpath[1]}/_harness"',
    "harness completion fish > ~/.config/fish/completions/harness.fish",
)
BASH = r"""
# $1: the word as it is typed. Prints the runs that it may become, quoted as the word is; no name is ever evaluated.
_harness_runs() {
  local open= typed=$1 word= special=$' !"#$&\'()*,:;<=>?[]^`{|}~' folder name quoted at
  shopt -s nullglob
  shopt -u failglob
  [[ $typed == [\'\"]* ]] && open=${typed:0:1} typed=${typed:1}
  for ((at = 0; at < ${#typed}; at++)); do
    [[ ${typed:at:1} == \\ ]] && ((at++))
    word+=${typed:at:1}
  done
  for folder in RESULTS/*/; do
    name=${folder#RESULTS/} name=${name%/}
    [[ $name == "$word"* && $name != [.-]* && $name != *[[:cntrl:]\\]* ]] || continue
    quoted=$name
    case $open in
      \') [[ $name == *\'* ]] && continue ;;
      \") [[ $name == *[\"\$\`!]* ]] && continue ;;
      *)
        quoted=
        for ((at = 0; at < ${#name}; at++)); do
          [[ $special == *"${name:at:1}"* ]] && quoted+=\\
          quoted+=${name:at:1}
        done
        ;;
    esac
    printf '%s\n' "$quoted"
  done
}
"""
ZSH = r"""
# `compadd` quotes what it inserts.
_harness_runs() {
  local -a names
  names=(RESULTS/*(N-/:t))
  names=(${names:#*[[:cntrl:]\\]*})
  names=(${names:#-*})
  compadd "$@" -a names
}
"""
FISH = r"""
# fish quotes what it inserts.
function _harness_runs
  for folder in RESULTS/*/
    if not string match -qr '^RESULTS/-|[[:cntrl:]\\\\]' -- $folder
      string replace -r '^RESULTS/(.*)/$' '$1' -- $folder
    end
  end
end
"""
RUNS = {
    "bash": "_harness_runs",
    "zsh": "_harness_runs",
    "fish": "(_harness_runs)",
    "preamble": {
        shell: code.replace("RESULTS", str(defaults.RESULTS_FOLDER))
        for shell, code in (("bash", BASH), ("zsh", ZSH), ("fish", FISH))
    },
}
"""How names of runs are completed. A folder may come from somebody else, with a name that a shell would execute, as in
`$(...)`; here names are data. shtab's `cmd` would evaluate them (`compgen -W`). Names that no run can have, and those
that would be read as options, are left out."""
OF_RUNS = frozenset({"name", "runs"})
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
    if action.dest in OF_RUNS.union(*[feature.runs for feature in features()]):
        return RUNS
    if action.type is options.folder:
        return shtab.DIRECTORY
    return shtab.FILE if action.type is Path or str(action.metavar).startswith("FILE") else None
