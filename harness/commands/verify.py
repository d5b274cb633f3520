"""`verify`: proves a run's folder. Every line sound, every input user exactly once, metrics equal to a re-score,
records what the saved responses give, manifest and report in accord with the results.

What it cannot notice: that a line is missing which is owed again anyway (responses of users that are not done, records
of a run that died); that events are missing in the log, or one of a user's failures; a change to what a manifest alone
tells (packages, tuning, moments); digits of a report's figures beyond the twelfth, which differ between machines.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import hashlib
import math
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from glob import escape
from pathlib import Path
from typing import Any, cast

import numpy as np
import orjson
from numpy.typing import NDArray

from harness.commands import earlier, options
from harness.commands.earlier import Earlier
from harness.commands.files import index_file
from harness.commands.plan import sampling_again
from harness.endpoint.wire import Sampling
from harness.engine.conversation import Diverged, replaying
from harness.engine.finish import ReportScores, facts
from harness.engine.job import Job
from harness.errors import BadInput, MachineError
from harness.model import JSON, Benchmark, Completion, Record, Report, Usage
from harness.report import text
from harness.store.lock import RunLock, held
from harness.store.log import Line, lines, sound, unseal
from harness.store.manifest import COMPLETE, INCOMPLETE, RUNNING, Manifest, load
from harness.store.run import RunFiles, RunStore
from harness.store.tasks import TaskIndex, key_hash
from harness.ui.console import console
from harness.ui.streams import show, tell

SHOWN = 5
"""Findings of a run that are printed; the JSON has all."""

READ_ONLY = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})

MISSHAPEN = (BadInput, KeyError, TypeError, ValueError, AttributeError, IndexError)
"""What comes of a line that has a right checksum and is no line of ours."""

TORN = "torn or changed since it was written"

AGREE = 1e-12
"""Two machines add up the same numbers to within this share of the sum."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_which(parser)
    options.add_folders(parser, of_earlier_runs=True)
    options.add_json(parser)


def execute(args: argparse.Namespace) -> int:
    found = earlier.find(args)
    if not found:
        raise earlier.nothing_found(args)
    proofs: list[JSON] = []
    code = earlier.each(found, lambda run: _prove(run, args, proofs), lambda run: f"{run.name}, {run.files.subset}")
    if args.json:
        show(orjson.dumps(proofs, option=orjson.OPT_INDENT_2).decode())
    else:
        _show(proofs)
    return code


def _prove(run: Earlier, args: argparse.Namespace, proofs: list[JSON]) -> int:
    """What was checked of a run, and each thing that is wrong, as a sentence; 1 where something is."""
    tasks, subset = run.tasks(args.tasks_dir), run.files.subset
    with _locked(run) as beat:
        manifest = load(run.files.manifest)  # as it stands now that nobody else writes it
        if manifest is None:
            raise BadInput(f"{run.files.manifest} has gone")
        try:
            benchmark, unplayed = _benchmark(Earlier(run.files, manifest), args.tasks_dir)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadInput(f"{run.files.manifest}: field identity: cannot be used ({error!r})") from None
        with closing(_index(benchmark, subset, tasks, args.results_dir)) as index, asyncio.Runner() as loop:
            replies = Replies(run.files.responses, index, beat)
            player = Player(benchmark, sampling_again(manifest), loop) if unplayed is None else None
            check = Check(run.files, manifest, benchmark, index, replies, player, beat)
            findings = list(check.findings())
    proofs.append(
        {
            "name": run.name,
            "subset": subset,
            "state": manifest.state,
            "users": int(check.expected.sum()),
            "records": int(check.done.sum()),
            "findings": findings,
            "notes": [*([unplayed] if unplayed else []), *check.notes],
        }
    )
    return 1 if findings else 0


@contextmanager
def _locked(run: Earlier) -> Iterator[Callable[[], None]]:
    """Keeps writers out and gives what is to be called now and then for that.

    Files that nobody may change from here (an archive, another user's) are read without a lock, which is told.
    """
    try:
        lock = RunLock(run.files.lock, time.time)
    except MachineError as error:
        if not _is_read_only(error) or held(run.files.lock, time.time):
            raise
        tell(f"{run.name}, {run.files.subset}: read without a lock, since the folder cannot be written")
        yield lambda: None
        return
    try:
        yield lock.beat
    finally:
        lock.release()


