"""What the last replies and the last half minute say of a run: latency, rates, and warnings."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from harness.model import Warned

REPLIES = 512
"""Latency is that of so many last replies: their exact quantiles, whatever shape they have."""

RATE_SECONDS, RATE_STEPS = 30.0, 20
"""Rates are those of the last half minute, or further back where fewer steps than this were done in it."""

WARNINGS = 3
"""Kept of what was found out; of faults, which are many, the last one is, and their kinds are counted."""


class Latency:
    """Seconds on the wire of the last `REPLIES` tries that succeeded; adding one costs some 50 ns."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=REPLIES)
        self.add = self._seconds.append

    @property
    def mean(self) -> float | None:
        return sum(self._seconds) / len(self._seconds) if self._seconds else None

    @property
    def quantiles(self) -> tuple[float, float] | None:
        """Median and 95th percentile; None before the first reply."""
        if not self._seconds:
            return None
        half, most = np.percentile(np.fromiter(self._seconds, np.float64), (50, 95))
        return float(half), float(most)


@dataclass(frozen=True, slots=True)
class Counts:
    """What is done at a moment, in steps and in tokens of prompts and completions."""

    steps: int
    prompt_tokens: int
    completion_tokens: int


class Rates:
    """How fast counts grew of late."""

    def __init__(self, now: float, counts: Counts) -> None:
        self._history = deque([(now, counts)])

    def of(self, now: float, counts: Counts) -> tuple[float, float, float]:
        """Steps, prompt tokens and completion tokens a second."""
        history = self._history
        history.append((now, counts))
        while len(history) > 2 and self._is_enough(now, counts, history[1]):
            history.popleft()
        start, before = history[0]
        if now <= start:
            return 0.0, 0.0, 0.0
        seconds = now - start
        return (
            (counts.steps - before.steps) / seconds,
            (counts.prompt_tokens - before.prompt_tokens) / seconds,
            (counts.completion_tokens - before.completion_tokens) / seconds,
        )

    @staticmethod
    def _is_enough(now: float, counts: Counts, since: tuple[float, Counts]) -> bool:
        return now - since[0] > RATE_SECONDS and counts.steps - since[1].steps > RATE_STEPS


class Warnings:
    """The last few different ones, each with when it last came and how many times it has in a row of those kept."""

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
