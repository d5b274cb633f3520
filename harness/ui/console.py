"""The console of every command."""

from __future__ import annotations

from threading import RLock
from typing import Any

from rich.console import Console

from harness.ui.streams import unfailing


class SharedConsole(Console):
    """One that threads may print to beside a display that draws over itself: `turn` is held until all is written."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.turn = RLock()
        super().__init__(*args, **kwargs)

    def print(self, *args: Any, **kwargs: Any) -> None:
        with self.turn:
            super().print(*args, **kwargs)


def console(*, no_color: bool = False) -> SharedConsole:
    """Standard output. Text is shown as it is, whatever a name holds, and output that fails ends nothing.

    `NO_COLOR` in the environment means `no_color`.
    """
    return SharedConsole(file=unfailing(), markup=False, emoji=False, highlight=False, no_color=no_color or None)
