"""The commands: a sentence for the help of each, and its module, which is imported when it is needed."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import ModuleType

from harness.benchmarks import registry
from harness.errors import BadInput, in_brief, which_is_known
from harness.options import options

RUN, RESUME = "run", "resume"
ALONE = frozenset({"trust"})
"""Commands that take no settings file."""

COMMANDS: Mapping[str, str] = {
    RUN: "run a benchmark against a model; continues an unfinished run of the same configuration",
    RESUME: "continue unfinished runs, each with its own endpoint",
    "report": "make the pages of a run again, or without a name one page over all runs",
    "status": "show the state of every run",
    "reeval": "score saved answers again, without any request",
    "sample": "write a nested share of a tasks file",
    "synth": "write synthetic tasks of any size",
    "remove": "set runs aside, under other names in their folders; nothing is deleted",
    "fetch": "download a benchmark's tasks",
    "merge": "combine the parts that `run --part` played into one run",
    "export": "write runs for other programs: rows as CSV, JSON lines or Parquet, logs for Inspect, or to trackers",
    "compare": "compare runs on the users that they share, with significance tests",
    "stats": "show a table of all runs, and with --excel write an Excel file per metric",
    "show": "show a user's prompts, replies and scores in the terminal",
    "view": "show runs in the browser, also while they are played",
    "watch": "show the dashboard of runs that play in another terminal",
    "set": "change the limits of a run while it is played",
    "stop": "end a run that is being played, as Ctrl-C does",
    "verify": "check that a run's folder is complete and unchanged",
    "check-benchmark": "check that a benchmark keeps its contract, with sample tasks and scripted models",
    "config": "show the options that a command would have, and where each value comes from",
    "completion": "print a script that lets a shell complete commands, options and run names",
    "trust": "allow the settings file and the providers file of this folder, as they are now",
    **{name: command.does for name, command in registry.COMMANDS.items()},
}

MODULES: Mapping[str, str] = {
    "check-benchmark": "check.command",
    **{name: f"{name}.command" for name in ("fetch", "merge", "export", "compare", "stats", "show", "view", "verify")},
    **dict.fromkeys(registry.COMMANDS, "of_benchmark"),
}
"""The modules of commands in this package, where they do not have the command's name."""


def check_command(name: str) -> None:
    """Raise `BadInput` for a name that is no command's."""
    if name not in COMMANDS:
        raise BadInput(f"{in_brief(name)} is no command{which_is_known(name, COMMANDS)}")


def options_class(name: str) -> type[options.Options]:
    """Return the class of a command's options. Modules that play take a while to import."""
    if name == RUN:
        return options.RunOptions
    if name == RESUME:
        return options.ResumeOptions
    declared: type[options.Options] = module_of(name).Options
    return declared


def module_of(name: str) -> ModuleType:
    """Return the module of a command: with `Options`, its class of options, and `execute`, which takes an object of it,
    returns an exit code and raises `HarnessError`."""
    return import_module(f"harness.commands.{MODULES.get(name, name)}")
