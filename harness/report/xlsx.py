"""Tables as Excel files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import xlsxwriter

from harness.errors import MachineError
from harness.store import atomic

LEGEND = "In percent. Red: not all users of the tasks file are scored. Only runs told to be alike compare."


@dataclass(frozen=True, slots=True)
class Cell:
    value: float
    marked: bool = False


def write_table(
    path: Path, title: str, columns: Sequence[str], rows: Sequence[tuple[str, Sequence[Cell | None], str]]
) -> None:
    """One sheet: a heading row, a row each (name, numbers, what is to be said of it), and a legend.

    Raises `MachineError` where it cannot be written.

    The workbook is made in memory: its writer would leave half a file on a full disk, and complain of its own.
    """
    whole = _workbook(title, columns, rows)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MachineError(f"cannot make {path.parent}: {error.strerror}") from error
    atomic.write(path, whole)


def _workbook(title: str, columns: Sequence[str], rows: Sequence[tuple[str, Sequence[Cell | None], str]]) -> bytes:
    content = BytesIO()
    book = xlsxwriter.Workbook(content, {"in_memory": True})
    plain = book.add_format({"num_format": "0.00"})
    marked = book.add_format({"num_format": "0.00", "font_color": "red"})
    sheet = book.add_worksheet(title[:31])
    sheet.write_row(0, 0, columns, book.add_format({"bold": True, "bottom": 1}))
    sheet.set_column(0, 0, max(12, *(len(name) + 2 for name, _, _ in rows)))
    sheet.set_column(1, len(columns) - 1, 12)
    for number, (name, cells, said) in enumerate(rows, 1):
        sheet.write_string(number, 0, name)
        for column, cell in enumerate(cells, 1):
            if cell is not None:
                sheet.write_number(number, column, cell.value, marked if cell.marked else plain)
        sheet.write_string(number, len(cells) + 1, said)
    sheet.write_string(len(rows) + 2, 0, LEGEND)
    book.close()
    return content.getvalue()
