"""A report as plain text for a terminal. Widths are terminal columns: a Chinese character takes two."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from rich.cells import cell_len, chop_cells

from harness.model import Block, Chart, Heading, Paragraph, Quote, Sketch, Table, Tags, Verbatim
from harness.printable import in_lines, on_one_line

GAP = 2
NO_LINE_STARTS_WITH = frozenset("、。，．：；！？）》」』】〉〕”’％…,.:;!?)]}%")

Lines = list[str]


def rendered(blocks: Sequence[Block], width: int = 80) -> str:
    """Return blocks as text without pictures, an empty line between each two; only `Verbatim` may pass `width`."""
    return "\n\n".join("\n".join(lines) for block in blocks if (lines := _block(block, width))) + "\n"


def _block(block: Block, width: int) -> Lines:
    """Nothing of a picture."""
    match block:
        case Heading(text):
            lines = wrap(text, width)
            return [*lines, "-" * max(map(cell_len, lines))]
        case Paragraph(text):
            return wrap(text, width)
        case Table():
            return _table(block, width)
        case Verbatim(text):
            return [in_lines(text.rstrip("\n"))]
        case Quote(label, text):
            return wrap(f"{label}: {text}", width)
        case Tags(label, tags):
            return wrap(f"{label}: {', '.join(f'{tag} ({kind})' for tag, kind in tags)}", width)
        case Chart() | Sketch():
            return []


def wrap(text: str, width: int) -> Lines:
    """Lines of at most `width` columns, at least one. White space counts as one space, line ends too.

    A line may end at a space and on both sides of a wide character, though not before closing punctuation;
    a word that is longer than a line is cut.
    """
    lines = [""]
    for spaced, piece in _pieces(text):
        longer = f"{lines[-1]} {piece}" if spaced and lines[-1] else lines[-1] + piece
        if cell_len(longer) <= width:
            lines[-1] = longer
        else:
            lines += chop_cells(piece, width) or [piece]  # marks of no width of their own are chopped to nothing
    return lines if lines[0] or len(lines) == 1 else lines[1:]


def _pieces(text: str) -> Iterator[tuple[bool, str]]:
    """What must stay together, each with whether a space stood before it."""
    for word in map(on_one_line, text.split()):
        spaced, piece = True, ""
        for character in word:
            if piece and _may_part(piece[-1], character):
                yield spaced, piece
                spaced, piece = False, ""
            piece += character
        yield spaced, piece


def _may_part(before: str, after: str) -> bool:
    if after in NO_LINE_STARTS_WITH or cell_len(after) == 0:
        return False
    return cell_len(before) == 2 or cell_len(after) == 2


def _table(table: Table, width: int) -> Lines:
    """The first column set left, the others right; columns that do not fit follow below, the first repeated."""
    columns = [list(column) for column in zip(table.columns, *table.rows, strict=True)]
    first = [wrap(cell, width // 2) for cell in columns[0]]
    room = width - _width(first)
    rest = [[wrap(cell, room - GAP) for cell in column] for column in columns[1:]]
    bands = [_aligned([first, *band]) for band in _bands(rest, room)]
    return [line for band in bands for line in ("", *band)][1:]


Column = list[Lines]
"""A column's cells from its head down, each as its lines."""


def _width(column: Column) -> int:
    return max(cell_len(line) for cell in column for line in cell)


def _bands(columns: Sequence[Column], room: int) -> list[list[Column]]:
    bands: list[list[Column]] = [[]]
    left = room
    for column in columns:
        needed = GAP + _width(column)
        if needed > left and bands[-1]:
            bands.append([])
            left = room
        bands[-1].append(column)
        left -= needed
    return bands


def _aligned(columns: Sequence[Column]) -> Lines:
    widths = [_width(column) for column in columns]
    rows = [_row(cells, widths) for cells in zip(*columns, strict=True)]
    rule = (" " * GAP).join("-" * width for width in widths)
    return [*rows[0], rule, *(line for row in rows[1:] for line in row)]


def _row(cells: Sequence[Lines], widths: Sequence[int]) -> Lines:
    lines = []
    for texts in zip_longest(*cells, fillvalue=""):
        blanks = [" " * (width - cell_len(text)) for text, width in zip(texts, widths, strict=True)]
        padded = [texts[0] + blanks[0], *(blank + text for text, blank in zip(texts[1:], blanks[1:], strict=True))]
        lines.append((" " * GAP).join(padded).rstrip())
    return lines
