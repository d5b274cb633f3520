"""Check a run's folder: under its lock, or without one where nothing may be written (`verify`)."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from harness.analysis.imported import Imported
from harness.analysis.replies import Beat
from harness.analysis.saved_runs import SavedRun
from harness.benchmark import Benchmark, kept_files
from harness.benchmarks.records import ODD_SHAPE
from harness.commands.verify import checksums, proof
from harness.engine.files import index_file
from harness.errors import BadInput, InUse
from harness.model import JSON
from harness.options.plan import sampling_again
from harness.store.lock import RunLock, held
from harness.store.manifest import Selection, load
from harness.store.tasks import TaskIndex
from harness.ui import streams


def prove(run: SavedRun, results: Path, folder: Path | None, without_tasks: bool) -> JSON:
    """Check a run; return what was checked, with a sentence per finding.

    `folder` is that of the tasks, None for the run's own; `without_tasks` checks the lines alone.
    """
    tasks = None
    if not without_tasks:
        try:
            tasks = run.tasks(folder)
        except BadInput as error:
            raise BadInput(f"{error}, or check its lines alone with --without-tasks") from None
    with _locked(run) as beat:
        # The first look was without the lock, and another command may have changed the run since.
        manifest = load(run.files.manifest)  # read again under the lock
        if manifest is None:
            raise BadInput(f"{run.files.manifest} no longer exists")
        current = replace(run, manifest=manifest)
        if tasks:
            outcome = _check_run(current, tasks, folder, results, beat)
        else:
            outcome = checksums.without_tasks(current, beat)
    return {"name": run.name, "subset": run.files.subset, "state": manifest.state, **outcome}


def imported(scores: Imported) -> JSON:
    """Check the lines of another program's results, which `reeval` scored."""
    about = {"name": scores.name, "subset": scores.files.subset, "users": None}
    if scores.report is None:
        return {
            **about,
            "state": "not scored",
            "records": 0,
            "findings": [scores.remedy],
            "notes": [],
        }
    findings = list[str]()
    with _locked(scores) as beat:
        recorded, _ = checksums.check_records(scores.files.results, beat, findings)
    scored = sum([task != "None" for _, task, _ in recorded])
    notes = [f"{checksums.LINES_ONLY}; `reeval` scores them again"]
    return {**about, "state": "scored", "records": scored, "findings": findings, "notes": notes}


def _check_run(run: SavedRun, tasks: Path, folder: Path | None, results: Path, beat: Beat) -> JSON:
    """Check a run against its tasks file; return the counts, findings and notes."""
    manifest = run.manifest
    try:
        benchmark, not_played = _benchmark_of(run, folder)
    except ODD_SHAPE as error:
        raise BadInput(
            f"{run.files.manifest}: field identity: cannot be used ({error!r})"
        ) from None
    opened = _index(benchmark, run.files.subset, tasks, results, manifest.selection)
    with closing(opened) as index, asyncio.Runner() as loop:
        player = None
        if not_played is None:
            player = proof.Replayer(benchmark, sampling_again(manifest), loop)
        check = proof.Check(run, benchmark, index, player, beat)
        findings = list(check.findings())
    return {
        "users": index.users(check.expected),
        "records": index.users(check.done),
        "findings": findings,
        "notes": [not_played, *check.notes] if not_played else check.notes,
    }


def _benchmark_of(run: SavedRun, folder: Path | None) -> tuple[Benchmark, str | None]:
    """Return the benchmark of a run, and why its records cannot be replayed from the saved
    responses, if so."""
    in_place = {name: run.files.folder / name for name in run.manifest.identity["files"]}
    why = None
    # The code in a folder from somebody else must not run because its owner wants it verified.
    if run.has_code and not run.trust:
        why = "playing them again would run the run's own code (--trust)"
    elif checksums.kept_copies(run) != in_place:
        why = "its prompt is not in the folder"
    benchmark = run.as_it_was(folder, play=why is None)
    if why is None:
        why = _changed_since(run, benchmark)
    if why:
        why = f"records were compared with the saved responses by their counts alone: {why}"
    return benchmark, why


def _changed_since(run: SavedRun, benchmark: Benchmark) -> str | None:
    """Return what would make other records of the saved responses now, None for nothing."""
    identity = run.manifest.identity
    digests = {name: sha256(data).hexdigest() for name, data in kept_files(benchmark).items()}
    if identity.get("prompt_version") != benchmark.version or identity["files"] != digests:
        return "its prompt has changed"
    if run.manifest.provenance.get("parser_version") != benchmark.about.parser_version:
        return "the parser has changed"
    allowed = run.manifest.provenance.get("allowed", ())
    # With other models in its roles every record was made again.
    if not all(change.startswith("roles.") for change in allowed):
        return "it was resumed with other settings"
    return None


@contextmanager
def _locked(run: SavedRun | Imported) -> Iterator[Beat]:
    """Lock a run and yield a function to call now and then, which keeps the lock.

    A folder that is read-only, another user's or a link is read without a lock, with a message.
    Raise `InUse` if another process holds it.
    """
    if _is_writable(run.files.folder):
        lock = RunLock(run.files.lock, time.time)
        try:
            yield lock.beat
        finally:
            lock.release()
        return
    if held(run.files.lock, time.time):
        raise InUse(
            f"{run.files.folder} is in use by another process: wait for it, or end it and try again"
        )
    why = "the folder is a link, another user's, or cannot be written"
    streams.tell(f"{run.name}, {run.files.subset}: read without a lock: {why}")
    yield lambda: None


def _is_writable(folder: Path) -> bool:
    """Return whether a folder is this user's own, no link to another one, and can be written."""
    return (
        not folder.is_symlink()
        and folder.stat().st_uid == os.geteuid()
        and os.access(folder, os.W_OK)
    )


def _index(
    benchmark: Benchmark, subset: str, tasks: Path, results: Path, selection: Selection
) -> TaskIndex:
    """Return the index of the tasks, kept under the results folder if that can be written."""
    with TemporaryDirectory() as elsewhere:
        folder = Path(elsewhere)
        # An index next to the results makes the next check faster.
        if all(map(_is_writable, (results.resolve(), *results.glob(".index")))):
            folder = results
        return index_file(benchmark, subset, tasks, folder, selection)
