"""Bad input, made when it is asked for: what a user, another program or a broken disk may put where
a file is read.

A case is a name, the bytes of the file, and the words that the complaint must have (file, line and
field first of all).
"""

from __future__ import annotations

from typing import NamedTuple


class Case(NamedTuple):
    name: str
    content: bytes
    words: tuple[str, ...] = ()
