"""Score users of any benchmark: their sums, which merge by `+`, and the report of the totals.

What a user adds is a row of sums and counts (`rows.py`), so scores of any users merge, and the
intervals come of each user's part in them (`intervals.py`; docs/statistics.md), if the benchmark
has none of its own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from harness.benchmark import VALID, Benchmark, Ends, Metric, headline_of, metrics_of
from harness.benchmarks.records import ODD_SHAPE, made_of, text, user_starts
from harness.benchmarks.usage import USAGE, counted
from harness.benchmarks.user_code import guarded
from harness.errors import in_brief
from harness.model import JSON, Record, RunFacts
from harness.scoring import reports
from harness.scoring.bootstrap import Array
from harness.scoring.components import components
from harness.scoring.intervals import detectable, interval, moments, parts, with_mark
from harness.scoring.reports import Report, Scored, Value
from harness.scoring.rows import (
    counted_mask,
    expanded,
    figures_of,
    influences,
    over_repeats,
    raw_rows,
    sums_of,
)
from harness.scoring.totals import Blocks, Counts, Totals

ROWS_LIMIT = 50_000
"""Users up to whom every row is kept; beyond, the units of intervals are blocks of users."""
BINS = 20
"""Of a metric's distribution over users, where both of its bounds are known."""


@dataclass(frozen=True, slots=True)
class Scorer:
    """The scorer of one subset. Synchronous and pure: no I/O, no clock, no asyncio."""

    benchmark: Benchmark
    subset: str
    rows_limit: int = ROWS_LIMIT

    def score(self, shard: Sequence[Record]) -> Totals:
        """Return the scores of up to 256 users. Raise `BadInput` for a malformed record, with its
        user."""
        return made_of(self._score, shard)

    def _score(self, shard: Sequence[Record]) -> Totals:
        benchmark = self.benchmark
        records = [record.data for record in shard]
        answers, tally = raw_rows(benchmark, shard)
        starts = user_starts(records)
        rows = over_repeats(answers, starts)
        usage = Counter[str]()
        for record in records:
            usage.update(counted(record))

        with guarded(benchmark, "outcomes and repairs", *ODD_SHAPE):
            outcomes = _counted(benchmark.records.outcomes, records)
            repairs = _counted(benchmark.records.repairs, records)

        with guarded(benchmark, "breaches", *ODD_SHAPE):
            breaches = _counted(benchmark.scoring.breaches, records)

        sums: tuple[Array, ...] = ()
        row_blocks: tuple[Array, ...] = ()
        answer_blocks: tuple[tuple[Array, NDArray[np.int_]], ...] = ()
        if records:
            sums = (sums_of(benchmark, rows),)
            if benchmark.scoring.intervals is None:
                row_blocks = (rows,)

        if len(starts) < len(records):
            repeats = np.diff([*starts, len(records)])
            answer_blocks = ((answers, repeats),)

        metrics = benchmark.metrics if benchmark.scoring.is_mean else ()
        values = answers[:, : len(metrics)]
        defined = ~np.isnan(values)

        return Totals(
            users=len(starts),
            plays=len(records),
            outcomes=outcomes,
            repairs=repairs,
            breaches=breaches,
            usage=usage,
            sums=sums,
            tally=tally,
            rows=Blocks(self.rows_limit, len(starts), row_blocks),
            answers=Blocks(self.rows_limit, len(records), answer_blocks),
            spread=_spread(metrics, rows),
            played=np.stack([np.nansum(values, axis=0), defined.sum(axis=0)]),
        )

    def merge(self, a: Totals, b: Totals) -> Totals:
        """Return the scores of both; associative, and users are in the order of the arguments."""
        if not a.users:
            return b
        if not b.users:
            return a

        sums = {}
        for field in fields(Totals):
            if field.name != "tally":
                sums[field.name] = getattr(a, field.name) + getattr(b, field.name)

        # A tally is added up by the benchmark's own code.
        tally = None
        if a.tally is not None and b.tally is not None:
            with guarded(self.benchmark, "the sum of two tallies"):
                tally = a.tally + b.tally

        return Totals(tally=tally, **sums)

    def condense(self, totals: Totals) -> Totals:
        """Return what `running` needs; it merges as before, and is as small for a million users as
        for one."""
        if not totals.users:
            return totals

        tally = totals.tally
        if tally is not None:
            with guarded(self.benchmark, "condense"):
                tally = self.benchmark.scoring.condense(tally)

        return replace(
            totals,
            sums=(totals.total[0],),
            rows=replace(totals.rows, limit=0),
            answers=replace(totals.answers, limit=0),
            tally=tally,
        )

    def running(self, totals: Totals) -> Mapping[str, float | None]:
        """Return the figures that a live display shows, in their own units: those that rank, where
        they are others."""
        benchmark = self.benchmark
        figures = self._figures(totals)
        shown: dict[str, float | None] = {}
        for name in benchmark.scoring.live or headline_of(benchmark):
            metric = metrics_of(benchmark).get(name)
            if metric:
                ranking = metric.ranking
                if figures[name] != figures[ranking]:
                    name = ranking

                shown[name] = figures[ranking]

        return shown

    def _figures(self, totals: Totals) -> dict[str, float | None]:
        """Return the figures by metric, secondary ones included."""
        benchmark = self.benchmark
        figures: dict[str, float | None] = dict.fromkeys(metrics_of(benchmark))
        if not totals.users:  # of own `statistics` not even the number of columns is known
            return figures

        values = figures_of(benchmark, totals.total)[0].tolist()
        for name, value in zip(list(figures), values, strict=False):
            figures[name] = None if math.isnan(value) else value

        if totals.tally is not None:
            with guarded(benchmark, "further_figures"):
                figures |= benchmark.scoring.further_figures(totals.tally)

        return figures

    def report(self, totals: Totals, run: RunFacts) -> tuple[Report, Mapping[str, bytes]]:
        """Return the report, and the benchmark's files that belong to it by name."""
        benchmark = self.benchmark
        scored = self._scored(totals) if totals.users else None
        values = self._values(totals, scored)
        secondary = dict(values)
        metrics = {metric.name: secondary.pop(metric.name) for metric in benchmark.metrics}
        expected = run.expected_users if run.expected_plays is None else run.expected_plays
        is_complete = totals.plays == expected
        members = {
            "benchmark": benchmark.name,
            **reports.declared(type(benchmark)),
            "prompt_version": benchmark.version,
            **run.stated,
            "coverage": reports.Coverage(
                run.expected_users, totals.users, run.failed_users, is_complete
            ),
            "metrics": metrics,
            "secondary": secondary,
            "distribution": self._distribution(totals),
            "detectable": self._detectable(values),
            "diagnostics": _diagnostics(totals),
            "usage": {name: totals.usage[name] for name in USAGE},
        }
        if benchmark.scoring.is_mean and not is_complete:
            members["bounds"] = self._bounds(totals, max(0, expected - totals.plays))
        if benchmark.scoring.intervals is None:
            units = reports.BLOCKS if totals.rows.is_dropped else reports.USERS
            members["intervals_over"] = units
        if run.repeats > 1:
            members["repeats"] = self._repeats(totals, run)

        report = msgspec.convert(members, Report)
        if scored is None:
            return report, {}

        return self._with_sections(report, scored)

    def _scored(self, totals: Totals) -> Scored:
        """Return what sections are made of."""
        rows = None
        units = np.empty((0, 0))
        if self.benchmark.scoring.intervals is None:
            if totals.rows.is_dropped:
                units = np.stack(totals.sums)
            else:
                rows = expanded(self.benchmark, np.concatenate(totals.rows.arrays))
                units = rows

        return Scored(
            self.subset,
            totals.users,
            self._figures(totals),
            totals.total[0],
            rows,
            totals.tally,
            units,
        )

    def _values(self, totals: Totals, scored: Scored | None) -> dict[str, Value]:
        """Return each figure with its interval and the number of users that have it."""
        metrics = metrics_of(self.benchmark)
        if scored is None:
            return dict.fromkeys(metrics, Value(None, None, 0))

        users = dict.fromkeys(metrics, totals.users)
        if self.benchmark.scoring.is_mean:
            _, counts = np.hsplit(scored.totals, 2)
            users |= zip(metrics, counts.astype(np.int64).tolist(), strict=False)

        intervals = self._intervals(scored)
        values = {}
        for name in metrics:
            values[name] = Value.of(scored.figures[name], intervals.get(name), users[name])

        return values

    def _intervals(self, scored: Scored) -> dict[str, Ends | None]:
        """Return the 95 % interval of each figure, by the benchmark's own rule if it has one
        (docs/statistics.md, "Intervals")."""
        benchmark = self.benchmark
        if benchmark.scoring.intervals is not None:
            with guarded(benchmark, "intervals"):
                return dict(benchmark.scoring.intervals(scored))

        has = counted_mask(benchmark, scored.units)
        columns = parts(scored.units, partial(figures_of, benchmark), has).T
        intervals: dict[str, Ends | None] = {}
        for metric, column in zip(metrics_of(benchmark).values(), columns, strict=False):
            strata = [moments(column)]
            ends = interval(scored.figures[metric.name], strata, metric.bounds)
            intervals[metric.name] = with_mark(ends, strata)

        return intervals

    def _distribution(self, totals: Totals) -> dict[str, list[int]]:
        """Return how many users are in each bin, of the metrics with two bounds."""
        distribution = {}
        for metric, counts in zip(self.benchmark.metrics, totals.spread, strict=False):
            if _ends(metric):
                distribution[metric.name] = counts.tolist()

        return distribution

    def _bounds(self, totals: Totals, missing: int) -> dict[str, tuple[float | None, float | None]]:
        """Return the lowest and highest mean of each metric over all plays, of which some are
        missing."""
        all_bounds = {}
        sums, counts = totals.played.tolist()
        for metric, total, count in zip(self.benchmark.metrics, sums, counts, strict=True):
            mean = total / count if count else 0.0
            all_bounds[metric.name] = bounds(metric, mean, count, missing)

        return all_bounds

    def _detectable(self, values: Mapping[str, Value]) -> dict[str, float]:
        """Return the smallest difference that a comparison shows, by headline metric."""
        differences = {}
        for name in headline_of(self.benchmark):
            metric = metrics_of(self.benchmark).get(name)
            if metric is None:
                continue

            value = values[metric.ranking]
            if value.ci95 and value.users and not value.approximate:
                differences[name] = detectable(value.ci95, value.users)

        return differences

    def _repeats(self, totals: Totals, run: RunFacts) -> reports.Repeats:
        """Return the section on repeats; no components without rows, or where no user has two
        answers.

        They are of the metrics, and of the figures that rank these.
        """
        benchmark = self.benchmark
        blocks = totals.answers.arrays
        section = reports.Repeats(run.repeats, run.expected_plays or 0, totals.plays)
        if not blocks:
            return section

        value_blocks = []
        for rows, repeats in blocks:
            value_blocks.append(influences(benchmark, totals.total, rows, repeats, totals.users))

        values = np.concatenate(value_blocks)
        all_repeats = np.concatenate([repeats for _, repeats in blocks])
        users = np.repeat(np.arange(len(all_repeats)), all_repeats)
        # `figures` may have no columns of secondary metrics.
        columns = dict(zip(metrics_of(benchmark), values.T, strict=False))
        names = [metric.name for metric in benchmark.metrics]
        names += [metric.ranked_by for metric in benchmark.metrics]
        for name in dict.fromkeys(names):
            if name not in columns:
                continue

            variances = components(columns[name], users)
            if variances is not None:
                section.components[name] = reports.Component.of(variances)

        return section

    def _with_sections(self, report: Report, scored: Scored) -> tuple[Report, Mapping[str, bytes]]:
        """Return the report with the benchmark's own values and blocks, and the benchmark's
        files."""
        scoring = self.benchmark.scoring
        with guarded(self.benchmark, "sections"):
            scored = replace(scored, report=report)
            # Encoded once, so that what JSON cannot hold is blamed on the benchmark.
            details = msgspec.json.decode(msgspec.json.encode(scoring.details(scored)))
            chance, chance_error = _chance(scoring.chance(scored), report)
            report = msgspec.structs.replace(
                report,
                details=details,
                chance=chance,
                chance_error=chance_error,
                bias={name: float(value) for name, value in scoring.bias(scored).items()},
            )
            scored = replace(scored, report=report)
            sections = reports.checked(scoring.sections(scored))
            report = msgspec.structs.replace(report, sections=sections)

            return report, dict(scoring.report_files(scored))


