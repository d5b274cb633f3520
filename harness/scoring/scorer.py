"""Scores of any benchmark: what users add to figures merges by `+`; the figures of the sums, and the report.

What a user adds is a row of sums and counts (`Benchmark.scoring`), so scores of any users merge by `+`, and the
intervals come of each user's part in them (`scoring/intervals.py`; docs/statistics.md), if the benchmark has none of
its own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import msgspec
import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from harness.benchmark import VALID, Benchmark, Metric, headline_of, metrics_of
from harness.benchmarks.records import ODD_SHAPE, made_of, text, user_starts
from harness.benchmarks.usage import USAGE, counted
from harness.benchmarks.user_code import guarded
from harness.errors import BenchmarkError, in_brief
from harness.model import Record, RunFacts
from harness.scoring import reports
from harness.scoring.bootstrap import Array
from harness.scoring.components import Components, components
from harness.scoring.intervals import detectable, interval, moments, parts, with_mark
from harness.scoring.reports import Component, Repeats, Report, Scored, Value

Counts = NDArray[np.int64]

SEED = 20_250
ROWS_LIMIT = 50_000
"""Users up to whom every row is kept; beyond, the units of intervals are blocks of users."""
BINS = 20
"""Of a metric's distribution over users, where both of its bounds are known."""


class Summed(Protocol):
    def __add__(self, other: Self, /) -> Self: ...


@dataclass(frozen=True, slots=True, eq=False)
class Totals:
    """Scores of some users. `sums` has an array of K totals for each block of users. `rows` has the rows of each block,
    as `raw_rows` returns them; None once they are dropped. `defined` counts users by column with a value, `spread`
    users by metric and bin of their value. `tally` is the benchmark's own, None once it is dropped. `plays` counts
    records: users times their repeats. `answers` has, of blocks with repeats, the rows of all records and how many each
    user has; None once they are dropped. `played` are sums and counts of the metrics' values over records (2 x M)."""

    users: int
    sums: tuple[Array, ...]
    rows: tuple[Array, ...] | None
    defined: Counts
    spread: Counts
    tally: Summed | None
    outcomes: Counter[str]
    repairs: Counter[str]
    breaches: Counter[str]
    usage: Counter[str]
    plays: int
    answers: tuple[tuple[Array, Counts], ...] | None
    played: Array

    @property
    def total(self) -> Array:
        """1 x K."""
        total: Array = np.sum(self.sums, axis=0, keepdims=True)
        return total


