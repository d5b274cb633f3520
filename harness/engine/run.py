"""A run of one subset: opened from a plan or from its folder, played, and finished."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from harness import defaults
from harness.benchmark import Benchmark, Task, kept_files
from harness.benchmarks import tasks
from harness.benchmarks.scorer import Scorer
from harness.config import origin
from harness.config.plan import Plan, sampling_again
from harness.cost import Bill, Cost, Price, Rate
from harness.endpoint.quirks import QUIRKS, WITHOUT_SCHEMA
from harness.endpoint.request_body import Sampling
from harness.engine.events import Changed, Emit, Opened, Replaced
from harness.engine.extension import Extension
from harness.engine.files import now
from harness.engine.play import check_measure, name_of
from harness.engine.running_scores import RunningScores
from harness.errors import BadInput, HarnessError, MachineError
from harness.feature import counts, features, own_logs
from harness.model import SubsetProgress
from harness.store.manifest import RUNNING, Manifest, Provenance, Tuning, differences
from harness.store.run import RunFiles, RunStore, value_text
from harness.store.tasks import TaskIndex

if TYPE_CHECKING:  # a circle of types alone
    from harness.engine.finish import ReportScores

NOT_REPORTED = {"source", "sources", "allowed", "quirks", "quirks_used", "headers", "providers_file", "key_check"}
NOT_REPORTED |= {"origin", "benchmark", "price", "later_prices", "primary", "data_set", "html", "reused"}
"""Parts of the provenance whose changes are reported elsewhere, or do not matter."""

WITH_TASK = 2_000
"""Users whose tasks a report needs, so that its time does not grow with them."""


def drawn(benchmark: Benchmark, index: TaskIndex) -> NDArray[np.bool_]:
    """Return the users whose tasks the report needs: a fair draw of the tasks file, nobody of most benchmarks."""
    return index.select(1.0, 0, WITH_TASK if benchmark.scoring.needs_tasks else 0)


@dataclass(eq=False)
class Run:
    """One run of one subset: its tasks, its open files, and how far it is.

    `expected` and `done` are masks over the tasks, or over all users' repeats; those expected and not done remain. A
    user is done once all its expected repeats are. `label` is the run's name in messages. `changed` means that tasks or
    ground truth differ from those that the files were finished with.

    The rest counts what happens in this process: users given up on (`failed`), users who sent different requests after
    an interruption (`diverged`), the benchmark's `warnings`, and the steps done, of done users and in saved responses
    too. `first` are the positions of users to play alone, None for all. `is_new`: this process has
    made its manifest. `facts` are those of tasks that the report needs, by key. `scored_by` returns what scores the
    records for the report, None for this process.
    """

    benchmark: Benchmark
    subset: str
    index: TaskIndex
    store: RunStore
    manifest: Manifest
    expected: NDArray[np.bool_]
    label: str = ""
    changed: bool = False
    failed: int = 0
    diverged: int = 0
    warnings: list[str] = field(default_factory=list)
    steps_done: int = 0
    first: NDArray[np.int64] | None = None
    is_new: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    scored_by: Callable[[Run], ReportScores] | None = None

    @cached_property
    def drawn(self) -> NDArray[np.bool_]:
        return drawn(self.benchmark, self.index)

    @property
    def done(self) -> NDArray[np.bool_]:
        return self.store.done

    @property
    def remaining(self) -> NDArray[np.int64]:
        return np.flatnonzero(self.expected & ~self.done)

    @property
    def users(self) -> int:
        return self.index.users(self.expected)

    @property
    def users_done(self) -> int:
        return self.users - self.index.users(self.expected & ~self.done)

    @cached_property
    def steps(self) -> int:
        """The steps of all expected users."""
        return int(self.index.steps[self.expected].sum())

    @cached_property
    def sampling(self) -> Sampling:
        return sampling_again(self.manifest)

    @cached_property
    def _samplings(self) -> dict[int, Sampling]:
        return {repeat: self.sampling.of_repeat(repeat) for repeat in range(1, self.index.repeats + 1)}

    @cached_property
    def failed_tries(self) -> Mapping[tuple[str, str], int]:
        """Return how often requests failed in earlier processes, by their user's name and their digest."""
        found = self.store.failed_tries(self.index)
        return {(name_of(key, repeat), request): tries for (key, repeat, request), tries in found.items()}

    @property
    def cost(self) -> Cost | None:
        """Return what all saved replies cost, of every session; None for a baseline, which costs nothing."""
        return counted_cost(self.manifest, self.store.bill)

    @cached_property
    def is_billed(self) -> bool:
        """Return whether requests may cost something."""
        return self.manifest.provenance["endpoint"] != defaults.EMBEDDED

    @property
    def price(self) -> Price | None:
        """Return the price of the requests of now, None if it is not known."""
        return self.store.rate.among(self.manifest.prices)

    def sampling_at(self, position: int) -> Sampling:
        """Return the parameters of the requests of a user's repeat."""
        return self._samplings[self.index.repeat(position)]

    @cached_property
    def scores(self) -> RunningScores:
        """The running scores of users with a record, those of earlier sessions included."""
        return RunningScores(Scorer(self.benchmark, self.subset), self.index.repeats, self.store.records())

    def task(self, position: int) -> Task:
        """Return a task, read and parsed from its file."""
        return tasks.parse(self.benchmark, self.index.read(position), self.index.where(position), self.subset)

    def start(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return the positions of the remaining users (of the `first` of them alone), and the steps that each has left;
        count the other steps as done.

        A user with saved responses has that many steps fewer left, but at least one.
        """
        _ = self.scores  # takes up the records so far, before another is saved
        positions, left = self.remaining, self.steps_left()
        self.steps_done = self.steps - int(left.sum())
        if self.first is None:
            return positions, left
        chosen = np.isin(positions, self.first)
        return positions[chosen], left[chosen]

    def steps_left(self) -> NDArray[np.int32]:
        """Return the steps that each remaining user has left."""
        positions, saved = self.remaining, np.zeros(len(self.index), np.int32)
        for position, count in self.store.saved_counts().items():
            saved[position] = count
        left: NDArray[np.int32] = np.maximum(1, self.index.steps[positions] - saved[positions])
        return left

    def progress(self) -> SubsetProgress:
        """Return how far the run is; with repeats each counts as a user."""
        repeats = self.index.repeats
        return SubsetProgress(
            subset=self.subset if repeats == 1 else f"{self.subset} x {repeats}",
            users=int(self.expected.sum()),
            done=int((self.expected & self.done).sum()),
            failed=self.failed,
            steps=self.steps,
            steps_done=self.steps_done,
            scores=self.scores.figures,
            units={metric.name: metric.unit for metric in self.benchmark.metrics if metric.unit is not None},
            scored_users=self.scores.users,
        )


def unwanted(plan: Plan) -> frozenset[str]:
    """Return the quirks that a run's requests must not have."""
    return WITHOUT_SCHEMA if plan.benchmark.asking.needs_schema else frozenset()


def open_run(
    plan: Plan,
    index: TaskIndex,
    store: RunStore,
    label: str,
    emit: Emit,
    extensions: Sequence[Extension] = (),
) -> Run:
    """Check and repair a run's files, and open them for a plan. Raise `BadInput` for results of another program."""
    files, provenance = store.files, plan.provenance()
    old = _old(plan, files, store.manifest(), label, emit)
    if old is not None:
        for name, (before, after) in differences(old.provenance, provenance).items():
            if name.partition(".")[0] not in NOT_REPORTED:
                emit(Changed(label, name, before, after))
    selected = index.selected(plan.selection)
    if not selected.any():
        raise BadInput(f"{label}: no user is left for part {plan.selection.get('part')}: make fewer parts")
    manifest = _manifest(plan, files.subset, provenance, index, old)
    last_price = manifest.price
    store.rate = Rate(manifest.take_price(plan.price))
    for extension in extensions:
        store.rate = extension.rated(plan, store.rate)
        extension.opened(plan, manifest, old)
    if old is None:
        manifest.save(files.manifest)  # before any results: results without a manifest are another program's
    done = store.open_logs(index)
    run = Run(plan.benchmark, files.subset, index, store, manifest, selected | done, label)
    run.is_new = old is None
    run.changed = old is not None and (
        old.tasks["sha256"] != index.sha256
        or old.tasks.get("truth", "") != plan.benchmark.task_files.truth_sha256
        or store.outside() > 0
    )
    emit(_opened(run, last_price, index.users(done & ~selected)))
    if len(run.remaining):
        try:
            _go_on(run, plan)
        except HarnessError:
            if run.is_new:
                store.drop(own_logs(files))
            raise
    return run


def _old(plan: Plan, files: RunFiles, old: Manifest | None, label: str, emit: Emit) -> Manifest | None:
    """Return the manifest that a plan goes on from, None for a new run. Raise `BadInput` if it cannot go on so."""
    if old is not None and is_bare(files) and differences(old.identity, plan.identity()):
        emit(Replaced(label))
        old = None
    if old is None:
        if files.results.exists() and files.results.stat().st_size:
            raise BadInput(
                f"{files.results} has no manifest: another program wrote it (`reeval` scores it), "
                "so give this run a --name of its own"
            )
        return None
    if (had := old.repeats) > plan.repeats:
        raise BadInput(f"{files.folder} holds a run of {had} repeats: go on with --repeats {had}, or more")
    if plan.terms.primary not in (None, began := old.provenance.get("primary")):
        kept = f"began with --primary {began}" if began else "began without --primary"
        raise BadInput(
            f"{label}: this run {kept}: the primary metric is chosen before the first request, so leave it out"
        )
    return old


def _go_on(run: Run, plan: Plan) -> None:
    """Begin to play users who are left, as the run's manifest now is."""
    manifest, store = run.manifest, run.store
    for feature in features():
        feature.check(store.files, manifest, plan.terms.allowed)
    check_measure(plan.benchmark, run.task(int(run.remaining[0])))
    manifest.state, manifest.results_sha256 = RUNNING, None
    manifest.counts = {"users": run.users}  # an earlier end may have counted fewer users
    store.set_aside_report()
    store.keep_files(kept_files(plan.benchmark))
    manifest.save(store.files.manifest)


def counted_cost(manifest: Manifest, bill: Bill) -> Cost | None:
    """Return what a run's saved replies cost, None for a baseline.

    Without any, as in a folder that came without its responses, it is what the manifest has.
    """
    if manifest.provenance["endpoint"] == defaults.EMBEDDED:
        return None
    if bill.total.requests or manifest.cost is None:
        return bill.cost(manifest.prices, sampling_again(manifest).most_completion)
    counted = msgspec.convert(manifest.cost, Cost)
    return counted if counted.shares else counted.at(manifest.price)


def is_bare(files: RunFiles) -> bool:
    """Return whether a run has neither replies nor failures, as after a wrong key: a new one loses nothing."""
    return not any(path.exists() and path.stat().st_size for path in (files.results, files.responses, files.failures))


def _manifest(plan: Plan, subset: str, provenance: Provenance, index: TaskIndex, old: Manifest | None) -> Manifest:
    """Return the manifest of this session, with state, counts and times of an earlier one."""
    known = set(plan.found.provider.adapt) if plan.found and plan.found.provider else set()
    if old is not None and old.provenance.get("endpoint") == plan.endpoint:
        known |= QUIRKS.keys() & set(old.provenance.get("quirks", ()))
    known -= unwanted(plan)
    used = old.provenance.get("quirks_used", ()) if old else ()
    truth, path = plan.benchmark.task_files.truth_sha256, str(plan.tasks[subset])
    made = Manifest(
        subset=subset,
        identity=plan.identity(),
        provenance={**provenance, "quirks": sorted(known), "quirks_used": sorted({*known, *used})},
        tuning=cast(Tuning, asdict(plan.tuning)),
        tasks={"path": path, "sha256": index.sha256, "users": index.users_in_file, "truth": truth},
        selection=plan.selection,
        state=RUNNING,
        counts={},
        times={"created": now(), "seconds": 0.0},
    )
    if old is not None:
        accepted = [
            f"{name} was {value_text(a)}, is now {value_text(b)}"
            for name, (a, b) in differences(old.identity, made.identity).items()
        ]
        made.provenance["allowed"] = [*old.provenance.get("allowed", ()), *accepted]
        made.tuning |= cast(Tuning, dict(counts(old)))
        if learned := old.tuning.get("learned_limit"):
            made.tuning["learned_limit"] = learned
        made.state, made.counts, made.results_sha256 = old.state, old.counts, old.results_sha256
        made.times = {**made.times, **old.times}
        made.cost = old.cost
        made.provenance["price"] = old.provenance.get("price")
        if later := old.provenance.get("later_prices"):
            made.provenance["later_prices"] = later
        if primary := old.provenance.get("primary"):
            made.provenance["primary"] = primary
    made.provenance["origin"] = origin.seal(made, os.environ)
    return made


def _opened(run: Run, before: Price | None, beyond_share: int) -> Opened:
    """Return how the files were found; `before` is the price of earlier replies."""
    price = run.manifest.price
    changed = before and price and before not in (price, price.when_deferred)
    resumed = not run.is_new and len(run.remaining) and run.users_done
    return Opened(
        run.label,
        torn=run.store.torn,
        outside=run.store.outside(),
        beyond_share=beyond_share,
        prices=(before, price) if changed and before and price else None,
        resumed=(run.users_done, run.users) if resumed else None,
    )


def check_disk(runs: Sequence[Run]) -> None:
    """Refuse runs that do not fit on the disk: responses and results, and all results once more for the rewrite."""
    if not runs:
        return
    steps = sum(int(run.index.steps[run.remaining].sum()) for run in runs)
    present = sum(run.store.files.results.stat().st_size for run in runs)
    needed = steps * defaults.BYTES_PER_STEP * 3 // 2 + present
    folder = runs[0].store.files.folder
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise MachineError(
            f"{folder} has {free / 1e6:.0f} MB free, and this run of {steps} steps may take "
            f"{needed / 1e6:.0f} MB: free some space, or take fewer users with --limit or --ratio"
        )
