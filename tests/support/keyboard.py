"""A shell at a terminal, and what is typed into it."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

SECONDS = 60.0
"""Longest wait for one line to be executed."""


class Shell:
    """What a shell at a terminal shows is read while a file is waited for; otherwise the shell
    would block."""

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self.shown = b""

    def type(self, keys: str, until: Path) -> None:
        """Type keys, and wait for a file that the line makes."""
        os.write(self._terminal, keys.encode())
        end = time.monotonic() + SECONDS
        while not until.exists():
            assert time.monotonic() < end, self.shown[-2000:]
            if select.select([self._terminal], [], [], 0.01)[0]:
                self.shown += os.read(self._terminal, 1 << 16)


@contextmanager
def shell(words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Iterator[Shell]:
    """Start an interactive shell in a folder, at a terminal of its own; it is killed at the end."""
    terminal, its_end = pty.openpty()
    try:
        started = subprocess.Popen(
            words,
            cwd=folder,
            env=environment,
            stdin=its_end,
            stdout=its_end,
            stderr=its_end,
            start_new_session=True,
        )
    finally:
        os.close(its_end)
    try:
        yield Shell(terminal)
    finally:
        started.kill()
        started.wait()
        os.close(terminal)
