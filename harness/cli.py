"""The command line: finds the command, and turns every error into one sentence and an exit code.

A command's module is imported when it is called, so that help is quick.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import FrameType
from typing import Any, NoReturn

from harness import __version__
from harness.benchmarks import registry
from harness.config import secrets
from harness.errors import BadInput, HarnessError, MachineError, lacks_memory
from harness.printable import in_lines, on_one_line
from harness.ui import process_list, streams

COMMANDS = {
    "run": "run a benchmark against a model; continues an unfinished run of the same configuration",
    "resume": "continue unfinished runs, each with its own endpoint",
    "reeval": "score saved answers again, without any call",
    "stats": "Excel tables of all runs, one per metric",
    "compare": "compare runs on the users that they share, with significance tests",
    "report": "make pages again from a results folder: of one run, or one over all runs",
    "sample": "write a nested share of a tasks file",
    "synth": "write synthetic tasks of any size",
    "status": "show the state of every run",
    "verify": "prove a run's folder sound",
    "check-benchmark": "prove that a benchmark keeps its contract, with sample tasks and scripted models",
    **{name: command.does for name, command in registry.COMMANDS.items()},
    "serve": "serve the baseline models, with latency and faults on demand",
}
MAY_HOLD_SECRETS = re.compile(r"--(?:api|base|extra)[-_](?:key|url|header)")
INTERNAL_ERROR = 70
INTERRUPTED = 130


SIGNALS = {signal.SIGTERM: 143, signal.SIGUSR1: 143}
"""Signals that end a command, and the exit codes that say so; SIGUSR1 is what job schedulers send."""


class _Signalled(KeyboardInterrupt):
    """A signal asked the process to end: like Ctrl-C, it passes through every `except Exception` on its way."""

    def __init__(self, exit_code: int) -> None:
        super().__init__()
        self.exit_code = exit_code


def main(argv: list[str] | None = None) -> int:
    """Runs a command; returns the process's exit code."""
    streams.admit_all_characters()
    arguments = sys.argv[1:] if argv is None else argv
    if argv is None and any(map(MAY_HOLD_SECRETS.match, arguments)):
        process_list.hide(secrets.of_arguments(arguments))
    try:
        with _ended_by_signals():
            code = _told(arguments)
    except KeyboardInterrupt as signalled:
        if argv is None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # one more, on the last steps, ends them without a traceback
        streams.tell("interrupted")
        code = signalled.exit_code if isinstance(signalled, _Signalled) else INTERRUPTED
    return _flushed(code)


def _told(arguments: list[str]) -> int:
    """A command's exit code; its errors become sentences and codes."""
    try:
        return _main(arguments)
    except SystemExit as left:  # argparse has printed the error or the help
        return left.code if isinstance(left.code, int) else 0
    except HarnessError as error:
        for sentence in error.args:
            streams.tell(_scrubbed(sentence, arguments))
        return error.exit_code
    except BrokenPipeError:  # the reader of our output went away, as `| head` does
        streams.drop(sys.stdout)
        return 0
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "harness":
            return _internal_error(error, arguments)
        streams.tell(
            f"the package {error.name!r} is not installed for {sys.executable}: use the Python that `make` has set up, "
            ".venv/bin/python -m harness, or install this project into yours (`pip install -e .`)"
        )
        return MachineError.exit_code
    except Exception as error:  # the one place that may meet anything: a user gets a sentence, the file the rest
        if lacking := _memory_error_within(error):
            return _out_of_memory(lacking, arguments)
        if signalled := _signal_within(error):
            raise signalled from None
        return _internal_error(error, arguments)


def _memory_error_within(error: BaseException) -> BaseException | None:
    """The error itself where it says that there is no memory, or one such of a group of concurrent tasks' errors."""
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, map(_memory_error_within, error.exceptions)), None)
    return error if lacks_memory(error) else None


def _out_of_memory(error: BaseException, arguments: list[str]) -> int:
    """A library or this code found no memory: what it held meanwhile is let go first."""
    traceback.clear_frames(error.__traceback__)
    details = _scrubbed(str(error), arguments)
    streams.tell(
        f"no memory left for `harness {arguments[0]}`{f' ({details})' if details else ''}: everything saved is intact; "
        "give this process more (see ulimit -v), and call it again"
    )
    return MachineError.exit_code


