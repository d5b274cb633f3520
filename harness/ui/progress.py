"""Displays in general, and the plain lines of a log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from math import inf

from rich.console import Console

from harness.model import Snapshot, Snapshots
from harness.printable import on_one_line
from harness.ui import content
from harness.ui.content import BETWEEN

FIRST_LINE, NEXT_LINE = 5.0, 30.0
"""Seconds of a run until its first line, and between two lines."""


Display = AbstractContextManager[Callable[[Snapshots], None]]
"""Shows the snapshots that it is called with."""


class PlainDisplay:
    """A line on each run every half minute of its own clock, and a last one at its end. A warning
    is printed once."""

    def __init__(self, console: Console, *, verbose: bool = False) -> None:
        self._console = console
        self._verbose = verbose
        self._next: dict[tuple[str, str], float] = {}
        """When the next line of each run is due, in seconds of its clock."""
        self._warned: set[str] = set()
        self._last: Snapshots = ()

    def __enter__(self) -> Callable[[Snapshots], None]:
        return self._observe

    def __exit__(self, *error: object) -> None:
        self._print([s for s in self._last if not s.over])

    def _observe(self, snapshots: Snapshots) -> None:
        self._last = snapshots
        self._print([s for s in snapshots if self._is_due(s)])

    def _is_due(self, s: Snapshot) -> bool:
        run = s.name, s.subsets[0].subset
        due = self._next.setdefault(run, FIRST_LINE)
        if due == inf or not (s.over or s.seconds >= due):
            return False
        self._next[run] = inf if s.over else s.seconds + NEXT_LINE
        return True

    def _print(self, runs: Sequence[Snapshot]) -> None:
        if not runs:
            return
        lines = [line(s, verbose=self._verbose) for s in runs]
        for text, sentence in content.warnings(self._last).items():
            if text not in self._warned:
                self._warned.add(text)
                # Neither cut nor broken into lines, since people search a log for the words.
                lines.append(f"warning {on_one_line(sentence)}")
        self._console.print(*lines, sep="\n", highlight=False, soft_wrap=True, markup=False)


def line(s: Snapshot, *, verbose: bool = False) -> str:
    """Return the rows of a run and what the board says below them, on one line."""
    sentences = []
    for row in content.rows((s,), with_subsets=True):
        users = f"{row.name.strip()}: {row.users} users"
        sentences.append(", ".join(filter(None, [users, *row.figures, row.eta, row.failed])))
    sentences += [*content.traffic((s,)), *content.troubles((s,))]
    if verbose:
        sentences += content.developer_details(s)
    return on_one_line(BETWEEN.join(sentences))
