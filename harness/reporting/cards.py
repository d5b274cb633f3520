"""Cards of users for pages, by `Benchmark.cards`, or of values, answer and replies where it makes none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import orjson

from harness.benchmark import VALID, Benchmark, Cards, Task
from harness.benchmarks import registry
from harness.benchmarks.records import ODD_SHAPE
from harness.benchmarks.rendering import quotes
from harness.benchmarks.user_code import guarded
from harness.document import Block, Card, Paragraph, Quote
from harness.model import JSON, Completion
from harness.reporting.report import plain, shown_blocks, with_unit
from harness.scoring import reports
from harness.scoring.reports import Report


@dataclass(frozen=True, slots=True)
class ReportCards:
    """Make the cards of a report's users. `benchmark` is None where its code is not available.

    `posts` is whether users' own texts are shown.
    """

    report: Report
    benchmark: Benchmark | None
    posts: bool

    @classmethod
    def of(cls, report: Report, benchmark: Benchmark | None, *, posts: bool) -> ReportCards:
        """Without tasks, a benchmark that ships makes what cards it can without its data."""
        if benchmark is None and registry.is_shipped(report.benchmark):
            benchmark = registry.find(report.benchmark)(folder=None)
        return cls(report, benchmark, posts)

    @property
    def _own(self) -> Cards:
        return (self.benchmark or Benchmark).cards

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the heads of the cards' figures."""
        if self._own.columns:
            return tuple(self._own.columns)
        return tuple(f"{name}, {self.report.units[name].shown_unit}" for name in self.report.headline)

    def mark(self, kind: str) -> bytes:
        """Return bytes that are in the line of every record with an invalid answer of this kind."""
        field = (self.benchmark or Benchmark).records.outcome_field
        return b'"%s":"%s"' % (field.encode(), kind.encode())

    def card(self, data: JSON, task: Task | None, replies: Sequence[Completion]) -> Card:
        """Return the card of a record; `task` is None where it is not available, `replies` are in order of arrival."""
        with self._guarded(f"user {data['user_id']}, card"):
            data = self._completed(data)
            own = self._own.card(data, task, replies)
            blocks = None if own is None else reports.checked(own)
        made = self._plain(data, replies) if blocks is None else blocks
        return Card(str(data["user_id"]), self._figures(data), tuple(shown_blocks(made, posts=self.posts)))

    def _figures(self, data: JSON) -> tuple[str, ...]:
        if self._own.columns:
            with self._guarded(f"user {data['user_id']}, card figures"):
                return tuple(self._own.figures(data))
        units = self.report.units
        values = data["metrics"] if isinstance(data["metrics"], Mapping) else {}  # of own `statistics` they are any
        shown = {name: value for name, value in values.items() if _is_value(value)}
        return tuple(units[name].text(shown.get(name)) for name in self.report.headline)

    def _plain(self, data: JSON, replies: Sequence[Completion]) -> Iterator[Block]:
        if data["outcome"] != VALID:
            yield Paragraph(f"Invalid answer ({data['outcome']}).")
        yield Paragraph(f"{self._values(data['metrics'])}.")
        if data["answer"] is not None:
            answer = orjson.dumps(data["answer"], option=orjson.OPT_INDENT_2).decode()
            yield Quote("Answer", answer, open=True)
        for order, completion in enumerate(replies, 1):
            yield from quotes(completion, f"Reply {order}" if len(replies) > 1 else "Reply")

    def _values(self, values: object) -> str:
        """Return a user's values: those of declared metrics with their unit, others as they are saved."""
        if not isinstance(values, Mapping):
            return plain(values)
        units = self.report.units
        return " · ".join(
            f"{name} {with_unit(units[name], value) if name in units and _is_value(value) else plain(value)}"
            for name, value in values.items()
        )

    @property
    def left_out(self) -> str:
        """Return what users' own texts are called if these are left out; empty if all are shown, or there are none."""
        return "" if self.posts else self._own.private

    def missing(self, tasks: bool) -> str:
        """Return what the cards do not show, and why; `tasks` is whether those are available."""
        if self.benchmark is None:
            return "Cards are plain, without what the benchmark's own code may show: it was not run."
        found = [] if tasks else ["The tasks were not at hand, so cards lack what only those show."]
        if self._own.private and not (tasks and self.posts):
            found.append(f"{self._own.private} are left out, but other texts may quote them.")
        return " ".join(found)

    def example(self, data: JSON, replies: Sequence[Completion], kind: str) -> str | None:
        """Return a reply that made an invalid answer of this kind, None if unknown."""
        with self._guarded(f"user {data['user_id']}, example"):
            known = kind in (self.benchmark or Benchmark).records.outcomes(data)
            return self._own.example(data, replies, kind) if known else None

    def together(self, records: Sequence[JSON]) -> tuple[Block, ...]:
        """Return what only several records show together."""
        with self._guarded("together"):
            return tuple(self._own.together([self._completed(data) for data in records]))

    def _completed(self, data: JSON) -> JSON:
        return (self.benchmark or Benchmark).records.completed(data)

    def _guarded(self, about: str) -> AbstractContextManager[None]:
        """Guard an author's code. An odd record of a benchmark that ships is to blame itself: that error passes."""
        if self.benchmark is None:
            return nullcontext()
        return guarded(self.benchmark, about, *(() if self.benchmark.origin else ODD_SHAPE))


def _is_value(value: object) -> bool:
    """Whether a metric can show this."""
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
