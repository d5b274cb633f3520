"""`score-mobility`: the three protocols of DailyMobility on a file of the four lists."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from rich.table import Table

from harness.benchmarks.dailymobility import groundtruth, lists
from harness.benchmarks.dailymobility.groundtruth import GroundTruth, Lists
from harness.benchmarks.dailymobility.protocols import all_protocols, per_slot
from harness.benchmarks.dailymobility.summary import (
    SEED,
    about_protocols,
    ceiling_data,
    ceiling_told,
    jsd,
    protocol_table,
    undefined,
)
from harness.benchmarks.files import content
from harness.commands import options
from harness.model import JSON
from harness.ui.console import console
from harness.ui.streams import show_json

RESIDENTS = "profiles.json"
SYNTHETIC = (
    "The ground truth is synthetic, not the published one: scores on it show that the harness works, and say nothing "
    "of anyone."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="JSON with the four lists, or asbench's result pickle")
    parser.add_argument(
        "--data",
        type=options.folder,
        required=True,
        metavar="DIR",
        help="data folder of DailyMobility, or the folder groundtruth in it",
    )
    options.add_json(parser)


def execute(args: argparse.Namespace) -> int:
    truth = groundtruth.load(args.data)
    data = {**_scored(lists.read(args.file), truth), "notes": [SYNTHETIC] if _is_synthetic(args.data) else []}
    if args.json:
        show_json({"file": str(args.file), **data})
    else:
        _print(args.file, data)
    return 0


def _is_synthetic(folder: Path) -> bool:
    """Whether a resident of the data folder, or of the one that this is the ground truth in, says so.

    No score needs them: residents that are not there, or cannot be read, say nothing.
    """
    inside = folder.resolve().name == groundtruth.FOLDER and not (folder / groundtruth.FOLDER).is_dir()
    try:
        residents: Any = orjson.loads(content((folder.resolve().parent if inside else folder) / RESIDENTS))
    except (OSError, ValueError):
        return False
    return isinstance(residents, list) and any(
        isinstance(resident, dict) and resident.get("synthetic") is True for resident in residents
    )


def _scored(found: Lists, truth: GroundTruth) -> JSON:
    slots = per_slot(truth.slots, found.slots)
    ceiling = truth.ceiling(found.residents, np.random.default_rng(SEED))
    return {
        "residents": found.residents,
        "ground_truth": {"residents": truth.residents, "sha256": truth.sha256},
        "protocols": {name: of.as_json() for name, of in all_protocols(truth.sample, found.sample).items()},
        "JSD_per_slot": None if slots is None else float(slots.mean()),
        "ceiling": ceiling_data(ceiling, found.residents),
        "warnings": list(lists.warnings(found, truth.lists)),
    }


def _print(file: Path, data: JSON) -> None:
    screen = console()
    truth = data["ground_truth"]
    screen.print(
        f"{file}: {_residents(data['residents'])}, against {truth['residents']} of the ground truth "
        f"(SHA-256 {truth['sha256'][:16]}…)",
        soft_wrap=True,
    )
    for note in data["notes"]:
        screen.print(note)
    for warning in data["warnings"]:
        screen.print(f"warning: {warning}", style="yellow")
    screen.print()
    screen.print(_table(data["protocols"]))
    screen.print()
    for sentence in undefined(data["protocols"]):
        screen.print(sentence)
    screen.print(
        f"Divergence per slot, averaged over the day: {jsd(data['JSD_per_slot'])} "
        f"(resampled ground truth: {jsd(data['ceiling']['JSD_per_slot'])})."
    )
    screen.print(ceiling_told(data["ceiling"]))
    for sentence in about_protocols():
        screen.print(sentence)


def _residents(number: int) -> str:
    return f"{number} resident{'' if number == 1 else 's'}"


def _table(protocols: JSON) -> Table:
    shown = protocol_table(protocols)
    table = Table(box=None, pad_edge=False)
    for name in shown.columns:
        table.add_column(name, justify="right" if name else "left")
    for row in shown.rows:
        table.add_row(*row)
    return table
