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
        benchmark, selection = plan.benchmark, plan.selection
        rules = benchmark.name, tasks.version(benchmark)
        of_plan = by_plan[plan.name] = {}
        for subset, path in plan.tasks.items():
            # Plans of several models read the same file, and a pass over a large one takes minutes.
            key = *rules, subset, path, plan.repeats, slice_of(selection)
            index = indexes.get(key)
            if index is None:
                index = indexes[key] = index_file(benchmark, subset, path, plan.results, selection)
                held.callback(index.close)
            of_plan[subset] = index
    return by_plan


def open_sessions(
    plans: Sequence[Plan], held: ExitStack, emit: Emit, hooks: Sequence[Hooks]
) -> tuple[list[PlanSession], int]:
    """Return the sessions that can start, whose runs are open as long as `held`, and an exit code
    for the others. A plan that cannot start stops no other; alone, it raises."""
    opened = []
    code = 0
    alone = len(plans) == 1
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
    # An estimate errs, so half as much again; and the rewrite at the end holds the results twice.
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
        index = indexes[subset]
        old = earlier.get(subset)
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
    tuning = asdict(plan.tuning)
    before: JSON = {}
    if old:
        tuning |= counts(old)
        before = cast(JSON, old.provenance)
    roles_before = before.get("roles", {})
    quirks = _known_quirks(plan, before)
    provenance: JSON = {**plan.provenance(), "quirks": quirks, "quirks_used": quirks}
    for role, role_plan in plan.roles.items():
        known = _known_quirks(role_plan, roles_before.get(role, {}))
        provenance["roles"][role]["quirks"] = known
    source = fetched.load(plan.benchmark.folder).last(index.sha256)
    if source:
        provenance["data_set"] = {"name": source.data_set, "commit": source.commit}
    return Manifest(
        subset=subset,
        identity=identity,
        provenance=cast(Provenance, provenance),
        tuning=cast(Tuning, tuning),
        tasks={
            "path": str(plan.tasks[subset]),
            "sha256": index.sha256,
            "users": index.users_in_file,
            "truth": plan.benchmark.task_files.truth_sha256,
        },
        selection=plan.selection,
        state=RUNNING,
        counts={},
        times={"created": now(), "seconds": 0.0},
    )


def _known_quirks(plan: Plan, recorded: Mapping[str, Any]) -> list[str]:
    """Return the quirks that are known of a plan's endpoint: `recorded` is what was recorded of it
    in the session before."""
    known: set[str] = set()
    if plan.resolved and plan.resolved.provider:
        known.update(plan.resolved.provider.adapt)
    # What one endpoint was found to need says nothing about another.
    if recorded.get("endpoint") == plan.endpoint:
        known |= QUIRKS.keys() & set(recorded.get("quirks", ()))
    return sorted(known - unwanted(plan.benchmark.asking.needs_schema))


def _open_run(
    plan: Plan, run: Run, old: Manifest | None, emit: Emit, hooks: Sequence[Hooks]
) -> None:
    """Open a run, and begin to play the users who are left. `run` expects the users that are
    selected; `old` is its manifest so far. Raise `BadInput` for what cannot go on so."""
    if not run.expected.any():
        raise BadInput(
            f"{run.label}: no user is left for part {plan.selection.get('part')}: make fewer parts"
        )
    if old is not None:
        _check_earlier(plan, run.label, old)
        for name, (earlier, present) in run.manifest.go_on(old).items():
            if NOT_REPORTED.isdisjoint(name.split(".")):
                emit(Changed(run.label, name, earlier, present))
    trusted.remember_code(run.manifest, os.environ)
    _set_price(plan, run, old)
    for extension in hooks:
        run.store.rates[""] = extension.adjust_price(plan, run.store.rates[""])
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


