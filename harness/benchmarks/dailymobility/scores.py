"""Scores of residents that merge. Source: docs/design.md, section 9.

Divergences are of whole distributions, so what is kept is what decides those exactly: a tally for each of them, and
of each resident the radius (asbench's bins depend on the least and greatest) and nine bytes of bins and counts (for
the jackknife). That is 17 bytes a resident, and no figure is an approximation however many there are. No figure
depends on the order or grouping of residents. Their four lists are kept besides while residents are few, to be written
as a file.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.benchmarks.dailymobility.day import SLOTS
from harness.benchmarks.dailymobility.groundtruth import NUMBERS, GroundTruth, count_slots
from harness.benchmarks.dailymobility.protocols import (
    LOCATIONS,
    METRICS,
    PROPORTIONS,
    RADIUS,
    SEQUENCES,
    SIZES,
    Numbers,
    Sample,
    Support,
    Whole,
    aligned_histograms,
)
from harness.benchmarks.records import text
from harness.benchmarks.spent import counted
from harness.model import JSON, Record
from harness.scoring.divergence import NORMAL_95, Array, divergence, jackknife, left_out

FINAL = "final_score"

SHARES = np.arange(SLOTS + 1) / SLOTS
"""What a resident's proportion of an intention can be."""
SHARE_BINS = Support(1.0).place(PROPORTIONS, SHARES)

CHUNK = 8192
"""Residents left out together, so that memory does not grow with residents times bins."""

CORRECTED_FROM = 100
"""Residents from which the bias can be estimated well enough to take it off."""

Rows = NDArray[np.uint8]
Histograms = Mapping[str, Whole]


@dataclass(frozen=True, slots=True, eq=False)
class ShardScores:
    """Scores of some residents.

    `radii` and `rows` are in parts, as shards came; a row holds a resident's bin of the radius, bin of the locations,
    and number of slots with each intention. `locations` counts residents by their number of locations, `slots` by slot
    and intention (48 x 7), `shares` proportions by the number of slots (0 to 48) that they stand for. `all_days` and
    `valid_days` are the aligned protocol's histograms. `kept` has the locations and sequences of each part's residents,
    None once they are dropped. `counts` holds the tallies that have one number each, the other
    counters those by kind.
    """

    radii: tuple[Array, ...]
    rows: tuple[Rows, ...]
    locations: Counter[int]
    slots: Whole
    shares: Whole
    all_days: Histograms
    valid_days: Histograms
    kept: tuple[tuple[Whole, Rows], ...] | None
    counts: Counter[str]
    modes: Counter[str]
    invalid: Counter[str]
    repaired: Counter[str]
    warnings: Counter[str]

    @property
    def residents(self) -> int:
        return self.counts["residents"]

    @property
    def all_radii(self) -> Array:
        return np.concatenate([np.empty(0), *self.radii])

    def within(self, lists_limit: int) -> ShardScores:
        """The same, without lists where there are more residents than the limit."""
        return self if self.residents <= lists_limit else replace(self, kept=None)

    def condensed(self) -> ShardScores:
        """The same histograms, without what is kept of each resident: neither lists nor intervals can be made of it."""
        return replace(self, radii=(), rows=(), kept=None)

    def lists(self) -> dict[str, NDArray[np.float64 | np.int64 | np.uint8]] | None:
        """The four lists, residents in order; None once they are dropped."""
        if self.kept is None:
            return None
        spent = np.concatenate(self.rows)[:, 2:]
        return {
            RADIUS: self.all_radii,
            LOCATIONS: np.concatenate([locations for locations, _ in self.kept]),
            SEQUENCES: np.concatenate([sequences for _, sequences in self.kept]),
            PROPORTIONS: spent / SLOTS,
        }

    @property
    def sample(self) -> Sample:
        numbers = sorted(self.locations)
        counts = np.array([self.locations[number] for number in numbers], dtype=np.int64)
        return {
            RADIUS: Numbers.of(self.all_radii),
            LOCATIONS: Numbers(np.array(numbers, dtype=np.float64), counts),
            SEQUENCES: Numbers.tallied(NUMBERS, self.slots.sum(axis=0)),
            PROPORTIONS: Numbers.tallied(SHARES, self.shares),
        }


