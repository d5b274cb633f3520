"""Take the replies that another run has saved for the same requests (`--reuse`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.option import RUNS, option
from harness.options.extension import Extension
from harness.options.options import PlayOptions
from harness.store.manifest import Manifest

if TYPE_CHECKING:
    from harness.extensions.reuse.reuse import Reusing


@dataclass(frozen=True)
class Reuse:
    """The run whose replies are used, by name or folder."""

    reuse: str | None = option(
        None,
        "use the replies that this run (name or folder) has saved for the same requests, at"
        " temperature 0",
        unit="RUN",
        per_command=True,
        completes=RUNS,
    )


class _Reuse(Extension[Reuse]):
    name, options = "reuse", Reuse

    def hooks(self, options: Reuse, command: PlayOptions) -> Reusing:
        from harness.extensions.reuse.reuse import Reusing

        return Reusing(options, command)

    def notes(self, manifest: Manifest) -> Iterator[str]:
        for name, count in manifest.provenance.get("reused", {}).items():
            yield (
                f"{count} replies were not requested: the run {name} had saved them for the same"
                " requests (--reuse)."
            )


EXTENSION = _Reuse()
