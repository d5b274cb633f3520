"""The board on a terminal, redrawn in place; other output is printed above it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

from rich.console import Console
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType

from harness.model import Snapshots
from harness.ui.board import Board
from harness.ui.console import SharedConsole
from harness.ui.progress import Display, PlainDisplay


def display(console: Console) -> Display:
    """Return a live display for a notebook and for a terminal that can move its cursor, plain lines for others."""
    if console.is_jupyter:  # the module needs IPython
        from harness.ui.notebook import NotebookDisplay

        return NotebookDisplay()
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveDisplay(console)
    return PlainDisplay(console)


class LiveDisplay:
    """The board, redrawn in place; other output is printed above it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._turn = console.turn if isinstance(console, SharedConsole) else threading.RLock()
        self._board = Board(())
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
        with self._turn:
            self._take_up_wrapped_lines()
            self._live.stop()

    def _observe(self, snapshots: Snapshots) -> None:
        with self._turn:
            self._take_up_wrapped_lines()
            self._board = Board(snapshots)
            self._live.update(self._board, refresh=True)

    def _take_up_wrapped_lines(self) -> None:
        """Move up over the extra lines of the last board, which a terminal that became narrower has wrapped; a board
        that is higher than the terminal by now has no line above it to keep, and all is erased."""
        widths, size = self._board.widths, self._console.size
        extra = wrapped(widths, size.width)
        if len(widths) + extra > size.height:
            self._console.control(Control(ControlType.HOME, ControlType.CLEAR))
        elif extra:
            erased = (ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1)
            self._console.control(Control(ControlType.CARRIAGE_RETURN, *(erased * extra)))


def wrapped(widths: list[int], columns: int) -> int:
    """Return how many extra lines lines of these widths take on a terminal of so many columns."""
    return sum([max(0, width - 1) // columns for width in widths])
