"""Cards of users for pages, the viewer and `show`: by `Benchmark.cards`, or plain ones where it
makes none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import orjson
from msgspec import structs

from harness.benchmark import VALID, Benchmark, Cards, Metric, Task, headline_of, metrics_of
from harness.benchmarks import registry
from harness.benchmarks.records import ODD_SHAPE
from harness.benchmarks.rendering import numbered
from harness.benchmarks.user_code import guarded
from harness.document import Block, Card, Heading, Paragraph, Quote
from harness.model import JSON, Completion
from harness.reporting.report import plain, shown_blocks, with_unit
from harness.scoring import reports
from harness.scoring.reports import Report
from harness.store.run import about

MAX_TEXT = 20_000
"""Characters of a text that are shown."""
NOT_GIVEN = "n/a"
"""The text of a figure that a user does not have (`Metric.text`)."""
BLANK_FIGURES = (NOT_GIVEN, "")


@dataclass(frozen=True, slots=True)
class ReportCards:
    """Make the cards of a run's users.

    `report` is None before there is one, `benchmark` where its code is not available. `posts` is
    whether users' own texts are shown. Users have so many `repeats` each.
    """

    report: Report | None
    benchmark: Benchmark | None
    posts: bool
    repeats: int = 1

    @classmethod
    def of(
        cls,
        report: Report,
        benchmark: Benchmark | None,
        *,
        posts: bool,
    ) -> ReportCards:
        """Without tasks, a benchmark that ships makes what cards it can without its data."""
        if benchmark is None and registry.is_shipped(report.benchmark):
            benchmark = registry.find(report.benchmark)(folder=None)

        if not report.repeats:
            return cls(report, benchmark, posts)

        return cls(report, benchmark, posts, report.repeats.repeats)

    @property
    def _code(self) -> Benchmark | type[Benchmark]:
        return self.benchmark or Benchmark

    @property
    def _cards(self) -> Cards:
        return self._code.cards

    @property
    def _units(self) -> Mapping[str, Metric]:
        if self.report:
            return self.report.units

        return metrics_of(self.benchmark) if self.benchmark else {}

    @property
    def _headline(self) -> Sequence[str]:
        if self.report:
            return self.report.headline

        return headline_of(self.benchmark) if self.benchmark else ()

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the heads of the cards' figures."""
        if self._cards.columns:
            return tuple(self._cards.columns)

        return tuple(f"{name}, {self._units[name].shown_unit}" for name in self._headline)

    def mark(self, kind: str) -> bytes:
        """Return bytes that are in the line of every record with an invalid answer of this kind."""
        return b'"%s":"%s"' % (self._code.records.outcome_field.encode(), kind.encode())

    def repeat(self, data: JSON) -> int:
        """Return which of its user's repeats a record is of; without repeats `repeat` is the
        benchmark's."""
        repeat = data.get("repeat")
        if self.repeats > 1 and isinstance(repeat, int):
            return repeat

        return 1

    def name(self, data: JSON) -> str:
        """Return a record's user, with its repeat if there are several."""
        key = str(data["user_id"])
        if self.repeats > 1:
            key += f" (repeat {self.repeat(data)})"

        return key

    def response_start(self, data: JSON) -> bytes:
        """Return how the lines of the responses of a record's user and repeat begin."""
        # A response's line has these members first, so its user is found without decoding the line.
        return orjson.dumps(about(str(data["user_id"]), self.repeat(data)))[:-1] + b","

    def card(
        self,
        data: JSON,
        task: Task | None,
        replies: Sequence[Completion],
    ) -> Card:
        """Return the card of a record; `task` is None where it is not available, `replies` are in
        order of arrival."""
        with self._guarded(f"user {data['user_id']}, card"):
            data = self._completed(data)
            blocks = self._cards.card(data, task, replies)
            if blocks is not None:
                blocks = reports.checked(blocks)

        if blocks is None:  # the benchmark makes none
            blocks = self._plain(data, replies)

        shown = shown_blocks(blocks, posts=self.posts)

        return Card(self.name(data), self.figures(data), tuple(shown))

    def figures(self, data: JSON) -> tuple[str, ...]:
        """Return a user's figures as text, under `columns`."""
        if self._cards.columns:
            with self._guarded(f"user {data['user_id']}, card figures"):
                return tuple(map(str, self._cards.figures(data)))

        # The metrics of a benchmark with `statistics` of its own may be anything.
        values = data["metrics"] if isinstance(data["metrics"], Mapping) else {}
        texts = []
        for name in self._headline:
            value = values.get(name)
            if not _is_value(value):
                value = None

            texts.append(self._units[name].text(value))

        return tuple(texts)

    def heading(self, card: Card, prefix: str = "") -> Iterator[Block]:
        """Yield the name of a card's user, and its figures; not those that it does not have."""
        yield Heading(f"{prefix}{card.key}")
        figures = zip(self.columns, card.figures, strict=False)
        texts = (f"{name} {figure}" for name, figure in figures if figure not in BLANK_FIGURES)
        yield Paragraph(" · ".join(texts))

    def _plain(self, data: JSON, replies: Sequence[Completion]) -> Iterator[Block]:
        if data["outcome"] != VALID:
            yield Paragraph(f"Invalid answer ({data['outcome']}).")

        yield Paragraph(f"{self._values(data['metrics'])}.")
        if data["answer"] is not None:
            answer = orjson.dumps(data["answer"], option=orjson.OPT_INDENT_2).decode()
            yield Quote("Answer", answer, open=True)

        yield from numbered(replies)

    def _values(self, values: object) -> str:
        """Return a user's values: those of declared metrics with their unit, others as they are
        saved."""
        if not isinstance(values, Mapping):
            return plain(values)

        texts = []
        for name, value in values.items():
            if name in self._units and _is_value(value):
                text = with_unit(self._units[name], value)
            else:
                text = plain(value)

            texts.append(f"{name} {text}")

        return " · ".join(texts)

    @property
    def left_out(self) -> str:
        """Return what users' own texts are called if these are left out; empty if all are shown, or
        there are none."""
        return "" if self.posts else self._cards.private

    def missing(self, tasks: bool) -> str:
        """Return what the cards do not show, and why; `tasks` is whether those are available."""
        if self.benchmark is None:
            return (
                "Cards are plain, without what the benchmark's own code may show: it was not run."
            )

        sentences = []
        if not tasks:
            sentences.append("The tasks were not at hand, so cards lack what only those show.")
        if self._cards.private and not (tasks and self.posts):
            sentences.append(f"{self._cards.private} are left out, but other texts may quote them.")

        return " ".join(sentences)

    def outcomes(self, data: JSON) -> list[str]:
        """Return the outcome of each answer of a user."""
        return [str(outcome) for outcome in self._code.records.outcomes(data)]

    def repaired(self, data: JSON) -> bool:
        return next(iter(self._code.records.repairs(data)), None) is not None

    def example(
        self,
        data: JSON,
        replies: Sequence[Completion],
        kind: str,
    ) -> str | None:
        """Return a reply that made an invalid answer of this kind, None if unknown."""
        with self._guarded(f"user {data['user_id']}, example"):
            if kind not in self._code.records.outcomes(data):
                return None

            return self._cards.example(data, replies, kind)

    def together(self, records: Sequence[JSON]) -> tuple[Block, ...]:
        """Return what only several records show together."""
        with self._guarded("together"):
            return tuple(self._cards.together(list(map(self._completed, records))))

    def _completed(self, data: JSON) -> JSON:
        return self._code.records.completed(data)

    def _guarded(self, about: str) -> AbstractContextManager[None]:
        """Guard an author's code. An odd record of a benchmark that ships is to blame itself: that
        error passes."""
        if self.benchmark is None:
            return nullcontext()

        blamed_on_code = () if self.benchmark.origin else ODD_SHAPE
        return guarded(self.benchmark, about, *blamed_on_code)


def failure(data: JSON) -> Iterator[Block]:
    """Yield what is shown of a user's failure."""
    tries = f", after {data['tries']} tries" if "tries" in data else ""
    yield Paragraph(f"Failed: {data.get('boundary')}: {data.get('kind')}{tries}")
    yield Quote("Detail", str(data.get("detail")), open=True)


def cut(
    block: Block,
    remedy: str,
    length: int = MAX_TEXT,
) -> Block:
    """Return a block with its quoted text cut; `remedy` is where the whole text is."""
    if not isinstance(block, Quote) or len(block.text) <= length:
        return block

    missing = len(block.text) - length
    text = f"{block.text[:length]}\n… ({missing} more characters: {remedy})"

    return structs.replace(block, text=text)


def _is_value(value: object) -> bool:
    """Whether a metric can show this."""
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
