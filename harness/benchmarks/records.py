"""Saved records that are not as the harness writes them: a checksum says that nothing happened to a line, no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from harness.errors import BadInput
from harness.model import Record

ODD_SHAPE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What code that relies on a record's shape ends in where it has another."""

Made = TypeVar("Made")


@contextmanager
def read_of(key: str) -> Iterator[None]:
    """What reads the record of a user: an odd shape of it becomes `BadInput`."""
    try:
        yield
    except ODD_SHAPE as error:
        raise BadInput(
            f"user {key}: the saved record has another shape than this harness gives it "
            f"({type(error).__name__}: {error}): take its line out of the results file, and the user is owed again"
        ) from None


def made_of(make: Callable[[Sequence[Record]], Made], shard: Sequence[Record]) -> Made:
    """What is made of several records, as the scores of a shard.

    Raises `BadInput` naming the first user whose record is odd.
    """
    try:
        return make(shard)
    except ODD_SHAPE:
        for record in shard:
            with read_of(record.key):
                make([record])
        raise
