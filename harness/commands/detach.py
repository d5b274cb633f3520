"""`run --detach`: the same command in a process of its own, which goes on when this terminal is
closed."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from harness.commands import run
from harness.errors import MachineError
from harness.options.options import RunOptions
from harness.store.atomic import make_folder
from harness.ui.streams import show

FLAG = "--detach"
START_SECONDS, LOOK_SECONDS = 20.0, 0.05
"""How long the command waits at most for its run to begin, or to end at once; between two looks."""


def start(args: RunOptions, arguments: Sequence[str]) -> int:
    """Start a command without its flag; print the names of its runs. Raise what `run` raises before
    it plays."""
    # What `run` would refuse is refused here, on the user's terminal, and not in a log.
    names = [plan.name for plan in run.plans(run.completed(args))]
    make_folder(args.results_dir)
    folder = args.results_dir / names[0]
    log = args.results_dir / f"{names[0]}.log"
    before = _manifest_times(folder)
    # With the flag the new process would start another one, and that the next.
    process = _start([word for word in arguments if word != FLAG], log)
    deadline = time.monotonic() + START_SECONDS
    # A run that begins, or goes on, saves its manifest before its first request.
    while process.poll() is None and _manifest_times(folder) == before:
        if time.monotonic() >= deadline:
            break
        time.sleep(LOOK_SECONDS)
    if process.returncode:
        code = process.returncode
        show(f"{', '.join(names)}: ended at once, with code {code}; its output is in {log}")
        return code
    process.returncode = 0  # it goes on without this process, which does not wait for it
    show(f"{', '.join(names)}: started as process {process.pid}; its output is in {log}")
    show(f"see it with `harness watch`, end it with `harness stop {names[0]}`")
    return 0


def _manifest_times(folder: Path) -> dict[Path, int]:
    """Return when each manifest of a run was written, in nanoseconds."""
    times = {}
    for path in folder.glob("run_*.json"):
        # `--restart` renames it.
        with suppress(FileNotFoundError):
            times[path] = path.stat().st_mtime_ns
    return times


def _start(arguments: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start this program in a session of its own, whose output is added to a file."""
    try:
        # Appended: the log of an earlier process of this run may say why it ended.
        with log.open("ab") as output:
            return subprocess.Popen(
                # `-P`: otherwise `-m` imports from the current folder first, which may be somebody
                # else's.
                [sys.executable, "-P", "-m", "harness", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # A terminal that closes sends SIGHUP to its session; this process is in another
                # one.
                start_new_session=True,
            )
    except OSError as error:
        raise MachineError(f"cannot start the run apart, with {log}: {error.strerror}") from error
