"""What pages of all benchmarks quote: names of runs, and replies in their own words."""

from __future__ import annotations

from collections.abc import Iterator

from harness.model import JSON, Completion, Quote


def called(data: JSON) -> str:
    """The model of a report, after the run's name where that is not the model's own."""
    name, model = str(data["name"]), str(data["model"])
    return model if name == model.rstrip("/").rsplit("/", 1)[-1] else f"{name}: {model}"


def reply_text(completion: Completion) -> str:
    """The text of a completion, or what there is instead."""
    return completion.text or completion.refusal or f"(no text; finish_reason {completion.finish_reason})"


def quotes(completion: Completion, label: str) -> Iterator[Quote]:
    """A completion as it came, the thoughts before it first."""
    ended = "" if completion.finish_reason in (None, "stop") else f" (ended by {completion.finish_reason})"
    if completion.reasoning:
        yield Quote(f"Thoughts before {label.lower()}", completion.reasoning)
    yield Quote(f"{label}{ended}", reply_text(completion))
