"""Tables of figures as text that papers and pages take: Markdown and LaTeX."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from harness.printable import on_one_line


class Place(Enum):
    """The rank of a figure among those it compares with; equal ones share a rank."""

    BEST = "best"
    SECOND = "second"


@dataclass(frozen=True, slots=True)
class Number:
    """A figure as it is printed. `marked` gives it an asterisk."""

    text: str
    place: Place | None = None
    marked: bool = False


Line = tuple[str, tuple[Number | None, ...]]
"""A row's name and its figures."""


@dataclass(frozen=True, slots=True)
class Grid:
    """`columns` names the figures' columns, `corner` the names'; a rule parts the groups of rows."""

    title: str
    corner: str
    columns: tuple[str, ...]
    groups: tuple[tuple[Line, ...], ...]


def _number(number: Number | None, around: Mapping[Place | None, str], asterisk: str) -> str:
    return "" if number is None else around[number.place].format(number.text) + (asterisk if number.marked else "")


MARKDOWN = {None: "{}", Place.BEST: "**{}**", Place.SECOND: "<ins>{}</ins>"}


def markdown(grids: Sequence[Grid], notes: Sequence[str]) -> str:
    """Return pipe tables, a title over each and the notes beneath: best is bold, second underlined (`<ins>`)."""
    return "\n\n".join([*map(_markdown_table, grids), *map(_markdown_text, notes)]) + "\n"


def _markdown_table(grid: Grid) -> str:
    head = [_markdown_text(name) for name in (grid.corner, *grid.columns)]
    rows = [
        [_markdown_text(name), *(_number(number, MARKDOWN, "\\*") for number in numbers)]
        for group in grid.groups
        for name, numbers in group
    ]
    lines = [head, ["---", *("---:" for _ in grid.columns)], *rows]
    return "\n".join([f"**{_markdown_text(grid.title)}**", "", *(f"| {' | '.join(line)} |" for line in lines)])


def _markdown_text(text: str) -> str:
    """Return the text itself, even if it looks like markup."""
    return re.sub(r"([\\`*_{}\[\]<>|~&$#!])", r"\\\1", _one_line(text))


BEFORE_LATEX = (
    "% Needs \\usepackage{booktabs}. Names in Chinese need XeLaTeX or LuaLaTeX with the package ctex or xeCJK.\n"
)
LATEX = {None: "{}", Place.BEST: "\\textbf{{{}}}", Place.SECOND: "\\underline{{{}}}"}
ESCAPED = {
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "`": r"\textasciigrave{}",
    # LaTeX would read these two as options of the end of the row above them.
    "[": "{[}",
    "*": "{*}",
    **{character: f"\\{character}" for character in "{}$&#%_"},
}


def latex(grids: Sequence[Grid], notes: Sequence[str], comments: Sequence[str] = ()) -> str:
    """Return a `table` each, with the rules of booktabs and the notes in its caption: best is bold, second underlined.

    `comments` come before them, for readers of the source.
    """
    before = "".join(f"% {_one_line(comment)}\n" for comment in comments)
    return BEFORE_LATEX + before + "".join(f"\n{_latex_table(grid, notes)}" for grid in grids)


def _latex_table(grid: Grid, notes: Sequence[str]) -> str:
    def row(cells: Iterable[str]) -> str:
        return f"    {' & '.join(cells)} \\\\"

    groups = [
        "\n".join(row([_latex_text(name), *map(_latex_number, numbers)]) for name, numbers in group)
        for group in grid.groups
        if group
    ]
    caption = " ".join([f"{_latex_text(grid.title)}.", *map(_latex_text, notes)])
    lines = [
        "\\begin{table}",
        "  \\centering",
        f"  \\caption{{{caption}}}",
        f"  \\begin{{tabular}}{{l{'r' * len(grid.columns)}}}",
        "    \\toprule",
        row(map(_latex_text, (grid.corner, *grid.columns))),
        "    \\midrule",
        "\n    \\midrule\n".join(groups),
        "    \\bottomrule",
        "  \\end{tabular}",
        "\\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _latex_number(number: Number | None) -> str:
    """Return a number, with an asterisk that takes no room, so that the digits stay beneath each other."""
    return _number(number, LATEX, "\\rlap{*}").replace("-", "$-$")


def _latex_text(text: str) -> str:
    """Return the text itself, even if it means something to LaTeX."""
    plain = "".join(ESCAPED.get(character, character) for character in _one_line(text))
    return re.sub("-(?=-)", "-{}", plain)  # two hyphens would become a dash


def _one_line(text: str) -> str:
    """Return a text with each run of white space as one space, so that no row or comment ends within a name."""
    return on_one_line(" ".join(text.split()))
