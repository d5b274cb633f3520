"""Where other people's code is called: what it raises names the benchmark, the user and the place in its file."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from harness.errors import BenchmarkError, HarnessError, InvalidReply

LONGEST = 300
"""Characters of an error in a sentence."""


class Named(Protocol):
    """A benchmark, or its class."""

    @property
    def name(self) -> str: ...


@contextmanager
def guarded(benchmark: Named, about: str, *through: type[Exception]) -> Iterator[None]:
    """Turn an exception of a benchmark's code into `BenchmarkError`.

    `about` says what was being done ("user 17, measure"). The harness's own errors, `InvalidReply` and those of the
    kinds in `through` pass.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        if isinstance(error, (HarnessError, InvalidReply, *through)):
            raise
        raise BenchmarkError(f"benchmark {benchmark.name}, {about}: {described(error)}{place(error)}") from error


def described(error: BaseException) -> str:
    words = " ".join(str(error).split())
    return f"{type(error).__name__}{f': {words[:LONGEST]}' if words else ''}"


def place(error: BaseException) -> str:
    """The innermost line that is not the harness's own, else the innermost."""
    frames = traceback.extract_tb(error.__traceback__)
    own = str(Path(__file__).parents[1])
    foreign = [frame for frame in frames if not frame.filename.startswith(own)]
    frames_left = foreign or list(frames)
    return f" ({Path(frames_left[-1].filename).name}, line {frames_left[-1].lineno})" if frames_left else ""
