"""Fixtures and fakes that test files share, and the folders that they read."""

from __future__ import annotations

import io
import os
import random
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
"""Of the project."""

DATA = ROOT / "tests" / "data"

SHIPPED = ("--tasks-dir", str(ROOT / "harness" / "sample"))
"""The synthetic tasks of `--demo`, in runs that are named after the model alone."""

ALL_EXAMPLES = "HARNESS_ALL_EXAMPLES"
"""A variable. Where it is set, as in CI, properties draw all their examples."""


def examples(number: int) -> int:
    """Return how many examples of `number` a property draws: the quick tests take a tenth, other
    ones each time."""
    return number if os.environ.get(ALL_EXAMPLES) else max(5, number // 10)


def first_quick(values: Iterable[Any]) -> list[Any]:
    """Return values of a parameter: the quick tests play the first of them, the slow tests the
    others.

    For tests whose every value costs much of a second, where all values are about one promise.
    """
    first, *others = values
    slow = [
        pytest.param(*(value if isinstance(value, tuple) else [value]), marks=pytest.mark.slow)
        for value in others
    ]
    return [first, *slow]


UVLOOP, ASYNCIO = (("asyncio", {"use_uvloop": quick}) for quick in (True, False))
BOTH_LOOPS = pytest.mark.parametrize(
    "anyio_backend",
    [UVLOOP, pytest.param(ASYNCIO, marks=pytest.mark.slow)],
    ids=["uvloop", "asyncio"],
)
"""The quick tests have the loop that runs have."""


class Terminal(io.StringIO):
    """Output that goes to a terminal."""

    def isatty(self) -> bool:
        return True


def free_port() -> int:
    """Return a port of loopback that is free, for a process that is told its port. The system gives
    none of these to connections and to servers that take any, so that until then only a call of
    this function may take it, too."""
    for port in random.SystemRandom().sample(range(10_000, 30_000), 1_000):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port is free")
