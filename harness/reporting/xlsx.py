"""Tables as Excel files: numbers are numbers, text is text whatever it looks like, and marks show in print too."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xlsxwriter
from rich.cells import cell_len

from harness.reporting.text import wrap
from harness.store import atomic

if TYPE_CHECKING:
    from xlsxwriter.worksheet import Worksheet

PERCENT = "0.00"
WHOLE = "#,##0"

WIDEST = 60
"""Columns are as wide as what they hold, in characters, up to this; longer text is wrapped."""
LINE = 15
ROW = 16.5
"""Height of a line of the default font, and of a row with one, in points."""
LINES_MOST = 20
"""Largest height of a row, in lines."""
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


@dataclass(frozen=True, slots=True)
class Cell:
    """A number. `number` is its Excel format (`PERCENT`, `WHOLE`, or another with digits `0`, `#`, `,` and `.`).

    A marked one is red and carries an asterisk, so that it shows in black and white too; it stays a number. A faint one
    is grey, for secondary figures.
    """

    value: float
    marked: bool = False
    bold: bool = False
    underlined: bool = False
    faint: bool = False
    number: str = PERCENT


Content = Cell | str | None
"""Content of a cell of a sheet; None for an empty one."""


def decimals(digits: int) -> str:
    """Return the Excel format of numbers with so many digits after the point."""
    return f"0.{'0' * digits}"


@dataclass(frozen=True, slots=True)
class Sheet:
    """A heading row and the rows. Notes, a paragraph each, are on the last sheet of the workbook, so that programs read
    nothing but data here.

    `title` may be any text: what Excel refuses in a sheet's name is replaced, and names made alike by that get numbers.
    Every row has as many cells as there are columns, None being an empty one. The heading row and the first column
    stay in sight.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Content]]
    notes: Sequence[str] = ()


def write(path: Path, sheets: Sequence[Sheet]) -> None:
    """Write a workbook, and make its folder. Raise `MachineError`.

    The workbook is made in memory: its writer would leave half a file on a full disk, with an error of its own.
    """
    whole = workbook(sheets)
    atomic.make_folder(path.parent)
    atomic.write(path, whole, shared=True)


def workbook(sheets: Sequence[Sheet]) -> bytes:
    """Return the content of an .xlsx file with these sheets, in order; at least one."""
    content = BytesIO()
    book = xlsxwriter.Workbook(content, {"in_memory": True})
    form = cache(lambda **properties: book.add_format(properties))
    names = titles([*(sheet.title for sheet in sheets), NOTES])
    notes = _notes(sheets, names)
    for title, sheet in zip(names, [*sheets, *notes], strict=False):
        _fill(book.add_worksheet(title), sheet, form)
    book.close()
    return content.getvalue()


def _notes(sheets: Sequence[Sheet], names: Sequence[str]) -> list[Sheet]:
    """Return the sheet of notes, each once with the names of the sheets that it is about; none without notes."""
    about: dict[str, list[str]] = {}
    for sheet, name in zip(sheets, names, strict=False):
        for note in sheet.notes:
            about.setdefault(note, []).append(name)
    rows = [(note, "all" if len(of) == len(sheets) else ", ".join(of)) for note, of in about.items()]
    return [Sheet(NOTES, ("note", "sheets"), rows)] if rows else []


def titles(wanted: Sequence[str]) -> list[str]:
    r"""Return sheet names that Excel takes: not empty, at most 31 characters, none of `[]:*?/\`, no two alike in any
    case."""
    taken: set[str] = set()
    made = []
    for text in wanted:
        plain = NO_TITLE.sub("_", _text(text)).replace("\n", " ").strip(" '") or "sheet"
        plain = f"{plain}_" if plain.lower() == "history" else plain  # a name that Excel keeps for itself
        name, number = _cut(plain, TITLE_MOST).rstrip(" '"), 1
        while name.lower() in taken:
            number += 1
            name = f"{_cut(plain, TITLE_MOST - len(f' {number}'))} {number}"
        taken.add(name.lower())
        made.append(name)
    return made


