"""A folder of results as the viewer reads it: nothing is written, and no code of a run is executed.

Of runs of benchmarks that ship, users are shown by the benchmark's own cards; of all others from what their records
have. Users' own texts, and the prompts that quote them, are read only if they are asked for, and only of runs that this
user made or whose tasks folder this user named.
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
from functools import cached_property
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
import orjson
from msgspec import Struct

from harness.analysis.imported import imported
from harness.analysis.plays import Exchange, conversation, transcript
from harness.analysis.saved_runs import SavedRun
from harness.benchmark import VALID, Benchmark, Task
from harness.benchmarks import registry, tasks
from harness.benchmarks.records import ODD_SHAPE, read_of
from harness.benchmarks.rendering import quotes
from harness.commands.view.index import Facets, LineIndex, last_lines, lines_beginning, opened
from harness.commands.view.interim import Interim, interim
from harness.document import Block, Chart, Heading, Paragraph, Quote, Series
from harness.engine import control_calls as calls
from harness.errors import BadInput, HarnessError
from harness.model import JSON, Completion, Snapshot, Where
from harness.options.plan import sampling_again
from harness.reporting import report_files
from harness.reporting.cards import ReportCards
from harness.reporting.report import shown_blocks
from harness.scoring.reports import Report
from harness.store import log
from harness.store.files import RunFiles, runs
from harness.store.jsonl import elements, plain_lines
from harness.store.lock import held
from harness.store.manifest import RUNNING, Manifest, load
from harness.store.run import about, completion_of
from harness.store.tasks import line_digest

T = TypeVar("T")
UNREADABLE = "unreadable line"
REPLIES_MOST = 1000
"""Replies of a user that are shown."""
REPLIES_READ = 1 << 32
"""Bytes of a responses file in which a user's replies are looked for: a page takes some seconds at most."""
NOT_ALL_READ = (
    "The responses file is very large, and only its beginning is looked at here: `harness show` reads all of it."
)
VALUES = 4
"""Columns of values of users, where the benchmark names none."""
HISTORY = 1 << 22
"""Bytes of the end of a run's log that curves are drawn from."""

SNAPSHOT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Chosen:
    """What is shown: a folder of `results`, users' own `posts` or not, with the `tasks` folder, None for each run's."""

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
    """What curves show of a line that a playing run adds to its log (`control`); None where it is unknown."""

    time: float
    scores: dict[str, float | None] = {}
    units: dict[str, str | None] = {}
    rate: float | None = None
    latency: tuple[float, float] | None = None
    limit: float | None = None
    in_flight: float | None = None
    cost: dict[str, float] = {}


