"""The scorer of StreamProfileBench. Source: docs/design.md, section 8."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.benchmarks.records import made_of
from harness.benchmarks.streamprofile import scores, summary
from harness.benchmarks.streamprofile.metrics import F1
from harness.benchmarks.streamprofile.scores import ShardScores
from harness.model import Record, Report, RunFacts


@dataclass(frozen=True, slots=True)
class ProfileScorer:
    """The scorer of one subset. Above `rows_limit` users, rows are dropped and the bootstrap is by block."""

    subset: str
    prompt_version: str
    rows_limit: int = 50_000

    def score(self, shard: Sequence[Record]) -> ShardScores:
        return made_of(scores.score, shard).within(self.rows_limit)

    def merge(self, a: ShardScores, b: ShardScores) -> ShardScores:
        return scores.merge(a, b).within(self.rows_limit)

    def condense(self, merged: ShardScores) -> ShardScores:
        return merged.condensed()

    def running(self, merged: ShardScores) -> Mapping[str, float | None]:
        means = merged.means()
        return {name: means["all", name].value for name in ("Recall", F1)}

    def summarise(self, merged: ShardScores, run: RunFacts) -> Report:
        return summary.summarise(merged, run, self.prompt_version)