def _index(benchmark: Benchmark, subset: str, tasks: Path, results: Path) -> TaskIndex:
    """The index of the tasks, kept under the results folder where that can be written."""
    try:
        return index_file(benchmark, subset, tasks, results)
    except MachineError as error:
        if not _is_read_only(error):
            raise
    with tempfile.TemporaryDirectory() as elsewhere:
        return index_file(benchmark, subset, tasks, Path(elsewhere))


def _is_read_only(error: MachineError) -> bool:
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in READ_ONLY


# Playing again


def _benchmark(run: Earlier, folder: Path | None) -> tuple[Benchmark, str | None]:
    """The benchmark of a run, and why its records cannot be played again from the saved responses, None if they can."""
    why = _unplayable(run)
    made = run.as_it_was(folder, play=why is None)
    if why is None:
        now = {name: hashlib.sha256(content).hexdigest() for name, content in made.files.items()}
        was = run.manifest.identity
        if was.get("prompt_version") != made.prompt_version or was["files"] != now:
            why = "its prompt is another by now"
        elif run.manifest.provenance.get("parser_version") != made.parser_version:
            why = "replies are read otherwise by now"
        elif run.manifest.provenance.get("allowed"):
            why = "it went on with other settings"
    return made, why and f"records were compared with the saved responses by their counts alone: {why}"


def _unplayable(run: Earlier) -> str | None:
    identity, source = run.manifest.identity, run.manifest.provenance.get("source")
    if identity["settings"].get("mode") == "agent" or (source and Path(source).suffix == ".py"):
        return "to play them again would run code that the run was given"
    if any(path != run.files.folder / name for name, path in _kept(run.files, identity["files"]).items()):
        return "its prompt is not in the folder"
    return None


def _kept(files: RunFiles, digests: Mapping[str, Any]) -> dict[str, Path | None]:
    """Where the bytes of each prompt or agent file lie: under its name, or set aside; None where nowhere."""
    return {name: _copy(files.folder, name, digest) for name, digest in digests.items()}


def _copy(folder: Path, name: str, digest: Any) -> Path | None:
    if Path(name).name != name:
        return None
    copies = (folder / name, *sorted(folder.glob(f"{escape(name)}.before-*")))
    return next((path for path in copies if path.is_file() and _sha256(path) == digest), None)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Player:
    """Plays users again from their saved responses."""

    def __init__(self, benchmark: Benchmark, sampling: Sampling, loop: asyncio.Runner) -> None:
        self._benchmark = benchmark
        self._sampling = sampling
        self._loop = loop

    def wrong(self, task: Any, data: JSON, saved: Mapping[tuple[str, int], Completion]) -> str | None:
        """What a record has otherwise than the responses give it, None for nothing."""
        conversation = replaying(self._sampling, saved)
        try:
            answer = self._loop.run(self._benchmark.play(task, conversation.ask))
        except Diverged:
            return "was made of a response that is not there"
        made = self._benchmark.record(task, answer, self._benchmark.measure(task, answer))
        found = {name: value for name, value in data.items() if name not in ("task", "format")}
        name = _unlike(found, orjson.loads(orjson.dumps(made)))
        return None if name is None else f"is not what the saved responses give ({name} differs)"


def _counted(data: JSON, saved: Mapping[tuple[str, int], Completion]) -> str | None:
    """What can be told without playing: how many responses there are, and their tokens where none is to spare."""
    usage, whole = data["usage"], Usage()
    if len(saved) < usage["requests"]:
        return f"was made of {usage['requests']} responses, and {len(saved)} of them are there"
    for completion in saved.values():
        whole = whole.plus(completion)
    spare = len(saved) > usage["requests"]
    return None if spare or whole.data == usage else "has other tokens than its saved responses"


