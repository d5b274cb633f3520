"""What an endpoint sees while a client is at work, several times a second."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from bench.processes import stats


@dataclass(frozen=True, slots=True)
class Sample:
    """Counts since the endpoint began; `seconds` since watching began."""

    seconds: float
    requests: int
    completed: int
    rejected: int
    in_flight: int

    @classmethod
    def of(cls, seconds: float, seen: dict[str, Any]) -> Sample:
        return cls(
            seconds, seen["requests"], seen["completed"], seen["rejected"], seen["in_flight"]
        )


@contextmanager
def watching(url: str, every: float) -> Iterator[list[Sample]]:
    """Return a list that grows by a sample every so many seconds."""
    samples: list[Sample] = []
    over = threading.Event()
    began = time.monotonic()

    def look() -> None:
        while not over.wait(every):
            seen = stats(url)
            samples.append(Sample.of(time.monotonic() - began, seen))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()


def steady_rate(samples: Sequence[Sample], total: int) -> float | None:
    """Answers a second between the first fifth of `total` and the last, so without ramp, tail,
    index and rewrite.

    None where the run was too short to be seen at least twice in between.
    """
    between = [sample for sample in samples if 0.2 * total <= sample.completed <= 0.8 * total]
    if len(between) < 2:
        return None
    first, last = between[0], between[-1]
    return (last.completed - first.completed) / (last.seconds - first.seconds)