@dataclass(frozen=True, slots=True)
class Scorer:
    """The scorer of one subset. Synchronous and pure: no I/O, no clock, no asyncio."""

    benchmark: Benchmark
    subset: str
    rows_limit: int = ROWS_LIMIT

    def score(self, shard: Sequence[Record]) -> Totals:
        """Return the scores of up to 256 users. Raise `BadInput` for a malformed record, with its user."""
        return self._within(made_of(self._scored, shard))

    def _scored(self, shard: Sequence[Record]) -> Totals:
        benchmark, usage = self.benchmark, Counter[str]()
        answers, tally = raw_rows(benchmark, shard)
        starts = user_starts([record.data for record in shard])
        rows = over_repeats(answers, starts)
        for record in shard:
            usage.update(counted(record.data))
        with guarded(benchmark, "outcomes and repairs", *ODD_SHAPE):
            outcomes = Counter(one for record in shard for one in benchmark.records.outcomes(record.data))
            repairs = Counter(one for record in shard for one in benchmark.records.repairs(record.data))
            for name in (*outcomes, *repairs):
                text(name)
        with guarded(benchmark, "breaches", *ODD_SHAPE):
            breaches = Counter(text(one) for record in shard for one in benchmark.scoring.breaches(record.data))
        of_values, defined = benchmark.scoring.has_values, (~np.isnan(rows)).sum(axis=0)
        sums = np.hstack([np.nansum(rows, axis=0), defined]) if of_values else rows.sum(axis=0)
        own, of_users = answers[:, : len(benchmark.metrics)], np.diff([*starts, len(shard)])
        return Totals(
            users=len(starts),
            sums=(sums,) if len(shard) else (),
            rows=(rows,) if len(shard) and not benchmark.scoring.has_intervals else (),
            defined=defined,
            spread=np.stack([_spread(metric, rows[:, at]) for at, metric in enumerate(benchmark.metrics)])
            if of_values
            else np.zeros((0, BINS), dtype=np.int64),
            tally=tally,
            outcomes=outcomes,
            repairs=repairs,
            breaches=breaches,
            usage=usage,
            plays=len(shard),
            answers=((answers, of_users),) if len(starts) < len(shard) else (),
            played=np.stack([np.nansum(own, axis=0), (~np.isnan(own)).sum(axis=0)]),
        )

    def merge(self, a: Totals, b: Totals) -> Totals:
        """Return the scores of both; associative, and users are in the order of the arguments."""
        if not a.users or not b.users:
            return a if a.users else b
        with guarded(self.benchmark, "the sum of two tallies"):
            tally = None if a.tally is None or b.tally is None else a.tally + b.tally
        return self._within(
            Totals(
                users=a.users + b.users,
                sums=a.sums + b.sums,
                rows=None if a.rows is None or b.rows is None else a.rows + b.rows,
                defined=a.defined + b.defined,
                spread=a.spread + b.spread,
                tally=tally,
                outcomes=a.outcomes + b.outcomes,
                repairs=a.repairs + b.repairs,
                breaches=a.breaches + b.breaches,
                usage=a.usage + b.usage,
                plays=a.plays + b.plays,
                answers=None if a.answers is None or b.answers is None else a.answers + b.answers,
                played=a.played + b.played,
            )
        )

    def _within(self, scores: Totals) -> Totals:
        return replace(
            scores,
            rows=None if scores.users > self.rows_limit else scores.rows,
            answers=None if scores.plays > self.rows_limit else scores.answers,
        )

    def condense(self, merged: Totals) -> Totals:
        """Return what `running` needs; it merges as before, and is as small for a million users as for one."""
        if not merged.users:
            return merged
        with guarded(self.benchmark, "condense"):
            tally = None if merged.tally is None else self.benchmark.scoring.condense(merged.tally)
        return replace(merged, sums=(merged.total[0],), rows=None, answers=None, tally=tally)

    def running(self, merged: Totals) -> Mapping[str, float | None]:
        """Return the figures that a live display shows, in their own units: those that rank, where they are others."""
        figures, benchmark = self._figures(merged), self.benchmark
        metrics = [metrics_of(benchmark).get(name) for name in benchmark.scoring.live or headline_of(benchmark)]
        names = ((of.name, of.ranked_by or of.name) for of in metrics if of)
        return {name if figures[name] == figures[by] else by: figures[by] for name, by in names}

    def _figures(self, merged: Totals) -> dict[str, float | None]:
        """By metric, secondary ones included."""
        benchmark = self.benchmark
        found: dict[str, float | None] = dict.fromkeys(metrics_of(benchmark))
        if not merged.users:  # of own `statistics` not even the number of columns is known
            return found
        values = figures_of(benchmark, merged.total)[0].tolist()
        found |= {name: None if np.isnan(value) else value for name, value in zip(found, values, strict=False)}
        if merged.tally is not None:
            with guarded(benchmark, "further_figures"):
                found |= benchmark.scoring.further_figures(merged.tally)
        return found

    def report(self, merged: Totals, run: RunFacts) -> tuple[Report, Mapping[str, bytes]]:
        """Return the report, and the benchmark's files that belong to it by name."""
        benchmark = self.benchmark
        scored = self._measured(merged)
        found = self._values(merged, scored)
        names = [metric.name for metric in benchmark.metrics]
        complete = merged.plays == (run.expected_plays if run.expected_plays is not None else run.expected_users)
        valid = merged.outcomes[VALID]
        report = msgspec.convert(
            {
                "benchmark": benchmark.name,
                **reports.declared(type(benchmark)),
                "prompt_version": benchmark.version,
                **run.stated,
                "coverage": reports.Coverage(run.expected_users, merged.users, run.failed_users, complete),
                "metrics": {name: of for name, of in found.items() if name in names},
                "secondary": {name: of for name, of in found.items() if name not in names},
                "bounds": None if complete or not benchmark.scoring.is_mean else self._bounds(merged, run, found),
                "distribution": {
                    metric.name: merged.spread[place].tolist()
                    for place, metric in enumerate(benchmark.metrics[: len(merged.spread)])
                    if _ends(metric)
                },
                "detectable": {
                    name: detectable(by.ci95, by.users)
                    for name in headline_of(benchmark)
                    if (metric := metrics_of(benchmark).get(name))
                    and (by := found[metric.ranked_by or name]).ci95
                    and by.users
                    and not by.approximate
                },
                "diagnostics": reports.Diagnostics(
                    merged.outcomes.total(),
                    valid,
                    dict(sorted((+merged.outcomes - Counter({VALID: valid})).items())),
                    dict(sorted(merged.repairs.items())),
                    dict(sorted(merged.breaches.items())),
                ),
                "usage": {name: merged.usage[name] for name in USAGE},
                "intervals_over": None
                if benchmark.scoring.has_intervals
                else reports.BLOCKS
                if merged.rows is None
                else reports.USERS,
                **({"repeats": self._repeats(merged, run)} if run.repeats > 1 else {}),
            },
            Report,
        )
        return (report, {}) if scored is None else self._with_own(report, scored)

    def _bounds(
        self, merged: Totals, run: RunFacts, found: Mapping[str, Value]
    ) -> dict[str, tuple[float | None, float | None]]:
        """Return the lowest and highest mean of each metric; with repeats, those that missing repeats leave."""
        missing, metrics = max(0, run.expected_users - merged.users), self.benchmark.metrics
        if run.repeats > 1 and run.expected_plays is not None:
            missing = max(0, run.expected_plays - merged.plays)
            sums, counts = merged.played
            found = {
                metric.name: Value(float(total / count) if count else None, None, int(count))
                for metric, total, count in zip(metrics, sums, counts, strict=True)
            }
        return {metric.name: bounds(metric, found[metric.name], missing) for metric in metrics}

    def _repeats(self, merged: Totals, run: RunFacts) -> Repeats:
        """Return the section on repeats; no components without rows, or where no user has two answers."""
        expected = run.expected_plays or 0
        if not merged.answers:
            return Repeats(run.repeats, expected, merged.plays)
        numbers = np.concatenate([of_users for _, of_users in merged.answers])
        users = np.repeat(np.arange(len(numbers)), numbers)
        found = {name: components(values, users) for name, values in answer_values(self.benchmark, merged).items()}
        made = {name: _component(of) for name, of in found.items() if of is not None}
        return Repeats(run.repeats, expected, merged.plays, made)

    def _with_own(self, report: Report, scored: Scored) -> tuple[Report, Mapping[str, bytes]]:
        """Return the report with the benchmark's own values and blocks, and the benchmark's files."""
        benchmark = self.benchmark
        with guarded(benchmark, "sections"):
            scored = replace(scored, report=report)
            details = msgspec.json.decode(msgspec.json.encode(benchmark.scoring.details(scored)))
            levels = {name: np.ravel(level).tolist() for name, level in benchmark.scoring.chance(scored).items()}
            if not all(name in report.values and all(map(math.isfinite, level)) for name, level in levels.items()):
                raise ValueError(f"chance: expected finite numbers of declared metrics, got {in_brief(levels)}")
            chance = {name: float(level[0]) for name, level in levels.items()}
            errors = {name: float(level[1]) for name, level in levels.items() if len(level) > 1}
            bias = {name: float(value) for name, value in benchmark.scoring.bias(scored).items()}
            report = msgspec.structs.replace(report, details=details, chance=chance, chance_error=errors, bias=bias)
            scored = replace(scored, report=report)
            report = msgspec.structs.replace(report, sections=reports.checked(benchmark.scoring.sections(scored)))
            return report, dict(benchmark.scoring.report_files(scored))

    def _measured(self, merged: Totals) -> Scored | None:
        """Return what sections are made of; None without users."""
        if not merged.users:
            return None
        own = self.benchmark.scoring.has_intervals
        rows = None if own or merged.rows is None else expanded(self.benchmark, np.concatenate(merged.rows))
        units = np.empty((0, 0)) if own else np.stack(merged.sums) if rows is None else rows
        return Scored(self.subset, merged.users, self._figures(merged), merged.total[0], rows, merged.tally, units)

    def _values(self, merged: Totals, scored: Scored | None) -> dict[str, Value]:
        names, benchmark = tuple(metrics_of(self.benchmark)), self.benchmark
        if scored is None:
            return {name: Value(None, None, 0) for name in names}
        users = dict.fromkeys(names, merged.users)
        if benchmark.scoring.has_values:
            users |= {name: int(count) for name, count in zip(names, merged.defined, strict=False)}
        found: Mapping[str, tuple[float, float] | tuple[float, float, bool] | None]
        if benchmark.scoring.has_intervals:
            with guarded(benchmark, "intervals"):
                found = benchmark.scoring.intervals(scored)
        else:
            each = parts(scored.units, lambda totals: figures_of(benchmark, totals), having(benchmark, scored.units))
            found = {
                metric.name: with_mark(interval(scored.figures[metric.name], strata, metric.bounds), strata)
                for metric, of in zip(metrics_of(benchmark).values(), each.T, strict=False)
                for strata in [[moments(of)]]
            }
        return {
            name: Value(scored.figures[name], ends and ends[:2], users[name], True if ends and any(ends[2:]) else UNSET)
            for name in names
            for ends in [found.get(name)]
        }


