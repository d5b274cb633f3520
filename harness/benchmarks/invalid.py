"""Invalid answers in words: they are scored as empty, so whoever reads a score must see how many there are."""

from __future__ import annotations

from collections.abc import Mapping


def sentence(invalid: Mapping[str, int], answers: int, noun: str) -> str:
    """`12 of 100 days are invalid (no_day 10, refusal 2)`, the most frequent kind first; empty where none is."""
    total = sum(invalid.values())
    if not total:
        return ""
    ranked = sorted(invalid.items(), key=lambda item: (-item[1], item[0]))
    kinds = ", ".join(f"{kind} {count}" for kind, count in ranked)
    return f"{total} of {answers} {noun} {'is' if total == 1 else 'are'} invalid ({kinds})"
