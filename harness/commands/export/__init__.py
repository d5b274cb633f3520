"""Write saved runs for other programs, and send them to trackers of experiments (`export`)."""

from __future__ import annotations

from harness.feature import Command, Feature

TRACKERS = ("wandb", "mlflow")
"""Trackers of experiments that runs can be sent to; each is an extra package of the same name."""

FEATURE = Feature(
    "exports",
    needs=("plays", "documents"),
    commands={
        "export": Command(
            "harness.commands.export.command",
            "write runs for other programs: rows as CSV, JSON lines or Parquet, logs for Inspect, or to trackers",
        )
    },
    functions={"export": "harness.commands.export.command:export"},
)
