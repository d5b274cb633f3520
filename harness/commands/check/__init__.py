"""Check that a benchmark keeps its contract (`check-benchmark`)."""

from harness.feature import Command, Feature

FEATURE = Feature(
    "check",
    needs=("documents",),
    commands={
        "check-benchmark": Command(
            "harness.commands.check.command",
            "check that a benchmark keeps its contract, with sample tasks and scripted models",
        )
    },
)
