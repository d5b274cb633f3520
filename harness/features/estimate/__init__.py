"""Play a few users first, show what the whole run will take, and ask before it goes on (`run --estimate`)."""

from __future__ import annotations

import argparse

from harness.config import options
from harness.feature import Feature


def _options(command: str, parser: argparse.ArgumentParser) -> None:
    if command == "run":
        words = "play a few users first, show what the whole run will take, and ask before continuing; exit code 5 if "
        words += "nobody agrees"
        options.add(parser, "--estimate", words, action="store_true")
        options.add(parser, "--yes", "with --estimate: continue without asking", action="store_true")


FEATURE = Feature(
    "estimate",
    options=_options,
    is_on=lambda args: bool(getattr(args, "estimate", False) or getattr(args, "yes", False)),
    extension="harness.features.estimate.first_users:FirstUsers",
    decisions=frozenset({"yes"}),
)
