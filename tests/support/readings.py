"""Readings of replies as values that can be compared, those that cannot be used too."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from harness.chat import NOTES
from harness.errors import InvalidReply
from harness.model import Completion

T = TypeVar("T")
P = TypeVar("P")


class Invalid(NamedTuple):
    """An `InvalidReply`; `why` is what a Chinese prompt gives as the reason when the model is asked
    again."""

    kind: str
    why: str
    final: bool = False


def reading_of(read: Callable[[Completion, P], T], completion: Completion, known: P) -> T | Invalid:
    try:
        return read(completion, known)
    except InvalidReply as error:
        return Invalid(
            error.kind, error.why or NOTES["zh"].reasons.get(error.kind, ""), error.final
        )
