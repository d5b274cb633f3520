"""The runs that `compare` is about: found by name or folder, and what their users contribute to
every figure.

Only users with a record contribute: a failure has no score. Files are read as they are, even while
they are written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import numpy as np

from harness.analysis import selection
from harness.analysis.saved_runs import SavedRun
from harness.benchmark import Benchmark
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
from harness.store.log import decode_or_empty, has_valid_crc, lines, objects
from harness.store.manifest import Manifest, load
from harness.store.run import RECORD_FORMAT, RunFiles

RECORDS_AT_ONCE = 256
"""A read of all at once would take too much memory."""
UNKNOWN_BENCHMARK = "an unknown benchmark"
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
            return UNKNOWN_BENCHMARK

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
    by_label: dict[str, Path] = {}
    for name in named:
        path = selection.folder(name, results)
        label = path.resolve().name
        # Runs of two folders may have one name: the later one is called by its path.
        if label in by_label:
            label = name
        if label in by_label or any(map(path.samefile, by_label.values())):
            raise BadInput(f"{name} is named twice: name different runs")

        by_label[label] = path

    if len(by_label) < 2:
        raise BadInput(f"name at least two runs to compare, got {', '.join(by_label)}")

    return by_label


def subsets(
    run: str,
    folder: Path,
    wanted: Sequence[str],
    trust: bool,
    benchmark: str | None,
) -> dict[str, Subset]:
    """Return the subsets of a run, by name; those `wanted` if any. Raise `BadInput` for an unusable
    manifest."""
    # Results of another program have no manifest, and a run without answers no results file.
    chosen = {name.lower() for name in wanted}
    names = {path.stem.removeprefix("run_") for path in folder.glob("run_*.json")}
    for path in folder.glob("inference_results_*.jsonl"):
        names.add(path.stem.removeprefix("inference_results_"))

    by_name = {}
    for name in sorted(names & chosen if chosen else names):
        files = RunFiles(folder, name)
        manifest = load(files.manifest)
        saved = SavedRun(files, manifest, trust, benchmark) if manifest else None
        by_name[name] = Subset(run, files, saved)

    return by_name


def common_figures(subsets: Sequence[Subset], tasks: Path | None) -> Figures:
    """Return the figures of the benchmark that these runs of one subset have in common.

    Raise `BadInput` if they are of several, or were not scored with the current ground truth.
    """
    by_benchmark = {subset.benchmark: subset for subset in subsets}
    if len(by_benchmark) > 1:
        texts = (f"{subset.run} is a run of {name}" for name, subset in by_benchmark.items())
        raise BadInput(f"{' and '.join(texts)}: they cannot be compared")

    runs = [subset.saved for subset in subsets if subset.saved]
    if not runs:
        return Figures(registry.importing(subsets[0].name)[0]())

    benchmark = runs[0].measuring(tasks)
    for run in runs:
        _check_measures_alike(run, benchmark)

    # Of runs with several primary metrics none is theirs together.
    primary = set()
    for subset in subsets:
        primary.add(subset.manifest.provenance.get("primary") if subset.manifest else None)

    return Figures(benchmark, primary.pop() if len(primary) == 1 else None)


def _check_measures_alike(run: SavedRun, benchmark: Benchmark) -> None:
    """Raise `BadInput` for a run with another ground truth or other code than the benchmark."""
    truth = benchmark.task_files.truth_sha256
    if run.manifest.tasks.get("truth", truth) != truth:
        raise BadInput(
            f"{run.name} was scored with another ground truth than the current one: score it"
            " again with `reeval`, or name the folder that has it with --tasks-dir"
        )

    origin = benchmark.origin
    if origin and run.manifest.identity["files"].get(origin.kept) != origin.digest:
        raise BadInput(
            f"{run.name} was made with another version of {origin.kept}: they cannot be compared"
        )


def read_side(subset: Subset, figures: Figures) -> Side:
    """Return what a run's users contribute. Raise `BadInput` for records that this harness has not
    scored."""
    tasks: dict[str, str] = {}
    places: dict[str, dict[str, int]] = {}  # of each user's records among all, by repeat
    chunks: list[Array] = []
    outcomes: list[Outcomes] = []
    shared: dict[Outcomes, Outcomes] = {}
    skipped = [0]
    records = _records(subset, skipped)

    while chunk := list(islice(records, RECORDS_AT_ONCE)):
        for place, (record, task) in enumerate(chunk, len(outcomes)):
            # Of two records the later one is the user's.
            if tasks.get(record.key) != task:
                tasks[record.key] = task
                places[record.key] = {}

            places[record.key][str(record.data.get("repeat"))] = place

        rows, counts = _measured(subset, figures, [record for record, _ in chunk])
        chunks.append(rows)
        # Many users have the same outcomes, and a run may have a million users.
        outcomes += map(shared.setdefault, counts, counts)

    places_of_users = [list(by_repeat.values()) for by_repeat in places.values()]
    starts = np.cumsum([0, *map(len, places_of_users)])[:-1].tolist()
    # From here on records are those of the users, each user's repeats next to each other.
    order = list(chain.from_iterable(places_of_users))
    raw = np.concatenate(chunks)[order] if chunks else figures.raw([])
    contributions, given = figures.contributions(raw, starts)
    outcomes_of_users = []
    for of_repeats in places_of_users:
        outcomes_of_users.append(_together([outcomes[place] for place in of_repeats]))

    return Side(
        subset.run,
        subset.name,
        tasks,
        contributions,
        given,
        outcomes_of_users,
        _failed_tasks(subset, tasks),
        subset.saved.expected_users if subset.saved else None,
        skipped[0],
    )


def _failed_tasks(subset: Subset, tasks: Mapping[str, str]) -> dict[str, str]:
    """Return the tasks of users that have failed, without those of `tasks`, who have a record."""
    failed = {}
    for _, data in objects(subset.files.failures):
        user = str(data.get("user_id"))
        if user not in tasks:
            failed[user] = str(data.get("task"))

    return failed


def _measured(
    subset: Subset,
    figures: Figures,
    records: Sequence[Record],
) -> tuple[Array, list[Outcomes]]:
    """Return a row and the outcomes of each record. Raise `BadInput` for records of another
    shape."""
    path = subset.files.results
    try:
        rows = figures.raw(records)
        outcomes = [tuple(sorted(counts.items())) for counts in figures.outcomes(records)]
    except ODD_SHAPE as error:  # a record that is odd only together with others
        raise BadInput(
            f"{path}: a saved record has another shape than this harness gives it, one of users"
            f" {records[0].key} to {records[-1].key} ({type(error).__name__}): {SCORE_AGAIN}"
        ) from None
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None

    return rows, outcomes


def _together(outcomes: Sequence[Outcomes]) -> Outcomes:
    """Return the outcomes of a user's repeats as one."""
    if len(outcomes) == 1:
        return outcomes[0]

    counts = Counter[str]()
    for of_repeat in outcomes:
        counts.update(dict(of_repeat))

    return tuple(sorted(counts.items()))


def _records(subset: Subset, skipped: list[int]) -> Iterator[tuple[Record, str]]:
    """Yield records with their task's hash; count unsound lines in `skipped`."""
    path = subset.files.results
    for number, line in enumerate(lines(path), 1):
        if not line.text:
            continue

        data = decode_or_empty(line.text) if has_valid_crc(line.text) else {}
        if not data and subset.manifest is None:
            raise BadInput(f"{path}, line {number}: not scored by this harness: {SCORE_AGAIN}")

        user, task = data.get("user_id"), data.get("task")
        if user is None or not isinstance(task, str):
            # Of another program's users some are not scored.
            skipped[0] += not data or subset.manifest is not None
            continue

        if data.get("format") != RECORD_FORMAT:
            raise BadInput(
                f"{path}, line {number}: field format: expected {RECORD_FORMAT}: {SCORE_AGAIN}"
            )

        yield Record(str(user), data), task
