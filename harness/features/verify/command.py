"""`verify`: check runs' folders and report what is wrong in each."""

from __future__ import annotations

import argparse

from harness.analysis import selection
from harness.analysis.saved_runs import SavedRun
from harness.config import options
from harness.errors import BadInput, InUse
from harness.features.verify import proving
from harness.model import JSON
from harness.store.manifest import RUNNING
from harness.ui import streams
from harness.ui.console import console
from harness.ui.words import plural

SHOWN = 5
"""Most findings printed for a run; the JSON has all."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_which(parser)
    options.add_earlier(parser)
    options.add_json(parser)
    words = "check only that every line is as it was written, for a folder without its tasks"
    options.add(parser, "--without-tasks", words, action="store_true")


def execute(args: argparse.Namespace) -> int:
    if args.without_tasks and args.tasks_dir:
        raise BadInput("--without-tasks leaves out the tasks that --tasks-dir names: give one of the two")
    found, skipped = selection.find(args)
    theirs, unnamed = selection.find_imported(args)
    if not found and not theirs:
        raise selection.nothing_found(args)
    chosen = proving.VerifyOptions(args.results_dir, args.tasks_dir, args.without_tasks)
    made, failed = selection.each(found, lambda run: _prove_free(run, chosen), lambda run: run.label)
    others, unread = selection.each(theirs, proving.imported, lambda of: of.label)
    proofs = [*(proof for proof in made if proof is not None), *others]
    if args.json:
        streams.show_json(proofs)
    else:
        _show(proofs)
    unchecked = InUse.exit_code if made and not proofs else 0
    return max(skipped, unnamed, failed, unread, unchecked, *(int(bool(proof["findings"])) for proof in proofs))


def _prove_free(run: SavedRun, chosen: proving.VerifyOptions) -> JSON | None:
    """Check a run; pass over one in use with a line, and return None."""
    try:
        return proving.prove(run, chosen)
    except InUse as error:
        streams.tell(f"{run.label}: not checked: {error}")
        return None


def _show(proofs: list[JSON]) -> None:
    screen = console()
    for made in proofs:
        findings, users = made["findings"], made["users"]
        verdict = plural(len(findings), "finding") if findings else "sound lines" if users is None else "sound"
        state = "died" if made["state"] == RUNNING else made["state"]  # nobody plays it while it is locked
        of = "" if users is None else f" of {users}"
        lines = [f"{made['name']}, {made['subset']}: {made['records']}{of} users, {state}: {verdict}"]
        lines += [f"  {finding}" for finding in findings[:SHOWN]]
        lines += [f"  and {len(findings) - SHOWN} more"] if len(findings) > SHOWN else []
        for line in (*lines, *(f"  note: {note}" for note in made["notes"])):
            screen.print(line, soft_wrap=True)
