"""Send OpenTelemetry spans of runs, users and requests (`--otel`)."""

from __future__ import annotations

from dataclasses import dataclass

from harness.feature import PLAYING, Feature
from harness.option import option


@dataclass(frozen=True)
class Spans:
    """Whether spans are sent."""

    otel: bool = option(
        False, "send OpenTelemetry spans of users and requests, without their texts, configured by OTEL_* variables"
    )


FEATURE = Feature(
    "spans",
    options={Spans: PLAYING},
    extension="harness.features.spans.spans:Spans",
)