def score(shard: Sequence[Record], truth: GroundTruth) -> ShardScores:
    """The scores of up to 256 residents; a resident's proportions are those of the sequence."""
    days = [record.data for record in shard]
    radii = np.array([day["gyration_radius_m"] for day in days], dtype=np.float64)
    locations = np.array([day["daily_location_number"] for day in days], dtype=np.int64)
    sequences = np.array([day["intentions"] for day in days], dtype=np.uint8).reshape(-1, SLOTS)
    valid = np.array([day["invalid"] is None for day in days], dtype=np.bool_)
    spent = np.stack([(sequences == number).sum(axis=1) for number in NUMBERS], axis=1)
    bins = [truth.support.place(RADIUS, radii), truth.support.place(LOCATIONS, locations)]
    rows = np.column_stack([*bins, spent]).astype(np.uint8)
    return ShardScores(
        radii=(radii,),
        rows=(rows,),
        locations=Counter(locations.tolist()),
        slots=count_slots(sequences),
        shares=np.bincount(spent.ravel(), minlength=SLOTS + 1),
        all_days=_histograms(rows),
        valid_days=_histograms(rows[valid]),
        kept=((locations, sequences),),
        counts=_counts(days),
        modes=Counter(text(day["mode"]) for day in days),
        invalid=Counter(text(day["invalid"]) for day in days if day["invalid"] is not None),
        repaired=Counter(text(kind) for day in days for kind in day["repairs"]),
        warnings=Counter(_kind(warning) for day in days for warning in day["warnings"]),
    )


def merge(a: ShardScores, b: ShardScores) -> ShardScores:
    """Both together; associative, and which comes first makes no difference to any figure."""
    return ShardScores(
        radii=a.radii + b.radii,
        rows=a.rows + b.rows,
        locations=a.locations + b.locations,
        slots=a.slots + b.slots,
        shares=a.shares + b.shares,
        all_days={metric: a.all_days[metric] + b.all_days[metric] for metric in METRICS},
        valid_days={metric: a.valid_days[metric] + b.valid_days[metric] for metric in METRICS},
        kept=a.kept + b.kept if a.kept is not None and b.kept is not None else None,
        counts=a.counts + b.counts,
        modes=a.modes + b.modes,
        invalid=a.invalid + b.invalid,
        repaired=a.repaired + b.repaired,
        warnings=a.warnings + b.warnings,
    )


def _counts(days: Sequence[JSON]) -> Counter[str]:
    counts = Counter(
        residents=len(days),
        repaired=sum(1 for day in days if day["repairs"]),
        warned=sum(1 for day in days if day["warnings"]),
    )
    for day in days:
        counts.update(counted(day))
    return counts


def _kind(warning: str) -> str:
    """A warning without its numbers, so that those of many residents are few."""
    return re.sub(r"\d+(\.\d+)?", "#", warning)


def _histograms(rows: Rows) -> Histograms:
    return {metric: _by_bin(metric, rows).sum(axis=0, dtype=np.int64) for metric in METRICS}


def _by_bin(metric: str, rows: Rows) -> Rows:
    """Each resident's counts by bin of the aligned protocol: residents x bins."""
    if metric in (RADIUS, LOCATIONS):
        return np.eye(SIZES[metric], dtype=np.uint8)[rows[:, 0 if metric == RADIUS else 1]]
    spent = rows[:, 2:]
    if metric == SEQUENCES:
        return spent
    cells = SHARE_BINS[spent] + SIZES[metric] * np.arange(len(rows))[:, None]
    counts = np.bincount(cells.ravel(), minlength=SIZES[metric] * len(rows))
    return counts.astype(np.uint8).reshape(-1, SIZES[metric])


