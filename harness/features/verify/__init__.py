"""Check that the folders of runs are complete and unchanged (`verify`)."""

from harness.feature import Command, Feature

FEATURE = Feature(
    "verify",
    needs=("plays",),
    commands={
        "verify": Command("harness.features.verify.command", "check that a run's folder is complete and unchanged")
    },
    functions={"verify": "harness.features.verify.command:verify"},
)
