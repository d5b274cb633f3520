"""Play a few users first, show what the whole run will take, and ask before it goes on (`run --estimate`)."""

from __future__ import annotations

from dataclasses import dataclass

from harness.feature import Feature
from harness.option import option


@dataclass(frozen=True)
class Estimate:
    """Whether a few users are played first, and whether the rest follows without a question."""

    estimate: bool = option(
        False,
        "play a few users first, show what the whole run will take, and ask before continuing; exit code 5 if nobody "
        "agrees",
        everyday=True,
    )
    yes: bool = option(False, "with --estimate: continue without asking", once=True)


FEATURE = Feature(
    "estimate",
    options={Estimate: ("run",)},
    extension="harness.extensions.estimate.first_users:FirstUsers",
)
