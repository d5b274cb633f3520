"""The last half minute of a run: rates, and warnings."""

from __future__ import annotations

from collections import deque

from harness.model import Warned

RATE_SECONDS, RATE_STEPS = 30.0, 20
"""Rates cover the last half minute, or more where fewer steps than this were done in it."""

WARNINGS = 3
"""Findings kept. Of faults, which are many, the last one is kept, and all are counted by kind."""

Counts = tuple[int, int, int]
"""What is done at a moment: steps, and tokens of prompts and of completions."""


class Rates:
    """How fast counts have grown recently."""

    def __init__(self, now: float, counts: Counts) -> None:
        self._history = deque([(now, counts)])

    def of(self, now: float, counts: Counts) -> tuple[float, float, float]:
        """Return steps, prompt tokens and completion tokens a second."""
        history = self._history
        history.append((now, counts))
        while len(history) > 2:
            second, (steps, _, _) = history[1]
            if now - second <= RATE_SECONDS or counts[0] - steps <= RATE_STEPS:
                break
            history.popleft()
        start, before = history[0]
        if now <= start:
            return 0.0, 0.0, 0.0
        steps_rate, into, out = [
            (count - earlier) / (now - start) for count, earlier in zip(counts, before, strict=True)
        ]
        return steps_rate, into, out


class Warnings:
    """The last few different warnings, each with its last time and how often it came while it was kept."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: dict[str, tuple[float, int]] = {}

    def add(self, now: float, text: str) -> None:
        _, times = self._kept.pop(text, (now, 0))
        self._kept[text] = now, times + 1
        if len(self._kept) > self._most:
            del self._kept[next(iter(self._kept))]

    def recent(self, now: float) -> tuple[Warned, ...]:
        """Return the warnings, the newest first."""
        return tuple(Warned(text, now - last, times) for text, (last, times) in reversed(self._kept.items()))
