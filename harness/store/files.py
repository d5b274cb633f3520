"""Names of the files of a run (docs/design.md, section 5)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class RunFiles:
    folder: Path
    subset: str

    @property
    def results(self) -> Path:
        return self.folder / f"inference_results_{self.subset}.jsonl"

    @property
    def responses(self) -> Path:
        return self.folder / f"responses_{self.subset}.jsonl"

    @property
    def failures(self) -> Path:
        return self.folder / f"failures_{self.subset}.jsonl"

    @property
    def manifest(self) -> Path:
        return self.folder / f"run_{self.subset}.json"

    @property
    def events(self) -> Path:
        return self.folder / f"run_{self.subset}.log"

    @property
    def lock(self) -> Path:
        return self.folder / f"run_{self.subset}.lock"

    def report(self, kind: str) -> Path:
        return self.folder / f"eval_report_{self.subset}.{kind}"

    @property
    def reports(self) -> tuple[Path, ...]:
        """All that is written with a report, and true only as long as that is."""
        return self.report("txt"), self.report("json"), *self.pages, self.folder / f"generated_{self.subset}.json"

    @property
    def pages(self) -> tuple[Path, ...]:
        """What shows both the report and the records, and is true only as long as neither changes."""
        return self.report("html"), self.all_users

    @property
    def all_users(self) -> Path:
        """The page of every user (`report --users all`)."""
        return self.folder / f"users_{self.subset}.html"


def runs(results_folder: Path) -> Iterator[RunFiles]:
    """Every run that has a manifest below a results folder, by name and subset."""
    for folder in sorted(path for path in results_folder.glob("*") if path.is_dir()):
        yield from runs_in(folder)


def runs_in(folder: Path) -> Iterator[RunFiles]:
    """The runs of one name, by subset."""
    for path in sorted(folder.glob("run_*.json")):
        yield RunFiles(folder, path.stem.removeprefix("run_"))
