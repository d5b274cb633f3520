"""What a terminal holds: the characters that its encoding has, and texts set in cells."""

from __future__ import annotations

from functools import lru_cache

from rich.cells import cell_len


@lru_cache(maxsize=16)
def has(encoding: str, text: str) -> bool:
    """Return whether an encoding has these characters; False for an unknown encoding."""
    try:
        return bool(text.encode(encoding))
    except (UnicodeError, LookupError):
        return False


def plain(text: str, encoding: str) -> str:
    """Return a text on one line, with an encoding's characters and no control characters: as wide as it looks."""
    if not text.isprintable():
        text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if has(encoding, text):
        return text
    try:
        return text.encode(encoding, "backslashreplace").decode(encoding)
    except LookupError:
        return ascii(text)[1:-1]


def to_left(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))


def to_right(text: str, width: int) -> str:
    return " " * (width - cell_len(text)) + text
