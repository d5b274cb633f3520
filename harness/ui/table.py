"""Tables of a display: columns of fixed widths that go, the least worth first, where a screen is too narrow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from harness.ui.cells import to_left, to_right
from harness.ui.screen import Screen

GAP = "  "
LEAST_BAR = 5
BAR = "bar"
"""Heading of the bar's column, which takes the width that the others leave."""
DIM, GOING, ENDED = "dim", "cyan", "green"


@dataclass(frozen=True, slots=True)
class Column:
    """Cells are plain text. `width` is at least that of what they may come to, so that nothing moves as they grow.

    Where room is short, columns of the least `worth` are left out first; one of the largest is cut.
    """

    heading: str
    cells: Sequence[str]
    worth: int
    width: int = 0
    left: bool = False
    style: str = ""


def rows(screen: Screen, columns: Sequence[Column], shares: Sequence[float]) -> list[Text]:
    """Return a heading and a line for each row; `shares`, from 0 to 1, are shown as bars in the column `BAR`."""
    kept = fitting(screen.width, columns)
    widths = _widths(kept)
    if len(kept) == 1:
        widths[kept[0].heading] = min(widths[kept[0].heading], screen.width)
    bar = screen.width - _total(kept, widths) - len(GAP)
    shown = [column for column in columns if column in kept or (column.heading == BAR and bar >= LEAST_BAR)]
    cells = [" " * bar if c.heading == BAR else _set(screen, c, c.heading, widths[c.heading]) for c in shown]
    heading = Text(GAP.join(cells).rstrip(), style=DIM, no_wrap=True, end="")
    return [heading, *(_row(screen, shown, widths, bar, number, share) for number, share in enumerate(shares))]


def fitting(width: int, columns: Sequence[Column]) -> list[Column]:
    """Return the columns, without the bar's, that so many cells have room for: at least the one of most worth."""
    kept = [column for column in columns if column.heading != BAR]
    widths = _widths(kept)
    while len(kept) > 1 and _total(kept, widths) > width:
        kept.remove(min(kept, key=lambda column: column.worth))
    return kept


def _widths(columns: Sequence[Column]) -> dict[str, int]:
    return {c.heading: max(c.width, cell_len(c.heading), *map(cell_len, c.cells)) for c in columns}


def _total(columns: Sequence[Column], widths: dict[str, int]) -> int:
    return sum([widths[column.heading] + len(GAP) for column in columns]) - len(GAP)


def _row(
    screen: Screen, columns: Sequence[Column], widths: dict[str, int], bar: int, number: int, share: float
) -> Text:
    line = Text(no_wrap=True, end="")
    for place, column in enumerate(columns):
        line.append(GAP if place else "")
        if column.heading == BAR:
            done = bar if share >= 1 else min(bar - 1, round(share * bar))
            line.append(screen.bars[0] * done, ENDED if share >= 1 else GOING)
            line.append(screen.bars[1] * (bar - done), DIM)
        else:
            line.append(_set(screen, column, column.cells[number], widths[column.heading]), column.style)
    line.rstrip()
    return line


def _set(screen: Screen, column: Column, text: str, width: int) -> str:
    return (to_left if column.left else to_right)(screen.cut(text, width), width)
