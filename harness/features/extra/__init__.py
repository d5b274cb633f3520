"""Commands that only one benchmark has."""

from harness.benchmarks.registry import COMMANDS
from harness.config.options import AsJson
from harness.feature import Command, Feature

FEATURE = Feature(
    "extra",
    commands={
        name: Command("harness.features.extra.command", one.does, f"{one.module}:Options")
        for name, one in COMMANDS.items()
    },
    options={AsJson: tuple(COMMANDS)},
)
