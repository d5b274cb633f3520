"""The board: the content of a display laid out on the lines and columns of a screen.

From top to bottom: a row for each run, the traffic of the whole command, what is wrong, the last
warning, and details for developers. Rows take the lines that the others leave; those of ended runs
are dropped first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest

from rich.cells import cell_len
from rich.text import Text

from harness.model import Snapshots
from harness.ui import content
from harness.ui.cells import to_left, to_right
from harness.ui.content import BETWEEN, ProgressRow
from harness.ui.screen import Screen

GAP = "  "
MIN_BAR = 5
MIN_NAME = 12
"""Cells that a name may take on the narrowest screen; on others a quarter of the width."""


def view(snapshots: Snapshots, screen: Screen, *, verbose: bool = False) -> list[Text]:
    """Return the whole display within the screen's lines and columns; the last line stays free."""
    height = max(1, screen.height - 1)
    state = [
        *_wrapped(content.traffic(snapshots), screen)[:1],
        *_wrapped(content.troubles(snapshots), screen, "yellow"),
        *_wrapped(list(content.warnings(snapshots).values())[:1], screen, "yellow"),
    ]
    lines = [*_rows(snapshots, screen, max(2, height - len(state))), *state]
    for s in snapshots:
        if verbose and not s.over:
            lines += _wrapped([s.name, *content.developer_details(s)], screen, "dim")
    for line in lines:
        line.truncate(screen.width)
    return lines[:height]


def _rows(snapshots: Snapshots, screen: Screen, height: int) -> list[Text]:
    """Return the rows of runs and subsets if all fit, else of runs, else of the first runs that go
    on."""
    for with_subsets in (True, False):
        rows = content.rows(snapshots, with_subsets=with_subsets)
        if len(rows) <= height:
            return _table(rows, screen)
    # Ended runs are the first to go; those that are shown stay in their order.
    numbers = sorted(range(len(snapshots)), key=lambda number: snapshots[number].over)
    shown = tuple([snapshots[number] for number in sorted(numbers[: height - 1])])
    hidden_line = _line(f"and {len(snapshots) - len(shown):,} more", "dim")
    return [*_table(content.rows(shown, with_subsets=False), screen), hidden_line]


def _table(rows: Sequence[ProgressRow], screen: Screen) -> list[Text]:
    """Return rows as lines. The bar takes the width that is left; where it would be short, or names
    would read alike, figures are left out. What the bar has beyond a quarter of the width is for
    names that are cut."""
    name_cells = max(MIN_NAME, screen.width // 4)
    names = _names(rows, screen, name_cells)
    users = _column([row.users for row in rows], to_right)
    figures = []
    for column in zip_longest(*[row.figures for row in rows], fillvalue=""):
        figures.append(_column([screen.fit(figure, screen.width) for figure in column], to_left))
    etas = _column([row.eta for row in rows], to_left)
    failed = _column([row.failed for row in rows], to_right)
    while True:
        columns = [column for column in (users, *figures, etas, failed) if column[0]]
        without_bar = GAP.join([names[0], "", *[column[0] for column in columns]])
        bar = screen.width - cell_len(without_bar)
        longer_names = _names(rows, screen, name_cells + max(0, bar - screen.width // 4))
        is_clear = len(set(longer_names)) == len({row.name for row in rows})
        if not figures or (bar >= MIN_BAR and is_clear):
            break
        figures.pop()
    bar -= cell_len(longer_names[0]) - cell_len(names[0])
    lines = []
    for row, name, *cells in zip(rows, longer_names, *columns, strict=True):
        line = Text(no_wrap=True).append(name, "bold" if row.eta else "")
        if bar >= MIN_BAR:
            line.append(GAP).append_text(_bar(row.share, bar, screen))
        lines.append(line.append(GAP + GAP.join(cells)))
    return lines


def _names(rows: Sequence[ProgressRow], screen: Screen, cells: int) -> list[str]:
    return _column([screen.fit(row.name, cells) for row in rows], to_left)


def _column(texts: Sequence[str], align: Callable[[str, int], str]) -> list[str]:
    """Return texts as wide as the widest."""
    width = max(map(cell_len, texts))
    return [align(text, width) for text in texts]


def _bar(share: float, cells: int, screen: Screen) -> Text:
    """Return a bar that is full only at the end."""
    done = min(cells, int(share * cells))
    bar = Text().append(screen.bars[0] * done, "green" if share >= 1 else "cyan")
    return bar.append(screen.bars[1] * (cells - done), "dim")


def _wrapped(sentences: Sequence[str], screen: Screen, style: str = "") -> list[Text]:
    """Join sentences on as few lines as possible; only one that is longer than a line is cut."""
    lines: list[str] = []
    for sentence in sentences:
        text = screen.fit(sentence, screen.width)
        if lines and cell_len(lines[-1] + BETWEEN + text) <= screen.width:
            lines[-1] += BETWEEN + text
        else:
            lines.append(text)
    return [_line(line, style) for line in lines]


def _line(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True)
