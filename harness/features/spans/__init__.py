"""Send OpenTelemetry spans of runs, users and requests (`--otel`)."""

from __future__ import annotations

from dataclasses import dataclass

from harness.feature import PLAYING, Feature
from harness.option import option


@dataclass(frozen=True)
class Spans:
    otel: bool = option(
        False, "send OpenTelemetry spans of users and requests, without their texts, configured by OTEL_* variables"
    )


FEATURE = Feature(
    "spans",
    options={Spans: PLAYING},
    is_on=lambda args: bool(args.otel),
    extension="harness.features.spans.spans:Spans",
)
