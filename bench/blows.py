"""Blows to a process of the harness: what kinds there are, when they are struck, and what is
promised after each.

A process is struck at a moment of the clock, or as soon as a file of its folder grows, comes, goes
or is replaced.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

LOOK_SECONDS = 0.001
"""Between two looks at a folder or a process."""

PATIENCE = 120.0
"""Seconds without any change to its files after which a process that should end counts as one that
hangs."""

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Blow:
    """`codes` are the exit codes promised, as a shell tells them; `on_the_wire` says whether it may
    cost the requests that are in flight, and `gentle` that it is struck only once the process hears
    signals."""

    name: str
    signals: tuple[int, ...] = ()
    codes: frozenset[int] = frozenset({0})
    on_the_wire: bool = False
    gentle: bool = False


def _killing(name: str) -> Blow:
    return Blow(name, (signal.SIGKILL,), frozenset({0, 137}), on_the_wire=True)


def _asking(name: str, number: int, code: int) -> Blow:
    return Blow(name, (number,), frozenset({0, code}), gentle=True)


KILL, KILL_AT_WRITE = _killing("SIGKILL, any moment"), _killing("SIGKILL, at a write")
TERM, USR1 = _asking("SIGTERM", signal.SIGTERM, 143), _asking("SIGUSR1", signal.SIGUSR1, 143)
INTERRUPT = _asking("SIGINT", signal.SIGINT, 130)
TWICE = Blow(
    "SIGINT twice",
    (signal.SIGINT, signal.SIGINT),
    frozenset({0, 130}),
    on_the_wire=True,
    gentle=True,
)
STOPPED = Blow("SIGSTOP, SIGCONT", (signal.SIGSTOP, signal.SIGCONT), on_the_wire=True)
ORPHANED = Blow("death of the parent")
NONE = Blow("none")
BLOWS = (KILL, KILL_AT_WRITE, TERM, INTERRUPT, TWICE, USR1, STOPPED, ORPHANED)

AT_WRITES = ("", "responses_", "inference_results_")
AT_NAMES = ("", "", "inference_results_", "run_", "eval_report_", "prompt_", ".npz", ".new")
"""Parts of the names of files at whose growth, or coming and going, a process is killed; any file
for an empty one."""

FIRST_REPLY = 30.0
"""Seconds after which a moment at a write is taken to have come; a process ends by itself before
where none does."""


@dataclass(frozen=True, slots=True)
class Moment:
    """After `seconds`, or, with a `target`, `delay` seconds after the `change`-th change of a file
    so called.

    With `grown` a change is that a file has become longer, else that a name has come, gone, or is
    another file.
    """

    seconds: float
    target: str | None = None
    change: int = 1
    grown: bool = False
    delay: float = 0.0


def moment(blow: Blow, rng: random.Random, start_up: float, life: float) -> Moment:
    """When to strike a process that needs about `start_up` seconds to its first request, and gets
    about `life` more.

    A machine that is busy makes starting slow, so most moments are counted from the first reply
    that is saved.
    """
    if blow is KILL_AT_WRITE:
        if rng.random() < 0.5:
            return Moment(
                FIRST_REPLY, rng.choice(AT_WRITES), rng.randint(1, 60), True, rng.choice(AFTER)
            )
        return Moment(
            FIRST_REPLY, rng.choice(AT_NAMES), rng.randint(1, 6), False, rng.choice(AFTER)
        )
    if blow in (STOPPED, ORPHANED) or (blow.gentle and rng.random() < 0.5):
        return Moment(FIRST_REPLY, "responses_", rng.randint(1, 60), True)
    if rng.random() < 0.15:
        return Moment(rng.uniform(0.0, start_up))
    return Moment(FIRST_REPLY, "responses_", 1, True, rng.uniform(0.0, life))


AFTER = (0.0, 0.002, 0.02)
"""Seconds from a write to the blow."""


def awaited(when: Moment, folder: Path, ended: Callable[[], bool]) -> bool:
    """Wait for the moment; return False where the process ended by itself before."""
    until = time.monotonic() + when.seconds
    seen, changes = _look(folder, when), 0
    while time.monotonic() < until:
        if ended():
            return False
        time.sleep(LOOK_SECONDS)
        if when.target is not None:
            now = _look(folder, when)
            changes += _changes(seen, now, when.grown)
            seen = now
            if changes >= when.change:
                return not _within(when.delay, ended)
    return not ended()


def _within(seconds: float, ended: Callable[[], bool]) -> bool:
    """Whether a process ends within so many seconds."""
    until = time.monotonic() + seconds
    while not (over := ended()) and (left := until - time.monotonic()) > 0:
        time.sleep(min(left, 10 * LOOK_SECONDS))
    return over


_Seen = dict[str, tuple[int, int]]
"""Inode and size by path."""


def _look(folder: Path, when: Moment) -> _Seen:
    """Return the files of the folder and of those in it whose names hold the moment's target."""
    target = when.target
    return (
        {}
        if target is None
        else {path: at for path, at in _files(folder) if target in Path(path).name}
    )


