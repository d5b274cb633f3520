"""The process's own output: with `console`, the only way to it.

That it cannot be written (a reader that went away, a full disk, an encoding without Chinese) never ends a command's
work.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any, TextIO, cast

from harness.errors import MachineError
from harness.printable import as_json, in_lines, on_one_line

LONGEST = 2000
"""Characters of a sentence; whatever is longer holds a value that nobody would read to its end."""


def admit_all_characters() -> None:
    """Characters that an output's encoding lacks are written as escapes, which is an error otherwise."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def tell(sentence: str) -> None:
    """Says something to the user on stderr, where there is one that can be written: one line, whatever it names."""
    try:
        if sys.stderr is not None:  # `print` would take stdout instead
            print(f"harness: {_bounded(on_one_line(sentence))}", file=sys.stderr, flush=True)
    except OSError:
        drop(sys.stderr)


def _bounded(words: str) -> str:
    cut = f" … ({len(words) - LONGEST} more characters)"
    return words if len(words) <= LONGEST + len(cut) else words[:LONGEST] + cut


def show(text: str) -> None:
    """Writes a command's result to stdout, its line feeds as they are and other controls as escapes.

    Raises `MachineError` where it is lost, not where nobody reads on.
    """
    try:
        print(in_lines(text), flush=True)
    except OSError as error:
        drop(sys.stdout)
        if not isinstance(error, BrokenPipeError):
            raise MachineError(f"cannot write the output: {error.strerror}") from error


def show_json(value: Any) -> None:
    """Writes a command's result as JSON, as `show` does."""
    show(as_json(value))


def can_ask() -> bool:
    """Return whether there is a user who sees a question and can answer it."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def flush(stream: TextIO | None) -> OSError | None:
    """Writes what is buffered, or drops it and returns why it cannot be written."""
    try:
        if stream is not None:
            stream.flush()
    except OSError as error:
        drop(stream)
        return error
    return None


def drop(stream: TextIO | None) -> None:
    """Sends a stream's output nowhere from now on, with what its buffer holds."""
    with suppress(OSError):
        if stream is not None and stream.fileno() >= 0:
            nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


class Unfailing:
    """Standard output for displays: from the first write that fails on it is silent, after a word on stderr.

    A pipe whose reader has gone is no failure (`| head` wants no more), so there it says nothing.
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
        if not self._silent:
            try:
                return self._stream.write(text)
            except OSError as error:
                self._fall_silent(error)
        return len(text)

    def flush(self) -> None:
        if not self._silent:
            try:
                self._stream.flush()
            except OSError as error:
                self._fall_silent(error)

    def _fall_silent(self, error: OSError) -> None:
        self._silent = True
        drop(self._stream)
        if not isinstance(error, BrokenPipeError):
            tell(f"nothing more is shown, since the output cannot be written: {error.strerror}")


def unfailing() -> TextIO | None:
    """Standard output as displays need it; None where the process has none."""
    return cast(TextIO, Unfailing(sys.stdout)) if sys.stdout is not None else None
