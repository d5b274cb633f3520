"""Fixtures and fakes that test files share, and the folders that they read."""

from __future__ import annotations

import io
import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
"""Of the project."""

DATA = ROOT / "tests" / "data"

ALL_EXAMPLES = "HARNESS_ALL_EXAMPLES"
"""A variable. Where it is set, as in CI, properties draw all their examples."""


def examples(number: int) -> int:
    """Return how many examples of `number` a property draws: the quick tests take a third, other ones each time."""
    return number if os.environ.get(ALL_EXAMPLES) else max(5, number // 3)


class Terminal(io.StringIO):
    """Output that goes to a terminal."""

    def isatty(self) -> bool:
        return True
