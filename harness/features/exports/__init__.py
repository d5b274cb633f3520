"""Write saved runs for other programs, and send them to trackers of experiments (`export`, `--track`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.feature import PLAYING, Command, Feature
from harness.option import option

TRACKERS = ("wandb", "mlflow")
"""Trackers of experiments that runs can be sent to; each is an extra package of the same name."""


@dataclass(frozen=True)
class Track:
    """The tracker that finished runs are sent to, such as `Track("wandb")`."""

    track: Literal["wandb", "mlflow"] | None = option(
        None, "send figures and files of each finished run to this tracker; its own variables say where"
    )


FEATURE = Feature(
    "exports",
    needs=("plays", "documents"),
    commands={
        "export": Command(
            "harness.features.exports.command",
            "write runs for other programs: rows as CSV, JSON lines or Parquet, logs for Inspect, or to trackers",
        )
    },
    options={Track: PLAYING},
    extension="harness.features.exports.trackers:Track",
    functions={"export": "harness.features.exports.command:export"},
)
