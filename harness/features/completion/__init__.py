"""Let a shell complete commands, options and names of runs (`completion`)."""

from harness.feature import Command, Feature

FEATURE = Feature(
    "completion",
    commands={
        "completion": Command(
            "harness.commands.completion",
            "print a script that lets a shell complete commands, options and run names",
        )
    },
)
