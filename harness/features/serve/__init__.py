"""An endpoint on this machine with the baseline models, latency and faults on demand (`serve`)."""

from harness.feature import Command, Feature

FEATURE = Feature(
    "serve",
    commands={
        "serve": Command(
            "harness.features.serve.command", "serve the baseline models, with latency and faults on demand"
        )
    },
)
