"""Open plans: validate their tasks, lock their folders, and check, repair and open their runs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import cast

from harness import defaults
from harness.benchmarks import tasks
from harness.client.quirks import QUIRKS, unwanted
from harness.cost import DEFERRED, Price, Rate
from harness.engine.events import Changed, Emit, Failed, Opened, Replaced
from harness.engine.files import index_file, now, stamp
from harness.engine.hooks import Hooks
from harness.engine.play import check_measure
from harness.engine.run import Run
from harness.engine.session import Session
from harness.errors import BadInput, ExitCode, HarnessError, MachineError
from harness.model import JSON
from harness.options import trusted
from harness.options.extension import counts
from harness.options.plan import Plan
from harness.store import fetched
from harness.store.manifest import (
    RUNNING,
    Identity,
    Manifest,
    Provenance,
    Tuning,
    slice_of,
)
from harness.store.run import lock_runs, take_up
from harness.store.submissions import INSTEAD_OF_BATCHES, outstanding
from harness.store.submissions import NAME as BATCHES
from harness.store.tally import tally_of
from harness.store.tasks import TaskIndex
from harness.ui.words import plural

NOT_REPORTED = {"source", "sources", "allowed", "quirks", "quirks_used", "headers", "providers_file", "address_from"}
NOT_REPORTED |= {
    "origin",
    "key_check",
    "benchmark",
    "price",
    "later_prices",
    "price_endpoints",
    "primary",
    "data_set",
    "html",
    "reused",
}
"""Parts of the provenance whose changes are reported elsewhere, or do not matter; `origin` and `key_check` are those of
earlier versions."""


def open_indexes(plans: Sequence[Plan], held: ExitStack) -> dict[str, dict[str, TaskIndex]]:
    """Return the indexes of each plan's tasks, by its name and subset: every file is validated to its last line before
    anything else. Runs of several models share them."""
    found: dict[tuple[object, ...], TaskIndex] = {}
    opened: dict[str, dict[str, TaskIndex]] = {}
    for plan in plans:
        version, opened[plan.name] = tasks.version(plan.benchmark), {}
        for subset, path in plan.tasks.items():
            key = plan.benchmark.name, version, subset, path, plan.repeats, slice_of(plan.selection)
            if key not in found:
                found[key] = index_file(plan.benchmark, subset, path, plan.results, plan.selection)
                held.callback(found[key].close)
            opened[plan.name][subset] = found[key]
    return opened


def open_sessions(
    plans: Sequence[Plan], held: ExitStack, emit: Emit, hooks: Sequence[Hooks]
) -> tuple[list[Session], int]:
    """Return the sessions that can start, whose runs are open as long as `held`, and an exit code for the others. A
    plan that cannot start stops no other; alone, it raises."""
    opened, code, alone = [], 0, len(plans) == 1
    indexes = open_indexes(plans, held)
    for plan in plans:
        try:
            runs = open_runs(plan, indexes[plan.name], held, emit, hooks, alone)
            opened.append(Session(plan, runs, emit))
        except HarnessError as error:
            if alone:
                raise
            emit(Failed(plan.name, error))
            code = max(code, ExitCode.of(error))
    _check_room([run for session in opened for run in session.unfinished])
    return opened, code


def _check_room(runs: Sequence[Run]) -> None:
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


def open_runs(
    plan: Plan,
    indexes: Mapping[str, TaskIndex],
    held: ExitStack,
    emit: Emit,
    hooks: Sequence[Hooks],
    alone: bool,
) -> list[Run]:
    """Lock a plan's runs, one of each subset, check that they have its configuration, and open their files."""
    identity = plan.identity()
    stores = lock_runs(plan.folder, plan.tasks, identity["files"], stamp(), held)
    earlier, runs = take_up(stores, plan.folder, identity, plan.terms.allowed, restart=plan.terms.restart), []
    for subset, store in stores.items():
        index, old, label = indexes[subset], earlier.get(subset), subset if alone else f"{plan.name}, {subset}"
        if old is not None:
            _check_earlier(plan, old, label)
        elif subset in earlier:
            emit(Replaced(label))
        manifest, selected = _manifest(plan, identity, subset, index, old), index.selected(plan.selection)
        run = Run(plan.benchmark, subset, index, store, manifest, selected, label, is_new=old is None)
        _open_run(plan, run, old, emit, hooks)
        runs.append(run)
    return runs


def _check_earlier(plan: Plan, old: Manifest, label: str) -> None:
    """Raise `BadInput` if a plan cannot go on with a run as it is so far."""
    if (had := old.repeats) > plan.repeats:
        raise BadInput(f"{plan.folder} holds a run of {had} repeats: go on with --repeats {had}, or more")
    if plan.terms.primary not in (None, began := old.provenance.get("primary")):
        kept = f"began with --primary {began}" if began else "began without --primary"
        raise BadInput(
            f"{label}: this run {kept}: the primary metric is chosen before the first request, so leave it out"
        )


