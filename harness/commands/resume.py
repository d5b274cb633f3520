"""`resume`: continue unfinished runs, each with its own endpoint and its own key variable."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby, pairwise

import orjson
from rich.console import Console

from harness import defaults
from harness.analysis import selection
from harness.analysis.saved_runs import SavedRun
from harness.client.connect import usable
from harness.commands.launch import launch
from harness.commands.notices import resume_words
from harness.commands.report import write_new_page
from harness.errors import BadInput
from harness.model import JSON
from harness.options import address, endpoint_file, models, options, prices, providers, roles
from harness.options.extension import hooks_of
from harness.options.options import ResumeOptions
from harness.options.plan import EndpointChoice, Plan, RunPolicy, sampling_again
from harness.options.providers import Book, Provider
from harness.store.manifest import COMPLETE
from harness.ui.console import PLAIN, console

Options = ResumeOptions


def execute(args: ResumeOptions) -> int:
    args = replace(args, endpoint=endpoint_file.endpoint_of(args))
    runs, skipped = selection.find(args)
    screen = console(no_color=args.no_color)
    unfinished = [run for run in runs if run.manifest.state != COMPLETE]
    if not runs and not skipped:
        raise selection.nothing_found(args)
    if not unfinished:
        screen.print("nothing to resume: every run is complete")
        return skipped
    by_schedule = groupby(sorted(unfinished, key=_together), key=_together)
    groups = [list(group) for _, group in by_schedule]
    _check_one_endpoint(groups, args)
    plans, failed = selection.each(
        groups, lambda group: _planned(group, args, screen), lambda group: group[0].name
    )
    # Groups are sorted by name first, so two of one folder are neighbours.
    for previous, plan in pairwise(plans):
        if previous.name == plan.name:
            raise BadInput(
                f"{plan.name} holds runs of two configurations: resume one subset of it with"
                " --subset"
            )
    code = 0
    if plans:
        # A run that began with batches, a budget or hedging goes on so without the option.
        hooks = hooks_of(args, [run.manifest for run in unfinished])
        code = launch(plans, screen, hooks, reported=partial(write_new_page, args), caller=args)
    return max(skipped, failed, code)


def _check_one_endpoint(groups: Sequence[Sequence[SavedRun]], args: ResumeOptions) -> None:
    """Raise `BadInput` if what the command says of one endpoint would be for runs that were at
    several."""
    of_one_endpoint = (
        args.endpoint,
        args.api_url,
        args.provider,
        args.api_key,
        args.api_key_file,
        args.extra_header,
    )
    # A key or header is for one address: it must not reach the others' endpoints.
    endpoints = {group[0].manifest.provenance["endpoint"] for group in groups}
    if len(endpoints) > 1 and any(of_one_endpoint):
        names = dict.fromkeys([group[0].name for group in groups])
        raise BadInput(
            f"{len(groups)} runs are unfinished, and a key, header, address or provider is for one"
            f" endpoint: name its runs with --name ({', '.join(names)})"
        )


SHARED_PROVENANCE = (
    "endpoint",
    "address_from",
    "key_from",
    "provider",
    "headers",
    "source",
    "sources",
)
"""Parts of the provenance that runs of one plan have in common."""


def _together(run: SavedRun) -> bytes:
    """Return a key: runs of one folder with the same configuration and endpoint share a
    schedule."""
    where = {name: run.manifest.provenance.get(name) for name in SHARED_PROVENANCE}
    return orjson.dumps([run.name, run.manifest.identity, where, run.manifest.selection])


def _planned(group: list[SavedRun], args: ResumeOptions, screen: Console) -> Plan:
    """Return the plan of runs that share a schedule, and print what it changes."""
    first = group[0]
    all_changed = (*first.changed, *first.changed_benchmark)
    changed = [name for name in all_changed if name not in args.allow]
    if changed:
        screen.print(
            f"{first.name}: {', '.join(changed)} was changed or deleted since the run began:"
            f" resuming with the run's own copy (--allow {changed[0]} uses the current file)",
            **PLAIN,
        )
    # A folder from somebody else must not decide which certificates are trusted.
    if first.manifest.provenance.get("ca_file") and not args.ca_file:
        screen.print(
            f"{first.name}: certificates named in its manifest are not trusted: give yours with"
            " --ca-file"
        )
    plan = _plan(group, args)
    screen.print(f"{plan.name}: {plan.sampling.model} on {plan.endpoint}", **PLAIN)
    return plan


def _plan(group: list[SavedRun], args: ResumeOptions) -> Plan:
    first = group[0]
    manifest = first.manifest
    allowed = frozenset(args.allow)
    book = providers.read(args.providers, os.environ)
    endpoint = _endpoint(first, args, book)
    price = None
    if endpoint:
        price = args.price or prices.price_of(endpoint, manifest.identity["model"], book)
        # One that an earlier command named by --price is in no file, and still holds at the same
        # address.
        price = price or manifest.price_at(endpoint.shown)
    named_files: JSON = {}
    # The manifest of a run from elsewhere may name any file of this machine.
    if all(run.is_known for run in group):
        named_files = {**manifest.provenance}
    terms = RunPolicy(
        allowed,
        source=named_files.get("source"),
        sources=named_files.get("sources", {}),
        allow_invalid=args.allow_invalid,
        pages=args.html,
        earlier=manifest,
    )
    plan = Plan(
        name=first.name,
        benchmark=first.benchmark(args.tasks_dir, allowed=allowed),
        sampling=sampling_again(manifest),
        tasks={run.files.subset: run.tasks(args.tasks_dir) for run in group},
        results=args.results_dir,
        endpoint_choice=EndpointChoice.of(args, endpoint, price),
        tuning=options.tuning(args, _lower({**manifest.tuning}, endpoint)),
        selection=manifest.selection,
        terms=terms,
    )
    return roles.with_earlier_roles(plan, args, book, manifest)


def _endpoint(run: SavedRun, args: ResumeOptions, book: Book) -> address.ResolvedEndpoint | None:
    """Return where a run goes on, None for a baseline. Raise `BadInput`."""
    provenance = run.manifest.provenance
    if not (args.api_url or args.provider) and provenance["endpoint"] == defaults.EMBEDDED:
        return None
    provider = _provider(run, args, book)
    command = shlex.join(resume_words(args.results_dir, [run.name]))
    earlier = address.EarlierRun(run.name, provenance, provider, command)
    endpoint = address.for_resume(args, earlier, os.environ)
    for server_address in endpoint.addresses:
        usable(server_address)
    return endpoint


def _lower(tuning: JSON, endpoint: address.ResolvedEndpoint | None) -> JSON:
    """Return the run's earlier tuning, within the account's limits in the current providers
    file."""
    limits: JSON = {}
    if endpoint and endpoint.provider:
        limits = models.pace_of(endpoint.provider)
    lowered = dict(tuning)
    for name in ("rpm", "tpm", "concurrency"):
        limit = limits.get(name)
        earlier = tuning.get(name)
        # `auto`, which has no earlier number, finds its own limit.
        if limit is not None and (earlier is not None or name != "concurrency"):
            lowered[name] = min(limit, earlier or limit)
    return lowered


def _provider(run: SavedRun, args: ResumeOptions, book: Book) -> Provider | None:
    """Return the provider of a run, from the current providers file.

    A file named only in the run's folder is not read: a folder from another user could redirect
    keys.
    """
    provenance = run.manifest.provenance
    name = args.provider or provenance.get("provider")
    if name is None:
        return None
    if name not in book.providers:
        file = provenance.get("providers_file")
        earlier = f" (it was {file})" if file else ""
        raise BadInput(
            f"{run.name} ran on the provider {name}, which is not in {book.files[-1]}: name its"
            f" file with --providers{earlier}"
        )
    return book.providers[name]
