"""Results without a manifest: another program wrote them, and `reeval` scores them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote

from harness.benchmarks import registry
from harness.benchmarks.files import DOCUMENT_MOST, content
from harness.errors import BadInput
from harness.model import JSON
from harness.reporting import report_files
from harness.scoring.reports import Report
from harness.store.files import RunFiles
from harness.store.log import has_valid_crc, lines

PREFIX = "inference_results_"


@dataclass(frozen=True, slots=True)
class Imported:
    """Results of another program on one subset."""

    files: RunFiles

    @property
    def name(self) -> str:
        return self.files.folder.name

    @property
    def label(self) -> str:
        return f"{self.name}, {self.files.subset}"

    @property
    def report(self) -> Report | None:
        """Return the report of these results; None if `reeval` has not scored them, or they were
        written again."""
        first = next((line.text for line in lines(self.files.results)), b"")
        if not has_valid_crc(first):  # `reeval` gives each line a checksum
            return None
        try:
            return report_files.read(content(self.files.report("json"), DOCUMENT_MOST))
        except (OSError, BadInput):
            return None

    @property
    def is_current(self) -> bool:
        """Return whether the report is of these very results: another program has no line added or
        changed since."""
        if self.report is None:
            return False
        # A file that another program has continued begins with lines of `reeval`, so all are looked
        # at.
        return all(has_valid_crc(line.text) for line in lines(self.files.results) if line.text)

    @property
    def remedy(self) -> str:
        """Return why results without a report cannot be shown, and the command to run."""
        try:
            registry.importing(self.files.subset)
        except BadInput as error:
            return str(error)
        return f"results of another program, not scored as they are now: run `{self.command}`"

    def row(self, usage: JSON) -> JSON:
        """Return the row of `status`; how many users there should be is unknown until they are
        scored."""
        results = self.files.results
        report = self.report
        state = "not scored (reeval it)"
        expected: int | None = None
        failed = 0
        if report and self.is_current:
            state = "scored"
            expected = report.coverage.expected_users
            done = report.coverage.scored_users
            failed = report.coverage.failed_users
        else:
            done = sum(1 for line in lines(results) if line.text)
        updated = datetime.fromtimestamp(results.stat().st_mtime, UTC)
        return {
            "name": self.name,
            "subset": self.files.subset,
            "model": self.name,
            "state": state,
            "users": expected,
            "done": done,
            "failed": failed,
            **usage,
            "updated": updated.isoformat(timespec="seconds"),
        }

    @property
    def command(self) -> str:
        return f"harness reeval --name {quote(self.name)}"


def imported(results: Path) -> Iterator[Imported]:
    """Yield the results without a manifest below a results folder."""
    for path in sorted(results.glob(f"*/{PREFIX}*.jsonl")):
        files = RunFiles(path.parent, path.stem.removeprefix(PREFIX))
        if not files.manifest.exists():
            yield Imported(files)


def imported_of(files: RunFiles) -> Imported | None:
    """Return the results of another program that are in a folder of the results."""
    for results in imported(files.folder.parent):
        if results.files.results == files.results:
            return results
    return None
