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
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import chain, pairwise
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
from harness.benchmarks.rendering import numbered
from harness.commands.view.index import (
    LineIndex,
    SummaryCache,
    UserSummary,
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
from harness.reporting.cards import ReportCards, cut, failure
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
TASK_MISSING = "The task of this user is not in the tasks file any more, so no prompt is shown."
DAMAGED = "A line about this user is damaged, or too long to be shown."
PAUSE_SECONDS = 60.0
"""Between two lines of a log, which come every ten seconds: nothing ran meanwhile."""
TIME_UNITS = (("hours", 3600), ("minutes", 60), ("seconds", 1))
LOG_BYTES = 1 << 22
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


class LoggedProgress(Struct, frozen=True):
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
        self._path = path
        self._make = make
        self._stamp: object = ()
        self.value: T | None = None
        self.problem = ""

    def current(self) -> T | None:
        file_stamp = stamp(self._path)
        if file_stamp != self._stamp:
            self._stamp = file_stamp
            self.value = None
            self.problem = ""
            try:
                if file_stamp:
                    self.value = self._make(self._path)
            except HarnessError as error:
                self.problem = str(error)
        return self.value


class ViewedRun:
    """One run on one subset, or results of another program."""

    def __init__(self, files: RunFiles, chosen: Chosen) -> None:
        self.files = files
        self.chosen = chosen
        self.users = LineIndex(files.results)
        self.failures = LineIndex(files.failures)
        self._manifest = Cached[Manifest](files.manifest, load)
        self._report = Cached[Report](files.report("json"), report_files.loaded)
        self._facts = SummaryCache(self.users)
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
        return self._manifest.current()

    @property
    def report(self) -> Report | None:
        return self._report.current()

    @property
    def report_so_far(self) -> Report | None:
        """Return the report, of a run without one that of its records so far; None if these cannot
        be scored."""
        manifest = self.manifest
        report = self.report
        if report or manifest is None or self.shipped is None:
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
        """Return the benchmark's name, empty without manifest and report."""
        manifest = self.manifest
        return manifest.identity["benchmark"] if manifest else getattr(self.report, "benchmark", "")

    @property
    def model(self) -> str:
        """Return the model's name, empty without manifest and report."""
        manifest = self.manifest
        return manifest.identity["model"] if manifest else getattr(self.report, "model", "")

    @property
    def state(self) -> str:
        manifest = self.manifest
        if manifest is None:
            return "scored" if self.report else "not scored"
        if manifest.state == RUNNING and not held(self.files.lock, time.time):
            return "died"
        return manifest.state

    @property
    def snapshot(self) -> Snapshot | None:
        """Return the state of a run that is being played, None if its process does not give it."""
        # A page uses it several times: the process is called once a second at most.
        if time.monotonic() - self._asked > SNAPSHOT_SECONDS:
            self._snapshot = self._current() if self.state == RUNNING else None
            self._asked = time.monotonic()
        return self._snapshot

    def _current(self) -> Snapshot | None:
        """Ask the process that plays the run; None if it does not answer."""
        try:
            with calls.connected(self.files, SNAPSHOT_SECONDS) as call:
                snapshots = call.snapshots()[1]
        except HarnessError:
            return None
        for snapshot in snapshots:
            subsets = [progress.subset for progress in snapshot.subsets]
            if snapshot.name == self.name and self.subset in subsets:
                return snapshot
        return None

    @cached_property
    def shipped(self) -> Benchmark | None:
        """Return the benchmark without its data, None for one that does not ship."""
        try:
            if registry.is_shipped(self.benchmark):
                return registry.find(self.benchmark)(folder=None)
            return None
        except HarnessError:
            return None

    @property
    def user(self) -> str:
        """Return the word for a user."""
        return self.report.user if self.report else (self.shipped or Benchmark).about.user

    @property
    def repeats(self) -> int:
        return self.manifest.repeats if self.manifest else 1

    # Users

    @property
    def cards(self) -> ReportCards:
        return ReportCards(self.report, self.shipped, self.chosen.posts, self.repeats)

    def facts(self, seconds: float) -> Sequence[UserSummary]:
        """Return what users can be selected by, of those that are read so far."""
        return self._facts.current(partial(_described, self.cards), seconds)

    @property
    def outcomes(self) -> list[str]:
        """Return the outcomes that users have, as far as they are known."""
        known = dict.fromkeys([VALID])
        if self.report:
            known |= dict.fromkeys(self.report.diagnostics.invalid)
        known |= dict.fromkeys(user.outcome for user in self.facts(0.0))
        return list(known)

    def row(self, number: int, data: JSON | None) -> tuple[str, ...]:
        """Return a user's name, outcome and figures."""
        user = _described(self.cards, data)
        outcome = user.outcome
        if user.is_repaired:
            outcome += ", repaired"
        return self._name(number, data), outcome, *_figures(self.cards, data)

    def failed_row(self, number: int, data: JSON | None) -> tuple[str, ...]:
        why = UNREADABLE
        if data:
            why = f"{data.get('boundary')}: {data.get('kind')}"
        return self._name(number, data), why

    def _name(self, number: int, data: JSON | None) -> str:
        if data and "user_id" in data:
            return self.cards.name(data)
        return f"line {number + 1}"

    def blocks_of(self, key: str) -> list[Block]:
        """Return the blocks of all records and failures of a user."""
        self.users.advance()
        self.failures.advance()
        blocks = list[Block]()
        for _, data in self.users.objects(self.users.numbers_of(key)):
            if data:
                blocks += self._blocks(data)
            else:
                blocks.append(Paragraph(DAMAGED))
        for _, data in self.failures.objects(self.failures.numbers_of(key)):
            if data:
                blocks += [Heading("Failure"), *failure(data)]
        return [cut(block, "`harness show --full` shows them") for block in blocks]

    def _blocks(self, data: JSON) -> list[Block]:
        """Return what is shown of a record: requests if posts are, then the card."""
        cards = self.cards
        blocks = list[Block]()
        task: Task | None = None
        exchanges: Sequence[Exchange] = ()
        if self.chosen.posts:
            task, exchanges, problem = self._private(data)
            if problem:
                blocks.append(Paragraph(problem))
        with opened(self.files.responses) as responses:
            if responses and os.fstat(responses.fileno()).st_size > REPLIES_READ:
                blocks.append(Paragraph(NOT_ALL_READ))
        blocks += chain.from_iterable(conversation(exchanges))

        # The conversation has the replies already.
        reply_lines = () if exchanges else self._reply_lines(data)
        replies = [*filter(None, map(completion_of, reply_lines))]
        try:
            with read_of(str(data["user_id"])):
                card = cards.card(data, task, replies)
        except HarnessError as error:
            blocks = [Heading(cards.name(data)), *blocks, Paragraph(str(error))]
            if not cards.left_out:
                blocks += numbered(replies)
            return blocks
        return [*cards.heading(card), *blocks, *card.blocks]

    def _reply_lines(self, data: JSON) -> list[JSON]:
        lines = lines_beginning(
            self.files.responses,
            self.cards.response_start(data),
            MAX_REPLIES,
            REPLIES_READ,
        )
        return [log.decode_or_empty(line) for line in lines if log.has_valid_crc(line)]

    # Private texts

    def _private(self, data: JSON) -> tuple[Task | None, Sequence[Exchange], str]:
        """Return the task and the exchanges of a record's user, or why they are not known."""
        try:
            benchmark = self._playable
            task = self._task(benchmark, data)
            if task is None:
                return None, (), TASK_MISSING
            sampling = sampling_again(self._saved.manifest)
            lines = self._reply_lines(data)
            repeat = self.cards.repeat(data)
            played = asyncio.run(transcript(benchmark, sampling, task, repeat, lines, data))
        except HarnessError as error:
            return None, (), f"No prompts: {error}"
        if played is None:
            return task, (), "The saved replies do not give this record."
        return task, played.exchanges, ""

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
        """Return the task that a record was made of, None if the tasks file has it no more."""
        path = self._saved.tasks(self.chosen.tasks)
        user = str(data["user_id"]).encode("utf-8", "replace")
        read = elements if path.suffix == ".json" else plain_lines
        with opened(path) as file:
            if file is None:
                return None
            for line, _, number in read(file, hashlib.sha256()):
                # Most lines are passed over without a hash.
                if user in line and line_digest(line) == data.get("task"):
                    return tasks.parse(benchmark, line, Where(str(path), number), self.subset)
        return None

    # Over time

    def curves(self) -> list[Chart]:
        """Return scores, speed, latency, limit and cost over the time of the log, in minutes."""
        lines = list(_progress(last_lines(self.files.events, LOG_BYTES)))
        if len(lines) < 2:
            return []
        return list(_charts(list(_with_pauses(lines))))


def _progress(lines: Iterable[bytes]) -> Iterator[LoggedProgress]:
    """Yield the lines of a log that curves are drawn from."""
    for line in lines:
        # Most lines of a log are other events: only these are decoded.
        if b'"what":"%b"' % calls.PROGRESS.encode() in line and log.has_valid_crc(line):
            with suppress(msgspec.MsgspecError):
                # Not strict, as amounts are text.
                yield msgspec.json.decode(line, type=LoggedProgress, strict=False)


def _with_pauses(lines: Sequence[LoggedProgress]) -> Iterator[LoggedProgress]:
    """Yield lines with an empty one wherever nothing ran, so that curves stop there."""
    yield lines[0]
    for previous, line in pairwise(lines):
        if line.time - previous.time > PAUSE_SECONDS:
            yield LoggedProgress(previous.time + 1.0)
        yield line


def _charts(lines: Sequence[LoggedProgress]) -> Iterator[Chart]:
    """Yield a chart of each figure that is known."""
    start = lines[0].time
    unit, size = _time_unit(lines[-1].time - start)
    times = tuple([round((line.time - start) / size, 3) for line in lines])
    for title, label, values in _curves(lines):
        series = []
        for name, figures in values.items():
            if any(figure is not None for figure in figures):
                series.append(Series(name, tuple(figures)))
        if series:
            yield Chart("curve", title, times, unit, label, tuple(series), percent=not label)


def _curves(
    lines: Sequence[LoggedProgress],
) -> Iterator[tuple[str, str, Mapping[str, Sequence[float | None]]]]:
    """Yield the title of each chart, the label of its figures (empty for shares), and these by
    name."""
    last = lines[-1]
    # Figures of one unit share a chart.
    scores = defaultdict[str, dict[str, list[float | None]]](dict)
    for name in last.scores:
        label = last.units.get(name) or ""
        scores[label][name] = [line.scores.get(name) for line in lines]
    for label, values in scores.items():
        yield "Running scores", label, values

    yield "Speed", "steps a second", {"steps": [line.rate for line in lines]}
    median, slowest = zip(*[line.latency or (None, None) for line in lines], strict=True)
    yield "Latency", "seconds", {"median": median, "95 %": slowest}
    limits = [line.limit for line in lines]
    in_flight = [line.in_flight for line in lines]
    yield "Requests in flight", "requests", {"limit": limits, "in flight": in_flight}
    for currency in last.cost:
        yield "Cost", currency, {"cost": [line.cost.get(currency) for line in lines]}


def _time_unit(seconds: float) -> tuple[str, int]:
    """Return the largest unit of which a span has two, and the unit's seconds."""
    for unit, size in TIME_UNITS:
        if seconds >= 2 * size:
            return unit, size
    return TIME_UNITS[-1]


def _figures(cards: ReportCards, data: JSON | None) -> tuple[str, ...]:
    """Return a user's figures as text; empty ones of a record of another shape."""
    empty = ("",) * len(cards.columns)
    try:
        return cards.figures(data) if data else empty
    except (HarnessError, *ODD_SHAPE):
        return empty


def _described(cards: ReportCards, data: JSON | None) -> UserSummary:
    """Return a user's outcome, whether a reply was repaired, and its figures as numbers."""
    figures = tuple(map(_number, _figures(cards, data)))
    if data is None:
        return UserSummary(UNREADABLE, False, figures)
    try:
        invalid = [outcome for outcome in cards.outcomes(data) if outcome != VALID]
        return UserSummary([*invalid, VALID][0], cards.repaired(data), figures)
    except ODD_SHAPE:
        return UserSummary("another shape", False, figures)


class Folder:
    """The runs of a results folder. What was read of each is kept while it is there."""

    def __init__(self, chosen: Chosen) -> None:
        self.chosen = chosen
        self._runs: dict[tuple[str, str], ViewedRun] = {}

    def runs(self) -> list[ViewedRun]:
        """Return the runs that there are now, and results of other programs, by name and subset."""
        results = self.chosen.results
        current = dict[tuple[str, str], ViewedRun]()
        others = [scores.files for scores in imported(results)]
        for files in (*runs(results), *others):
            key = files.folder.name, files.subset
            if _is_text("".join(key)):
                # A run that was here before keeps what was read of it.
                current[key] = self._runs.get(key) or ViewedRun(files, self.chosen)
        self._runs = current
        return [run for _, run in sorted(current.items())]

    def run(self, name: str, subset: str) -> ViewedRun | None:
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


# Figures of many users are equal: with this cache they share one object.
@lru_cache(maxsize=10_000)
def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
