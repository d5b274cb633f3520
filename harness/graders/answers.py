"""Read short answers: the letter of a choice, a number, or a text that matches one of the truths.

A reply that has no answer, or two, raises `InvalidReply`, so that the model is asked again. A guess
would be a score that nobody gave.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Collection

from harness.errors import InvalidReply

CUE = r"(?:answer|choice|option|答案|选项|选择)(?:\s+is|是|为)?\s*:?\s*"
"""What comes before the letter in a sentence; punctuation is in its ASCII form by then."""
NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?")


def choice_letter(text: str, letters: str = "ABCD") -> str:
    """Return the letter of the choice that a reply takes.

    It is all of the reply (`B.`), or follows the word answer (`The answer is (B)`, `答案：B`), or
    is the only one in bold, in brackets or in a box. Raise `InvalidReply` for a reply without one,
    or with two.
    """
    plain = unicodedata.normalize("NFKC", text).strip()
    letter = f"([{re.escape(letters)}])"
    # A letter alone comes first, then one behind a cue: in prose "A" is an article, and "I" a
    # person.
    patterns = (
        rf"^\W*{letter}\W*$",
        rf"(?i:{CUE})(?:\W|\\boxed)*{letter}(?![A-Za-z'’])",
        rf"(?:\*\*|\\boxed\{{|\(){letter}(?:\*\*|\}}|\))",
    )
    for pattern in patterns:
        matches: set[str] = set(re.findall(pattern, plain))
        if len(matches) == 1:
            return matches.pop()
        if matches:
            break
    raise InvalidReply("no_choice", f"expected one letter of {', '.join(letters)}")


def exact_match(answer: str, truths: str | Collection[str]) -> float:
    """Return 1 if an answer, without white space around it, is one of the truths, else 0."""
    accepted = [truths] if isinstance(truths, str) else truths
    return float(answer.strip() in accepted)


def number_in(text: str) -> float:
    """Return the last number of a text, which is where models give their result. Raise
    `InvalidReply` without one."""
    numbers = NUMBER.findall(unicodedata.normalize("NFKC", text))
    if not numbers:
        raise InvalidReply("no_number", "expected a number")
    number = float(numbers[-1].replace(",", ""))
    if not math.isfinite(number):
        raise InvalidReply("no_number", "expected a number of usual size")
    return number


def numeric_match(answer: float, truth: float, tolerance: float = 0.0) -> float:
    """Return 1 if an answer differs from the truth by at most a tolerance, in the truth's unit,
    else 0."""
    return float(abs(answer - truth) <= tolerance)
