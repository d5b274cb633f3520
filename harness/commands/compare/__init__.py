"""Compare runs on the users that they share, with significance tests (`compare`)."""

from harness.feature import Command, Feature

FEATURE = Feature(
    "compare",
    needs=("documents",),
    commands={
        "compare": Command(
            "harness.commands.compare.command",
            "compare runs on the users that they share, with significance tests",
        )
    },
    functions={"compare": "harness.commands.compare.command:compare"},
)
