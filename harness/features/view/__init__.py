"""See runs in the browser (`view`), and watch and steer one that is being played (`watch`, `set`, `stop`)."""

from harness.feature import Command, Feature

FEATURE = Feature(
    "view",
    commands={"view": Command("harness.features.view.command", "show runs in the browser, also while they are played")},
    per_call=frozenset({"export", "limit"}),
)
