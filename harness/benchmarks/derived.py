"""What the harness derives of a benchmark that declares its metrics: scores that merge, intervals, the JSON report.

What a user adds to a figure is a row of sums and counts (`Benchmark.statistics`), so scores of any users merge by `+`,
and the figures of every resample come of one product: weights x rows. Intervals are the percentile bootstrap over
users (`scoring/bootstrap.py`; docs/statistics.md). Values are in the metric's own unit, undefined ones null.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.benchmark import VALID, Benchmark, Metric
from harness.benchmarks import overview, registry
from harness.benchmarks import settings as own_settings
from harness.benchmarks.records import ODD_SHAPE, made_of, text
from harness.benchmarks.spent import USAGE, counted
from harness.benchmarks.user_code import guarded
from harness.errors import BenchmarkError
from harness.model import JSON, Record, Report, RunFacts
from harness.scoring.bootstrap import CELLS, RESAMPLES, Array, interval, times_drawn

FORMAT = 1
SEED = 20_250
ROWS_LIMIT = 50_000
"""Users up to whom every row is kept; beyond, intervals resample blocks of users."""
BINS = 20
"""Of a metric's distribution over users, where both of its bounds are known."""


@dataclass(frozen=True, slots=True, eq=False)
class Totals:
    """Scores of some users. `sums` has a row of totals for each block of users (blocks x K), `rows` a row for each
    user (users x K), None once dropped. `defined` counts users by metric with a value, `spread` users by metric and
    bin of their value."""

    users: int
    sums: Array
    rows: Array | None
    defined: Counter[str]
    spread: Counter[tuple[str, int]]
    outcomes: Counter[str]
    repairs: Counter[str]
    usage: Counter[str]

    @property
    def total(self) -> Array:
        """1 x K."""
        total: Array = self.sums.sum(axis=0, keepdims=True)
        return total


@dataclass(frozen=True, slots=True)
class Scored:
    """What `Benchmark.sections` is given: `figures` by metric, the totals of `statistics` (K), and `rows` of every
    user (users x K) in the order of the tasks file, None above 50,000 users."""

    subset: str
    users: int
    figures: Mapping[str, float | None]
    totals: Array
    rows: Array | None


