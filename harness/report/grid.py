"""Tables of figures as text that papers and pages take: Markdown and LaTeX."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
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


def markdown(grids: Sequence[Grid], notes: Sequence[str]) -> str:
    """Pipe tables, a title over each and the notes beneath: best is bold, second underlined (`<ins>`)."""
    parts = [_markdown_table(grid) for grid in grids]
    return "\n\n".join([*parts, *(_markdown_text(note) for note in notes)]) + "\n"


def _markdown_table(grid: Grid) -> str:
    head = [_markdown_text(name) for name in (grid.corner, *grid.columns)]
    rows = [
        [_markdown_text(name), *(_markdown_number(number) for number in numbers)]
        for group in grid.groups
        for name, numbers in group
    ]
    lines = [head, ["---", *("---:" for _ in grid.columns)], *rows]
    return "\n".join([f"**{_markdown_text(grid.title)}**", "", *(f"| {' | '.join(line)} |" for line in lines)])


def _markdown_number(number: Number | None) -> str:
    if number is None:
        return ""
    around = {None: "{}", Place.BEST: "**{}**", Place.SECOND: "<ins>{}</ins>"}[number.place]
    return around.format(number.text) + ("\\*" if number.marked else "")


def _markdown_text(text: str) -> str:
    """The text itself, whatever of it looks like markup."""
    return re.sub(r"([\\`*_{}\[\]<>|~&$#!])", r"\\\1", _one_line(text))


BEFORE_LATEX = (
    "% Needs \\usepackage{booktabs}. Names in Chinese need XeLaTeX or LuaLaTeX with the package ctex or xeCJK.\n"
)
LATEX = {
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "`": r"\textasciigrave{}",
    # These two are taken for options of what ended the row above them.
    "[": "{[}",
    "*": "{*}",
    **{character: f"\\{character}" for character in "{}$&#%_"},
}


def latex(grids: Sequence[Grid], notes: Sequence[str], comments: Sequence[str] = ()) -> str:
    """A `table` each, with the rules of booktabs and the notes in its caption: best is bold, second underlined.

    `comments` come before them, for readers of the source.
    """
    before = "".join(f"% {_one_line(comment)}\n" for comment in comments)
    return BEFORE_LATEX + before + "".join(f"\n{_latex_table(grid, notes)}" for grid in grids)


def _latex_table(grid: Grid, notes: Sequence[str]) -> str:
    groups = [_latex_rows(group) for group in grid.groups if group]
    caption = " ".join([f"{_latex_text(grid.title)}.", *map(_latex_text, notes)])
    lines = [
        "\\begin{table}",
        "  \\centering",
        f"  \\caption{{{caption}}}",
        f"  \\begin{{tabular}}{{l{'r' * len(grid.columns)}}}",
        "    \\toprule",
        _latex_row([grid.corner, *grid.columns], _latex_text),
        "    \\midrule",
        "\n    \\midrule\n".join(groups),
        "    \\bottomrule",
        "  \\end{tabular}",
        "\\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _latex_rows(lines: Sequence[Line]) -> str:
    return "\n".join(_latex_row([_latex_text(name), *map(_latex_number, numbers)], str) for name, numbers in lines)


def _latex_row(cells: Sequence[str], shown: Callable[[str], str]) -> str:
    return f"    {' & '.join(map(shown, cells))} \\\\"


def _latex_number(number: Number | None) -> str:
    """The asterisk takes no room, so that the digits stay beneath each other."""
    if number is None:
        return ""
    around = {None: "{}", Place.BEST: "\\textbf{{{}}}", Place.SECOND: "\\underline{{{}}}"}[number.place]
    return around.format(number.text.replace("-", "$-$")) + ("\\rlap{*}" if number.marked else "")


def _latex_text(text: str) -> str:
    """The text itself, whatever of it means something to LaTeX."""
    plain = "".join(LATEX.get(character, character) for character in _one_line(text))
    return re.sub("-(?=-)", "-{}", plain)  # two hyphens would become a dash


def _one_line(text: str) -> str:
    """With white space of any kind and length as one space, so that no row or comment ends within a name."""
    return on_one_line(" ".join(text.split()))
