"""The document model: what reports, tables, comparisons, cards and pages are made of. Renderers are
in `reporting/`.

A block checks itself when it is made and when it is read, so renderers need not. Sections of
reports are stored as JSON, each block with its class's name under the key `block`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Literal, NamedTuple

from msgspec import Struct, field, structs

CHANCE = "chance"
"""Name of the series of a chart of intervals that has the chance level of each row: a tick instead
of a dot."""


class _Block(Struct, frozen=True, tag_field="block", tag=True):
    """A part of a report, stored in JSON with the name of its class under the key `block`."""


def _check_finite(title: str, *values: Iterable[object]) -> None:
    """Raise `ValueError` for a number that no picture can show."""
    for value in chain.from_iterable(values):
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{title}: {value} is not a finite number")


class Heading(_Block, frozen=True, omit_defaults=True):
    """Pages show what follows a `folded` one, up to the next heading, only when it is opened."""

    text: str
    folded: bool = False


class Paragraph(_Block, frozen=True):
    text: str


class Cell(Struct, frozen=True, omit_defaults=True):
    """A figure in a table: `text` as people read it, `value` as spreadsheets hold it, with so many
    `digits` after the point.

    `place` marks the best of the figures that it compares with, and the second best. A `partial`
    figure is not over all users, and carries an asterisk; a `faint` one is secondary. `interval`
    follows the text, and `note` in brackets.
    """

    text: str
    value: int | float | None = None
    digits: int = 2
    place: Literal["best", "second"] | None = None
    partial: bool = False
    faint: bool = False
    interval: str = ""
    note: str = ""


def cell_text(cell: str | Cell) -> str:
    """Return a cell as plain text, with its asterisk, interval and note."""
    if isinstance(cell, str):
        return cell

    text = cell.text
    if cell.partial:
        text += "*"
    if cell.note:
        text += f" ({cell.note})"
    if cell.interval:
        text += f" {cell.interval}"

    return text


class Table(_Block, frozen=True, omit_defaults=True):
    """Cells are text, ready to print, or figures; the first column is set left, the others right.

    `title` is above it, `notes` are beneath. `rules` are the numbers of the rows with a line above
    them.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str | Cell, ...], ...]
    title: str = ""
    notes: tuple[str, ...] = ()
    rules: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"a Table of {len(self.columns)} columns has a row of another length")


def without_empty_columns(table: Table) -> Table:
    """Return a table without the columns in which no row has anything; the first one stays."""
    first, *others = zip(table.columns, *table.rows, strict=True)
    shown = [first]
    for column in others:
        if any(column[1:]):
            shown.append(column)

    columns, *rows = zip(*shown, strict=True)

    return structs.replace(table, columns=columns, rows=tuple(rows))


class Verbatim(_Block, frozen=True):
    """Lines that another program reads: never wrapped."""

    text: str


class Quote(_Block, frozen=True):
    """A quoted text of any length, with its own line ends; pages fold it unless it is `open`.

    A `private` one is a user's own text: pages leave it out unless such texts are requested.
    """

    label: str
    text: str
    open: bool = False
    private: bool = False


class Tags(_Block, frozen=True):
    """Short texts in a row, each with the kind that gives it its colour: `hit`, `missed`, `wrong`,
    or a finer one."""

    label: str
    tags: tuple[tuple[str, str], ...]


class Series(Struct, frozen=True):
    """Of a chart: a value at each `x`, None where it is undefined; `low` and `high` bound it, empty
    for no bounds."""

    name: str
    values: tuple[int | float | None, ...]
    low: tuple[int | float | None, ...] = ()
    high: tuple[int | float | None, ...] = ()


class Chart(_Block, frozen=True, omit_defaults=True):
    """A picture of what tables say in numbers. Text has those of `intervals` that no table is next
    to.

    `curve`: lines over numbers, bounds as bands. `intervals`: a row for each name in `x`, a dot
    with its bounds for each series (a tick for the series `CHANCE`), and a line through all rows at
    `reference`. `histogram`: `x` are the edges, one more than there are values. `ribbon`: shares
    that add up to 1, stacked, over `x`. Values are fractions where `percent` says so, and so is
    `reference`.
    """

    kind: Literal["curve", "intervals", "histogram", "ribbon"]
    title: str
    x: tuple[int | float | str, ...]
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    # A default that is made is stored, too, as in reports of earlier versions.
    percent: bool = field(default_factory=lambda: True)
    reference: float | None = None

    def __post_init__(self) -> None:
        points = len(self.x) - (self.kind == "histogram")
        for series in self.series:
            bounds = [ends for ends in (series.low, series.high) if ends]
            if any(len(values) != points for values in (series.values, *bounds)):
                raise ValueError(
                    f"Chart {self.title}: the series {series.name} has not {points} values"
                )

            _check_finite(self.title, series.values, *bounds)

        _check_finite(self.title, self.x, (self.reference,))


class Sketch(_Block, frozen=True):
    """Places on a plane, in metres east and north: by name of their kind, and paths over them."""

    title: str
    places: Mapping[str, tuple[tuple[float, float], ...]]
    paths: tuple[tuple[tuple[float, float], ...], ...] = ()

    def __post_init__(self) -> None:
        for points in (*self.places.values(), *self.paths):
            _check_finite(self.title, *points)


Block = Heading | Paragraph | Table | Verbatim | Quote | Tags | Chart | Sketch
"""What reports and pages are made of; `text` leaves out most pictures."""


class Tile(NamedTuple):
    """A large figure at the top of a page, as text; `within` is its bounds, or what it covers."""

    name: str
    value: str
    within: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """The page of one report. `warning` must be read before any number; empty for none."""

    title: str
    warning: str
    tiles: tuple[Tile, ...]
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Card:
    """One user of a page's browser: `figures` in the list, `blocks` once the user is picked."""

    key: str
    figures: tuple[str, ...]
    blocks: tuple[Block, ...]
