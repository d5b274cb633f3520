"""Open the runs of plans: validate tasks, lock and repair folders, compare manifests, find the remaining users."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from harness import defaults
from harness.config import origin
from harness.config.plan import Plan
from harness.endpoint.quirk_rules import QUIRKS
from harness.engine.files import index_file, now, stamp
from harness.engine.job import Job
from harness.engine.play import check_measure
from harness.engine.session import Played, Work
from harness.errors import BadInput, HarnessError, MachineError
from harness.store.manifest import RUNNING, Manifest, differences, is_file_name, load
from harness.store.run import RunFiles, RunStore, runs_in, same_identity, shown
from harness.store.tasks import TaskIndex
from harness.ui.streams import tell

NOT_REPORTED = frozenset(
    {
        "source",
        "sources",
        "allowed",
        "quirks",
        "quirks_used",
        "headers",
        "providers_file",
        "key_check",
        "origin",
        "benchmark",
    }
)
"""Parts of the provenance whose changes are reported elsewhere, or do not matter."""

SHORT = 200
"""Longest value shown in a note, in characters: a manifest may be from another user."""

PLAIN: dict[str, Any] = {"highlight": False, "soft_wrap": True, "markup": False}
"""How text with names and paths is printed: unchanged."""


@dataclass(slots=True, eq=False)
class Run:
    """`changed` means that tasks or ground truth differ from those that the files were finished with; `label` is the
    run's name in displays."""

    label: str
    job: Job
    manifest: Manifest
    changed: bool


@dataclass(slots=True, eq=False)
class Opened:
    """A plan with its runs, one of each subset: `unfinished` are those with users left at the start.

    `alone` means that no other plan is launched with it; `code` is its exit code, once it has ended.
    """

    plan: Plan
    runs: list[Run]
    unfinished: list[Run]
    alone: bool
    code: int | None = None

    def work(self, finish: Callable[[Played], None]) -> Work:
        """Return what there is to play. Quirks of the endpoint are saved in the manifests once learned."""
        unfinished = self.unfinished

        def learned(name: str, words: str) -> None:
            for run in unfinished:
                provenance = run.manifest.provenance
                for names in ("quirks", "quirks_used"):
                    provenance[names] = sorted({*provenance[names], name})
                run.manifest.save(run.job.store.files.manifest)

        known = {name for run in unfinished for name in run.manifest.provenance["quirks"]}
        return Work(self.plan, [run.job for run in unfinished], frozenset(known), learned, finish)


_Indexes = dict[tuple[str, str, str, Path], TaskIndex]
"""By benchmark, the version of its rules, subset and tasks file; runs of several models share them."""


def open_indexes(plans: Sequence[Plan], held: ExitStack) -> _Indexes:
    """Open every tasks file, and validate it to its last line before anything else."""
    found: _Indexes = {}
    for plan in plans:
        for subset, path in plan.tasks.items():
            if (key := _index_key(plan, subset, path)) not in found:
                index = index_file(plan.benchmark, subset, path, plan.results)
                held.callback(index.close)
                found[key] = index
    return found


def _index_key(plan: Plan, subset: str, path: Path) -> tuple[str, str, str, Path]:
    return plan.benchmark.name, plan.benchmark.task_version, subset, path


def prepared(plans: Sequence[Plan], indexes: _Indexes, held: ExitStack, console: Console) -> tuple[list[Opened], int]:
    """Return the plans that can start, and an exit code. One that cannot does not stop the others; alone, it raises."""
    if len(plans) == 1:
        return [_prepare(plans[0], indexes, held, console, alone=True)], 0
    opened, code = [], 0
    for plan in plans:
        try:
            opened.append(_prepare(plan, indexes, held, console, alone=False))
        except HarnessError as error:
            tell(f"{plan.name}: {error}")
            code = max(code, error.exit_code)
    return opened, code


def _prepare(plan: Plan, indexes: _Indexes, held: ExitStack, console: Console, alone: bool) -> Opened:
    """Lock a plan's runs, check that they have this configuration, and open their files."""
    if odd := [name for name in plan.benchmark.all_files if not is_file_name(name)]:
        raise BadInput(
            f"{shown(odd[0])} cannot be kept under this name in the run's folder: give the file another name"
        )
    stores = {subset: _store(plan, subset, held) for subset in plan.tasks}
    for earlier in runs_in(plan.folder):
        if not (earlier.subset in stores and (plan.restart or _is_bare(earlier))):
            same_identity(load(earlier.manifest), plan.identity(), plan.allowed, plan.folder)
    if plan.restart:
        for store in stores.values():
            store.set_aside_everything()
    label = "" if alone else f"{plan.name}, "
    runs = [
        _open(plan, indexes[_index_key(plan, subset, path)], stores[subset], label, console)
        for subset, path in plan.tasks.items()
    ]
    return Opened(plan, runs, [run for run in runs if len(run.job.remaining)], alone)


def _store(plan: Plan, subset: str, held: ExitStack) -> RunStore:
    store = RunStore(RunFiles(plan.folder, subset), time.time, stamp())
    held.callback(store.close)
    return store


