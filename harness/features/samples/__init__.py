"""Tasks files of any size: a share of one, or synthetic tasks (`sample`, `synth`)."""

from harness.feature import Command, Feature

FEATURE = Feature(
    "samples",
    needs=("documents",),
    commands={
        "sample": Command("harness.commands.sample", "write a nested share of a tasks file"),
        "synth": Command("harness.commands.synth", "write synthetic tasks of any size"),
    },
)
