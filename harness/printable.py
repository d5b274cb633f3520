"""Text of others, made safe to print: characters that steer a terminal, turn the reading direction or break a line
become visible escapes, such as \\x1b.

Escaped are controls (C0, DEL, C1), format characters (directions, zero width), halves of surrogate pairs, private and
unassigned code points, and all ends of lines and paragraphs. Letters, marks, spaces and symbols of any script stay, and
so does a zero-width joiner within an emoji. Not undone: a text that has a backslash itself looks like an escaped one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from unicodedata import category

import orjson

STEERING = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode's general categories: controls, formats, surrogates, private, unassigned, line and paragraph separators."""
JOINER, EMOJI_STYLE = "\u200d", "\ufe0f"
EMOJI = frozenset({"So", "Sk"})
"""Symbols, and the modifiers of their skin tones."""


def on_one_line(text: str) -> str:
    """Return a value (a name, a cell, a sentence) for one line: breaks and tabs are escaped, too."""
    return _escaped(text, _for_people)


def in_lines(text: str) -> str:
    """Return a text of several lines, whose line feeds stay."""
    return "\n".join(map(on_one_line, text.split("\n")))


def as_json(value: Any) -> str:
    """Return indented JSON, in which these characters are JSON's own escapes: parsed, it is the value itself."""
    lines = orjson.dumps(value, option=orjson.OPT_INDENT_2).decode().split("\n")
    return "\n".join(_escaped(line, _for_json) for line in lines)


def _escaped(text: str, escape: Callable[[str], str]) -> str:
    if text.isprintable():  # nearly always
        return text
    return "".join(escape(text[at]) if _steers(text, at) else text[at] for at in range(len(text)))


def _steers(text: str, at: int) -> bool:
    return category(text[at]) in STEERING and not (text[at] == JOINER and _joins_emoji(text, at))


def _joins_emoji(text: str, at: int) -> bool:
    before, after = text[max(0, at - 1) : at], text[at + 1 : at + 2]
    return bool(before and after) and category(after) in EMOJI and (before == EMOJI_STYLE or category(before) in EMOJI)


def _for_people(character: str) -> str:
    return character.encode("unicode_escape").decode()


def _for_json(character: str) -> str:
    return json.dumps(character)[1:-1]
