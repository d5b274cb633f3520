"""Serve the figures of the display to Prometheus (`--metrics-port`)."""

from __future__ import annotations

from dataclasses import dataclass

from harness.feature import PLAYING, Feature
from harness.option import option, whole

PORT_MOST = 65535


@dataclass(frozen=True)
class Metrics:
    """The port at which metrics are served, such as `Metrics(9400)`."""

    metrics_port: int | None = option(
        None, "serve metrics for Prometheus at http://127.0.0.1:N/metrics", check=whole(1, PORT_MOST)
    )


FEATURE = Feature(
    "metrics",
    options={Metrics: PLAYING},
    extension="harness.features.metrics.prometheus:Metrics",
)