def _open(plan: Plan, index: TaskIndex, store: RunStore, label: str, console: Console) -> Run:
    """Open a run's files, checked and repaired."""
    subset, old = store.files.subset, store.manifest()
    if old is not None and _is_bare(store.files) and differences(old.identity, plan.identity()):
        console.print(f"{label}{subset}: an earlier configuration has no results; this one replaces it", **PLAIN)
        old = None
    if old is not None:
        _tell_changes(old, plan, label + subset, console)
    elif store.files.results.exists() and store.files.results.stat().st_size:
        raise BadInput(
            f"{store.files.results} has no manifest: another program wrote it (`reeval` scores it), "
            "so give this run a --name of its own"
        )
    manifest = _manifest(plan, subset, index, old)
    if old is None:
        manifest.save(store.files.manifest)  # before any results: results without a manifest are another program's
    done = store.open_logs(index)
    expected = index.select(plan.ratio, plan.sample_seed) | done
    job = Job(plan.benchmark, subset, plan.sampling, plan.endpoint, index, store, expected)
    _tell_state(plan, job, old, label + subset, console)
    if len(job.remaining):
        check_measure(plan.benchmark, job.task(int(job.remaining[0])))
        manifest.state, manifest.results_sha256 = RUNNING, None
        manifest.counts = {"users": job.users}  # an earlier end may have counted fewer users
        store.set_aside_report()
        store.keep_files(plan.benchmark.all_files)
        manifest.save(store.files.manifest)
    changed = old is not None and (
        any(old.tasks.get(name, "") != manifest.tasks[name] for name in ("sha256", "truth")) or store.outside() > 0
    )
    return Run(label + subset, job, manifest, changed)


def _is_bare(files: RunFiles) -> bool:
    """Return whether a run has neither replies nor failures, as after a wrong key: a new one loses nothing."""
    return not any(path.exists() and path.stat().st_size for path in (files.results, files.responses, files.failures))


def _manifest(plan: Plan, subset: str, index: TaskIndex, old: Manifest | None) -> Manifest:
    """Return the manifest of this launch, with state, counts and times of an earlier one."""
    made = Manifest(
        subset=subset,
        identity=plan.identity(),
        provenance=plan.provenance(),
        tuning=asdict(plan.tuning),
        tasks={
            "path": str(plan.tasks[subset]),
            "sha256": index.sha256,
            "users": len(index),
            "truth": plan.benchmark.truth_sha256,
        },
        selection={"ratio": plan.ratio, "sample_seed": plan.sample_seed},
        times={"created": now(), "seconds": 0.0},
    )
    made.provenance["quirks"] = _known_quirks(plan, old)
    made.provenance["quirks_used"] = sorted(
        {*made.provenance["quirks"], *(old.provenance.get("quirks_used", ()) if old else ())}
    )
    if old is not None:
        accepted = [
            f"{name} was {shown(a)}, is now {shown(b)}"
            for name, (a, b) in differences(old.identity, made.identity).items()
        ]
        made.provenance["allowed"] = [*old.provenance.get("allowed", ()), *accepted]
        made.tuning |= {name: old.tuning[name] for name in ("learned_limit",) if name in old.tuning}
        made.state, made.counts, made.results_sha256 = old.state, old.counts, old.results_sha256
        made.times = {**made.times, **old.times}
    made.provenance["origin"] = origin.seal(made, os.environ)
    return made


def _known_quirks(plan: Plan, old: Manifest | None) -> list[str]:
    """Return the quirks known before the first request: from the providers file, and from an earlier process."""
    known = set(plan.found.provider.adapt) if plan.found and plan.found.provider else set()
    if old is not None and old.provenance.get("endpoint") == plan.endpoint:
        known |= QUIRKS.keys() & set(old.provenance.get("quirks", ()))
    return sorted(known)


def _tell_changes(old: Manifest, plan: Plan, label: str, console: Console) -> None:
    for name, (before, after) in differences(old.provenance, plan.provenance()).items():
        if name not in NOT_REPORTED:
            console.print(f"{label}: note: {name} was {_short(before)}, is now {_short(after)}", **PLAIN)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= SHORT else f"{text[:SHORT]} … ({len(text) - SHORT} more characters)"


def _tell_state(plan: Plan, job: Job, old: Manifest | None, label: str, console: Console) -> None:
    def say(words: str) -> None:
        console.print(f"{label}: {words}", **PLAIN)

    if job.store.torn:
        say(f"{job.store.torn} torn lines were moved to *.torn; their users or replies will be requested again")
    outside = job.store.outside()
    if outside:
        say(f"{outside} records are of users whose task has changed or gone; they are not counted")
    extra = int((job.done & ~job.index.select(plan.ratio, plan.sample_seed)).sum())
    if extra:
        say(f"{extra} users of this run are outside the requested share; they stay in the run")
    if old is not None and len(job.remaining) and job.users_done:
        say(f"resuming: {job.users_done} of {job.users} users are done")


def check_disk(jobs: list[Job]) -> None:
    """Refuse runs that do not fit on the disk: responses and results, and all results once more for the rewrite."""
    if not jobs:
        return
    steps = sum(int(job.index.steps[job.remaining].sum()) for job in jobs)
    present = sum(job.store.files.results.stat().st_size for job in jobs)
    needed = steps * defaults.BYTES_PER_STEP * 3 // 2 + present
    folder = jobs[0].store.files.folder
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise MachineError(
            f"{folder} has {free / 1e6:.0f} MB free, and this run of {steps} steps may take "
            f"{needed / 1e6:.0f} MB: free some space, or take a share of the users with --ratio"
        )
