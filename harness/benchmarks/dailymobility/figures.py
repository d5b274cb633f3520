"""What `compare` compares of DailyMobility: the headline protocol's figures (docs/design.md, section 9)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

import numpy as np

from harness.benchmarks.dailymobility import scores
from harness.benchmarks.dailymobility.day import VALID
from harness.benchmarks.dailymobility.groundtruth import GroundTruth
from harness.benchmarks.dailymobility.protocols import LOCATIONS, METRICS, PROPORTIONS, RADIUS, SEQUENCES, SIZES
from harness.benchmarks.records import made_of, text
from harness.model import Record
from harness.scoring.bootstrap import Array
from harness.scoring.divergence import divergence
from harness.scoring.paired import Mask

ENDS = np.cumsum([SIZES[metric] for metric in METRICS])[:-1]
OWNERS = np.repeat(np.arange(len(METRICS)), [SIZES[metric] for metric in METRICS])
"""Which metric each bin is of."""

SCORE = "Score"


class MobilityFigures:
    """Divergences from the ground truth, and the score, the mean of 1 minus these. A resident contributes its counts
    by bin, of all four metrics side by side."""

    names: tuple[str, ...] = (SCORE, *(f"JSD_{metric}" for metric in METRICS))
    main: tuple[str, ...] = (SCORE,)
    lower = frozenset(names[1:])
    uses: Mask = np.vstack([np.ones(len(OWNERS), dtype=np.bool_), np.arange(len(METRICS))[:, None] == OWNERS])

    def __init__(self, truth: GroundTruth) -> None:
        self._truth = truth

    def contributions(self, records: Sequence[Record]) -> Array:
        found = made_of(partial(scores.score, truth=self._truth), records).rows
        return counts_by_bin(np.concatenate([np.empty((0, 9), dtype=np.uint8), *found]))

    def outcomes(self, records: Sequence[Record]) -> list[Counter[str]]:
        return [Counter([text(record.data["invalid"] or VALID)]) for record in records]

    def values(self, totals: Array) -> Array:
        return figures(self._truth.histograms, totals)


def counts_by_bin(rows: scores.Rows) -> Array:
    """Each resident's counts by bin, of all metrics: residents x bins. `rows` are those of `scores.ShardScores`."""
    spent = rows[:, 2:]
    bins = {
        RADIUS: np.eye(SIZES[RADIUS])[rows[:, 0]],
        LOCATIONS: np.eye(SIZES[LOCATIONS])[rows[:, 1]],
        SEQUENCES: spent,
        PROPORTIONS: np.eye(SIZES[PROPORTIONS])[scores.SHARE_BINS[spent]].sum(axis=1),
    }
    return np.hstack([bins[metric] for metric in METRICS]).astype(np.float64)


def figures(truth: scores.Histograms, totals: Array) -> Array:
    """The score, then the divergences, of histograms side by side (R x bins)."""
    parts = zip(METRICS, np.split(totals, ENDS, axis=1), strict=True)
    found = np.stack([divergence(truth[metric], part) for metric, part in parts], axis=1)
    return np.column_stack([1 - found.mean(axis=1), found])
