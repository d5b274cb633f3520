"""Check a run's folder: every line sound, every input user exactly once, metrics equal to a re-score,
records what the saved responses give, manifest and report in accord with the results.

Not detected: missing lines that will be produced again anyway (responses of users that are not done, records of a run
that died); missing events in the log, or a missing failure of a user; changes to fields that only the manifest has
(packages, tuning, times); digits of a report's figures beyond the twelfth, which differ between machines.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import orjson
from msgspec import structs
from numpy.typing import NDArray

from harness.analysis.saved_runs import SavedRun
from harness.benchmark import Benchmark
from harness.benchmarks import reports
from harness.benchmarks.files import DOCUMENT_MOST, content, holds, open_regular
from harness.benchmarks.overview import blocks
from harness.benchmarks.reports import Report
from harness.benchmarks.tasks import parse
from harness.cost import Cost
from harness.engine.finish import ReportScores, facts
from harness.engine.play import rescored
from harness.engine.run import Run, counted_cost
from harness.errors import BadInput, in_brief, reading
from harness.feature import pending
from harness.features.plays.replies import TORN, Beat, Replies, opened
from harness.features.verify.checksums import logs, unlike_manifest
from harness.features.verify.replayed import MISSHAPEN, Replayer, counted, unlike
from harness.model import JSON, Record
from harness.report import text
from harness.store.log import line_at, unseal
from harness.store.manifest import COMPLETE, INCOMPLETE, RUNNING, STOPPED
from harness.store.run import RECORD_FORMAT, RunStore, count_unanswered
from harness.store.tasks import TaskIndex

EXPECTED = "what the results give (regenerate it with `reeval`)"


class Check:
    """The checks of one run, over its files as they are; nothing is changed."""

    def __init__(
        self, run: SavedRun, benchmark: Benchmark, index: TaskIndex, player: Replayer | None, beat: Beat
    ) -> None:
        selection = run.manifest.selection
        self.expected = index.selected(selection)
        self.notes: list[str] = []
        self._run, self._files, self._manifest = run, run.files, run.manifest
        self._benchmark, self._index, self._player, self._beat = benchmark, index, player, beat
        self._replies = Replies(run.files.responses, index.of, beat)
        self._offsets = np.full(len(index), -1, np.int64)
        self._numbers = np.zeros(len(index), np.int64)
        self._failed = np.zeros(len(index), np.bool_)
        self._scores: ReportScores | None = ReportScores(benchmark, run.files.subset, index)
        self._diverged = 0

    @property
    def done(self) -> NDArray[np.bool_]:
        """Return a mask of the tasks that have a record."""
        return self._offsets >= 0

    def findings(self) -> Iterator[str]:
        yield from self._tasks()
        yield from logs(self._run, self._replies, self._beat, self._saw_failure)
        yield from self._results()
        yield from self._records()
        yield from self._users()
        if self._manifest.state != RUNNING:
            yield from self._counts()
            if self._manifest.state == STOPPED and not self._files.report("json").exists():
                self.notes.append("it was stopped, and has no report yet: `resume` continues it, `report` makes one")
            else:
                yield from self._report()

    def _tasks(self) -> Iterator[str]:
        manifest, index = self._manifest, self._index
        if manifest.subset != self._files.subset:
            yield f"{self._files.manifest.name} is of {manifest.subset}"
        if manifest.identity["benchmark"] != self._benchmark.name:
            yield f"{self._files.manifest.name}: identity.benchmark is {manifest.identity['benchmark']}"
        if manifest.tasks["sha256"] != index.sha256:
            yield f"{index.path} is not the tasks file that this run was made with"
        elif manifest.tasks["users"] != (users := index.users_in_file):
            yield f"{self._files.manifest.name}: tasks.users is {manifest.tasks['users']}, there are {users}"
        if manifest.tasks.get("truth", "") != self._benchmark.task_files.truth_sha256:
            yield "the ground truth is not the one that the report was made with: regenerate it with `reeval`"

    def _saw_failure(self, data: JSON) -> None:
        """Note a failed user, if the task is unchanged."""
        position = self._index.current(data)
        if position is not None:
            self._failed[position] = True

    def _results(self) -> Iterator[str]:
        """Yield torn, duplicate, foreign and misplaced lines; note where each user's record is."""
        whole, outside, last, complete = hashlib.sha256(), 0, -1, self._manifest.state == COMPLETE
        for at, number, line, data in opened(self._files.results, self._beat):
            whole.update(line.text + b"\n")
            position = None if data is None else self._index.current(data)
            if data is None:
                yield f"{at}: {TORN}"
            elif position is not None:
                if self._offsets[position] >= 0:
                    yield f"{at}: user {data['user_id']} has a duplicate record"
                elif complete and position <= last:
                    yield f"{at}: user {data['user_id']} is not in the order of the tasks file"
                self._offsets[position], self._numbers[position], last = line.offset, number, position
            elif complete:
                yield f"{at}: user {data.get('user_id')} has no such task"
            else:
                outside += 1
        if outside:
            self.notes.append(f"{outside} records are of users or tasks that are not in the tasks file")
        yield from unlike_manifest(self._run, whole.hexdigest())

    def _records(self) -> Iterator[str]:
        """Yield records that differ from what their answers or responses give; collect their scores."""
        path = self._files.results
        if not self.done.any():
            return  # there may be no file
        with open_regular(path) as file:
            for position in map(int, np.flatnonzero(self.done)):
                self._beat()
                data = unseal(line_at(file, int(self._offsets[position])))
                if wrong := self._record(position, data):
                    self._scores = None
                    yield f"{path.name}, line {self._numbers[position]}: {wrong}"

    def _record(self, position: int, data: JSON) -> str | None:
        """Return what is wrong with a record, None for nothing."""
        who = f"user {data['user_id']}"
        task = parse(self._benchmark, self._index.read(position), self._index.where(position), self._files.subset)
        try:
            again = orjson.loads(orjson.dumps(rescored(self._benchmark, task, data)))
            if data.get("format") != RECORD_FORMAT:
                return f"the record of {who} is of format {in_brief(data.get('format'))}, not {RECORD_FORMAT}"
            if again != data:
                return f"the metrics of {who} differ from a re-score"
            if data.get("reparse") == "diverged":  # `reeval` marked it, and kept it
                self._diverged += 1
            elif wrong := self._unlike_responses(task, position, data):
                return f"the record of {who} {wrong}"
            if self._scores is not None:
                self._scores.add(Record(str(data["user_id"]), data))
        except MISSHAPEN as error:
            return f"the record of {who} cannot be scored again ({error})"
        return None

    def _unlike_responses(self, task: Any, position: int, data: JSON) -> str | None:
        try:
            saved = self._replies.of(position)
        except MISSHAPEN:
            return "has a malformed saved response"
        return (
            counted(data, saved)
            if self._player is None
            else self._player.wrong(task, data, saved, self._index.repeat(position))
        )

    def _users(self) -> Iterator[str]:
        """Yield input users that are neither recorded nor failed, if the manifest says that all have been played."""
        state = self._manifest.state
        if state not in (COMPLETE, INCOMPLETE):
            return
        played = self.done if state == COMPLETE else self.done | self._failed
        for position in np.flatnonzero(self.expected & ~played):
            yield f"{self._index.where(int(position))}: this user has neither a record nor a failure"

    def _counts(self) -> Iterator[str]:
        """Yield numbers of the manifest that do not match the files."""
        expected, users = self.expected | self.done, self._index.users
        real = {"users": users(expected), "done": users(expected) - users(expected & ~self.done)}
        real["failed"] = self._failed_users()
        for name, count in real.items():
            if (saved := self._manifest.counts.get(name)) != count:
                yield f"{self._files.manifest.name}: counts.{name} is {saved}, and there are {count}"
        manifest, bill = self._manifest, self._replies.bill.copy(pending(self._files))
        count_unanswered(bill, self._files)
        if manifest.cost and msgspec.convert(manifest.cost, Cost) != counted_cost(manifest, bill):
            yield f"{self._files.manifest.name}: cost is not that of the saved responses at the run's prices"

    def _failed_users(self) -> int:
        return self._index.users(self._failed & self.expected & ~self.done)

    # The report

    def _report(self) -> Iterator[str]:
        """Yield files of the report that differ from what the results give."""
        if self._scores is None:
            self.notes.append("the report was not compared with results that are not sound")
            return
        path = self._files.report("json")
        content = _content(path)
        try:
            made, more = self._made(self._scores, *self._only_in_report(content))
        except MISSHAPEN as error:
            yield f"{self._files.manifest.name}: no report can be made of its fields ({error!r})"
            return
        if reports.encoded(made) == content:
            others = {self._files.report("txt").name: text.rendered(list(blocks(made))).encode(), **more}
            for name, expected in others.items():
                if wrong := _unlike(self._files.folder / name, expected):
                    yield f"{name} {wrong} {EXPECTED}"
        elif wrong := _report_unlike(content, made):
            yield f"{path.name} {wrong}, is not {EXPECTED}"
        else:
            self.notes.append(
                "the report was made on another machine or by another version: its figures agree, its text was not "
                "compared"
            )

    def _only_in_report(self, content: bytes) -> tuple[str, tuple[str, ...]]:
        """Return what only the report contains: the folder's name at that time, and the note of the last
        `reeval --reparse` on users that kept their records."""
        folder, diverged = self._files.folder.name, f"{self._diverged} users could not be played again"
        try:
            found = orjson.loads(content)
            name, notes = str(found["name"]), found["notes"] if self._diverged else ()
            if name != folder:
                self.notes.append(f"the report was made when this folder was called {name}")
            return name, tuple([note for note in notes if note.startswith(diverged)])
        except MISSHAPEN:
            return folder, ()

    def _made(self, scores: ReportScores, name: str, notes: tuple[str, ...]) -> tuple[Report, Mapping[str, bytes]]:
        """Return the report of the saved results, as `run` and `reeval` make it."""
        store = cast(RunStore, None)  # a writer, and nothing is written here
        expected = self.expected | self.done
        run = Run(self._benchmark, self._files.subset, self._index, store, self._manifest, expected)
        about = facts(run, name, self._failed_users())
        return scores.report(replace(about, notes=(*about.notes, *notes)))


