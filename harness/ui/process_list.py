"""Hide secrets in the process list."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

ARGUMENTS_BEGIN, ARGUMENTS_END = 45, 46
"""Places of `arg_start` and `arg_end` among the fields of /proc/PID/stat behind the name (proc(5))."""


def hide(words: Iterable[str]) -> None:
    """Write stars over these words in the arguments that the process list shows, where the system is Linux.

    Not covered: the moment until then (some hundredths of a second), the shell's history, and whoever started this
    process with the same words (make, a job scheduler). Elsewhere nothing happens.
    """
    with suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        begin, end = int(fields[ARGUMENTS_BEGIN]), int(fields[ARGUMENTS_END])
        with Path("/proc/self/mem").open("r+b", buffering=0) as memory:
            memory.seek(begin)
            arguments = memory.read(end - begin)
            for word in sorted(words, key=len, reverse=True):
                arguments = arguments.replace(word.encode(), b"*" * len(word.encode()))
            memory.seek(begin)
            memory.write(arguments)