class Cached(Generic[T]):
    """What was made of a file, made again once that has changed. A file that is missing or odd has a `problem`."""

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
        self._facets: Facets | None = None
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
        """Return the report, of a run without one that of its records so far; None if these cannot be scored."""
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
            return registry.find(self.benchmark)(folder=None) if registry.is_shipped(self.benchmark) else None
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
    def _cards(self) -> ReportCards | None:
        report = self.report
        return ReportCards.of(report, self.shipped, posts=self.chosen.posts) if report else None

    @cached_property
    def _first_values(self) -> tuple[str, ...]:
        """Return the names of the first values of a record, of a run without report whose benchmark does not ship."""
        data = next((data for _, data in self.users.objects(range(min(1, len(self.users))))), None)
        values = (data or {}).get("metrics")
        return tuple(map(str, values))[:VALUES] if isinstance(values, dict) else ()

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the heads of users' figures."""
        if cards := self._cards:
            return cards.columns
        return tuple((self.shipped or Benchmark).cards.columns) or self._first_values

    def figures(self, data: JSON) -> tuple[str, ...]:
        """Return a user's figures as text; empty ones of a record of another shape."""
        try:
            if self.shipped and self.shipped.cards.columns:
                return tuple(map(str, self.shipped.cards.figures(data)))
            values = data["metrics"]
            if (report := self.report) is None:
                first = map(values.get, self._first_values)
                return tuple(f"{value:.4g}" if isinstance(value, int | float) else "" for value in first)
            of = [(report.units[name], values.get(name)) for name in report.headline]
            return tuple(metric.text(value) if _is_value(value) else "" for metric, value in of)
        except ODD_SHAPE:
            return ("",) * len(self.columns)

    def described(self, data: JSON | None) -> tuple[str, bool, Sequence[float]]:
        """Return a user's outcome, whether a reply was repaired, and its figures as numbers."""
        nothing = (math.nan,) * len(self.columns)
        if data is None:
            return UNREADABLE, False, nothing
        records = (self.shipped or Benchmark).records
        try:
            outcomes = [str(one) for one in records.outcomes(data)]
            repaired = any(True for _ in records.repairs(data))
        except ODD_SHAPE:
            return "another shape", False, nothing
        outcome = next((one for one in outcomes if one != VALID), VALID)
        return outcome, repaired, tuple(map(_number, self.figures(data)))

    def facets(self, seconds: float) -> tuple[Facets, bool]:
        """Return what users can be selected by, and whether all users are read."""
        with self.users.lock:
            if self._facets is None or not self._facets.is_of_now:
                self._facets = Facets(self.users, len(self.columns))
            return self._facets, self._facets.advance(self.described, seconds)

    def replies(self, data: JSON) -> list[Completion]:
        """Return the saved replies of a record's user and repeat, in the order in which they came."""
        return [made for line in self._reply_lines(data) if (made := completion_of(line))]

    def _repeat(self, data: JSON) -> int:
        repeat = data.get("repeat") if self.repeats > 1 else 1
        return repeat if isinstance(repeat, int) else 1

    def _reply_lines(self, data: JSON) -> list[JSON]:
        start = orjson.dumps(about(str(data["user_id"]), self._repeat(data)))[:-1] + b","
        lines = lines_beginning(self.files.responses, start, REPLIES_MOST, REPLIES_READ)
        return [log.parsed(line) for line in lines if log.sound(line)]

    def blocks(self, data: JSON) -> list[Block]:
        """Return what is shown of a user: requests if posts are, then the card."""
        key = str(data.get("user_id"))
        task, exchanges, why = self._private(data) if self.chosen.posts else (None, (), "")
        made: list[Block] = [Paragraph(why)] if why else []
        with opened(self.files.responses) as responses:
            if responses and os.fstat(responses.fileno()).st_size > REPLIES_READ:
                made.append(Paragraph(NOT_ALL_READ))
        made += [block for blocks in conversation(exchanges) for block in blocks]
        replies = [] if exchanges else self.replies(data)
        try:
            with read_of(key):
                return [*made, *self._card(data, task, replies)]
        except HarnessError as error:
            return [*made, Paragraph(str(error)), *([] if self.left_out else _numbered(replies))]

    def _card(self, data: JSON, task: Task | None, replies: Sequence[Completion]) -> Sequence[Block]:
        if cards := self._cards:
            return cards.card(data, task, replies).blocks
        if self.shipped:
            return list(shown_blocks(self.shipped.cards.card(data, task, replies) or (), posts=self.chosen.posts))
        outcome, _, _ = self.described(data)
        values = {name: data[name] for name in ("metrics", "answer") if name in data}
        answer = orjson.dumps(values, option=orjson.OPT_INDENT_2).decode()
        return [Paragraph(f"Outcome: {outcome}."), Quote("Record", answer, open=True), *_numbered(replies)]

    @property
    def left_out(self) -> str:
        """Return what is not shown without posts; empty if all is."""
        private = (self.shipped or Benchmark).cards.private
        return private if private and not self.chosen.posts else ""

    # Private texts

    def _private(self, data: JSON) -> tuple[Task | None, Sequence[Exchange], str]:
        """Return the task and the exchanges of a record's user, or why they are not known."""
        try:
            benchmark = self._playable
            task = self._task(benchmark, data)
            if task is None:
                return None, (), "The task of this user is not in the tasks file any more, so no prompt is shown."
            sampling, lines = sampling_again(self._saved.manifest), self._reply_lines(data)
            played = asyncio.run(transcript(benchmark, sampling, task, self._repeat(data), lines, data))
        except HarnessError as error:
            return None, (), f"No prompts: {error}"
        return task, played.exchanges if played else (), "" if played else "The saved replies do not give this record."

    @cached_property
    def _saved(self) -> SavedRun:
        manifest = self.manifest
        if manifest is None:
            raise BadInput("another program's results have none")
        return SavedRun(self.files, manifest)

    @cached_property
    def _playable(self) -> Benchmark:
        """Return the benchmark on the run's own data. Raise `BadInput` where that would execute code."""
        saved = self._saved
        if self.shipped is None or saved.has_code:
            raise BadInput("playing this run again would execute its code: `harness show` does")
        return saved.as_it_was(self.chosen.tasks, play=True)

    def _task(self, benchmark: Benchmark, data: JSON) -> Task | None:
        path, key = self._saved.tasks(self.chosen.tasks), str(data["user_id"])
        mark, read = key.encode("utf-8", "replace"), elements if path.suffix == ".json" else plain_lines
        with opened(path) as file:
            for line, _, number in read(file, hashlib.sha256()) if file else ():
                if mark in line and line_digest(line) == data.get("task"):
                    return tasks.parse(benchmark, line, Where(str(path), number), self.subset)
        return None

    # Over time

    def curves(self) -> list[Chart]:
        """Return scores, speed, latency, limit and cost over the time of the log, in minutes."""
        lines = [*_progress(last_lines(self.files.events, HISTORY))]
        return [*_charts(lines)] if len(lines) > 1 else []


