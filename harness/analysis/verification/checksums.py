"""Lines of a run's files: each as it was written, none twice. The checks that need no tasks.

Whether a user is missing, and whether metrics and report match the answers, needs the tasks (`proof`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

from harness.analysis.verification.replayed import TORN, Replies, kept, opened
from harness.model import JSON
from harness.store.log import lines
from harness.store.manifest import COMPLETE, Manifest
from harness.store.run import RunFiles

Beat = Callable[[], None]
ALONE = "only lines were checked, not whether users are missing or whether metrics and report match the answers"


class LinesCheck:
    """The checks of one run without its tasks; nothing is changed. `records` are of different users."""

    def __init__(self, files: RunFiles, manifest: Manifest, beat: Beat) -> None:
        self.records = 0
        self._files = files
        self._manifest = manifest
        self._beat = beat

    def findings(self) -> Iterator[str]:
        if self._manifest.subset != self._files.subset:
            yield f"{self._files.manifest.name} is of {self._manifest.subset}"
        yield from kept_files(self._files, self._manifest)
        yield from torn(self._files.events, self._beat)
        yield from failures(self._files.failures, self._beat, lambda data: None)
        yield from Replies(self._files.responses, lambda user: None, self._beat).findings()
        yield from self._results()
        counted = self._manifest.counts.get("done")
        if self._manifest.state == COMPLETE and counted != self.records:
            yield f"{self._files.manifest.name}: counts.done is {counted}, and there are {self.records}"

    def _results(self) -> Iterator[str]:
        """Check the results. A user whose task has changed has a record of each version until the run ends."""
        path, whole, seen = self._files.results, hashlib.sha256(), set[tuple[str, str]]()
        for number, line in enumerate(lines(path), 1):
            self._beat()
            whole.update(line.text + b"\n")
            data = opened(line)
            if data is None:
                yield f"{path.name}, line {number}: {TORN}"
            elif (made := (str(data.get("user_id")), str(data.get("task")))) in seen:
                yield f"{path.name}, line {number}: user {made[0]} has a duplicate record"
            else:
                seen.add(made)
        self.records = len({user for user, _ in seen})
        yield from unlike_manifest(self._files, self._manifest, whole.hexdigest())


def unlike_manifest(files: RunFiles, manifest: Manifest, sha256: str) -> Iterator[str]:
    """Yield whether a results file with this hash differs from the one that the manifest names, if any."""
    complete = manifest.state == COMPLETE
    if complete and sha256 != manifest.results_sha256:
        yield f"{files.results.name} is not the file that the manifest names (SHA-256 differs)"
    if not complete and manifest.results_sha256 is not None:
        yield f"{files.manifest.name} names a finished results file, and says {manifest.state}"


def kept_files(files: RunFiles, manifest: Manifest) -> Iterator[str]:
    for name, path in kept(files, manifest.identity["files"]).items():
        if path is None:
            yield f"{name} is not the file that this run was made with, or is missing"


def torn(path: Path, beat: Beat) -> Iterator[str]:
    for number, line in enumerate(lines(path), 1):
        beat()
        if opened(line) is None:
            yield f"{path.name}, line {number}: {TORN}"


def failures(path: Path, beat: Beat, saw: Callable[[JSON], None]) -> Iterator[str]:
    """Yield torn and duplicate lines (each has its time); call `saw` with the others."""
    seen = set()
    for number, line in enumerate(lines(path), 1):
        beat()
        data = opened(line)
        if data is None:
            yield f"{path.name}, line {number}: {TORN}"
            continue
        if line.text in seen:
            yield f"{path.name}, line {number}: duplicate failure"
        seen.add(line.text)
        saw(data)
