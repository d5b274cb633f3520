"""Score saved answers again, without any request: `reeval`, and `run --reeval` with the words of a `run`."""

from __future__ import annotations

from dataclasses import dataclass

from harness.feature import Command, Feature, Instead
from harness.option import option


@dataclass(frozen=True)
class Reeval:
    reeval: bool = option(False, "score the saved answers again instead, as `reeval` does")


FEATURE = Feature(
    "rescoring",
    commands={"reeval": Command("harness.commands.reeval", "score saved answers again, without any request")},
    options={Reeval: ["run"]},
    instead=(Instead("run", lambda args: bool(args.reeval), "harness.commands.reeval_of_run:execute"),),
)
