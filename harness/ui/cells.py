"""Texts set in cells of a terminal: a Chinese character takes two."""

from __future__ import annotations

from rich.cells import cell_len


def to_left(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))


def to_right(text: str, width: int) -> str:
    return " " * (width - cell_len(text)) + text