class Replies:
    """The saved responses of a run. A response takes 32 bytes of memory."""

    def __init__(self, path: Path, index: TaskIndex, beat: Callable[[], None]) -> None:
        self._path = path
        self._index = index
        self._beat = beat
        self._positions, self._offsets = np.empty(0, np.int64), np.empty(0, np.int64)

    def findings(self) -> Iterator[str]:
        """Reads them all, and says what is wrong with single lines."""
        numbers, positions, offsets, keys = array("q"), array("q"), array("q"), array("Q")
        for number, line in enumerate(lines(self._path), 1):
            self._beat()
            data = _opened(line)
            if data is None:
                yield f"{self._path.name}, line {number}: {TORN}"
                continue
            position = self._index.find(str(data.get("user_id")))
            numbers.append(number)
            positions.append(-1 if position is None else position)
            offsets.append(line.offset)
            keys.append(key_hash(f"{data.get('user_id')} {data.get('request')} {data.get('nth')}"))
        order = np.argsort(np.frombuffer(positions, np.int64), kind="stable")
        self._positions = np.frombuffer(positions, np.int64)[order]
        self._offsets = np.frombuffer(offsets, np.int64)[order]
        for number in _repeated(np.frombuffer(keys, np.uint64), np.frombuffer(numbers, np.int64)):
            yield f"{self._path.name}, line {number}: this response stands there twice"

    def of(self, position: int) -> dict[tuple[str, int], Completion]:
        """A user's, by request digest and how many times that was asked before. Raises `MISSHAPEN`."""
        first, last = np.searchsorted(self._positions, (position, position + 1))
        found = {}
        if first < last:
            with self._path.open("rb") as file:
                for offset in self._offsets[first:last]:
                    file.seek(int(offset))
                    data = unseal(file.readline().rstrip(b"\n"))
                    found[data["request"], data["nth"]] = Completion(**data["completion"])
        return found


def _repeated(keys: NDArray[np.uint64], numbers: NDArray[np.int64]) -> list[int]:
    """The numbers of lines whose key stands in an earlier line."""
    order = np.argsort(keys, kind="stable")
    again = order[1:][keys[order][1:] == keys[order][:-1]]
    return sorted(int(number) for number in numbers[again])


# The checks