def raw_rows(benchmark: Benchmark, records: Sequence[Record], live: bool = False) -> tuple[Array, Any]:
    """Return a row for each user, and the benchmark's tally of them; `live`: the part that live figures need.

    Rows are values (users x C, NaN if undefined) if its scoring `has_values`, else statistics (users x K). Raise
    `BenchmarkError` for another shape, or for a number that is not finite.
    """
    of_values = benchmark.scoring.has_values
    if not records:
        return np.zeros((0, _columns(benchmark))), None
    through = () if benchmark.origin else ODD_SHAPE  # what ships is right, and the record is odd
    with guarded(benchmark, "statistics", *through):
        made = benchmark.scoring.running if live else benchmark.scoring.tallied
        found, tally = made([benchmark.records.completed(record.data) for record in records])
        if found is None:
            found = [[record.data["metrics"][metric.name] for metric in benchmark.metrics] for record in records]
        rows = np.asarray(found, dtype=np.float64)
    wrong = np.isinf(rows) if of_values else ~np.isfinite(rows)
    if rows.ndim != 2 or len(rows) != len(records) or wrong.any():
        raise BenchmarkError(
            f"benchmark {benchmark.name}, statistics: expected a row of finite numbers for each of {len(records)} "
            f"users, got the shape {rows.shape}"
        )
    return rows, tally


