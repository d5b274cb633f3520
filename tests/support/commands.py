"""Commands as a user types them."""

from __future__ import annotations

from pathlib import Path

from harness.cli import main


def execute(results: Path, *words: object, code: int = 0) -> None:
    """Execute a command on a results folder, and expect this exit code."""
    ended = main([*map(str, words), "--results-dir", str(results)])
    assert ended == code, words
