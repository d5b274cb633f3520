"""`resume`: continue unfinished runs, each with its own endpoint and its own key variable."""

from __future__ import annotations

import os
import shlex
from functools import partial
from itertools import groupby, pairwise

import orjson
from rich.console import Console

from harness import defaults
from harness.analysis import selection
from harness.analysis.saved_runs import SavedRun
from harness.commands.launch import launch
from harness.config import address, models, options, origin, providers
from harness.config.options import ResumeOptions
from harness.config.plan import Plan, Terms, Way, sampling_again
from harness.endpoint.connect import usable
from harness.errors import BadInput
from harness.feature import extensions, reported
from harness.model import JSON
from harness.store.manifest import COMPLETE
from harness.ui.console import console


def execute(args: ResumeOptions) -> int:
    found, skipped = selection.find(args)
    if not found and (args.runs or args.model or args.platform):
        raise selection.nothing_found(args)
    screen = console(no_color=args.no_color)
    unfinished = [run for run in found if run.manifest.state != COMPLETE]
    if not unfinished:
        screen.print("nothing to resume: every run is complete" if found else f"no run under {args.results_dir}")
        return skipped
    groups = [list(runs) for _, runs in groupby(sorted(unfinished, key=_together), key=_together)]
    if len(groups) > 1 and (args.api_url or args.api_key or args.api_key_file or args.provider or args.extra_header):
        raise BadInput(
            f"{len(groups)} runs are unfinished, and a key, header, address or provider is for one: name it with "
            f"--name ({', '.join(dict.fromkeys(group[0].name for group in groups))})"
        )
    plans, failed = selection.each(groups, lambda group: _planned(group, args, screen), lambda group: group[0].name)
    if any(twice := [a.name for a, b in pairwise(plans) if a.name == b.name]):
        raise BadInput(f"{twice[0]} holds runs of two configurations: resume one subset of it with --subset")
    code = 0
    if plans:
        switched_on = extensions(args, [run.manifest for run in unfinished])
        code = launch(plans, screen, switched_on, reported=partial(reported, args), caller=args)
    return max(skipped, failed, code)


def _together(run: SavedRun) -> bytes:
    """Return a key: runs of one folder with the same configuration and endpoint share a schedule."""
    where = {name: run.manifest.provenance.get(name) for name in origin.SHARED}
    return orjson.dumps([run.name, run.manifest.identity, where, run.manifest.selection])


def _planned(group: list[SavedRun], args: ResumeOptions, screen: Console) -> Plan:
    """Return the plan of runs that share a schedule, and print what it changes."""
    first, own = group[0], all(run.is_own for run in group)
    if not own and "runs" not in args.typed:  # the name that a settings file has is not the user's word
        raise BadInput(f"{origin.UNKNOWN}: resume it by name: --name {shlex.quote(first.name)}")
    if changed := [name for name in (*first.changed, *first.changed_benchmark) if name not in args.allow]:
        words = f"{first.name}: {', '.join(changed)} was changed or deleted since the run began: resuming with the "
        words += f"run's own copy (--allow {changed[0]} uses the current file)"
        screen.print(words, highlight=False, soft_wrap=True)
    if not own and first.manifest.provenance.get("ca_file") and not args.ca_file:
        screen.print(f"{first.name}: certificates named in its manifest are not trusted: give yours with --ca-file")
    made = _plan(group, args, own)
    screen.print(f"{made.name}: {made.sampling.model} on {made.endpoint}", highlight=False, soft_wrap=True)
    return made


NOT_FOLLOWED = ("providers_file", "source", "sources", "ca_file")
"""Parts of the provenance that name files of this machine; ignored for a run from elsewhere."""


def _plan(group: list[SavedRun], args: ResumeOptions, own: bool) -> Plan:
    first, manifest = group[0], group[0].manifest
    left_out = () if own else NOT_FOLLOWED
    provenance: JSON = {name: value for name, value in manifest.provenance.items() if name not in left_out}
    found = None
    if args.api_url or args.provider or provenance["endpoint"] != defaults.EMBEDDED:
        provider = _provider(first.name, provenance, args)
        found = address.again(args, provenance, os.environ, first.name, provider, own=own)
        for one in found.addresses:
            usable(one)
    price = None
    if found:
        today = models.price_of(found, manifest.identity["model"], providers.read(args.providers, os.environ))
        price = today or manifest.price_at(found.shown)
    tuning = options.tuning(args, _lower({**manifest.tuning}, found))
    return Plan(
        name=first.name,
        benchmark=first.benchmark(args.tasks_dir, allowed=frozenset(args.allow)),
        sampling=sampling_again(manifest),
        tasks={run.files.subset: run.tasks(args.tasks_dir) for run in group},
        results=args.results_dir,
        way=Way.of(args, found, price, provenance),
        tuning=tuning,
        selection=manifest.selection,
        terms=Terms(
            frozenset(args.allow),
            source=provenance.get("source"),
            sources=provenance.get("sources", {}),
            allow_invalid=args.allow_invalid,
            earlier=manifest,
        ),
    )


def _lower(tuning: JSON, found: address.Found | None) -> JSON:
    """Return the run's earlier tuning, within the account's limits in the current providers file."""
    limits = models.pace_of(found.provider) if found and found.provider else {}
    kept = dict(tuning)
    for name in ("rpm", "tpm", "concurrency"):
        limit, had = limits.get(name), kept.get(name)
        if limit is not None and (had is not None or name != "concurrency"):  # `auto` finds its own way
            kept[name] = limit if had is None else min(limit, had)
    return kept


def _provider(run: str, provenance: JSON, args: ResumeOptions) -> providers.Provider | None:
    """Return the provider of a run, from the current providers file.

    A file named only in the run's folder is not read: a folder from another user could redirect keys.
    """
    name = args.provider or provenance.get("provider")
    if name is None:
        return None
    book = providers.read(args.providers, os.environ)
    if name not in book.providers:
        was = provenance.get("providers_file")
        raise BadInput(
            f"{run} ran on the provider {name}, which is not in {book.files[-1]}: name its file with "
            f"--providers{f' (it was {was})' if was else ''}"
        )
    return book.providers[name]
