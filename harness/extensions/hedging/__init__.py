"""Send requests that take far longer than the others a second time (`--hedge`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.option import number, option
from harness.options.extension import Extension
from harness.options.options import PlayOptions
from harness.store.manifest import Manifest

if TYPE_CHECKING:
    from harness.extensions.hedging.hedging import Hedging

TUNING, HEDGED = "hedge", "hedged"
"""In a manifest's tuning: the multiple of the 99th percentile, and how many requests were sent a
second time, which have a notice of that kind."""
MAX_MULTIPLE = 1000


@dataclass(frozen=True)
class Hedge:
    """After how many times the 99th percentile a request is sent again, such as `Hedge(3)`."""

    hedge: float | None = option(
        None,
        "send a request again after N times the 99th percentile, such as 3; may pay twice (default:"
        " 0, never)",
        check=number(
            lambda value: value == 0 or 1 <= value <= MAX_MULTIPLE, "a number from 1 to 1000, or 0"
        ),
    )


def multiple_of(manifest: Manifest) -> float:
    """Return after how many times the 99th percentile a run sends a second try, 0 for never."""
    multiple = {**manifest.tuning}.get(TUNING)
    if isinstance(multiple, int | float) and 1 <= multiple <= MAX_MULTIPLE:
        return float(multiple)
    return 0.0


class _Hedging(Extension[Hedge]):
    name, options = "hedging", Hedge

    def hooks(self, options: Hedge, command: PlayOptions) -> Hedging:
        from harness.extensions.hedging.hedging import Hedging

        return Hedging(options)

    def continues(self, manifest: Manifest) -> bool:
        return multiple_of(manifest) > 0

    def counts(self, manifest: Manifest) -> Mapping[str, int]:
        number = {**manifest.tuning}.get(HEDGED)
        return {HEDGED: number} if isinstance(number, int) and number > 0 else {}

    def notes(self, manifest: Manifest) -> Iterator[str]:
        for count in self.counts(manifest).values():
            yield (
                f"--hedge sent {count} slow requests a second time, so some of them may have been"
                " billed twice."
            )


EXTENSION = _Hedging()