def _check_earlier(plan: Plan, label: str, old: Manifest) -> None:
    """Raise `BadInput` if a plan cannot go on with a run as it is so far."""
    if old.repeats > plan.repeats:
        raise BadInput(
            f"{plan.folder} holds a run of {old.repeats} repeats: go on with --repeats"
            f" {old.repeats}, or more"
        )
    primary = old.provenance.get("primary")
    if plan.terms.primary not in (None, primary):
        began = f"with --primary {primary}" if primary else "without --primary"
        raise BadInput(
            f"{label}: this run began {began}: the primary metric is chosen before the first"
            " request, so leave it out"
        )


def _set_price(plan: Plan, run: Run, old: Manifest | None) -> None:
    """Note the price of now, at which the run's requests are sent."""
    manifest, store = run.manifest, run.store
    has_moved = old and old.provenance["endpoint"] != plan.endpoint
    if has_moved and not tally_of(store.files).bill.has_requests:
        # The earlier price is that of an endpoint that never billed.
        manifest.set_prices([Priced(None, plan.endpoint)])
    for role, role_plan in {"": plan, **plan.roles}.items():
        store.rates[role] = Rate(manifest.take_price(role_plan.price, role))


def _open_files(plan: Plan, run: Run, old: Manifest | None, emit: Emit) -> None:
    """Repair and open a run's files, expect the users too who are done, and report what the files
    hold."""
    store, index = run.store, run.index
    selected = run.expected
    done = store.open_logs(index)
    # Which users there are: those asked for now, and those whom an earlier session has paid for.
    run.expected = selected | done
    prices = resumed = None
    if old is not None:
        tasks_changed = old.tasks["sha256"] != index.sha256
        truth_changed = old.tasks.get("truth", "") != run.manifest.tasks["truth"]
        run.changed = tasks_changed or truth_changed or store.outside() > 0
        prices = _changed_price(run.manifest, old)
        if not len(run.remaining):
            if plan.price and plan.price.source == PRICE_OPTION:
                prices = None
                _price_replies(run, old, plan.price)
            run.changed |= run.manifest.prices[: len(old.prices)] != old.prices
        elif run.users_done:
            resumed = run.users_done, run.users
    emit(
        Opened(
            run.label,
            torn=store.torn,
            outside=store.outside(),
            beyond_share=index.users(done & ~selected),
            prices=prices,
            resumed=resumed,
        )
    )


def _changed_price(manifest: Manifest, old: Manifest) -> tuple[Price, Price | None] | None:
    """Return the price of the session before and the present one, where they differ in more than
    that requests are deferred; None where they do not, or none was known."""
    earlier = old.price_at(old.provenance["endpoint"])
    price = manifest.price_at(manifest.provenance["endpoint"])
    if earlier is None or (price and earlier in (price, price.when_deferred)):
        return None
    return earlier, price


def _price_replies(run: Run, old: Manifest, price: Price) -> None:
    """Give all saved replies from this endpoint a price, which no later request has."""
    manifest, store = run.manifest, run.store
    manifest.set_prices(old.priced)
    endpoint = manifest.provenance["endpoint"]
    new_prices = []
    for priced in manifest.priced:
        is_of_model = not priced.role and priced.endpoint == endpoint
        new_prices.append(price if is_of_model else None)
    run.price_again(new_prices)
    store.rates[""] = store.rates[""]._replace(price=manifest.take_price(price))


def _begin(run: Run, allowed: frozenset[str]) -> None:
    """Begin to play users who are left, as the run's manifest now is."""
    files = run.store.files
    # `--batch` fetches them; without, their requests are sent, and paid for, a second time.
    if not run.manifest.tuning.get(DEFERRED) and BATCHES not in allowed:
        left = len(outstanding(files))
        if left:
            raise BadInput(
                f"{files.folder}, {files.subset}: {plural(left, 'batch', 'batches')} may be at the"
                f" provider: use --batch, or {INSTEAD_OF_BATCHES}"
            )
    check_measure(run.benchmark, run.task(int(run.remaining[0])))
    run.begin()
