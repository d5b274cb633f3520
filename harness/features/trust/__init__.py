"""Let the files of a folder count that the harness finds there (`trust`)."""

from harness.feature import Command, Feature

FEATURE = Feature(
    "trust",
    commands={
        "trust": Command(
            "harness.commands.trust",
            "allow the settings file and the providers file of this folder, as they are now",
            alone=True,
        )
    },
)