def over_repeats(rows: Array, starts: Sequence[int]) -> Array:
    """Return the row of each user, of those of its repeats as `raw_rows` returns them: the mean, of values that of the
    defined ones. `starts` is where each user's begin."""
    if len(starts) == len(rows):
        return rows
    defined = ~np.isnan(rows)
    counts = np.add.reduceat(defined.astype(np.float64), starts)
    sums = np.add.reduceat(np.where(defined, rows, 0.0), starts)
    means: Array = np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)
    return means


def answer_values(benchmark: Benchmark, merged: Totals) -> dict[str, Array]:
    """Return what each answer in `merged.answers` adds to the mean over users of each metric, and of what ranks it.

    For means these are the values. For other figures they are linear parts: what the figure loses without the answer,
    times the number of answers (the jackknife's influence values; docs/statistics.md, "Repeats").
    """
    kept, names = merged.answers or (), tuple(metrics_of(benchmark))
    if benchmark.scoring.is_mean:
        found = [rows for rows, _ in kept]
    else:
        whole, found = figures_of(benchmark, merged.total), []
        for rows, of_users in kept:
            numbers = np.repeat(of_users, of_users)[:, None]
            without = figures_of(benchmark, merged.total - expanded(benchmark, rows) / numbers)
            found.append((whole - without) * numbers * merged.users)
    values = np.concatenate(found)
    ranking = [metric.ranked_by for metric in benchmark.metrics if metric.ranked_by]
    columns = dict.fromkeys([*range(len(benchmark.metrics)), *map(names.index, ranking)])
    return {names[at]: values[:, at] for at in columns if at < values.shape[1]}


