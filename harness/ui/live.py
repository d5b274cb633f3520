"""The board on a terminal, redrawn in place; other output is printed above it."""

from __future__ import annotations

import sys
from collections.abc import Callable

from rich.console import Group
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType
from rich.text import Text

from harness.model import Snapshots
from harness.ui.board import view
from harness.ui.console import SharedConsole
from harness.ui.progress import Display, PlainDisplay
from harness.ui.screen import Screen


def display(console: SharedConsole, *, verbose: bool = False) -> Display:
    """Return a live display for a notebook and for a terminal that can move its cursor, plain lines
    for others.

    `verbose` adds what developers read.
    """
    if console.is_jupyter:  # the module needs IPython
        from harness.ui.notebook import NotebookDisplay

        return NotebookDisplay(verbose=verbose)
    # A dumb terminal cannot move its cursor up to redraw.
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveDisplay(console, verbose=verbose)
    return PlainDisplay(console, verbose=verbose)


class LiveDisplay:
    """The board, redrawn in place; other output is printed above it."""

    def __init__(self, console: SharedConsole, *, verbose: bool = False) -> None:
        self._console = console
        self._verbose = verbose
        self._lines: list[Text] = []
        self._live = Live(
            console=console,
            auto_refresh=False,
            transient=True,
            vertical_overflow="crop",
            redirect_stderr=sys.stderr is not None and sys.stderr.isatty(),
        )

    def __enter__(self) -> Callable[[Snapshots], None]:
        self._live.__enter__()
        return self._observe

    def __exit__(self, *error: object) -> None:
        with self._console.turn:
            self._erase_wrapped_lines()
            self._live.stop()

    def _observe(self, snapshots: Snapshots) -> None:
        with self._console.turn:
            self._erase_wrapped_lines()
            size = self._console.size
            screen = Screen(size.width, size.height, self._console.encoding)
            self._lines = view(snapshots, screen, verbose=self._verbose)
            self._live.update(Group(*self._lines), refresh=True)

    def _erase_wrapped_lines(self) -> None:
        """Erase the screen if the last board does not fit it any more: it has more lines than are
        gone up by now, since a terminal that became narrower has wrapped them."""
        size = self._console.size
        if len(self._lines) > size.height or any(
            line.cell_len > size.width for line in self._lines
        ):
            self._console.control(Control(ControlType.HOME, ControlType.CLEAR))
