"""Every message that ends a command is on the page on troubleshooting, or says itself what to
do."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.support import ROOT

ERRORS = {
    *(
        "BadInput",
        "MachineError",
        "InUse",
        "EndpointStopped",
        "ConfigurationRefused",
        "AnswersUnusable",
    ),
    *("BudgetReached", "BenchmarkError", "as_machine_error"),
}
ADVICE = re.compile(
    r"expected|`|--[a-z]|\b(?:add|call|check|choose|correct|free|give|go|install|leave|move|name|put|read|replace|restore"
    r"|resume|run|score|set|start|take|try|use|wait)\b"
)
"""A message with one of these says what was expected, or names a flag, a command or an action."""
MARKS = " :,;.()"
SHORT = 10
"""Characters; a shorter piece of a message, such as a colon between two values, is nothing to
search for."""

SELF_EXPLANATORY: dict[str, str] = {
    "BENCH_MAX_WORKERS:": "the reason follows",
    ": ... is missing": "what was expected of the file comes first, and the list that it lacks",
    "has no subset": "the subsets follow, the nearest first",
    "is no command": "the commands follow, the nearest first",
    "settings: no setting": "the settings follow, the nearest first",
}
"""A message that is neither on the page nor advice -> why a user needs no page for it."""


def pieces_of(node: ast.expr) -> list[str]:
    """Return the fixed texts of a message, between the values that are put into it."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.JoinedStr(values=values):
            return [piece for value in values for piece in pieces_of(value)]
        case ast.BinOp(left=left, right=right):
            return [*pieces_of(left), *pieces_of(right)]
    return []


def messages_of(source: str) -> Iterator[list[str]]:
    """Yield the fixed texts of each error that is made in a module, as one message."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and node.args:
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name in ERRORS and any(
                len(piece.strip(MARKS)) >= SHORT for piece in pieces_of(node.args[0])
            ):
                yield pieces_of(node.args[0])


def phrases(page: str) -> list[str]:
    """Return what a page quotes of messages, without the parts that vary."""
    quotes = re.findall(r"`([^`\n]+)`", re.sub(r"(?ms)^```.*?^```", "", page))
    return [
        piece.strip(MARKS)
        for quote in quotes
        for piece in quote.split("...")
        if len(piece.strip(MARKS)) >= SHORT
    ]


def is_explained(pieces: list[str], page: str) -> bool:
    """Return whether the page quotes a part of the message, or the message gives advice."""
    message = "...".join(pieces)
    return bool(ADVICE.search(message)) or any(phrase in message for phrase in phrases(page))


def missing(page: str) -> set[str]:
    """Return the messages of the package that neither the page nor their own words explain."""
    texts = [file.read_text(encoding="utf-8") for file in sorted((ROOT / "harness").rglob("*.py"))]
    messages = [pieces for text in texts for pieces in messages_of(text)]
    assert len(messages) > 300
    return {"...".join(pieces).strip() for pieces in messages if not is_explained(pieces, page)}


def test_every_message_is_on_the_page_or_says_what_to_do():
    """A reader who searches for the words on the screen finds them."""
    page = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
    assert missing(page) == set(SELF_EXPLANATORY)


@pytest.mark.slow
def test_message_without_advice_is_missed_on_an_empty_page():
    """So the test above can fail."""
    assert "they cannot be compared" in "".join(missing(""))


@pytest.mark.parametrize(
    ("source", "explained"),
    [
        ('raise BadInput(f"{path}: the moon is full")', False),
        ('raise BadInput(f"{path}: the moon is full: name another night")', True),
        ('raise MachineError("cannot write " + path)', True),
    ],
)
def test_message_is_explained_by_the_page_or_by_its_advice(source, explained):
    """Values that are put into a message are no part of what is looked for."""
    (pieces,) = messages_of(source)
    assert is_explained(pieces, "`cannot write ...`") is explained