def _component(of: Components) -> Component:
    now = of.error()
    removable, doubled = (1 - of.error(np.inf) / now, of.error(2) / now) if now else (None, None)
    return Component(of.between, of.within, now, of.share, removable, doubled)


def _columns(benchmark: Benchmark) -> int:
    """Return the columns of `statistics`, which need not work without users."""
    with suppress(Exception):
        return int(np.asarray(benchmark.scoring.tallied([])[0], dtype=np.float64).shape[1])
    return len(benchmark.metrics) * (1 if benchmark.scoring.has_values else 2)


def expanded(benchmark: Benchmark, rows: Array) -> Array:
    """Return rows as they are summed: values (0 if undefined) and then 1 or 0 for defined or undefined."""
    if not benchmark.scoring.has_values:
        return rows
    defined = ~np.isnan(rows)
    return np.hstack([np.where(defined, rows, 0.0), defined])


def rows_of(benchmark: Benchmark, records: Sequence[Record]) -> tuple[Array, Array]:
    """Return what each record adds to the figures that rank the metrics, and to the metrics: records x K each.

    Raise as `raw_rows` does.
    """
    return _both(benchmark, _compared(benchmark, records))


def _compared(benchmark: Benchmark, records: Sequence[Record]) -> Array:
    """Return `raw_rows` with the columns of the metrics, and then those of the figures that rank them, if others."""
    rows, _ = raw_rows(benchmark, records)
    if not benchmark.scoring.has_values:
        return rows
    own = list(range(len(benchmark.metrics)))
    ranking = _ranking(benchmark, rows.shape[1]) if records else own
    return rows[:, own if own == ranking else [*own, *ranking]]


def _both(benchmark: Benchmark, rows: Array) -> tuple[Array, Array]:
    """Return such rows as `rows_of` does."""
    if not benchmark.scoring.has_values:
        return rows, rows
    count = len(benchmark.metrics)
    given = expanded(benchmark, rows[:, :count])
    return given if rows.shape[1] == count else expanded(benchmark, rows[:, count:]), given


def _ranking(benchmark: Benchmark, columns: int) -> list[int]:
    """Return the places of the figures that rank the metrics. Raise `BenchmarkError` if one is beyond the columns."""
    names = tuple(metrics_of(benchmark))
    found = [names.index(metric.ranked_by or metric.name) for metric in benchmark.metrics]
    if max(found) >= columns:
        raise BenchmarkError(
            f"benchmark {benchmark.name}: a metric is ranked by {names[max(found)]}, for which `values` or `figures` "
            "has no column"
        )
    return found


def having(benchmark: Benchmark, rows: Array) -> NDArray[np.bool_]:
    """Return which users count in which figure, of what they add: users x figures, or users x 1 for all figures.

    With `statistics` of a benchmark's own these are all users, as in its reports: whether a figure of one user alone is
    defined says nothing. A user without a value adds nothing to its mean.
    """
    if not benchmark.scoring.has_values:
        return np.ones((len(rows), 1), dtype=np.bool_)
    defined: NDArray[np.bool_] = np.hsplit(rows, 2)[1] > 0
    if benchmark.scoring.is_mean:
        return defined[:, : len(metrics_of(benchmark))]
    return np.logical_or.reduce(defined, axis=1, keepdims=True)


def figures_of(benchmark: Benchmark, totals: Array) -> Array:
    """Return the figures of totals: R x K -> R x metrics, followed by the secondary ones if `figures` returns them."""
    with np.errstate(invalid="ignore", divide="ignore"), guarded(benchmark, "figures"):
        found = np.asarray(benchmark.scoring.figures(totals), dtype=np.float64)
    allowed = len(benchmark.metrics), len(metrics_of(benchmark))
    if benchmark.scoring.is_mean and found.ndim == 2:
        found = found[:, : allowed[1]]  # what follows is for sections
    if found.ndim != 2 or len(found) != len(totals) or found.shape[1] not in allowed:
        raise BenchmarkError(
            f"benchmark {benchmark.name}, figures: expected the shape {(len(totals), allowed[0])}, got {found.shape}"
        )
    found[np.isinf(found)] = np.nan
    return found


