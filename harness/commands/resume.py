"""`resume`: goes on with unfinished runs, each with its own endpoint and its own key variable."""

from __future__ import annotations

import argparse
import os
from itertools import groupby

import orjson
from rich.console import Console

from harness import config
from harness.commands import address, earlier, options, plan
from harness.commands.earlier import Earlier
from harness.commands.launch import launch
from harness.endpoint.address import check
from harness.errors import BadInput
from harness.store.manifest import COMPLETE
from harness.ui.console import console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_which(parser)
    options.add_folders(parser, of_earlier_runs=True)
    options.add_key(parser)
    options.add_tuning(parser)
    parser.add_argument("--allow", action="append", default=[], metavar="FIELD", help="accept that this field differs")


def execute(args: argparse.Namespace) -> int:
    found = earlier.find(args)
    if not found and (args.name or args.model or args.platform):
        raise earlier.nothing_found(args)
    screen = console()
    unfinished = [run for run in found if run.manifest.state != COMPLETE]
    if not unfinished:
        screen.print("nothing to resume: every run is complete" if found else f"no run under {args.results_dir}")
        return 0
    groups = [list(runs) for _, runs in groupby(sorted(unfinished, key=_together), key=_together)]
    if len(groups) > 1 and (args.api_url or args.api_key or args.api_key_file):
        raise BadInput(
            f"{len(groups)} runs are unfinished, and a key or address is for one of them: name it with --name "
            f"({', '.join(dict.fromkeys(group[0].name for group in groups))})"
        )
    return earlier.each(groups, lambda group: _resume(group, args, screen), lambda group: group[0].name)


def _together(run: Earlier) -> bytes:
    """Runs of one folder with one configuration and endpoint share a schedule."""
    manifest = run.manifest
    where = {name: manifest.provenance.get(name) for name in ("endpoint", "key_from", "source")}
    return orjson.dumps([run.name, manifest.identity, where, manifest.selection])


def _resume(group: list[Earlier], args: argparse.Namespace, screen: Console) -> int:
    allowed = frozenset(args.allow)
    if changed := [name for name in group[0].changed if name not in allowed]:
        screen.print(
            f"{group[0].name}: {', '.join(changed)} changed or went since the run began: it goes on with its own copy "
            f"(--allow {changed[0]} takes the file as it is now)",
            highlight=False,
            soft_wrap=True,
        )
    made = _plan(group, args)
    screen.print(f"{made.name}: {made.sampling.model} on {made.endpoint}", highlight=False, soft_wrap=True)
    return launch(made, screen)


def _plan(group: list[Earlier], args: argparse.Namespace) -> plan.Plan:
    first, manifest = group[0], group[0].manifest
    provenance, selection = manifest.provenance, manifest.selection
    found = None
    if args.api_url or provenance["endpoint"] != config.EMBEDDED:
        found = address.again(args, provenance["endpoint"], provenance["key_from"], os.environ, first.name)
        check(found.address)
    return plan.Plan(
        name=first.name,
        benchmark=first.benchmark(args.tasks_dir, allowed=frozenset(args.allow)),
        sampling=plan.sampling_again(manifest),
        tasks={run.files.subset: run.tasks(args.tasks_dir) for run in group},
        results=args.results_dir,
        found=found,
        tuning=options.tuning(args, manifest.tuning),
        ratio=selection["ratio"],
        sample_seed=selection["sample_seed"],
        allowed=frozenset(args.allow),
        source=provenance.get("source"),
    )
