"""The command line: finds the command, and turns every error into one sentence and an exit code.

A command's module is imported when it is called, so that help is quick.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import traceback
from importlib import import_module
from pathlib import Path

from harness import __version__
from harness.errors import HarnessError

COMMANDS = {
    "run": "run a benchmark against a model; goes on where the same run stands unfinished",
    "resume": "go on with unfinished runs, each with its own endpoint",
    "reeval": "score saved answers again, without any call",
    "stats": "Excel tables of all runs, one per metric",
    "sample": "write a nested share of a tasks file",
    "synth": "write synthetic tasks of any size",
    "status": "show where every run stands",
    "verify": "prove a run's folder sound",
    "serve": "serve the baseline models, with latency and faults on demand",
}
INTERNAL_ERROR = 70
INTERRUPTED = 130


def main(argv: list[str] | None = None) -> int:
    """Runs a command; returns the process's exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        return _main(arguments)
    except HarnessError as error:
        for sentence in str(error).splitlines():
            print(f"harness: {sentence}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("harness: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output went away, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # the one place that may meet anything: a user gets a sentence, the file the rest
        return _internal_error(error)


def _main(arguments: list[str]) -> int:
    parser = _top_parser()
    if not arguments or arguments[0] not in COMMANDS:
        parser.parse_args(arguments)  # help, version, or a usage error: these do not return
        parser.print_help()
        return 2
    command = import_module(f"harness.commands.{arguments[0]}")
    options = argparse.ArgumentParser(
        prog=f"harness {arguments[0]}", description=COMMANDS[arguments[0]], allow_abbrev=False
    )
    command.add_arguments(options)
    code: int = command.execute(options.parse_args(arguments[1:]))
    return code


def _top_parser() -> argparse.ArgumentParser:
    listed = "\n".join(f"  {name:<8} {does}" for name, does in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="harness",
        description="An inference harness for benchmarks of user behaviour.",
        epilog=f"commands:\n{listed}\n\n`harness COMMAND --help` tells the options of one.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"harness {__version__}")
    parser.add_argument("command", nargs="?", choices=COMMANDS, metavar="COMMAND", help="one of the commands below")
    return parser


def _internal_error(error: Exception) -> int:
    """A defect of the harness: what a developer needs goes to a file, without the values of variables."""
    with tempfile.NamedTemporaryFile(
        "w", prefix="harness-error-", suffix=".txt", delete=False, encoding="utf-8"
    ) as file:
        file.writelines(traceback.format_exception(error))
    inner: BaseException = error
    while isinstance(inner, BaseExceptionGroup):
        inner = inner.exceptions[0]
    print(
        f"harness: a defect of the harness itself ({type(inner).__name__}: {inner}); everything saved is intact, "
        f"the details are in {Path(file.name)}",
        file=sys.stderr,
    )
    return INTERNAL_ERROR
