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
from itertools import chain

import msgspec
import numpy as np

from harness.benchmark import VALID, Benchmark, Metric, headline_of, metrics_of
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
        benchmark, users = self.benchmark, [record.data for record in shard]
        answers, tally = raw_rows(benchmark, shard)
        starts = user_starts(users)
        rows = over_repeats(answers, starts)
        usage = Counter[str]()
        for record in users:
            usage.update(counted(record))

        with guarded(benchmark, "outcomes and repairs", *ODD_SHAPE):
            outcomes = _counted(benchmark.records.outcomes, users)
            repairs = _counted(benchmark.records.repairs, users)

        with guarded(benchmark, "breaches", *ODD_SHAPE):
            breaches = _counted(benchmark.scoring.breaches, users)

        repeats = np.diff([*starts, len(shard)])
        keeps_rows = len(shard) and benchmark.scoring.intervals is None
        has_repeats = len(starts) < len(shard)
        metrics = benchmark.metrics if benchmark.scoring.is_mean else ()
        values = answers[:, : len(metrics)]

        return Totals(
            users=len(starts),
            plays=len(shard),
            outcomes=outcomes,
            repairs=repairs,
            breaches=breaches,
            usage=usage,
            sums=(sums_of(benchmark, rows),) if len(shard) else (),
            tally=tally,
            rows=Blocks(self.rows_limit, len(starts), (rows,) if keeps_rows else ()),
            answers=Blocks(
                self.rows_limit, len(shard), ((answers, repeats),) if has_repeats else ()
            ),
            spread=_spread(metrics, rows),
            played=np.stack([np.nansum(values, axis=0), (~np.isnan(values)).sum(axis=0)]),
        )

    def merge(self, a: Totals, b: Totals) -> Totals:
        """Return the scores of both; associative, and users are in the order of the arguments."""
        if not a.users or not b.users:
            return a if a.users else b

        with guarded(self.benchmark, "the sum of two tallies"):
            tally = None if a.tally is None or b.tally is None else a.tally + b.tally

        names = [field.name for field in fields(Totals) if field.name != "tally"]

        return Totals(tally=tally, **{name: getattr(a, name) + getattr(b, name) for name in names})

    def condense(self, totals: Totals) -> Totals:
        """Return what `running` needs; it merges as before, and is as small for a million users as
        for one."""
        if not totals.users:
            return totals

        with guarded(self.benchmark, "condense"):
            tally = None if totals.tally is None else self.benchmark.scoring.condense(totals.tally)

        rows, answers = (replace(blocks, limit=0) for blocks in (totals.rows, totals.answers))

        return replace(
            totals,
            sums=(totals.total[0],),
            rows=rows,
            answers=answers,
            tally=tally,
        )

    def running(self, totals: Totals) -> Mapping[str, float | None]:
        """Return the figures that a live display shows, in their own units: those that rank, where
        they are others."""
        figures, benchmark = self._figures(totals), self.benchmark
        shown: dict[str, float | None] = {}
        for name in benchmark.scoring.live or headline_of(benchmark):
            metric = metrics_of(benchmark).get(name)
            if metric:
                ranking = metric.ranked_by or name
                is_same = figures[name] == figures[ranking]
                shown[name if is_same else ranking] = figures[ranking]

        return shown

    def _figures(self, totals: Totals) -> dict[str, float | None]:
        """By metric, secondary ones included."""
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
        names = [metric.name for metric in benchmark.metrics]
        expected = run.expected_users if run.expected_plays is None else run.expected_plays
        is_complete = totals.plays == expected
        has_bounds = benchmark.scoring.is_mean and not is_complete
        invalid = {}
        for kind, number in sorted(totals.outcomes.items()):
            if number and kind != VALID:
                invalid[kind] = number

        distribution = {}
        for metric, counts in zip(benchmark.metrics, totals.spread, strict=False):
            if _ends(metric):
                distribution[metric.name] = counts.tolist()

        units = reports.BLOCKS if totals.rows.is_dropped else reports.USERS
        report = msgspec.convert(
            {
                "benchmark": benchmark.name,
                **reports.declared(type(benchmark)),
                "prompt_version": benchmark.version,
                **run.stated,
                "coverage": reports.Coverage(
                    run.expected_users, totals.users, run.failed_users, is_complete
                ),
                "metrics": {name: value for name, value in values.items() if name in names},
                "secondary": {name: value for name, value in values.items() if name not in names},
                "bounds": self._bounds(totals, expected - totals.plays) if has_bounds else None,
                "distribution": distribution,
                "detectable": self._detectable(values),
                "diagnostics": reports.Diagnostics(
                    totals.outcomes.total(),
                    totals.outcomes[VALID],
                    invalid,
                    dict(sorted(totals.repairs.items())),
                    dict(sorted(totals.breaches.items())),
                ),
                "usage": {name: totals.usage[name] for name in USAGE},
                "intervals_over": units if benchmark.scoring.intervals is None else None,
                **({"repeats": self._repeats(totals, run)} if run.repeats > 1 else {}),
            },
            Report,
        )

        return (report, {}) if scored is None else self._with_sections(report, scored)

    def _scored(self, totals: Totals) -> Scored:
        """Return what sections are made of."""
        rows, units = None, np.empty((0, 0))
        if self.benchmark.scoring.intervals is None:
            if not totals.rows.is_dropped:
                rows = expanded(self.benchmark, np.concatenate(totals.rows.arrays))

            units = np.stack(totals.sums) if rows is None else rows

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
        benchmark, metrics = self.benchmark, metrics_of(self.benchmark)
        if scored is None:
            return {name: Value(None, None, 0) for name in metrics}

        users = dict.fromkeys(metrics, totals.users)
        if benchmark.scoring.is_mean:
            _, counts = np.hsplit(scored.totals, 2)
            users |= zip(metrics, counts.astype(np.int64).tolist(), strict=False)

        if benchmark.scoring.intervals is not None:
            with guarded(benchmark, "intervals"):
                ends = dict(benchmark.scoring.intervals(scored))
        else:
            has = counted_mask(benchmark, scored.units)
            parts_of_units = parts(scored.units, partial(figures_of, benchmark), has)
            ends = {}
            for metric, part in zip(metrics.values(), parts_of_units.T, strict=False):
                strata = [moments(part)]
                bounds_95 = interval(scored.figures[metric.name], strata, metric.bounds)
                ends[metric.name] = with_mark(bounds_95, strata)

        return {
            name: Value.of(scored.figures[name], ends.get(name), users[name]) for name in metrics
        }

    def _bounds(self, totals: Totals, missing: int) -> dict[str, tuple[float | None, float | None]]:
        """Return the lowest and highest mean of each metric over all plays, of which some are
        missing."""
        columns = zip(self.benchmark.metrics, *totals.played.tolist(), strict=True)

        return {
            metric.name: bounds(metric, total / count if count else 0.0, count, max(0, missing))
            for metric, total, count in columns
        }

    def _detectable(self, values: Mapping[str, Value]) -> dict[str, float]:
        """Return the smallest difference that a comparison shows, by headline metric."""
        metrics = metrics_of(self.benchmark)
        differences = {}
        for name in headline_of(self.benchmark):
            value = values[metrics[name].ranked_by or name] if name in metrics else Value(None)
            if value.ci95 and value.users and not value.approximate:
                differences[name] = detectable(value.ci95, value.users)

        return differences

    def _repeats(self, totals: Totals, run: RunFacts) -> reports.Repeats:
        """Return the section on repeats; no components without rows, or where no user has two
        answers.

        They are of the metrics, and of the figures that rank these.
        """
        benchmark, blocks = self.benchmark, totals.answers.arrays
        section = reports.Repeats(run.repeats, run.expected_plays or 0, totals.plays)
        if not blocks:
            return section

        values_of_blocks = []
        for rows, repeats in blocks:
            values_of_blocks.append(
                influences(
                    benchmark,
                    totals.total,
                    rows,
                    repeats,
                    totals.users,
                )
            )

        values = np.concatenate(values_of_blocks)
        repeats = np.concatenate([repeats for _, repeats in blocks])
        users = np.repeat(np.arange(len(repeats)), repeats)
        names = list(metrics_of(benchmark))
        ranking = [metric.ranked_by for metric in benchmark.metrics if metric.ranked_by]
        for name in dict.fromkeys([*names[: len(benchmark.metrics)], *ranking]):
            place = names.index(name)
            variances = components(values[:, place], users) if place < values.shape[1] else None
            if variances is not None:
                section.components[name] = reports.Component.of(variances)

        return section

    def _with_sections(self, report: Report, scored: Scored) -> tuple[Report, Mapping[str, bytes]]:
        """Return the report with the benchmark's own values and blocks, and the benchmark's
        files."""
        benchmark, scoring = self.benchmark, self.benchmark.scoring
        with guarded(benchmark, "sections"):
            scored = replace(scored, report=report)
            details = msgspec.json.decode(msgspec.json.encode(scoring.details(scored)))
            levels = {
                name: np.ravel(level).tolist() for name, level in scoring.chance(scored).items()
            }
            has_finite = all(map(math.isfinite, chain.from_iterable(levels.values())))
            if not has_finite or not levels.keys() <= report.values.keys():
                raise ValueError(
                    f"chance: expected finite numbers of declared metrics, got {in_brief(levels)}"
                )

            chance, chance_error = {}, {}
            for name, level in levels.items():
                chance[name] = float(level[0])
                if len(level) > 1:
                    chance_error[name] = float(level[1])

            report = msgspec.structs.replace(
                report,
                details=details,
                chance=chance,
                chance_error=chance_error,
                bias={name: float(value) for name, value in scoring.bias(scored).items()},
            )
            scored = replace(scored, report=report)
            report = msgspec.structs.replace(
                report, sections=reports.checked(scoring.sections(scored))
            )
            return report, dict(scoring.report_files(scored))


