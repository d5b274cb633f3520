r"""Tables as LaTeX, with the rules of booktabs: the best figure of a column is bold, the second
best underlined."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from harness.document import Cell, Table
from harness.printable import on_one_line

PREAMBLE = (
    "% Needs \\usepackage{booktabs,graphicx}. Names in Chinese need XeLaTeX or LuaLaTeX with ctex"
    " or xeCJK,\n% or pdfLaTeX with CJKutf8: \\begin{CJK*}{UTF8}{gbsn} before the tables,"
    " \\clearpage\\end{CJK*} after them.\n"
)
MARKUP = {None: "{}", "best": "\\textbf{{{}}}", "second": "\\underline{{{}}}"}
ASTERISK = "\\rlap{*}"
"""Takes no room, so that the digits stay beneath each other."""
SMALLER = "  \\footnotesize\\setlength{\\tabcolsep}{3pt}"
"""For tables of many columns, so that they are shrunk as little as possible."""
SHRUNK = "  \\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{%"
"""Names have any length: a table that is wider than its page or column is shrunk to it, others keep
their size."""
NOTES = "  \\par\\smallskip\\begin{{minipage}}{{\\linewidth}}\\footnotesize {}\\end{{minipage}}"
RULE = "    \\midrule"
ESCAPED = {
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    # In LaTeX's default encoding, OT1, these three would print as other characters.
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


def rendered(tables: Sequence[Table], comments: Sequence[str] = ()) -> str:
    """Return a `table` for each, with its notes beneath. `comments` are before them, for readers of
    the source.

    Labels are `tab:` and the table's title before its first comma, in ASCII; a number makes each
    unique.
    """
    pieces = [PREAMBLE, *(f"% {_one_line(comment)}\n" for comment in comments)]
    labels = set[str]()
    for table in tables:
        name = table.title.partition(", ")[0].lower()
        label = f"tab:{re.sub('[^a-z0-9]+', '-', name).strip('-')}"
        if label in labels:
            label = f"{label}-{len(labels) + 1}"

        labels.add(label)
        pieces.append("\n".join(["", *_table(table, label), ""]))

    return "".join(pieces)


def _table(table: Table, label: str) -> Iterator[str]:
    yield "\\begin{table}"
    yield "  \\centering"
    yield f"  \\caption{{{_title(table.title)}}}"
    yield f"  \\label{{{label}}}"
    if len(table.columns) > 4:
        yield SMALLER

    yield SHRUNK
    yield f"  \\begin{{tabular}}{{@{{}}l{'r' * (len(table.columns) - 1)}@{{}}}}"
    yield "    \\toprule"
    yield _row(map(_text, table.columns))
    for number, row in enumerate(table.rows):
        if number == 0 or number in table.rules:
            yield RULE

        yield _row(map(_cell, row))
        # On one line with the figures, intervals are wider than a page.
        intervals = [_interval(cell.interval) if isinstance(cell, Cell) else "" for cell in row]
        if any(intervals):
            yield _row(intervals)

    yield "    \\bottomrule"
    yield "  \\end{tabular}}"
    if table.notes:
        yield NOTES.format(" ".join(map(_text, table.notes)))

    yield "\\end{table}"


def _row(cells: Iterable[str]) -> str:
    return f"    {' & '.join(cells)} \\\\"


def _interval(text: str) -> str:
    return f"{{\\scriptsize {_text(text).replace('-', '$-$')}}}" if text else ""


def _title(text: str) -> str:
    """Return a metric's title, with what follows a caret as an exponent: `X1^AB` is $X1^{AB}$."""
    return re.sub(r"([A-Za-z0-9]+)\\textasciicircum\{\}([A-Za-z0-9]+)", r"$\1^{\2}$", _text(text))


def _cell(cell: str | Cell) -> str:
    """Return a cell without its interval. A hyphen after a digit is that of a range, any other a
    minus."""
    if isinstance(cell, str):
        return _text(cell)

    marked = MARKUP[cell.place].format(_text(cell.text))
    if cell.partial:
        marked += ASTERISK
    if cell.note:
        marked += f" ({_text(cell.note)})"

    return re.sub(r"(?<=\d)-", "--", re.sub(r"(?<!\d)-", "$-$", marked))


def _text(text: str) -> str:
    """Return the text itself, even if it means something to LaTeX."""
    plain = "".join(ESCAPED.get(character, character) for character in _one_line(text))
    return re.sub("-(?=-)", "-{}", plain)  # two hyphens would become a dash


def _one_line(text: str) -> str:
    """Return a text with each run of white space as one space, so that no row or comment ends
    within a name."""
    return on_one_line(" ".join(text.split()))
