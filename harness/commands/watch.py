"""`watch`: the dashboard of runs that are being played, in another terminal than theirs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import ClassVar

from harness.commands import status
from harness.engine import control_calls as calls
from harness.errors import BadInput, HarnessError
from harness.model import Snapshots
from harness.option import command_options
from harness.options import options
from harness.store.files import RunFiles, runs
from harness.store.lock import held
from harness.store.manifest import COMPLETE, load
from harness.ui.console import PLAIN, console
from harness.ui.live import display
from harness.ui.words import plural

LOOK_SECONDS = 0.5
WAIT_SECONDS = 20.0
"""How long a run has to begin: a large tasks file is validated first."""


@command_options
class OnePlaying(options.ResultsFolder):
    """A run that is being played, of which one process may play each subset."""

    run: str | None = options.run_option(None)
    platform: Sequence[str] | None = options.platform_option("the process that plays this subset")


@command_options
class Options(OnePlaying):
    examples: ClassVar[Sequence[str]] = ("harness watch", "harness watch deepseek-chat")


def execute(args: Options) -> int:
    """Show the runs until they have ended, and print how; or until Ctrl-C. Return 1 unless all of
    them are complete. Raise `BadInput` if none begins to be played."""
    until = time.monotonic() + WAIT_SECONDS
    playing = _processes(selected(args))
    while not playing:
        if time.monotonic() > until:
            raise BadInput(
                f"no run under {args.results_dir.resolve()} is being played on this machine by you"
            )
        time.sleep(LOOK_SECONDS)
        playing = _processes(selected(args))
    # Names and subsets of the runs that were shown, in their order.
    played = dict[tuple[str, str], None]()
    try:
        with display(console()) as observe:
            while shown := _snapshots(playing):
                for run in shown:
                    played |= {(run.name, progress.subset): None for progress in run.subsets}
                observe(shown)
                time.sleep(LOOK_SECONDS)
        endings = [_ended(RunFiles(args.results_dir / name, subset)) for name, subset in played]
    # Ctrl-C is how one leaves the dashboard; the runs go on.
    except KeyboardInterrupt:
        return 0
    for line, _ in endings:
        console().print(line, **PLAIN)
    return 0 if all(is_complete for _, is_complete in endings) else 1


def _ended(files: RunFiles) -> tuple[str, bool]:
    """Return how a run has ended, in words, and whether it is complete, once its process has
    finished it."""
    while held(files.lock, time.time):
        time.sleep(LOOK_SECONDS)
    label = f"{files.folder.name}, {files.subset}"
    manifest = load(files.manifest)
    if manifest is None:
        return f"{label}: no run is kept: nothing was received", False
    counts = manifest.counts
    state = status.state(files, manifest)
    users = f"{counts.get('done', 0)} of {plural(counts.get('users', 0), 'user')} done"
    failed = counts.get("failed", 0)
    return f"{label}: {state}: {users}, {failed} failed", manifest.state == COMPLETE


def selected(args: OnePlaying) -> list[RunFiles]:
    """Return the subsets of the run that the options name, of all runs without a name."""
    subsets = args.platform or ()
    return [
        files
        for files in runs(args.results_dir)
        if args.run in (None, files.folder.name) and (not subsets or files.subset in subsets)
    ]


def _processes(runs: Sequence[RunFiles]) -> list[RunFiles]:
    """Return one run of each process that plays any of them."""
    run_by_process: dict[int, RunFiles] = {}
    for files in runs:
        with suppress(HarnessError), calls.connected(files) as call:
            # A process answers for all of its runs: asked by each, it would be shown several times.
            run_by_process.setdefault(call.snapshots()[0], files)
    return list(run_by_process.values())


def _snapshots(playing: Sequence[RunFiles]) -> Snapshots:
    """Return the last snapshots of processes, of those that have ended none."""
    snapshots: Snapshots = ()
    for files in playing:
        with suppress(HarnessError), calls.connected(files) as call:
            snapshots += call.snapshots()[1]
    return snapshots
