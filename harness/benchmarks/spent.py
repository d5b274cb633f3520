"""What a run cost and how long it took, in the words of a report."""

from __future__ import annotations

from harness.benchmarks.records import count
from harness.model import JSON

USAGE = ("prompt_tokens", "completion_tokens", "requests", "untold")
"""What is counted of each user, by the names that records have; a record without `untold` has none."""


def counted(record: JSON) -> dict[str, int]:
    """What a user's record says of it. Raises `ValueError` for what is no count."""
    usage = record.get("usage") or {}
    return {name: count(usage.get(name)) for name in USAGE}


def tokens(usage: JSON) -> str:
    counts = (
        f"{usage['requests']} requests, {usage['prompt_tokens']} prompt tokens, "
        f"{usage['completion_tokens']} completion tokens"
    )
    if not usage["untold"]:
        return f"{counts}."
    return f"{counts}, without those of {usage['untold']} requests for which the endpoint told none."


def session(took: JSON | None, user: str) -> str | None:
    """How close the last session came to its bound (docs/design.md, section 4); None where nothing was played.

    `user` is the benchmark's word for who has a chain of requests.
    """
    if not took or took["ratio"] is None:
        return None
    others = took.get("runs", 1) - 1  # several models at one account share its slots, and so one bound
    shared = f", with those of {others} more at the same account" if others else ""
    return (
        f"The last session took {took['seconds']:.1f} s, {took['ratio']:.2f} times the least that its requests "
        f"allow ({took['lower_bound_seconds']:.1f} s: the larger of all their time over {took['slots']:g} slots, "
        f"and the longest {user}'s chain{shared})."
    )
