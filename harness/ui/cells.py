"""Texts set in cells of a terminal: a Chinese character takes two."""

from __future__ import annotations

from rich.cells import cell_len


def has(encoding: str, text: str) -> bool:
    """Return whether an encoding has these characters; False for an unknown encoding."""
    try:
        return bool(text.encode(encoding))
    except (UnicodeError, LookupError):
        return False


def to_left(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))


def to_right(text: str, width: int) -> str:
    return " " * (width - cell_len(text)) + text