def _chance(
    levels: Mapping[str, Any],
    report: Report,
) -> tuple[dict[str, float], dict[str, float]]:
    """Return chance levels by metric, and the standard errors of those that are drawn. Raise
    `ValueError` for one that no report can have."""
    chance, chance_error = {}, {}
    for name, level in levels.items():
        numbers = np.ravel(level).tolist()
        if name not in report.values or not all(map(math.isfinite, numbers)):
            raise ValueError(
                "chance: expected finite numbers of declared metrics, got"
                f" {in_brief({name: numbers})}"
            )

        chance[name] = float(numbers[0])
        if len(numbers) > 1:
            chance_error[name] = float(numbers[1])

    return chance, chance_error


def _diagnostics(totals: Totals) -> reports.Diagnostics:
    invalid = dict(sorted(totals.outcomes.items()))
    valid_answers = invalid.pop(VALID, 0)

    return reports.Diagnostics(
        totals.outcomes.total(),
        valid_answers,
        {kind: number for kind, number in invalid.items() if number},
        dict(sorted(totals.repairs.items())),
        dict(sorted(totals.breaches.items())),
    )


def _counted(names_of: Callable[[JSON], Iterable[str]], records: Sequence[JSON]) -> Counter[str]:
    counts = Counter(name for record in records for name in names_of(record))
    for name in counts:
        text(name)

    return counts


