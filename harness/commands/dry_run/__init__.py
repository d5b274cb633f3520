"""Show what a run would send, and send nothing (`run --dry-run`)."""

from __future__ import annotations

from dataclasses import dataclass

from harness.feature import Feature, Instead
from harness.option import option


@dataclass(frozen=True)
class Preview:
    """Whether nothing is sent: `Preview(dry_run=True)`."""

    dry_run: bool = option(
        False, "show what would be sent, with some prompts, and send nothing: no key is needed", everyday=True
    )


FEATURE = Feature(
    "preview",
    options={Preview: ("run",)},
    instead=(Instead("run", lambda args: bool(args.dry_run), "harness.commands.dry_run.preview:execute"),),
)
