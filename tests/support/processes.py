"""Wait for what a process does, by looking again and again."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from harness.store.log import valid_lines

T = TypeVar("T")


def wait_for(look: Callable[[], T]) -> T:
    """Return the first thing that is found."""
    while not (found := look()):
        time.sleep(0.02)
    return found


def wait_for_responses(path: Path, count: int) -> None:
    """Return when the run is in the middle of its work."""
    wait_for(lambda: sum(1 for _ in valid_lines(path)) >= count)


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


@contextmanager
def held() -> Iterator[None]:
    """No endpoint's process of this test answers meanwhile."""
    endpoints = [
        process
        for process in children(os.getpid())
        if b"tests.support.endpoint_double" in words_of(process)
    ]
    for process in endpoints:
        os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in endpoints:
            os.kill(process, signal.SIGCONT)


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


LISTENING, ESTABLISHED = "0A", "01"


def listeners(processes: Sequence[int]) -> list[tuple[str, int]]:
    """Return the hexadecimal addresses and the ports at which processes listen."""
    return [local for state, local, _ in _sockets(processes) if state == LISTENING]


def connections(processes: Sequence[int]) -> list[tuple[int, int]]:
    """Return the local and the remote port of each connection of processes."""
    return [
        (local[1], remote[1])
        for state, local, remote in _sockets(processes)
        if state == ESTABLISHED
    ]


def _sockets(processes: Sequence[int]) -> Iterator[tuple[str, tuple[str, int], tuple[str, int]]]:
    """Yield the state and both ends of each TCP socket."""
    inodes = set[str]()
    for process in processes:
        for link in Path(f"/proc/{process}/fd").glob("*"):
            with suppress(OSError):  # closed, or its process has ended
                inodes |= set(re.findall(r"socket:\[(\d+)\]", str(Path(link).readlink())))
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            columns = line.split()
            if columns[9] in inodes:
                yield columns[3], _end(columns[1]), _end(columns[2])


def _end(column: str) -> tuple[str, int]:
    host, _, port = column.rpartition(":")
    return host, int(port, 16)