def _ends(metric: Metric) -> tuple[float, float] | None:
    low, high = metric.bounds or (None, None)
    return None if low is None or high is None else (low, high)


def _spread(metric: Metric, values: Array) -> Counts:
    """Return how many users have a value in each of `BINS` equal bins between the metric's bounds."""
    ends = _ends(metric)
    if ends is None:
        return np.zeros(BINS, dtype=np.int64)
    there = (values[~np.isnan(values)] - ends[0]) / (ends[1] - ends[0]) * BINS
    there = np.round(there, 9)  # a value on an edge is in the bin above it: 0.1 - 1 is not quite -0.9
    return np.bincount(np.clip(there, 0, BINS - 1).astype(np.int64), minlength=BINS)


def bounds(metric: Metric, of: Value, missing: int) -> tuple[float | None, float | None]:
    """Return lowest and highest mean once `missing` more users have a value; None where the metric has no bound."""
    users = of.users or 0
    if not users + missing:
        return None, None
    total = (of.value or 0.0) * users
    low, high = metric.bounds or (None, None)
    return (
        None if low is None else (total + missing * low) / (users + missing),
        None if high is None else (total + missing * high) / (users + missing),
    )


# Comparison


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures that `compare` compares, of any benchmark. `primary` is the metric that the runs were begun for."""

    benchmark: Benchmark
    primary: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(metric.name for metric in self.benchmark.metrics)

    @property
    def main(self) -> tuple[str, ...]:
        """The primary metric; else the headline metrics that are compared, the first two where all are secondary."""
        if self.primary in self.names:
            return (self.primary,)
        return tuple(name for name in headline_of(self.benchmark) if name in self.names) or self.names[:2]

    @property
    def metrics(self) -> Mapping[str, Metric]:
        return {metric.name: metric for metric in self.benchmark.metrics}

    def uses(self, columns: int) -> NDArray[np.bool_]:
        """Which of the K statistics each figure is made of (metrics x K): those that move it when they grow."""
        rng = np.random.default_rng(SEED)
        used = np.zeros((len(self.names), columns), dtype=np.bool_)
        for _ in range(PROBES):
            base = rng.uniform(1.0, 9.0, size=(1, columns))
            moved = self.values(base + np.eye(columns)) - self.values(base)
            used |= (np.abs(np.nan_to_num(moved, nan=1.0)) > 0).T
        return used

    def raw(self, records: Sequence[Record]) -> Array:
        """Return a row for each record, of which `contributions` are made."""
        return made_of(lambda shard: _compared(self.benchmark, shard), records)

    def contributions(self, rows: Array, starts: Sequence[int]) -> tuple[Array, Array]:
        """Return what users add to the figures that rank, and to the metrics as given; one array where they agree.

        `rows` are those of their repeats, each user's from `starts` on.
        """
        return _both(self.benchmark, over_repeats(rows, starts))

    def outcomes(self, records: Sequence[Record]) -> list[Counter[str]]:
        with guarded(self.benchmark, "outcomes", *ODD_SHAPE):
            return [Counter(text(one) for one in self.benchmark.records.outcomes(record.data)) for record in records]

    def values(self, totals: Array) -> Array:
        """Return the figures that rank, of such totals."""
        found = figures_of(self.benchmark, totals)
        given = list(range(len(self.names)))
        return found[:, given if self.benchmark.scoring.has_values else _ranking(self.benchmark, found.shape[1])]

    def given(self, totals: Array) -> Array:
        """Return the metrics as given, of such totals."""
        return figures_of(self.benchmark, totals)[:, : len(self.names)]

    def on_both(self, a: Array, b: Array) -> tuple[Array, Array]:
        """Return the contributions of the same users without values that only one side defines."""
        if not self.benchmark.scoring.has_values:
            return a, b
        defined = np.hsplit(a, 2)[1] * np.hsplit(b, 2)[1]
        return a * np.tile(defined, 2), b * np.tile(defined, 2)


PROBES = 2
"""Totals at which it is looked which statistics move a figure; at one alone two effects could cancel out."""
