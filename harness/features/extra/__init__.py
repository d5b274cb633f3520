"""Commands that only one benchmark has."""

from harness.benchmarks.registry import COMMANDS
from harness.feature import Command, Feature
from harness.options.options import AsJson

FEATURE = Feature(
    "extra",
    commands={
        name: Command("harness.commands.extra", one.does, f"{one.module}:Options") for name, one in COMMANDS.items()
    },
    options={AsJson: tuple(COMMANDS)},
)
