"""Show the options that a command would have, and where each is from (`config`)."""

from harness.feature import Command, Feature

FEATURE = Feature(
    "config",
    commands={
        "config": Command(
            "harness.commands.config",
            "show the options that a command would have, and where each value comes from",
        )
    },
)
