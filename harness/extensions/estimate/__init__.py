"""Play a few users first, show what the whole run will take, and ask before it goes on (`run
--estimate`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.option import option
from harness.options.extension import Extension
from harness.options.options import PlayOptions

if TYPE_CHECKING:
    from harness.extensions.estimate.first_users import FirstUsers


@dataclass(frozen=True)
class Estimate:
    """Whether a few users are played first, and whether the rest follows without a question."""

    estimate: bool = option(
        False,
        "play a few users first, show what the whole run will take, and ask before continuing; exit"
        " code 5 if nobody agrees",
        everyday=True,
    )
    yes: bool = option(False, "with --estimate: continue without asking", once=True)


class _Estimate(Extension[Estimate]):
    name, options, commands = "estimate", Estimate, frozenset({"run"})

    def hooks(self, options: Estimate, command: PlayOptions) -> FirstUsers:
        from harness.extensions.estimate.first_users import FirstUsers

        return FirstUsers(options)


EXTENSION = _Estimate()
