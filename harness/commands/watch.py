"""`watch`: the dashboard of runs that are being played, in another terminal than theirs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import ClassVar

from harness.engine import control_calls as calls
from harness.errors import BadInput, HarnessError
from harness.model import Snapshots
from harness.option import command_options
from harness.options import options
from harness.store.files import RunFiles, runs
from harness.ui.console import console
from harness.ui.live import display

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
    """Show the runs until they have ended, or Ctrl-C. Raise `BadInput` if none begins to be
    played."""
    until = time.monotonic() + WAIT_SECONDS
    while not (playing := _processes(found(args))):
        if time.monotonic() > until:
            raise BadInput(
                f"no run under {args.results_dir.resolve()} is being played on this machine by you"
            )
        time.sleep(LOOK_SECONDS)
    with display(console()) as observe, suppress(KeyboardInterrupt):
        while shown := _snapshots(playing):
            observe(shown)
            time.sleep(LOOK_SECONDS)
    return 0


def found(args: OnePlaying) -> list[RunFiles]:
    """Return the subsets of the run that the options name, of all runs without a name."""
    subsets = args.platform or ()
    return [
        files
        for files in runs(args.results_dir)
        if args.run in (None, files.folder.name) and (not subsets or files.subset in subsets)
    ]


def _processes(named: Sequence[RunFiles]) -> list[RunFiles]:
    """Return one run of each process that plays any of them."""
    of_process: dict[int, RunFiles] = {}
    for files in named:
        with suppress(HarnessError), calls.connected(files) as call:
            of_process.setdefault(call.snapshots()[0], files)
    return list(of_process.values())


def _snapshots(playing: Sequence[RunFiles]) -> Snapshots:
    """Return the last snapshots of processes, of those that have ended none."""
    made: Snapshots = ()
    for files in playing:
        with suppress(HarnessError), calls.connected(files) as call:
            made += call.snapshots()[1]
    return made
