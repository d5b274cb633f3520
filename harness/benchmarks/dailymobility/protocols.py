"""The three protocols by which days are compared with the ground truth's. Source: docs/design.md,
section 9.

Each compares four distributions. What is compared is a multiset of numbers for each (`Numbers`), so
a million residents cost no more than their distinct values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from harness.benchmarks.dailymobility.day import INTENTIONS
from harness.benchmarks.dailymobility.divergence import distance, divergence
from harness.model import JSON
from harness.scoring.bootstrap import Array

RADIUS, LOCATIONS, SEQUENCES, PROPORTIONS = METRICS = (
    "gyration_radius",
    "daily_location_numbers",
    "intention_sequences",
    "intention_proportions",
)
BINS = 50
MAX_LOCATIONS = 10
SMOOTHING = 1e-10

SIZES = {
    RADIUS: BINS + 1,
    LOCATIONS: MAX_LOCATIONS + 2,
    SEQUENCES: len(INTENTIONS),
    PROPORTIONS: BINS,
}
"""Bins of the aligned protocol by metric: radius with an overflow, locations with an underflow and
an overflow."""
ENDS = np.cumsum([SIZES[metric] for metric in METRICS])[:-1]
"""Where the bins of each metric end, where those of all metrics are next to each other: 120."""

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Numbers:
    """A multiset: each of `values` occurs `counts` times, at least once."""

    values: Array
    counts: Integers

    @classmethod
    def count(cls, values: NDArray[np.floating | np.integer]) -> Numbers:
        distinct, counts = np.unique(values.ravel(), return_counts=True)
        return cls(distinct.astype(np.float64), counts.astype(np.int64))

    @classmethod
    def tallied(cls, values: NDArray[np.floating | np.integer], counts: Integers) -> Numbers:
        """Return the same from a tally that may have zeros."""
        occurs = counts > 0
        return cls(values[occurs].astype(np.float64), counts[occurs])


Sample = Mapping[str, Numbers]
"""Metric -> what residents have of it, pooled."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A protocol's result: divergence by metric, None where it is undefined; `reasons` has why."""

    divergences: Mapping[str, float | None]
    reasons: Mapping[str, str]

    @property
    def final(self) -> float | None:
        """Return the mean of (1 - JSD) x 100; None once any divergence is undefined."""
        total = 0.0
        for value in self.divergences.values():
            if value is None:
                return None
            total += 1 - value
        return 100 * total / len(METRICS)

    def as_json(self) -> JSON:
        """Return the result as in reports; `reason` only where something is undefined."""
        data: JSON = {f"jsd_{metric}": self.divergences[metric] for metric in METRICS}
        data["final_score"] = self.final
        if set(self.reasons.values()) == {NOBODY}:
            data["reason"] = NOBODY
        elif self.reasons:
            reasons = [f"{metric}: {reason}" for metric, reason in self.reasons.items()]
            data["reason"] = "; ".join(reasons)

        return data


@dataclass(frozen=True, slots=True)
class Protocol:
    """`about` is one sentence for reports; `compare` takes the ground truth first."""

    about: str
    compare: Callable[[Sample, Sample], Outcome]


# aligned


@dataclass(frozen=True, slots=True)
class Support:
    """The aligned protocol's bins, the same for both sides. `reach` is the ground truth's largest
    radius, metres."""

    reach: float

    @classmethod
    def from_truth(cls, truth: Sample) -> Support:
        return cls(float(truth[RADIUS].values.max()))

    def place(self, metric: str, values: NDArray[np.floating | np.integer]) -> NDArray[np.intp]:
        """Return the bin of each value."""
        if metric == RADIUS:
            inside = _equal_bins(values, self.reach)
            return np.where(values > self.reach, BINS, inside)

        if metric == LOCATIONS:
            return np.searchsorted(np.arange(MAX_LOCATIONS + 1) + 0.5, values, side="right")

        if metric == SEQUENCES:
            return values.astype(np.intp) - 1

        return _equal_bins(values, 1.0)

    def counts(self, sample: Sample) -> Integers:
        """Return the counts by bin, bins of all metrics next to each other."""
        all_counts = np.zeros(sum(SIZES.values()), dtype=np.int64)
        for metric, counts in by_metric(all_counts).items():
            np.add.at(
                counts,
                self.place(metric, sample[metric].values),
                sample[metric].counts,
            )

        return all_counts


def _equal_bins(values: NDArray[np.floating | np.integer], reach: float) -> NDArray[np.intp]:
    """Return which of 50 equal bins from 0 to `reach` has a value; the last holds its upper end."""
    # numpy.histogram's edges, so that a value on an edge falls into the same bin.
    edges = np.linspace(0.0, reach, BINS + 1)
    return np.clip(np.searchsorted(edges, values, side="right") - 1, 0, BINS - 1)


def by_metric(counts: Integers) -> dict[str, Integers]:
    """Return the histogram of each metric: views of the counts, not copies."""
    return dict(zip(METRICS, np.split(counts, ENDS), strict=True))