def _progress(lines: Iterable[bytes]) -> Iterator[Progress]:
    """Yield the lines of a log that curves are drawn from."""
    for line in lines:
        if b'"what":"%b"' % calls.PROGRESS.encode() in line and log.sound(line):
            with suppress(msgspec.MsgspecError):
                yield msgspec.json.decode(line, type=Progress, strict=False)  # amounts are text


def _charts(lines: Sequence[Progress]) -> Iterator[Chart]:
    last, minutes = lines[-1], tuple(round((one.time - lines[0].time) / 60, 3) for one in lines)

    def chart(
        title: str, unit: str, values: Mapping[str, Sequence[float | None]], percent: bool = False
    ) -> Iterator[Chart]:
        known = tuple(Series(name, tuple(of)) for name, of in values.items() if any(one is not None for one in of))
        if known:
            yield Chart("curve", title, minutes, "minutes", unit, known, percent=percent)

    for unit in dict.fromkeys(last.units.get(name) for name in last.scores):
        names = [name for name in last.scores if last.units.get(name) == unit]
        scores = {name: [one.scores.get(name) for one in lines] for name in names}
        yield from chart("Running scores", unit or "", scores, percent=unit is None)
    yield from chart("Speed", "steps a second", {"steps": [one.rate for one in lines]})
    latency = zip(*(one.latency or (None, None) for one in lines), strict=True)
    yield from chart("Latency", "seconds", dict(zip(("median", "95 %"), latency, strict=True)))
    flight = {"limit": [one.limit for one in lines], "in flight": [one.in_flight for one in lines]}
    yield from chart("Requests in flight", "requests", flight)
    for currency in last.cost:
        yield from chart("Cost", currency, {"cost": [one.cost.get(currency) for one in lines]})


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
            key: known.get(key) or Viewed(files, self.chosen) for key, files in found.items() if _is_text("".join(key))
        }
        return [run for _, run in sorted(self._runs.items())]

    def run(self, name: str, subset: str) -> Viewed | None:
        """Return a run, None for one that is not there: its name is looked up among those, never followed."""
        if (name, subset) not in self._runs:
            self.runs()
        return self._runs.get((name, subset))


def _numbered(replies: Sequence[Completion]) -> list[Block]:
    return [quote for number, one in enumerate(replies, 1) for quote in quotes(one, f"Reply {number}")]


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_value(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def failure_blocks(data: JSON) -> list[Block]:
    """Return what is shown of a user's failure."""
    return [
        Heading("Failure"),
        Paragraph(f"{data.get('boundary')}: {data.get('kind')}, after {data.get('tries')} tries"),
        Quote("Detail", str(data.get("detail")), open=True),
    ]
