"""The text of agents' errors and of Python's warnings about them, as one line that any file can hold."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

LONGEST = 300
NO_TEXT = "an error without a usable text"
NEVER_AWAITED = "coroutine .* was never awaited"
_BREAKS = re.compile(r"[\s\x00-\x1f\x7f-\x9f]+")


def one_line(text: str, most: int = LONGEST) -> str:
    """Return a text without line breaks and control characters, no longer than `most`.

    Halves of characters, which no file of JSON can hold, become question marks.
    """
    start = str.__str__(text)[: 4 * most].encode("utf-8", "replace").decode()
    return _BREAKS.sub(" ", start).strip()[:most]


def described(error: BaseException) -> str:
    """Return name and text of an error. This runs methods of its class, which may raise, or never return."""
    name, text = one_line(type(error).__name__), one_line(str(error))
    return f"{name}: {text}" if text else name


@contextmanager
def warnings_to(receive: Callable[[str, str, int], bool]) -> Iterator[None]:
    """Pass text, file and line of each warning to `receive`, and show it as before where that returns False.

    A coroutine that was never awaited is passed on whatever the filters say: where they make an error of it, Python
    would print that.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("default", NEVER_AWAITED, RuntimeWarning)
        shown = warnings.showwarning

        def show(
            message: Warning | str, category: type[Warning], filename: str, lineno: int, *more: Any, **named: Any
        ) -> None:
            if not receive(f"{category.__name__}: {message}", filename, lineno):
                shown(message, category, filename, lineno, *more, **named)

        warnings.showwarning = show
        yield
