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

MIN_WIDTH, MAX_WIDTH = 6, 60
"""Columns are as wide as what they hold, in characters, within these bounds; longer text is
wrapped."""
NOTES = "notes"
A4, A3 = 9, 8
A4_WIDE = 150
"""Characters a row that can be read on A4."""
BLACK, GREY, RED = "#000000", "#595959", "#C00000"
# Excel's own limits. xlsxwriter cuts longer text without a word, and raises an error for a longer
# name.
MAX_TEXT = 32_767
"""Characters of a cell's text."""
MAX_TITLE = 31
NOT_IN_TITLES = re.compile(r"[\[\]:*?/\\]")
NOT_IN_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
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
    # Otherwise xlsxwriter writes the sheets to temporary files, on a disk that may be full.
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
    sheets_by_note: dict[str, list[str]] = {}
    for table, name in zip(tables, names, strict=False):
        for note in table.notes:
            sheets_by_note.setdefault(note, []).append(name)

    if not sheets_by_note:
        return []

    rows = []
    for note, sheets in sheets_by_note.items():
        about = "all" if len(sheets) == len(tables) else ", ".join(sheets)
        rows.append((note, about))

    return [Table(("note", "sheets"), tuple(rows))]


def titles(wanted: Sequence[str]) -> list[str]:
    r"""Return sheet names that Excel takes: not empty, at most 31 characters, none of `[]:*?/\`, no
    two alike in any case."""
    names: dict[str, str] = {}
    for text in wanted:
        plain = NOT_IN_TITLES.sub("_", _text(text)).replace("\n", " ").strip(" '") or "sheet"
        if plain.lower() == "history":  # a name that Excel keeps for itself
            plain = "history_"

        name = _cut(plain, MAX_TITLE).rstrip(" '")
        number = 1
        while name.lower() in names:
            number += 1
            name = f"{_cut(plain, MAX_TITLE - len(f' {number}'))} {number}"

        names[name.lower()] = name

    return list(names.values())


Form = Callable[..., Any]
"""Returns the format of a workbook with some properties; of each it makes one."""


def _fill(
    page: Worksheet,
    table: Table,
    form: Form,
) -> None:
    total_width = 0
    for column, (heading, *cells) in enumerate(zip(table.columns, *table.rows, strict=True)):
        width = _width(heading, cells)
        total_width += width
        page.set_column(column, column, width)
        # A heading is right over numbers, left over text, which an indent keeps off numbers in the
        # column to the left.
        indent = int(column > 0)
        alignment = {"align": "left", "indent": indent}
        if any(isinstance(cell, Cell) for cell in cells):
            alignment = {"align": "right", "indent": 0}

        look = form(bold=True, bottom=1, text_wrap=True, valign="bottom", **alignment)
        page.write_string(0, column, _text(heading), look)
        for number, cell in enumerate(cells, 1):
            if isinstance(cell, Cell) and cell.value is not None:
                page.write_number(number, column, cell.value, _look(cell, form))
                continue

            text = _text(cell_text(cell))
            if text:
                wraps = cell_len(text) > width or "\n" in text
                look = form(valign="vcenter", text_wrap=wraps, indent=indent)
                # Not `write`, which makes a formula of a text that begins with `=`, and a link of
                # an address.
                page.write_string(number, column, text, look)

    page.freeze_panes(1, 1)
    page.set_landscape()
    page.set_paper(A4 if total_width <= A4_WIDE else A3)
    page.fit_to_pages(1, 0)  # as wide as one page, as long as it is
    page.repeat_rows(0)


def _look(cell: Cell, form: Form) -> Any:
    """Return the format of a figure: its marks leave it a number. An approximate one has `~` before
    its text, too."""
    approximate = "~" if cell.text.startswith("~") else ""
    digits = f"0.{'0' * cell.digits}" if cell.digits else "#,##0"
    asterisk = ""
    color = GREY if cell.faint else BLACK
    if cell.partial:
        # Quoted, since a bare asterisk in a number format repeats the character that follows it.
        asterisk = '"*"'
        color = RED

    return form(
        num_format=f"{approximate}{digits}{asterisk}",
        valign="vcenter",
        font_color=color,
        bold=cell.place == "best",
        underline=int(cell.place == "second"),
    )


def _width(heading: str, cells: Sequence[str | Cell]) -> int:
    """Return the width of the widest cell; a heading may take several lines, but its words stay
    whole."""
    widths = [MIN_WIDTH, *map(cell_len, heading.split())]
    for cell in cells:
        if isinstance(cell, Cell) and cell.value is not None:
            widths.append(len(f"{cell.value:,.{cell.digits}f}") + cell.partial)
        else:
            widths += map(cell_len, cell_text(cell).split("\n"))

    return min(max(widths), MAX_WIDTH) + 2


def _text(text: str) -> str:
    return _cut(NOT_IN_XML.sub("\ufffd", text), MAX_TEXT)


def _cut(text: str, limit: int) -> str:
    """Return at most so many characters as Excel counts them: those beyond U+FFFF are two."""
    if 2 * len(text) <= limit:
        return text

    return text.encode("utf-16-le")[: 2 * limit].decode("utf-16-le", "ignore")
