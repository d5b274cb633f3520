"""The figures that `compare` compares, of any benchmark: those that rank runs, and the metrics as
given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.benchmark import Benchmark, Metric, headline_of, metrics_of
from harness.benchmarks.records import ODD_SHAPE, made_of, text
from harness.benchmarks.user_code import guarded
from harness.errors import BenchmarkError
from harness.model import Record
from harness.scoring.bootstrap import Array
from harness.scoring.rows import expanded, figures_of, over_repeats, raw_rows

SEED = 20_250
PROBES = 2
"""Totals at which it is looked which sums move a figure; at one alone two effects could cancel
out."""


@dataclass(frozen=True, slots=True)
class Figures:
    """`primary` is the metric that the runs were begun for."""

    benchmark: Benchmark
    primary: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.metrics)

    @property
    def metrics(self) -> Mapping[str, Metric]:
        return {metric.name: metric for metric in self.benchmark.metrics}

    @property
    def main(self) -> tuple[str, ...]:
        """The primary metric; else the headline metrics that are compared, the first two where all
        are secondary."""
        if self.primary in self.names:
            return (self.primary,)

        headline = tuple(filter(self.names.__contains__, headline_of(self.benchmark)))
        return headline or self.names[:2]

    def uses(self, columns: int) -> NDArray[np.bool_]:
        """Return which of the K sums each figure is made of (metrics x K): those that move it when
        they grow."""
        rng = np.random.default_rng(SEED)
        used = np.zeros((len(self.names), columns), dtype=np.bool_)
        for _ in range(PROBES):
            base = rng.uniform(1.0, 9.0, size=(1, columns))
            moved = self.values(base + np.eye(columns)) - self.values(base)
            used |= (moved != 0).T  # undefined counts as moved

        return used

    def raw(self, records: Sequence[Record]) -> Array:
        """Return a row for each record, of which `contributions` are made.

        Of means it has the columns of the metrics, then those of the figures that rank them, if
        others.
        """
        return made_of(self._raw, records)

    def _raw(self, records: Sequence[Record]) -> Array:
        rows, _ = raw_rows(self.benchmark, records)
        if not self.benchmark.scoring.is_mean:
            return rows

        metrics = list(range(len(self.names)))
        ranking = self._ranking(rows.shape[1]) if records else metrics
        columns = metrics if metrics == ranking else [*metrics, *ranking]

        return rows[:, columns]

    def contributions(self, rows: Array, starts: Sequence[int]) -> tuple[Array, Array]:
        """Return what users add to the figures that rank, and to the metrics as given; one array
        where they agree.

        `rows` are those of their repeats, each user's from `starts` on.
        """
        rows = over_repeats(rows, starts)
        if not self.benchmark.scoring.is_mean:
            return rows, rows

        count = len(self.names)
        published = expanded(self.benchmark, rows[:, :count])
        # No figure is ranked by another: both are the same array, not a copy.
        if rows.shape[1] == count:
            return published, published

        return expanded(self.benchmark, rows[:, count:]), published

    def outcomes(self, records: Sequence[Record]) -> list[Counter[str]]:
        read = self.benchmark.records.outcomes
        with guarded(self.benchmark, "outcomes", *ODD_SHAPE):
            return [Counter(map(text, read(record.data))) for record in records]

    def values(self, totals: Array) -> Array:
        """Return the figures that rank, of such totals."""
        figures = figures_of(self.benchmark, totals)
        if self.benchmark.scoring.is_mean:  # rows have the columns of these
            return figures[:, : len(self.names)]

        return figures[:, self._ranking(figures.shape[1])]

    def published(self, totals: Array) -> Array:
        """Return the metrics as given, of such totals."""
        return figures_of(self.benchmark, totals)[:, : len(self.names)]

    def on_both(self, a: Array, b: Array) -> tuple[Array, Array]:
        """Return the contributions of the same users without values that only one side defines."""
        if not self.benchmark.scoring.is_mean:
            return a, b

        defined = np.tile(np.hsplit(a, 2)[1] * np.hsplit(b, 2)[1], 2)
        return a * defined, b * defined

    def _ranking(self, columns: int) -> list[int]:
        """Return the places of the figures that rank. Raise `BenchmarkError` if one is beyond the
        columns."""
        names = list(metrics_of(self.benchmark))
        places = [names.index(metric.ranking) for metric in self.benchmark.metrics]
        if max(places) >= columns:
            raise BenchmarkError(
                f"benchmark {self.benchmark.name}: a metric is ranked by {names[max(places)]}, for"
                " which `values` or `figures` has no column"
            )

        return places
