"""The commands: a sentence for the help of each, and its module, which is imported when it is
needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

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
    "export": (
        "write runs for other programs: rows as CSV, JSON lines or Parquet, logs for Inspect, or to"
        " trackers"
    ),
    "compare": "compare runs on the users that they share, with significance tests",
    "stats": "show a table of all runs, and with --excel write an Excel file per metric",
    "show": "show a user's prompts, replies and scores in the terminal",
    "view": "show runs in the browser, also while they are played",
    "watch": "show the dashboard of runs that play in another terminal",
    "set": "change the limits of a run while it is played",
    "stop": "end a run that is being played, as Ctrl-C does",
    "verify": "check that a run's folder is complete and unchanged",
    "check-benchmark": (
        "check that a benchmark keeps its contract, with sample tasks and scripted models"
    ),
    "config": "show the options that a command would have, and where each value comes from",
    "completion": "print a script that lets a shell complete commands, options and run names",
    "trust": "allow the settings file and the providers file of this folder, as they are now",
    **{name: command.does for name, command in registry.COMMANDS.items()},
}


def check_command(name: str) -> None:
    """Raise `BadInput` for a name that is no command's."""
    if name not in COMMANDS:
        raise BadInput(f"{in_brief(name)} is no command{which_is_known(name, COMMANDS)}")


class CommandModule(Protocol):
    """A module of a command."""

    @property
    def Options(self) -> type[options.Options]: ...  # noqa: N802
    @property
    def execute(self) -> Callable[[Any], int]:
        """Execute the command, and return an exit code. Raise `HarnessError`."""
        ...


def options_class(name: str) -> type[options.Options]:
    """Return the class of a command's options. Modules that play take a while to import."""
    match name:
        case "run":
            return options.RunOptions
        case "resume":
            return options.ResumeOptions
    return module_of(name).Options


def module_of(name: str) -> CommandModule:  # noqa: C901
    """Return the module of a command."""
    match name:
        case "run":
            from harness.commands import run

            return run
        case "resume":
            from harness.commands import resume

            return resume
        case "report":
            from harness.commands import report

            return report
        case "status":
            from harness.commands import status

            return status
        case "reeval":
            from harness.commands import reeval

            return reeval
        case "sample":
            from harness.commands import sample

            return sample
        case "synth":
            from harness.commands import synth

            return synth
        case "remove":
            from harness.commands import remove

            return remove
        case "fetch":
            from harness.commands.fetch import command as fetch

            return fetch
        case "merge":
            from harness.commands.merge import command as merge

            return merge
        case "export":
            from harness.commands.export import command as export

            return export
        case "compare":
            from harness.commands.compare import command as compare

            return compare
        case "stats":
            from harness.commands.stats import command as stats

            return stats
        case "show":
            from harness.commands.show import command as show

            return show
        case "view":
            from harness.commands.view import command as view

            return view
        case "watch":
            from harness.commands import watch

            return watch
        case "set":
            from harness.commands import set

            return set
        case "stop":
            from harness.commands import stop

            return stop
        case "verify":
            from harness.commands.verify import command as verify

            return verify
        case "check-benchmark":
            from harness.commands.check import command as check

            return check
        case "config":
            from harness.commands import config

            return config
        case "completion":
            from harness.commands import completion

            return completion
        case "trust":
            from harness.commands import trust

            return trust
    from harness.commands import of_benchmark

    return of_benchmark
