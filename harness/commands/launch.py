"""Opens the runs of a plan, plays what they owe, and brings them to their end. Shared by `run` and `resume`."""

from __future__ import annotations

import shlex
import shutil
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console

from harness import config
from harness.commands.files import index_file, now, stamp, write_report
from harness.commands.plan import Plan
from harness.commands.session import Played, few_collections, play
from harness.engine.finish import finish
from harness.engine.job import Job
from harness.errors import BadInput, HarnessError, MachineError, RunStopped
from harness.model import Report
from harness.store.manifest import COMPLETE, RUNNING, Manifest, differences, load
from harness.store.run import RunFiles, RunStore, runs_in, same_identity, shown
from harness.store.tasks import TaskIndex

COMPLETE_EXIT, FAILURES_EXIT = 0, 1
WARNINGS_SHOWN = 5
"""Of a benchmark's warnings at the end of a run; run_*.log has all."""

PLAIN: dict[str, Any] = {"highlight": False, "soft_wrap": True, "markup": False}
"""For text that holds names and paths: printed as it is."""


def launch(plan: Plan, console: Console) -> int:
    """Runs a plan to an end of some kind; returns the exit code."""
    with ExitStack() as held:
        held.enter_context(few_collections())
        indexes = {subset: _index(plan, subset, held) for subset in plan.tasks}
        stores = {subset: _store(plan, subset, held) for subset in plan.tasks}
        for earlier in runs_in(plan.folder):
            if not (plan.restart and earlier.subset in stores):
                same_identity(load(earlier.manifest), plan.identity(), plan.allowed, plan.folder)
        if plan.restart:
            for store in stores.values():
                store.set_aside_everything()
        runs = [_open(plan, indexes[subset], stores[subset], console) for subset in plan.tasks]
        owing = [run for run in runs if len(run.job.owed)]
        _check_disk(plan, [run.job for run in owing])
        started = time.monotonic()
        played = play(plan, [run.job for run in owing], console) if owing else Played(None, None, None)
        ending, seconds = played.ending, time.monotonic() - started
        for run in runs:
            if run in owing or run.changed or run.manifest.state != COMPLETE:
                _close(plan, run, played, seconds, console)
            else:
                console.print(f"{run.job.subset}: complete; report: {run.job.store.files.report('txt')}", **PLAIN)
        return _ended(plan, [run.job for run in runs], ending, console)


@dataclass(slots=True, eq=False)
class _Run:
    """`changed` says that tasks or ground truth are not those that the files were finished with."""

    job: Job
    manifest: Manifest
    changed: bool


def _index(plan: Plan, subset: str, held: ExitStack) -> TaskIndex:
    index = index_file(plan.benchmark, subset, plan.tasks[subset], plan.results)
    held.callback(index.close)
    return index


def _store(plan: Plan, subset: str, held: ExitStack) -> RunStore:
    store = RunStore(RunFiles(plan.folder, subset), time.time, stamp())
    held.callback(store.close)
    return store


def _open(plan: Plan, index: TaskIndex, store: RunStore, console: Console) -> _Run:
    """A run's files, checked and repaired, and what it owes."""
    subset, old = store.files.subset, store.manifest()
    if old is not None:
        _tell_changes(old, plan, subset, console)
    elif store.files.results.exists() and store.files.results.stat().st_size:
        raise BadInput(
            f"{store.files.results} is there without a manifest: another program wrote it (`reeval` scores it), "
            "so give this run a --name of its own"
        )
    manifest = _manifest(plan, subset, index, old)
    if old is None:
        manifest.save(store.files.manifest)  # before there are results, which without one are another program's
    done = store.open_logs(index)
    expected = index.select(plan.ratio, plan.sample_seed) | done
    job = Job(plan.benchmark, subset, plan.sampling, plan.endpoint, index, store, expected)
    _tell_state(plan, job, old, console)
    if len(job.owed):
        manifest.state = RUNNING
        store.set_aside_report()
        store.keep_files(plan.benchmark.files)
        manifest.save(store.files.manifest)
    changed = old is not None and (
        any(old.tasks.get(name, "") != manifest.tasks[name] for name in ("sha256", "truth")) or store.outside() > 0
    )
    return _Run(job, manifest, changed)


