"""Send requests by a provider's Batch API, for less (`--batch`; docs/features/batches.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.option import option
from harness.options.extension import Extension
from harness.options.options import PlayOptions
from harness.store.manifest import Manifest

if TYPE_CHECKING:
    from harness.extensions.batches.batches import Batches

TUNING = "batch"


@dataclass(frozen=True)
class Batch:
    """Whether requests go by the Batch API."""

    batch: bool | None = option(
        None,
        "use the provider's Batch API, in waves: each within a day, for half the price at most"
        " providers",
    )


def by_batches(manifest: Manifest) -> bool:
    """Return whether a run goes by batches."""
    return manifest.tuning.get(TUNING) is True


class _Batches(Extension[Batch]):
    name, options = "batches", Batch

    def hooks(self, options: Batch, command: PlayOptions) -> Batches:
        from harness.extensions.batches.batches import Batches

        return Batches(options, command)

    def is_on(self, options: Batch, command: PlayOptions) -> bool:
        return bool(options.batch)

    def continues(self, manifest: Manifest) -> bool:
        return by_batches(manifest)


EXTENSION = _Batches()