# Comparison

ENDS = np.cumsum([SIZES[metric] for metric in METRICS])[:-1]


def counts_by_bin(days: Sequence[JSON], truth: GroundTruth) -> Array:
    """Each resident's counts by bin of the aligned protocol, of all four metrics side by side: residents x bins."""
    records = [Record(str(day["user_id"]), day) for day in days]
    return side_by_side(np.concatenate([np.empty((0, 9), dtype=np.uint8), *score(records, truth).rows]))


def side_by_side(rows: Rows) -> Array:
    """Return the counts by bin of `ShardScores.rows`: residents x bins of all metrics."""
    return np.hstack([_by_bin(metric, rows) for metric in METRICS]).astype(np.float64)


def figures(truth: Histograms, totals: Array) -> Array:
    """The score, then the divergences, of histograms side by side (R x bins)."""
    parts = zip(METRICS, np.split(totals, ENDS, axis=1), strict=True)
    found = np.stack([divergence(truth[metric], part) for metric, part in parts], axis=1)
    return np.column_stack([1 - found.mean(axis=1), found])


# Intervals


class Estimate(NamedTuple):
    """A figure from 0 to 1 with its 95 % interval (None for one resident).

    `corrected` is the figure with its bias taken off, and that one's interval; None for fewer than `CORRECTED_FROM`.
    """

    value: float
    interval: tuple[float, float] | None
    corrected: tuple[float, tuple[float, float]] | None


def estimates(scores: ShardScores, truth: GroundTruth) -> dict[str, Estimate]:
    """The aligned protocol's final score, by `FINAL`, and its divergences by metric; empty without residents.

    `interval` is about the mean of the figure over other residents, just as many; `corrected` about what unlimited
    residents would have. Both are by the jackknife, of residents, with the ground truth as it is. In simulations
    (1,000 each; 100 real residents as the truth; drawn were those, those with noise, commuters much alike, and random
    days) 95 % intervals held the mean in 93.6 to 98.9 % with 20 residents, 95.5 to 99.3 % with 50, 94.9 to 99.6 % with
    100 and 93.9 to 98.6 % with 400; corrected ones held the score of unlimited residents in 93.6 to 96.0 % with 100
    and 92.2 to 97.2 % with 400.
    """
    found = aligned_histograms(truth.histograms, scores.all_days)
    if found.final is None:
        return {}
    without = _left_out(scores, truth)
    final_without = 1 - np.mean(list(without.values()), axis=0)
    figures = {metric: value for metric, value in found.divergences.items() if value is not None}
    return {
        FINAL: _estimate(found.final / 100, final_without),
        **{metric: _estimate(value, without[metric]) for metric, value in figures.items()},
    }


def _left_out(scores: ShardScores, truth: GroundTruth) -> dict[str, Array]:
    """Each metric's divergence without one resident, for each of them; nothing where there is but one."""
    if scores.residents < 2:
        return {metric: np.empty(0) for metric in METRICS}
    rows = np.concatenate(scores.rows)
    chunks = [rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK)]

    def of(metric: str) -> Array:
        expected, totals = truth.histograms[metric], scores.all_days[metric]
        return np.concatenate([left_out(expected, _by_bin(metric, chunk), totals) for chunk in chunks])

    return {metric: of(metric) for metric in METRICS}


def _estimate(value: float, without: Array) -> Estimate:
    found = jackknife(value, without)
    if found is None:
        return Estimate(value, None, None)
    reach, corrected = NORMAL_95 * found.error, value - found.bias
    few = len(without) < CORRECTED_FROM
    return Estimate(
        value,
        (_within(value - reach), _within(value + reach)),
        None if few else (_within(corrected), (_within(corrected - reach), _within(corrected + reach))),
    )


def _within(figure: float) -> float:
    return min(max(figure, 0.0), 1.0)
