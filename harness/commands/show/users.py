"""A user of a saved run as blocks: the requests and replies in their order, then what the page shows of the user.

Users' own texts are private, and prompts quote them. Without `private` neither is among the blocks, and replies are
those of the user's card, which does not name the user.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import orjson

from harness.analysis import plays
from harness.analysis.plays import Plays, conversation
from harness.analysis.saved_runs import SavedRun
from harness.benchmark import Benchmark, Task
from harness.benchmarks.records import read_of
from harness.document import Block, Heading, Paragraph, Table
from harness.engine.files import index_file
from harness.errors import BadInput, HarnessError
from harness.model import JSON, Completion
from harness.reporting.cards import ReportCards
from harness.reporting.report_files import loaded
from harness.scoring.reports import Report
from harness.store import log
from harness.store.run import about, completion_of
from harness.store.tasks import TaskIndex
from harness.ui.streams import tell
from harness.ui.words import plural

REQUESTS, BLOCKS = 10, 100
"""Requests of a user, and blocks of the card, that are shown unless all are wanted."""

NOTHING = "n/a"
"""The text of a figure that a user does not have (`Metric.text`)."""


@dataclass(frozen=True, slots=True)
class ShowOptions:
    """What is shown: all requests and blocks or the first ones, and whether private texts; and where tasks are."""

    every: bool
    private: bool
    tasks: Path | None
    results: Path


class Users:
    """The users of a run; `opened` is None without its tasks. `private` is what their own texts are called if these are
    left out, else empty."""

    def __init__(self, run: SavedRun, chosen: ShowOptions, opened: tuple[Benchmark, TaskIndex] | None) -> None:
        self._run, self._chosen, self._opened = run, chosen, opened
        self._report = _report(run)
        self._cards = ReportCards.of(self._report, opened and opened[0], posts=chosen.private)
        self.private = self._cards.left_out

    def listed(self, most: int) -> Iterator[Block]:
        """Yield a table of the first users with their figures."""
        rows = list[tuple[str, ...]]()
        for _, data in log.objects(self._run.files.results):
            if len(rows) == most:
                break
            with read_of(str(data.get("user_id"))):
                rows.append((self._name(data), *self._cards.card(data, None, ()).figures))
        scored = self._report.coverage.scored_users
        yield Heading(f"{self._run.label}: {plural(scored, self._report.user)}")
        user, *columns = zip((self._report.user, *self._cards.columns), *rows, strict=True)
        kept = [column for column in columns if {*column[1:]} != {NOTHING}]  # a figure of all users is of none alone
        head, *cells = zip(user, *kept, strict=True)
        yield Table(head, tuple(cells))
        if len(rows) < scored:
            yield Paragraph(f"These are the first {len(rows)}; --limit N shows more.")

    def record(self, data: JSON, plays: Plays | None) -> Iterator[Block]:
        """Yield the blocks of a record; without `plays` its prompts are not known."""
        played = plays.of(data) if plays else None
        exchanges = played.exchanges if played else ()
        card = self._cards.card(data, self._task(data), [] if exchanges else self._replies(data))
        yield Heading(f"{self._run.label}: {self._report.user} {self._name(data)}")
        figures = zip(self._cards.columns, card.figures, strict=False)
        yield Paragraph(" · ".join(f"{name} {figure}" for name, figure in figures if figure != NOTHING))
        if self.private:
            yield Paragraph(f"{self.private} are private, and prompts quote them: --with-posts shows both.")
        yield from self._first(list(conversation(exchanges)), REQUESTS, "requests")
        yield from self._first([(block,) for block in card.blocks], BLOCKS, "blocks")

    def failures(self, key: str, lines: Sequence[JSON]) -> Iterator[Block]:
        """Yield the failures of a user."""
        if lines:
            yield Heading(f"{self._run.label}: failures of {self._report.user} {key}")
            yield from (Paragraph(f"{of.get('boundary')}: {of.get('kind')}: {of.get('detail')}") for of in lines)

    def _name(self, data: JSON) -> str:
        repeat = f" (repeat {data['repeat']})" if self._run.manifest.repeats > 1 and "repeat" in data else ""
        return f"{data['user_id']}{repeat}"

    def _first(self, groups: Sequence[Sequence[Block]], most: int, what: str) -> Iterator[Block]:
        shown = groups if self._chosen.every else groups[:most]
        yield from (block for group in shown for block in group)
        if len(shown) < len(groups):
            yield Paragraph(f"{len(groups) - len(shown)} more {what}: --full shows them.")

    def _replies(self, data: JSON) -> list[Completion]:
        repeat = data.get("repeat", 1) if self._run.manifest.repeats > 1 else 1
        start = orjson.dumps(about(str(data["user_id"]), repeat))[:-1] + b","
        lines = (line.text for line in log.sound_lines(self._run.files.responses) if line.text.startswith(start))
        return [made for line in lines if (made := completion_of(log.parsed(line)))]

    def _task(self, data: JSON) -> Task | None:
        if self._opened is None:
            return None
        benchmark, index = self._opened
        if (position := index.current(data)) is None:
            return None
        return index.task(benchmark, position, self._run.files.subset)


def of_user(run: SavedRun, chosen: ShowOptions, key: str) -> list[Block]:
    """Return the blocks of a user of a run, none for an unknown one. Without tasks, or trust in the run's code, there
    are fewer, and stderr says why. Raise `BadInput` if the run has no report yet."""
    records, failures = (list(_lines_of(path, key)) for path in (run.files.results, run.files.failures))
    if not records and not failures:
        return []
    with ExitStack() as held:
        users = Users(run, chosen, _tasks(run, chosen, held))
        plays = None if users.private or not records else _plays(run, chosen, held)
        blocks = list[Block]()
        for data in records:
            with read_of(key):
                blocks += users.record(data, plays)
        return [*blocks, *users.failures(key, failures)]


def first(run: SavedRun, chosen: ShowOptions, most: int) -> list[Block]:
    """Return a table of the first users of a run. Raise `BadInput` if the run has no report yet."""
    with ExitStack() as held:
        return list(Users(run, chosen, _tasks(run, chosen, held)).listed(most))


def _tasks(run: SavedRun, chosen: ShowOptions, held: ExitStack) -> tuple[Benchmark, TaskIndex] | None:
    try:
        benchmark = run.as_it_was(chosen.tasks, play=False)
        path = run.tasks(chosen.tasks)
        index = index_file(benchmark, run.files.subset, path, chosen.results, run.manifest.selection)
    except HarnessError as error:
        tell(f"{run.label}: without its tasks ({error})")
        return None
    held.callback(index.close)
    return benchmark, index


def _plays(run: SavedRun, chosen: ShowOptions, held: ExitStack) -> Plays | None:
    try:
        return held.enter_context(plays.opened(run, chosen.tasks, chosen.results))
    except HarnessError as error:
        tell(f"{run.label}: without prompts ({error})")
        return None


def _report(run: SavedRun) -> Report:
    path = run.files.report("json")
    if not path.exists():
        raise BadInput(f"{run.label} has no report yet: `harness report --name {run.name}` makes it")
    try:
        return loaded(path)
    except BadInput as error:
        raise BadInput(f"{path} is {error}") from None


def _lines_of(path: Path, key: str) -> Iterator[JSON]:
    """Yield the objects of a user in a file of the run; only lines with the key are decoded."""
    marks = b'"user_id":' + orjson.dumps(key), b'"user_id":' + os.fsencode(key)  # a benchmark's own may be a number
    for line in log.sound_lines(path):
        if any(mark in line.text for mark in marks) and str((data := log.parsed(line.text)).get("user_id")) == key:
            yield data