@dataclass(frozen=True, slots=True)
class AdditiveScorer:
    """The scorer of one subset, of nothing but `statistics` and `figures`."""

    benchmark: Benchmark
    subset: str
    rows_limit: int = ROWS_LIMIT

    def score(self, shard: Sequence[Record]) -> Totals:
        return made_of(self._scored, shard)

    def _scored(self, shard: Sequence[Record]) -> Totals:
        benchmark, usage = self.benchmark, Counter[str]()
        rows = rows_of(benchmark, shard)
        for record in shard:
            usage.update(counted(record.data))
        values = [record.data.get("metrics") for record in shard]
        with guarded(benchmark, "outcomes and repairs", *ODD_SHAPE):
            outcomes = Counter(text(one) for record in shard for one in benchmark.outcomes(record.data))
            repairs = Counter(text(one) for record in shard for one in benchmark.repairs(record.data))
        return Totals(
            users=len(shard),
            sums=rows.sum(axis=0, keepdims=True),
            rows=rows,
            defined=_defined(benchmark, values),
            spread=_spread(benchmark, values),
            outcomes=outcomes,
            repairs=repairs,
            usage=usage,
        )

    def merge(self, a: Totals, b: Totals) -> Totals:
        users = a.users + b.users
        kept = a.rows is not None and b.rows is not None and users <= self.rows_limit
        return Totals(
            users=users,
            sums=np.vstack([a.sums, b.sums]),
            rows=np.vstack([a.rows, b.rows]) if kept and a.rows is not None and b.rows is not None else None,
            defined=a.defined + b.defined,
            spread=a.spread + b.spread,
            outcomes=a.outcomes + b.outcomes,
            repairs=a.repairs + b.repairs,
            usage=a.usage + b.usage,
        )

    def condense(self, merged: Totals) -> Totals:
        return replace(merged, sums=merged.total, rows=None)

    def running(self, merged: Totals) -> Mapping[str, float | None]:
        figures = self._figures(merged)
        return {name: figures[name] for name in self.benchmark.main()}

    def _figures(self, merged: Totals) -> dict[str, float | None]:
        if not merged.users:  # of own `statistics` not even the number of columns is known
            return {metric.name: None for metric in self.benchmark.metrics}
        found = figures_of(self.benchmark, merged.total)[0]
        pairs = zip(self.benchmark.metrics, found.tolist(), strict=True)
        return {metric.name: None if np.isnan(value) else value for metric, value in pairs}

    def summarise(self, merged: Totals, run: RunFacts) -> Report:
        data = self._data(merged, run)
        return Report(data, tuple(overview.report_blocks(data)), overview.headline(data))

    def _data(self, merged: Totals, run: RunFacts) -> JSON:
        benchmark, figures = self.benchmark, self._figures(merged)
        draws, method = self._resampled(merged)
        names = [metric.name for metric in benchmark.metrics]
        valid = merged.outcomes[VALID]
        data: JSON = {
            "format": FORMAT,
            "benchmark": benchmark.name,
            **declared(type(benchmark)),
            "prompt_version": benchmark.version,
            "prompt": run.prompt,
            "subset": run.subset,
            "model": run.model,
            "name": run.name,
            "coverage": _coverage(merged.users, run),
            "metrics": {
                name: {
                    "value": figures[name],
                    "ci95": _pair(interval(draws[:, place], self._units(merged, place))),
                    "users": merged.defined[name],
                }
                for place, name in enumerate(names)
            },
            "distribution": {
                metric.name: [merged.spread[metric.name, place] for place in range(BINS)]
                for metric in benchmark.metrics
                if _is_bounded(metric) and has_values(benchmark)
            },
            "sections": self._sections(merged, figures),
            "diagnostics": {
                "answers": merged.outcomes.total(),
                "valid_answers": valid,
                "invalid": dict(sorted((+merged.outcomes - Counter({VALID: valid})).items())),
                "repaired": dict(sorted(merged.repairs.items())),
            },
            "schedule": run.schedule,
            "run": run.run,
            "usage": {name: merged.usage[name] for name in USAGE},
            "bootstrap": {"method": method, "resamples": RESAMPLES, "seed": SEED},
            "notes": list(run.notes),
        }
        if not data["coverage"]["complete"] and is_mean(benchmark):
            missing = max(0, run.expected_users - merged.users)
            data["bounds"] = {
                metric.name: _bounds(metric, figures[metric.name], merged.defined[metric.name], missing)
                for metric in benchmark.metrics
            }
        return data

    def _sections(self, merged: Totals, figures: Mapping[str, float | None]) -> list[JSON]:
        if not merged.users:
            return []
        scored = Scored(self.subset, merged.users, figures, merged.total[0], merged.rows)
        with guarded(self.benchmark, "sections"):
            return [overview.saved(block) for block in self.benchmark.sections(scored)]

    def _units(self, merged: Totals, place: int) -> int:
        """How many of what is resampled (users, or blocks of them) have a metric."""
        if merged.rows is not None:
            return merged.defined[self.benchmark.metrics[place].name]
        if not is_mean(self.benchmark):
            return len(merged.sums)
        return int((merged.sums[:, len(self.benchmark.metrics) + place] > 0).sum())

    def _resampled(self, merged: Totals) -> tuple[Array, str]:
        """The figures of resamples of users, of blocks of them where rows are dropped: resamples x metrics."""
        rng, units = np.random.default_rng(SEED), merged.sums if merged.rows is None else merged.rows

        def poisson(size: int) -> Array:
            return rng.poisson(1.0, size=(size, len(units))).astype(np.float64)

        def drawn(size: int) -> Array:
            return times_drawn(len(units), size, rng)

        if merged.rows is None:
            return _resampled(self.benchmark, units, poisson), "poisson_by_block"
        return _resampled(self.benchmark, units, drawn), "plain"


def scorer(benchmark: Benchmark, subset: str) -> Any:
    """Return the scorer of a benchmark: its own, else the derived one."""
    return benchmark.scorer(subset) or AdditiveScorer(benchmark, subset)


def declared(benchmark: type[Benchmark]) -> JSON:
    """Return what a report keeps of its benchmark, so that tables and comparisons of reports need no code of it."""
    return {
        "metric_units": {metric.name: metric.data for metric in (*benchmark.metrics, *benchmark.secondary)},
        "headline": list(benchmark.main()),
        "subsets": list(benchmark.subsets),
        "user": benchmark.user,
        "invalid_as": benchmark.invalid_as,
        "defaults": own_settings.defaults(benchmark.Settings),
    }


def upgraded(data: JSON) -> JSON:
    """Return a report of a benchmark that ships as this version makes it: those before it declared nothing."""
    if "metric_units" in data or not registry.is_shipped(str(data["benchmark"])):
        return data
    cls = registry.find(data["benchmark"])
    return {**declared(cls), **data, **cls.upgraded(data)}


def is_mean(benchmark: Benchmark) -> bool:
    """Whether a figure is the mean of its users' values, so that it has bounds while users are missing."""
    return has_values(benchmark) and type(benchmark).figures is Benchmark.figures


def has_values(benchmark: Benchmark) -> bool:
    """Whether a user's values are those of the metrics, so that they have a distribution and bounds."""
    return type(benchmark).statistics is Benchmark.statistics


def rows_of(benchmark: Benchmark, records: Sequence[Record]) -> Array:
    """What each user adds: users x K. Raise `BenchmarkError` for another shape, or what is no finite number."""
    if not records:
        return _nobody(benchmark)
    through = () if benchmark.origin else ODD_SHAPE  # what ships is right, and the record is odd
    with guarded(benchmark, "statistics", *through):
        found = benchmark.statistics([record.data for record in records])
        rows = np.asarray(found, dtype=np.float64)
    if rows.ndim != 2 or len(rows) != len(records) or not np.isfinite(rows).all():
        raise BenchmarkError(
            f"benchmark {benchmark.name}, statistics: expected a row of finite numbers for each of {len(records)} "
            f"users, got the shape {rows.shape}"
        )
    return rows


