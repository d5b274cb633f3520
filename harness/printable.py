r"""Make text of others safe to print: characters that control a terminal, change the reading
direction or break a line become visible escapes, such as \x1b.

Escaped are controls (C0, DEL, C1), format characters (directions, zero width), halves of surrogate
pairs, private and unassigned code points, and all ends of lines and paragraphs. Letters, marks,
spaces and symbols of any script stay, and so does a zero-width joiner within an emoji. This cannot
be reversed: a backslash of the text itself stays as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from unicodedata import category

import orjson

FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
"""How formulas begin, in some spreadsheets also in full width (owasp.org: CSV injection)."""
STEERING = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode's general categories: controls, formats, surrogates, private, unassigned, line and
paragraph separators."""
JOINER, EMOJI_STYLE = "\u200d", "\ufe0f"
EMOJI = frozenset({"So", "Sk"})
"""Symbols, and the modifiers of their skin tones."""


def short_hash(digest: str) -> str:
    """Return the beginning of a hash as every page, table and message shows it."""
    return digest[:12] + "…" * (len(digest) > 12)


def on_one_line(text: str) -> str:
    """Return a value (a name, a cell, a sentence) for one line: breaks and tabs are escaped,
    too."""
    return _escaped(text, lambda character: character.encode("unicode_escape").decode())


def in_cell(text: str) -> str:
    """Return a text for a cell of a CSV file: on one line, with an apostrophe before what a
    spreadsheet would take for a formula."""
    plain = on_one_line(text)
    # The apostrophe makes a spreadsheet show the text instead of computing it.
    return f"'{plain}" if plain.startswith(FORMULA) else plain


def in_lines(text: str) -> str:
    """Return a text of several lines with its line feeds."""
    return "\n".join(map(on_one_line, text.split("\n")))


def as_json(value: object) -> str:
    """Return indented JSON with JSON's own escapes of these characters: parsed, it is the value
    itself."""
    lines = orjson.dumps(value, option=orjson.OPT_INDENT_2).decode().split("\n")
    return "\n".join(
        _escaped(line, lambda character: json.dumps(character)[1:-1]) for line in lines
    )


def _escaped(text: str, escape: Callable[[str], str]) -> str:
    if text.isprintable():  # nearly always
        return text
    characters = list(text)
    for index, character in enumerate(text):
        if _steers(text, index):
            characters[index] = escape(character)
    return "".join(characters)


def _steers(text: str, index: int) -> bool:
    # An emoji of several joined signs (a family, a flag) falls apart without its joiner.
    if text[index] == JOINER and 0 < index < len(text) - 1:
        previous, following = text[index - 1], text[index + 1]
        joins = previous == EMOJI_STYLE or category(previous) in EMOJI
        if joins and category(following) in EMOJI:
            return False
    return category(text[index]) in STEERING
