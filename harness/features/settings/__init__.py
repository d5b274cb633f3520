"""Values of options from a file, `harness.toml` (docs/features/settings.md)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.feature import EVERY, Feature
from harness.option import option


@dataclass(frozen=True)
class Settings:
    """The file with values of options."""

    settings_file: Path | None = option(
        None,
        "your own settings file (default: harness.toml here, or in ~/.config/behavior-harness)",
        flags="--settings",
        once=True,
    )


FEATURE = Feature(
    "settings",
    options={Settings: EVERY},
    functions={"settings_of": "harness.options.settings_file:of_command"},
)
