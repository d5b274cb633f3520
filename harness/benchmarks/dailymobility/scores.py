"""What residents of DailyMobility add to its scores: counts by bin, and a tally. Source:
docs/design.md, section 9.

Divergences are of whole distributions, so what is kept is what decides those exactly: sums for each
of them, and of each resident the radius (asbench's bins depend on the least and greatest) and nine
bytes of bins and counts (for the jackknife). That is 17 bytes a resident, and no figure is an
approximation however many there are. No figure depends on the order or grouping of residents. Their
four lists are kept as well while residents are few, to be written as a file.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.benchmarks.dailymobility.day import SLOTS
from harness.benchmarks.dailymobility.divergence import divergence
from harness.benchmarks.dailymobility.groundtruth import NUMBERS, GroundTruth, count_slots
from harness.benchmarks.dailymobility.protocols import (
    LOCATIONS,
    METRICS,
    PROPORTIONS,
    RADIUS,
    SEQUENCES,
    SIZES,
    Numbers,
    Outcome,
    Sample,
    Support,
    Whole,
    all_protocols,
    figures,
)
from harness.benchmarks.dailymobility.spread import FEWEST, FIGURES, Marked, Side, both, mixed
from harness.benchmarks.records import text, user_starts
from harness.model import JSON
from harness.scoring.bootstrap import Array
from harness.scoring.intervals import FEWEST_AT_ALL

SHARES = np.arange(SLOTS + 1) / SLOTS
"""What a resident's proportion of an intention can be."""
SHARE_BINS = Support(1.0).place(PROPORTIONS, SHARES)

LISTS_LIMIT = 50_000
"""Residents up to whom their lists are kept, to be written as a file."""

CHUNK = 8192
"""Residents whose counts by bin are held at once, so that memory does not grow with residents times
bins."""

Rows = NDArray[np.uint8]


class Estimate(NamedTuple):
    """A figure from 0 to 1 with its 95 % interval, None where there are too few residents or all
    are alike.

    `interval` is about other residents in the run, `with_truth` about other residents in the ground
    truth as well. `corrected` is the mean of the residents' parts, which is the figure with its
    bias taken off, and that one's interval; None for fewer than `FEWEST`. `bias` is what it takes
    off; None for fewer than `FEWEST_AT_ALL`.
    """

    value: float
    interval: Marked | None
    with_truth: Marked | None
    corrected: tuple[float, Marked | None] | None
    bias: float | None = None


@dataclass(frozen=True, eq=False)
class Tally:
    """Scores of some residents against the ground truth.

    With repeats each is a day of its own, and "residents" are days; `repeats` has how many each
    real one has. `radii` and `rows` are in parts, as shards came; a row holds a resident's bin of
    the radius, bin of the locations, and number of slots with each intention. `locations` counts
    residents by their number of locations, `slots` by slot and intention (48 x 7), `shares`
    proportions by the number of slots (0 to 48) that they are of. `all_days` and `valid_days` are
    counts by bin of the aligned protocol, all metrics side by side. `lists` has the locations and
    sequences of each part's residents, None once they are dropped. `counts` are of residents.
    """

    truth: GroundTruth
    radii: tuple[Array, ...]
    rows: tuple[Rows, ...]
    repeats: tuple[NDArray[np.int64], ...]
    locations: Counter[int]
    slots: Whole
    shares: Whole
    all_days: Array
    valid_days: Array
    lists: tuple[tuple[Whole, Rows], ...] | None
    counts: Counter[str]
    modes: Counter[str]
    warnings: Counter[str]

    def __add__(self, other: Tally) -> Tally:
        """Return the tally of both; associative, and which comes first makes no difference to any
        figure."""
        few = self.counts["residents"] + other.counts["residents"] <= LISTS_LIMIT
        lists = (
            self.lists + other.lists
            if few and self.lists is not None and other.lists is not None
            else None
        )
        rest = (field.name for field in fields(self) if field.name not in ("truth", "lists"))
        sums = {name: getattr(self, name) + getattr(other, name) for name in rest}
        return Tally(truth=self.truth, lists=lists, **sums)

    def condensed(self) -> Tally:
        """Return the same sums without what is kept of each resident: for neither lists nor
        intervals."""
        return replace(self, radii=(), rows=(), repeats=(), lists=None)

    @cached_property
    def all_radii(self) -> Array:
        return np.concatenate(self.radii)

    def columns(self) -> dict[str, NDArray[np.float64 | np.int64 | np.uint8]] | None:
        """Return the four lists, residents in order; None once they are dropped."""
        if self.lists is None:
            return None
        return {
            RADIUS: self.all_radii,
            LOCATIONS: np.concatenate([locations for locations, _ in self.lists]),
            SEQUENCES: np.concatenate([sequences for _, sequences in self.lists]),
            PROPORTIONS: np.concatenate(self.rows)[:, 2:] / SLOTS,
        }

    @cached_property
    def sample(self) -> Sample:
        numbers = sorted(self.locations)
        counts = np.array([self.locations[number] for number in numbers], dtype=np.int64)
        return {
            RADIUS: Numbers.of(self.all_radii),
            LOCATIONS: Numbers(np.array(numbers, dtype=np.float64), counts),
            SEQUENCES: Numbers.tallied(NUMBERS, self.slots.sum(axis=0)),
            PROPORTIONS: Numbers.tallied(SHARES, self.shares),
        }

    @cached_property
    def per_slot(self) -> Array:
        """Divergence in bits of the intentions at each slot."""
        return divergence(self.truth.slots, self.slots)

    @cached_property
    def protocols(self) -> dict[str, Outcome]:
        return all_protocols(self.truth.sample, self.sample)

    @cached_property
    def estimates(self) -> dict[str, Estimate]:
        """The aligned protocol's final score, by `FINAL`, and its divergences by metric
        (docs/statistics.md)."""
        values = figures(self.truth.totals, self.all_days[None])[0]
        users, totals, expected = (
            sum(map(len, self.repeats)),
            self.all_days.astype(np.int64),
            self.truth.totals,
        )
        if users < 2 or self.truth.residents < 2:
            return {
                name: Estimate(value, None, None, None)
                for name, value in zip(FIGURES, values, strict=True)
            }
        run = Side.of(self._chunks(), totals, expected, values, users)
        truth = Side.of([self.truth.counts], expected, totals, values)
        spread, means = run.spread, run.parts.mean(axis=0)
        found = spread.intervals(values, users)
        wider = both(run, truth, mixed(expected, totals)).intervals(values, users)
        moved = replace(spread, noise=0 * spread.noise).intervals(means, users)
        estimates = {}
        for name, value, mean in zip(
            FIGURES, values.tolist(), means.clip(0.0, 1.0).tolist(), strict=True
        ):
            corrected = (mean, moved[name]) if users >= FEWEST else None
            bias = value - mean if users >= FEWEST_AT_ALL else None
            estimates[name] = Estimate(value, found[name], wider[name], corrected, bias)
        return estimates

    def _chunks(self) -> Iterator[Rows | Whole]:
        """Yield counts by bin of some residents at once, those of all their days together. Without
        repeats they are sorted, so that their order changes no digit."""
        rows, ends = np.concatenate(self.rows), np.cumsum(np.concatenate(self.repeats))
        rows = rows[np.lexsort(rows.T)] if len(ends) == len(rows) else rows
        parts = (
            np.split(rows, ends[CHUNK - 1 :: CHUNK]),
            np.split(ends, range(CHUNK, len(ends), CHUNK)),
        )
        for part, last in zip(*parts, strict=False):
            yield _of_residents(side_by_side(part), last)


