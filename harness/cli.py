"""Run a command; turn every error into one sentence and an exit code."""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from harness import __version__
from harness.benchmarks import hash_seed
from harness.commands.parser import Parser, parsed
from harness.commands.table import COMMANDS, check_command
from harness.defaults import GC_THRESHOLD
from harness.errors import EXIT_CODES, BadInput, HarnessError, MachineError, heeded, lacks_memory
from harness.options import secrets
from harness.printable import in_lines
from harness.ui import streams

INTERNAL_ERROR, INTERRUPTED = 70, 130


class _Signalled(KeyboardInterrupt):
    """A signal asked the process to end. Like Ctrl-C, it is not caught by `except Exception`."""

    def __init__(self, exit_code: int) -> None:
        super().__init__()
        self.exit_code = exit_code


def main(argv: list[str] | None = None) -> int:
    """Run a command and return the process's exit code."""
    streams.admit_all_characters()
    streams.tell_warnings()
    arguments = sys.argv[1:] if argv is None else argv
    try:
        with _ended_by_signals(for_good=argv is None), _few_collections():
            code = _reported(arguments, may_restart=argv is None)
    except KeyboardInterrupt as signalled:
        streams.tell("interrupted")
        code = INTERRUPTED
        if isinstance(signalled, _Signalled):
            code = signalled.exit_code
    code = _flushed(code)
    if argv is None:
        # else the interpreter looks at every object once more before it ends, for 40 ms
        gc.freeze()
    return code


def _reported(arguments: list[str], *, may_restart: bool) -> int:
    """Return a command's exit code; print its errors."""
    try:
        return _main(arguments, may_restart=may_restart)
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
        # A module of our own that is missing is a defect, and nothing that `pip` could install.
        if error.name is None or error.name.partition(".")[0] == "harness":
            return _internal_error(error, arguments)
        streams.tell(
            f"the package {error.name!r} is not installed for {sys.executable}: use the Python that"
            " `make` has set up, .venv/bin/harness, or install this project into yours (`pip"
            " install -e .`)"
        )
        return MachineError.exit_code
    except Exception as error:  # unforeseen: the user gets a sentence, a file the rest
        lacking = _memory_error_within(error)
        if lacking:
            return _out_of_memory(lacking, arguments)
        signalled = _signal_within(error)
        if signalled:
            raise signalled from None
        return _internal_error(error, arguments)


def _memory_error_within(error: BaseException) -> BaseException | None:
    """Return the error itself or one of a group's, if it means that there is no memory."""
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, map(_memory_error_within, error.exceptions)), None)
    if lacks_memory(error):
        return error
    return None


def _out_of_memory(error: BaseException, arguments: list[str]) -> int:
    traceback.clear_frames(error.__traceback__)  # frees what the command held
    details = _scrubbed(str(error), arguments)
    if details:
        details = f" ({details})"
    streams.tell(
        f"no memory left for `harness {arguments[0]}`{details}:"
        " everything saved is intact; give this process more (see ulimit -v), and call it again"
    )
    return MachineError.exit_code


def _signal_within(error: BaseException | None) -> KeyboardInterrupt | None:
    """Return the signal that an error came of: Python wraps what is raised while it makes a class,
    and the last steps of an event loop may raise another error while they handle it."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error


@contextmanager
def _ended_by_signals(*, for_good: bool) -> Iterator[None]:
    """Let signals end the command as Ctrl-C does; an engine that can stop more gently has its own
    receivers.

    `for_good`: this is all that the process does. One more Ctrl-C on its last steps ends them
    without a traceback.
    """
    # Python lets the main thread alone set handlers; an embedding program may call from any.
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise _Signalled(EXIT_CODES[signal.Signals(number)])

    # Python's own handler of SIGINT raises KeyboardInterrupt already.
    old_handlers = {
        number: signal.signal(number, end) for number in heeded() if number != signal.SIGINT
    }
    try:
        yield
    finally:
        for number, handler in old_handlers.items():
            signal.signal(number, handler)
        if for_good and signal.SIGINT in heeded():
            signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def _few_collections() -> Iterator[None]:
    """Collect garbage less often: neither what imports make nor the objects of a run have many
    cycles."""
    old_threshold = gc.get_threshold()
    gc.set_threshold(*GC_THRESHOLD)
    try:
        yield
    finally:
        gc.set_threshold(*old_threshold)


def _flushed(code: int) -> int:
    """Return the exit code once all output is written; output that cannot be written is dropped and
    reported."""
    unwritten = streams.flush(sys.stdout)
    streams.flush(sys.stderr)
    if unwritten is None or isinstance(unwritten, BrokenPipeError):
        return code
    streams.tell(f"cannot write the output: {unwritten.strerror}")
    # A script must not take a report that was cut short for the whole one.
    return max(code, MachineError.exit_code)


def _main(arguments: list[str], *, may_restart: bool) -> int:
    # Names and paths go into JSON, which cannot hold bytes that are not text.
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise BadInput(f"{argument!r} is not text in UTF-8") from None
    if not arguments or arguments[0].startswith("-"):
        parser = _top_parser(arguments)
        parser.values()  # help, version, or a usage error: these do not return
        parser.print_help()
        return 2
    check_command(arguments[0])
    command = parsed(arguments)
    if may_restart:
        hash_seed.fix(command.interface.command, command.args, os.environ)
    if getattr(command.args, "detach", False):
        from harness.commands import detach

        return detach.start(command.args, arguments)
    return command.execute()


def _scrubbed(text: str, arguments: list[str]) -> str:
    """Return a sentence without the secrets that this process was given."""
    return secrets.scrubber(arguments, os.environ)(text)


def _top_parser(arguments: list[str]) -> Parser:
    listed = "\n".join([f"  {name:<16} {command.does}" for name, command in COMMANDS.items()])
    parser = Parser(
        arguments,
        prog="harness",
        description="An inference harness for benchmarks of user behaviour.",
        epilog=f"commands:\n{listed}\n\n`harness COMMAND --help` lists the options of a command.",
    )
    parser.add_argument("--version", action="version", version=f"harness {__version__}")
    parser.add_argument("command", nargs="?", metavar="COMMAND", help="one of the commands below")
    return parser


def _internal_error(error: Exception, arguments: list[str]) -> int:
    """Report a defect of the harness, and write a file for developers, without the values of
    variables."""
    inner: BaseException = error
    # A task group wraps the errors of its tasks, and one sentence has room for one.
    while isinstance(inner, BaseExceptionGroup):
        inner = inner.exceptions[0]
    details = in_lines(_scrubbed("".join(traceback.format_exception(error)), arguments))
    try:
        with tempfile.NamedTemporaryFile(
            "w",
            prefix="harness-error-",
            suffix=".txt",
            delete=False,
            encoding="utf-8",
            errors="backslashreplace",
        ) as file:
            file.write(details)
        where = f"in {file.name}"
    except OSError as reason:
        where = f"lost, since they cannot be written to a file: {reason.strerror}"
    streams.tell(
        f"a defect of the harness itself ({type(inner).__name__}:"
        f" {_scrubbed(str(inner), arguments)}); everything saved is intact, the details are {where}"
    )
    return INTERNAL_ERROR
