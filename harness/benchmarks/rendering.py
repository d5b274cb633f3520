"""What pages quote: names of runs, and replies in their own words."""

from __future__ import annotations

from collections.abc import Iterator

from harness.benchmarks.reports import Report
from harness.model import Completion, Quote


def called(report: Report) -> str:
    """Return the model of a report, after the run's name where that is not the model's own."""
    name, model = report.name, report.model
    return model if name == model.rstrip("/").rsplit("/", 1)[-1] else f"{name}: {model}"


def quotes(completion: Completion, label: str) -> Iterator[Quote]:
    """Return a completion as it came, the thoughts before it first."""
    ended = "" if completion.finish_reason in (None, "stop") else f" (ended by {completion.finish_reason})"
    if completion.reasoning:
        yield Quote(f"Thoughts before {label.lower()}", completion.reasoning)
    yield Quote(f"{label}{ended}", completion.shown)
