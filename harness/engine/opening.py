"""Open plans: validate their tasks, lock their folders, and check, repair and open their runs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any, cast

from harness import defaults
from harness.benchmarks import tasks
from harness.client.quirks import QUIRKS, unwanted
from harness.cost import DEFERRED, PRICE_OPTION, Price, Rate
from harness.engine.events import Changed, Emit, Failed, Opened, Replaced
from harness.engine.files import index_file, now, stamp
from harness.engine.hooks import Hooks
from harness.engine.play import check_measure
from harness.engine.run import Run
from harness.engine.session import PlanSession
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
    Priced,
    Provenance,
    Tuning,
    slice_of,
)
from harness.store.run import lock_runs, manifests_to_continue
from harness.store.submissions import INSTEAD_OF_BATCHES, outstanding
from harness.store.submissions import NAME as BATCHES
from harness.store.tally import tally_of
from harness.store.tasks import TaskIndex
from harness.ui.words import plural

NOT_REPORTED = {
    "source",
    "sources",
    "allowed",
    "quirks",
    "quirks_used",
    "headers",
    "providers_file",
    "address_from",
    "origin",
    "key_check",
    "benchmark",
    "price",
    "later_prices",
    "price_endpoints",
    "price_roles",
    "primary",
    "data_set",
    "html",
    "reused",
}
"""Parts of the provenance whose changes are reported elsewhere, or do not matter; `origin` and
`key_check` are those of earlier versions."""


def open_indexes(plans: Sequence[Plan], held: ExitStack) -> dict[str, dict[str, TaskIndex]]:
    """Return the indexes of each plan's tasks, by its name and subset: every file is validated to
    its last line before anything else. Runs of several models share them."""
    indexes: dict[tuple[object, ...], TaskIndex] = {}
    by_plan: dict[str, dict[str, TaskIndex]] = {}
    for plan in plans:
        version, by_plan[plan.name] = tasks.version(plan.benchmark), {}
        for subset, path in plan.tasks.items():
            key = plan.benchmark.name, version, subset, path, plan.repeats, slice_of(plan.selection)
            if key not in indexes:
                indexes[key] = index_file(
                    plan.benchmark, subset, path, plan.results, plan.selection
                )
                held.callback(indexes[key].close)
            by_plan[plan.name][subset] = indexes[key]
    return by_plan


def open_sessions(
    plans: Sequence[Plan], held: ExitStack, emit: Emit, hooks: Sequence[Hooks]
) -> tuple[list[PlanSession], int]:
    """Return the sessions that can start, whose runs are open as long as `held`, and an exit code
    for the others. A plan that cannot start stops no other; alone, it raises."""
    opened, code, alone = [], 0, len(plans) == 1
    indexes = open_indexes(plans, held)
    for plan in plans:
        try:
            runs = open_runs(plan, indexes[plan.name], held, emit, hooks, alone)
            opened.append(PlanSession(plan, runs, emit))
        except HarnessError as error:
            if alone:
                raise
            emit(Failed(plan.name, error))
            code = max(code, ExitCode.of(error))
    _check_room([run for session in opened for run in session.unfinished])
    return opened, code


def _check_room(runs: Sequence[Run]) -> None:
    """Refuse runs that do not fit on the disk: responses and results, and all results once more for
    the rewrite."""
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
    """Lock a plan's runs, one of each subset, check that they have its configuration, and open
    their files."""
    identity = plan.identity()
    stores = lock_runs(plan.folder, plan.tasks, identity["files"], stamp(), held)
    earlier = manifests_to_continue(
        stores, plan.folder, identity, plan.terms.allowed, restart=plan.terms.restart
    )
    runs = []
    for subset, store in stores.items():
        index, old = indexes[subset], earlier.get(subset)
        label = subset if alone else f"{plan.name}, {subset}"
        manifest = _manifest(plan, identity, subset, index, old)
        selected = index.selected(plan.selection)
        store.roles = manifest.role_models
        run = Run(
            plan.benchmark, subset, index, store, manifest, selected, label, is_new=old is None
        )
        if old is None and subset in earlier:
            emit(Replaced(label))
        _open_run(plan, run, old, emit, hooks)
        runs.append(run)
    return runs


def _manifest(
    plan: Plan, identity: Identity, subset: str, index: TaskIndex, old: Manifest | None
) -> Manifest:
    """Return the manifest of this session by itself, with the quirks that are known of its
    endpoint, and the counts of extensions."""
    earlier_provenance: JSON = {**old.provenance} if old else {}
    quirks = _known_quirks(plan, earlier_provenance)
    provenance: JSON = {**plan.provenance(), "quirks": quirks, "quirks_used": quirks}
    for role, role_plan in plan.roles.items():
        role_before = earlier_provenance.get("roles", {}).get(role, {})
        provenance["roles"][role]["quirks"] = _known_quirks(role_plan, role_before)
    if source := fetched.load(plan.benchmark.folder).last(index.sha256):
        provenance["data_set"] = {"name": source.data_set, "commit": source.commit}
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


def _known_quirks(plan: Plan, recorded: Mapping[str, Any]) -> list[str]:
    """Return the quirks that are known of a plan's endpoint: `recorded` is what was recorded of it
    in the session before."""
    known = set(plan.resolved.provider.adapt) if plan.resolved and plan.resolved.provider else set()
    if recorded.get("endpoint") == plan.endpoint:
        known |= QUIRKS.keys() & set(recorded.get("quirks", ()))
    return sorted(known - unwanted(plan.benchmark.asking.needs_schema))


def _open_run(
    plan: Plan, run: Run, old: Manifest | None, emit: Emit, hooks: Sequence[Hooks]
) -> None:
    """Open a run, and begin to play the users who are left. `run` expects the users that are
    selected; `old` is its manifest so far. Raise `BadInput` for what cannot go on so."""
    _check_earlier(plan, run, old)
    if old is not None:
        _go_on(run, old, emit)
    trusted.remember_code(run.manifest, os.environ)
    _set_price(plan, run, old)
    for extension in hooks:
        run.store.rate = extension.adjust_price(plan, run.store.rate)
        extension.update_manifest(plan, run.manifest, old)
    if run.is_new:
        run.save()  # before any results: results without a manifest are another program's
    _open_files(plan, run, old, emit)
    if len(run.remaining):
        try:
            _begin(run, plan.terms.allowed)
        except HarnessError:
            if run.is_new:
                run.store.drop()
            raise


def _check_earlier(plan: Plan, run: Run, old: Manifest | None) -> None:
    """Raise `BadInput` if no user is selected, or a plan cannot go on with a run as it is so
    far."""
    if not run.expected.any():
        raise BadInput(
            f"{run.label}: no user is left for part {plan.selection.get('part')}: make fewer parts"
        )
    if old is None:
        return
    if old.repeats > plan.repeats:
        raise BadInput(
            f"{plan.folder} holds a run of {old.repeats} repeats: go on with --repeats"
            f" {old.repeats}, or more"
        )
    primary = old.provenance.get("primary")
    if plan.terms.primary not in (None, primary):
        began = f"with --primary {primary}" if primary else "without --primary"
        raise BadInput(
            f"{run.label}: this run began {began}: the primary metric is chosen before the first"
            " request, so leave it out"
        )


def _go_on(run: Run, old: Manifest, emit: Emit) -> None:
    """Take up the manifest of the session before, and report what differs."""
    for name, (earlier, present) in run.manifest.go_on(old).items():
        if NOT_REPORTED.isdisjoint(name.split(".")):
            emit(Changed(run.label, name, earlier, present))


def _set_price(plan: Plan, run: Run, old: Manifest | None) -> None:
    """Note the price of now, at which the run's requests are sent."""
    if (
        old
        and old.provenance["endpoint"] != plan.endpoint
        and not tally_of(run.store.files).bill.has_requests
    ):
        # the price of an endpoint that never billed
        run.manifest.set_prices([Priced(None, plan.endpoint)])
    run.store.rate = Rate(run.manifest.take_price(plan.price))
    for role, role_plan in plan.roles.items():
        run.store.rates[role] = Rate(run.manifest.take_price(role_plan.price, role))


