"""Names of the files of a run (docs/design.md, section 5)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


class RunFiles:
    def __init__(self, folder: Path, subset: str) -> None:
        self.folder = folder
        self.subset = subset
        self.results = folder / f"inference_results_{subset}.jsonl"
        self.responses = folder / f"responses_{subset}.jsonl"
        self.failures = folder / f"failures_{subset}.jsonl"
        self.batches = folder / f"batches_{subset}.jsonl"
        self.manifest = folder / f"run_{subset}.json"
        self.events = folder / f"run_{subset}.log"
        self.logs = self.results, self.responses, self.failures, self.events
        self.lock = folder / f"run_{subset}.lock"
        self.all_users = folder / f"users_{subset}.html"
        """The page of every user."""
        self.pages = self.report("html"), self.all_users
        """They show the report and the records, and are true only while neither changes."""
        self.reports = (
            self.report("txt"),
            self.report("json"),
            *self.pages,
            folder / f"generated_{subset}.json",
        )
        """All that is written with a report, and true only as long as that is."""

    @property
    def is_bare(self) -> bool:
        """Return whether there are neither replies nor failures, as after a wrong key: a new run
        loses nothing."""
        return not any(map(has_content, (self.results, self.responses, self.failures)))

    def report(self, kind: str) -> Path:
        return self.folder / f"eval_report_{self.subset}.{kind}"


def has_content(path: Path) -> bool:
    """Return whether a file exists, and is not empty."""
    return path.exists() and path.stat().st_size > 0


def runs(results_folder: Path) -> Iterator[RunFiles]:
    """Yield every run that has a manifest below a results folder, by name and subset."""
    for folder in sorted(path for path in results_folder.glob("*") if path.is_dir()):
        yield from runs_in(folder)


def runs_in(folder: Path) -> Iterator[RunFiles]:
    """Yield the runs of one name, by subset."""
    for path in sorted(folder.glob("run_*.json")):
        yield RunFiles(folder, path.stem.removeprefix("run_"))
