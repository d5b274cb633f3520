"""What a terminal holds: its size in cells, the characters that its encoding has, and texts cut to fit."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from rich.cells import cell_len, set_cell_size

BARS, PLAIN_BARS = "━─", "#-"
"""Done, and not yet: of encodings that have lines, and of all others."""


@lru_cache(maxsize=16)
def has(encoding: str, text: str) -> bool:
    """Return whether an encoding has these characters; False for an unknown encoding."""
    try:
        return bool(text.encode(encoding))
    except (UnicodeError, LookupError):
        return False


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
        """Return a text on one line, with the terminal's characters and no control characters: as wide as it looks."""
        if not text.isprintable():
            text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
        if has(self.encoding, text):
            return text
        try:
            return text.encode(self.encoding, "backslashreplace").decode(self.encoding)
        except LookupError:
            return ascii(text)[1:-1]

    def cut(self, text: str, width: int) -> str:
        """Return a plain text in at most so many cells."""
        if cell_len(text) <= width:
            return text
        mark = "" if width <= 2 else "…" if has(self.encoding, "…") else ".."
        return set_cell_size(text, max(0, width - len(mark))).rstrip() + mark


def to_left(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))


def to_right(text: str, width: int) -> str:
    return " " * (width - cell_len(text)) + text
