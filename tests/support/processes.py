"""Wait for what a process does, by looking again and again."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from harness.store.log import sound_lines

T = TypeVar("T")


def wait_for(look: Callable[[], T]) -> T:
    """Return the first thing that is found."""
    while not (found := look()):
        time.sleep(0.02)
    return found


def wait_for_responses(path: Path, count: int) -> None:
    """Return when the run is in the middle of its work."""
    wait_for(lambda: sum(1 for _ in sound_lines(path)) >= count)


def children(process: int) -> list[int]:
    """Return the ids of the processes that a process has started and that still run."""
    found = []
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):
            found += [int(word) for word in task.read_text().split()]
    return found


def descendants(process: int) -> list[int]:
    """Return the ids of all processes below a process."""
    return [one for child in children(process) for one in (child, *descendants(child))]


def words_of(process: int) -> bytes:
    """Return the command line of a process, empty if it has ended."""
    return _entry(process, "cmdline")


def environment_of(process: int) -> bytes:
    """Return the environment that a process began with, empty if it has ended."""
    return _entry(process, "environ")


def _entry(process: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{process}/{name}").read_bytes()
    except OSError:
        return b""
