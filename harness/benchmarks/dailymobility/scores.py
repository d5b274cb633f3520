"""Compute what residents of DailyMobility add to its scores: counts by bin, and a tally. Source:
docs/design.md, section 9.

Divergences are of whole distributions, so a tally holds what decides those exactly: sums for each
distribution, and for each resident the radius (asbench's bins depend on minimum and maximum) and
nine bytes of bins and counts (for the jackknife). That is 17 bytes a resident, and no figure is an
approximation however many there are. No figure depends on the order or grouping of residents. A
tally of few residents holds their four lists as well, to be written as a file.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.benchmarks.dailymobility.day import SLOTS
from harness.benchmarks.dailymobility.divergence import divergence
from harness.benchmarks.dailymobility.groundtruth import (
    NUMBERS,
    GroundTruth,
    count_slots,
)
from harness.benchmarks.dailymobility.protocols import (
    LOCATIONS,
    METRICS,
    PROPORTIONS,
    RADIUS,
    SEQUENCES,
    SIZES,
    Integers,
    Numbers,
    Outcome,
    Sample,
    Support,
    all_protocols,
    figures,
)
from harness.benchmarks.dailymobility.spread import (
    FIGURES,
    MIN_USERS,
    MarkedInterval,
    SampleSide,
    mixed,
    spread_of_both,
)
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


class DivergenceEstimate(NamedTuple):
    """A figure from 0 to 1 with its 95 % interval, None where there are too few residents or all
    are alike.

    `interval` is about other residents in the run, `with_truth` about other residents in the ground
    truth as well. `corrected` is the mean of the residents' pseudo-values, which is the figure
    without its bias, and that one's interval; None for fewer than `MIN_USERS`. `bias` is the
    difference; None for fewer than `FEWEST_AT_ALL`.
    """

    value: float
    interval: MarkedInterval | None
    with_truth: MarkedInterval | None
    corrected: tuple[float, MarkedInterval | None] | None
    bias: float | None = None


@dataclass(frozen=True, eq=False)
class DayTally:
    """Scores of some residents against the ground truth.

    With repeats each is a day of its own, and "residents" are days; `repeats` has how many each
    real one has. `radii` and `rows` are in parts, as shards came; a row holds a resident's bin of
    the radius, bin of the locations, and number of slots with each intention. `locations` counts
    residents by their number of locations, `slots` by slot and intention (48 x 7), `shares`
    proportions by the number of slots (0 to 48) that they are of. `all_days` and `valid_days` are
    counts by bin of the aligned protocol, all metrics side by side. `lists` has the locations and
    sequences of each part's residents, None once they are dropped. `counts` are of residents.
    """

    # Every field but `truth` and `lists` is added up by `+`.
    truth: GroundTruth
    radii: tuple[Array, ...]
    rows: tuple[Rows, ...]
    repeats: tuple[NDArray[np.int64], ...]
    locations: Counter[int]
    slots: Integers
    shares: Integers
    all_days: Array
    valid_days: Array
    lists: tuple[tuple[Integers, Rows], ...] | None
    counts: Counter[str]
    modes: Counter[str]
    warnings: Counter[str]

    def __add__(self, tally: DayTally) -> DayTally:
        """Return the tally of both; associative, and which comes first makes no difference to any
        figure."""
        sums = {}
        for field in fields(self):
            if field.name not in ("truth", "lists"):
                sums[field.name] = getattr(self, field.name) + getattr(tally, field.name)

        lists = None
        if sums["counts"]["residents"] <= LISTS_LIMIT:
            lists = self.lists and tally.lists and self.lists + tally.lists

        return DayTally(truth=self.truth, lists=lists, **sums)

    def condensed(self) -> DayTally:
        """Return the same sums without lists and what intervals need."""
        return replace(self, radii=(), rows=(), repeats=(), lists=None)

    @cached_property
    def all_radii(self) -> Array:
        return np.concatenate(self.radii)

    def columns(
        self,
    ) -> dict[str, NDArray[np.float64 | np.int64 | np.uint8]] | None:
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
            RADIUS: Numbers.count(self.all_radii),
            LOCATIONS: Numbers(np.array(numbers, dtype=np.float64), counts),
            SEQUENCES: Numbers.tallied(NUMBERS, self.slots.sum(axis=0)),
            PROPORTIONS: Numbers.tallied(SHARES, self.shares),
        }

    @cached_property
    def per_slot(self) -> Array:
        """Return the divergence in bits of the intentions at each slot."""
        return divergence(self.truth.slots, self.slots)

    @cached_property
    def protocols(self) -> dict[str, Outcome]:
        return all_protocols(self.truth.sample, self.sample)

    @cached_property
    def estimates(self) -> dict[str, DivergenceEstimate]:
        """Return the aligned protocol's final score, by `FINAL`, and its divergences by metric
        (docs/statistics.md)."""
        expected = self.truth.totals
        totals = self.all_days.astype(np.int64)
        values = figures(expected, self.all_days[None])[0]
        estimates = {}
        for name, value in zip(FIGURES, values.tolist(), strict=True):
            estimates[name] = DivergenceEstimate(value, None, None, None)

        users = sum(map(len, self.repeats))
        # The jackknife leaves one out on each side.
        if users < 2 or self.truth.residents < 2:
            return estimates

        run = SampleSide.from_counts(self._chunks(), totals, expected, values, users)
        truth = SampleSide.from_counts([self.truth.counts], expected, totals, values)
        spread = run.spread
        means = run.parts.mean(axis=0)
        intervals = spread.intervals(values, users)
        wider = spread_of_both(run, truth, mixed(expected, totals)).intervals(values, users)
        # The corrected figure has no noise of second order, which is its bias.
        corrected = replace(spread, noise=0 * spread.noise).intervals(means, users)
        for name, mean in zip(FIGURES, means.clip(0.0, 1.0).tolist(), strict=True):
            value = estimates[name].value
            estimates[name] = DivergenceEstimate(
                value,
                intervals[name],
                wider[name],
                corrected=(mean, corrected[name]) if users >= MIN_USERS else None,
                bias=value - mean if users >= FEWEST_AT_ALL else None,
            )

        return estimates

    def _chunks(self) -> Iterator[Rows | Integers]:
        """Yield counts by bin of some residents at once, those of all their days together. Without
        repeats they are sorted, so that their order changes no digit."""
        rows = np.concatenate(self.rows)
        ends = np.cumsum(np.concatenate(self.repeats))
        if len(ends) == len(rows):
            rows = rows[np.lexsort(rows.T)]

        row_chunks = np.split(rows, ends[CHUNK - 1 :: CHUNK])
        end_chunks = np.split(ends, range(CHUNK, len(ends), CHUNK))
        # `np.split` leaves an empty chunk behind the last row.
        for chunk, chunk_ends in zip(row_chunks, end_chunks, strict=False):
            yield _resident_counts(side_by_side(chunk), chunk_ends)


def tallied(days: Sequence[JSON], truth: GroundTruth) -> tuple[Array, DayTally]:
    """Return the counts by bin of the days of up to 256 residents (days x bins of all metrics), and
    their tally.

    A resident's proportions are those of the sequence.
    """
    radii = np.array(_values(days, "gyration_radius_m"), dtype=np.float64)
    locations = np.array(_values(days, "daily_location_number"), dtype=np.int64)
    sequences = np.array(_values(days, "intentions"), dtype=np.uint8).reshape(-1, SLOTS)
    valid = np.array([day["invalid"] is None for day in days], dtype=np.bool_)
    slots = np.stack([(sequences == number).sum(axis=1) for number in NUMBERS], axis=1)
    radius_bins = truth.support.place(RADIUS, radii)
    location_bins = truth.support.place(LOCATIONS, locations)
    # Bins and numbers of slots fit into a byte.
    rows = np.column_stack([radius_bins, location_bins, slots]).astype(np.uint8)
    bin_counts = side_by_side(rows).astype(np.float64)
    counts = Counter(residents=len(days), valid=int(valid.sum()))
    warnings = Counter[str]()
    for day in days:
        counts["repaired"] += bool(day["repairs"])
        counts["warned"] += bool(day["warnings"])
        warnings.update(map(_kind, day["warnings"]))

    tally = DayTally(
        truth=truth,
        radii=(radii,),
        rows=(rows,),
        repeats=(np.diff([*user_starts(days), len(days)]),),
        locations=Counter(locations.tolist()),
        slots=count_slots(sequences),
        shares=np.bincount(slots.ravel(), minlength=SLOTS + 1),
        all_days=bin_counts.sum(axis=0),
        valid_days=bin_counts[valid].sum(axis=0),
        lists=((locations, sequences),),
        counts=counts,
        modes=Counter(map(text, _values(days, "mode"))),
        warnings=warnings,
    )
    return bin_counts, tally


def _values(days: Sequence[JSON], name: str) -> list[Any]:
    return [day[name] for day in days]


def _resident_counts(counts: Rows, ends: NDArray[np.int64]) -> Rows | Integers:
    """Return counts of residents from those of their days (days x bins); `ends` has each resident's
    last day, counted from 1 over all chunks."""
    if len(ends) == len(counts):
        return counts
    first = ends[-1] - len(counts)
    starts = np.concatenate([[0], ends[:-1] - first])
    return np.add.reduceat(counts.astype(np.int64), starts)


def _kind(warning: str) -> str:
    """Return a warning without its numbers, so that those of many residents are few."""
    return re.sub(r"\d+(\.\d+)?", "#", warning)


def _by_bin(metric: str, rows: Rows) -> Rows:
    """Return each resident's counts by bin of the aligned protocol: residents x bins."""
    size = SIZES[metric]
    if metric in (RADIUS, LOCATIONS):  # the first two columns
        return np.eye(size, dtype=np.uint8)[rows[:, METRICS.index(metric)]]

    slots = rows[:, 2:]
    if metric == SEQUENCES:
        return slots

    cells = SHARE_BINS[slots] + size * np.arange(len(rows))[:, None]
    # A histogram for each row by one call: each row has cells of its own.
    counts = np.bincount(cells.ravel(), minlength=size * len(rows))
    return counts.astype(np.uint8).reshape(-1, size)


def side_by_side(rows: Rows) -> Rows:
    """Return the counts by bin of `DayTally.rows`: residents x bins of all metrics."""
    return np.hstack([_by_bin(metric, rows) for metric in METRICS])
