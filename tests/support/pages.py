"""The pages of the documentation, the fenced blocks in them, and the commands in their order."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from textwrap import dedent

from tests.support import ROOT

PATTERNS = ("*.md", "docs/**/*.md", "examples/**/*.md")
FENCE = re.compile(r"^(?P<margin> *)```(?P<language>[\w+-]*)[^`]*$")
INLINE = re.compile(
    r"(?<!`)`((?:make(?= [a-z.])|harness|python -m harness|\.venv/bin/python -m harness)"
    r" [^`]+)`(?!`)"
)
PLACEHOLDER = re.compile(r"\b[A-Z]\b|<[\w-]+>|(?<==)\.\.\.")
LEFT_OUT = re.compile(r"[][\n]| \.\.\.")
HARNESS = re.compile(r"(?:python -m |(?:^|[;&|(]|\bdo\b|\bexec\b) *)harness(?= +[a-z])")
HERE_DOCUMENT = re.compile(r"<<\s*['\"]?(\w+)")
PLAIN = re.compile(
    r"(?!(?:if|for|while|until|case|do|done|then|else|elif|fi|esac|function|select)\b)[\w.]"
    r"""(?:[\w /.,:=@~+%-]|"[^"\\$`\n]*"|'[^'\n]*')*(?: #.*)?"""
)
"""Words of one command, for which no shell has to be started."""
VARIABLE = re.compile(r"\$\(\(.*?\)\)|\$\{?\w+\}?")


@dataclass(frozen=True)
class Block:
    """A fenced block; `line` is the number of its first line, below the fence."""

    language: str
    line: int
    text: str


@dataclass(frozen=True)
class Command:
    """A command of a page: whole, with the lines that continue it."""

    page: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text.splitlines()[0]}"


def pages() -> list[str]:
    """Return the paths of all pages, from the project's folder."""
    found = {path for pattern in PATTERNS for path in ROOT.glob(pattern)}
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str) -> list[Block]:
    """Return the fenced blocks of a page."""
    found, lines = [], iter(enumerate(text_of(page).splitlines(), 1))
    for number, line in lines:
        if opened := FENCE.match(line):
            inside = [text for _, text in takewhile(lambda one: one[1].strip() != "```", lines)]
            found.append(Block(opened["language"], number + 1, dedent("\n".join(inside)) + "\n"))
    return found


def commands(page: str, block: Block) -> Iterator[Command]:
    """Yield the commands of a block of shell: as few lines as the shell takes for whole. A script
    is one command. Raise `ValueError` for what the shell cannot read."""
    if block.text.startswith("#!"):
        yield Command(page, block.line, block.text.rstrip())
        return
    taken: list[str] = []
    for number, line in enumerate(block.text.splitlines(), block.line):
        taken.append(line)
        text = "\n".join(taken)
        if not line.endswith("\\") and _is_whole(text):
            if shlex.split(text, comments=True):
                yield Command(page, number - len(taken) + 1, text.strip())
            taken = []
    if taken:
        raise ValueError(f"{page}: the shell cannot read {taken}")


def inline(page: str) -> list[Command]:
    """Return the commands within sentences; placeholders such as N are 1."""
    prose = re.sub(
        r"(?ms)^ *```.*?^ *```", lambda block: "\n" * block[0].count("\n"), text_of(page)
    )
    return [
        Command(
            page,
            prose.count("\n", 0, found.start()) + 1,
            PLACEHOLDER.sub("1", LEFT_OUT.sub("", found[1])),
        )
        for found in INLINE.finditer(prose)
    ]


def calls(text: str) -> Iterator[list[str]]:
    """Yield the words after each `harness` in a piece of shell or of another language; variables
    are 1."""
    joined = VARIABLE.sub("1", text.replace("\\\n", " ").replace('"$@"', ""))
    for line in joined.splitlines():
        for found in HARNESS.finditer(line):
            rest = line[found.end() :].strip()
            within_quotes = rest.count('"') % 2
            words = shlex.shlex(
                rest[: -1 if within_quotes else None], posix=True, punctuation_chars=True
            )
            words.whitespace_split = True
            yield list(
                takewhile(lambda word: not set(word) <= set(";&|<>()") and word != "2", words)
            )


def _is_whole(text: str) -> bool:
    """Return whether the shell needs no further line. It takes a document without its end for
    whole."""
    if any(end not in text.splitlines() for end in HERE_DOCUMENT.findall(text)):
        return False
    if PLAIN.fullmatch(text):
        return True
    return (
        subprocess.run(
            ["sh", "-n"], input=text, text=True, capture_output=True, check=False
        ).returncode
        == 0
    )