def tallied(days: Sequence[JSON], truth: GroundTruth) -> tuple[Array, Tally]:
    """Return the counts by bin of the days of up to 256 residents (days x bins of all metrics), and
    their tally.

    A resident's proportions are those of the sequence.
    """
    radii = np.array([day["gyration_radius_m"] for day in days], dtype=np.float64)
    locations = np.array([day["daily_location_number"] for day in days], dtype=np.int64)
    sequences = np.array([day["intentions"] for day in days], dtype=np.uint8).reshape(-1, SLOTS)
    valid = np.array([day["invalid"] is None for day in days], dtype=np.bool_)
    spent = np.stack([(sequences == number).sum(axis=1) for number in NUMBERS], axis=1)
    bins = [truth.support.place(RADIUS, radii), truth.support.place(LOCATIONS, locations)]
    rows = np.column_stack([*bins, spent]).astype(np.uint8)
    counts = side_by_side(rows).astype(np.float64)
    return counts, Tally(
        truth=truth,
        radii=(radii,),
        rows=(rows,),
        repeats=(np.diff([*user_starts(days), len(days)]),),
        locations=Counter(locations.tolist()),
        slots=count_slots(sequences),
        shares=np.bincount(spent.ravel(), minlength=SLOTS + 1),
        all_days=counts.sum(axis=0),
        valid_days=counts[valid].sum(axis=0),
        lists=((locations, sequences),),
        counts=Counter(
            residents=len(days),
            valid=int(valid.sum()),
            repaired=sum(1 for day in days if day["repairs"]),
            warned=sum(1 for day in days if day["warnings"]),
        ),
        modes=Counter(text(day["mode"]) for day in days),
        warnings=Counter(_kind(warning) for day in days for warning in day["warnings"]),
    )


def _of_residents(counts: Rows, ends: NDArray[np.int64]) -> Rows | Whole:
    """Return the counts of residents of those of their days (days x bins); `ends` numbers the last
    day of each on."""
    first = ends[-1] - len(counts)
    starts = np.concatenate([[0], ends[:-1] - first])
    return (
        counts if len(starts) == len(counts) else np.add.reduceat(counts.astype(np.int64), starts)
    )


def _kind(warning: str) -> str:
    """Return a warning without its numbers, so that those of many residents are few."""
    return re.sub(r"\d+(\.\d+)?", "#", warning)


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


def side_by_side(rows: Rows) -> Rows:
    """Return the counts by bin of `Tally.rows`: residents x bins of all metrics."""
    return np.hstack([_by_bin(metric, rows) for metric in METRICS])
