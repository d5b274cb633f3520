"""Tables as Excel files, a sheet for each: figures are numbers, text is text whatever it looks
like.

The best figure is bold, the second best underlined, a partial one red with an asterisk, a faint one
grey. Notes are on the last sheet of the workbook, so that programs read nothing but data on the
others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xlsxwriter
from rich.cells import cell_len

from harness.document import Cell, Table, cell_text
from harness.store import atomic

if TYPE_CHECKING:
    from xlsxwriter.worksheet import Worksheet

NARROWEST, WIDEST = 6, 60
"""Columns are as wide as what they hold, in characters, within these bounds; longer text is
wrapped."""
NOTES = "notes"
A4, A3 = 9, 8
A4_WIDE = 150
"""Characters a row that can be read on A4."""
BLACK, GREY, RED = "#000000", "#595959", "#C00000"
TEXT_MOST = 32_767
"""Longest text of a cell, in characters."""
TITLE_MOST = 31
NO_TITLE = re.compile(r"[\[\]:*?/\\]")
NO_TEXT = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML cannot hold."""


def write(path: Path, tables: Sequence[Table]) -> None:
    """Write a workbook, and make its folder. Raise `MachineError`.

    The workbook is made in memory: its writer would leave half a file on a full disk, with an error
    of its own.
    """
    content = workbook(tables)
    atomic.make_folder(path.parent)
    atomic.write(path, content, shared=True)


def workbook(tables: Sequence[Table]) -> bytes:
    """Return the content of an .xlsx file with a sheet for each table, in order; at least one."""
    content = BytesIO()
    book = xlsxwriter.Workbook(content, {"in_memory": True})
    form = cache(lambda **properties: book.add_format(properties))
    names = titles([*(table.title for table in tables), NOTES])
    for name, table in zip(names, [*tables, *_notes(tables, names)], strict=False):
        _fill(book.add_worksheet(name), table, form)
    book.close()
    return content.getvalue()


def _notes(tables: Sequence[Table], names: Sequence[str]) -> list[Table]:
    """Return the table of notes, each once with the names of the sheets that it is about; none
    without notes."""
    about: dict[str, list[str]] = {}
    for table, name in zip(tables, names, strict=False):
        for note in table.notes:
            about.setdefault(note, []).append(name)
    rows = [
        (note, "all" if len(which) == len(tables) else ", ".join(which))
        for note, which in about.items()
    ]
    return [Table(("note", "sheets"), tuple(rows))] if rows else []


def titles(wanted: Sequence[str]) -> list[str]:
    r"""Return sheet names that Excel takes: not empty, at most 31 characters, none of `[]:*?/\`, no
    two alike in any case."""
    names: dict[str, str] = {}
    for text in wanted:
        plain = NO_TITLE.sub("_", _text(text)).replace("\n", " ").strip(" '") or "sheet"
        plain = (
            f"{plain}_" if plain.lower() == "history" else plain
        )  # a name that Excel keeps for itself
        name, number = _cut(plain, TITLE_MOST).rstrip(" '"), 1
        while name.lower() in names:
            number += 1
            name = f"{_cut(plain, TITLE_MOST - len(f' {number}'))} {number}"
        names[name.lower()] = name
    return list(names.values())


Form = Callable[..., Any]
"""Returns the format of a workbook with some properties; of each it makes one."""


def _fill(page: Worksheet, table: Table, form: Form) -> None:
    columns = list(zip(*table.rows, strict=True)) or [()] * len(table.columns)
    widths = [_width(head, cells) for head, cells in zip(table.columns, columns, strict=True)]
    for column, (head, cells) in enumerate(zip(table.columns, columns, strict=True)):
        page.set_column(column, column, widths[column])
        # A head is right over numbers, left over text, which keeps off numbers before it by an
        # indent.
        has_numbers = any(isinstance(cell, Cell) for cell in cells)
        align, indent = ("right", 0) if has_numbers else ("left", int(column > 0))
        look = form(
            bold=True, bottom=1, text_wrap=True, valign="bottom", align=align, indent=indent
        )
        page.write_string(0, column, _text(head), look)
        for number, cell in enumerate(cells, 1):
            if isinstance(cell, Cell) and cell.value is not None:
                page.write_number(number, column, cell.value, _look(cell, form))
            elif text := _text(cell_text(cell)):
                wraps = cell_len(text) > widths[column] or "\n" in text
                page.write_string(
                    number,
                    column,
                    text,
                    form(valign="vcenter", text_wrap=wraps, indent=int(column > 0)),
                )
    page.freeze_panes(1, 1)
    page.set_landscape()
    page.set_paper(A4 if sum(widths) <= A4_WIDE else A3)
    page.fit_to_pages(1, 0)
    page.repeat_rows(0)


def _look(cell: Cell, form: Form) -> Any:
    """Return the format of a figure: its marks leave it a number. An approximate one has `~` before
    its text, too."""
    approximate = "~" if cell.text.startswith("~") else ""
    digits = f"0.{'0' * cell.digits}" if cell.digits else "#,##0"
    asterisk = '"*"' if cell.partial else ""
    return form(
        num_format=f"{approximate}{digits}{asterisk}",
        valign="vcenter",
        font_color=RED if cell.partial else GREY if cell.faint else BLACK,
        bold=cell.place == "best",
        underline=int(cell.place == "second"),
    )


def _width(head: str, cells: Sequence[str | Cell]) -> int:
    """Return the width of the widest cell; a head may take several lines, but its words stay
    whole."""
    widths = [NARROWEST, *map(cell_len, head.split())]
    for cell in cells:
        if isinstance(cell, Cell) and cell.value is not None:
            widths.append(len(f"{cell.value:,.{cell.digits}f}") + cell.partial)
        else:
            widths += map(cell_len, cell_text(cell).split("\n"))
    return min(max(widths), WIDEST) + 2


def _text(text: str) -> str:
    return _cut(NO_TEXT.sub("\ufffd", text), TEXT_MOST)


def _cut(text: str, most: int) -> str:
    """Return at most so many characters as Excel counts them: those beyond U+FFFF are two."""
    return (
        text
        if 2 * len(text) <= most
        else text.encode("utf-16-le")[: 2 * most].decode("utf-16-le", "ignore")
    )
