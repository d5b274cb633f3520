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

LONGEST = 300
"""Characters of an error in a sentence."""


class guarded:
    """Turn an exception of the code of a benchmark (or its class) into `BenchmarkError`, in a
    `with` statement.

    `about` is what was being done ("user 17, measure"). The harness's own errors and those in
    `through` pass, and a want of memory in a benchmark that ships: that is the machine's. A class,
    since each user enters some: a generator takes four times as long.
    """

    __slots__ = ("_about", "_benchmark", "_through")

    def __init__(
        self, benchmark: Benchmark | type[Benchmark], about: str, *through: type[Exception]
    ) -> None:
        self._benchmark, self._about, self._through = benchmark, about, through

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        if not isinstance(error, Exception | SystemExit) or isinstance(
            error, (HarnessError, *self._through)
        ):
            return
        benchmark = self._benchmark
        if isinstance(error, MemoryError) and benchmark.origin is None:
            return
        words = (
            f"benchmark {benchmark.name}, {self._about}:"
            f" {described(error)}{place(error, benchmark)}"
        )
        raise BenchmarkError(words) from error


@contextmanager
def loading(name: object) -> Iterator[None]:
    """Turn what code raises while it is imported into `BadInput`; `name` is the file or module that
    was named."""
    try:
        yield
    except (Exception, SystemExit) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise BadInput(f"{name}: could not be loaded: {described(error)}{line}") from error


def module_of(name: str, file: str, data: bytes) -> ModuleType:
    """Run these very bytes of a file, and return the module. Raise `BadInput`."""
    module = ModuleType(name)
    module.__file__ = file
    sys.modules[name] = module  # where dataclasses look up their annotations
    with loading(file):
        exec(compile(data, file, "exec", dont_inherit=True), module.__dict__)
    return module


def described(error: BaseException) -> str:
    words = " ".join(str(error).split())
    hint = "; an `await` is missing where the coroutine was made" if "coroutine" in words else ""
    return f"{type(error).__name__}{f': {words[:LONGEST]}' if words else ''}{hint}"


def place(error: BaseException, benchmark: Benchmark | type[Benchmark] | None = None) -> str:
    """Return the innermost line of a plug-in's own file, else the innermost outside of the harness
    (which runs files of others), else the innermost."""
    frames = [
        (frame.f_code.co_filename, line, frame)
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    cls = benchmark if isinstance(benchmark, type) else type(benchmark)
    ours = str(Path(__file__).parents[1])
    foreign = [one for one in frames if not one[0].startswith(ours)]
    author = [one for one in foreign if one[2].f_globals.get("__name__") == cls.__module__]
    for file, line, _ in reversed(author or foreign or frames):
        return f" ({Path(file).name}, line {line})"
    return ""
