"""What agent files say of themselves, in errors and in warnings of Python's, as one line that any file can hold."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

LONGEST = 300
UNTOLD = "an error that cannot say what it is"
NEVER_AWAITED = "coroutine .* was never awaited"
_BREAKS = re.compile(r"[\s\x00-\x1f\x7f-\x9f]+")

Hear = Callable[[str, str, int], bool]
"""Gets what a warning says, the file and the line that it names; returns whether that is all to be done about it."""


def one_line(text: str, most: int = LONGEST) -> str:
    """Without line breaks and control characters, no longer than `most`; halves of characters, which no file of JSON
    can hold, become question marks."""
    start = str.__str__(text)[: 4 * most].encode("utf-8", "replace").decode()
    return _BREAKS.sub(" ", start).strip()[:most]


def described(error: BaseException) -> str:
    """Name and text of an error. This runs what its class has for it, which may raise, or never return."""
    name, text = one_line(type(error).__name__), one_line(str(error))
    return f"{name}: {text}" if text else name


@contextmanager
def heard(hear: Hear) -> Iterator[None]:
    """While this lasts, warnings are first told to `hear`, and shown as before where that returns False.

    A coroutine that was never awaited is told whatever the filters say: where they make an error of it, Python would
    print that.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("default", NEVER_AWAITED, RuntimeWarning)
        shown = warnings.showwarning

        def show(
            message: Warning | str, category: type[Warning], filename: str, lineno: int, *more: Any, **named: Any
        ) -> None:
            if not hear(f"{category.__name__}: {message}", filename, lineno):
                shown(message, category, filename, lineno, *more, **named)

        warnings.showwarning = show
        yield
