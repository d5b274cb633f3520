"""Send OpenTelemetry spans of runs, users and requests (`--otel`)."""

from __future__ import annotations

import argparse

from harness.config import options
from harness.feature import PLAYING, Feature


def _options(command: str, parser: argparse.ArgumentParser) -> None:
    if command in PLAYING:
        words = "send OpenTelemetry spans of users and requests, without their texts, configured by OTEL_* variables"
        options.add(parser, "--otel", words, action="store_true")


FEATURE = Feature(
    "spans", options=_options, is_on=lambda args: bool(args.otel), extension="harness.features.spans.spans:Spans"
)
