"""A display for notebooks: the board as text in the output of a cell, replaced in place.

IPython shows it; this module is imported where IPython runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from IPython.display import display  # type: ignore[import-not-found]

from harness.model import Snapshots
from harness.ui.board import view
from harness.ui.screen import Screen

SECONDS = 0.5
"""Between two updates: each is a message to the browser."""
SCREEN = Screen(100, 30)


class NotebookDisplay:
    """One output that is updated until the end, when the last state stays."""

    def __init__(self, *, verbose: bool = False) -> None:
        self._verbose = verbose
        self._handle: Any = None
        self._next = 0.0
        self._last: Snapshots = ()

    def __enter__(self) -> Callable[[Snapshots], None]:
        return self._observe

    def __exit__(self, *error: object) -> None:
        # The last update may have been skipped.
        if self._last:
            self._show(self._last)

    def _observe(self, snapshots: Snapshots) -> None:
        self._last = snapshots
        if snapshots[0].seconds >= self._next:
            self._next = snapshots[0].seconds + SECONDS
            self._show(snapshots)

    def _show(self, snapshots: Snapshots) -> None:
        text = {
            "text/plain": "\n".join(
                line.plain for line in view(snapshots, SCREEN, verbose=self._verbose)
            )
        }
        if self._handle is None:
            self._handle = display(text, raw=True, display_id=True)
        else:
            self._handle.update(text, raw=True)
