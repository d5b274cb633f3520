"""Tables of figures as text that papers and pages take: Markdown and LaTeX."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from harness.printable import on_one_line


class Standing(Enum):
    """The rank of a figure among those it compares with; equal ones share a rank."""

    BEST = "best"
    SECOND = "second"


@dataclass(frozen=True, slots=True)
class Number:
    """A figure as it is printed, with its interval if that is shown. `marked` gives it an asterisk; `published` follows
    in brackets: the figure as published where another one ranks, and its bias where that is known."""

    text: str
    place: Standing | None = None
    marked: bool = False
    interval: str = ""
    published: str = ""


Line = tuple[str, tuple[Number | None, ...]]
"""A row's name and its figures."""


@dataclass(frozen=True, slots=True)
class Grid:
    """`columns` names the figures' columns, `corner` the names'; a rule parts the groups of rows. `notes` are on this
    table alone, where each has a place of its own for them. `name` is what other text refers to it by."""

    title: str
    corner: str
    columns: tuple[str, ...]
    groups: tuple[tuple[Line, ...], ...]
    notes: tuple[str, ...] = ()
    name: str = ""


def _number(number: Number | None, around: Mapping[Standing | None, str], asterisk: str) -> str:
    if number is None:
        return ""
    published = f" ({number.published})" if number.published else ""
    return around[number.place].format(number.text) + (asterisk if number.marked else "") + published


MARKDOWN = {None: "{}", Standing.BEST: "**{}**", Standing.SECOND: "<ins>{}</ins>"}


def markdown(grids: Sequence[Grid], notes: Sequence[str]) -> str:
    """Return pipe tables, a title over each and the notes beneath: best is bold, second underlined (`<ins>`)."""
    return "\n\n".join([*map(_markdown_table, grids), *map(_markdown_text, notes)]) + "\n"


def _markdown_table(grid: Grid) -> str:
    head = [_markdown_text(name) for name in (grid.corner, *grid.columns)]
    rows = [[_markdown_text(name), *map(_markdown_number, numbers)] for group in grid.groups for name, numbers in group]
    lines = [head, ["---", *("---:" for _ in grid.columns)], *rows]
    return "\n".join([f"**{_markdown_text(grid.title)}**", "", *(f"| {' | '.join(line)} |" for line in lines)])


def _markdown_number(number: Number | None) -> str:
    interval = f" {_markdown_text(number.interval)}" if number and number.interval else ""
    return _number(number, MARKDOWN, "\\*") + interval


def _markdown_text(text: str) -> str:
    """Return the text itself, even if it looks like markup."""
    return re.sub(r"([\\`*_{}\[\]<>|~&$#!])", r"\\\1", _one_line(text))


BEFORE_LATEX = (
    "% Needs \\usepackage{booktabs,graphicx}. Names in Chinese need XeLaTeX or LuaLaTeX with ctex or xeCJK,\n"
    "% or pdfLaTeX with CJKutf8: \\begin{CJK*}{UTF8}{gbsn} before the tables, \\clearpage\\end{CJK*} after them.\n"
)
LATEX = {None: "{}", Standing.BEST: "\\textbf{{{}}}", Standing.SECOND: "\\underline{{{}}}"}
LATEX_SMALLER = "  \\footnotesize\\setlength{\\tabcolsep}{3pt}"
"""For tables of many columns, so that they are shrunk as little as possible."""
LATEX_SHRUNK = "  \\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{%"
"""Names have any length: a table that is wider than its page or column is shrunk to it, others keep their size."""
LATEX_NOTES = "  \\par\\smallskip\\begin{{minipage}}{{\\linewidth}}\\footnotesize {}\\end{{minipage}}"
ESCAPED = {
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "{''}",  # \textquotedbl needs the encoding T1
    "`": r"\textasciigrave{}",
    # LaTeX would read these two as options of the end of the row above them.
    "[": "{[}",
    "*": "{*}",
    **{character: f"\\{character}" for character in "{}$&#%_"},
}


def latex(grids: Sequence[Grid], comments: Sequence[str] = ()) -> str:
    """Return a `table` each, with the rules of booktabs and its notes beneath: best is bold, second underlined.

    `comments` come before them, for readers of the source. Labels are `tab:` and the table's name in ASCII.
    """
    before = "".join(f"% {_one_line(comment)}\n" for comment in comments)
    labels: dict[str, Grid] = {}
    for grid in grids:
        label = f"tab:{re.sub('[^a-z0-9]+', '-', (grid.name or grid.title).lower()).strip('-')}"
        labels[label if label not in labels else f"{label}-{len(labels) + 1}"] = grid
    return BEFORE_LATEX + before + "".join(f"\n{_latex_table(grid, label)}" for label, grid in labels.items())


def _latex_table(grid: Grid, label: str) -> str:
    groups = [
        "\n".join(line for name, numbers in group for line in _latex_rows(name, numbers))
        for group in grid.groups
        if group
    ]
    lines = [
        "\\begin{table}",
        "  \\centering",
        f"  \\caption{{{_latex_title(grid.title)}}}",
        f"  \\label{{{label}}}",
        *([LATEX_SMALLER] if len(grid.columns) > 3 else []),
        LATEX_SHRUNK,
        f"  \\begin{{tabular}}{{@{{}}l{'r' * len(grid.columns)}@{{}}}}",
        "    \\toprule",
        _latex_row(map(_latex_text, (grid.corner, *grid.columns))),
        "    \\midrule",
        "\n    \\midrule\n".join(groups),
        "    \\bottomrule",
        "  \\end{tabular}}",
        *([LATEX_NOTES.format(" ".join(map(_latex_text, grid.notes)))] if grid.notes else []),
        "\\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _latex_rows(name: str, numbers: Sequence[Number | None]) -> Iterator[str]:
    """Yield a row, and one of intervals beneath it if there are some: on one line they are wider than a page."""
    yield _latex_row([_latex_text(name), *map(_latex_number, numbers)])
    intervals = [_latex_text(number.interval).replace("-", "$-$") if number else "" for number in numbers]
    if any(intervals):
        yield _latex_row(["", *(f"{{\\scriptsize {interval}}}" if interval else "" for interval in intervals)])


def _latex_row(cells: Iterable[str]) -> str:
    return f"    {' & '.join(cells)} \\\\"


def _latex_title(text: str) -> str:
    """Return a metric's title, with what follows a caret as an exponent: `X1^AB` is $X1^{AB}$."""
    return re.sub(r"([A-Za-z0-9]+)\\textasciicircum\{\}([A-Za-z0-9]+)", r"$\1^{\2}$", _latex_text(text))


def _latex_number(number: Number | None) -> str:
    """Return a number, with an asterisk that takes no room, so that the digits stay beneath each other. A hyphen after
    a digit is that of a range."""
    signed = re.sub(r"(?<!\d)-", "$-$", _number(number, LATEX, "\\rlap{*}"))
    return re.sub(r"(?<=\d)-", "--", signed)


def _latex_text(text: str) -> str:
    """Return the text itself, even if it means something to LaTeX."""
    plain = "".join(ESCAPED.get(character, character) for character in _one_line(text))
    return re.sub("-(?=-)", "-{}", plain)  # two hyphens would become a dash


def _one_line(text: str) -> str:
    """Return a text with each run of white space as one space, so that no row or comment ends within a name."""
    return on_one_line(" ".join(text.split()))