def _files(folder: Path | str) -> Iterator[tuple[str, tuple[int, int]]]:
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                if entry.is_dir():
                    yield from _files(entry.path)
                else:
                    found = entry.stat()
                    yield entry.path, (found.st_ino, found.st_size)


def _changes(before: _Seen, now: _Seen, grown: bool) -> int:
    both = before.keys() & now.keys()
    if grown:
        return sum(now[path][1] > before[path][1] for path in both)
    return len(before.keys() ^ now.keys()) + sum(now[path][0] != before[path][0] for path in both)


@dataclass(frozen=True, slots=True)
class Manner:
    """How it is struck: `pause` is how long SIGSTOP holds a process, `gap` lies between two other
    signals, in seconds; `unread` says that nobody reads the output of an orphan any more, which
    else goes to a file."""

    pause: float
    gap: float = 0.0
    unread: bool = False


@dataclass(frozen=True, slots=True)
class Life:
    """How one process ended: `code` as a shell tells it, None for an orphan, which nobody could
    ask, and one that hung; `struck` whether the blow hit it; all that it `said`."""

    code: int | None
    struck: bool
    hung: bool
    said: str


def live(
    command: list[str], blow: Blow, when: Moment, manner: Manner, folder: Path, said: Path
) -> Life:
    """Start a process that writes below `folder`, strike it, and wait for its end; what it says
    goes to `said`."""
    if blow is ORPHANED:
        return _orphan(command, when, manner.unread, folder, said)
    with said.open("wb") as out, started(command, out) as process:
        ended = _never if blow is NONE else lambda: process.poll() is not None
        struck = blow is not NONE and awaited(when, folder, ended)
        if struck and blow.gentle:
            struck = _hears(process)
        if struck:
            _strike(process, blow, manner)
        hung = _hangs(folder, lambda: process.poll() is not None)
    return Life(
        None if hung else _as_a_shell_tells(process.returncode),
        struck,
        hung,
        said.read_text("utf-8", "replace"),
    )


def _strike(process: subprocess.Popen[bytes], blow: Blow, manner: Manner) -> None:
    first, *more = blow.signals
    process.send_signal(first)
    for number in more:
        time.sleep(manner.pause if blow is STOPPED else manner.gap)
        process.send_signal(number)


def _never() -> bool:
    return False


@contextmanager
def started(command: Iterable[str], out: IO[bytes] | int) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process that is ended, by its id, with the block."""
    process = subprocess.Popen(
        [*command],
        stdout=out,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        cwd=ROOT,
        process_group=0,
    )  # Ctrl-C at the campaign is none at the process
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def _hangs(folder: Path, ended: Callable[[], bool]) -> bool:
    """Wait for a process to end; return True where it does nothing for too long."""
    seen, since = dict(_files(folder)), time.monotonic()
    while not _within(1.0, ended):
        if seen != (seen := dict(_files(folder))):
            since = time.monotonic()
        elif time.monotonic() - since > PATIENCE:
            return True
    return False


def _as_a_shell_tells(code: int) -> int:
    return code if code >= 0 else 128 - code


def _hears(process: subprocess.Popen[bytes]) -> bool:
    """Wait until the process has a handler of its own for SIGTERM; before, the interpreter decides
    what it does."""
    status = Path(f"/proc/{process.pid}/status")
    while process.poll() is None:
        with suppress(FileNotFoundError, ProcessLookupError):
            caught = next(
                line for line in status.read_text().splitlines() if line.startswith("SigCgt")
            )
            if int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1:
                return True
        time.sleep(LOOK_SECONDS)
    return False


def _orphan(command: list[str], when: Moment, unread: bool, folder: Path, said: Path) -> Life:
    """Strike the shell that has started the process."""
    number = said.with_suffix(".pid")
    shell = (
        "sh",
        "-c",
        'number=$1; out=$2; shift 2; "$@" >>"$out" 2>>"$0" & echo $! >"$number"; wait $!',
        str(said),
    )
    reading, writing = os.pipe()
    out = f"/dev/fd/{writing}" if unread else str(said)
    said.write_bytes(b"")
    parent = subprocess.Popen(
        [*shell, str(number), out, *command], pass_fds=(writing,), cwd=ROOT, process_group=0
    )
    os.close(writing)
    try:
        while not (number.exists() and number.read_text().strip()):
            time.sleep(LOOK_SECONDS)
        child = int(number.read_text())
        struck = awaited(when, folder, lambda: parent.poll() is not None)
    finally:
        parent.kill()
        parent.wait()
        os.close(reading)
    if hung := _hangs(folder, lambda: _gone(child)):
        os.kill(child, signal.SIGKILL)
    number.unlink()
    return Life(
        None if struck else parent.returncode, struck, hung, said.read_text("utf-8", "replace")
    )


def _gone(pid: int) -> bool:
    """Whether a process that is nobody's child here has ended; one that its new parent has not
    asked after has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True
