"""Check that the folders of runs are complete and unchanged (`verify`)."""

from harness.feature import Command, Feature

FEATURE = Feature(
    "verify",
    needs=("plays",),
    commands={
        "verify": Command("harness.commands.verify.command", "check that a run's folder is complete and unchanged")
    },
    functions={"verify": "harness.commands.verify.command:verify"},
)
