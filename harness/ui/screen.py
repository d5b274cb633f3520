"""The screen of a terminal: its size in cells, the characters that it has, and texts cut to fit."""

from __future__ import annotations

from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size

from harness.ui.cells import has


@dataclass(frozen=True, slots=True)
class Screen:
    """`width` and `height` in cells; a Chinese character takes two."""

    width: int
    height: int
    encoding: str = "utf-8"

    @property
    def bars(self) -> str:
        """The character of what is done, and of what is not."""
        return "━─" if has(self.encoding, "━─") else "#-"

    def fit(self, text: str, width: int) -> str:
        """Return a text on one line in at most so many cells (or two), in the terminal's characters
        and as wide as it looks: characters that the encoding lacks are escaped, others that do not
        print are left out."""
        # Line ends and control characters would break the layout, or steer the terminal.
        if not text.isprintable():
            text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
        # An escape is wider than its character, so it is made before the text is measured.
        if not has(self.encoding, text):
            text = text.encode("ascii", "backslashreplace").decode()
        if cell_len(text) <= width:
            return text
        mark = "…" if has(self.encoding, "…") else ".."
        return set_cell_size(text, max(0, width - len(mark))).rstrip() + mark
