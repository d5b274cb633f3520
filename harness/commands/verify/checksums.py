"""Lines of a run's files: each as it was written, none twice. The checks that need no tasks.

Whether a user is missing, and whether metrics and report match the answers, needs the tasks
(`proof`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from glob import escape
from hashlib import sha256
from pathlib import Path

from harness.analysis.replies import TORN, Beat, Replies, opened
from harness.analysis.saved_runs import SavedRun
from harness.benchmarks.files import DOCUMENT_MOST, content
from harness.errors import reading
from harness.model import JSON
from harness.store.manifest import COMPLETE

LINES_ONLY = (
    "only lines were checked, not whether users are missing or whether metrics and report match the"
    " answers"
)


def kept_copies(run: SavedRun) -> dict[str, Path | None]:
    """Return where the bytes of each prompt or agent file are: under its name, or in a backup; None
    if nowhere."""
    folder = run.files.folder
    copies = dict[str, Path | None]()
    for name, digest in run.manifest.identity["files"].items():
        backups = sorted(folder.glob(f"{escape(name)}.before-*"))
        candidates = (folder / name, *backups)
        copies[name] = next((path for path in candidates if _has_digest(path, digest)), None)
    return copies


def _has_digest(path: Path, digest: object) -> bool:
    with reading(path):
        return path.is_file() and sha256(content(path, DOCUMENT_MOST)).hexdigest() == digest


def check_logs(
    run: SavedRun, replies: Replies, beat: Beat, saw: Callable[[JSON], None]
) -> Iterator[str]:
    """Yield what is wrong with kept files, events, failures and responses; call `saw` with each
    failure.

    A failure that is twice has the same time, too.
    """
    for name, path in kept_copies(run).items():
        if path is None:
            yield f"{name} is not the file that this run was made with, or is missing"
    for place, _, _, data in opened(run.files.events, beat):
        if data is None:
            yield f"{place}: {TORN}"
    seen = set()
    for place, _, line, data in opened(run.files.failures, beat):
        if data is None:
            yield f"{place}: {TORN}"
            continue
        # Each failed session of a user writes a line, so only an equal one, with its time, is a
        # copy.
        if line.text in seen:
            yield f"{place}: duplicate failure"
        seen.add(line.text)
        saw(data)
    yield from replies.findings()


def without_tasks(run: SavedRun, beat: Beat) -> JSON:
    """Return how many users of a run have a record, and what is wrong with the run without its
    tasks."""
    files = run.files
    findings = list[str]()
    if run.manifest.subset != files.subset:
        findings.append(f"{files.manifest.name} is of {run.manifest.subset}")
    replies = Replies(files.responses, lambda data: None, beat)
    findings += check_logs(run, replies, beat, lambda data: None)
    recorded, digest = check_records(files.results, beat, findings)
    findings += unlike_manifest(run, digest)
    users = {user for user, *_ in recorded}
    return {"users": None, "records": len(users), "findings": findings, "notes": [LINES_ONLY]}


def check_records(path: Path, beat: Beat, findings: list[str]) -> tuple[set[tuple[str, ...]], str]:
    """Return user, task and repeat of each record of a results file, and the file's SHA-256; add
    what is wrong with its lines to `findings`.

    A user whose task has changed has a record of each version until the run ends.
    """
    checksum = sha256()
    recorded = set[tuple[str, ...]]()
    for place, _, line, data in opened(path, beat):
        checksum.update(line.text + b"\n")
        if data is None:
            findings.append(f"{place}: {TORN}")
            continue
        key = tuple([str(data.get(name)) for name in ("user_id", "task", "repeat")])
        if key in recorded:
            findings.append(f"{place}: user {key[0]} has a duplicate record")
        recorded.add(key)
    return recorded, checksum.hexdigest()


def unlike_manifest(run: SavedRun, digest: str) -> Iterator[str]:
    """Yield whether a results file with this hash differs from the one that the manifest names, if
    any.

    A complete run names none after a `reeval` that was interrupted, until the next one.
    """
    files = run.files
    manifest = run.manifest
    if manifest.results_sha256 is None:
        return
    if manifest.state != COMPLETE:
        yield (
            f"{files.manifest.name} names a finished results file, but its state is"
            f" {manifest.state}"
        )
    elif manifest.results_sha256 != digest:
        yield f"{files.results.name} is not the file that the manifest names (SHA-256 differs)"
