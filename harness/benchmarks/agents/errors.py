"""The text of agents' errors and of Python's warnings about them, as one line that any file can
hold."""

from __future__ import annotations

import re
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO, TextIOWrapper
from logging import Handler, getLogger
from threading import get_ident
from typing import Any, TextIO

LONGEST = 300
NO_TEXT = "an error without a usable text"
NEVER_AWAITED = "coroutine .* was never awaited"
Logging = tuple[int, list[Handler]]
"""Level and handlers."""
_BREAKS = re.compile(r"[\s\x00-\x1f\x7f-\x9f]+")


def one_line(text: str, max_characters: int = LONGEST) -> str:
    """Return a text without line breaks and control characters, cut to `max_characters`.

    Halves of characters, which no file of JSON can hold, become question marks.
    """
    # An error may have a text of any length; four times as much, since runs of blanks become one.
    start = str.__str__(text)[: 4 * max_characters].encode("utf-8", "replace").decode()
    return _BREAKS.sub(" ", start).strip()[:max_characters]


def described(error: BaseException) -> str:
    """Return name and text of an error. This runs methods of its class, which may raise, or never
    return."""
    name = one_line(type(error).__name__)
    text = one_line(str(error))
    if not text:
        return name
    return f"{name}: {text}"


class _Bytes(BytesIO):
    """Keeps what is written, by threads too, and stays open: the streams of a process are not
    closed either."""

    def __init__(self) -> None:
        super().__init__()
        self.chunks: deque[bytes] = deque()

    def write(self, data: Any) -> int:
        self.chunks.append(bytes(data))
        return len(data)

    def close(self) -> None: ...


class Written(TextIOWrapper):
    """Standard output and error for agent files: hold what they write, until it is taken. So does
    their root logger.

    Other threads' text passes through, to standard error. Agents find all that such a stream has,
    also its bytes.
    """

    def __init__(self) -> None:
        self._bytes = _Bytes()
        super().__init__(self._bytes, "utf-8", "replace", write_through=True)
        self._shown: TextIO | None = None
        self._thread = 0
        self._logging: Logging | None = None

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Take the place of `sys.stdout` and `sys.stderr`, and log as the agent file has set it
        up."""
        out, self._shown, self._thread = sys.stdout, sys.stderr, get_ident()
        # Terminal and standard output belong to the harness: `--json` would be broken by a print.
        sys.stdout = sys.stderr = self
        logs = _logging(self._logging)
        try:
            yield
        finally:
            self._logging = _logging(logs)
            sys.stdout, sys.stderr, self._thread = out, self._shown, 0

    def write(self, text: str) -> int:
        if get_ident() == self._thread or self._shown is None:
            return super().write(text)
        return int(self._shown.write(text))

    def keep(self, line: str) -> None:
        """Hold a line of any thread."""
        self._bytes.write(f"{line}\n".encode("utf-8", "replace"))

    def close(self) -> None:
        """Stay open, as its bytes."""

    def taken(self) -> list[str]:
        """Return the lines since the last call."""
        chunks = self._bytes.chunks
        # Other threads may write meanwhile: what they add is for the next call.
        data = b"".join([chunks.popleft() for _ in range(len(chunks))])
        return [line for line in data.decode("utf-8", "replace").splitlines() if line.strip()]


def _logging(wanted: Logging | None) -> Logging:
    """Set level and handlers of the root logger where some are wanted, and return those before."""
    root = getLogger()
    previous = (root.level, root.handlers[:])
    if wanted is not None and wanted != previous:
        root.setLevel(wanted[0])
        root.handlers[:] = wanted[1]
    return previous


@contextmanager
def warnings_to(receive: Callable[[str, str, int], bool]) -> Iterator[None]:
    """Pass text, file and line of each warning to `receive`, and show it as before where that
    returns False.

    A coroutine that was never awaited is passed on whatever the filters say: where they make an
    error of it, Python would print that.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("default", NEVER_AWAITED, RuntimeWarning)
        shown = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            *arguments: Any,
            **named: Any,
        ) -> None:
            if not receive(f"{category.__name__}: {message}", filename, lineno):
                shown(message, category, filename, lineno, *arguments, **named)

        warnings.showwarning = show
        yield
