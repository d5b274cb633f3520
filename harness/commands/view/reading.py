"""A folder of results as the viewer reads it: nothing is written, and no code of a run is executed.

Of runs of benchmarks that ship, users are shown by the benchmark's own cards; of all others from
what their records have. Users' own texts, and the prompts that quote them, are read only if they
are asked for, and only of runs that this user made or whose tasks folder this user named.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

from harness.analysis.imported import imported
from harness.analysis.plays import Exchange, conversation, transcript
from harness.analysis.saved_runs import SavedRun
from harness.benchmark import VALID, Benchmark, Task
from harness.benchmarks import registry, tasks
from harness.benchmarks.records import ODD_SHAPE, read_of
from harness.commands.view.index import (
    Described,
    Facts,
    LineIndex,
    last_lines,
    lines_beginning,
    opened,
)
from harness.commands.view.interim import Interim, interim
from harness.document import Block, Chart, Heading, Paragraph, Series
from harness.engine import control_calls as calls
from harness.errors import BadInput, HarnessError
from harness.model import JSON, Snapshot, Where
from harness.options.plan import sampling_again
from harness.reporting import report_files
from harness.reporting.cards import ReportCards, cut, failure, numbered
from harness.scoring.reports import Report
from harness.store import log
from harness.store.files import RunFiles, runs
from harness.store.jsonl import elements, plain_lines
from harness.store.lock import held
from harness.store.manifest import RUNNING, Manifest, load
from harness.store.run import completion_of
from harness.store.tasks import line_digest

T = TypeVar("T")
UNREADABLE = "unreadable line"
MAX_REPLIES = 1000
"""Replies of a user that are shown."""
REPLIES_READ = 1 << 32
"""Bytes of a responses file in which a user's replies are looked for: a page takes some seconds at
most."""
NOT_ALL_READ = (
    "The responses file is very large, and only its beginning is looked at here: `harness show`"
    " reads all of it."
)
DAMAGED = "A line about this user is damaged, or too long to be shown."
PAUSE_SECONDS = 60.0
"""Between two lines of a log, which come every ten seconds: nothing ran meanwhile."""
TIMES = (("hours", 3600), ("minutes", 60), ("seconds", 1))
HISTORY = 1 << 22
"""Bytes of the end of a run's log that curves are drawn from."""

SNAPSHOT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Chosen:
    """What is shown: a folder of `results`, users' own `posts` or not, with the `tasks` folder,
    None for each run's."""

    results: Path
    posts: bool = False
    tasks: Path | None = None


def stamp(path: Path) -> object:
    """Return what changes with a file's content; None for a file that is not there."""
    try:
        state = path.stat()
    except (OSError, ValueError):
        return None
    return state.st_ino, state.st_mtime_ns, state.st_size


class Progress(Struct, frozen=True):
    """What curves show of a line that a playing run adds to its log (`control`); None where it is
    unknown."""

    time: float
    scores: dict[str, float | None] = {}
    units: dict[str, str | None] = {}
    rate: float | None = None
    latency: tuple[float, float] | None = None
    limit: float | None = None
    in_flight: float | None = None
    cost: dict[str, float] = {}


class Cached(Generic[T]):
    """What was made of a file, made again once that has changed. A file that is missing or odd has
    a `problem`."""

    def __init__(self, path: Path, make: Callable[[Path], T | None]) -> None:
        self._path, self._make = path, make
        self._stamp: object = ()
        self.value: T | None = None
        self.problem = ""

    def now(self) -> T | None:
        if (now := stamp(self._path)) != self._stamp:
            self._stamp, self.value, self.problem = now, None, ""
            try:
                self.value = self._make(self._path) if now else None
            except HarnessError as error:
                self.problem = str(error)
        return self.value