def _counted(names_of: Callable[[JSON], Iterable[str]], records: Sequence[JSON]) -> Counter[str]:
    counts = Counter(name for record in records for name in names_of(record))
    for name in counts:
        text(name)

    return counts


def _ends(metric: Metric) -> tuple[float, float] | None:
    low, high = metric.bounds or (None, None)
    return None if low is None or high is None else (low, high)


def _spread(metrics: Sequence[Metric], rows: Array) -> Counts:
    """Return how many users have a value in each of `BINS` equal bins between a metric's bounds:
    metrics x bins."""
    spread = np.zeros((len(metrics), BINS), dtype=np.int64)
    for place, metric in enumerate(metrics):
        ends = _ends(metric)
        if ends:
            low, high = ends
            values = rows[:, place]
            bins = (values[~np.isnan(values)] - low) / (high - low) * BINS
            # A value on an edge is in the bin above it: 0.1 - 1 is not quite -0.9.
            bins = np.round(bins, 9)
            spread[place] = np.bincount(np.clip(bins, 0, BINS - 1).astype(np.int64), minlength=BINS)

    return spread


def bounds(
    metric: Metric,
    mean: float,
    count: float,
    missing: int,
) -> tuple[float | None, float | None]:
    """Return the lowest and highest mean once `missing` more values are there; None where the
    metric has no bound."""
    low, high = (
        None
        if bound is None or not count + missing
        else (mean * count + missing * bound) / (count + missing)
        for bound in metric.bounds or (None, None)
    )
    return low, high
