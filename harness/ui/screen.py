"""The screen of a terminal: its size in cells, and texts cut to fit."""

from __future__ import annotations

from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size

from harness.ui.cells import has, plain

BARS, PLAIN_BARS = "━─", "#-"
"""Done, and not yet: of encodings that have lines, and of all others."""


@dataclass(frozen=True, slots=True)
class Screen:
    """`width` and `height` in cells; a Chinese character takes two."""

    width: int
    height: int
    encoding: str = "utf-8"

    @property
    def bars(self) -> str:
        return BARS if has(self.encoding, BARS) else PLAIN_BARS

    def plain(self, text: str) -> str:
        """Return a text on one line, in the terminal's characters."""
        return plain(text, self.encoding)

    def cut(self, text: str, width: int) -> str:
        """Return a plain text in at most so many cells."""
        if cell_len(text) <= width:
            return text
        mark = "" if width <= 2 else "…" if has(self.encoding, "…") else ".."
        return set_cell_size(text, max(0, width - len(mark))).rstrip() + mark