def _open_files(plan: Plan, run: Run, old: Manifest | None, emit: Emit) -> None:
    """Repair and open a run's files, expect the users too who are done, and report what the files
    hold."""
    store, index, selected = run.store, run.index, run.expected
    done = store.open_logs(index)
    run.expected = selected | done
    prices = None
    if old is not None:
        tasks_changed = old.tasks["sha256"] != index.sha256
        truth_changed = old.tasks.get("truth", "") != run.manifest.tasks["truth"]
        run.changed = tasks_changed or truth_changed or store.outside() > 0
        earlier_price = old.price_at(old.provenance["endpoint"])
        price = run.manifest.price_at(run.manifest.provenance["endpoint"])
        if earlier_price and (price is None or earlier_price not in (price, price.when_deferred)):
            prices = earlier_price, price
        if not len(run.remaining):
            if plan.price and plan.price.source == PRICE_OPTION:
                prices = None
                _price_replies(run, old, plan.price)
            run.changed |= run.manifest.prices[: len(old.prices)] != old.prices
    resumed = not run.is_new and len(run.remaining) and run.users_done
    emit(
        Opened(
            run.label,
            torn=store.torn,
            outside=store.outside(),
            beyond_share=index.users(done & ~selected),
            prices=prices,
            resumed=(run.users_done, run.users) if resumed else None,
        )
    )


def _price_replies(run: Run, old: Manifest, price: Price) -> None:
    """Give all saved replies from this endpoint a price, which no later request has."""
    manifest, store = run.manifest, run.store
    manifest.set_prices(old.priced)
    endpoint = manifest.provenance["endpoint"]
    is_of_model = [not priced.role and priced.endpoint == endpoint for priced in manifest.priced]
    run.price_again([price if is_own else None for is_own in is_of_model])
    store.rate = store.rate._replace(price=manifest.take_price(price))


def _begin(run: Run, allowed: frozenset[str]) -> None:
    """Begin to play users who are left, as the run's manifest now is."""
    files = run.store.files
    if (
        not run.manifest.tuning.get(DEFERRED)
        and BATCHES not in allowed
        and (left := outstanding(files))
    ):
        batches = plural(len(left), "batch", "batches")
        raise BadInput(
            f"{files.folder}, {files.subset}: {batches} may be at the provider: use --batch, or"
            f" {INSTEAD_OF_BATCHES}"
        )
    check_measure(run.benchmark, run.task(int(run.remaining[0])))
    run.begin()
