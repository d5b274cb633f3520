"""Show what a run would send, and send nothing (`run --dry-run`)."""

from __future__ import annotations

import argparse

from harness.config import options
from harness.feature import Feature, Instead


def _options(command: str, parser: argparse.ArgumentParser) -> None:
    if command == "run":
        words = "show what would be sent, with some prompts, and send nothing: no key is needed"
        options.add(parser, "--dry-run", words, action="store_true")


FEATURE = Feature(
    "preview",
    options=_options,
    instead=(Instead("run", lambda args: bool(args.dry_run), "harness.features.preview.preview:execute"),),
)
