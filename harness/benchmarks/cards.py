"""Pages of reports and cards of users: a benchmark's own, else derived ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.benchmark import Benchmark, Metric
from harness.benchmarks import overview, registry
from harness.benchmarks.rendering import reply_text
from harness.benchmarks.user_code import guarded
from harness.model import JSON, Block, Card, Cards, Completion, Page


def page_of(data: JSON) -> Page:
    """Return the page of a report. Raise one of `ODD_SHAPE` for one that is none."""
    own = _shipped(data)
    return (own.page(data) if own else None) or overview.page(data)


def cards_of(benchmark: Benchmark | None, data: JSON, posts: bool) -> Cards:
    """Return what makes the cards of a report's users; `benchmark` is None where it is not at hand."""
    cls = type(benchmark) if benchmark is not None else _shipped(data)
    own = cls.cards(benchmark, data["run"], posts) if cls else None
    return own or DerivedCards(benchmark, overview.metrics(data), tuple(data["headline"]), data["user"])


def _shipped(data: JSON) -> type[Benchmark] | None:
    name = data["benchmark"]
    return registry.find(name) if registry.is_shipped(name) else None


@dataclass(frozen=True, slots=True)
class DerivedCards:
    """Cards by `Benchmark.card`, or of values, answer and replies where it makes none."""

    benchmark: Benchmark | None
    units: Mapping[str, Metric]
    headline: tuple[str, ...]
    user: str

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(f"{name}, {self.units[name].shown_unit}" for name in self.headline)

    def mark(self, kind: str) -> bytes:
        return b'"outcome":"%s"' % kind.encode()

    def card(self, data: JSON, task: Any, replies: Sequence[Completion]) -> Card:
        values = data["metrics"] if isinstance(data["metrics"], Mapping) else {}  # of own `statistics` they are any
        shown = {name: value for name, value in values.items() if overview.is_value(value)}
        figures = tuple(self.units[name].text(shown.get(name)) for name in self.headline)
        return Card(str(data["user_id"]), figures, tuple(self._blocks(data, task, replies)))

    def _blocks(self, data: JSON, task: Any, replies: Sequence[Completion]) -> Iterable[Block]:
        if self.benchmark is not None:
            with guarded(self.benchmark, f"user {data['user_id']}, card"):
                own = self.benchmark.card(data, task, replies)
                if own is not None:
                    return [overview.restored(overview.saved(block)) for block in own]
        return overview.own_card(data, replies, self.units)

    def missing(self, tasks: bool) -> str:
        if self.benchmark is not None:
            return ""
        return "Cards are plain, without what the benchmark's own code may show: it was not run."

    def example(self, data: JSON, replies: Sequence[Completion], kind: str) -> str | None:
        return reply_text(replies[-1]) if replies and data["outcome"] == kind else None

    def together(self, records: Sequence[JSON]) -> tuple[Block, ...]:
        return ()
