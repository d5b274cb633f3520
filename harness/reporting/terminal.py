"""Tables on a terminal: as text, with the best figure of a column bold and the second best
underlined."""

from __future__ import annotations

import re

from msgspec import structs
from rich.console import Console
from rich.text import Text

from harness.document import Cell, Table
from harness.reporting import text

# Marks and not styles: the width of a cell is measured before it is styled.
MARKS = {"best": "\ufe00", "second": "\ufe01"}
"""Around figures while lines are made. They take no column."""
STYLES = {MARKS["best"]: "bold", MARKS["second"]: "underline"}
NO_LIMIT = 1_000_000


def width(screen: Console) -> int:
    """Return the columns that a line may have: any number in a file or pipe, which programs read
    line by line."""
    return screen.width if screen.is_terminal else NO_LIMIT


def show(screen: Console, table: Table) -> None:
    """Print a table with its title and its notes, each on one line; columns that do not fit follow
    below."""
    rows = table.rows
    # Colours and weights would be characters of their own in a file.
    if screen.color_system:
        rows = tuple(tuple(map(_marked, row)) for row in rows)

    # Title and notes are printed as they are, one line each: only the table is fitted.
    bare = structs.replace(table, title="", notes=(), rows=rows)
    lines = []
    if table.title:
        lines.append(Text(table.title, style="italic"))

    lines += map(_styled, text.rendered([bare], width(screen)).splitlines())
    screen.print(*lines, *table.notes, sep="\n", soft_wrap=True)


def _marked(cell: str | Cell) -> str | Cell:
    if isinstance(cell, str) or not cell.place:
        return cell

    mark = MARKS[cell.place]
    return structs.replace(cell, text=f"{mark}{cell.text}{mark}")


def _styled(line: str) -> Text:
    styled = Text()
    style = ""
    for piece in re.split("([\ufe00\ufe01])", line):
        # The first mark begins a style, and the next one ends it.
        if piece in STYLES:
            style = "" if style else STYLES[piece]
        else:
            styled.append(piece, style)

    return styled