def _ends(metric: Metric) -> tuple[float, float] | None:
    low, high = metric.bounds or (None, None)
    if low is None or high is None:
        return None

    return low, high


def _spread(metrics: Sequence[Metric], rows: Array) -> Counts:
    """Return how many users have a value in each of `BINS` equal bins between a metric's bounds:
    metrics x bins."""
    spread = np.zeros((len(metrics), BINS), dtype=np.int64)
    for place, metric in enumerate(metrics):
        ends = _ends(metric)
        if ends is None:
            continue

        low, high = ends
        values = rows[:, place]
        bins = (values[~np.isnan(values)] - low) / (high - low) * BINS
        # A value on an edge is in the bin above it: 0.1 - 1 is not quite -0.9.
        bins = np.round(bins, 9).clip(0, BINS - 1)
        spread[place] = np.bincount(bins.astype(np.int64), minlength=BINS)

    return spread


def bounds(
    metric: Metric,
    mean: float,
    count: float,
    missing: int,
) -> tuple[float | None, float | None]:
    """Return the lowest and highest mean once `missing` more values are there; None where the
    metric has no bound.

    Source: Manski 1989 (docs/statistics.md, "Figures").
    """
    total = count + missing
    if not total or metric.bounds is None:
        return None, None

    low, high = metric.bounds
    lowest = None if low is None else (mean * count + missing * low) / total
    highest = None if high is None else (mean * count + missing * high) / total

    return lowest, highest
