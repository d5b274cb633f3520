"""The runs that `compare` is about: found by name or folder, and what their users contribute to
every figure.

Only users with a record contribute: a failure has no score. Files are read as they are, even while
they are written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from harness.analysis import selection
from harness.analysis.saved_runs import SavedRun
from harness.benchmarks import registry
from harness.benchmarks.files import DOCUMENT_MOST, content
from harness.benchmarks.records import ODD_SHAPE
from harness.errors import BadInput
from harness.model import Record
from harness.reporting import report_files
from harness.scoring.bootstrap import Array
from harness.scoring.compared import Figures
from harness.scoring.differences import Outcomes, Side
from harness.scoring.reports import Report
from harness.store.log import lines, objects, parsed, sound
from harness.store.manifest import Manifest, load
from harness.store.run import RECORD_FORMAT, RunFiles

SHARD = 256
UNKNOWN = "an unknown benchmark"
SCORE_AGAIN = "score it again with `reeval`"


@dataclass(frozen=True, slots=True)
class Subset:
    """One run on one subset, by its label in the comparison; results of another program, scored by
    `reeval`, have no manifest and are no `saved` run."""

    run: str
    files: RunFiles
    saved: SavedRun | None

    @property
    def name(self) -> str:
        return self.files.subset

    @property
    def manifest(self) -> Manifest | None:
        return self.saved.manifest if self.saved else None

    @property
    def benchmark(self) -> str:
        if self.manifest:
            return str(self.manifest.identity["benchmark"])
        try:
            return registry.importing(self.name)[0].name
        except BadInput:
            return UNKNOWN

    @property
    def report(self) -> Report | None:
        """Return its report; None without one that can be read, since what is compared are the
        records."""
        try:
            return report_files.read(content(self.files.report("json"), DOCUMENT_MOST))
        except (OSError, BadInput):
            return None


def folders(named: Sequence[str], results: Path) -> dict[str, Path]:
    """Return the folders of runs, by their labels; a run of the results folder goes before another
    folder. Raise `BadInput` for fewer than two, or one that does not exist."""
    found: dict[str, Path] = {}
    for name in named:
        path = selection.folder(name, results)
        label = path.resolve().name
        label = name if label in found else label
        if label in found or any(path.samefile(other) for other in found.values()):
            raise BadInput(f"{name} is named twice: name different runs")
        found[label] = path
    if len(found) < 2:
        raise BadInput(f"name at least two runs to compare, got {', '.join(found)}")
    return found


def subsets(
    run: str, folder: Path, wanted: Sequence[str], trust: bool, benchmark: str | None
) -> dict[str, Subset]:
    """Return the subsets of a run, by name; those `wanted` if any. Raise `BadInput` for an unusable
    manifest."""
    chosen = {name.lower() for name in wanted}
    names = {path.stem.removeprefix("run_") for path in folder.glob("run_*.json")}
    names |= {
        path.stem.removeprefix("inference_results_")
        for path in folder.glob("inference_results_*.jsonl")
    }
    found = {}
    for name in sorted(names & chosen if chosen else names):
        files = RunFiles(folder, name)
        saved = SavedRun(files, made, trust, benchmark) if (made := load(files.manifest)) else None
        found[name] = Subset(run, files, saved)
    return found


def figures(of: Sequence[Subset], tasks: Path | None) -> Figures:
    """Return the figures of the benchmark that these runs of one subset have in common.

    Raise `BadInput` if they are of several, or were not scored with the current ground truth.
    """
    found = {subset.benchmark: subset for subset in of}
    if len(found) > 1:
        which = " and ".join(f"{subset.run} is a run of {name}" for name, subset in found.items())
        raise BadInput(f"{which}: they cannot be compared")
    runs = [subset.saved for subset in of if subset.saved]
    if not runs:
        return Figures(registry.importing(of[0].name)[0]())
    benchmark = runs[0].measuring(tasks)
    for run in runs:
        if (
            run.manifest.tasks.get("truth", benchmark.task_files.truth_sha256)
            != benchmark.task_files.truth_sha256
        ):
            raise BadInput(
                f"{run.name} was scored with another ground truth than the current one: score it"
                " again with `reeval`, or name the folder that has it with --tasks-dir"
            )
        if (origin := benchmark.origin) and run.manifest.identity["files"].get(
            origin.kept
        ) != origin.digest:
            raise BadInput(
                f"{run.name} was made with another version of {origin.kept}: they cannot be"
                " compared"
            )
    primary = {
        subset.manifest.provenance.get("primary") if subset.manifest else None for subset in of
    }
    return Figures(benchmark, primary.pop() if len(primary) == 1 else None)


def read(of: Subset, figures: Figures) -> Side:
    """Return what a run's users contribute. Raise `BadInput` for records that this harness has not
    scored."""
    tasks, places, parts = dict[str, str](), dict[str, dict[str, int]](), list[Array]()
    outcomes, alike, skipped = list[Outcomes](), dict[Outcomes, Outcomes](), [0]
    records = _records(of, skipped)
    while some := list(islice(records, SHARD)):
        for place, (record, task) in enumerate(some, len(outcomes)):
            if tasks.get(record.key) != task:  # of two records the later one is the user's
                tasks[record.key], places[record.key] = task, {}
            places[record.key][str(record.data.get("repeat"))] = place
        shard = [record for record, _ in some]
        try:
            parts.append(figures.raw(shard))
            counted = [tuple(sorted(one.items())) for one in figures.outcomes(shard)]
        except ODD_SHAPE as error:  # a record that is odd only together with others
            raise BadInput(
                f"{of.files.results}: a saved record has another shape than this harness gives it,"
                f" one of users {shard[0].key} to {shard[-1].key} ({type(error).__name__}):"
                f" {SCORE_AGAIN}"
            ) from None
        except BadInput as error:
            raise BadInput(f"{of.files.results}: {error}") from None
        outcomes += [alike.setdefault(one, one) for one in counted]
    chosen = [[*places[key].values()] for key in tasks]
    starts = np.cumsum([0, *map(len, chosen)])[:-1].tolist()
    raw = (
        np.concatenate(parts)[[place for some in chosen for place in some]]
        if tasks
        else figures.raw([])
    )
    rows, given = figures.contributions(raw, starts)
    failures = (data for _, data in objects(of.files.failures))
    failed = {str(data.get("user_id")): str(data.get("task")) for data in failures}
    failed = {user: task for user, task in failed.items() if user not in tasks}
    counts = [_together([outcomes[place] for place in some]) for some in chosen]
    expected = of.saved.expected_users if of.saved else None
    return Side(of.run, of.name, tasks, rows, given, counts, failed, expected, skipped[0])


def _together(outcomes: Sequence[Outcomes]) -> Outcomes:
    """Return the outcomes of a user's repeats as one."""
    if len(outcomes) == 1:
        return outcomes[0]
    return tuple(sorted(sum((Counter(dict(one)) for one in outcomes), Counter()).items()))


def _records(of: Subset, skipped: list[int]) -> Iterator[tuple[Record, str]]:
    """Yield records with their task's hash; count unsound lines in `skipped`."""
    path = of.files.results
    for number, line in enumerate(lines(path), 1):
        if not line.text:
            continue
        data = parsed(line.text) if sound(line.text) else {}
        if not data and of.manifest is None:
            raise BadInput(f"{path}, line {number}: not scored by this harness: {SCORE_AGAIN}")
        user, task = data.get("user_id"), data.get("task")
        if user is None or not isinstance(task, str):
            skipped[0] += (
                not data or of.manifest is not None
            )  # of another program's users some are not scored
            continue
        if data.get("format") != RECORD_FORMAT:
            raise BadInput(
                f"{path}, line {number}: field format: expected {RECORD_FORMAT}: {SCORE_AGAIN}"
            )
        yield Record(str(user), data), task
