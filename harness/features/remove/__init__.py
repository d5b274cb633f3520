"""Set runs aside, under other names in their folders (`remove`)."""

from harness.feature import Command, Feature

FEATURE = Feature(
    "remove",
    commands={
        "remove": Command(
            "harness.commands.remove",
            "set runs aside, under other names in their folders; nothing is deleted",
        )
    },
)
