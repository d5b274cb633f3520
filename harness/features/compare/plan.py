"""The result of `compare --plan`, as blocks for terminal and page and as a sheet. Made of its JSON alone."""

from __future__ import annotations

from collections.abc import Iterator

from harness.benchmark import Metric
from harness.features.compare.blocks import users_needed
from harness.model import JSON, Block, Heading, Paragraph, Table
from harness.report.xlsx import Sheet

COLUMNS = ("metric", "difference", "tests", "users", "that differ", "users needed")


def blocks(data: JSON) -> Iterator[Block]:
    """Yield a table for each pair of runs, or for the one run, and how it is computed."""
    for a, b in dict.fromkeys((of["a"], of["b"]) for of in data["plans"]):
        yield Heading(f"{a}: users to compare it with another run" if b is None else f"{a} and {b}: users needed")
        yield Table(COLUMNS, tuple(_row(of) for of in data["plans"] if (of["a"], of["b"]) == (a, b)))
    yield Heading("How this is computed")
    yield from map(Paragraph, method(data))


def _row(of: JSON) -> tuple[str, ...]:
    metric = Metric.of(of["metric"], of["metric_unit"])
    needed = users_needed(of["users_needed"], of["users_needed_ci95"])
    difference = f"{metric.text(of['difference'])} {metric.difference_unit}"
    return metric.name, difference, *(str(of[name]) for name in ("family", "users", "untied")), needed


def method(data: JSON) -> Iterator[str]:
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
    return [Sheet("Plan", ("A", "B", *COLUMNS), rows, tuple(method(data)))]
