"""Check saved records that the harness may not have written: a checksum shows that a line is
unchanged, no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from harness.benchmarks.user_code import described
from harness.errors import BadInput, in_brief
from harness.model import JSON, LARGEST_COUNT, Record

ODD_SHAPE = (
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)
"""What code that relies on a record's shape raises where the shape is another."""

REMEDY = "take its line out of the results file, and the user will be played again"
LARGEST_SUM = 1000 * LARGEST_COUNT
"""Largest count of a user, who has fewer than a thousand replies."""

Result = TypeVar("Result")


def text(value: object) -> str:
    """Return a name that is counted. Raise `TypeError` for anything else: a table of counts would
    not be written."""
    if type(value) is not str:
        raise TypeError(f"expected a name, got {in_brief(value)}")
    return value


def count(value: object) -> int:
    """Return what is added up; nothing counts as 0. Raise `ValueError` for what would overflow a
    sum of many users."""
    if value is None:
        return 0
    if type(value) is not int or not 0 <= value < LARGEST_SUM:
        raise ValueError(f"expected a whole number from 0, got {in_brief(value)}")
    return value


def in_form_of(saved: object, measured: object) -> Any:
    """Return what was measured now without the members that a saved record, of an earlier version,
    does not have."""
    if isinstance(saved, dict) and isinstance(measured, dict):
        shared = saved.keys() & measured.keys()
        return {name: in_form_of(saved[name], measured[name]) for name in shared}
    if isinstance(saved, list) and isinstance(measured, list) and len(saved) == len(measured):
        return [in_form_of(*pair) for pair in zip(saved, measured, strict=True)]
    return measured


def begins_user(data: JSON, previous: JSON) -> bool:
    """Return whether a record is of another user than the previous record, and not another repeat
    of the same."""
    return "repeat" not in data or data["user_id"] != previous["user_id"]


def user_starts(records: Sequence[JSON]) -> list[int]:
    """Return where each user's records begin; those of a user's repeats follow one another."""
    return [
        index
        for index, data in enumerate(records)
        if index == 0 or begins_user(data, records[index - 1])
    ]


@contextmanager
def read_of(key: str, remedy: str = REMEDY) -> Iterator[None]:
    """Turn errors by an odd shape of a user's record into `BadInput`, with what the user can do."""
    try:
        yield
    except ODD_SHAPE as error:
        raise BadInput(
            f"user {key}: the saved record has another shape than this harness gives it"
            f" ({described(error)}): {remedy}"
        ) from None


def made_of(
    make: Callable[[Sequence[Record]], Result],
    shard: Sequence[Record],
    remedy: str = REMEDY,
) -> Result:
    """Return what is made of several records, as the scores of a shard.

    Raise `BadInput` naming the first user whose record is odd.
    """
    try:
        return make(shard)
    except ODD_SHAPE:
        # Only to find the user: a shard is one computation over all its records.
        for record in shard:
            with read_of(record.key, remedy):
                make([record])

        raise
