"""Serve the figures of the display to Prometheus (`--metrics-port`)."""

from __future__ import annotations

import argparse

from harness.config import options
from harness.feature import PLAYING, Feature

PORT_MOST = 65535


def _options(command: str, parser: argparse.ArgumentParser) -> None:
    if command in PLAYING:
        words = "serve metrics for Prometheus at http://127.0.0.1:N/metrics"
        options.add(parser, "--metrics-port N", words, type=options.whole(1, PORT_MOST))


FEATURE = Feature(
    "metrics",
    options=_options,
    is_on=lambda args: args.metrics_port is not None,
    extension="harness.features.metrics.prometheus:Metrics",
)
