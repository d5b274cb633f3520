"""Show a user of a run in the terminal (`show`): prompts, replies and scores."""

from harness.feature import Command, Feature

FEATURE = Feature(
    "show",
    needs=("plays", "documents"),
    commands={
        "show": Command("harness.commands.show.command", "show a user's prompts, replies and scores in the terminal")
    },
)
