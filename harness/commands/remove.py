"""`remove`: set runs aside. Every file stays in its folder, under another name."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack

from harness.analysis import selection
from harness.engine.files import stamp
from harness.errors import BadInput, in_brief
from harness.option import command_options
from harness.options import options
from harness.store.run import RunStore, runs_in
from harness.ui.console import PLAIN, console


@command_options
class Options(options.ResultsFolder):
    runs: Sequence[str] = options.runs_option("names of runs, their folders under the results")
    platform: Sequence[str] | None = options.platform_option(
        "one subset; may be repeated (default: all)"
    )


def execute(args: Options) -> int:
    names = [*dict.fromkeys(options.named_runs(args.runs))]
    return selection.each(names, lambda name: _remove(name, args), str)[1]


def _remove(name: str, args: Options) -> None:
    """Set a run aside on all named subsets, or on none if one of them is in use."""
    folder = args.results_dir / name
    platforms = args.platform or ()
    subsets_of_run = [
        files for files in runs_in(folder) if not platforms or files.subset in platforms
    ]
    if not subsets_of_run:
        raise BadInput(
            f"{in_brief(str(folder))} holds no run of these names: `harness status` lists the runs"
        )
    stamp_text = stamp()
    with ExitStack() as stack:
        stores = []
        for files in subsets_of_run:
            # Opening a store takes its lock: all are locked before the first file is moved.
            stores.append(RunStore(files, time.time, stamp_text))
            stack.callback(stores[-1].close)
        for store in stores:
            store.set_aside_everything()
    subsets = ", ".join(files.subset for files in subsets_of_run)
    console().print(f"{name}: {subsets}: set aside as {folder}/*.before-{stamp_text}", **PLAIN)
