"""The scorer of DailyMobility. Source: docs/design.md, section 9."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from harness.benchmarks.dailymobility import scores, summary
from harness.benchmarks.dailymobility.groundtruth import GroundTruth
from harness.benchmarks.dailymobility.protocols import aligned_histograms, per_slot
from harness.benchmarks.dailymobility.scores import ShardScores
from harness.benchmarks.records import made_of
from harness.model import Record, Report, RunFacts


@dataclass(frozen=True, slots=True)
class MobilityScorer:
    """The scorer of one subset against its ground truth. Above `lists_limit` residents no lists are written."""

    subset: str
    truth: GroundTruth
    prompt_version: str
    lists_limit: int = 50_000

    def score(self, shard: Sequence[Record]) -> ShardScores:
        return made_of(partial(scores.score, truth=self.truth), shard).within(self.lists_limit)

    def merge(self, a: ShardScores, b: ShardScores) -> ShardScores:
        return scores.merge(a, b).within(self.lists_limit)

    def condense(self, merged: ShardScores) -> ShardScores:
        return merged.condensed()

    def running(self, merged: ShardScores) -> Mapping[str, float | None]:
        final = aligned_histograms(self.truth.histograms, merged.all_days).final
        slots = per_slot(self.truth.slots, merged.slots)
        return {
            "Score": None if final is None else final / 100,
            "JSD_per_slot": None if slots is None else float(slots.mean()),
        }

    def summarise(self, merged: ShardScores, run: RunFacts) -> Report:
        return summary.summarise(merged, self.truth, run, self.prompt_version)
