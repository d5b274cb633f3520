"""Tables as Markdown: the best figure of a column is bold, the second best underlined (`<ins>`)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from harness.document import Cell, Table
from harness.printable import on_one_line

MARKUP = {None: "{}", "best": "**{}**", "second": "<ins>{}</ins>"}


def rendered(tables: Sequence[Table], notes: Sequence[str] = ()) -> str:
    """Return pipe tables, each with its title and its notes, and then further notes, ending with a
    line end."""
    paragraphs = [
        paragraph for table in tables for paragraph in (*_table(table), *map(_text, table.notes))
    ]
    return "\n\n".join([*paragraphs, *map(_text, notes)]) + "\n"


def _table(table: Table) -> tuple[str, ...]:
    rules = ["---", *("---:" for _ in table.columns[1:])]
    lines = [list(map(_text, table.columns)), rules, *(list(map(_cell, row)) for row in table.rows)]
    pipes = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return (f"**{_text(table.title)}**", pipes) if table.title else (pipes,)


def _cell(cell: str | Cell) -> str:
    if isinstance(cell, str):
        return _text(cell)
    asterisk, note = "\\*" if cell.partial else "", f" ({_text(cell.note)})" if cell.note else ""
    interval = f" {_text(cell.interval)}" if cell.interval else ""
    return f"{MARKUP[cell.place].format(_text(cell.text))}{asterisk}{note}{interval}"


def _text(text: str) -> str:
    """Return the text itself on one line, even if it looks like markup."""
    return re.sub(r"([\\`*_{}\[\]<>|~&$#!])", r"\\\1", on_one_line(" ".join(text.split())))