def _manifest(plan: Plan, subset: str, index: TaskIndex, old: Manifest | None) -> Manifest:
    """The manifest of this launch; what an earlier one said of state, counts and times stays."""
    made = Manifest(
        subset=subset,
        identity=plan.identity(),
        provenance=plan.provenance(),
        tuning=asdict(plan.tuning),
        tasks={
            "path": str(plan.tasks[subset]),
            "sha256": index.sha256,
            "users": len(index),
            "truth": plan.benchmark.truth,
        },
        selection={"ratio": plan.ratio, "sample_seed": plan.sample_seed},
        times={"created": now(), "seconds": 0.0},
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
    return made


def _close(plan: Plan, run: _Run, played: Played, seconds: float, console: Console) -> None:
    """The final file, the report and the manifest of one subset."""
    job, manifest = run.job, run.manifest
    if isinstance(played.ending, MachineError):
        return  # a disk that is full takes no report either; everything saved is intact
    manifest.times |= {"updated": now(), "seconds": round(manifest.times.get("seconds", 0.0) + seconds, 3)}
    if played.schedule is not None:
        manifest.times["schedule"] = played.schedule
    if played.learned is not None:
        manifest.tuning["learned_limit"] = played.learned
    report = finish(job, manifest, plan.name, stopped=played.ending is not None)
    write_report(job.store.files, report)
    manifest.save(job.store.files.manifest)
    console.print(_headline(job, report), **PLAIN)


def _headline(job: Job, report: Report) -> str:
    coverage = report.data["coverage"]
    incomplete = "" if coverage["complete"] else " (INCOMPLETE)"
    covered = f"{coverage['scored_users']} of {coverage['expected_users']} users{incomplete}"
    return f"{job.subset}: {covered}: {report.headline}; report: {job.store.files.report('txt')}"


def _ended(plan: Plan, jobs: list[Job], ending: HarnessError | None, console: Console) -> int:
    """Says what is left to do, and how; returns the exit code."""
    owed = sum(len(job.owed) for job in jobs)
    failed = sum(job.failed for job in jobs)
    if ending is not None:
        word = "interrupted" if isinstance(ending, RunStopped) else f"stopped: {ending}"
        console.print(f"{word}; {owed} users are owed", **PLAIN)
    elif failed:
        kinds = f"{failed} users failed and are not scored; see {plan.folder}/failures_*.jsonl"
        console.print(kinds, **PLAIN)
    for warning in [warning for job in jobs for warning in job.warnings][:WARNINGS_SHOWN]:
        console.print(f"warning: {warning}", **PLAIN)
    if otherwise := sum(job.otherwise for job in jobs):
        console.print(
            f"{otherwise} users asked something else than before they were interrupted: what was new was paid for "
            "(asked_otherwise in run_*.log)",
            **PLAIN,
        )
    if owed:
        console.print(f"to go on: {_resume_command(plan)}", **PLAIN)
    if ending is not None:
        return ending.exit_code
    return FAILURES_EXIT if owed else COMPLETE_EXIT


def _resume_command(plan: Plan) -> str:
    folder = [] if plan.results == config.RESULTS_FOLDER else ["--results-dir", str(plan.results)]
    return shlex.join(["python", "-m", "harness", "resume", "--name", plan.name, *folder])


def _tell_changes(old: Manifest, plan: Plan, subset: str, console: Console) -> None:
    for name, (before, after) in differences(old.provenance, plan.provenance()).items():
        if name not in ("source", "allowed"):
            console.print(f"{subset}: note: {name} was {before}, is now {after}", **PLAIN)


def _tell_state(plan: Plan, job: Job, old: Manifest | None, console: Console) -> None:
    def say(words: str) -> None:
        console.print(f"{job.subset}: {words}", **PLAIN)

    if job.store.torn:
        say(f"{job.store.torn} torn lines were set aside in *.torn; what they held is owed again")
    outside = job.store.outside()
    if outside:
        say(f"{outside} records are of users whose task has changed or gone; they are not counted")
    extra = int((job.done & ~job.index.select(plan.ratio, plan.sample_seed)).sum())
    if extra:
        say(f"{extra} users of this run stand outside the share asked for now; they stay in it")
    if old is not None and len(job.owed) and job.users_done:
        say(f"goes on: {job.users_done} of {job.users} users are done")


def _check_disk(plan: Plan, jobs: list[Job]) -> None:
    """Refuses a run that the disk cannot hold: responses and results, and all results once more for the rewrite."""
    steps = sum(int(job.index.steps[job.owed].sum()) for job in jobs)
    present = sum(job.store.files.results.stat().st_size for job in jobs)
    needed = steps * config.BYTES_PER_STEP * 3 // 2 + present
    free = shutil.disk_usage(plan.folder).free if jobs else 0
    if jobs and free < needed:
        raise MachineError(
            f"{plan.folder} has {free / 1e6:.0f} MB free, and this run of {steps} steps may take "
            f"{needed / 1e6:.0f} MB: free some, or take a share of the users with --ratio"
        )
