"""Blocks as plain text for a terminal or a file. Widths are terminal columns: a Chinese character
takes two.

A chart of intervals is drawn where readers need it: not below a folded heading, nor below a table
of the same section, which has its figures. Other pictures are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, zip_longest

from rich.cells import cell_len, chop_cells

from harness.document import (
    CHANCE,
    Block,
    Cell,
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
LINE_MARKS = "●○─├┤│┆"
ASCII_MARKS = "*o-[]|:"
"""Of charts: a value with an interval and one without, the interval and its ends, the reference and
a chance level."""
NO_INTERVAL = " no interval"
MAX_TICKS = 5
MIN_WIDTH = 8
"""Columns, also of a terminal with fewer: it breaks the lines itself."""
NO_LINE_STARTS_WITH = frozenset("、。，．：；！？）》」』】〉〕”’％…,.:;!?)]}%")

Lines = list[str]
Numbers = Sequence[float | None]
"""None where a value is not known."""


def rendered(
    blocks: Sequence[Block],
    width: int = 80,
    *,
    encoding: str = "utf-8",
    separator: str = "\n\n",
) -> str:
    """Return blocks as text, by default with an empty line between each two; only `Verbatim` may
    pass `width`, if that is not too narrow. Charts are drawn with characters that the encoding
    has."""
    # A narrower one would leave no room for any figure next to a row's name.
    room = max(width, MIN_WIDTH)
    marks = LINE_MARKS if has(encoding, LINE_MARKS) else ASCII_MARKS
    texts = []
    for block in _without_pictures(blocks):
        texts.append("\n".join(_block(block, room, marks)))

    return separator.join(texts) + "\n"


def _without_pictures(blocks: Sequence[Block]) -> Iterator[Block]:
    """Yield blocks except pictures and headings that have only pictures below them. A chart of
    intervals stays where its section has the figures nowhere else."""
    heading: Heading | None = None
    pictures = has_figures = False
    # The end closes the last section, as a heading does.
    for block in (*blocks, None):
        if isinstance(block, Chart | Sketch) and (has_figures or not _is_drawn(block)):
            pictures = True
            continue

        # A heading waits until it is clear that more than pictures follows it.
        has_only_pictures = pictures and isinstance(block, Heading | None)
        if heading and not has_only_pictures:
            yield heading

        pictures = False
        if isinstance(block, Heading):
            heading = block
            has_figures = block.folded
        elif block:
            heading = None
            has_figures |= isinstance(block, Table)
            yield block


def _block(block: Block, width: int, marks: str) -> Lines:
    """Return the lines of a block that text has."""
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
            listed = ", ".join(f"{tag} ({kind})" for tag, kind in tags)
            return wrap(f"{label}: {listed}", width)
        case Chart():
            return _chart(block, width, marks)
        case Sketch():  # left out before
            return []


# Charts of intervals


def _is_drawn(block: Block) -> bool:
    """Return whether a block is a chart of intervals with a value."""
    return isinstance(block, Chart) and block.kind == "intervals" and any(_chart_rows(block))


def _chart(
    chart: Chart,
    width: int,
    marks: str,
) -> Lines:
    """Return a line for each value, and one with the scale and, if there is room, the title."""
    title = ", ".join(filter(None, (chart.title, chart.x_label)))
    max_label = 2 * width // 5
    lines = []
    if cell_len(title) > max_label:
        lines = wrap(title, width)
        title = ""

    names, rows = zip(*_chart_rows(chart), strict=True)
    # Every label on one line: a chart's rows are read against each other.
    labels = [wrap(label, max_label)[0] for label in (*names, title)]
    label_width = max(map(cell_len, labels))
    room = max(1, width - label_width - GAP)
    scale = _scale(list(_known(chain.from_iterable(rows))))
    bars = [_bar(values, scale, marks, room) for values in rows]
    bars.append(_numbers(scale, room))
    for label, bar in zip(labels, bars, strict=True):
        lines.append(f"{to_left(label, label_width)}{' ' * GAP}{bar}".rstrip())

    return lines


def _known(values: Iterable[float | None]) -> Iterator[float]:
    return (value for value in values if value is not None)


def _chart_rows(chart: Chart) -> Iterator[tuple[str, Numbers]]:
    """Yield a label and what is drawn of each known value: the reference, the value, the ends of
    its interval and the chance level, shares in percent."""
    factor = 100.0 if chart.percent else 1.0
    no_values: Numbers = (None,) * len(chart.x)
    chance = no_values
    shown = []
    for series in chart.series:
        if series.name == CHANCE:
            chance = series.values
        else:
            shown.append(series)

    for row, name in enumerate(chart.x):
        for series in shown:
            if series.values[row] is None:
                continue

            label = f"{name}, {series.name}" if len(shown) > 1 else str(name)
            low, high = series.low or no_values, series.high or no_values
            values = (chart.reference, series.values[row], low[row], high[row], chance[row])
            yield label, [value if value is None else factor * value for value in values]


def _column(
    number: float,
    scale: Sequence[float],
    room: int,
) -> int:
    share = (number - scale[0]) / (scale[-1] - scale[0])
    return round(share * (room - 1))


def _bar(
    values: Numbers,
    scale: Sequence[float],
    marks: str,
    room: int,
) -> str:
    """Return a value with its interval. `values` are reference, value, both ends and chance
    level."""
    columns = [None if value is None else _column(value, scale, room) for value in values]
    reference, value, low, high, chance = columns
    dot, hollow, line, left, right, rule, tick = tuple(marks)
    cells = [" "] * room
    value_mark = hollow
    note = NO_INTERVAL
    if low is not None and high is not None:
        # The right end alone where both ends are in one column.
        cells[low : high + 1] = (left + line * room)[: high - low] + right
        value_mark = dot
        note = ""

    # The last one covers what is in its column: the value.
    for column, mark in ((reference, rule), (chance, tick), (value, value_mark)):
        if column is not None:
            cells[column] = mark

    start = (value or 0) + 1
    if start + len(note) > room:
        start = max(0, start - 1 - len(note))

    cells[start : start + len(note)] = note

    return "".join(cells)[:room]


def _scale(ends: Sequence[float]) -> list[float]:
    """Return round numbers at equal distances, from at most the smallest to at least the largest
    end."""
    low = min(ends)
    high = max(ends)
    size = max(abs(low), abs(high))
    span = high - low
    if span <= 1e-9 * size:  # rounding is no span
        span = size or 1.0

    power = 10.0 ** math.floor(math.log10(span))
    # One of few round numbers, so that a reader can estimate the values in between.
    steps = (power * digit for digit in (0.2, 0.5, 1, 2))
    step = next(step for step in steps if span / step <= MAX_TICKS)
    first = math.floor(low / step)
    last = max(first + 1, math.ceil(high / step))

    return [step * number for number in range(first, last + 1)]


def _numbers(scale: Sequence[float], room: int) -> str:
    """Return the numbers of a scale below their columns, without those that have no room."""
    line = ""
    for number in scale:
        text = f"{number:g}"
        centred = _column(number, scale, room) - len(text) // 2
        start = max(0, min(centred, room - len(text)))
        if not line or start > len(line):
            line = line.ljust(start) + text

    return line[:room]


def wrap(text: str, width: int) -> Lines:
    """Return lines of at most `width` columns, at least one. White space counts as one space, line
    ends too.

    A line may end at a space and on both sides of a wide character, though not before closing
    punctuation; a word that is longer than a line is cut.
    """
    line = " ".join(map(on_one_line, text.split()))
    if cell_len(line) <= width:
        return [line]

    lines = [""]
    for has_space, piece in _pieces(text):
        space = " " if has_space and lines[-1] else ""
        longer = f"{lines[-1]}{space}{piece}"
        if cell_len(longer) <= width:
            lines[-1] = longer
        else:
            # Marks of no width of their own are chopped to nothing.
            lines += chop_cells(piece, width) or [piece]

    return lines if lines[0] or len(lines) == 1 else lines[1:]


def _pieces(text: str) -> Iterator[tuple[bool, str]]:
    """Yield what must stay together, each with whether a space is before it."""
    for word in map(on_one_line, text.split()):
        if word.isascii():
            yield True, word
            continue

        has_space = True
        piece = ""
        for character in word:
            # A mark of no width belongs to the character before it.
            columns = cell_len(character)
            may_begin = columns and character not in NO_LINE_STARTS_WITH
            if piece and may_begin and 2 in (columns, cell_len(piece[-1])):
                yield has_space, piece
                has_space = False
                piece = ""

            piece += character

        yield has_space, piece


def _table(table: Table, width: int) -> Lines:
    """Return the title, the table, and its notes. Columns that do not fit follow below, after the
    first."""
    labels, *columns = zip(table.columns, *table.rows, strict=True)
    # Half of the line at most: a long name must not push every figure below the table.
    first = _wrapped(labels, width // 2)
    room = width - _width(first)
    bands = _bands([_wrapped(column, room - GAP) for column in columns], room)
    lines = wrap(table.title, width) if table.title else []
    for number, band in enumerate(bands):
        if number:
            lines.append("")

        lines += _aligned([first, *band], table.rules)

    for note in table.notes:
        lines += wrap(note, width)

    return lines


Column = list[Lines]
"""A column's cells from its head down, each as its lines."""


def _wrapped(cells: Sequence[str | Cell], width: int) -> Column:
    return [wrap(cell_text(cell), width) for cell in cells]


def _width(column: Column) -> int:
    return max(map(cell_len, chain.from_iterable(column)))


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
    gap = " " * GAP
    widths = list(map(_width, columns))
    lines = []
    rule = gap.join("-" * width for width in widths)
    for row, cells in enumerate(zip(*columns, strict=True), -1):
        if row in rules:
            lines.append(rule)

        for first, *figures in zip_longest(*cells, fillvalue=""):
            aligned = [to_left(first, widths[0]), *map(to_right, figures, widths[1:])]
            lines.append(gap.join(aligned).rstrip())

        if row < 0:
            lines.append(rule)

    return lines