class Viewed:
    """One run on one subset, or results of another program."""

    def __init__(self, files: RunFiles, chosen: Chosen) -> None:
        self.files, self.chosen = files, chosen
        self.users, self.failures = LineIndex(files.results), LineIndex(files.failures)
        self._manifest = Cached[Manifest](files.manifest, load)
        self._report = Cached[Report](files.report("json"), report_files.loaded)
        self._facts = Facts(self.users)
        self._interim: Interim | None = None
        self._asked = -math.inf
        self._snapshot: Snapshot | None = None

    @property
    def name(self) -> str:
        return self.files.folder.name

    @property
    def subset(self) -> str:
        return self.files.subset

    @property
    def manifest(self) -> Manifest | None:
        return self._manifest.now()

    @property
    def report(self) -> Report | None:
        return self._report.now()

    @property
    def report_so_far(self) -> Report | None:
        """Return the report, of a run without one that of its records so far; None if these cannot
        be scored."""
        manifest = self.manifest
        if (report := self.report) or manifest is None or self.shipped is None:
            return report
        self.users.advance()
        if self._interim is None or self._interim.generation is not self.users.generation:
            self._interim = interim(SavedRun(self.files, manifest), self.users)
        try:
            return self._interim.report() if self._interim else None
        except HarnessError:
            return None

    @property
    def problem(self) -> str:
        """Return why manifest or report cannot be read, empty if they can."""
        self.manifest, self.report  # noqa: B018
        return self._manifest.problem or self._report.problem

    @property
    def benchmark(self) -> str:
        manifest, report = self.manifest, self.report
        return manifest.identity["benchmark"] if manifest else report.benchmark if report else ""

    @property
    def model(self) -> str:
        manifest, report = self.manifest, self.report
        return manifest.identity["model"] if manifest else report.model if report else ""

    @property
    def state(self) -> str:
        manifest = self.manifest
        if manifest is None:
            return "scored" if self.report else "not scored"
        if manifest.state != RUNNING:
            return manifest.state
        return RUNNING if held(self.files.lock, time.time) else "died"

    @property
    def snapshot(self) -> Snapshot | None:
        """Return the state of a run that is being played, None if its process does not give it."""
        if time.monotonic() - self._asked > SNAPSHOT_SECONDS:
            self._snapshot = self._current() if self.state == RUNNING else None
            self._asked = time.monotonic()
        return self._snapshot

    def _current(self) -> Snapshot | None:
        try:
            with calls.connected(self.files, SNAPSHOT_SECONDS) as call:
                snapshots = call.snapshots()[1]
        except HarnessError:
            return None
        mine = [one for one in snapshots if any(of.subset == self.subset for of in one.subsets)]
        return next((one for one in mine if one.name == self.name), None)

    @cached_property
    def shipped(self) -> Benchmark | None:
        """Return the benchmark without its data, None for one that does not ship."""
        try:
            return (
                registry.find(self.benchmark)(folder=None)
                if registry.is_shipped(self.benchmark)
                else None
            )
        except HarnessError:
            return None

    @property
    def user(self) -> str:
        """Return the word for a user."""
        report = self.report
        return report.user if report else (self.shipped or Benchmark).about.user

    @property
    def repeats(self) -> int:
        manifest = self.manifest
        return manifest.repeats if manifest else 1

    # Users

    @property
    def cards(self) -> ReportCards:
        return ReportCards(self.report, self.shipped, self.chosen.posts, self.repeats)

    def facts(self, seconds: float) -> Sequence[Described]:
        """Return what users can be selected by, of those that are read so far."""
        return self._facts.now(partial(_described, self.cards), seconds)

    @property
    def outcomes(self) -> list[str]:
        """Return the outcomes that users have, as far as they are known."""
        report = self.report
        known = list(report.diagnostics.invalid) if report else []
        return list(
            dict.fromkeys([VALID, *known, *[described.outcome for described in self.facts(0.0)]])
        )

    def row(self, number: int, data: JSON | None) -> tuple[str, ...]:
        """Return a user's name, outcome and figures."""
        described = _described(self.cards, data)
        repaired = ", repaired" if described.is_repaired else ""
        return (
            self._name(number, data),
            f"{described.outcome}{repaired}",
            *_figures(self.cards, data),
        )

    def failed_row(self, number: int, data: JSON | None) -> tuple[str, ...]:
        why = f"{data.get('boundary')}: {data.get('kind')}" if data else UNREADABLE
        return self._name(number, data), why

    def _name(self, number: int, data: JSON | None) -> str:
        return self.cards.name(data) if data and "user_id" in data else f"line {number + 1}"

    def blocks_of(self, key: str) -> list[Block]:
        """Return the blocks of all records and failures of a user."""
        self.users.advance()
        self.failures.advance()
        blocks = list[Block]()
        for _, data in self.users.objects(self.users.numbers_of(key)):
            blocks += self._blocks(data) if data else [Paragraph(DAMAGED)]
        for _, data in self.failures.objects(self.failures.numbers_of(key)):
            blocks += [Heading("Failure"), *failure(data)] if data else []
        return [cut(block, "`harness show --full` shows them") for block in blocks]

    def _blocks(self, data: JSON) -> list[Block]:
        """Return what is shown of a record: requests if posts are, then the card."""
        cards, blocks = self.cards, list[Block]()
        task, exchanges, why = self._private(data) if self.chosen.posts else (None, (), "")
        blocks += [Paragraph(why)] if why else []
        with opened(self.files.responses) as responses:
            if responses and os.fstat(responses.fileno()).st_size > REPLIES_READ:
                blocks.append(Paragraph(NOT_ALL_READ))
        blocks += [block for request in conversation(exchanges) for block in request]
        completions = () if exchanges else map(completion_of, self._reply_lines(data))
        replies = [completion for completion in completions if completion]
        try:
            with read_of(str(data["user_id"])):
                card = cards.card(data, task, replies)
        except HarnessError as error:
            shown = () if cards.left_out else numbered(replies)
            return [Heading(cards.name(data)), *blocks, Paragraph(str(error)), *shown]
        return [*cards.heading(card), *blocks, *card.blocks]

    def _reply_lines(self, data: JSON) -> list[JSON]:
        lines = lines_beginning(
            self.files.responses, self.cards.response_start(data), MAX_REPLIES, REPLIES_READ
        )
        return [log.parsed(line) for line in lines if log.sound(line)]

    # Private texts

    def _private(self, data: JSON) -> tuple[Task | None, Sequence[Exchange], str]:
        """Return the task and the exchanges of a record's user, or why they are not known."""
        try:
            benchmark = self._playable
            task = self._task(benchmark, data)
            if task is None:
                return (
                    None,
                    (),
                    (
                        "The task of this user is not in the tasks file any more, so no prompt is"
                        " shown."
                    ),
                )
            sampling, lines = sampling_again(self._saved.manifest), self._reply_lines(data)
            played = asyncio.run(
                transcript(benchmark, sampling, task, self.cards.repeat(data), lines, data)
            )
        except HarnessError as error:
            return None, (), f"No prompts: {error}"
        return (
            task,
            played.exchanges if played else (),
            "" if played else "The saved replies do not give this record.",
        )

    @cached_property
    def _saved(self) -> SavedRun:
        manifest = self.manifest
        if manifest is None:
            raise BadInput("another program's results have none")
        return SavedRun(self.files, manifest)

    @cached_property
    def _playable(self) -> Benchmark:
        """Return the benchmark on the run's own data. Raise `BadInput` where that would execute
        code."""
        saved = self._saved
        if self.shipped is None or saved.has_code:
            raise BadInput("playing this run again would execute its code: `harness show` does")
        return saved.as_it_was(self.chosen.tasks, play=True)

    def _task(self, benchmark: Benchmark, data: JSON) -> Task | None:
        path, key = self._saved.tasks(self.chosen.tasks), str(data["user_id"])
        mark, read = (
            key.encode("utf-8", "replace"),
            elements if path.suffix == ".json" else plain_lines,
        )
        with opened(path) as file:
            for line, _, number in read(file, hashlib.sha256()) if file else ():
                if mark in line and line_digest(line) == data.get("task"):
                    return tasks.parse(benchmark, line, Where(str(path), number), self.subset)
        return None

    # Over time

    def curves(self) -> list[Chart]:
        """Return scores, speed, latency, limit and cost over the time of the log, in minutes."""
        lines = list(_progress(last_lines(self.files.events, HISTORY)))
        return list(_charts(list(_with_pauses(lines)))) if len(lines) > 1 else []