Form = Callable[..., Any]
"""Returns the format of a workbook with some properties; of each it makes one."""


def _fill(page: Worksheet, sheet: Sheet, form: Form) -> None:
    widths = [_width(sheet, column) for column in range(len(sheet.columns))]
    page.set_default_row(ROW)
    for column, width in enumerate(widths):
        page.set_column(column, column, width)
    _head(page, sheet, widths, form)
    for number, row in enumerate(sheet.rows, 1):
        _row(page, number, row, widths, form)
    page.freeze_panes(1, 1)
    page.set_landscape()
    page.set_paper(A4 if sum(widths) <= A4_WIDE else A3)
    page.fit_to_pages(1, 0)
    page.repeat_rows(0)


def _head(page: Worksheet, sheet: Sheet, widths: Sequence[float], form: Form) -> None:
    """Align a column's head right over numbers, left over text, which keeps off numbers on its left by an indent."""
    lines = [len(wrap(name, int(width) - 1)) for name, width in zip(sheet.columns, widths, strict=True)]
    page.set_row(0, ROW + LINE * (max(lines, default=1) - 1))
    look = {"bold": True, "bottom": 1, "text_wrap": True, "valign": "bottom"}
    for column, name in enumerate(sheet.columns):
        has_numbers = any(isinstance(row[column], Cell) for row in sheet.rows)
        where = {"align": "right", "indent": 0} if has_numbers else {"align": "left", "indent": int(column > 0)}
        page.write_string(0, column, _text(name), form(**look, **where))


def _row(page: Worksheet, number: int, row: Sequence[Content], widths: Sequence[float], form: Form) -> None:
    lines = 1
    for column, cell in enumerate(row):
        if isinstance(cell, Cell):
            page.write_number(number, column, cell.value, _number(cell, form))
        elif cell is not None:
            text = _text(cell)
            wide = cell_len(text) > widths[column] or "\n" in text
            page.write_string(number, column, text, form(valign="vcenter", text_wrap=wide, indent=int(column > 0)))
            lines = max(lines, len(wrap(text, int(widths[column]) - 1))) if wide else lines
    if lines > 1:
        page.set_row(number, ROW + LINE * (min(lines, LINES_MOST) - 1))


def _number(cell: Cell, form: Form) -> Any:
    return form(
        num_format=f'{cell.number}"*"' if cell.marked else cell.number,
        valign="vcenter",
        font_color=RED if cell.marked else GREY if cell.faint else BLACK,
        bold=cell.bold,
        underline=int(cell.underlined),
    )


def _width(sheet: Sheet, column: int) -> int:
    """Return the width of the widest cell; a head may take several lines, but its words stay whole."""
    cells = [row[column] for row in sheet.rows]
    texts = max((cell_len(line) for cell in cells if isinstance(cell, str) for line in cell.split("\n")), default=0)
    words = max((cell_len(word) for word in sheet.columns[column].split()), default=0)
    numbers = _numbers_width([cell for cell in cells if isinstance(cell, Cell)])
    return min(max(texts, words, numbers, 6), WIDEST) + 2


def _numbers_width(cells: Sequence[Cell]) -> int:
    """Return about the width of the longest in Excel: the largest or the smallest, in the widest of the formats."""
    if not cells:
        return 0
    ends = min(cell.value for cell in cells), max(cell.value for cell in cells)
    forms = {cell.number for cell in cells}
    decimals = max(len(form.partition(".")[2]) for form in forms)
    commas = "," if any("," in form for form in forms) else ""
    return max(len(f"{end:{commas}.{decimals}f}") for end in ends) + any(cell.marked for cell in cells)


def _text(text: str) -> str:
    return _cut(NO_TEXT.sub("\ufffd", text), TEXT_MOST)


def _cut(text: str, most: int) -> str:
    """Return at most so many characters as Excel counts them: those beyond U+FFFF are two."""
    return text if 2 * len(text) <= most else text.encode("utf-16-le")[: 2 * most].decode("utf-16-le", "ignore")