def _nobody(benchmark: Benchmark) -> Array:
    """The rows of no user, with as many columns as `statistics` shows, which need not work without users."""
    columns = 2 * len(benchmark.metrics)
    with suppress(Exception):
        _, columns = np.asarray(benchmark.statistics([]), dtype=np.float64).shape
    return np.zeros((0, columns))


def figures_of(benchmark: Benchmark, totals: Array) -> Array:
    """The figures of totals: R x K -> R x metrics."""
    with np.errstate(invalid="ignore", divide="ignore"), guarded(benchmark, "figures"):
        found = np.asarray(benchmark.figures(totals), dtype=np.float64)
    if found.shape != (len(totals), len(benchmark.metrics)):
        raise BenchmarkError(
            f"benchmark {benchmark.name}, figures: expected the shape {(len(totals), len(benchmark.metrics))}, got "
            f"{found.shape}"
        )
    found[np.isinf(found)] = np.nan
    return found


def _resampled(benchmark: Benchmark, rows: Array, weights: Callable[[int], Array]) -> Array:
    found = np.full((RESAMPLES, len(benchmark.metrics)), np.nan)
    chunk = max(1, CELLS // max(1, len(rows)))
    for start in range(0, RESAMPLES if len(rows) else 0, chunk):
        size = min(chunk, RESAMPLES - start)
        found[start : start + size] = figures_of(benchmark, weights(size) @ rows)
    return found


def _defined(benchmark: Benchmark, values: Sequence[Any]) -> Counter[str]:
    if not has_values(benchmark):
        return Counter({metric.name: len(values) for metric in benchmark.metrics})
    return Counter(
        {metric.name: sum(1 for one in values if one[metric.name] is not None) for metric in benchmark.metrics}
    )


def _spread(benchmark: Benchmark, values: Sequence[Any]) -> Counter[tuple[str, int]]:
    found = Counter[tuple[str, int]]()
    for metric in benchmark.metrics if has_values(benchmark) else ():
        low, high = metric.bounds or (None, None)
        if low is not None and high is not None and high > low:
            there = [float(one[metric.name]) for one in values if one[metric.name] is not None]
            found.update((metric.name, min(BINS - 1, int((value - low) / (high - low) * BINS))) for value in there)
    return found


def _is_bounded(metric: Metric) -> bool:
    low, high = metric.bounds or (None, None)
    return low is not None and high is not None and high > low


def _coverage(users: int, run: RunFacts) -> JSON:
    return {
        "expected_users": run.expected_users,
        "scored_users": users,
        "failed_users": run.failed_users,
        "complete": users == run.expected_users,
    }


def _pair(found: tuple[float, float] | None) -> list[float] | None:
    return list(found) if found else None


def _bounds(metric: Metric, value: float | None, users: int, missing: int) -> list[float | None]:
    """Lowest and highest mean once `missing` more users have a value; None where the metric has no such bound."""
    if not users + missing:
        return [None, None]
    total = (value or 0.0) * users
    return [
        None if bound is None else (total + missing * bound) / (users + missing)
        for bound in (metric.bounds or (None, None))
    ]


# Comparison


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures that `compare` compares (`scoring.paired.Figures`), of any benchmark."""

    benchmark: Benchmark

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(metric.name for metric in self.benchmark.metrics)

    @property
    def main(self) -> tuple[str, ...]:
        """The headline metrics that are compared."""
        return tuple(name for name in self.benchmark.main() if name in self.names)

    @property
    def lower(self) -> frozenset[str]:
        return frozenset(metric.name for metric in self.benchmark.metrics if metric.lower_is_better)

    @property
    def metrics(self) -> Mapping[str, Metric]:
        return {metric.name: metric for metric in self.benchmark.metrics}

    def uses(self, columns: int) -> NDArray[np.bool_]:
        """Which of the K statistics each figure is made of (metrics x K): those that move it when they grow."""
        rng = np.random.default_rng(SEED)
        used = np.zeros((len(self.names), columns), dtype=np.bool_)
        for _ in range(PROBES):
            base = rng.uniform(1.0, 9.0, size=(1, columns))
            moved = figures_of(self.benchmark, base + np.eye(columns)) - figures_of(self.benchmark, base)
            used |= (np.abs(np.nan_to_num(moved, nan=1.0)) > 0).T
        return used

    def contributions(self, records: Sequence[Record]) -> Array:
        return made_of(lambda shard: rows_of(self.benchmark, shard), records)

    def outcomes(self, records: Sequence[Record]) -> list[Counter[str]]:
        with guarded(self.benchmark, "outcomes", *ODD_SHAPE):
            return [Counter(text(one) for one in self.benchmark.outcomes(record.data)) for record in records]

    def values(self, totals: Array) -> Array:
        return figures_of(self.benchmark, totals)


PROBES = 2
"""Totals at which it is looked which statistics move a figure; at one alone two effects could cancel out."""
