"""Check a run's folder: under its lock, or without one where nothing may be written (`verify`)."""

from __future__ import annotations

import asyncio
import errno
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from harness.analysis.saved_runs import SavedRun
from harness.benchmark import Benchmark
from harness.benchmarks.records import ODD_SHAPE
from harness.config.plan import sampling_again
from harness.engine.files import index_file
from harness.errors import BadInput, InUse, MachineError
from harness.feature import Foreign
from harness.features.plays.replies import Beat
from harness.features.verify import checksums, proof, replayed
from harness.model import JSON
from harness.store.lock import RunLock, held
from harness.store.manifest import Selection, load
from harness.store.tasks import TaskIndex
from harness.ui import streams

NOT_WRITABLE = "cannot be written"
READ_ONLY = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


def prove(run: SavedRun, results: Path, folder: Path | None, without_tasks: bool) -> JSON:
    """Check a run; return what was checked, with a sentence per finding.

    `folder` is that of the tasks, None for the run's own; `without_tasks` checks the lines alone.
    """
    try:
        tasks = None if without_tasks else run.tasks(folder)
    except BadInput as error:
        raise BadInput(f"{error}, or check its lines alone with --without-tasks") from None
    with _locked(run) as beat:
        manifest = load(run.files.manifest)  # read again under the lock
        if manifest is None:
            raise BadInput(f"{run.files.manifest} no longer exists")
        now = replace(run, manifest=manifest)
        if tasks is not None:
            made = _whole(now, tasks, folder, results, beat)
        else:
            records, findings = checksums.without_tasks(now, beat)
            made = {"users": None, "records": records, "findings": findings, "notes": [checksums.ALONE]}
    return {"name": run.name, "subset": run.files.subset, "state": manifest.state, **made}


def imported(of: Foreign) -> JSON:
    """Check the lines of another program's results, which `reeval` scored."""
    about = {"name": of.name, "subset": of.files.subset, "users": None}
    if of.report is None:
        return {**about, "state": "not scored", "records": 0, "findings": [of.remedy], "notes": []}
    with _locked(of) as beat:
        records, findings = checksums.imported(of, beat)
    notes = [f"{checksums.ALONE}; `reeval` scores them again"]
    return {**about, "state": "scored", "records": records, "findings": findings, "notes": notes}


def _whole(run: SavedRun, tasks: Path, folder: Path | None, results: Path, beat: Beat) -> JSON:
    manifest = run.manifest
    try:
        benchmark, unplayed = replayed.benchmark_of(run, folder)
    except ODD_SHAPE as error:
        raise BadInput(f"{run.files.manifest}: field identity: cannot be used ({error!r})") from None
    opened = _index(benchmark, run.files.subset, tasks, results, manifest.selection)
    with closing(opened) as index, asyncio.Runner() as loop:
        player = replayed.Replayer(benchmark, sampling_again(manifest), loop) if unplayed is None else None
        check = proof.Check(run, benchmark, index, player, beat)
        findings = list(check.findings())
    users, records = index.users(check.expected), index.users(check.done)
    notes = [*filter(None, [unplayed]), *check.notes]
    return {"users": users, "records": records, "findings": findings, "notes": notes}


@contextmanager
def _locked(run: SavedRun | Foreign) -> Iterator[Beat]:
    """Lock a run and yield a function to call now and then, which keeps the lock.

    A folder that is read-only, another user's or a link is read without a lock, with a message. Raise `InUse` if
    another process holds it.
    """
    lock, why = None, _untouchable(run.files.folder)
    try:
        lock = None if why else RunLock(run.files.lock, time.time)
    except MachineError as error:
        if not _is_read_only(error):
            raise
        why = NOT_WRITABLE
    if lock is None:
        if held(run.files.lock, time.time):
            raise InUse(f"{run.files.folder} is in use by another process: wait for it, or end it and try again")
        streams.tell(f"{run.name}, {run.files.subset}: read without a lock: the folder {why}")
        yield lambda: None
        return
    try:
        yield lock.beat
    finally:
        lock.release()


def _untouchable(folder: Path) -> str:
    """Return why nothing is written into a folder, in words; empty for this user's own."""
    if folder.is_symlink():
        return "is a symbolic link"
    if folder.stat().st_uid != os.geteuid():
        return "is another user's"
    return "" if os.access(folder, os.W_OK) else NOT_WRITABLE


def _index(benchmark: Benchmark, subset: str, tasks: Path, results: Path, selection: Selection) -> TaskIndex:
    """Return the index of the tasks, kept under the results folder if that is this user's and writable."""
    try:
        if not any(map(_untouchable, (results.resolve(), *results.glob(".index")))):
            return index_file(benchmark, subset, tasks, results, selection)
    except MachineError as error:
        if not _is_read_only(error):
            raise
    with tempfile.TemporaryDirectory() as elsewhere:
        return index_file(benchmark, subset, tasks, Path(elsewhere), selection)


def _is_read_only(error: MachineError) -> bool:
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in READ_ONLY