def _signal_within(error: BaseException | None) -> KeyboardInterrupt | None:
    """The signal that an error was made of: Python wraps what is raised while it makes a class."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__
    return error


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """`SIGNALS` end the command as Ctrl-C does; an engine that can stop more gently has receivers of its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise _Signalled(SIGNALS[signal.Signals(number)])

    before = {number: signal.signal(number, end) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _flushed(code: int) -> int:
    """Return the exit code once all output is written; output that cannot be written is dropped and reported."""
    unwritten = streams.flush(sys.stdout)
    streams.flush(sys.stderr)
    if unwritten is None or isinstance(unwritten, BrokenPipeError):
        return code
    streams.tell(f"cannot write the output: {unwritten.strerror}")
    return max(code, MachineError.exit_code)


def _main(arguments: list[str]) -> int:
    _refuse_undecodable(arguments)
    parser = _top_parser()
    if not arguments or arguments[0] not in COMMANDS:
        parser.parse_args(arguments)  # help, version, or a usage error: these do not return
        parser.print_help()
        return 2
    command = _command(arguments[0])
    options = _Parser(prog=f"harness {arguments[0]}", description=COMMANDS[arguments[0]], allow_abbrev=False)
    command.add_arguments(options)
    if add_flags := getattr(command, "add_flags", None):  # those that depend on what the words name
        add_flags(options, arguments[1:])
    options.set_defaults(least_code=0)  # a command that goes on past a bad input raises it
    parsed = options.parse_args(arguments[1:])
    code: int = command.execute(parsed)
    least: int = parsed.least_code
    return max(code, least)


def _command(name: str) -> Any:
    """Return the module of a command, or an `Extra` for a command of one benchmark."""
    if name in registry.COMMANDS:
        return import_module("harness.commands.extra").Extra(name)
    return import_module(f"harness.commands.{name.replace('-', '_')}")


def _refuse_undecodable(arguments: list[str]) -> None:
    """Names and paths go into files of JSON, which cannot hold bytes that are no text."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise BadInput(f"{argument!r} is not text in UTF-8") from None


def _scrubbed(text: str, arguments: list[str]) -> str:
    """A sentence without the secrets that this process was given."""
    return secrets.scrubber(arguments, os.environ)(text)


class _Parser(argparse.ArgumentParser):
    """Repeats no secret of a mistaken command line."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._given = list(args or ())
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        super().error(on_one_line(_scrubbed(message, self._given)))


def _top_parser() -> argparse.ArgumentParser:
    listed = "\n".join(f"  {name:<16} {does}" for name, does in COMMANDS.items())
    parser = _Parser(
        prog="harness",
        description="An inference harness for benchmarks of user behaviour.",
        epilog=f"commands:\n{listed}\n\n`harness COMMAND --help` lists the options of a command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"harness {__version__}")
    parser.add_argument("command", nargs="?", choices=COMMANDS, metavar="COMMAND", help="one of the commands below")
    return parser


def _internal_error(error: Exception, arguments: list[str]) -> int:
    """A defect of the harness: what a developer needs goes to a file, without the values of variables."""
    inner: BaseException = error
    while isinstance(inner, BaseExceptionGroup):
        inner = inner.exceptions[0]
    details = _details(_scrubbed("".join(traceback.format_exception(error)), arguments))
    detail = _scrubbed(str(inner), arguments)
    streams.tell(
        f"a defect of the harness itself ({type(inner).__name__}: {detail}); everything saved is intact, "
        f"the details are {details}"
    )
    return INTERNAL_ERROR


def _details(content: str) -> str:
    """Where a traceback was put."""
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="harness-error-", suffix=".txt", delete=False, encoding="utf-8", errors="backslashreplace"
        ) as file:
            file.write(in_lines(content))
    except OSError as reason:
        return f"lost, since no file for them can be written: {reason.strerror}"
    return f"in {file.name}"
