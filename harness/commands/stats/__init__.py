"""Show runs side by side: tables, Excel files (`stats`), and a page over all runs (`report` without a run)."""

from harness.feature import Command, Feature, Instead

FEATURE = Feature(
    "leaderboard",
    needs=("documents", "compare"),
    commands={
        "stats": Command(
            "harness.commands.stats.command",
            "show a table of all runs, and with --excel write an Excel file per metric",
        )
    },
    instead=(
        Instead(
            "report",
            lambda args: not (args.runs or args.model or args.platform),
            "harness.commands.stats.overview:execute",
        ),
    ),
    functions={"leaderboard": "harness.commands.stats.command:leaderboard"},
)
