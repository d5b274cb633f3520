"""Finish a run: one pass over its records in input order makes the final results file and the
report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from pathlib import Path
from types import MappingProxyType
from typing import Any

from harness.benchmark import Benchmark, remark
from harness.benchmarks.records import ODD_SHAPE, begins_user, read_of
from harness.benchmarks.user_code import guarded
from harness.client.quirks import QUIRKS, WITHOUT_SCHEMA
from harness.cost import Cost, money_text
from harness.defaults import SHARD_USERS
from harness.engine.local import Signalled
from harness.engine.run import Run, drawn
from harness.model import JSON, Record, RunFacts
from harness.options.extension import extensions
from harness.scoring.reports import Report
from harness.scoring.scorer import Scorer
from harness.scoring.totals import Totals
from harness.store.manifest import (
    COMPLETE,
    INCOMPLETE,
    STOPPED,
    Manifest,
    Selection,
    parameters_set,
)
from harness.store.run import record_of
from harness.store.tasks import TaskIndex
from harness.ui.words import plural


class ReportScores:
    """Score the records of a run, shard by shard, for its report.

    Tasks are read only if the benchmark needs them, of the users that are `drawn`, without `facts`
    (by key).
    """

    def __init__(
        self,
        benchmark: Benchmark,
        subset: str,
        index: TaskIndex,
        facts: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self._scorer = Scorer(benchmark, subset)
        self._index = index
        self._facts = facts
        self._drawn = drawn(benchmark, index)
        self._shard: list[Record] = []
        self._merged: Totals | None = None

    def add(self, record: Record) -> None:
        """Add a record; a user's repeats follow one another, and are in one shard."""
        if len(self._shard) >= SHARD_USERS and begins_user(record.data, self._shard[-1].data):
            self.flush()
        self._shard.append(self._with_task(record))

    def report(self, facts: RunFacts, *others: ReportScores) -> tuple[Report, Mapping[str, bytes]]:
        """Return the report, of the users of `others` too, and the benchmark's files that belong to
        it by name."""
        merged = reduce(self._scorer.merge, [scores.flush() for scores in others], self.flush())
        return self._scorer.report(merged, facts)

    def _with_task(self, record: Record) -> Record:
        benchmark = self._scorer.benchmark
        with_task = benchmark.scoring.with_task
        position = self._index.find(record.key)
        if with_task is None or position is None or not self._drawn[position]:
            return record
        known = self._facts.get(record.key)
        if known is None:
            known = self._task_facts(position)
        with guarded(benchmark, f"user {record.key}, with_task", *ODD_SHAPE), read_of(record.key):
            return Record(record.key, with_task(record.data, known))

    def _task_facts(self, position: int) -> Any:
        """Return what a report needs of a task: its `facts`, or all of it."""
        benchmark = self._scorer.benchmark
        task = self._index.task(benchmark, position, self._scorer.subset)
        with guarded(benchmark, f"user {task.key}, facts"):
            known = benchmark.scoring.facts(task)
            return task if known is None else known

    def flush(self) -> Totals:
        """Score the last users, and return the scores of all. Raise `BadInput` for a malformed
        record, as `add`."""
        if self._merged is None:
            self._merged = self._scorer.score(self._shard)
        elif self._shard:
            self._merged = self._scorer.merge(self._merged, self._scorer.score(self._shard))
        self._shard = []
        return self._merged


def finish(
    run: Run, name: str, stopped: bool, signalled: Signalled = lambda: None
) -> tuple[Report, Mapping[str, bytes]]:
    """Finish a run's files, and return its report and the benchmark's files that belong to it.

    The run's manifest is changed, not saved. `name` is that of its folder. Once every expected user
    is done, the results are rewritten in input order. Otherwise the file stays as it grew, and the
    report states its coverage. A signal that `signalled` returns before a record is raised, and
    leaves the files as they were.
    """
    scores = ReportScores(run.benchmark, run.subset, run.index, run.facts)

    def add(line: bytes) -> None:
        if signal := signalled():
            raise signal
        scores.add(record_of(line))

    if run.users_done == run.users:
        run.end(COMPLETE, run.store.finish(add))
    else:
        for _, line in run.store.lines():
            add(line)
        run.end(STOPPED if stopped else INCOMPLETE)
    return scores.report(facts(run, name))