def _manifest(plan: Plan, identity: Identity, subset: str, index: TaskIndex, old: Manifest | None) -> Manifest:
    """Return the manifest of this session by itself, with the quirks that are known of its endpoint, and the counts of
    extensions."""
    known = set(plan.found.provider.adapt) if plan.found and plan.found.provider else set()
    if old is not None and old.provenance.get("endpoint") == plan.endpoint:
        known |= QUIRKS.keys() & set(old.provenance.get("quirks", ()))
    known -= unwanted(plan.benchmark.asking.needs_schema)
    used = old.provenance.get("quirks_used", ()) if old else ()
    provenance = {**plan.provenance(), "quirks": sorted(known), "quirks_used": sorted({*known, *used})}
    if old is not None and old.is_without_pages:
        provenance["html"] = False
    if data_set := _data_set(plan, index, old):
        provenance["data_set"] = data_set
    truth, path = plan.benchmark.task_files.truth_sha256, str(plan.tasks[subset])
    return Manifest(
        subset=subset,
        identity=identity,
        provenance=cast(Provenance, provenance),
        tuning=cast(Tuning, {**asdict(plan.tuning), **(counts(old) if old else {})}),
        tasks={"path": path, "sha256": index.sha256, "users": index.users_in_file, "truth": truth},
        selection=plan.selection,
        state=RUNNING,
        counts={},
        times={"created": now(), "seconds": 0.0},
    )


def _data_set(plan: Plan, index: TaskIndex, old: Manifest | None) -> JSON | None:
    """Return the data set that the tasks were downloaded from, None if that is not known."""
    if source := fetched.load(plan.benchmark.folder).last(index.sha256):
        return {"name": source.data_set, "commit": source.commit}
    is_same = old is not None and old.tasks["sha256"] == index.sha256
    return old.provenance.get("data_set") if old and is_same else None


def _open_run(plan: Plan, run: Run, old: Manifest | None, emit: Emit, hooks: Sequence[Hooks]) -> None:
    """Repair and open a run's files, and begin to play the users who are left. `run` expects the users that are
    selected; `old` is its manifest so far. Raise `BadInput` for what cannot go on so."""
    manifest, store, index, selected = run.manifest, run.store, run.index, run.expected
    if not selected.any():
        raise BadInput(f"{run.label}: no user is left for part {plan.selection.get('part')}: make fewer parts")
    for name, (before, after) in (manifest.go_on(old) if old else {}).items():
        if name.partition(".")[0] not in NOT_REPORTED:
            emit(Changed(run.label, name, before, after))
    trusted.remember_code(manifest, os.environ)
    if old and old.provenance["endpoint"] != plan.endpoint and not tally_of(store.files).bill.has_requests:
        manifest.set_prices([None], [plan.endpoint])  # the price of an endpoint that never billed
    store.rate = Rate(manifest.take_price(plan.price))
    for one in hooks:
        store.rate = one.adjust_price(plan, store.rate)
        one.update_manifest(plan, manifest, old)
    if old is None:
        run.save()  # before any results: results without a manifest are another program's
    done = store.open_logs(index)
    run.expected = selected | done
    run.changed = old is not None and (
        old.tasks["sha256"] != index.sha256
        or old.tasks.get("truth", "") != manifest.tasks["truth"]
        or store.outside() > 0
    )
    before = old.price_at(old.provenance["endpoint"]) if old else None
    emit(_opened(run, before, index.users(done & ~selected)))
    if len(run.remaining):
        try:
            _begin(run, plan.terms.allowed)
        except HarnessError:
            if run.is_new:
                store.drop()
            raise


def _begin(run: Run, allowed: frozenset[str]) -> None:
    """Begin to play users who are left, as the run's manifest now is."""
    manifest, store = run.manifest, run.store
    if not manifest.tuning.get(DEFERRED) and BATCHES not in allowed and (left := outstanding(store.files)):
        batches = plural(len(left), "batch", "batches")
        raise BadInput(
            f"{store.files.folder}, {store.files.subset}: {batches} may be at the provider: use --batch, or "
            f"{INSTEAD_OF_BATCHES}"
        )
    check_measure(run.benchmark, run.task(int(run.remaining[0])))
    run.begin()


def _opened(run: Run, before: Price | None, beyond_share: int) -> Opened:
    """Return how the files were found; `before` is the price of earlier replies."""
    price = run.manifest.price_at(run.manifest.provenance["endpoint"])
    changed = before and (price is None or before not in (price, price.when_deferred))
    resumed = not run.is_new and len(run.remaining) and run.users_done
    return Opened(
        run.label,
        torn=run.store.torn,
        outside=run.store.outside(),
        beyond_share=beyond_share,
        prices=(before, price) if changed and before else None,
        resumed=(run.users_done, run.users) if resumed else None,
    )