def _progress(lines: Iterable[bytes]) -> Iterator[Progress]:
    """Yield the lines of a log that curves are drawn from."""
    for line in lines:
        if b'"what":"%b"' % calls.PROGRESS.encode() in line and log.sound(line):
            with suppress(msgspec.MsgspecError):
                yield msgspec.json.decode(line, type=Progress, strict=False)  # amounts are text


def _with_pauses(lines: Sequence[Progress]) -> Iterator[Progress]:
    """Yield lines with an empty one wherever nothing ran, so that curves stop there."""
    for before, line in pairwise([lines[0], *lines]):
        if line.time - before.time > PAUSE_SECONDS:
            yield Progress(before.time + 1.0)
        yield line


def _charts(lines: Sequence[Progress]) -> Iterator[Chart]:
    """Yield a chart of each figure that is known."""
    last, span = lines[-1], lines[-1].time - lines[0].time
    unit, size = next((unit, size) for unit, size in TIMES if span >= 2 * size or size == 1)
    times = tuple(round((line.time - lines[0].time) / size, 3) for line in lines)

    def chart(
        title: str, label: str, values: Mapping[str, Sequence[float | None]]
    ) -> Iterator[Chart]:
        known = {name: of for name, of in values.items() if any(value is not None for value in of)}
        series = tuple(Series(name, tuple(of)) for name, of in known.items())
        if series:
            yield Chart("curve", title, times, unit, label, series, percent=not label)

    for label in dict.fromkeys(last.units.get(name) for name in last.scores):
        names = [name for name in last.scores if last.units.get(name) == label]
        yield from chart(
            "Running scores",
            label or "",
            {name: [line.scores.get(name) for line in lines] for name in names},
        )
    yield from chart("Speed", "steps a second", {"steps": [line.rate for line in lines]})
    latency = zip(*(line.latency or (None, None) for line in lines), strict=True)
    yield from chart("Latency", "seconds", dict(zip(("median", "95 %"), latency, strict=True)))
    flight = {
        "limit": [line.limit for line in lines],
        "in flight": [line.in_flight for line in lines],
    }
    yield from chart("Requests in flight", "requests", flight)
    for currency in last.cost:
        yield from chart("Cost", currency, {"cost": [line.cost.get(currency) for line in lines]})