def facts(run: Run, name: str) -> RunFacts:
    """Return what a report states about a settled run besides its scores."""
    manifest = run.manifest
    return RunFacts(
        subset=run.subset,
        model=run.sampling.model,
        name=name,
        prompt=run.benchmark.configuration.source,
        expected_users=manifest.counts["users"],
        failed_users=manifest.counts["failed"],
        repeats=run.index.repeats,
        expected_plays=int(run.expected.sum()),
        schedule=manifest.times.get("schedule"),
        run=described(manifest),
        cost=manifest.cost,
        replies=manifest.replies,
        notes=tuple(_notes(run)),
    )


def _notes(run: Run) -> Iterator[str]:
    manifest = run.manifest
    about_task = remark(run.benchmark, run.task(0))
    if about_task:
        yield about_task
    yield from _about_roles(run)
    for change in manifest.provenance.get("allowed", ()):
        if not change.startswith("roles"):
            yield f"Continued although {change}; records from before and after stand side by side."
    outside = run.index.users(run.expected & ~run.index.selected(manifest.selection))
    if outside:
        yield (
            f"{outside} of the users stand outside the selection asked for last: together they are"
            " no fair sample."
        )
    used = manifest.provenance.get("quirks_used", ())
    structured = manifest.identity["settings"].get("structured")
    if structured == "auto" and WITHOUT_SCHEMA.isdisjoint(used):
        yield (
            "Requests had the benchmark's JSON schema where it gives one, and otherwise asked for"
            " any JSON object."
        )
    # Requests were sent differently from the settings: the endpoint takes them in no other way.
    for name in used:
        if name in QUIRKS:  # else a later version's
            sentence = QUIRKS[name].sentence
            yield f"{sentence[0].upper()}{sentence[1:]}."
    for extension in extensions():
        yield from extension.notes(manifest)


def _about_roles(run: Run) -> Iterator[str]:
    """Yield who had each role of the benchmark, and what was changed since the run began."""
    for role, declared in run.benchmark.roles.items():
        if role in run.sampling.roles:
            yield _played_by(run, role, declared.task)
    for change in run.manifest.provenance.get("allowed", ()):
        if change.startswith("roles"):
            yield f"Every record was made again after {change}."


def _played_by(run: Run, role: str, task: str) -> str:
    """Return which model had a role, where, and what its requests cost."""
    sampling = run.sampling.roles[role]
    model = sampling.model
    about = f"at {run.manifest.endpoint_of(role)}"
    for name, value in parameters_set(sampling.identity).items():
        about += f", {name} {value}"
    costs = run.costs_of(role)
    sentence = f"Role {role} ({task}): {model} {about}: {_replies_and_cost(costs.pop(model))}."
    for earlier, cost in costs.items():
        sentence += f" Before it {earlier} had this role: {_replies_and_cost(cost)}."
    return sentence


def _replies_and_cost(cost: Cost) -> str:
    replies = plural(cost.requests, "reply", "replies")
    return f"{replies}, {money_text([cost.money])}" if cost.money else replies


def described(manifest: Manifest) -> JSON:
    """Return what was run, for the report: everything that a reader needs to compare it or to do it
    again."""
    identity, provenance = manifest.identity, manifest.provenance
    tasks, selection = manifest.tasks, manifest.selection
    described = {
        **identity["settings"],
        **parameters_set(identity["sampling"]),
        "files": identity["files"],
        "tasks": Path(tasks["path"]).name,
        "tasks_sha256": tasks["sha256"],
        "users_in_tasks": tasks["users"],
        **{name: value for name, value in selection.items() if name in Selection.__annotations__},
        "endpoint": provenance["endpoint"],
    }
    if manifest.role_models:
        described["roles"] = manifest.role_models
    described["harness"] = provenance.get("harness")
    described["created"] = manifest.times.get("created")
    return described
