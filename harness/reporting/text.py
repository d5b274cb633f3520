"""Blocks as plain text for a terminal or a file. Widths are terminal columns: a Chinese character
takes two.

A chart of intervals is drawn where readers need it: not below a folded heading, nor below a table
of the same section, which has its figures. Other pictures are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from rich.cells import cell_len, chop_cells

from harness.document import (
    CHANCE,
    Block,
    Chart,
    Heading,
    Paragraph,
    Quote,
    Sketch,
    Table,
    Tags,
    Verbatim,
    cell_text,
)
from harness.printable import in_lines, on_one_line
from harness.ui.cells import has, to_left, to_right

GAP = 2
LINES_DRAWN, ASCII_DRAWN = "●○─├┤│┆", "*o-[]|:"
"""Of charts: a value with an interval and one without, the interval and its ends, the reference and
a chance level."""
NO_INTERVAL = " no interval"
MAX_TICKS = 5
NARROWEST = 8
"""Columns, also of a terminal with fewer: it breaks the lines itself."""
NO_LINE_STARTS_WITH = frozenset("、。，．：；！？）》」』】〉〕”’％…,.:;!?)]}%")

Lines = list[str]


def rendered(
    blocks: Sequence[Block], width: int = 80, *, encoding: str = "utf-8", between: str = "\n\n"
) -> str:
    """Return blocks as text, by default with an empty line between each two; only `Verbatim` may
    pass `width`, if that is not too narrow. Charts are drawn with characters that the encoding
    has."""
    room, shown = max(width, NARROWEST), list[str]()
    for block in _without_pictures(blocks):
        lines = _chart(block, room, encoding) if isinstance(block, Chart) else _block(block, room)
        shown += ["\n".join(lines)] * bool(lines)
    return between.join(shown) + "\n"


def _without_pictures(blocks: Sequence[Block]) -> Iterator[Block]:
    """Yield blocks except pictures and headings that have only pictures below them."""
    heading, pictures, has_figures = None, False, False
    for block in (*blocks, None):
        if isinstance(block, Chart | Sketch) and (has_figures or not _is_drawn(block)):
            pictures = True
            continue
        if heading and not (pictures and isinstance(block, Heading | None)):
            yield heading
        heading, pictures = (block if isinstance(block, Heading) else None), False
        has_figures = heading.folded if heading else has_figures or isinstance(block, Table)
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


# Charts of intervals


def _is_drawn(block: Block | None) -> bool:
    """Return whether a block is a chart of intervals with a value."""
    if not isinstance(block, Chart) or block.kind != "intervals":
        return False
    return any(value is not None for series in block.series for value in series.values)


def _chart(chart: Chart, width: int, encoding: str) -> Lines:
    """Return a line for each value, and one with the scale and, if there is room, the title."""
    factor = 100.0 if chart.percent else 1.0
    reference = None if chart.reference is None else factor * chart.reference
    chance = next((series.values for series in chart.series if series.name == CHANCE), ())
    shown = [series for series in chart.series if series.name != CHANCE]
    title = ", ".join(filter(None, (chart.title, chart.x_label)))
    has_room = cell_len(title) <= 2 * width // 5
    labels, rows = list[str](), list[list[float | None]]()
    for row, name in enumerate(chart.x):
        for series in shown:
            if series.values[row] is not None:
                labels.append(f"{name}, {series.name}" if len(shown) > 1 else str(name))
                ends = [
                    values[row] if values else None
                    for values in (series.values, series.low, series.high, chance)
                ]
                rows.append([reference, *(None if end is None else factor * end for end in ends)])
    labels = [wrap(label, 2 * width // 5)[0] for label in (*labels, title if has_room else "")]
    names = max(map(cell_len, labels))
    room = max(1, width - names - GAP)
    scale = _scale([end for ends in rows for end in ends if end is not None])
    marks = LINES_DRAWN if has(encoding, LINES_DRAWN) else ASCII_DRAWN
    bars = [
        _bar([end if end is None else _column(end, scale, room) for end in ends], marks, room)
        for ends in rows
    ]
    bars.append(_numbers(scale, room))
    lines = [
        f"{to_left(label, names)}{' ' * GAP}{bar}".rstrip()
        for label, bar in zip(labels, bars, strict=True)
    ]
    return lines if has_room else [*wrap(title, width), *lines]


def _column(number: float, scale: Sequence[float], room: int) -> int:
    return round((number - scale[0]) / (scale[-1] - scale[0]) * (room - 1))


def _bar(columns: Sequence[int | None], marks: str, room: int) -> str:
    """Return a value with its interval. `columns` are those of reference, value, both ends and
    chance level."""
    reference, value, low, high, chance = columns
    dot, hollow, line, left, right, rule, tick = tuple(marks)
    cells, words = [" "] * room, NO_INTERVAL
    if low is not None and high is not None:
        cells[low : high + 1] = (left + line * room)[: high - low] + right
        hollow, words = dot, ""
    for column, mark in ((reference, rule), (chance, tick), (value, hollow)):
        if column is not None:
            cells[column] = mark
    start = (value or 0) + 1
    if start + len(words) > room:
        start = max(0, start - 1 - len(words))
    cells[start : start + len(words)] = words
    return "".join(cells)[:room]


def _scale(ends: Sequence[float]) -> list[float]:
    """Return round numbers at equal distances, from at most the smallest to at least the largest
    end."""
    low, high = min(ends), max(ends)
    span, size = high - low, max(abs(low), abs(high))
    span = span if span > 1e-9 * size else size or 1.0  # rounding is no span
    power = 10.0 ** math.floor(math.log10(span))
    step = next(power * digit for digit in (0.2, 0.5, 1, 2) if span / (power * digit) <= MAX_TICKS)
    first = math.floor(low / step)
    return [step * number for number in range(first, max(first + 1, math.ceil(high / step)) + 1)]


def _numbers(scale: Sequence[float], room: int) -> str:
    """Return the numbers of a scale below their columns, without those that have no room."""
    line = ""
    for number in scale:
        text = f"{number:g}"
        start = max(0, min(_column(number, scale, room) - len(text) // 2, room - len(text)))
        if not line or start > len(line):
            line = line.ljust(start) + text
    return line[:room]


def wrap(text: str, width: int) -> Lines:
    """Return lines of at most `width` columns, at least one. White space counts as one space, line
    ends too.

    A line may end at a space and on both sides of a wide character, though not before closing
    punctuation; a word that is longer than a line is cut.
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
            lines += chop_cells(piece, width) or [
                piece
            ]  # marks of no width of their own are chopped to nothing
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
    """Return the title, the table, and its notes. Columns that do not fit follow below, after the
    first."""
    columns = [
        list(map(cell_text, column)) for column in zip(table.columns, *table.rows, strict=True)
    ]
    first = [wrap(cell, width // 2) for cell in columns[0]]
    room = width - _width(first)
    rest = [[wrap(cell, room - GAP) for cell in column] for column in columns[1:]]
    lines = wrap(table.title, width) if table.title else []
    for number, band in enumerate(_bands(rest, room)):
        lines += [""] * bool(number) + _aligned([first, *band], table.rules)
    return [*lines, *(line for note in table.notes for line in wrap(note, width))]


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


def _aligned(columns: Sequence[Column], rules: Sequence[int]) -> Lines:
    """Return the first column set left, the others right, with lines below the head and above the
    rows of `rules`."""
    gap, widths, lines = " " * GAP, [_width(column) for column in columns], Lines()
    rule = gap.join("-" * width for width in widths)
    for row, cells in enumerate(zip(*columns, strict=True), -1):
        if row in rules:
            lines.append(rule)
        for first, *others in zip_longest(*cells, fillvalue=""):
            lines.append(
                gap.join([to_left(first, widths[0]), *map(to_right, others, widths[1:])]).rstrip()
            )
        if row < 0:
            lines.append(rule)
    return lines
