"""How many users a comparison needs, from runs that there are (docs/statistics.md, Planning); and `compare --plan` as
blocks and as a sheet."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.benchmark import Metric
from harness.benchmarks.scorer import Figures, having
from harness.features.compare.blocks import users_needed
from harness.features.compare.figures import Stratum
from harness.features.compare.sample_size import entry, needed, notable
from harness.features.compare.sides import Side, Subset
from harness.features.documents.xlsx import Sheet
from harness.model import JSON, Block, Heading, Paragraph, Table
from harness.scoring.bootstrap import Array
from harness.scoring.intervals import moments, parts

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
    difference = notable(metric) if plan.difference is None else plan.difference / metric.scale
    factor = TWIN if spread.b is None else 1.0
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
        **entry(needed(spread.strata, difference, plan.power, family, factor)),
    }


COLUMNS = ("metric", "difference", "tests", "users", "that differ", "users needed")


def blocks(data: JSON) -> Iterator[Block]:
    """Yield a table for each pair of runs, or for the one run, and how it is computed."""
    for a, b in dict.fromkeys((of["a"], of["b"]) for of in data["plans"]):
        yield Heading(f"{a}: users to compare it with another run" if b is None else f"{a} and {b}: users needed")
        yield Table(COLUMNS, tuple(_row(of) for of in data["plans"] if (of["a"], of["b"]) == (a, b)))
    yield Heading("How this is computed")
    yield from map(Paragraph, _method(data))


def _row(of: JSON) -> tuple[str, ...]:
    metric = Metric(of["metric"], **of["metric_unit"])
    needed = users_needed(of["users_needed"], of["users_needed_ci95"])
    difference = f"{metric.text(of['difference'])} {metric.difference_unit}"
    return metric.name, difference, *(str(of[name]) for name in ("family", "users", "untied")), needed


def _method(data: JSON) -> Iterator[str]:
    """Yield what the numbers rest on."""
    power = {f"{100 * of['power']:g} %" for of in data["plans"]}
    yield (
        "Users needed: over all subsets, spread over them as these users are, to show the difference at 5 % "
        f"(two-sided, divided by the number of tests) with a power of {', '.join(power)}; in brackets the 95 % "
        "interval of that number, since the spread is an estimate. No estimate: fewer than 20 users differ, or too few "
        "of those needed would differ for any test to show it. Formulas and sources: page Statistics of the "
        "documentation."
    )
    for run in data["runs"]:
        if any(of["b"] is None for of in data["plans"]):
            baseline = (run["model"] or "").startswith("baseline/")
            yield (
                f"From the spread of {run['name']} alone{' (a baseline; a model may vary more)' if baseline else ''}: "
                "the other run is taken to be as spread, and not correlated with it (r = 0). Runs that do well on the "
                "same users need fewer: 1 - r times as many."
            )


def sheets(data: JSON) -> list[Sheet]:
    """Return one sheet with all plans."""
    rows = [(of["a"], of["b"] or "another run", *_row(of)) for of in data["plans"]]
    return [Sheet("Plan", ("A", "B", *COLUMNS), rows, tuple(_method(data)))]