class Check:
    """The checks of one run, over its files as they lie there; nothing is changed."""

    def __init__(
        self,
        files: RunFiles,
        manifest: Manifest,
        benchmark: Benchmark,
        index: TaskIndex,
        replies: Replies,
        player: Player | None,
        beat: Callable[[], None],
    ) -> None:
        selection = manifest.selection
        self.expected = index.select(selection["ratio"], selection["sample_seed"])
        self.notes: list[str] = []
        self._files = files
        self._manifest = manifest
        self._benchmark = benchmark
        self._index = index
        self._replies = replies
        self._player = player
        self._beat = beat
        self._offsets = np.full(len(index), -1, np.int64)
        self._numbers = np.zeros(len(index), np.int64)
        self._failed = np.zeros(len(index), np.bool_)
        self._scores: ReportScores | None = ReportScores(benchmark.scorer(files.subset))
        self._diverged = 0
        self._last = -1

    @property
    def done(self) -> NDArray[np.bool_]:
        """A mask of the tasks that have a record."""
        return self._offsets >= 0

    def findings(self) -> Iterator[str]:
        yield from self._tasks()
        yield from self._kept_files()
        yield from self._unsound(self._files.events)
        yield from self._failures()
        yield from self._replies.findings()
        yield from self._results()
        yield from self._records()
        yield from self._users()
        if self._manifest.state != RUNNING:
            yield from self._counts()
            yield from self._report()

    def _tasks(self) -> Iterator[str]:
        manifest, index = self._manifest, self._index
        if manifest.subset != self._files.subset:
            yield f"{self._files.manifest.name} is of {manifest.subset}"
        if manifest.identity["benchmark"] != self._benchmark.name:
            yield f"{self._files.manifest.name}: identity.benchmark is {manifest.identity['benchmark']}"
        if manifest.tasks["sha256"] != index.sha256:
            yield f"{index.path} is not the tasks file that this run was made with"
        elif manifest.tasks["users"] != len(index):
            yield f"{self._files.manifest.name}: tasks.users is {manifest.tasks['users']}, there are {len(index)}"
        if manifest.tasks.get("truth", "") != self._benchmark.truth:
            yield "the ground truth is not the one that the report was made with: `reeval` makes it anew"

    def _kept_files(self) -> Iterator[str]:
        for name, path in _kept(self._files, self._manifest.identity["files"]).items():
            if path is None:
                yield f"{name} is not the file that this run was made with, or has gone"

    def _unsound(self, path: Path) -> Iterator[str]:
        for number, line in enumerate(lines(path), 1):
            self._beat()
            if _opened(line) is None:
                yield f"{path.name}, line {number}: {TORN}"

    def _failures(self) -> Iterator[str]:
        """Unsound and doubled lines (each tells its time); takes up who has failed, as their tasks now stand."""
        path, seen = self._files.failures, set()
        for number, line in enumerate(lines(path), 1):
            self._beat()
            data = _opened(line)
            if data is None:
                yield f"{path.name}, line {number}: {TORN}"
                continue
            if line.text in seen:
                yield f"{path.name}, line {number}: this failure stands there twice"
            seen.add(line.text)
            position = self._position(data)
            if position is not None:
                self._failed[position] = True

    def _position(self, data: JSON) -> int | None:
        """Of the task that a line is about, None where that is not there or has another content by now."""
        position = self._index.find(str(data.get("user_id")))
        return position if position is not None and self._index.digest(position) == data.get("task") else None

    def _results(self) -> Iterator[str]:
        """Lines that are torn, doubled, foreign or in another order; takes up where each user's record is."""
        whole, path, outside = hashlib.sha256(), self._files.results, 0
        complete = self._manifest.state == COMPLETE
        for number, line in enumerate(lines(path), 1):
            self._beat()
            whole.update(line.text + b"\n")
            data = _opened(line)
            position = None if data is None else self._position(data)
            if data is None:
                yield f"{path.name}, line {number}: {TORN}"
            elif position is not None:
                if wrong := self._misplaced(position, complete):
                    yield f"{path.name}, line {number}: user {data['user_id']} {wrong}"
                self._offsets[position], self._numbers[position] = line.offset, number
            elif complete:
                yield f"{path.name}, line {number}: user {data.get('user_id')} has no such task"
            else:
                outside += 1
        if outside:
            self.notes.append(f"{outside} records are of users or contents that the tasks file does not have")
        if complete and whole.hexdigest() != self._manifest.results_sha256:
            yield f"{path.name} is not the file that the manifest names (SHA-256 differs)"
        if not complete and self._manifest.results_sha256 is not None:
            yield f"{self._files.manifest.name} names a finished results file, and says {self._manifest.state}"

    def _misplaced(self, position: int, complete: bool) -> str | None:
        in_order, self._last = position > self._last, position
        if self._offsets[position] >= 0:
            return "stands there twice"
        return "is not in the order of the tasks file" if complete and not in_order else None

    def _records(self) -> Iterator[str]:
        """Records that are not what their answers or responses give; takes up their scores, in the tasks' order."""
        path = self._files.results
        if not self.done.any():
            return
        with path.open("rb") as file:
            for position in map(int, np.flatnonzero(self.done)):
                self._beat()
                file.seek(int(self._offsets[position]))
                data = unseal(file.readline().rstrip(b"\n"))
                if wrong := self._record(position, data):
                    self._scores = None
                    yield f"{path.name}, line {self._numbers[position]}: {wrong}"

    def _record(self, position: int, data: JSON) -> str | None:
        """What is wrong with a record, None for nothing."""
        who = f"user {data['user_id']}"
        task = self._benchmark.load(self._index.read(position), self._files.subset)
        try:
            again = orjson.loads(orjson.dumps(self._benchmark.rescore(task, data)))
            if again != data:
                return f"the metrics of {who} differ from a re-score"
            if wrong := self._unlike_responses(task, position, data):
                return f"the record of {who} {wrong}"
            if self._scores is not None:
                self._scores.add(Record(str(data["user_id"]), data))
        except MISSHAPEN as error:
            return f"the record of {who} cannot be scored again ({error})"
        return None

    def _unlike_responses(self, task: Any, position: int, data: JSON) -> str | None:
        if data.get("reparse") == "diverged":  # `reeval` has said so, and kept it
            self._diverged += 1
            return None
        try:
            saved = self._replies.of(position)
        except MISSHAPEN:
            return "has a saved response that is none"
        return _counted(data, saved) if self._player is None else self._player.wrong(task, data, saved)

    def _users(self) -> Iterator[str]:
        """Input users that are neither recorded nor failed, where the run says that all have been played."""
        state = self._manifest.state
        if state not in (COMPLETE, INCOMPLETE):
            return
        there = self.done if state == COMPLETE else self.done | self._failed
        for position in np.flatnonzero(self.expected & ~there):
            yield f"{self._index.where(int(position))}: this user has neither a record nor a failure"

    def _counts(self) -> Iterator[str]:
        """Numbers of the manifest that the files do not bear out."""
        expected = self.expected | self.done
        real = {"users": int(expected.sum()), "done": int(self.done.sum()), "failed": self._failed_users()}
        for name, count in real.items():
            if self._manifest.counts.get(name) != count:
                told = self._manifest.counts.get(name)
                yield f"{self._files.manifest.name}: counts.{name} is {told}, and there are {count}"

    def _failed_users(self) -> int:
        return int((self._failed & self.expected & ~self.done).sum())

    # The report

    def _report(self) -> Iterator[str]:
        """Files of the report that are not what the results give."""
        if self._scores is None:
            self.notes.append("the report was not compared with results that are not sound")
            return
        path = self._files.report("json")
        content = _content(path)
        try:
            made = self._made(self._scores, *self._told_elsewhere(content))
        except MISSHAPEN as error:
            yield f"{self._files.manifest.name}: no report can be made of what it says ({error!r})"
            return
        if _dumped(made) == content:
            others = {self._files.report("txt").name: text.render(made).encode(), **made.files}
            for name, expected in others.items():
                if _content(self._files.folder / name) != expected:
                    yield f"{name} {'is not' if _content(self._files.folder / name) else 'has gone: it was'} {ANEW}"
        elif wrong := _report_unlike(content, made):
            yield f"{path.name} {wrong}, is not {ANEW}"
        else:
            self.notes.append("the report was made on another machine: its figures agree, its text was not compared")

    def _told_elsewhere(self, content: bytes) -> tuple[str, tuple[str, ...]]:
        """What a report alone tells: the folder's name at that time, which may be another one by now, and what the
        last `reeval --reparse` said of users that kept their records."""
        folder, kept = self._files.folder.name, f"{self._diverged} users could not be played again"
        try:
            found = orjson.loads(content)
            name, notes = str(found["name"]), found["notes"] if self._diverged else ()
            if name != folder:
                self.notes.append(f"the report was made when this folder was called {name}")
            return name, tuple([note for note in notes if note.startswith(kept)])
        except MISSHAPEN:
            return folder, ()

    def _made(self, scores: ReportScores, name: str, notes: tuple[str, ...]) -> Report:
        """The report of what is there, as `run` and `reeval` make it."""
        job = Job(
            self._benchmark,
            self._files.subset,
            sampling_again(self._manifest),
            self._manifest.provenance["endpoint"],
            self._index,
            cast(RunStore, None),  # a writer, and nothing is written here
            self.expected | self.done,
        )
        about = facts(job, self._manifest, name, self._failed_users())
        return scores.report(replace(about, notes=(*about.notes, *notes)))


