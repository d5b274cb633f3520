"""Score the results of another program, from the answers in them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack

import msgspec
import numpy as np

from harness import defaults
from harness.analysis.imported import Imported
from harness.analysis.rescoring import Rescored, RescoreOptions, add
from harness.benchmark import Benchmark, Importer
from harness.benchmarks import registry
from harness.benchmarks.files import DOCUMENT_MOST, content
from harness.benchmarks.tasks import how_to_get
from harness.benchmarks.template import AUTHORS
from harness.document import Heading, Paragraph, Table
from harness.engine.files import index_file, stamp, write_report
from harness.engine.finish import ReportScores
from harness.engine.play import rescored
from harness.errors import BadInput
from harness.model import JSON, RunFacts, Where
from harness.reporting import report as overview
from harness.reporting import text
from harness.reporting.report_files import read
from harness.reporting.reported import Reported
from harness.scoring.reports import Report
from harness.store.atomic import set_aside_any
from harness.store.files import RunFiles
from harness.store.lock import RunLock
from harness.store.log import lines
from harness.store.run import RECORD_FORMAT, replace_results
from harness.store.tasks import TaskIndex


def scored_again(results: Imported, chosen: RescoreOptions) -> Rescored:
    """Score the results of another program on a subset, under their lock. Raise `BadInput` if they
    cannot be read."""
    files = results.files
    cls, importer = registry.importing(files.subset)
    benchmark = cls()
    tasks = benchmark.task_files.file_in(
        chosen.tasks or defaults.TASKS_FOLDER, benchmark.subsets[files.subset]
    )
    if not tasks.exists():
        remedy = f"name its folder with --tasks-dir; or {how_to_get(cls)}"
        raise BadInput(f"its tasks file {tasks} does not exist: {remedy}")
    with ExitStack() as held:
        lock = RunLock(files.lock, time.time)
        held.callback(lock.release)
        index = index_file(benchmark, files.subset, tasks, chosen.results)
        held.callback(index.close)
        theirs = _Theirs(files, benchmark, importer, index)
        replace_results(files.results, theirs.records(lock.beat), stamp(), shown_by=files.pages)
        report, extra_files = theirs.report()
        _keep_foreign_text(files)
        write_report(files, report, extra_files)
        chosen.reported(Reported(files, report, defaults.SAMPLE_SEED, benchmark, index))
    return Rescored(files, report, theirs.notes(), report.coverage.complete)


def _keep_foreign_text(files: RunFiles) -> None:
    """Set the text report aside if it is another program's: without the title of the JSON report
    next to it."""
    path = files.report("txt")
    try:
        report = read(content(files.report("json"), DOCUMENT_MOST))
        title = next(overview.blocks(report))
        is_ours = content(path, DOCUMENT_MOST).startswith(text.rendered([title]).encode())
    except (OSError, BadInput):
        is_ours = False
    if not is_ours:
        set_aside_any([path], stamp())


class _Theirs:
    """Results of another program, and the tasks that they answer.

    Users are counted: those `without_task`; `partial` ones, that have not all steps of theirs; and
    `failed` ones, with answers that are failures of the endpoint. `failures` has their scores.
    """

    def __init__(
        self, files: RunFiles, benchmark: Benchmark, importer: Importer, index: TaskIndex
    ) -> None:
        self.files = files
        self.benchmark = benchmark
        self.importer = importer
        self.index = index
        self.without_task = self.partial = self.failed = 0
        self.outcomes: Counter[str] = Counter()
        self.scores = ReportScores(benchmark, files.subset, index)
        self.failures = ReportScores(benchmark, files.subset, index)

    def records(self, beat: Callable[[], None]) -> Iterator[JSON]:
        """Yield the records, those with a whole task measured again and scored; call `beat` before
        each."""
        seen = np.zeros(len(self.index), np.bool_)
        for number, line in enumerate(lines(self.files.results), 1):
            # The lock's lease ends without it, and to score very many users takes longer.
            beat()
            if not line.text:
                continue
            where = Where(str(self.files.results), number)
            data = self.importer.record(line.text, where)
            position = self.index.find(str(data["user_id"]))
            if position is None:
                self.without_task += 1
            elif seen[position]:
                raise BadInput(f"{where}: field user_id: duplicate user")
            else:
                seen[position] = True
                data = self._scored(position, data)
            yield data
        # A malformed record is refused here: the old file is still in place.
        self.scores.flush()
        self.failures.flush()

    def _scored(self, position: int, data: JSON) -> JSON:
        """Return a record as it is saved; add it to the scores, unless it is partial."""
        task = self.index.task(self.benchmark, position, self.files.subset)
        if self.importer.is_partial(task, data):
            self.partial += 1
            return data
        data = rescored(self.benchmark, task, data)
        self.outcomes.update(self.benchmark.records.outcomes(data))
        if self.importer.has_failed(data):
            self.failed += 1
            add(data, self.failures)
            return data
        # Fields of the same names that the other program may have written are replaced.
        data = data | {"task": self.index.digest(position), "format": RECORD_FORMAT}
        add(data, self.scores)
        return data

    def report(self) -> tuple[Report, Mapping[str, bytes]]:
        """Return the report, with a table of the figures with failures if there are any, and the
        benchmark's files that belong to it."""
        files = self.files
        name = files.folder.name
        run_facts = RunFacts(
            files.subset, name, name, AUTHORS, len(self.index), self.failed, self.notes()
        )
        report, extra_files = self.scores.report(run_facts)
        if self.failed:
            report_of_all, _ = self.scores.report(run_facts, self.failures)
            report = with_failures(report, report_of_all)
        return report, extra_files

    def notes(self) -> tuple[str, ...]:
        left_out = {
            "are not in the tasks file and are not scored.": self.without_task,
            "lack steps of their tasks, or have one twice, and are not scored.": self.partial,
            "have failures of the endpoint, and are not scored; the report has figures with them, "
            "too.": self.failed,
        }
        notes = [*self.importer.notes(self.outcomes)]
        for why, number in left_out.items():
            if number:
                notes.append(f"{number} of its users {why}")
        return tuple(notes)


def with_failures(report: Report, report_of_all: Report) -> Report:
    """Return a report of another program's results with the figures of `report_of_all`, in which
    failures count as empty."""
    user = report.user
    rows = []
    for name, value in overview.shown(report).items():
        metric = report.units[name]
        row = [name, metric.shown_unit]
        for side in (value, report_of_all.values[name]):
            row += [metric.text(side.value), str(side.users)]
        rows.append(tuple(row))
    table = Table(("metric", "unit", "without", f"{user}s", "with", f"{user}s"), tuple(rows))
    explanation = (
        f"{report.coverage.failed_users} {user}s have answers that are failures of the endpoint."
        " The program that wrote them counts each as an empty answer; so do the figures under"
        " `with`, and no others in this report."
    )
    sections = (
        Heading("With failures as empty answers"),
        Paragraph(explanation),
        table,
        *report.sections,
    )
    details = {**report.details, "with_failures": msgspec.to_builtins(report_of_all.values)}
    return msgspec.structs.replace(report, sections=sections, details=details)
