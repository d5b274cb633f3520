"""The console of every command."""

from __future__ import annotations

from rich.console import Console

from harness.ui.streams import unfailing


def console() -> Console:
    """Standard output. Text is shown as it is, whatever a name holds, and output that fails ends nothing."""
    return Console(file=unfailing(), markup=False, emoji=False, highlight=False)
