"""A report as plain text for a terminal. Widths are terminal columns: a Chinese character takes two."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from rich.cells import cell_len, chop_cells

from harness.document import Block, Chart, Heading, Paragraph, Quote, Sketch, Table, Tags, Verbatim, cell_text
from harness.printable import in_lines, on_one_line
from harness.ui.cells import to_left, to_right

GAP = 2
NARROWEST = 8
"""Columns, also of a terminal with fewer: it breaks the lines itself."""
NO_LINE_STARTS_WITH = frozenset("、。，．：；！？）》」』】〉〕”’％…,.:;!?)]}%")

Lines = list[str]


def rendered(blocks: Sequence[Block], width: int = 80) -> str:
    """Return blocks as text without pictures, an empty line between each two; only `Verbatim` may pass `width`, if that
    is not too narrow."""
    words, room = _without_pictures(blocks), max(width, NARROWEST)
    return "\n\n".join("\n".join(lines) for block in words if (lines := _block(block, room))) + "\n"


def _without_pictures(blocks: Sequence[Block]) -> Iterator[Block]:
    """Yield blocks except pictures and headings that have only pictures below them."""
    heading, pictures = None, False
    for block in (*blocks, None):
        if isinstance(block, Chart | Sketch):
            pictures = True
            continue
        if heading and not (pictures and isinstance(block, Heading | None)):
            yield heading
        heading, pictures = (block if isinstance(block, Heading) else None), False
        if block and not heading:
            yield block


def _block(block: Block, width: int) -> Lines:
    """Return the lines of a block, none of a picture."""
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
    """Return lines of at most `width` columns, at least one. White space counts as one space, line ends too.

    A line may end at a space and on both sides of a wide character, though not before closing punctuation;
    a word that is longer than a line is cut.
    """
    whole = " ".join(map(on_one_line, text.split()))
    if cell_len(whole) <= width:
        return [whole]
    lines = [""]
    for spaced, piece in _pieces(text):
        longer = f"{lines[-1]} {piece}" if spaced and lines[-1] else lines[-1] + piece
        if cell_len(longer) <= width:
            lines[-1] = longer
        else:
            lines += chop_cells(piece, width) or [piece]  # marks of no width of their own are chopped to nothing
    return lines if lines[0] or len(lines) == 1 else lines[1:]


def _pieces(text: str) -> Iterator[tuple[bool, str]]:
    """Yield what must stay together, each with whether a space is before it."""
    for word in map(on_one_line, text.split()):
        if word.isascii():
            yield True, word
            continue
        spaced, piece = True, ""
        for character in word:
            wide = cell_len(character)
            may_begin = wide and character not in NO_LINE_STARTS_WITH
            if piece and may_begin and 2 in (wide, cell_len(piece[-1])):
                yield spaced, piece
                spaced, piece = False, ""
            piece += character
        yield spaced, piece


def _table(table: Table, width: int) -> Lines:
    """Return the first column set left, the others right; columns that do not fit follow below, after the first."""
    columns = [list(map(cell_text, column)) for column in zip(table.columns, *table.rows, strict=True)]
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
    gap, widths, lines = " " * GAP, [_width(column) for column in columns], Lines()
    for number, cells in enumerate(zip(*columns, strict=True)):
        for first, *others in zip_longest(*cells, fillvalue=""):
            lines.append(gap.join([to_left(first, widths[0]), *map(to_right, others, widths[1:])]).rstrip())
        if not number:
            lines.append(gap.join("-" * width for width in widths))
    return lines
