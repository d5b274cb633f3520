"""The commands: a sentence for the help of each, and its module, which is imported when it is
needed."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import ModuleType

from harness.benchmarks import registry
from harness.benchmarks.registry import Command
from harness.errors import BadInput, in_brief, which_is_known
from harness.options import options

RUN, RESUME = "run", "resume"
ALONE = frozenset({"trust"})
"""Commands that take no settings file."""

COMMANDS: Mapping[str, Command] = {
    RUN: Command(
        "harness.commands.run",
        "run a benchmark against a model; continues an unfinished run of the same configuration",
    ),
    RESUME: Command(
        "harness.commands.resume", "continue unfinished runs, each with its own endpoint"
    ),
    "report": Command(
        "harness.commands.report",
        "make the pages of a run again, or without a name one page over all runs",
    ),
    "status": Command("harness.commands.status", "show the state of every run"),
    "reeval": Command("harness.commands.reeval", "score saved answers again, without any request"),
    "sample": Command("harness.commands.sample", "write a nested share of a tasks file"),
    "synth": Command("harness.commands.synth", "write synthetic tasks of any size"),
    "remove": Command(
        "harness.commands.remove",
        "set runs aside, under other names in their folders; nothing is deleted",
    ),
    "fetch": Command("harness.commands.fetch.command", "download a benchmark's tasks"),
    "merge": Command(
        "harness.commands.merge.command", "combine the parts that `run --part` played into one run"
    ),
    "export": Command(
        "harness.commands.export.command",
        "write runs for other programs: rows as CSV, JSON lines or Parquet, logs for Inspect, or to"
        " trackers",
    ),
    "compare": Command(
        "harness.commands.compare.command",
        "compare runs on the users that they share, with significance tests",
    ),
    "stats": Command(
        "harness.commands.stats.command",
        "show a table of all runs, and with --excel write an Excel file per metric",
    ),
    "show": Command(
        "harness.commands.show.command", "show a user's prompts, replies and scores in the terminal"
    ),
    "view": Command(
        "harness.commands.view.command", "show runs in the browser, also while they are played"
    ),
    "watch": Command(
        "harness.commands.watch", "show the dashboard of runs that play in another terminal"
    ),
    "set": Command("harness.commands.set", "change the limits of a run while it is played"),
    "stop": Command("harness.commands.stop", "end a run that is being played, as Ctrl-C does"),
    "verify": Command(
        "harness.commands.verify.command", "check that a run's folder is complete and unchanged"
    ),
    "check-benchmark": Command(
        "harness.commands.check.command",
        "check that a benchmark keeps its contract, with sample tasks and scripted models",
    ),
    "config": Command(
        "harness.commands.config",
        "show the options that a command would have, and where each value comes from",
    ),
    "completion": Command(
        "harness.commands.completion",
        "print a script that lets a shell complete commands, options and run names",
    ),
    "trust": Command(
        "harness.commands.trust",
        "allow the settings file and the providers file of this folder, as they are now",
    ),
    **{
        name: Command("harness.commands.of_benchmark", command.does)
        for name, command in registry.COMMANDS.items()
    },
}


def check_command(name: str) -> None:
    """Raise `BadInput` for a name that is no command's."""
    if name not in COMMANDS:
        raise BadInput(f"{in_brief(name)} is no command{which_is_known(name, COMMANDS)}")


def options_class(name: str) -> type[options.Options]:
    """Return the class of a command's options."""
    # The modules of `run` and `resume` take long to import, and `run --help` is to be fast.
    if name == RUN:
        return options.RunOptions
    if name == RESUME:
        return options.ResumeOptions
    cls: type[options.Options] = module_of(name).Options
    return cls


def module_of(name: str) -> ModuleType:
    """Return the module of a command: with `Options`, and `execute`, which takes an object of it
    and returns an exit code, or raises `HarnessError`."""
    return import_module(COMMANDS[name].module)
