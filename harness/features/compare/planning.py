"""How many users a comparison needs, from runs that there are (docs/statistics.md, Planning)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.analysis.sides import Side, Subset
from harness.benchmark import Metric
from harness.benchmarks.scorer import Figures, having
from harness.features.compare.figures import Stratum
from harness.model import JSON
from harness.scoring.bootstrap import Array
from harness.scoring.intervals import moments, parts
from harness.scoring.planning import needed

TWIN = 2.0
"""Variance of the difference of two runs that are as spread as one of them and not correlated, in that of the one."""


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What is asked: a difference (of a metric as it is shown), or the smallest of interest if None; the power; and
    the number of tests that are corrected for, or that of the primary figures if None."""

    difference: float | None
    power: float
    family: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Spread:
    """Users' parts in a primary figure by subset, of two runs' difference; of one run's figure if `b` is None."""

    a: str
    b: str | None
    benchmark: str
    metric: Metric
    strata: Sequence[Array]


def of_pair(a: Subset, b: Subset, strata: Sequence[Stratum], figures: Figures) -> Iterator[Spread]:
    for column, metric in _main(figures):
        defined = [one for one in strata if not math.isnan(one.values[0][column] - one.values[1][column])]
        yield Spread(a.run, b.run, a.benchmark, metric, [one.parts[:, column] for one in defined])


def of_run(run: str, benchmark: str, sides: Sequence[Side], figures: Figures) -> Iterator[Spread]:
    rows = [side.contributions for side in sides if side.tasks]
    found = [parts(each, figures.values, having(figures.benchmark, each)) for each in rows]
    for column, metric in _main(figures):
        yield Spread(run, None, benchmark, metric, [of[:, column] for of in found if moments(of[:, column]).users])


def _main(figures: Figures) -> Iterator[tuple[int, Metric]]:
    return ((figures.names.index(name), figures.metrics[name]) for name in figures.main)


def planned(spreads: Sequence[Spread], plan: Plan) -> list[JSON]:
    """Return the users needed for each, over all subsets; None without an estimate."""
    return [_planned(one, plan, sum(other.benchmark == one.benchmark for other in spreads)) for one in spreads]


def _planned(spread: Spread, plan: Plan, primary: int) -> JSON:
    metric, family = spread.metric, plan.family or primary
    difference = metric.notable if plan.difference is None else plan.difference / metric.scale
    factor = TWIN if spread.b is None else 1.0
    found = None
    if difference is not None:
        found = needed(spread.strata, difference, plan.power, family, factor)
    have = [moments(part) for part in spread.strata]
    return {
        "a": spread.a,
        "b": spread.b,
        "benchmark": spread.benchmark,
        "metric": metric.name,
        "metric_unit": metric.data,
        "difference": difference,
        "power": plan.power,
        "family": family,
        "users": sum(one.users for one in have),
        "untied": sum(one.untied for one in have),
        "users_needed": found and found.users,
        "users_needed_ci95": found and (found.low, found.high),
    }
