"""Lines of a run's files: each as it was written, none twice. The checks that need no tasks.

Whether a user is missing, and whether metrics and report match the answers, needs the tasks
(`proof`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from glob import escape
from pathlib import Path
from typing import Any

from harness.analysis.replies import TORN, Beat, Replies, opened
from harness.analysis.saved_runs import SavedRun
from harness.benchmarks.files import DOCUMENT_MOST, content
from harness.errors import reading
from harness.model import JSON
from harness.store.manifest import COMPLETE

ALONE = (
    "only lines were checked, not whether users are missing or whether metrics and report match the"
    " answers"
)


def kept(run: SavedRun) -> dict[str, Path | None]:
    """Return where the bytes of each prompt or agent file are: under its name, or in a backup; None
    if nowhere."""
    folder, digests = run.files.folder, run.manifest.identity["files"]

    def has(path: Path, digest: object) -> bool:
        with reading(path):
            return (
                path.is_file()
                and hashlib.sha256(content(path, DOCUMENT_MOST)).hexdigest() == digest
            )

    copies = {
        name: (folder / name, *sorted(folder.glob(f"{escape(name)}.before-*"))) for name in digests
    }
    return {
        name: next((path for path in copies[name] if has(path, digest)), None)
        for name, digest in digests.items()
    }


def logs(run: SavedRun, replies: Replies, beat: Beat, saw: Callable[[JSON], None]) -> Iterator[str]:
    """Yield what is wrong with kept files, events, failures and responses; call `saw` with each
    failure.

    A failure that is twice has the same time, too.
    """
    for name, path in kept(run).items():
        if path is None:
            yield f"{name} is not the file that this run was made with, or is missing"
    for at, _, _, data in opened(run.files.events, beat):
        if data is None:
            yield f"{at}: {TORN}"
    seen = set()
    for at, _, line, data in opened(run.files.failures, beat):
        if data is None:
            yield f"{at}: {TORN}"
            continue
        if line.text in seen:
            yield f"{at}: duplicate failure"
        seen.add(line.text)
        saw(data)
    yield from replies.findings()


def without_tasks(run: SavedRun, beat: Beat) -> JSON:
    """Return how many users of a run have a record, and what is wrong with the run without its
    tasks."""
    files, manifest = run.files, run.manifest
    findings = (
        [f"{files.manifest.name} is of {manifest.subset}"]
        if manifest.subset != files.subset
        else []
    )
    findings += logs(
        run, Replies(files.responses, lambda data: None, beat), beat, lambda data: None
    )
    recorded, sha256 = records(files.results, beat, findings)
    findings += unlike_manifest(run, sha256)
    users = {user for user, *_ in recorded}
    return {"users": None, "records": len(users), "findings": findings, "notes": [ALONE]}


def records(path: Path, beat: Beat, findings: list[str]) -> tuple[set[tuple[Any, ...]], str]:
    """Return user, task and repeat of each record of a results file, and the file's SHA-256; add
    what is wrong with its lines to `findings`.

    A user whose task has changed has a record of each version until the run ends.
    """
    whole, recorded = hashlib.sha256(), set[tuple[Any, ...]]()
    for at, _, line, data in opened(path, beat):
        whole.update(line.text + b"\n")
        if data is None:
            findings.append(f"{at}: {TORN}")
            continue
        key = tuple(map(str, map(data.get, ("user_id", "task", "repeat"))))
        if key in recorded:
            findings.append(f"{at}: user {key[0]} has a duplicate record")
        recorded.add(key)
    return recorded, whole.hexdigest()


def unlike_manifest(run: SavedRun, sha256: str) -> Iterator[str]:
    """Yield whether a results file with this hash differs from the one that the manifest names, if
    any.

    A complete run names none after a `reeval` that was interrupted, until the next one.
    """
    files, manifest, complete = run.files, run.manifest, run.manifest.state == COMPLETE
    if complete and manifest.results_sha256 not in (None, sha256):
        yield f"{files.results.name} is not the file that the manifest names (SHA-256 differs)"
    if not complete and manifest.results_sha256 is not None:
        yield (
            f"{files.manifest.name} names a finished results file, but its state is"
            f" {manifest.state}"
        )
