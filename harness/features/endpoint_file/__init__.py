"""The endpoint in another program's YAML file (`--config`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.feature import Feature
from harness.option import option


@dataclass(frozen=True)
class EndpointFile:
    config: Path | None = option(None, "YAML file with a list `llm`: address, key, model, concurrency")


FEATURE = Feature(
    "endpoint_file",
    options={EndpointFile: ["run", "resume"]},
    functions={
        "endpoint_of": "harness.options.endpoint_file:endpoint_of",
        "endpoint_again": "harness.options.endpoint_file:endpoint_again",
    },
)
