"""`completion`: a script by which a shell completes commands, options, values and names of runs."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import shtab

from harness import defaults
from harness.benchmarks import registry
from harness.commands.parser import add, built
from harness.commands.table import COMMANDS, RUN
from harness.option import Option, command_options, folder, option
from harness.options import options
from harness.ui.streams import show

BASH = r"""
# $1: the word as it is typed. Prints the runs that it may become, quoted as the word is;
# no name is ever evaluated.
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
"""How names of runs are completed. A folder may come from somebody else, with a name that a shell
would execute, as in `$(...)`; here names are data. shtab's `cmd` would evaluate them (`compgen
-W`). Names that no run can have, and those that would be read as options, are left out."""


@command_options
class Options(options.Options):
    examples: ClassVar[Sequence[str]] = (
        "harness completion bash > ~/.local/share/bash-completion/completions/harness",
        'harness completion zsh > "${fpath[1]}/_harness"',
        "harness completion fish > ~/.config/fish/completions/harness.fish",
    )
    shell: Literal["bash", "zsh", "fish"] = option(
        help_text="the shell to print it for", position="SHELL", everyday=True
    )


def execute(args: Options) -> int:
    show(shtab.complete(full_parser(), args.shell))
    return 0


def full_parser() -> argparse.ArgumentParser:
    """Return one parser with the options of all commands, and of all benchmarks that ship."""
    parser = argparse.ArgumentParser(prog="harness", allow_abbrev=False)
    commands = parser.add_subparsers()
    for name, command in COMMANDS.items():
        command_parser = commands.add_parser(name, help=command.does)
        for declared in _options(name):
            for action in add(command_parser, declared):
                if action.dest == "benchmark" and not action.option_strings:
                    action.choices = registry.names()
                completer = _completer(declared)
                if completer:
                    action.complete = completer  # type: ignore[attr-defined]  # where shtab looks for it
    return parser


def _options(command: str) -> Iterator[Option]:
    """Yield the options of a command, with those that it has for any benchmark."""
    seen = set[str]()
    # A script of a shell is made once: it offers the settings of all benchmarks, whichever the user
    # will name.
    benchmarks = registry.names() if command == RUN else ("",)
    for benchmark in benchmarks:
        for declared in built(command, (benchmark,)).all_options:
            # An option that several benchmarks have is completed once.
            names = (declared.name, *declared.flags)
            if seen.isdisjoint(names):
                seen.update(names)
                yield declared


def _completer(declared: Option) -> Any:
    """Return how a value is completed, None where it is neither a run, a folder nor a file."""
    if declared.completes:
        return RUNS
    if declared.read is folder:
        return shtab.DIRECTORY
    if declared.kind is Path or declared.unit.startswith("FILE"):
        return shtab.FILE
    return None
