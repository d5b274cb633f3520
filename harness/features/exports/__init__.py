"""Write saved runs for other programs, and send them to trackers of experiments (`export`, `--track`)."""

from __future__ import annotations

import argparse

from harness.config import options
from harness.feature import PLAYING, Command, Feature

TRACKERS = ("wandb", "mlflow")
"""Trackers of experiments that runs can be sent to; each is an extra package of the same name."""


def _options(command: str, parser: argparse.ArgumentParser) -> None:
    if command in PLAYING:
        words = "send figures and files of each finished run to this tracker; its own variables say where"
        options.add(parser, "--track", words, choices=TRACKERS)


FEATURE = Feature(
    "exports",
    commands={
        "export": Command(
            "harness.features.exports.command",
            "write runs for other programs: rows as CSV, JSON lines or Parquet, logs for Inspect, or to trackers",
        )
    },
    options=_options,
    is_on=lambda args: args.track is not None,
    extension="harness.features.exports.track:Track",
)
