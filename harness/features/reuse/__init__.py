"""Take the replies that another run has saved for the same requests (`--reuse`)."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from harness.config import options
from harness.feature import PLAYING, Feature
from harness.store.manifest import Manifest


def _options(command: str, parser: argparse.ArgumentParser) -> None:
    if command in PLAYING:
        words = "use the replies that this run (name or folder) has saved for the same requests, at temperature 0"
        options.add(parser, "--reuse RUN", words, type=options.filled)


def _notes(manifest: Manifest) -> Iterator[str]:
    for name, count in manifest.provenance.get("reused", {}).items():
        yield f"{count} replies were not requested: the run {name} had saved them for the same requests (--reuse)."


FEATURE = Feature(
    "reuse",
    options=_options,
    is_on=lambda args: args.reuse is not None,
    extension="harness.features.reuse.reuse:Reuse",
    notes=_notes,
    per_call=frozenset({"reuse"}),
    runs=frozenset({"reuse"}),
)
