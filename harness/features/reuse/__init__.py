"""Take the replies that another run has saved for the same requests (`--reuse`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from harness.feature import PLAYING, Feature
from harness.option import RUNS, option
from harness.store.manifest import Manifest


@dataclass(frozen=True)
class Reuse:
    reuse: str | None = option(
        None,
        "use the replies that this run (name or folder) has saved for the same requests, at temperature 0",
        unit="RUN",
        own=True,
        completes=RUNS,
    )


def _notes(manifest: Manifest) -> Iterator[str]:
    for name, count in manifest.provenance.get("reused", {}).items():
        yield f"{count} replies were not requested: the run {name} had saved them for the same requests (--reuse)."


FEATURE = Feature(
    "reuse",
    options={Reuse: PLAYING},
    is_on=lambda args: args.reuse is not None,
    extension="harness.features.reuse.reuse:Reuse",
    notes=_notes,
)
