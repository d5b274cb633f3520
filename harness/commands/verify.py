"""`verify`: check runs' folders and report what is wrong in each. The checks are in `proof`."""

from __future__ import annotations

import argparse
import asyncio
import errno
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from harness.analysis import selection
from harness.analysis.imported import Imported
from harness.analysis.saved_runs import SavedRun
from harness.analysis.verification import checksums, proof, replayed
from harness.benchmark import Benchmark
from harness.config import options
from harness.config.plan import sampling_again
from harness.engine.files import index_file
from harness.errors import BadInput, InUse, MachineError
from harness.model import JSON
from harness.store.files import RunFiles
from harness.store.lock import RunLock, held
from harness.store.manifest import RUNNING, load
from harness.store.tasks import TaskIndex
from harness.ui import streams
from harness.ui.console import console
from harness.ui.words import plural

SHOWN = 5
"""Most findings printed for a run; the JSON has all."""
NOT_WRITABLE = "cannot be written"
READ_ONLY = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_which(parser)
    options.add_earlier(parser)
    options.add_json(parser)
    words = "check only that every line is as it was written, for a folder without its tasks"
    options.add(parser, "--without-tasks", words, action="store_true")


def execute(args: argparse.Namespace) -> int:
    if args.without_tasks and args.tasks_dir:
        raise BadInput("--without-tasks leaves out the tasks that --tasks-dir names: give one of the two")
    found, skipped = selection.find(args)
    theirs, unnamed = selection.find_imported(args)
    if not found and not theirs:
        raise selection.nothing_found(args)
    made, failed = selection.each(found, lambda run: _prove_free(run, args), lambda run: run.label)
    others, unread = selection.each(theirs, _imported, lambda of: of.label)
    proofs = [*(proof for proof in made if proof is not None), *others]
    if args.json:
        streams.show_json(proofs)
    else:
        _show(proofs)
    unchecked = InUse.exit_code if made and not proofs else 0
    return max(skipped, unnamed, failed, unread, unchecked, *(int(bool(proof["findings"])) for proof in proofs))


def _prove_free(run: SavedRun, args: argparse.Namespace) -> JSON | None:
    """Check a run; pass over one in use with a line, and return None."""
    try:
        return _prove(run, args)
    except InUse as error:
        streams.tell(f"{run.label}: not checked: {error}")
        return None


def _prove(run: SavedRun, args: argparse.Namespace) -> JSON:
    """Check a run; return what was checked, with a sentence per finding."""
    try:
        tasks = None if args.without_tasks else run.tasks(args.tasks_dir)
    except BadInput as error:
        raise BadInput(f"{error}, or check its lines alone with --without-tasks") from None
    with _locked(run) as beat:
        manifest = load(run.files.manifest)  # read again under the lock
        if manifest is None:
            raise BadInput(f"{run.files.manifest} no longer exists")
        now = replace(run, manifest=manifest)
        if tasks is not None:
            made = _whole(now, tasks, args, beat)
        else:
            check = checksums.LinesCheck(now, beat)
            findings = list(check.findings())
            made = {"users": None, "records": check.records, "findings": findings, "notes": [checksums.ALONE]}
    return {"name": run.name, "subset": run.files.subset, "state": manifest.state, **made}


def _imported(of: Imported) -> JSON:
    """Check the lines of another program's results, which `reeval` scored."""
    about = {"name": of.name, "subset": of.files.subset, "users": None}
    if of.report is None:
        return {**about, "state": "not scored", "records": 0, "findings": [of.remedy], "notes": []}
    with _locked(of) as beat:
        records, findings = checksums.imported(of, beat)
    notes = [f"{checksums.ALONE}; `reeval` scores them again"]
    return {**about, "state": "scored", "records": records, "findings": findings, "notes": notes}


def _whole(run: SavedRun, tasks: Path, args: argparse.Namespace, beat: Callable[[], None]) -> JSON:
    manifest = run.manifest
    try:
        benchmark, unplayed = replayed.benchmark_of(run, args.tasks_dir)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(f"{run.files.manifest}: field identity: cannot be used ({error!r})") from None
    opened = _index(benchmark, run.files.subset, tasks, args.results_dir, manifest.repeats)
    with closing(opened) as index, asyncio.Runner() as loop:
        player = replayed.Player(benchmark, sampling_again(manifest), loop) if unplayed is None else None
        check = proof.Check(run, benchmark, index, player, beat)
        findings = list(check.findings())
    users, records = index.users(check.expected), index.users(check.done)
    notes = [*filter(None, [unplayed]), *check.notes]
    return {"users": users, "records": records, "findings": findings, "notes": notes}


@contextmanager
def _locked(run: SavedRun | Imported) -> Iterator[Callable[[], None]]:
    """Lock a run and yield a function to call now and then, which keeps the lock.

    A folder that is read-only, another user's or a link is read without a lock, with a message.
    """
    lock, why = _lock(run.files)
    if lock is None:
        streams.tell(f"{run.name}, {run.files.subset}: read without a lock: the folder {why}")
        yield lambda: None
        return
    try:
        yield lock.beat
    finally:
        lock.release()


def _lock(files: RunFiles) -> tuple[RunLock | None, str]:
    """Return a run's lock, or why it cannot be locked. Raise `InUse` if another process holds it."""
    if why := _untouchable(files.folder):
        if held(files.lock, time.time):
            raise InUse(f"{files.folder} is in use by another process: wait for it, or end it and try again")
        return None, why
    try:
        return RunLock(files.lock, time.time), ""
    except MachineError as error:
        if not _is_read_only(error) or held(files.lock, time.time):
            raise
        return None, NOT_WRITABLE


def _untouchable(folder: Path) -> str:
    """Return why nothing is written into a folder, in words; empty for this user's own."""
    if folder.is_symlink():
        return "is a symbolic link"
    if folder.stat().st_uid != os.geteuid():
        return "is another user's"
    return "" if os.access(folder, os.W_OK) else NOT_WRITABLE


def _index(benchmark: Benchmark, subset: str, tasks: Path, results: Path, repeats: int) -> TaskIndex:
    """Return the index of the tasks, kept under the results folder if that is this user's and writable."""
    try:
        if not any(map(_untouchable, (results.resolve(), *results.glob(".index")))):
            return index_file(benchmark, subset, tasks, results, repeats)
    except MachineError as error:
        if not _is_read_only(error):
            raise
    with tempfile.TemporaryDirectory() as elsewhere:
        return index_file(benchmark, subset, tasks, Path(elsewhere), repeats)


def _is_read_only(error: MachineError) -> bool:
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in READ_ONLY


def _show(proofs: list[JSON]) -> None:
    screen = console()
    for made in proofs:
        findings, users = made["findings"], made["users"]
        verdict = plural(len(findings), "finding") if findings else "sound lines" if users is None else "sound"
        state = "died" if made["state"] == RUNNING else made["state"]  # nobody plays it while it is locked
        of = "" if users is None else f" of {users}"
        lines = [f"{made['name']}, {made['subset']}: {made['records']}{of} users, {state}: {verdict}"]
        lines += [f"  {finding}" for finding in findings[:SHOWN]]
        lines += [f"  and {len(findings) - SHOWN} more"] if len(findings) > SHOWN else []
        for line in (*lines, *(f"  note: {note}" for note in made["notes"])):
            screen.print(line, soft_wrap=True)