ANEW = "what the results give (`reeval` makes it anew)"


def _dumped(report: Report) -> bytes:
    return orjson.dumps(report.data, option=orjson.OPT_INDENT_2) + b"\n"


def _content(path: Path) -> bytes:
    """Nothing of a file that is not there."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise MachineError(f"cannot read {path}: {error.strerror}") from error


def _report_unlike(content: bytes, made: Report) -> str | None:
    """What a report has otherwise, but for the last digits of another machine; None for nothing."""
    try:
        found = orjson.loads(content)
    except ValueError:
        return "is not JSON" if content else "has gone"
    if orjson.dumps(found, option=orjson.OPT_INDENT_2) + b"\n" != content:
        return "was changed since it was written"
    name = _unlike(found, orjson.loads(orjson.dumps(made.data)))
    return None if name is None else f"differs in {name}"


def _unlike(found: Any, expected: Any, name: str = "") -> str | None:
    """The dotted name of the first value that is another one, None where all agree; fractions to within `AGREE`."""
    if isinstance(found, dict) and isinstance(expected, dict):
        pairs = [(str(key), found.get(key, ...), expected.get(key, ...)) for key in {**expected, **found}]
    elif isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        pairs = [(str(at), *pair) for at, pair in enumerate(zip(found, expected, strict=True))]
    elif isinstance(found, float) and isinstance(expected, float):
        return None if math.isclose(found, expected, rel_tol=AGREE, abs_tol=AGREE) else name
    else:
        return None if type(found) is type(expected) and found == expected else name or "all of it"
    within = (_unlike(one, other, f"{name}.{key}" if name else key) for key, one, other in pairs)
    return next((one for one in within if one is not None), None)


# Lines


def _opened(line: Line) -> JSON | None:
    """The object of a line that is as it was written, None for any other."""
    if not sound(line.text) or line.size != len(line.text) + 1:
        return None
    try:
        return unseal(line.text)
    except ValueError:
        return None


def _show(proofs: list[JSON]) -> None:
    screen = console()
    for proof in proofs:
        findings = proof["findings"]
        verdict = f"{len(findings)} findings" if findings else "sound"
        users = f"{proof['records']} of {proof['users']} users"
        told = f"{proof['name']}, {proof['subset']}: {users}, {proof['state']}: {verdict}"
        more = [f"  and {len(findings) - SHOWN} more"] if len(findings) > SHOWN else []
        notes = [f"  note: {note}" for note in proof["notes"]]
        for words in (told, *(f"  {finding}" for finding in findings[:SHOWN]), *more, *notes):
            screen.print(words, soft_wrap=True)
