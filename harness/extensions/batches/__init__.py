"""Send requests by a provider's Batch API, for less (`--batch`; docs/providers.md)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from harness.cost import Pending
from harness.errors import BadInput
from harness.extensions.batches.journal import NAME, Wave, outstanding, submissions
from harness.feature import PLAYING, Column, Feature
from harness.model import JSON
from harness.option import option
from harness.store.files import RunFiles
from harness.store.manifest import COMPLETE, Manifest
from harness.ui.words import plural

GIVE_UP = f"--no-batch --allow {NAME}"
"""How a run goes on without the replies of its batches, and pays for these requests again."""
TUNING = "batch"


@dataclass(frozen=True)
class Batch:
    """Whether requests go by the Batch API."""

    batch: bool | None = option(
        None, "use the provider's Batch API, in waves: each within a day, for half the price at most providers"
    )


def by_batches(manifest: Manifest) -> bool:
    """Return whether a run goes by batches."""
    return manifest.tuning.get(TUNING) is True


def _wave(files: RunFiles, manifest: Manifest) -> JSON | None:
    """Return how far a run was when its process last looked; None for one without batches."""
    if not (known := submissions(files.log(NAME))):
        return None
    left = [one for one in known if one.ended is None and manifest.state != COMPLETE]
    return asdict(Wave.of(max(one.wave for one in known), left))


def _words(wave: JSON) -> str:
    left = f" ({plural(wave['batches'], 'batch', 'batches')}, {wave['completed']}/{wave['requests']})"
    return f"{wave['number']}{left if wave['batches'] else ''}"


class _Batches(Feature):
    def is_on(self, args: Any) -> bool:
        return bool(args.batch)

    def again(self, manifest: Manifest) -> bool:
        return by_batches(manifest)

    def check(self, files: RunFiles, manifest: Manifest, allowed: Collection[str]) -> None:
        if not by_batches(manifest) and NAME not in allowed and (left := outstanding(files)):
            there = plural(len(left), "batch", "batches")
            raise BadInput(f"{files.folder}, {files.subset}: {there} may be at the provider: use --batch, or {GIVE_UP}")

    def pending(self, files: RunFiles) -> Iterable[Pending]:
        return [one.pending for one in outstanding(files)]


FEATURE = _Batches(
    "batches",
    options={Batch: PLAYING},
    extension="harness.extensions.batches.batches:Batches",
    logs=(NAME,),
    column=Column("waves", _wave, _words),
)
