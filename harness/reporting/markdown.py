"""Tables as Markdown: the best figure of a column is bold, the second best underlined (`<ins>`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from harness.document import Cell, Table
from harness.printable import on_one_line

# Markdown has no mark for underlined text; GitHub renders this tag.
MARKUP = {None: "{}", "best": "**{}**", "second": "<ins>{}</ins>"}


def rendered(tables: Sequence[Table], notes: Sequence[str] = ()) -> str:
    """Return pipe tables, each with its title and its notes, and then further notes, ending with a
    line end."""
    paragraphs: list[str] = []
    for table in tables:
        if table.title:
            paragraphs.append(f"**{_text(table.title)}**")

        paragraphs.append(_table(table))
        paragraphs += map(_text, table.notes)

    return "\n\n".join([*paragraphs, *map(_text, notes)]) + "\n"


def _table(table: Table) -> str:
    # The first column is set left, figures right.
    rules = ["---"] + ["---:"] * (len(table.columns) - 1)
    lines = [_row(map(_text, table.columns)), _row(rules)]
    for row in table.rows:
        lines.append(_row(map(_cell, row)))

    return "\n".join(lines)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(cell: str | Cell) -> str:
    if isinstance(cell, str):
        return _text(cell)

    marked = MARKUP[cell.place].format(_text(cell.text))
    if cell.partial:
        marked += "\\*"
    if cell.note:
        marked += f" ({_text(cell.note)})"
    if cell.interval:
        marked += f" {_text(cell.interval)}"

    return marked


def _text(text: str) -> str:
    """Return the text itself on one line, even if it looks like markup."""
    # A line end would end a row, and characters such as `|` a cell.
    return re.sub(r"([\\`*_{}\[\]<>|~&$#!])", r"\\\1", on_one_line(" ".join(text.split())))
