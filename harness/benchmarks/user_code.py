"""Where other people's code is called: what it raises names the benchmark, the user and the place in its file."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from harness.errors import BenchmarkError, HarnessError

LONGEST = 300
"""Characters of an error in a sentence."""


class Named(Protocol):
    """A benchmark, or its class."""

    @property
    def name(self) -> str: ...


@contextmanager
def guarded(benchmark: Named, about: str, *through: type[Exception]) -> Iterator[None]:
    """Turn an exception of a benchmark's code into `BenchmarkError`.

    `about` says what was being done ("user 17, measure"). The harness's own errors and those of the kinds in
    `through` pass.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        if isinstance(error, (HarnessError, *through)):
            raise
        raise BenchmarkError(
            f"benchmark {benchmark.name}, {about}: {described(error)}{place(error, benchmark)}"
        ) from error


def described(error: BaseException) -> str:
    words = " ".join(str(error).split())
    return f"{type(error).__name__}{f': {words[:LONGEST]}' if words else ''}"


def place(error: BaseException, benchmark: Named | None = None) -> str:
    """The innermost line of a plug-in's own file, else the innermost that is not the harness's own, else the innermost.

    Code that ships runs files of others, whose lines are the ones of interest.
    """
    frames = [(frame.f_code.co_filename, line, frame) for frame, line in traceback.walk_tb(error.__traceback__)]
    cls = benchmark if isinstance(benchmark, type) else type(benchmark)
    ours = str(Path(__file__).parents[1])
    foreign = [one for one in frames if not one[0].startswith(ours)]
    author = [one for one in foreign if one[2].f_globals.get("__name__") == cls.__module__]
    for file, line, _ in reversed(author or foreign or frames):
        return f" ({Path(file).name}, line {line})"
    return ""
