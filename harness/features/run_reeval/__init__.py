"""`run --reeval`: `reeval` with the words of a `run`."""

from __future__ import annotations

from dataclasses import dataclass

from harness.feature import Feature, Instead
from harness.option import option


@dataclass(frozen=True)
class Reeval:
    reeval: bool = option(False, "score the saved answers again instead, as `reeval` does")


FEATURE = Feature(
    "run_reeval",
    options={Reeval: ["run"]},
    instead=(Instead("run", lambda args: bool(args.reeval), "harness.features.run_reeval.command:execute"),),
)
