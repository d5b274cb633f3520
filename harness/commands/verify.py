"""`verify`: proves a run's folder. Every line sound, every input user exactly once, metrics equal to a re-score."""

from __future__ import annotations

import argparse
import errno
import hashlib
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import orjson

from harness.commands import earlier, options
from harness.commands.earlier import Earlier
from harness.commands.files import index_file
from harness.errors import BadInput, MachineError
from harness.model import JSON, Benchmark
from harness.store.lock import RunLock, held
from harness.store.log import Line, lines, sound, unseal
from harness.store.manifest import COMPLETE, INCOMPLETE, Manifest, load
from harness.store.run import RunFiles
from harness.store.tasks import TaskIndex
from harness.ui.console import console
from harness.ui.streams import show, tell

SHOWN = 5
"""Findings of a run that are printed; the JSON has all."""

READ_ONLY = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


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
    benchmark, tasks = run.as_it_was(args.tasks_dir, play=False), run.tasks(args.tasks_dir)
    with _locked(run) as beat:
        manifest = load(run.files.manifest)  # as it stands now that nobody else writes it
        if manifest is None:
            raise BadInput(f"{run.files.manifest} has gone")
        with closing(_index(benchmark, run.files.subset, tasks, args.results_dir)) as index:
            check = _Check(run.files, manifest, benchmark, index, beat)
            findings = list(check.findings())
    proofs.append(
        {
            "name": run.name,
            "subset": run.files.subset,
            "state": manifest.state,
            "users": int(check.expected.sum()),
            "records": int((check.records > 0).sum()),
            "findings": findings,
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


class _Check:
    """The checks of one run, over its files as they lie there; nothing is changed."""

    def __init__(
        self, files: RunFiles, manifest: Manifest, benchmark: Benchmark, index: TaskIndex, beat: Callable[[], None]
    ) -> None:
        selection = manifest.selection
        self.expected = index.select(selection["ratio"], selection["sample_seed"])
        self.records = np.zeros(len(index), np.int32)
        self._files = files
        self._manifest = manifest
        self._beat = beat
        self._benchmark = benchmark
        self._index = index
        self._last = -1

    def findings(self) -> Iterator[str]:
        if self._manifest.tasks["sha256"] != self._index.sha256:
            yield f"{self._index.path} is not the tasks file that this run was made with"
        if self._manifest.tasks.get("truth", "") != self._benchmark.truth:
            yield "the ground truth is not the one that the report was made with: `reeval` makes it anew"
        for path in (self._files.responses, self._files.failures, self._files.events):
            yield from self._unsound(path)
        yield from self._results()
        yield from self._users()

    def _unsound(self, path: Path) -> Iterator[str]:
        for number, line in enumerate(lines(path), 1):
            self._beat()
            if not _whole(line):
                yield f"{path.name}, line {number}: torn or changed since it was written"

    def _results(self) -> Iterator[str]:
        whole = hashlib.sha256()
        path = self._files.results
        for number, line in enumerate(lines(path), 1):
            self._beat()
            whole.update(line.text + b"\n")
            if not _whole(line):
                yield f"{path.name}, line {number}: torn or changed since it was written"
            elif wrong := self._record(unseal(line.text)):
                yield f"{path.name}, line {number}: {wrong}"
        if self._manifest.state == COMPLETE and whole.hexdigest() != self._manifest.results_sha256:
            yield f"{path.name} is not the file that the manifest names (SHA-256 differs)"

    def _record(self, data: JSON) -> str | None:
        """What is wrong with a record, None for nothing."""
        position = self._index.find(str(data.get("user_id")))
        complete = self._manifest.state == COMPLETE
        if position is None or self._index.digest(position) != data.get("task"):
            return f"user {data.get('user_id')} has no such task" if complete else None
        self.records[position] += 1
        if self.records[position] > 1:
            return f"user {data['user_id']} stands there twice"
        in_order, self._last = position > self._last, position
        if complete and not in_order:
            return f"user {data['user_id']} is not in the order of the tasks file"
        task = self._benchmark.load(self._index.read(position), self._files.subset)
        try:
            again = orjson.loads(orjson.dumps(self._benchmark.rescore(task, data)))
        except (BadInput, KeyError, TypeError) as error:
            return f"the record of user {data['user_id']} cannot be scored again ({error})"
        return None if again == data else f"the metrics of user {data['user_id']} differ from a re-score"

    def _users(self) -> Iterator[str]:
        """Input users that are neither recorded nor failed, where the run says that all have been played."""
        state = self._manifest.state
        if state not in (COMPLETE, INCOMPLETE):
            return
        there = self.records > 0
        if state == INCOMPLETE:
            there |= self._failed()
        for position in np.flatnonzero(self.expected & ~there):
            yield f"{self._index.where(int(position))}: this user has neither a record nor a failure"

    def _failed(self) -> np.ndarray:
        failed = np.zeros(len(self._index), np.bool_)
        for line in lines(self._files.failures):
            position = self._index.find(str(unseal(line.text)["user_id"])) if sound(line.text) else None
            if position is not None:
                failed[position] = True
        return failed


def _whole(line: Line) -> bool:
    return sound(line.text) and line.size == len(line.text) + 1


def _show(proofs: list[JSON]) -> None:
    screen = console()
    for proof in proofs:
        findings = proof["findings"]
        verdict = f"{len(findings)} findings" if findings else "sound"
        users = f"{proof['records']} of {proof['users']} users"
        told = f"{proof['name']}, {proof['subset']}: {users}, {proof['state']}: {verdict}"
        more = [f"  and {len(findings) - SHOWN} more"] if len(findings) > SHOWN else []
        for words in (told, *(f"  {finding}" for finding in findings[:SHOWN]), *more):
            screen.print(words, soft_wrap=True)