def _unlike(path: Path, expected: bytes) -> str | None:
    """Return how a file differs from the expected content, in words; None if it does not."""
    with reading(path):
        try:
            return None if holds(path, expected) else "is not"
        except FileNotFoundError:
            return "is missing; it was"


def _content(path: Path) -> bytes:
    """Return a file's content, empty if it is missing."""
    with reading(path):
        try:
            return content(path, DOCUMENT_MOST)
        except FileNotFoundError:
            return b""


ADDED = frozenset({"bias", "chance", "chance_error", "detectable", "breaches", "leaves_out", "approximate_truth"})
"""Members that reports of earlier formats do not all have, or had of other draws."""
INTERVALS = frozenset({"ci95", "ci95_truth", "without_bias", "approximate", "intervals_over"})
"""Members that reports of earlier formats have by another method."""


def _filled(old: Any, now: Any, names: frozenset[str], name: str = "") -> Any:
    """Return what an earlier version reported, with members of these names, and the users that it did not report, as
    now."""
    if name in names:
        return now
    if isinstance(old, dict) and isinstance(now, dict):
        return {**now, **{each: _filled(value, now.get(each), names, each) for each, value in old.items()}}
    if isinstance(old, list) and isinstance(now, list) and len(old) == len(now):
        return [_filled(*both, names) for both in zip(old, now, strict=True)]
    return now if old is None and name == "users" else old


def _figures(of: Report) -> Report:
    """Return a report without what is text alone."""
    units = {name: structs.replace(unit, definition="") for name, unit in of.metric_units.items()}
    return structs.replace(of, title="", metric_units=units, sections=())


def _report_unlike(content: bytes, made: Report) -> str | None:
    """Return how a report differs, except for the last digits on another machine; None if it does not."""
    try:
        found = orjson.loads(content)
    except ValueError:
        return "is not JSON" if content else "is missing"
    if orjson.dumps(found, option=orjson.OPT_INDENT_2) + b"\n" != content:
        return "was changed since it was written"
    try:
        saved = reports.read(content)
    except BadInput:
        return "is no report"
    old, now = (orjson.loads(reports.encoded(_figures(of))) for of in (saved, made))
    if found["format"] < reports.FORMAT:
        old = {**_filled(old, now, ADDED | INTERVALS), "run": old["run"]}
    name = unlike(old, now)
    return None if name is None else f"differs in {name}"
