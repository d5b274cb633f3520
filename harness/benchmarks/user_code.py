"""Load and call other people's code: errors name the benchmark, the user and the place in its
file."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from harness.errors import BadInput, BenchmarkError, HarnessError

if TYPE_CHECKING:
    from harness.benchmark import Benchmark

MAX_ERROR_CHARACTERS = 300
"""Of an error's text in a sentence."""


class guarded:
    """Turn an exception of the code of a benchmark (or its class) into `BenchmarkError`, in a
    `with` statement.

    `about` is what was being done ("user 17, measure"). The harness's own errors and those in
    `through` pass, and a lack of memory in a benchmark that ships: that is the machine's.
    """

    # A class, since each user enters some: a generator takes four times as long.

    __slots__ = ("_about", "_benchmark", "_through")

    def __init__(
        self,
        benchmark: Benchmark | type[Benchmark],
        about: str,
        *through: type[Exception],
    ) -> None:
        self._benchmark = benchmark
        self._about = about
        self._through = through

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: object,
    ) -> None:
        if not isinstance(error, Exception | SystemExit):
            return

        if isinstance(error, (HarnessError, *self._through)):
            return

        benchmark = self._benchmark
        if isinstance(error, MemoryError) and benchmark.origin is None:
            return

        raise BenchmarkError(
            f"benchmark {benchmark.name}, {self._about}:"
            f" {described(error)}{place(error, benchmark)}"
        ) from error


@contextmanager
def loading(name: object) -> Iterator[None]:
    """Turn what code raises while it is imported into `BadInput`; `name` is the file or module that
    was named."""
    try:
        yield
    except (Exception, SystemExit) as error:
        message = f"{name}: could not be loaded: {described(error)}"
        if isinstance(error, SyntaxError):
            message += f", line {error.lineno}"
        raise BadInput(message) from error


def module_of(name: str, file: str, data: bytes) -> ModuleType:
    """Run these very bytes of a file, and return the module. Raise `BadInput`."""
    module = ModuleType(name)
    module.__file__ = file
    # Dataclasses look up their annotations there.
    sys.modules[name] = module
    with loading(file):
        # Not imported by path: the bytes that were hashed are the ones that run.
        exec(compile(data, file, "exec", dont_inherit=True), module.__dict__)
    return module


def described(error: BaseException) -> str:
    """Return an error's type and text in one line."""
    message = " ".join(str(error).split())
    description = type(error).__name__
    if message:
        description += f": {message[:MAX_ERROR_CHARACTERS]}"
    if "coroutine" in message:
        description += "; an `await` is missing where the coroutine was made"
    return description


def place(error: BaseException, benchmark: Benchmark | type[Benchmark] | None = None) -> str:
    """Return the innermost line of a plug-in's own file, else the innermost outside of the harness
    (which runs files of others), else the innermost."""
    cls = benchmark if isinstance(benchmark, type) else type(benchmark)
    harness_folder = str(Path(__file__).parents[1])
    innermost = ""
    innermost_rank = 0
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        rank = 0
        if not file.startswith(harness_folder):
            rank = 1 + (frame.f_globals.get("__name__") == cls.__module__)

        if rank >= innermost_rank:
            innermost_rank = rank
            innermost = f" ({Path(file).name}, line {line})"

    return innermost