def aligned(truth: Sample, sample: Sample) -> Outcome:
    support = Support.from_truth(truth)
    return aligned_counts(support.counts(truth), support.counts(sample))


def aligned_counts(truth: Integers, sample: Integers) -> Outcome:
    """Return the aligned protocol on the counts by bin of both."""
    expected = by_metric(truth)
    results: dict[str, float | str] = {}
    for metric, counts in by_metric(sample).items():
        results[metric] = NOBODY
        if counts.any():
            results[metric] = float(divergence(expected[metric], counts))
    return _outcome(results)


def figures(truth: Integers, totals: Array) -> Array:
    """Return the score, from 0 to 1, then the divergences of the aligned protocol, of counts by bin
    (R x bins)."""
    expected = np.split(truth, ENDS)
    counts = np.split(totals, ENDS, axis=1)
    divergences = np.stack([*map(divergence, expected, counts)], axis=1)
    return with_score(divergences)


def with_score(divergences: Array) -> Array:
    """Return the score, from 0 to 1, and behind it the divergences: R x figures."""
    return np.column_stack([1 - divergences.mean(axis=1), divergences])


# asbench and agentsociety2


def _own_ranges(truth: Numbers, sample: Numbers) -> float | str:
    return _smoothed_distance(_density(truth, BINS), _density(sample, BINS))


def _range_of_truth(truth: Numbers, sample: Numbers) -> float | str:
    expected = _density(truth, BINS)
    if isinstance(expected, str):
        return expected
    return _smoothed_distance(expected, _density(sample, expected.edges))


def _by_metric(
    compare: Callable[[Numbers, Numbers], float | str],
    truth: Sample,
    sample: Sample,
) -> Outcome:
    return _outcome({metric: compare(truth[metric], sample[metric]) for metric in METRICS})


asbench = partial(_by_metric, _own_ranges)
agentsociety2 = partial(_by_metric, _range_of_truth)

NOBODY = "there is no resident"
OUTSIDE = "every value lies outside the ground truth's range"
NARROW = f"the values lie too close together, or too far apart, for {BINS} bins"


@dataclass(frozen=True, slots=True, eq=False)
class _Density:
    heights: Array
    edges: Array


def _density(numbers: Numbers, bins: int | Array) -> _Density | str:
    """Return a histogram of area 1, as numpy makes it (a constant gets bins over 1 around it); or
    why there is none."""
    if not len(numbers.values):
        return NOBODY

    try:
        with np.errstate(all="ignore"):
            counts, edges = np.histogram(numbers.values, bins=bins, weights=numbers.counts)
            heights = counts / np.diff(edges) / counts.sum()
    except ValueError:  # numpy: no finite bins fit between minimum and maximum
        return NARROW

    # numpy leaves values outside of given bins out.
    if not counts.any():
        return OUTSIDE

    if not np.isfinite(heights).all():
        return NARROW

    return _Density(heights, edges)


def _smoothed_distance(truth: _Density | str, sample: _Density | str) -> float | str:
    if isinstance(sample, str):
        return sample
    if isinstance(truth, str):
        return f"of the ground truth, {truth}"
    # asbench adds it, against divisions by zero.
    return float(distance(truth.heights + SMOOTHING, sample.heights + SMOOTHING))


def _outcome(results: Mapping[str, float | str]) -> Outcome:
    """Return the outcome: numbers are divergences, text says why there is none."""
    divergences: dict[str, float | None] = {}
    reasons = {}
    for metric, value in results.items():
        divergences[metric] = None
        if isinstance(value, str):
            reasons[metric] = value
        else:
            divergences[metric] = value

    return Outcome(divergences, reasons)


PROTOCOLS: Mapping[str, Protocol] = {
    "aligned": Protocol(
        "the benchmark's formula as written, divergences in bits over bins that both sides share",
        aligned,
    ),
    "asbench": Protocol(
        "as asbench 0.1.4 computes it: each side in 50 bins over its own range, the root of the"
        " divergence in nats",
        asbench,
    ),
    "agentsociety2": Protocol(
        "as agentsociety2 computes it: both sides in 50 bins over the ground truth's range, what"
        " lies outside left out, the root of the divergence in nats",
        agentsociety2,
    ),
}
HEADLINE = "aligned"

CAVEATS = (
    (
        "No protocol sees the order of a day: turning every day by 12 hours changes no score. The"
        " divergence per slot, of the intentions of all residents at the same half hour, averaged"
        " over the day, does see it."
    ),
    (
        "The ground truth's locations and proportions are means over days: its own intention"
        " sequences, with the proportions that they have and whole numbers of locations, score 98.9"
        " (aligned) against it where it is the published one. So no single day reaches 100, nor the"
        " ceiling, which draws those means."
    ),
    (
        "asbench is blind to shift and unit, since each side has its own range, and cannot fall"
        " below 16.7; agentsociety2 cannot either."
    ),
)


def all_protocols(truth: Sample, sample: Sample) -> dict[str, Outcome]:
    return {name: protocol.compare(truth, sample) for name, protocol in PROTOCOLS.items()}
