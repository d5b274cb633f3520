"""Wait for what a process does, by looking again and again."""

from __future__ import annotations

import time
from pathlib import Path

from harness.store.log import sound_lines


def wait_for_responses(path: Path, count: int) -> None:
    """Return when the run is in the middle of its work."""
    while sum(1 for _ in sound_lines(path)) < count:
        time.sleep(0.01)
