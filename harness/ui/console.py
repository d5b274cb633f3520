"""The console of every command: the way of all text to standard output, but for what `streams`
writes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from threading import RLock
from typing import Any, Literal

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from harness.printable import in_lines, on_one_line
from harness.ui.streams import unfailing

TERMINAL_CLAIMS = frozenset({"FORCE_COLOR", "TTY_COMPATIBLE"})
"""Variables for which rich takes any file for a terminal."""
SIZES = "COLUMNS", "LINES"
PLAIN: dict[str, Any] = {"highlight": False, "soft_wrap": True, "markup": False}
"""How text with names and paths is printed: unchanged."""


class SharedConsole(Console):
    r"""A console that threads may print to during a live display: `turn` is held until all is
    written.

    Whatever text holds, nothing but this console's own styles and cursor movements steers the
    terminal. A string, also as a cell of a table, is one line: lines of one print are strings of
    their own, with `sep="\n"`.
    """

    def __init__(self, **kwargs: Any) -> None:
        self.turn = RLock()
        super().__init__(**kwargs)

    def print(self, *objects: object, **kwargs: Any) -> None:
        with self.turn:
            super().print(*objects, **kwargs)

    def render_str(self, text: str, **how: Any) -> Text:
        """Escape every string, before its width is measured."""
        return super().render_str(on_one_line(text), **how)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Escape everything that is written, also texts that were made elsewhere."""
        for segment in super().render(renderable, options):
            is_safe = segment.control or segment.text.isprintable()
            yield segment if is_safe else Segment(in_lines(segment.text), segment.style)


def console(*, no_color: bool = False) -> SharedConsole:
    """Return standard output. Nothing in a text is taken for markup, and output that fails ends
    nothing.

    `NO_COLOR` in the environment means `no_color`. `FORCE_COLOR` means colours, and makes no
    terminal of a log file. A size of 0 does not count: a terminal that does not know its own
    reports it.
    """
    file = unfailing()
    # Output that fails must not end a run: it becomes silent.
    is_terminal = file is not None and file.isatty()
    color_system: Literal["auto", "standard"] = "auto"
    # For a file `auto` means no colours: the variable itself is kept from rich below.
    if os.environ.get("FORCE_COLOR") and not is_terminal:
        color_system = "standard"
    ignored = {name for name in SIZES if os.environ.get(name, "").strip("0") == ""}
    ignored |= set() if is_terminal else TERMINAL_CLAIMS
    environment = {name: text for name, text in os.environ.items() if name not in ignored}
    return SharedConsole(
        file=file,
        color_system=color_system,
        markup=False,
        emoji=False,
        highlight=False,
        no_color=no_color or None,
        _environ=environment,
    )
