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
        help_text="JSON with the four lists, or asbench's result pickle",
        position="FILE",
        everyday=True,
    )
    data: Path = option(
        help_text="data folder of DailyMobility, or the folder groundtruth in it",
        unit="DIR",
        read=folder,
        everyday=True,
    )


def execute(args: Options) -> tuple[JSON, Sequence[Block]]:
    """Return what `--json` prints, whose `warnings` are always shown, and the blocks for people."""
    truth = groundtruth.load(args.data)
    notes = []
    if _is_synthetic(args.data):
        notes.append(SYNTHETIC)

    data = {
        "file": str(args.file),
        **_scores(lists.read(args.file), truth),
        "notes": notes,
    }
    return data, tuple(_blocks(data))


def _is_synthetic(folder: Path) -> bool:
    """Return whether a resident of the data folder is marked as synthetic; `folder` may be the
    ground truth's in it.

    No score needs residents: if they are missing, or cannot be read, nothing is marked.
    """
    if not (folder / groundtruth.FOLDER).is_dir():
        folder = folder.resolve()
        if folder.name == groundtruth.FOLDER:
            folder = folder.parent

    try:
        residents: object = orjson.loads(content(folder / RESIDENTS))
    except (OSError, ValueError):
        return False

    if not isinstance(residents, list):
        return False

    # One is enough: in a file that was put together, scores are not of real people alone.
    for resident in residents:
        if isinstance(resident, dict) and resident.get("synthetic") is True:
            return True

    return False


def _scores(scored: Lists, truth: GroundTruth) -> JSON:
    outcomes = all_protocols(truth.sample, scored.sample)
    return {
        "residents": scored.residents,
        "ground_truth": {"residents": truth.residents, "sha256": truth.sha256},
        "protocols": {name: outcome.as_json() for name, outcome in outcomes.items()},
        "JSD_per_slot": float(divergence(truth.slots, scored.slots).mean()),
        "ceiling": truth.ceiling(scored.residents),
        "warnings": list(lists.warnings(scored, truth.lists)),
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
    if number == 1:
        return "1 resident"
    return f"{number} residents"
