"""What benchmarks' sections and pages are made with: figures as text, charts and tables of them, replies as quotes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from harness.benchmark import Metric
from harness.document import Chart, Quote, Series, Table
from harness.model import Completion
from harness.scoring.reports import Report, Value


def called(report: Report) -> str:
    """Return the model of a report, after the run's name where that is not the model's own."""
    name, model = report.name, report.model
    return model if name == model.rstrip("/").rsplit("/", 1)[-1] else f"{name}: {model}"


def quotes(completion: Completion, label: str) -> Iterator[Quote]:
    """Return a completion as it came, the thoughts before it first."""
    ended = "" if completion.finish_reason in (None, "stop") else f" (ended by {completion.finish_reason})"
    if completion.reasoning:
        yield Quote(f"Thoughts before {label.lower()}", completion.reasoning)
    yield Quote(f"{label}{ended}", completion.shown)


def numbers(*counted: tuple[str, int]) -> Table:
    """Return a table of counts."""
    return Table(("what", "number"), tuple((what, str(number)) for what, number in counted))


def spanned(metric: Metric, of: Value, *, signed: bool = False) -> str:
    """Return the interval of a figure as text."""
    if of.ci95 is None and of.value is not None:
        return "too few"
    return metric.span(of.ci95, signed=signed, approximate=bool(of.approximate))


def intervals(title: str, metric: Metric, parts: Mapping[str, Mapping[str, Value]], names: Sequence[str]) -> Chart:
    """Return a row for each of `names`, a dot for each part. All are of the unit of `metric`."""
    series = (
        Series(part, tuple(of[name].value for name in names), *ends([of[name].ci95 for name in names]))
        for part, of in parts.items()
    )
    title, percent = f"{title}, with 95 % intervals", metric.unit is None
    return Chart("intervals", title, tuple(names), metric.shown_unit, "", tuple(series), percent=percent)


def ends(found: Sequence[Sequence[float] | None]) -> tuple[tuple[float | None, ...], tuple[float | None, ...]]:
    """Return the lower and the upper ends of intervals, None for none."""
    return tuple(one[0] if one else None for one in found), tuple(one[1] if one else None for one in found)
