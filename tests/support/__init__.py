"""Fixtures and fakes that test files share, and the folders that they read."""

from __future__ import annotations

import io
from pathlib import Path

ROOT = Path(__file__).parents[2]
"""Of the project."""

DATA = ROOT / "tests" / "data"


class Terminal(io.StringIO):
    """Output that goes to a terminal."""

    def isatty(self) -> bool:
        return True
