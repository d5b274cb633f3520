"""The end of a run: one pass over its records in input order, to the final results file and the report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from harness.benchmark import Benchmark
from harness.benchmarks.derived import Scorer, Totals
from harness.benchmarks.reports import Report
from harness.benchmarks.user_code import guarded
from harness.defaults import SHARD_USERS
from harness.endpoint.quirk_rules import QUIRKS
from harness.engine.job import Job
from harness.errors import shown
from harness.model import JSON, Record, RunFacts
from harness.store.manifest import COMPLETE, INCOMPLETE, STOPPED, Manifest


class ReportScores:
    """Records in, shard by shard, to the scores of all."""

    def __init__(self, benchmark: Benchmark, subset: str) -> None:
        self._scorer = Scorer(benchmark, subset)
        self._shard: list[Record] = []
        self._merged: Totals | None = None

    def add(self, record: Record) -> None:
        self._shard.append(record)
        if len(self._shard) == SHARD_USERS:
            self.flush()

    def report(self, facts: RunFacts) -> tuple[Report, Mapping[str, bytes]]:
        """Return the report, and the benchmark's files that belong to it by name."""
        return self._scorer.report(self.flush(), facts)

    def flush(self) -> Totals:
        """Score the last users, and return the scores of all. Raise `BadInput` for a malformed record, as `add`."""
        if self._shard or self._merged is None:
            scores, self._shard = self._scorer.score(self._shard), []
            self._merged = scores if self._merged is None else self._scorer.merge(self._merged, scores)
        return self._merged


def finish(job: Job, manifest: Manifest, name: str, stopped: bool) -> tuple[Report, Mapping[str, bytes]]:
    """Finish a run's files and return its report and the benchmark's files; `manifest` is changed, not saved.

    Once every expected user is done, the results are rewritten in input order. Otherwise the file stays as
    it grew, and the report says what it covers.
    """
    scores = ReportScores(job.benchmark, job.subset)
    if job.users_done == job.users:
        manifest.results_sha256 = job.store.finish(scores.add)
        manifest.state = COMPLETE
    else:
        for record in job.store.records():
            scores.add(record)
        manifest.results_sha256 = None
        manifest.state = STOPPED if stopped else INCOMPLETE
    failed = job.store.failed_users(job.index, job.expected)
    manifest.counts = {"users": job.users, "done": job.users_done, "failed": failed, "torn_lines": job.store.torn}
    return scores.report(facts(job, manifest, name, failed))


def facts(job: Job, manifest: Manifest, name: str, failed: int) -> RunFacts:
    return RunFacts(
        subset=job.subset,
        model=job.sampling.model,
        name=name,
        prompt=job.benchmark.prompt,
        expected_users=job.users,
        failed_users=failed,
        schedule=manifest.times.get("schedule"),
        run=described(job, manifest),
        notes=(
            *filter(None, (_remark(job),)),
            *_differences_accepted(manifest),
            *_share(job, manifest),
            *_adapted(manifest),
        ),
    )


def _remark(job: Job) -> str:
    task = job.task(0)
    with guarded(job.benchmark, "remark"):
        found: object = job.benchmark.remark(task)
        if not isinstance(found, str):
            raise TypeError(f"expected text, got {shown(found)}")
    return found


def described(job: Job, manifest: Manifest) -> JSON:
    """What was run, for the report: everything that a reader needs to compare it or to do it again."""
    identity, provenance = manifest.identity, manifest.provenance
    return {
        **identity["settings"],
        **{name: value for name, value in identity["sampling"].items() if value not in (None, {})},
        "files": identity["files"],
        "tasks": Path(manifest.tasks["path"]).name,
        "tasks_sha256": manifest.tasks["sha256"],
        "users_in_tasks": manifest.tasks["users"],
        "ratio": manifest.selection["ratio"],
        "sample_seed": manifest.selection["sample_seed"],
        "endpoint": provenance["endpoint"],
        "harness": provenance.get("harness"),
        "created": manifest.times.get("created"),
    }


def _share(job: Job, manifest: Manifest) -> tuple[str, ...]:
    selection = manifest.selection
    outside = int((job.expected & ~job.index.select(selection["ratio"], selection["sample_seed"])).sum())
    if not outside:
        return ()
    return (f"{outside} of the users stand outside the share asked for last: together they are no fair sample.",)


def _adapted(manifest: Manifest) -> tuple[str, ...]:
    """What requests were sent otherwise than the settings say, because the endpoint takes them in no other way."""
    told = [QUIRKS[name].told for name in manifest.provenance.get("quirks_used", ()) if name in QUIRKS]
    return tuple(f"{words[0].upper()}{words[1:]}." for words in told)


def _differences_accepted(manifest: Manifest) -> tuple[str, ...]:
    return tuple(
        f"Continued although {told}; records from before and after stand side by side."
        for told in manifest.provenance.get("allowed", ())
    )
