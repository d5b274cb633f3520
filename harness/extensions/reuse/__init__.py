"""Take the replies that another run has saved for the same requests (`--reuse`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from harness.feature import PLAYING, Feature
from harness.option import RUNS, option
from harness.store.manifest import Manifest


@dataclass(frozen=True)
class Reuse:
    """The run whose replies are used, by name or folder."""

    reuse: str | None = option(
        None,
        "use the replies that this run (name or folder) has saved for the same requests, at temperature 0",
        unit="RUN",
        own=True,
        completes=RUNS,
    )


class _Reuse(Feature):
    def notes(self, manifest: Manifest) -> Iterator[str]:
        for name, count in manifest.provenance.get("reused", {}).items():
            yield f"{count} replies were not requested: the run {name} had saved them for the same requests (--reuse)."


FEATURE = _Reuse(
    "reuse",
    options={Reuse: PLAYING},
    extension="harness.extensions.reuse.reuse:Reuse",
)
