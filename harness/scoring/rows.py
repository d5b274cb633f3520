"""What users add to figures: a row each, by the two kinds of scoring (`harness.benchmark.Scoring`).

Of means a record's row has its values, NaN if undefined; what is added up are these, followed by 1
or 0 for defined or undefined. Of other figures a row is what is added up. A user's row is the mean
over its repeats.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.benchmark import Benchmark, metrics_of
from harness.benchmarks.records import ODD_SHAPE
from harness.benchmarks.user_code import guarded
from harness.errors import BenchmarkError
from harness.model import Record
from harness.scoring.bootstrap import Array


def raw_rows(
    benchmark: Benchmark,
    records: Sequence[Record],
    live: bool = False,
) -> tuple[Array, Any]:
    """Return a row for each record, and the benchmark's tally of them; `live`: the part that live
    figures need.

    Raise `BenchmarkError` for another shape, or for a number that is not finite.
    """
    scoring = benchmark.scoring
    if not records:
        return np.zeros((0, _columns(benchmark))), None

    # The code that ships is right: an error in it is about an odd record.
    through = () if benchmark.origin else ODD_SHAPE
    with guarded(benchmark, "statistics", *through):
        tallied = scoring.running if live else scoring.tallied
        numbers, tally = tallied([benchmark.records.completed(record.data) for record in records])
        if numbers is None:
            names = [metric.name for metric in benchmark.metrics]
            numbers = [[record.data["metrics"][name] for name in names] for record in records]

        rows = np.asarray(numbers, dtype=np.float64)

    is_odd = np.isinf(rows) if scoring.is_mean else ~np.isfinite(rows)
    if rows.ndim != 2 or len(rows) != len(records) or is_odd.any():
        raise BenchmarkError(
            f"benchmark {benchmark.name}, statistics: expected a row of finite numbers for each of "
            f"{len(records)} users, got the shape {rows.shape}"
        )

    return rows, tally


def _columns(benchmark: Benchmark) -> int:
    """Return the columns of rows, where the benchmark's own code need not work without users."""
    with suppress(Exception):
        rows, _ = benchmark.scoring.tallied([])
        return int(np.asarray(rows, dtype=np.float64).shape[1])

    return len(benchmark.metrics) * (1 if benchmark.scoring.is_mean else 2)


def over_repeats(rows: Array, starts: Sequence[int]) -> Array:
    """Return the row of each user, from those of its repeats: the mean, of values that of the
    defined ones.

    `starts` is where the rows of each user begin.
    """
    if len(starts) == len(rows):
        return rows

    defined = ~np.isnan(rows)
    counts = np.add.reduceat(defined.astype(np.float64), starts)
    sums = np.add.reduceat(np.where(defined, rows, 0.0), starts)
    means: Array = np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)

    return means


def expanded(benchmark: Benchmark, rows: Array) -> Array:
    """Return rows as they are added up."""
    if not benchmark.scoring.is_mean:
        return rows

    defined = ~np.isnan(rows)
    return np.hstack([np.where(defined, rows, 0.0), defined])


def sums_of(benchmark: Benchmark, rows: Array) -> Array:
    """Return the sum of rows, as they are added up."""
    if not benchmark.scoring.is_mean:
        return np.asarray(rows.sum(axis=0))

    return np.hstack([np.nansum(rows, axis=0), (~np.isnan(rows)).sum(axis=0)])


def counted_mask(benchmark: Benchmark, rows: Array) -> NDArray[np.bool_]:
    """Return which users count in which figure, from their rows as they are added up.

    In a mean these are the users with a value: users x figures. In other figures all count (users x
    1): whether a figure of one user alone is defined says nothing.
    """
    if not benchmark.scoring.is_mean:
        return np.ones((len(rows), 1), dtype=np.bool_)

    defined: NDArray[np.bool_] = np.hsplit(rows, 2)[1] > 0
    return defined[:, : len(metrics_of(benchmark))]


def figures_of(benchmark: Benchmark, totals: Array) -> Array:
    """Return the figures of totals: R x K -> R x metrics, followed by the secondary ones if there
    are any.

    Raise `BenchmarkError` for another shape.
    """
    with np.errstate(invalid="ignore", divide="ignore"), guarded(benchmark, "figures"):
        figures = np.asarray(benchmark.scoring.figures(totals), dtype=np.float64)

    with_secondary = len(metrics_of(benchmark))
    if benchmark.scoring.is_mean and figures.ndim == 2:
        figures = figures[:, :with_secondary]  # what follows is for sections

    expected = len(totals), len(benchmark.metrics)
    if figures.shape not in (expected, (len(totals), with_secondary)):
        raise BenchmarkError(
            f"benchmark {benchmark.name}, figures: expected the shape {expected}, got"
            f" {figures.shape}"
        )

    figures[np.isinf(figures)] = np.nan

    return figures


def influences(
    benchmark: Benchmark,
    total: Array,
    answers: Array,
    repeats: NDArray[np.int_],
    users: int,
) -> Array:
    """Return what each answer adds to the mean over users of each figure: answers x figures.

    Of means this is the answer's row. Of other figures it is linear: what the figure loses without
    the answer, times the number of answers (the jackknife's influence values: Efron 1982, chapter
    6; docs/statistics.md, "Repeats"). `total` is that of all `users`; `repeats` is how many answers
    each of these users has.
    """
    if benchmark.scoring.is_mean:
        return answers

    numbers = np.repeat(repeats, repeats)[:, None]
    without = figures_of(benchmark, total - answers / numbers)
    losses: Array = (figures_of(benchmark, total) - without) * numbers * users

    return losses