def _figures(cards: ReportCards, data: JSON | None) -> tuple[str, ...]:
    """Return a user's figures as text; empty ones of a record of another shape."""
    try:
        return cards.figures(data) if data else ("",) * len(cards.columns)
    except (HarnessError, *ODD_SHAPE):
        return ("",) * len(cards.columns)


def _described(cards: ReportCards, data: JSON | None) -> Described:
    """Return a user's outcome, whether a reply was repaired, and its figures as numbers."""
    figures = tuple(map(_number, _figures(cards, data)))
    if data is None:
        return Described(UNREADABLE, False, figures)
    try:
        invalid = [outcome for outcome in cards.outcomes(data) if outcome != VALID]
        return Described(invalid[0] if invalid else VALID, cards.repaired(data), figures)
    except ODD_SHAPE:
        return Described("another shape", False, figures)


class Folder:
    """The runs of a results folder. What was read of each is kept while it is there."""

    def __init__(self, chosen: Chosen) -> None:
        self.chosen = chosen
        self._runs: dict[tuple[str, str], Viewed] = {}

    def runs(self) -> list[Viewed]:
        """Return the runs that there are now, and results of other programs, by name and subset."""
        there = [*runs(self.chosen.results), *[one.files for one in imported(self.chosen.results)]]
        found = {(files.folder.name, files.subset): files for files in there}
        known = self._runs
        self._runs = {
            key: known.get(key) or Viewed(files, self.chosen)
            for key, files in found.items()
            if _is_text("".join(key))
        }
        return [run for _, run in sorted(self._runs.items())]

    def run(self, name: str, subset: str) -> Viewed | None:
        """Return a run, None for one that is not there: its name is looked up among those, never
        followed."""
        if (name, subset) not in self._runs:
            self.runs()
        return self._runs.get((name, subset))


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


@lru_cache(
    maxsize=10_000
)  # figures of many users are the same ones, and need no room of their own then
def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
