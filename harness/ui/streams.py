"""The process's own output: with `console`, the only way to it.

Output that cannot be written (a closed pipe, a full disk, an encoding without Chinese) never stops
a command's work.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO, cast

from harness.errors import MachineError
from harness.printable import as_json, in_lines, on_one_line

LONGEST = 2000
"""Longest sentence, in characters."""


def admit_all_characters() -> None:
    """Write characters that an output's encoding lacks as escapes instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def tell(sentence: str) -> None:
    """Print a sentence to the user on stderr, if it can be written: always one line."""
    # An error may quote a text of any length.
    text = on_one_line(sentence)
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]} … ({len(text) - LONGEST} more characters)"
    try:
        if sys.stderr is not None:  # `print` would take stdout instead
            print(f"harness: {text}", file=sys.stderr, flush=True)
    except OSError:
        drop(sys.stderr)


class _Told(logging.Handler):
    """Prints a record of the log as a sentence to the user."""

    def emit(self, record: logging.LogRecord) -> None:
        tell(record.getMessage())


def tell_warnings() -> None:
    """Print what the rooms that print nothing themselves warn of, through the logger `harness`."""
    logger = logging.getLogger("harness")
    if not any(isinstance(handler, _Told) for handler in logger.handlers):
        logger.addHandler(_Told())
        # A program with a log of its own would print each sentence a second time.
        logger.propagate = False


def show(text: str) -> None:
    """Write a command's result to stdout, with line feeds as they are and other control characters
    as escapes.

    Raise `MachineError` if it cannot be written, but not for a closed pipe.
    """
    try:
        print(in_lines(text), flush=True)
    except OSError as error:
        drop(sys.stdout)
        if not isinstance(error, BrokenPipeError):
            raise MachineError(f"cannot write the output: {error.strerror}") from error


def show_json(value: object) -> None:
    """Write a command's result as JSON, like `show`."""
    show(as_json(value))


def can_ask() -> bool:
    """Return whether there is a user who sees a question and can answer it."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def flush(stream: TextIO | None) -> OSError | None:
    """Write what is buffered, or drop it and return why it cannot be written."""
    try:
        if stream is not None:
            stream.flush()
    except OSError as error:
        drop(stream)
        return error
    return None


def drop(stream: TextIO | None) -> None:
    """Discard a stream's output from now on, including its buffer."""
    with suppress(OSError):
        # The descriptor itself is replaced, as the stream would write its buffer again at exit.
        if stream is not None and stream.fileno() >= 0:
            nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


class Unfailing:
    """Standard output for displays: after the first failed write it is silent, with one message on
    stderr.

    A closed pipe is no failure (`| head`), so there is no message then.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._silent = False

    @property
    def encoding(self) -> str:
        return self._stream.encoding

    def isatty(self) -> bool:
        return not self._silent and self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    def write(self, text: str) -> int:
        self._attempt(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._attempt(self._stream.flush)

    def _attempt(self, output: Callable[[], object]) -> None:
        if self._silent:
            return
        try:
            output()
        except OSError as error:
            self._silent = True
            drop(self._stream)
            if not isinstance(error, BrokenPipeError):
                tell(f"no further output: it cannot be written: {error.strerror}")


def unfailing() -> TextIO | None:
    """Return standard output for displays; None if the process has none."""
    if sys.stdout is not None:
        return cast(TextIO, Unfailing(sys.stdout))
    return None
