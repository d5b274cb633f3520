"""`score-mobility`: the three protocols of DailyMobility on a file of the four lists.

`harness.benchmarks.registry.COMMANDS` names this module; a command shows what it returns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from harness.benchmarks.dailymobility import groundtruth, lists
from harness.benchmarks.dailymobility.divergence import divergence
from harness.benchmarks.dailymobility.groundtruth import GroundTruth, Lists
from harness.benchmarks.dailymobility.protocols import all_protocols
from harness.benchmarks.dailymobility.summary import (
    about_protocols,
    ceiling_text,
    jsd,
    protocol_table,
    undefined,
)
from harness.benchmarks.files import content
from harness.document import Block, Paragraph, Verbatim
from harness.model import JSON
from harness.option import folder, option
from harness.printable import short_hash

RESIDENTS = "profiles.json"
SYNTHETIC = (
    "The ground truth is synthetic, not the published one: scores on it show that the harness"
    " works, and say nothing of anyone."
)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Options:
    file: Path = option(
        words="JSON with the four lists, or asbench's result pickle", position="FILE", everyday=True
    )
    data: Path = option(
        words="data folder of DailyMobility, or the folder groundtruth in it",
        unit="DIR",
        read=folder,
        everyday=True,
    )


def execute(args: Options) -> tuple[JSON, Sequence[Block]]:
    """Return what `--json` prints, whose `warnings` are always shown, and what people are shown
    besides."""
    truth = groundtruth.load(args.data)
    notes = [SYNTHETIC] if _is_synthetic(args.data) else []
    data = {"file": str(args.file), **_scored(lists.read(args.file), truth), "notes": notes}
    return data, tuple(_blocks(data))


def _is_synthetic(folder: Path) -> bool:
    """Whether a resident of the data folder, or of the one that this is the ground truth in, says
    so.

    No score needs them: residents that are not there, or cannot be read, say nothing.
    """
    inside = (
        folder.resolve().name == groundtruth.FOLDER and not (folder / groundtruth.FOLDER).is_dir()
    )
    try:
        residents: object = orjson.loads(
            content((folder.resolve().parent if inside else folder) / RESIDENTS)
        )
    except (OSError, ValueError):
        return False
    return isinstance(residents, list) and any(
        isinstance(resident, dict) and resident.get("synthetic") is True for resident in residents
    )


def _scored(found: Lists, truth: GroundTruth) -> JSON:
    return {
        "residents": found.residents,
        "ground_truth": {"residents": truth.residents, "sha256": truth.sha256},
        "protocols": {
            name: of.as_json() for name, of in all_protocols(truth.sample, found.sample).items()
        },
        "JSD_per_slot": float(divergence(truth.slots, found.slots).mean()),
        "ceiling": truth.ceiling(found.residents),
        "warnings": list(lists.warnings(found, truth.lists)),
    }


def _blocks(data: JSON) -> Iterator[Block]:
    truth = data["ground_truth"]
    yield Verbatim(
        f"{data['file']}: {_residents(data['residents'])}, against {truth['residents']} of the"
        f" ground truth (SHA-256 {short_hash(truth['sha256'])})"
    )
    yield from map(Paragraph, data["notes"])
    yield protocol_table(data["protocols"])
    yield from map(Paragraph, undefined(data["protocols"]))
    yield Paragraph(
        f"Divergence per slot, averaged over the day: {jsd(data['JSD_per_slot'])} "
        f"(resampled ground truth: {jsd(data['ceiling']['JSD_per_slot'])})."
    )
    yield Paragraph(ceiling_text(data["ceiling"]))
    yield from map(Paragraph, about_protocols())


def _residents(number: int) -> str:
    return f"{number} resident{'' if number == 1 else 's'}"
