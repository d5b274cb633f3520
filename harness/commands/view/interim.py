"""The report of a run that has none yet, of the records that it has so far: scored as they come,
and never written.

Only benchmarks that ship are scored, since no code of a run is executed, and no more users than
`MAX_USERS`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from time import monotonic, thread_time

from harness.analysis.saved_runs import SavedRun
from harness.benchmark import Benchmark
from harness.benchmarks.records import read_of
from harness.commands.view.index import LineIndex
from harness.defaults import SHARD_USERS
from harness.engine.finish import described
from harness.errors import HarnessError
from harness.model import Record, RunFacts
from harness.scoring.reports import Report
from harness.scoring.scorer import Scorer
from harness.scoring.totals import Totals

MAX_USERS = 20_000
REPORT_SECONDS = 5.0
"""Between two reports."""
CPU_SECONDS = 0.1
"""In which records are scored; the next look goes on."""


class Interim:
    """The report of the records of an index. `benchmark` has the run's settings."""

    def __init__(self, run: SavedRun, benchmark: Benchmark, index: LineIndex) -> None:
        self._run = run
        self._index = index
        self.generation = index.generation
        self._scorer = Scorer(benchmark, run.files.subset)
        self._totals: Totals | None = None
        self._scored = self._read = 0
        self._reported_at = -REPORT_SECONDS
        self._report: Report | None = None

    def report(self) -> Report | None:
        """Return the report of now, None if there is nothing to score. Raise `HarnessError` for odd
        records."""
        if monotonic() - self._reported_at < REPORT_SECONDS or len(self._index) > MAX_USERS:
            return self._report
        self._add()
        if self._totals is not None:
            self._report, _ = self._scorer.report(self._totals, self._facts())
        self._reported_at = monotonic()
        return self._report

    def _add(self) -> None:
        # Pages are made one at a time: none may wait long for another's scores.
        until = thread_time() + CPU_SECONDS
        while thread_time() < until:
            shard = [*islice(self._new(), SHARD_USERS)]
            if not shard:
                return
            with read_of(shard[0].key):
                scores = self._scorer.score(shard)
            if self._totals is not None:
                scores = self._scorer.merge(self._totals, scores)
            self._totals = scores
            self._scored += len(shard)

    def _new(self) -> Iterator[Record]:
        for number, data in self._index.objects(range(self._read, len(self._index))):
            self._read = number + 1
            if data is not None and "user_id" in data:
                yield Record(str(data["user_id"]), data)

    def _facts(self) -> RunFacts:
        run = self._run
        manifest = self._run.manifest
        return RunFacts(
            subset=run.files.subset,
            model=manifest.identity["model"],
            name=run.name,
            prompt=self._scorer.benchmark.configuration.source,
            expected_users=run.expected_users,
            failed_users=manifest.counts.get("failed", 0),
            notes=(
                f"This run has not ended: these are the {self._scored} users that are done so far.",
            ),
            run=described(manifest),
        )


def interim(run: SavedRun, index: LineIndex) -> Interim | None:
    """Return what reports on a run so far; None where that would need code or whole repeats."""
    try:
        if run.manifest.repeats > 1:
            return None
        return Interim(run, run.measuring(None), index)
    except HarnessError:
        return None
