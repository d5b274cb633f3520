"""The question whether the code in a run's folder may be run."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from pathlib import Path

from harness.errors import BadInput
from harness.ui.streams import can_ask, tell

NOT_RUN_BEFORE = "nothing shows that you have run it on this machine before"


def check_trust(run: str, folder: Path, files: Mapping[str, str], *, trust: bool) -> None:
    """Ask once, on a terminal, whether the code in a run's folder may be run. Raise `BadInput` if
    it may not."""
    if trust:
        return
    why = f"its prompt or agent in {folder} is code, and {NOT_RUN_BEFORE}"
    if not can_ask():
        raise BadInput(f"{why}: read it, and give --trust to run it")
    if not _agreed(f"{run}: {why}. Run it? [y/N]", tuple(files.items())):
        raise BadInput(f"{why}: it was not run")


@functools.lru_cache
def _agreed(question: str, files: tuple[tuple[str, str], ...]) -> bool:
    """Return the user's answer; ask only once for the same `files` of a folder."""
    tell(question)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
